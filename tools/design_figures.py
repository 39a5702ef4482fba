#!/usr/bin/env python3
"""Draws the figures of docs/design.md and docs/ranks.md.

    tools/design_figures.py CAROUSEL docs/figures            write design-*.svg
    tools/design_figures.py CAROUSEL docs/figures --check    fail if that would change anything

Schedules are read from `carousel plan --dump`, as in cycle_figures.py. The diagrams of boxes are written down here.
"""

import re
import subprocess
import sys

sys.dont_write_bytecode = True
from cycle_figures import CELL, LEFT, ROW, TOP, MODEL, page, rect, text, write_all  # noqa: E402

CHAIN = {"w": "b1", "b": "b0"}  # colour of zero's two chains: along the forwards, along the backwards


# ---- plans over devices -----------------------------------------------------------------------------------


def devices_of(carousel, placement, workers, rule, steps):
    """[{slot: [task, ...]}] for each device, tasks as the dump writes them."""
    command = [carousel, "plan", "--model", MODEL, "--placement", placement, "--workers", str(workers), "--rule", rule,
               "--dump", "--steps", str(steps)]  # fmt: skip
    devices = []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if line.startswith("device "):
            devices.append({})
        elif found := re.match(r"(-?\d+): (.*)", line):
            devices[-1][int(found[1])] = found[2].split()
    return devices


def computed(tasks):
    """(kind, stage, worker, version) of the forward or backward among a slot's tasks, or None."""
    for task in tasks:
        if found := re.fullmatch(r"([FB])(\d+)\.(\d+)@(\d+)(/\d+)?", task):
            return found[1], int(found[2]), int(found[3]), int(found[4])
    return None


def box(x, y, fill, label, width=CELL):
    return [rect(x + 1, y + 1, width - 2, ROW - 2, fill), text(x + width / 2, y + 18, label, "mid on" if fill[0] == "b" else "mid")]


def chains(carousel):
    """zero's copies of one stage: forwards and backwards each have a chain."""
    stage, workers, slots = 1, 3, range(7, 23)
    devices = devices_of(carousel, "zero", workers, "cdp-v2", 5)
    pitch, parts = 56, [text(16, 26, f"zero: the copies of stage {stage}'s weights, three ranks, cdp-v2", "title")]
    where = {}
    for rank, device in enumerate(devices):
        parts.append(text(LEFT - 10, TOP + rank * pitch + 18, f"rank {rank}", "note end"))
        for slot in slots:
            x, y = LEFT + (slot - slots[0]) * CELL, TOP + rank * pitch
            if cell := computed(device.get(slot, [])):
                kind, at, _, version = cell
                mine = at == stage
                where[rank, slot] = (x, y)
                parts += box(x, y, ("f1" if kind == "F" else "f0") if mine else "old", f"{kind}{version}" if mine else "")
            if any(re.match(rf"U{stage}@", task) for task in device.get(slot, [])):
                parts.append(text(x + CELL / 2, y + ROW + 13, "update", "note mid"))
    parts += hops(devices, stage, slots, pitch)
    y = TOP + workers * pitch + 16
    parts += [f'<path d="M{LEFT} {y - 4}h28" stroke="var(--b1)" stroke-width="2"/>', text(LEFT + 36, y, "copy for forwards", "note"),
              f'<path d="M{LEFT + 180} {y - 4}h28" stroke="var(--b0)" stroke-width="2" stroke-dasharray="5 3"/>',
              text(LEFT + 216, y, "copy for backwards", "note"), text(LEFT + 360, y, "F2: forward with version 2", "note")]  # fmt: skip
    return page(LEFT + CELL * len(slots) + 24, y + 20, parts)


