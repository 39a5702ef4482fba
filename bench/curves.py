#!/usr/bin/env python3
"""Draws the loss curves of runs in one figure, and prints how far apart they are.

    bench/curves.py RUN_DIR... -o FILE.svg [--title TEXT] [--mean STEPS]

Each curve is a moving mean over --mean steps of the loss in RUN_DIR/metrics.jsonl; its name is the directory's.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
from draw import DASHES, figure  # noqa: E402


def read_losses(directory):
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        losses = [json.loads(line)["loss"] for line in file]
    if not losses or None in losses:
        sys.exit(f"curves.py: {directory}: metrics.jsonl has no losses, or some that are not finite")
    return losses


def smooth(losses, count):
    """The mean of the last `count` losses, or of all if there are fewer."""
    result, total = [], 0.0
    for step, loss in enumerate(losses):
        total += loss - (losses[step - count] if step >= count else 0)
        result.append(total / min(step + 1, count))
    return result


def draw(curves, title, mean):
    """The first losses are far above the rest, so the chart is scaled to the others."""
    marks = [
        {"kind": "line", "points": list(enumerate(values)), "name": name, "colour": n, "dash": DASHES[n % len(DASHES)]}
        for n, (name, values) in enumerate(curves.items())
    ]
    low = min(min(values[mean:] or values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    y_range = (low - 0.05 * (high - low), high + 0.02 * (high - low))
    panel = {"title": title, "x": "step", "y": f"loss, mean of {mean} steps", "marks": marks, "legend": True}
    return figure([{**panel, "y_range": y_range}])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.svg")
    parser.add_argument("--title", default="Loss in training")
    parser.add_argument("--mean", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()
    curves = {os.path.basename(os.path.normpath(run)): smooth(read_losses(run), options.mean) for run in options.runs}
    with open(options.output, "w") as file:
        file.write(draw(curves, options.title, options.mean))
    first, *others = curves
    for name in others:
        pairs = list(zip(curves[first], curves[name]))[options.mean :]
        apart = [abs(a - b) for a, b in pairs]
        print(f"{first} and {name}: mean losses differ by {sum(apart) / len(apart):.4f} on average, "
              f"{max(apart):.4f} at most; at the end {pairs[-1][0]:.4f} and {pairs[-1][1]:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
