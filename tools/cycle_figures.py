#!/usr/bin/env python3
"""Draws the four figures of docs/README.md from plans that the program prints.

    tools/cycle_figures.py CAROUSEL docs/figures            write cycle-*.svg
    tools/cycle_figures.py CAROUSEL docs/figures --check    fail if that would change anything

Every cell, version and message is read from `carousel plan --dump`, so the figures cannot say anything else than the
plan. They follow the reader's light or dark setting.
"""

import os
import re
import subprocess
import sys

MODEL = "vit-tiny"  # any whose stages all have parameters; the figures show equal slots
CELL, ROW, LEFT, TOP = 32, 28, 88, 64
STYLE = """
svg { --paper: #ffffff; --ink: #1f2933; --soft: #5f6b7a; --line: #c9d1d9; --strong: #b3264b; --old: #e8e0cf; --new: #9fc5e8;
  --f0: #c9c2dd; --f1: #bcd3e6; --f2: #b5ded7; --f3: #cdebc0; --b0: #4b3585; --b1: #2c6597; --b2: #1f8476; --b3: #3f8f3a; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa7b4; --line: #3d4650; --strong: #ff7b93; --old: #5a4f35; --new: #1f5f99;
    --f0: #4a4168; --f1: #2f4a63; --f2: #2a524c; --f3: #3b5734; --b0: #a394e0; --b1: #6fb1ea; --b2: #55c9b6; --b3: #86d67c; } }
text { font: 13px Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; fill: var(--ink); }
.title { font-size: 16px; font-weight: bold; } .note { fill: var(--soft); } .on { fill: var(--paper); }
.mid { text-anchor: middle; } .end { text-anchor: end; }
.arrow { stroke: var(--strong); stroke-width: 2; fill: none; marker-end: url(#tip); } .tip { fill: var(--strong); }
"""


# ---- plans ------------------------------------------------------------------------------------------------


def cells_of(carousel, rule, workers, steps=5):
    """{(worker, slot): (kind, stage, version)} of a plan with as many stages as workers."""
    command = [carousel, "plan", "--model", MODEL, "--workers", str(workers), "--rule", rule, "--dump", "--steps", str(steps)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cells = {}
    for slot, tasks in re.findall(r"^(\d+): (.*)$", text, re.M):
        for kind, stage, worker, version in re.findall(r"\b([FB])(\d+)\.(\d+)@(\d+)", tasks):
            cells[int(worker), int(slot)] = (kind, int(stage), int(version))
    return cells


def step_of(worker, slot, workers):
    """In the cycle worker i begins each step 2i slots after worker 0."""
    return (slot - 2 * worker) // (2 * workers)


def held_of(cells, workers, slots):
    """Stages' activations held in each slot, of all workers: a forward begins to hold, a backward ends it."""
    held, total = [], 0
    for slot in range(max(slots) + 1):
        now = [cells.get((worker, slot)) for worker in range(workers)]
        total += sum(1 for cell in now if cell and cell[0] == "F")
        held.append(total)
        total -= sum(1 for cell in now if cell and cell[0] == "B")
    return [held[slot] for slot in slots]


# ---- drawing ----------------------------------------------------------------------------------------------


def text(x, y, words, kind=""):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def rect(x, y, width, height, fill):
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="var(--{fill})"/>'


def arrow(x1, y1, x2, y2):
    bend = (x2 - x1) / 2
    return f'<path class="arrow" d="M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"/>'


def page(width, height, parts):
    tip = ('<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>')  # fmt: skip
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img">\n<style>{STYLE}</style>\n{tip}\n<rect width="{width}" height="{height}" fill="var(--paper)"/>\n'
            f"{body}\n</svg>\n")  # fmt: skip


def middle(slots, slot, worker, top):
    return LEFT + (slot - slots[0] + 0.5) * CELL, top + (worker + 0.5) * ROW


def grid(cells, workers, slots, top, fill_of, label_of):
    parts = []
    for worker in range(workers):
        parts.append(text(LEFT - 10, top + worker * ROW + 18, f"worker {worker}", "note end"))
        for slot in slots:
            if (worker, slot) in cells:
                cell = cells[worker, slot]
                x, y = LEFT + (slot - slots[0]) * CELL, top + worker * ROW
                fill = fill_of(cell)
                parts.append(rect(x + 1, y + 1, CELL - 2, ROW - 2, fill))
                parts.append(text(x + CELL / 2, y + 18, label_of(cell), "mid on" if fill[0] == "b" else "mid"))
    return parts


def by_stage(cell):
    return f"{cell[0].lower()}{cell[1] % 4}"


def name(cell):
    return f"{cell[1]}′" if cell[0] == "B" else f"{cell[1]}"


def two_workers(carousel):
    """dp above the cycle."""
    slots, parts = range(8, 20), [text(16, 26, "Two workers, two stages", "title"),
                                  text(240, 26, "1 is the forward of stage 1, 1′ its backward", "note")]
    for top, rule, words in ((TOP + 4, "dp", "Data parallelism: both climb together, both descend together"),
                             (TOP + 104, "cdp-v2", "The cycle: one climbs while the other descends")):  # fmt: skip
        parts.append(text(16, top - 8, words))
        parts += grid(cells_of(carousel, rule, 2), 2, slots, top, by_stage, name)
    return page(LEFT + CELL * len(slots) + 130, TOP + 180, parts)


