"""Scale on paper: the plan's predictions for large models and many workers on described clusters, and the same tables
replayed by SimGrid's SMPI."""

import os

from draw import DASHES, figure
from models import HERE, WorkerError
from render import table
from runs import plan, run_program
from simgrid import smpi
from simgrid.schedule import ReplayError
from store import say, shown_command

QUESTION = "What do plans of up to 1024 workers and 530 billion parameters need, and does SimGrid agree on their time?"
RULES = ("dp", "cdp-v1", "cdp-v2")
PLACEMENTS = ("replica", "zero", "pipeline", "grid")
# Micro-batches of so many samples that a small model has something to compute between its messages.
MODELS = {"gpt2": 8, "gpt3-6.7b": 1, "gpt3-175b": 1, "mt-nlg-530b": 1}
WORKERS = (16, 64, 256, 1024)
MOST_RANKS = 70000  # of a grid that is timed
KEPT = ("weights_device_bytes", "weights_total_bytes", "gradients_device_bytes", "gradients_total_bytes",
        "optimizer_device_bytes", "optimizer_total_bytes", "activations_device_peak_bytes", "activations_peak_bytes",
        "bytes_sent", "bytes_sent_device", "messages", "collectives", "max_messages_per_slot", "burst",
        "peak_ratio_to_dp")  # fmt: skip
TIMED = ("compute_s", "step_s", "step_without_network_s", "exposed_s", "mean_bytes_per_s", "peak_bytes_per_s",
         "busiest_link", "memory_device_bytes", "fits")  # fmt: skip
# What SMPI replays: two networks, one that is fast for what is computed and one that is not.
REPLAYED = {"eight-a-node": {"model": "gpt2-medium", "batch": 4}, "ethernet": {"model": "gpt2", "batch": 16}}
REPLAYED_PLACEMENTS = {16: ("replica", "zero", "pipeline"), 64: ("replica", "zero"), 256: ("replica",)}


def cluster_file(name):
    return os.path.join(HERE, "simgrid", f"{name}.json")


# ---- measuring --------------------------------------------------------------------------------------------


