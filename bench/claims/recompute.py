"""Recomputation: seconds per step against bytes of activations, cdp-v2 compared with dp."""

from draw import DASHES, figure
from render import page, table, verdict
from runs import plan, train
from store import shown_command

QUESTION = "How much memory does recomputation spare, and how much time does it cost?"
RULES = ("dp", "cdp-v2")
# Values of --recompute: the frontier, from left to right.
POINTS = ("off", "auto", "0.45", "0.3", "0.25")
SHORT_POINTS = ("off", "auto", "0.3")
OF_PREDICTION = 0.03
ROUNDS = 2  # of the long form; the fastest counts

# Name: settings of the long form, replacements for the short form, and targets: shares of activations and of time.
MODELS = {
    "vit-b16": ({"model": "vit-b16", "batch": 2}, {"depth": 4, "batch": 1}, (0.3, 1.25)),
    "gpt2": ({"model": "gpt2", "batch": 1, "seq-len": 256}, {"depth": 4, "vocabulary": 5000}, (0.3, 1.25)),
    "resnet50": ({"model": "resnet50", "batch": 4, "image-size": 224}, {"batch": 2, "image-size": 96}, (0.45, 1.3)),
}


def settings_of(model, rule, point, long):
    settings, smaller, _ = MODELS[model]
    size = {"workers": 4, "steps": 5} if long else {"workers": 2, "steps": 4}
    settings = {**settings, **({} if long else smaller), **size}
    return {**settings, "threads": 2, "rule": rule, "recompute": point, "lr": 0.001}


def measure_once(settings):
    run = train(settings)
    return {"step_s": run["step_s"], "peak_bytes": run["memory"]["activations_peak_bytes"],
            "sha256": run["weights_sha256"]}  # fmt: skip


def measure_case(model, rule, long):
    """Measures all points of a model and a rule in turn, so that other load on the machine affects all of them."""
    points = POINTS if long else SHORT_POINTS
    runs = {point: [] for point in points}
    for _ in range(ROUNDS if long else 1):
        for point in points:
            runs[point].append(measure_once(settings_of(model, rule, point, long)))
    found = []
    for point in points:
        settings = {key: value for key, value in settings_of(model, rule, point, long).items()
                    if key not in ("steps", "lr")}  # fmt: skip
        answer = plan(settings)
        again = answer.get("recomputation", {})
        found.append({
            "point": point, "step_s": round(min(run["step_s"] for run in runs[point]), 4),
            "peak_bytes": max(run["peak_bytes"] for run in runs[point]),
            "predicted_peak_bytes": answer["predictions"]["activations_peak_bytes"],
            "held_bytes": answer["held_bytes"], "cost_share": again.get("cost_share", 0),
            "same_weights": len({run["sha256"] for every in runs.values() for run in every}) == 1,
        })  # fmt: skip
    return {"points": found}


def measure(store, options):
    for model in MODELS:
        for rule in RULES:
            key = f"{model}-{rule}"
            if options.only in key:
                command = shown_command("train", settings_of(model, rule, "0.3", options.long))
                store.once(key, command, lambda m=model, r=rule: measure_case(m, r, options.long))


# ---- showing ----------------------------------------------------------------------------------------------


def found_in(raw):
    for model in MODELS:
        for rule in RULES:
            if run := raw["runs"].get(f"{model}-{rule}"):
                yield model, rule, run["points"]


def bars(raw):
    """The fastest point within the target's share of memory, and the largest deviation of a peak from its prediction."""
    rows = []
    for model, rule, points in found_in(raw):
        base, (share, time) = points[0], MODELS[model][2]
        small = [p for p in points if p["peak_bytes"] <= share * base["peak_bytes"]]
        best = min(small or points[-1:], key=lambda p: p["step_s"])
        held, longer = best["peak_bytes"] / base["peak_bytes"], best["step_s"] / base["step_s"]
        off = max(abs(p["peak_bytes"] / p["predicted_peak_bytes"] - 1) for p in points)
        rows.append([model, rule, best["point"], f"{held:.2f}", f"{longer:.2f}", f"{share} at {time}",
                     verdict(bool(small) and longer <= time), f"{100 * off:.1f} %", verdict(off <= OF_PREDICTION),
                     "yes" if all(p["same_weights"] for p in points) else "NO"])  # fmt: skip
    header = ["model", "rule", "`--recompute`", "peak of `off`'s", "time over `off`'s", "target", "", "off the prediction",
              "within 3 %", "same bits"]  # fmt: skip
    return table(header, rows)


def tables(raw):
    return {"bars": bars(raw)} if raw["runs"] else {}


def files(raw):
    rows = []
    for model, rule, points in found_in(raw):
        base = points[0]
        for p in points:
            rows.append([
                model, rule, p["point"], f"{p['peak_bytes'] / 1e6:.1f}", f"{p['peak_bytes'] / base['peak_bytes']:.2f}",
                f"{p['predicted_peak_bytes'] / 1e6:.1f}", f"{p['step_s'] / base['step_s']:.2f}",
                f"{100 * p['cost_share']:.0f} %", "yes" if p["same_weights"] else "NO",
            ])  # fmt: skip
    header = ["model", "rule", "`--recompute`", "peak, MB", "of `off`", "predicted, MB", "time over `off`",
              "FLOPs more", "same bits"]  # fmt: skip
    about = "Four workers on two threads; the fastest of two rounds."
    return {"recompute-runs.md": page(raw, "Recomputation, all points", about, ("", table(header, rows)))} if rows else {}


def figures(raw):
    panels = []
    for model in MODELS:
        marks = []
        for n, rule in enumerate(RULES):
            run = raw["runs"].get(f"{model}-{rule}")
            if run:
                line = [(p["peak_bytes"] / 1e6, p["step_s"]) for p in run["points"]]
                marks.append({"kind": "line", "points": sorted(line), "name": rule, "colour": n, "dash": DASHES[n], "dots": True})
        if marks:
            panels.append({"title": f"{model}: time against memory", "x": "peak of activations, MB",
                           "y": "seconds a step", "marks": marks, "legend": True,
                           "y_range": (0, 1.25 * max(y for mark in marks for _, y in mark["points"]))})  # fmt: skip
    return {"recompute.svg": figure(panels, title="Recomputation")} if panels else {}
