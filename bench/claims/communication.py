"""What ranks send: messages, rounds and bytes per slot, dp compared with the cycle, for replica and zero over real ranks."""

from draw import figure
from render import page, table, verdict
from runs import plan, train
from store import shown_command

QUESTION = "How many messages and bytes do ranks send, and how evenly over time?"
RULES = ("dp", "cdp-v2", "cdp-v1")
PLACEMENTS = ("replica", "zero")
STEPS = (5, 9)  # of two runs: their difference is the traffic of steps in steady state
MODELS = {
    "resnet20": {"model": "resnet20", "image-size": 16, "batch": 2},
    "gpt2-nano": {"model": "gpt2-nano", "seq-len": 32, "batch": 1},
}


def cases(long):
    for model in MODELS if long else list(MODELS)[:1]:
        for workers in (4, 8) if long else (4,):
            for placement in PLACEMENTS:
                for rule in RULES:
                    yield model, workers, placement, rule


def measure_case(settings, workers):
    few, many = (train({**settings, "steps": steps, "lr": 0.001, "threads": 1}, workers) for steps in STEPS)
    span = STEPS[1] - STEPS[0]
    asked = {key: value for key, value in settings.items() if key != "threads"}
    predicted = plan(asked)["predictions"]
    figures = {
        "runs": [run["comm"] for run in (few, many)],
        "bytes_per_step": (many["comm"]["bytes_sent"] - few["comm"]["bytes_sent"]) / span,
        "messages_per_step": (many["comm"]["messages"] - few["comm"]["messages"]) / span,
        "collectives_per_step": (many["comm"]["collectives"] - few["comm"]["collectives"]) / span,
        "plan": {key: predicted[key] for key in ("bytes_sent", "messages", "collectives", "max_messages_per_slot",
                                                 "rounds_between_slots", "burst", "bytes_sent_device")},
        "slots": 2 * settings["workers"],
    }  # fmt: skip
    per_slot = many.get("timeline", {}).get("bytes_per_slot") or {}
    if per_slot.get("plan"):
        figures["bytes_per_slot"] = per_slot["plan"]
    return figures


def measure(store, options):
    for model, workers, placement, rule in cases(options.long):
        key = f"{model}-n{workers}-{placement}-{rule}"
        settings = {**MODELS[model], "workers": workers, "placement": placement, "rule": rule}
        command = f"mpirun -n {workers} {shown_command('train', {**settings, 'steps': STEPS[1], 'threads': 1})}"
        if options.only in key:
            store.once(key, command, lambda s=settings, n=workers: measure_case(s, n))


# ---- showing ----------------------------------------------------------------------------------------------


def found(raw):
    for model, workers, placement, rule in cases(True):
        run = raw["runs"].get(f"{model}-n{workers}-{placement}-{rule}")
        if run:
            yield (model, workers, placement, rule), run


def short(raw):
    """cdp-v2 against dp: as many bytes, in smaller portions, and exactly what was planned."""
    runs, rows = dict(found(raw)), []
    for (model, workers, placement, rule), run in runs.items():
        dp = runs.get((model, workers, placement, "dp"))
        if rule == "cdp-v2" and dp:
            planned, least = run["plan"], dp["plan"]
            exact = run["messages_per_step"] == planned["messages"] and run["bytes_per_step"] == planned["bytes_sent"]
            mean, theirs = planned["bytes_sent"] / run["slots"], least["bytes_sent"] / dp["slots"]
            rows.append([model, workers, placement, verdict(exact), f"{planned['bytes_sent'] / least['bytes_sent']:.2f}",
                         f"{mean * planned['burst'] / (theirs * least['burst']):.2f}", planned["rounds_between_slots"],
                         least["rounds_between_slots"]])  # fmt: skip
    return table(["model", "N", "placement", "sent as planned", "bytes over dp's", "busiest slot over dp's", "rounds",
                  "dp's rounds"], rows) if rows else ""  # fmt: skip


def listing(raw):
    rows = []
    for (model, workers, placement, rule), run in found(raw):
        planned = run["plan"]
        mean = planned["bytes_sent"] / run["slots"]
        # MPI decides what the collectives of dp over zero send. Over replica they are our own ring, whose number of messages
        # depends on its parts; so the plan counts bytes.
        counted = placement == "replica" or planned["collectives"] == 0
        cyclic = planned["collectives"] == 0
        rows.append([
            model, workers, placement, rule, f"{run['messages_per_step']:.0f}" if counted else "–",
            f"{planned['messages']:.0f}" if cyclic else "–", f"{run['collectives_per_step']:.0f}",
            f"{run['bytes_per_step'] / 1e6:.3f}" if counted else "–", f"{planned['bytes_sent'] / 1e6:.3f}",
            run["runs"][1]["max_messages_per_slot"] if cyclic else "–",
            planned["rounds_between_slots"], f"{mean / 1e3:.0f}", f"{mean * planned['burst'] / 1e3:.0f}",
            f"{planned['burst']:.2f}",
        ])  # fmt: skip
    header = ["model", "N", "placement", "rule", "messages", "planned", "collectives", "MB", "planned MB",
              "most of a rank in a slot", "rounds", "kB in a slot, mean", "busiest", "burst"]  # fmt: skip
    return table(header, rows)


def tables(raw):
    return {"traffic": text} if (text := short(raw)) else {}


def files(raw):
    about = "Of a step in full swing, all ranks together; dp's collectives over zero are the library's and not counted."
    return {"communication-runs.md": page(raw, "What ranks send, all runs", about, ("", listing(raw)))} if any(found(raw)) else {}


def panel(raw, model, workers, placement):
    marks, rules = [], [rule for rule in RULES[:2]]
    for n, rule in enumerate(rules):
        run = raw["runs"].get(f"{model}-n{workers}-{placement}-{rule}")
        if not run or "bytes_per_slot" not in run:
            return None
        points = [(slot + 0.4 * (n - 0.5), size / 1e3) for slot, size in enumerate(run["bytes_per_slot"])]
        marks.append({"kind": "bars", "points": points, "span": 0.4, "colour": n, "name": rule})
    return {"title": f"{model}, {workers} ranks, {placement}", "x": "slot of a cycle", "y": "kB sent by all ranks",
            "marks": marks, "legend": True, "x_range": (-0.6, 2 * workers - 0.4)}  # fmt: skip


def figures(raw):
    panels = [panel(raw, "resnet20", 4, placement) for placement in PLACEMENTS]
    panels = [p for p in panels if p]
    return {"communication.svg": figure(panels, columns=2, width=960, height=300)} if panels else {}
