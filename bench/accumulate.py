#!/usr/bin/env python3
"""How do several micro-batches per worker change the cost of the delay? Accuracy and loss against M. See README.md.

    BUILD_DIR=build bench/accumulate.py FILE.svg [--results DIR] [--steps T] [--only TEXT]

The global batch is the same for every M, so only the share of late gradients changes: 1/M of that with M = 1. Finished
runs are kept in the results and not repeated.
"""

import argparse
import os
import sys

sys.dont_write_bytecode = True
from draw import DASHES, figure  # noqa: E402
from workers import WorkerError  # noqa: E402
from runs import train  # noqa: E402
from store import ROOT, Store, shown_command  # noqa: E402

RESULTS = os.path.join(ROOT, "results")
QUESTION = "How much of the delay's cost is left with M micro-batches a worker, at the same global batch?"
SEVERAL = (1, 2, 4, 8)
RULES = {"cdp-v1, off": {"rule": "cdp-v1", "delay-correction": "off"}, "cdp-v1": {"rule": "cdp-v1"},
         "cdp-v2": {"rule": "cdp-v2"}, "stagger": {"rule": "stagger"}}  # fmt: skip
WORKERS, THREADS = 4, 2
# Settings of a model, its global batch, which figure of the summary to draw, and its name in the chart.
MODELS = {
    "resnet20": (
        {"data": "CAROUSEL_CIFAR10_JPEG", "lr": 0.1, "weight-decay": 5e-4, "lr-schedule": "cosine", "warmup": 65},
        128, "accuracy", "resnet20 on CIFAR-10: test accuracy",
    ),
    "gpt2-nano": (
        {"data": "CAROUSEL_TINYSHAKESPEARE", "optimizer": "adamw", "lr": 1e-3, "width": 96, "depth": 4, "seq-len": 64,
         "lr-schedule": "cosine", "warmup": 50, "eval-batches": 32},
        32, "eval_loss", "GPT-2 of width 96 on tiny Shakespeare: evaluation loss",
    ),
}  # fmt: skip
SOURCES = {"CAROUSEL_CIFAR10_JPEG": "imagefolder", "CAROUSEL_TINYSHAKESPEARE": "tokens"}


def settings_of(model, rule, several, steps):
    """The settings of a run; None if its data is missing."""
    settings, batch, _, _ = MODELS[model]
    variable = settings["data"]
    if variable not in os.environ:
        return None
    correction = {"delay-correction": f"{0.9 / several:g},{1 / several:g}"} if rule == "cdp-v1" else {}
    return {"model": model, **settings, **RULES[rule], **correction, "data": f"{SOURCES[variable]}:{os.environ[variable]}",
            "workers": WORKERS, "threads": THREADS, "accumulate": several, "batch": batch // WORKERS // several,
            "steps": steps, "seed": 1}  # fmt: skip


def name_of(model, rule, several, steps):
    return f"{model}, {rule}, {several}, {steps} steps"


def measure(settings, key):
    """The figures from a run's summary; None if a loss was not finite, which is a result, too."""
    try:
        return train(settings)[key]
    except WorkerError as error:
        if getattr(error, "code", None) != 1 or "not finite" not in error.reason:
            raise
        print(error, file=sys.stderr)
        return None


def panel_of(model, runs, steps):
    _, _, key, title = MODELS[model]
    marks = []
    for number, rule in enumerate(RULES):
        found = [(m, runs.get(name_of(model, rule, m, steps), {}).get(key)) for m in SEVERAL]
        points = [(m, value) for m, value in found if value is not None]
        if points:
            marks.append({"kind": "line", "points": points, "name": rule, "colour": number, "dash": DASHES[number]})
            marks += [{"kind": "line", "points": [(m - 0.06, value), (m + 0.06, value)], "colour": number, "width": 6}
                      for m, value in points]  # fmt: skip
    values = [value for mark in marks for _, value in mark["points"]]
    room = 0.45 * (max(values, default=0) - min(values, default=0)) if key == "accuracy" else 0  # for the legend
    return {"title": title, "x": "M, micro-batches a worker", "y": key.replace("_", " "), "marks": marks, "legend": True,
            "x_ticks": SEVERAL, "x_range": (0.8, SEVERAL[-1] + 0.2),
            "y_range": (min(values, default=0) - 0.02, max(values, default=1) + 0.02 + room)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("svg", help="where the figure goes")
    parser.add_argument("--results", default=RESULTS, help="where accumulate.json is, what was measured (results)")
    parser.add_argument("--steps", type=int, default=390, help="of each run (390, an epoch of CIFAR-10)")
    parser.add_argument("--only", default="", help="train only runs whose name contains this; draw all that are there")
    options = parser.parse_args()
    store, failed = Store("accumulate", QUESTION, options.results, ""), False
    for model, (_, _, key, _) in MODELS.items():
        for rule in RULES:
            for several in SEVERAL:
                name = name_of(model, rule, several, options.steps)
                settings = settings_of(model, rule, several, options.steps)
                if name in store.runs or options.only not in name:
                    continue
                if settings is None:
                    print(f"{name}: skipped, {MODELS[model][0]['data']} does not say where its data is", file=sys.stderr)
                    continue
                try:
                    store.add(name, shown_command("train", settings), {key: measure(settings, key)})
                    print(f"{name}: {store.runs[name][key]}", flush=True)
                except WorkerError as error:  # go on with the other runs
                    print(f"{name}: {error}", file=sys.stderr)
                    failed = True
    panels = [panel for panel in (panel_of(model, store.runs, options.steps) for model in MODELS) if panel["marks"]]
    if not panels:
        sys.exit("there is nothing to draw")
    with open(options.svg, "w") as file:
        file.write(figure(panels, columns=2, width=960, height=340))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