def hops(devices, stage, slots, pitch):
    """A line for each message with the stage's weights, from the slot that sends it to the one that uses it."""
    parts = []
    for rank, device in enumerate(devices):
        for slot, tasks in device.items():
            for kind, rest, to in re.findall(rf"S([wb])({stage}\.\d+@\d+)>(\d+)", " ".join(tasks)):
                until = min((s for s, there in devices[int(to)].items() if s > slot and f"R{kind}{rest}<{rank}" in there), default=None)
                if until is None or slot < slots[0] or until > slots[-1]:
                    continue
                x1, x2 = (LEFT + (s - slots[0] + 0.5) * CELL for s in (slot, until))
                down = int(to) > rank
                y1 = TOP + rank * pitch + (ROW if down else 0)
                y2 = TOP + int(to) * pitch + (0 if down else ROW)
                dash = ' stroke-dasharray="5 3"' if kind == "b" else ""
                parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="var(--{CHAIN[kind]})" stroke-width="2"{dash}/>'
                             f'<circle cx="{x2:g}" cy="{y2:g}" r="3.5" fill="var(--{CHAIN[kind]})"/>')  # fmt: skip
    return parts


def grid(carousel):
    """Which rank computes what: stage r needs N - r ranks."""
    workers, slots = 4, range(16, 40)
    devices = devices_of(carousel, "grid", workers, "cdp-v1", 7)
    parts = [text(16, 26, f"grid: {len(devices)} ranks for four workers and four stages", "title"),
             text(16, TOP - 16, "A number is the worker whose micro-batch is computed; dark: its backward.", "note"),
             text(16, TOP + 2, "Stage j has N - j micro-batches under way at once, so it needs as many ranks.", "note")]  # fmt: skip
    y, before = TOP + 14, None
    for device in devices:
        cells = {slot: cell for slot, tasks in device.items() if (cell := computed(tasks))}
        stage = next(iter(cells.values()))[1]
        if stage != before:
            y += 8 if before is not None else 0
            parts.append(text(LEFT - 10, y + 18, f"stage {stage}", "note end"))
            before = stage
        for slot, (kind, _, worker, _) in cells.items():
            if slot in slots:
                parts += box(LEFT + (slot - slots[0]) * CELL, y, f"{'f' if kind == 'F' else 'b'}{worker}", worker)
        y += ROW
    return page(LEFT + CELL * len(slots) + 24, y + 16, parts)


# ---- boxes ------------------------------------------------------------------------------------------------


def boxes(items, fills):
    """Boxes with a title and lines of text: name: (x, y, width, height, title, lines)."""
    parts = []
    for name, (x, y, width, height, title, lines) in items.items():
        parts.append(rect(x, y, width, height, fills.get(name, "old")))
        parts.append(text(x + width / 2, y + 20, f'<tspan font-weight="bold">{title}</tspan>', "mid"))
        parts += [text(x + width / 2, y + 38 + 17 * n, line, "mid") for n, line in enumerate(lines)]
    return parts


def join(points):
    """A path with an arrow at its end."""
    return f'<path class="arrow" d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def modules(_):
    """One table, many readers."""
    items = {
        "graph": (16, 60, 130, 62, "graph", ["operations:", "src/graph, models"]),
        "partition": (176, 60, 120, 62, "partition", ["S stages of", "equal cost"]),
        "rule": (326, 16, 130, 46, "rule", ["rules.c, clock.c"]),
        "placement": (326, 112, 130, 46, "placement", ["placements/"]),
        "tasks": (490, 60, 160, 62, "tasks with uses", ["expand.c, uses.c", "who does what when"]),
        "edges": (690, 60, 150, 62, "edges", ["edges.c", "who waits for whom"]),
        "validator": (500, 190, 150, 62, "validator", ["validate*.c", "proves the tasks"]),
        "ledger": (326, 190, 150, 62, "ledger, text, SVG", ["predict_*.c, text.c,", "draw.c"]),
        "machine": (680, 190, 170, 62, "machine", ["machine*.c: predicts", "memory and time"]),
        "executor": (500, 290, 150, 62, "executor", ["src/engine/rank*.c", "runs the tasks"]),
        "kernels": (16, 290, 130, 62, "kernels", ["src/kernels", "program, tape"]),
        "transport": (700, 290, 130, 62, "transport", ["src/transport", "local, mpi"]),
    }
    fills = {"tasks": "new", "edges": "new", "executor": "f3", "validator": "f2", "machine": "f2", "ledger": "f2"}
    lines = [((146, 91), (170, 91)), ((296, 91), (484, 91)), ((456, 39), (540, 39), (540, 56)), ((456, 135), (540, 135), (540, 126)),
             ((650, 91), (684, 91)), ((575, 122), (575, 186)), ((520, 122), (520, 174), (400, 174), (400, 186)),
             ((765, 122), (765, 186)), ((840, 91), (872, 91), (872, 270), (620, 270), (620, 286)),
             ((146, 321), (494, 321)), ((81, 122), (81, 286)), ((700, 321), (656, 321)), ((650, 336), (694, 336))]  # fmt: skip
    return page(900, 370, boxes(items, fills) + [join(points) for points in lines])


