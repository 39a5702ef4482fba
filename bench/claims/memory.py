"""Activations of all workers over time: dp compared with the cycle, with a thread for each worker."""

from draw import figure
from memory import ABOVE_PREDICTION
from render import page, table, verdict
from runs import plan, train
from store import shown_command

QUESTION = "How many bytes of activations are alive, over time, under dp and in the cycle?"
RULES = ("dp", "cdp-v2", "cdp-v1")
DRAWN = RULES[:2]
STEPS = 10
ROUNDS = {4: 2, 8: 1}  # of the long form, by number of workers; the worst counts
BINS = 240  # points of a curve

# Name: settings, numbers of workers of the long form, and the paper's savings relative to dp.
MODELS = {
    "resnet18": ({"model": "resnet18", "batch": 2, "image-size": 32, "classes": 10}, (4, 8), None),
    "resnet50": ({"model": "resnet50", "batch": 1, "image-size": 224}, (4, 8), 0.30),
    "vit-b16": ({"model": "vit-b16", "batch": 1}, (4, 8), 0.42),
}


def settings_of(model, workers, rule):
    # A thread for each worker, as if each had a device: on fewer cores only pacing keeps them apart.
    return {**MODELS[model][0], "workers": workers, "threads": workers, "rule": rule}


def cases(long):
    for model, (_, counts, _) in MODELS.items():
        for workers in counts if long else counts[:1]:
            for rule in RULES if long else DRAWN:
                yield model, workers, rule


# ---- measuring --------------------------------------------------------------------------------------------


def over_time(timeline):
    """Milliseconds and each worker's bytes, in units of 10 kB, at the highest point of each of BINS time spans.

    Covers two of the recorded steps."""
    events = sorted((us, worker, size) for worker, points in enumerate(timeline["memory"]["workers"])
                    for us, size in points)  # fmt: skip
    if not events:
        return None
    begin, steps = events[0][0], max(2, timeline["end_step"] - timeline["first_step"])
    end = begin + (events[-1][0] - begin) * 2 / steps
    live, spans = [0] * len(timeline["memory"]["workers"]), {}
    for us, worker, size in events:
        if us > end:
            break
        live[worker] = size
        span = min(BINS - 1, int(BINS * (us - begin) / max(1, end - begin)))
        if span not in spans or sum(live) > sum(spans[span][1]):
            spans[span] = (us, list(live))
    points = [spans[span] for span in sorted(spans)]
    return [[round((us - begin) / 1e3, 1), *(round(size / 1e4) for size in sizes)] for us, sizes in points]


def measure_case(settings, steps, rounds):
    runs = [train({**settings, "steps": steps, "lr": 0.001}) for _ in range(rounds)]
    worst = max(runs, key=lambda run: run["memory"]["activations_peak_bytes"])
    predicted = plan(settings)["predictions"]
    figures = {
        "peak_bytes": [run["memory"]["activations_peak_bytes"] for run in runs],
        "mean_bytes": [run["memory"]["activations_mean_bytes"] for run in runs],
        "rss_peak_bytes": [run["memory"]["rss_peak_bytes"] for run in runs],
        "step_s": [round(run["step_s"], 4) for run in runs],
        "predicted_peak_bytes": predicted["activations_peak_bytes"],
        "dp_peak_bytes": predicted["dp_peak_bytes"],
        "limit": predicted["limit"],
    }
    if "timeline" in worst and settings["rule"] in DRAWN:
        figures["over_time"] = over_time(worst["timeline"])
    return figures


def measure(store, options):
    for model, workers, rule in cases(options.long):
        key, settings = f"{model}-n{workers}-{rule}", settings_of(model, workers, rule)
        if options.only not in key:
            continue
        command = shown_command("train", {**settings, "steps": STEPS, "lr": 0.001})
        rounds = ROUNDS[workers] if options.long else 1
        store.once(key, command, lambda s=settings, n=rounds: measure_case(s, STEPS, n))


# ---- showing ----------------------------------------------------------------------------------------------


def found(raw):
    for model in MODELS:
        for workers in MODELS[model][1]:
            runs = {rule: run for rule in RULES if (run := raw["runs"].get(f"{model}-n{workers}-{rule}"))}
            if "dp" in runs:
                yield model, workers, runs


BAR = 1 + ABOVE_PREDICTION  # as in make bench-memory


