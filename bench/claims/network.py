"""A network of a limited rate: what of a step the cycle's messages cost, beside an overlapped all-reduce and DDP.

Measured by network/run.py, which has the contenders, the rates and the bars; here its runs are kept and shown."""

import os
import sys
import types

from draw import figure
from models import HERE, Worker, WorkerError, find_python, spread
from render import table
from runs import program
from store import say

sys.path.insert(0, os.path.join(HERE, "network"))
import run as network  # noqa: E402
from links import Links, obstacle  # noqa: E402

QUESTION = "What of a step does a network of a limited rate cost, and how large are the bursts?"
KEPT = ("step_s", "compute_s", "exposed_s", "carried_burst", "handed_burst", "handed_slot", "rate", "sgemm", "quiet")
CONTENDERS = [*network.OURS, network.DDP]
COMMAND = "bench/network/run.py --rounds 3"


class Kept(network.Bench):
    """Its runs go into the raw file, each as it is done."""

    store = None

    def keep(self):
        for key, figures in self.state["runs"].items():
            if key not in self.store.runs:
                weights = self.state["weights"][key.split("|")[0]]
                self.store.add(key, COMMAND, {**{k: rounded(figures[k]) for k in KEPT}, "weights_bytes": weights})


def rounded(value):
    return float(f"{value:.5g}") if isinstance(value, float) else value


def measure(store, options):
    why = obstacle()
    if why:
        say(f"* The bench of networks is SKIPPED: {why}")
        return
    names, rounds = (list(network.TASKS), 3) if options.long else (network.only_small(), 1)
    torch = find_python(None)
    state = {"runs": dict(store.runs), "weights": {}, "errors": []}
    worker = Worker([os.path.join(os.path.dirname(program()), "bench", "models")])
    try:
        with Links(network.RANKS) as links:
            bench = Kept(links, worker, types.SimpleNamespace(json=None, minutes=None, torch=torch), state)
            bench.store = store
            chosen = types.SimpleNamespace(rounds=rounds, models=[n for n in names if options.only in n])
            network.measure(bench, chosen, [*network.OURS, *([network.DDP] if torch else [])])
    finally:
        worker.close()
    if state["errors"]:
        raise WorkerError("; ".join(state["errors"]))


# ---- showing ----------------------------------------------------------------------------------------------


def values(raw, name, label, who, figure_):
    found = network.runs_of(raw, name, label, who)
    return {number: run[figure_] for number, run in found.items()}


def cell(found, scale, digits=0):
    """Median, and the extremes if there are several."""
    if not found:
        return "–"
    s = spread(found.values())
    text = f"{scale * s['median']:.{digits}f}"
    return text if len(found) == 1 else f"{text} ({scale * s['min']:.{digits}f}..{scale * s['max']:.{digits}f})"


def curve(raw, name):
    rows = []
    for label in network.RATES:
        for who in CONTENDERS:
            runs = network.runs_of(raw, name, label, who)
            if runs:
                first = runs[min(runs)]
                rate = f"{first['rate'] / 1e6:.0f} Mbit/s" if first["rate"] else "unlimited"
                kept = [values(raw, name, label, who, key) for key in KEPT]
                step, exposed, burst, handed = (dict(zip(KEPT, kept))[key] for key in
                                                ("step_s", "exposed_s", "carried_burst", "handed_burst"))  # fmt: skip
                noisy = "" if all(run["quiet"] for run in runs.values()) else " *"
                rows.append([rate, who + noisy, len(runs), cell(step, 1e3), cell(exposed, 1e3), cell(burst, 1e-6, 1),
                             cell(handed, 1e-6, 1)])  # fmt: skip
    return table(["rate", "who", "runs", "step ms", "exposed ms", "burst MB", "handed MB"], rows)


def ratios(raw, name, who, figure_):
    """Over dp's, in the same round."""
    ours, dp = (values(raw, name, network.MATCHED, w, figure_) for w in (who, "dp"))
    return {number: ours[number] / dp[number] for number in ours if number in dp}


def bars(raw):
    rows = []
    for name in network.TASKS:
        for who in network.JUDGED:
            exposed, burst = (ratios(raw, name, who, key) for key in ("exposed_s", "carried_burst"))
            if exposed:
                rows.append([name, who, cell(exposed, 1, 2), "1", cell(burst, 1, 2), f"{network.BURST_BAR}"])
    return table(["model", "rule", "exposed over dp's", "less than", "burst over dp's", "at most"], rows) if rows else ""


def tables(raw):
    found = {name: curve(raw, name) for name in network.TASKS if any(k.startswith(f"{name}|") for k in raw["runs"])}
    return {**found, **({"bars": bars(raw)} if found else {})}


def headline(raw):
    said = []
    for name in network.TASKS:
        found = [ratios(raw, name, who, "exposed_s") for who in network.JUDGED]
        if all(found):
            said.append(f"{name} " + ", ".join(f"{spread(f.values())['median']:.2f}" for f in found))
    return [[f"exposed communication over overlapped dp's where sending 2 Ψ_P takes {network.SHARE} of a step, 4 ranks: "
             f"cdp-v1, cdp-v2 with slack", "; ".join(said)]] if said else []  # fmt: skip


DRAWN = (network.MATCHED, "1 Gbit/s", "unlimited")  # far slower ones would hide the others


def panel(raw, name):
    marks, shown = [], [who for who in CONTENDERS if network.runs_of(raw, name, network.MATCHED, who)]
    highest = 0
    for n, who in enumerate(shown):
        points = []
        for x, label in enumerate(DRAWN):
            found = values(raw, name, label, who, "exposed_s")
            if found:
                points.append((x + 0.16 * (n - (len(shown) - 1) / 2), max(0, 1e3 * spread(found.values())["median"])))
        highest = max([highest, *(y for _, y in points)])
        marks.append({"kind": "bars", "points": points, "span": 0.15, "colour": n, "name": who})
    labels = [f"2 Ψ_P take {network.SHARE} of a step", "1 Gbit/s", "unlimited"]
    return {"title": f"{name}, 4 ranks: exposed time of a step of 1 s", "y": "ms", "marks": marks, "legend": True,
            "x": ", ".join(f"{n}: {label}" for n, label in enumerate(labels)), "x_range": (-0.5, len(DRAWN) - 0.3),
            "y_range": (0, 1.06 * highest)}  # fmt: skip


def figures(raw):
    panels = [panel(raw, name) for name in network.TASKS if network.runs_of(raw, name, network.MATCHED, "dp")]
    return {"network.svg": figure(panels, columns=2, width=1080, height=340)} if panels else {}
