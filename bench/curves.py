#!/usr/bin/env python3
"""Draws the loss curves of runs into one figure, and says how far they are apart.

    bench/curves.py RUN_DIR... -o FILE.svg [--title TEXT] [--mean STEPS]

Each curve is a moving mean over --mean steps of the loss in RUN_DIR/metrics.jsonl; its name is the directory's.
"""

import argparse
import html
import json
import os
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 16, 40, 44
COLOURS = ("#1f6fb4", "#d1570a", "#2a8a3e", "#7b4fb3", "#b3264b", "#5c6670")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "", "7 4")  # so that curves are told apart in print, too


def read_losses(directory):
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        losses = [json.loads(line)["loss"] for line in file]
    if not losses or None in losses:
        sys.exit(f"curves.py: {directory}: metrics.jsonl has no losses, or some that are not finite")
    return losses


def smooth(losses, count):
    """The mean of the last `count` losses, or of as many as there are."""
    result, total = [], 0.0
    for step, loss in enumerate(losses):
        total += loss - (losses[step - count] if step >= count else 0)
        result.append(total / min(step + 1, count))
    return result


def nice_step(extent):
    """A distance between ticks: 1, 2 or 5 times a power of ten, four to nine of them."""
    step = 10.0 ** -6
    while True:
        for factor in (1, 2, 5):
            if extent / (step * factor) <= 8:
                return step * factor
        step *= 10


def draw(curves, title, mean):
    steps = max(len(values) for values in curves.values())
    low = min(min(values[mean:] or values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    low, high = low - 0.05 * (high - low), high + 0.02 * (high - low)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(step):
        return LEFT + (right - LEFT) * step / max(steps - 1, 1)

    def y(loss):
        return bottom - (bottom - TOP) * (loss - low) / ((high - low) or 1)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="22" font-size="15" fill="#1a1a1a">{html.escape(title)}</text>']  # fmt: skip
    tick = nice_step(high - low)
    value = int(low / tick + 1) * tick
    while value < high:
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{right}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#444444">{value:g}</text>')
        value = round(value + tick, 9)
    tick = max(1, int(nice_step(steps)))
    for step in range(0, steps, tick):
        out.append(f'<text x="{x(step):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#444444">{step}</text>')
    out.append(f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end" fill="#444444">step; loss, mean of {mean} '
               f'steps</text>')  # fmt: skip
    for number, (name, values) in enumerate(curves.items()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6" '
                   f'stroke-dasharray="{dash}"/>')  # fmt: skip
        row = TOP + 14 + 18 * number
        out.append(f'<path d="M{right - 190} {row - 4}h30" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/><text x="{right - 152}" y="{row}" fill="#1a1a1a">{html.escape(name)}'
                   f'</text>')  # fmt: skip
    return "\n".join([*out, "</svg>", ""])


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