def rounded(value):
    """Six digits are more than a prediction is worth."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def predict(model, workers):
    """All rules and placements of a model and a number of workers."""
    found = []
    for placement in PLACEMENTS:
        for rule in RULES:
            ranks = workers * workers if rule == "dp" else workers * (workers + 1) // 2
            settings = {"model": model, "batch": MODELS[model], "workers": workers, "rule": rule,
                        "placement": placement, "optimizer": "adamw"}  # fmt: skip
            if placement != "grid" or ranks <= MOST_RANKS:
                settings["cluster"] = cluster_file("eight-a-node")
            answer = plan(settings)
            row = {"rule": rule, "placement": placement, "devices": answer["predictions"]["devices"]}
            row.update({key: rounded(answer["predictions"][key]) for key in KEPT})
            row.update({key: rounded(answer["timing"][key]) for key in TIMED if "timing" in answer})
            found.append(row)
    return {"plans": found}


def replay(settings, program):
    asked = plan(settings)
    dumped = {key: value for key, value in settings.items() if key != "cluster"}
    printed = run_program("plan", {**dumped, "piece-bytes": asked["piece_bytes"], "dump": True, "edges": True,
                                   "steps": asked["timing"]["steps"]})  # fmt: skip
    try:
        found = smpi.replay(printed, asked, program)
    except ReplayError as error:
        raise WorkerError(str(error)) from error
    timing = asked["timing"]
    return {"predicted_s": timing["step_s"], "compute_s": timing["compute_s"], "smpi_s": found["step_s"],
            "without_network_s": timing["step_without_network_s"], "ratio": rounded(found["step_s"] / timing["step_s"]),
            "burst": rounded(timing["peak_bytes_per_s"] / timing["mean_bytes_per_s"]),
            "ranks": found["ranks"], "messages": found["messages"], "simgrid": smpi.version()}  # fmt: skip


def replays(long):
    for cluster, model in REPLAYED.items():
        for workers in (16, 64, 256) if long else (16,):
            for placement in REPLAYED_PLACEMENTS[workers] if long else ("replica",):
                for rule in RULES:
                    heavy = (cluster, placement) == ("ethernet", "pipeline")  # SMPI wants 24 GB and more for its cuts
                    if (placement, rule) != ("zero", "dp") and not heavy:
                        yield cluster, workers, placement, rule, model


def measure(store, options):
    for model in MODELS if options.long else ("gpt2", "mt-nlg-530b"):
        for workers in WORKERS if options.long else (16,):
            key = f"plan-{model}-{workers}"
            if options.only in key:
                command = shown_command("plan", {"model": model, "batch": MODELS[model], "workers": workers,
                                                 "optimizer": "adamw", "cluster": "bench/simgrid/eight-a-node.json"})  # fmt: skip
                store.once(key, command + " --rule ... --placement ...", lambda m=model, n=workers: predict(m, n))
    missing = smpi.missing()
    if missing:
        say(f"* SimGrid is MISSING ({', '.join(missing)}): no tables are replayed. Debian: libsimgrid-dev.")
        return
    program = smpi.compile_replay(store.work)
    for cluster, workers, placement, rule, model in replays(options.long):
        key = f"smpi-{cluster}-{placement}-{rule}-{workers}"
        settings = {**model, "workers": workers, "rule": rule, "placement": placement, "cluster": cluster_file(cluster)}
        if options.only in key:
            store.once(key, shown_command("plan", {**settings, "cluster": f"bench/simgrid/{cluster}.json"}),
                       lambda s=settings: replay(s, program))  # fmt: skip


# ---- showing ----------------------------------------------------------------------------------------------


def size(value):
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            return f"{value:.3g} {unit}"
        value /= 1000
    return ""


def seconds(value):
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def states(row, where):
    return [size(row[f"{what}_{where}_bytes"]) for what in ("weights", "gradients", "optimizer")]


def plan_rows(raw, workers):
    for model in MODELS:
        for row in raw["runs"].get(f"plan-{model}-{workers}", {}).get("plans", ()):
            timed = "step_s" in row
            yield [model, row["placement"], row["rule"], row["devices"], *states(row, "device"),
                   size(row["activations_device_peak_bytes"]), size(row["activations_peak_bytes"]),
                   f"{size(row['memory_device_bytes'])}{'' if row['fits'] else ' !'}" if timed else "",
                   size(row["bytes_sent_device"]), f"{row['burst']:.1f}",
                   seconds(row["step_s"]) if timed else "", f"{row['step_s'] / row['compute_s']:.2f}" if timed else "",
                   f"{100 * row['exposed_s'] / row['step_s']:.0f} %" if timed else ""]  # fmt: skip


def tables(raw):
    header = ["model", "placement", "rule", "devices", "weights", "sums", "optimizer", "activations", "of all", "memory",
              "sent", "burst", "step", "over compute", "exposed"]  # fmt: skip
    found = {f"plans-{n}": table(header, rows) for n in WORKERS if (rows := list(plan_rows(raw, n)))}
    rows = []
    for cluster, workers, placement, rule, model in replays(True):
        run = raw["runs"].get(f"smpi-{cluster}-{placement}-{rule}-{workers}")
        if run:
            rows.append([cluster, model["model"], workers, placement, rule, seconds(run["compute_s"]),
                         seconds(run["predicted_s"]), seconds(run["smpi_s"]), f"{run['ratio']:.3f}"])  # fmt: skip
    if rows:
        found["smpi"] = table(["cluster", "model", "N", "placement", "rule", "compute", "predicted step", "SMPI's step",
                               "ratio"], rows)  # fmt: skip
    return found


def panel(raw, cluster, what, title):
    """Steps over computing, by N: those predicted, or SMPI's."""
    marks, places = [], {16: 0, 64: 1, 256: 2}
    for number, rule in enumerate(RULES):
        points = [(places[n], run) for n in places
                  if (run := raw["runs"].get(f"smpi-{cluster}-replica-{rule}-{n}"))]  # fmt: skip
        if points:
            marks.append({"kind": "bars", "points": [(x + 0.22 * (number - 1), run[what] / run["compute_s"])
                                                     for x, run in points],
                          "colour": number, "span": 0.2, "name": rule, "fade": 0.55})  # fmt: skip
    return {"title": title, "x": "0, 1, 2: N = 16, 64, 256", "y": "step over what one worker computes", "marks": marks,
            "legend": "left", "x_range": (-0.6, 2.6), "x_ticks": [0, 1, 2]}  # fmt: skip


def scale_panel(raw, placement):
    marks = []
    for number, model in enumerate(MODELS):
        for rule in ("dp", "cdp-v2"):
            points = []
            for place, workers in enumerate(WORKERS):
                for row in raw["runs"].get(f"plan-{model}-{workers}", {}).get("plans", ()):
                    if (row["placement"], row["rule"]) == (placement, rule) and "step_s" in row:
                        points.append((place, row["step_s"] / row["compute_s"]))
            if points:
                marks.append({"kind": "line", "points": points, "name": f"{model}, {rule}", "colour": number,
                              "dash": DASHES[1] if rule == "dp" else ""})  # fmt: skip
    return {"title": f"{placement}: step over what one worker computes", "x": "0 to 3: N = 16, 64, 256, 1024", "marks": marks,
            "legend": "left", "x_range": (0, 3), "x_ticks": [0, 1, 2, 3]}  # fmt: skip


def figures(raw):
    panels = [panel(raw, cluster, what, f"{cluster}, replica: {name}")
              for cluster in REPLAYED for what, name in (("predicted_s", "the plan"), ("smpi_s", "SMPI"))]  # fmt: skip
    found = {}
    panels = [p for p in panels if p["marks"]]
    if panels:
        found["scale-smpi.svg"] = figure(panels, columns=2, width=960, height=300)
    panels = [p for p in (scale_panel(raw, placement) for placement in ("replica", "zero")) if p["marks"]]
    if panels:
        found["scale-plans.svg"] = figure(panels, columns=2, width=960, height=340)
    return found
