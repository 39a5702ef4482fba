"""A network of limited rate: the cost of the cycle's messages in a step, compared with an overlapped all-reduce and DDP.

network/run.py measures it and has the contenders, rates and targets; this module keeps and shows the runs."""

import os
import sys
import types

from draw import figure
from tables import spread
from workers import HERE, Worker, WorkerError, find_python
from render import page, table, verdict
from runs import program
from store import is_asked_for, say

sys.path.insert(0, os.path.join(HERE, "network"))
import run as network  # noqa: E402
from links import Links, obstacle  # noqa: E402

QUESTION = "What of a step does a network of a limited rate cost, and how large are the bursts?"
KEPT = ("step_s", "compute_s", "exposed_s", "carried_burst", "handed_burst", "handed_slot", "rate", "sgemm", "quiet")
ALSO_KEPT = ("held", "goodput", "predicted_s")  # if present
CONTENDERS = [*network.OURS, *network.UNPACED, network.DDP]
COMMAND = "bench/network/run.py --rounds 3"


class Kept(network.Bench):
    """A bench that writes each finished run to the raw file; `only` selects the runs."""

    store, only = None, ""

    def measure(self, name, number, label, rate, who, condition):
        if is_asked_for(f"{name}|{number}|{label}|{who}", self.only):
            super().measure(name, number, label, rate, who, condition)

    def keep(self):
        for key, figures in self.state["runs"].items():
            if key not in self.store.runs:
                weights = self.state["weights"][key.split("|")[0]]
                kept = {k: rounded(figures[k]) for k in [*KEPT, *ALSO_KEPT] if figures.get(k) is not None or k in KEPT}
                self.store.add(key, COMMAND, {**kept, "weights_bytes": weights})


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
            bench.store, bench.only = store, options.only
            chosen = types.SimpleNamespace(rounds=rounds, only="", models=names)
            network.measure(bench, chosen, [*network.OURS, *network.UNPACED, *([network.DDP] if torch else [])])
    finally:
        worker.close()
    if state["errors"]:
        raise WorkerError("; ".join(state["errors"]))


# ---- showing ----------------------------------------------------------------------------------------------


def values(raw, name, label, who, figure_):
    found = network.runs_of(raw, name, label, who)
    return {number: run[figure_] for number, run in found.items()}


def cell(found, scale, digits=0):
    """The median, with the extremes if there are several values."""
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
    """Ratios to dp in the same round."""
    ours, dp = (values(raw, name, network.MATCHED, w, figure_) for w in (who, "dp"))
    return {number: ours[number] / dp[number] for number in ours if number in dp}


def bars(raw):
    rows = []
    for name in network.TASKS:
        for who in network.JUDGED:
            exposed, burst = (ratios(raw, name, who, key) for key in ("exposed_s", "carried_burst"))
            if exposed:
                rows.append([name, who, cell(exposed, 1, 2), verdict(spread(exposed.values())["median"] < 1),
                             cell(burst, 1, 2), verdict(spread(burst.values())["median"] <= network.BURST_BAR)])  # fmt: skip
    return table(["model", "rule", "exposed over dp's", "less than 1", "burst over dp's", f"at most {network.BURST_BAR}"],
                 rows) if rows else ""  # fmt: skip


def paced(raw):
    """Ratios to unpaced links in the same round."""
    rows = []
    for name in network.TASKS:
        for who in network.JUDGED:
            cells = []
            for key, scale, digits in (("exposed_s", 1e3, 0), ("carried_burst", 1e-6, 1)):
                ours, free = (values(raw, name, network.MATCHED, w, key) for w in (who, f"{who}, not paced"))
                cells += [cell(free, scale, digits), cell(ours, scale, digits)]
            if free:
                rows.append([name, who, *cells])
    return table(["model", "rule", "exposed ms, not paced", "paced", "burst MB, not paced", "paced"], rows) if rows else ""


def saturated(raw):
    rows = []
    for name in network.TASKS:
        for who in ["dp", *network.JUDGED]:
            run = network.runs_of(raw, name, network.SATURATED, who).get(0)
            if run and "goodput" in run:
                least = 2 * run["weights_bytes"] / run["goodput"]
                rows.append([name, who, f"{run['step_s']:.2f}", f"{least:.2f}", f"{run['step_s'] / least:.3f}",
                             f"{run['predicted_s']:.2f}"])  # fmt: skip
    return table(["model", "rule", "step s", "2 Ψ_P at the goodput, s", "step over that", "predicted step s"],
                 rows) if rows else ""  # fmt: skip


def disturbed(raw):
    rows = []
    for label in network.VARIED:
        for name in network.TASKS:
            found = {who: network.growth(raw, name, label, who) for who in ["dp", *network.JUDGED]}
            if all(found.values()):
                rows.append([label, name, *(cell(longer, 1e3) for longer in found.values())])
    return table(["disturbed by", "model", "dp: longer by ms", *network.JUDGED], rows) if rows else ""


def files(raw):
    about = ("Median (lowest..highest) of rounds. *Exposed*: the step less what it computes; *burst*: by how many bytes the "
             "traffic of all links ran ahead of its own mean rate; *handed*: the same of what ranks gave to their network. "
             "A star: the machine was not quiet before one of the runs.")  # fmt: skip
    found = [(name, curve(raw, name)) for name in network.TASKS if any(k.startswith(f"{name}|") for k in raw["runs"])]
    return {"network-rates.md": page(raw, "Over a network, all rates", about, *found)} if found else {}


def tables(raw):
    more = {"bars": bars(raw), "paced": paced(raw), "saturated": saturated(raw), "disturbed": disturbed(raw)}
    return {part: text for part, text in more.items() if text}


def headline(raw):
    said = []
    for name in network.TASKS:
        found = [ratios(raw, name, who, "exposed_s") for who in network.JUDGED]
        if all(found):
            said.append(f"{name} " + ", ".join(f"{spread(f.values())['median']:z.2f}" for f in found))
    return [[f"exposed communication over overlapped dp's where sending 2 Ψ_P takes {network.SHARE} of a step, 4 ranks: "
             f"cdp-v1, cdp-v2 with slack", "; ".join(said)]] if said else []  # fmt: skip


DRAWN = (network.MATCHED, "1 Gbit/s", "unlimited")  # much slower ones would dwarf the others


def panel(raw, name):
    drawn = [who for who in CONTENDERS if who in ("dp", "cdp-v2", network.DDP, *network.JUDGED)]  # more bars would not fit
    shown = [who for who in drawn if network.runs_of(raw, name, network.MATCHED, who)]
    marks = []
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
