"""Figures with their spread, and the tables that benches print."""

import statistics

from workers import ENOUGH_QUIET, QUIET


def spread(values):
    values = list(values)
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def text(figure, digits=None, scale=1, unit=""):
    """A median with its spread; empty for a missing figure."""
    if figure is None:
        return "–"
    values = [figure[k] * scale for k in ("median", "min", "max")]
    if digits is None:
        digits = 0 if values[0] >= 100 else 1 if values[0] >= 10 else 2
    median, low, high = (f"{v:.{digits}f}" for v in values)
    return f"{median}{unit} ({low}..{high})"


def print_table(title, header, rows):
    widths = [max(len(row[i]) for row in [header] + rows) for i in range(len(header))]
    print(f"\n{title}\n")
    for n, row in enumerate([header] + rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
        if n == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def was_quiet(s):
    """Whether a summary is evidence: the machine was quiet in all rounds that count, and they are enough."""
    return s["quiet"] or s["quiet_rounds"] == s["rounds"] >= ENOUGH_QUIET


def rounds_text(s):
    mark = "" if was_quiet(s) else ", **NOT QUIET**"
    return f"{s['rounds']} kept, {s['thrown_away']} thrown away{mark}"


def print_machine(m, fma_before, fma_after):
    peer = f"PyTorch {m['torch']}, torchvision {m['torchvision']}" if "torch" in m else "PyTorch MISSING"
    print(f"\nMachine: {m['cpu']}, {m['cores']} cores; {m['system']}")
    print(f"Software: Carousel {m['carousel']}, oneDNN {m['onednn']}, {m['openblas']}; {peer}")
    for when, (one, two) in (("before", fma_before), ("after", fma_after)):
        mark = "" if two >= QUIET * one else "  NOT QUIET"
        print(f"Multiply-adds {when}: 1 thread {one:.0f}, 2 threads {two:.0f} GFLOP/s{mark}")
