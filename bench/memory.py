#!/usr/bin/env python3
"""How much memory does training take under each rule? Compared with the plan's prediction. See README.md.

    BUILD_DIR=build bench/memory.py [--models a,b] [--rounds N] [--steps T] [--quick] [--json FILE]

Runs the program itself, each setting in its own process. Peaks depend on the timing of the threads, so each setting
is run several times and the worst figure counts. A missed target is printed as such and is not an error; the exit code
is 1 only if something could not be measured.
"""

import argparse
import json
import os
import platform
import sys

sys.dont_write_bytecode = True
from tables import print_table  # noqa: E402
from workers import WorkerError, cpu_name, may_use  # noqa: E402
from runs import RunWitness, plan, train  # noqa: E402

# Name: the model's options in this bench. Micro-batches are small, as ratios do not depend on their size.
MODELS = {
    "vit-tiny": {"model": "vit-tiny", "batch": 4},
    "resnet18": {"model": "resnet18", "batch": 4, "image-size": 32, "classes": 10},
    "gpt2-nano": {"model": "gpt2-nano", "batch": 4},
}
CYCLIC = ("cdp-v2", "cdp-v1")
RULES = ("dp", *CYCLIC, "accumulate")
UNPACED = "cdp-v2 unpaced"
# Categories of the arena besides activations.
CATEGORIES = ("weights", "gradients", "optimizer", "messages", "workspace", "snapshot")

# Our targets: the largest ratio of cyclic to dp, for (model, workers, stages per worker).
RATIO_BARS = {
    ("vit-tiny", 4, 1): 0.58,
    ("resnet18", 4, 1): 0.76,
    ("gpt2-nano", 4, 1): 0.62,
    ("vit-tiny", 2, 8): 0.68,
}
ABOVE_PREDICTION = 0.04  # the most above the prediction, as a share of it
UNPACED_WORSE = 1.15  # the least over paced: otherwise pacing would not matter, and the ratios would prove nothing
FRAGMENTATION = 0.05  # the most, as a share of the arena's extent
RESIDENT = 0.05  # how much savings in the arena and in resident memory may differ, as a share of dp's resident memory


# ---- measuring --------------------------------------------------------------------------------------------


def cases(models):
    """(model, workers, stages for each worker, threads, rule) of all runs."""
    for model in models:
        for threads in (4, 2):
            for rule in (*RULES, UNPACED) if threads == 4 else RULES:
                yield model, 4, 1, threads, rule
    if "vit-tiny" in models:
        for rule in RULES:
            yield "vit-tiny", 2, 8, 2, rule


def settings_of(case):
    model, workers, k, threads, rule = case
    return {**MODELS[model], "workers": workers, "stages": workers * k, "threads": threads, "rule": rule.split()[0]}


def measure(case, steps, rounds):
    settings = settings_of(case)
    hidden = {"unpaced": True} if case[-1] == UNPACED else {}
    runs = [train({**settings, **hidden, "steps": steps, "lr": 0.001})["memory"] for _ in range(rounds)]
    peaks = [run["activations_peak_bytes"] for run in runs]
    figures = {
        "peak": max(peaks),
        "least_peak": min(peaks),
        "mean": max(run["activations_mean_bytes"] for run in runs),
        "predicted": plan(settings)["predictions"]["activations_peak_bytes"],
        "rss": max(run["rss_peak_bytes"] for run in runs),
        "extent": max(run["arena_extent_bytes"] for run in runs),
        "fragmentation": max(fragmentation(run) for run in runs),
    }
    figures["above"] = figures["peak"] / figures["predicted"] - 1
    return figures


def fragmentation(memory):
    """The share of the arena's extent that exceeds the sum of its categories' peaks.

    Categories need not peak at the same time, so this is a lower bound of the fragmentation."""
    asked = sum(memory[f"{category}_bytes"] for category in CATEGORIES) + memory["activations_peak_bytes"]
    return 1 - asked / memory["arena_extent_bytes"]


def relate(results):
    """Ratios between settings: the worst figure over the smallest one of dp, or of the paced run."""
    for (*setting, rule), figures in results.items():
        dp, paced = results.get((*setting, "dp")), results.get((*setting, "cdp-v2"))
        if dp:
            figures["ratio"] = figures["peak"] / dp["least_peak"]
            figures["saved"] = dp["peak"] - figures["peak"]
            figures["saved_extent"] = dp["extent"] - figures["extent"]
            figures["saved_rss"] = dp["rss"] - figures["rss"]
            figures["rss_off"] = abs(figures["saved_rss"] - figures["saved_extent"]) / dp["rss"]
        if rule == UNPACED and paced:
            figures["over_paced"] = figures["least_peak"] / paced["peak"]


# ---- printing ---------------------------------------------------------------------------------------------


def megabytes(value):
    return f"{value / 1e6:.1f}"


def percent(value):
    return f"{100 * value:+.1f} %"


def label(case):
    model, workers, k, threads, rule = case
    return f"{model}, N = {workers}, k = {k}, P = {threads}: {rule}"


def head(case):
    model, workers, k, threads, rule = case
    return [model, str(workers), str(k), str(threads), rule]