def short(raw):
    """Checks the claim about the cycle: the peak is as planned."""
    rows = []
    for model, workers, runs in found(raw):
        if run := runs.get("cdp-v2"):
            ratio = max(run["peak_bytes"]) / min(runs["dp"]["peak_bytes"])
            predicted, claim = run["predicted_peak_bytes"] / run["dp_peak_bytes"], MODELS[model][2]
            rows.append([model, workers, f"{ratio:.3f}", f"{predicted:.3f}", verdict(ratio <= BAR * predicted),
                         f"{run['limit']:.3f}", f"{1 - claim:.2f}" if claim else ""])  # fmt: skip
    return table(["model", "N", "peak over dp's", "predicted", f"at most {BAR} × predicted", "limit", "paper"], rows)


def listing(raw):
    rows = []
    for model, workers, runs in found(raw):
        least, claim = min(runs["dp"]["peak_bytes"]), MODELS[model][2]
        for rule, run in runs.items():
            peak = max(run["peak_bytes"])
            cyclic = rule != "dp"
            rows.append([
                model, workers, rule, f"{peak / 1e6:.1f}", f"{max(run['mean_bytes']) / 1e6:.1f}",
                f"{peak / least:.3f}" if cyclic else "",
                f"{run['predicted_peak_bytes'] / run['dp_peak_bytes']:.3f}" if cyclic else "",
                f"{run['limit']:.3f}" if cyclic else "",
                f"{100 * (1 - peak / least):.0f} %" if cyclic else "",
                f"{100 * claim:.0f} %" if cyclic and claim else "",
                f"{max(run['rss_peak_bytes']) / 1e6:.0f}", f"{min(run['step_s']):.2f}",
            ])  # fmt: skip
    header = ["model", "N", "rule", "peak, MB", "mean, MB", "over dp", "predicted", "limit", "saved", "paper: saved",
              "resident, MB", "seconds a step"]  # fmt: skip
    return table(header, rows)


def tables(raw):
    return {"ratios": short(raw)} if any(found(raw)) else {}


def files(raw):
    about = "Peaks and means of all workers together are the highest of the runs, dp's the lowest."
    return {"memory-runs.md": page(raw, "Memory over time, all runs", about, ("", listing(raw)))} if any(found(raw)) else {}


def headline(raw):
    cells = []
    for model, workers, runs in found(raw):
        if workers == 4 and "cdp-v2" in runs:
            run = runs["cdp-v2"]
            ratio = max(run["peak_bytes"]) / min(runs["dp"]["peak_bytes"])
            cells.append(f"{model} {ratio:.2f} ({run['limit']:.2f})")
    return [["activations of 4 workers over dp's, at the peak (in brackets: the limit of any schedule)",
             ", ".join(cells)]] if cells else []  # fmt: skip


def panel(model, workers, rule, run, height):
    """A panel with the workers stacked."""
    curve, marks = run["over_time"], []
    base = [0.0] * len(curve)
    for worker in range(workers):
        top = [low + point[1 + worker] / 100 for low, point in zip(base, curve)]
        band = [(point[0], low, high) for point, low, high in zip(curve, base, top)]
        marks.append({"kind": "band", "points": band, "colour": worker, "fade": 0.7})
        base = top
    dp = run["dp_peak_bytes"] / 1e6
    marks.append({"kind": "level", "at": dp, "colour": "#1a1a1a", "dash": "2 3", "name": "dp's peak"})
    marks.append({"kind": "level", "at": dp * run["limit"], "colour": "#1a1a1a", "dash": "7 4", "name": "limit"})
    return {"title": f"{model}, {workers} workers: {rule}", "x": "ms", "y": "MB of activations", "marks": marks,
            "y_range": (0, height * 1.12), "legend": False}  # fmt: skip


def figures(raw):
    made = {}
    for workers in (4, 8):
        panels = []
        for model, count, runs in found(raw):
            if count != workers or not all(runs.get(rule, {}).get("over_time") for rule in DRAWN):
                continue
            height = max(max(run["peak_bytes"]) for run in runs.values()) / 1e6
            panels += [panel(model, workers, rule, runs[rule], height) for rule in DRAWN]
        if panels:
            title = f"Activations of {workers} workers, stacked; dotted: dp's peak, dashed: the limit of any schedule"
            made[f"memory-n{workers}.svg"] = figure(panels, columns=2, width=960, height=260, title=title)
    return made