def life(_):
    """What happens to a task between the plan and its end."""
    items = {
        "listed": (16, 50, 140, 80, "listed", ["a window ahead;", "edges count its", "blockers"]),
        "blocked": (190, 50, 130, 80, "blocked", ["earlier users of", "its resources", "are not over"]),
        "ready": (354, 50, 130, 80, "ready", ["in the plan's", "order"]),
        "runs": (518, 50, 140, 80, "runs", ["on a thread, in", "portions; without", "the lock"]),
        "over": (692, 50, 150, 80, "over", ["last uses free it;", "dependents lose", "a blocker"]),
        "posted": (354, 170, 130, 62, "posted", ["a receive, some", "slots ahead"]),
        "arrived": (518, 170, 140, 62, "arrived", ["taken or added by", "the carrier"]),
    }
    fills = {"ready": "f1", "runs": "f3", "over": "new", "posted": "f0", "arrived": "f0"}
    lines = [((156, 90), (186, 90)), ((320, 90), (350, 90)), ((484, 90), (514, 90)), ((658, 90), (688, 90)),
             ((255, 130), (255, 201), (350, 201)), ((484, 201), (514, 201)), ((658, 201), (767, 201), (767, 134))]  # fmt: skip
    parts = [text(16, 26, "A task's life on a rank", "title"), *boxes(items, fills), *(join(points) for points in lines)]
    parts.append(text(499, 44, "pacing: may it start now?", "note mid"))
    return page(860, 250, parts)


def threads(_):
    """The threads of a rank, and what they share."""
    items = {
        "readers": (16, 56, 150, 80, "data threads", ["read samples ahead", "(--data-threads)", "loader's lock"]),
        "compute": (216, 56, 190, 80, "P compute threads", ["forward, backward, update,", "chunks of large updates", "(--threads)"]),
        "carrier": (456, 56, 170, 80, "carrier", ["takes what arrived,", "adds it to a sum,", "hands it on"]),
        "transport": (676, 56, 190, 80, "transport's thread", ["the only one that calls", "MPI: starts, tests,", "naps 20 to 250 µs"]),
        "lock": (216, 190, 410, 62, "rank-&gt;lock: tasks, blocks, sums", ["held to choose and to end a task,", "never while a kernel runs"]),
        "writer": (16, 190, 150, 62, "writer", ["rank 0: checkpoints", "and evaluations"]),
        "others": (676, 190, 190, 62, "other ranks", ["messages of the plan;", "beats, statuses, notes"]),
    }
    fills = {"compute": "f3", "carrier": "f2", "transport": "f1", "lock": "new", "readers": "f0", "writer": "f0"}
    lines = [((166, 96), (212, 96)), ((311, 136), (311, 186)), ((541, 136), (541, 186)), ((626, 96), (672, 96)), ((771, 136), (771, 186)),
             ((216, 221), (170, 221)), ((626, 221), (650, 221), (650, 118), (672, 118))]  # fmt: skip
    parts = [text(16, 26, "The threads of a rank, and its lock", "title"), *boxes(items, fills), *(join(points) for points in lines)]
    return page(884, 270, parts)


FIGURES = {"design-modules.svg": modules, "design-task.svg": life, "design-threads.svg": threads,
           "design-zero.svg": chains, "design-grid.svg": grid}  # fmt: skip

if __name__ == "__main__":
    write_all(FIGURES, __file__, __doc__)