def print_activations(results):
    rows = []
    for case, f in results.items():
        rows.append(head(case) + [megabytes(f["peak"]), megabytes(f["least_peak"]), megabytes(f["mean"]),
                                  f"{f['ratio']:.3f}" if "ratio" in f else "–", megabytes(f["predicted"]),
                                  percent(f["above"])])  # fmt: skip
    print_table(
        "Activations, MB (arena): the highest peak and mean of all rounds, the lowest peak, the highest over dp's "
        "lowest, and the plan's prediction for that P.",
        ["model", "N", "k", "P", "rule", "peak", "lowest", "mean", "over dp", "predicted", "measured"],
        rows,
    )


def print_resident(results):
    rows = []
    for case, f in results.items():
        saved = [megabytes(f[key]) if key in f else "–" for key in ("saved", "saved_extent", "saved_rss")]
        rows.append(head(case) + [megabytes(f["rss"]), megabytes(f["extent"]), megabytes(f["rss"] - f["extent"]),
                                  f"{f['fragmentation']:.1%}", *saved])  # fmt: skip
    print_table(
        "The whole process, MB: peak of resident memory, the arena's extent, what is resident outside of it, "
        "fragmentation; and what is saved beside dp: of activations, of the extent, of resident memory. The extent "
        "holds gradients and weights too: dp has a gradient buffer for each worker, cyclic rules a second version of "
        "the weights.",
        ["model", "N", "k", "P", "rule", "resident", "extent", "outside", "fragmentation", "activations saved",
         "extent saved", "resident saved"],
        rows,
    )  # fmt: skip


def bars_of(case, f):
    """For each target of a setting: the value, its text, the bound, and whether it holds."""
    if case[-1] == UNPACED:
        value = f.get("over_paced")
        return {"unpaced": value and (f"{value:.2f}", f"above {UNPACED_WORSE}", value > UNPACED_WORSE)}
    if case[-1] not in CYCLIC:
        return {}
    ratio, most = f.get("ratio"), RATIO_BARS[case[:3]]
    off, above, holes = f.get("rss_off"), f["above"], f["fragmentation"]
    return {
        "ratio": ratio and (f"{ratio:.3f}", f"at most {most}", ratio <= most),
        "prediction": (percent(above), f"at most {percent(ABOVE_PREDICTION)}", above <= ABOVE_PREDICTION),
        "fragmentation": (f"{holes:.1%}", f"under {FRAGMENTATION:.0%}", holes < FRAGMENTATION),
        "resident": off is not None and (f"{off:.1%}", f"at most {RESIDENT:.0%}", off <= RESIDENT),
    }


def print_bars(results):
    kinds = ["ratio", "prediction", "unpaced", "fragmentation", "resident"]
    rows, outcome = [], []
    for case, f in results.items():
        bars = {kind: bar for kind, bar in bars_of(case, f).items() if bar}
        for kind, (value, bound, holds) in bars.items():
            outcome.append({"what": label(case), "kind": kind, "value": value, "bound": bound, "passed": holds})
        if bars:
            cells = {k: f"{'PASS' if holds else 'MISS'} {value}, {bound}" for k, (value, bound, holds) in bars.items()}
            rows.append(head(case) + [cells.get(kind, "") for kind in kinds])
    print_table(
        "Bars: peak over dp; above the plan's prediction; unpaced over paced; fragmentation; by how much the savings "
        "of resident memory and of the arena's extent differ, over dp's resident memory.",
        ["model", "N", "k", "P", "rule", *kinds],
        rows,
    )
    print(f"\n{sum(bar['passed'] for bar in outcome)} of {len(outcome)} bars hold.")
    return outcome


# ---- main -------------------------------------------------------------------------------------------------


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="which, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting; the worst counts (default 3)")
    parser.add_argument("--steps", type=int, default=8, help="of each run (default 8)")
    parser.add_argument("--quick", action="store_true", help="one run of 5 steps: only whether it works")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.models = [name for name in options.models.split(",") if name]
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the models are {', '.join(MODELS)}")
    if options.quick:
        options.rounds, options.steps = 1, 5
    if options.rounds < 1 or options.steps < 4:
        parser.error("there must be a round, and 4 steps: the cycle needs some to be in full swing")
    return options


def main():
    options = parse_options()
    witness = RunWitness([])
    results, failed = {}, False
    for case in cases(options.models):
        try:
            results[case] = measure(case, options.steps, options.rounds)
        except WorkerError as error:
            print(f"bench: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"{label(case)}: {megabytes(results[case]['peak'])} MB", file=sys.stderr, flush=True)
    relate(results)
    others, cores = witness.cores(), len(os.sched_getaffinity(0))
    mark = "" if others <= may_use(cores) else "  NOT QUIET"
    print(f"\nMachine: {cpu_name()}, {cores} cores; {platform.platform()}; others used {others:.2f} cores{mark}")
    print_activations(results)
    print_resident(results)
    outcome = print_bars(results)
    if options.json:
        named = {label(case): figures for case, figures in results.items()}
        with open(options.json, "w") as file:
            json.dump({"cpu": cpu_name(), "others": others, "results": named, "bars": outcome}, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
