#!/usr/bin/env python3
"""What do several micro-batches a worker make of the delay? Accuracy and loss against M. See README.md.

    BUILD_DIR=build bench/accumulate.py FILE.svg [--results FILE.json] [--steps T]

The global batch is the same for every M, so only the share of late gradients changes: 1/M of what it is with M = 1. Each run
that is done is kept in the results, and is not made again.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
from draw import DASHES, figure  # noqa: E402
from models import WorkerError  # noqa: E402
from runs import train  # noqa: E402

SEVERAL = (1, 2, 4, 8)
RULES = {"cdp-v1, off": {"rule": "cdp-v1", "delay-correction": "off"}, "cdp-v1": {"rule": "cdp-v1"},
         "cdp-v2": {"rule": "cdp-v2"}, "stagger": {"rule": "stagger"}}  # fmt: skip
WORKERS, THREADS = 4, 2
# Settings of a model, its global batch, what is drawn of the summary, and its name in the figure.
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
    """None if the data is not there."""
    settings, batch, _, _ = MODELS[model]
    variable = settings["data"]
    if variable not in os.environ:
        return None
    return {"model": model, **settings, **RULES[rule], "data": f"{SOURCES[variable]}:{os.environ[variable]}",
            "workers": WORKERS, "threads": THREADS, "accumulate": several, "batch": batch // WORKERS // several,
            "steps": steps, "seed": 1}  # fmt: skip


def keep(path, results):
    with open(path + ".new", "w") as file:
        json.dump(results, file, indent=1)
    os.replace(path + ".new", path)


def panel_of(model, results):
    _, _, key, title = MODELS[model]
    marks = []
    for number, rule in enumerate(RULES):
        points = [(m, results[f"{model}, {rule}, {m}"]) for m in SEVERAL if results.get(f"{model}, {rule}, {m}") is not None]
        if points:
            marks.append({"kind": "line", "points": points, "name": rule, "colour": number, "dash": DASHES[number]})
    return {"title": title, "x": "M, micro-batches a worker", "y": key.replace("_", " "), "marks": marks, "legend": True,
            "x_ticks": SEVERAL}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("svg", help="where the figure goes")
    parser.add_argument("--results", default="accumulate.json", help="what was measured (accumulate.json)")
    parser.add_argument("--steps", type=int, default=390, help="of each run (390, an epoch of CIFAR-10)")
    options = parser.parse_args()
    results = json.load(open(options.results)) if os.path.exists(options.results) else {}
    for model, (_, _, key, _) in MODELS.items():
        for rule in RULES:
            for several in SEVERAL:
                name, settings = f"{model}, {rule}, {several}", settings_of(model, rule, several, options.steps)
                if name in results:
                    continue
                if settings is None:
                    print(f"{name}: skipped, {MODELS[model][0]['data']} does not say where its data is", file=sys.stderr)
                    continue
                try:
                    results[name] = train(settings).get(key)
                except WorkerError as error:  # a loss that is not finite is a result, too
                    print(f"{name}: {error}", file=sys.stderr)
                    results[name] = None
                print(f"{name}: {results[name]}", flush=True)
                keep(options.results, results)
    panels = [panel for panel in (panel_of(model, results) for model in MODELS) if panel["marks"]]
    if not panels:
        sys.exit("there is nothing to draw")
    with open(options.svg, "w") as file:
        file.write(figure(panels, columns=2, width=960, height=340))


if __name__ == "__main__":
    main()