def memory(carousel):
    """The cycle of four workers, and what both rules hold."""
    slots, workers = range(16, 40), 4
    cycle, together = cells_of(carousel, "cdp-v2", workers), cells_of(carousel, "dp", workers)
    parts = [text(16, 26, "Four workers, four stages: the sum of all activations stays flat", "title"), text(16, TOP - 10, "The cycle")]
    parts += grid(cycle, workers, slots, TOP, by_stage, name)
    base, scale = TOP + workers * ROW + 200, 9
    parts.append(text(16, base - 172, "Activations held by all workers, in units of one stage of one micro-batch"))
    for level in (0, 4, 8, 12, 16):
        y = base - level * scale
        parts.append(f'<path d="M{LEFT} {y:g}H{LEFT + CELL * len(slots):g}" stroke="var(--line)"/>')
        parts.append(text(LEFT - 10, y + 4, level, "note end"))
    for held, fill, width, shift in ((held_of(together, workers, slots), "old", 26, 3), (held_of(cycle, workers, slots), "b1", 12, 10)):
        parts += [rect(LEFT + n * CELL + shift, base - h * scale, width, h * scale, fill) for n, h in enumerate(held)]
    parts += [rect(LEFT, base + 16, 14, 12, "old"), text(LEFT + 20, base + 27, "dp: from 4 up to 16, and down again", "note"),
              rect(LEFT + 300, base + 16, 14, 12, "b1"), text(LEFT + 320, base + 27, "the cycle: 10 in every slot", "note")]  # fmt: skip
    return page(LEFT + CELL * len(slots) + 24, base + 44, parts)


def gradient(carousel):
    """One stage's sum: from backward to backward, then to the first forward that uses it."""
    stage, workers, slots = 2, 4, range(8, 32)
    cells = cells_of(carousel, "cdp-v2", workers)
    parts = [text(16, 26, f"The gradient of stage {stage}, on its way", "title"),
             text(16, TOP - 10, "Each worker adds its own and passes the sum on. After the last one the stage is updated, and the next "
                  "forward uses the result.", "note")]  # fmt: skip
    parts += grid(cells, workers, slots, TOP, lambda cell: by_stage(cell) if cell[1] == stage else "old", name)
    # Of step 1: the backwards in their order, then the first forward with version 2.
    way = sorted((slot, worker) for (worker, slot), cell in cells.items()
                 if cell[:2] == ("B", stage) and step_of(worker, slot, workers) == 1)  # fmt: skip
    user = min((slot, worker) for (worker, slot), cell in cells.items() if cell == ("F", stage, 2))
    points = [middle(slots, slot, worker, TOP) for slot, worker in [*way, user]]
    parts += [arrow(a[0] + 6, a[1] + 3, b[0] - 9, b[1]) for a, b in zip(points, points[1:])]
    x, y = points[-1]
    parts.append(text(x, TOP + workers * ROW + 20, f"first use of the new weights: worker {user[1]}, slot {user[0]}", "note mid"))
    return page(LEFT + CELL * len(slots) + 24, TOP + workers * ROW + 36, parts)


def versions(carousel):
    """Which weights each forward and backward uses in steady state."""
    workers, slots, parts = 4, range(16, 32), [text(16, 26, "Which weights: fresh ones are blue, last step's are sand", "title")]
    for top, rule, words in ((TOP + 4, "cdp-v1", "cdp-v1: last step's everywhere"),
                             (TOP + 168, "cdp-v2", "cdp-v2: fresh wherever the update is ready in time")):  # fmt: skip
        cells = cells_of(carousel, rule, workers)
        # A micro-batch of step t that uses version t is fresh.
        marked = {(w, slot): (*cell, cell[2] >= step_of(w, slot, workers)) for (w, slot), cell in cells.items()}
        parts.append(text(16, top - 8, words))
        parts += grid(marked, workers, slots, top, lambda cell: "new" if cell[3] else "old", name)
    return page(LEFT + CELL * len(slots) + 24, TOP + 296, parts)


FIGURES = {"cycle-two.svg": two_workers, "cycle-memory.svg": memory, "cycle-gradient.svg": gradient, "cycle-versions.svg": versions}


def write_all(figures, script, usage):
    """Writes the figures, or compares them with what is there, as the command line says."""
    if len(sys.argv) < 3:
        sys.exit(usage)
    carousel, directory, check = sys.argv[1], sys.argv[2], "--check" in sys.argv[3:]
    for file, draw in figures.items():
        path, svg = os.path.join(directory, file), draw(carousel)
        if not check:
            with open(path, "w") as out:
                out.write(svg)
        elif not os.path.exists(path) or open(path).read() != svg:
            sys.exit(f"{path} is not what {script} draws: run tools/{os.path.basename(script)} CAROUSEL {directory}")


if __name__ == "__main__":
    write_all(FIGURES, __file__, __doc__)
