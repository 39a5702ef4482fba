"""CIFAR-10 by dp, cdp-v1 and cdp-v2: what the delay costs, at the end and early on, and what warm-up does to it."""

import os
import statistics

from curves import smooth
from draw import DASHES, figure
from render import table
from runs import program
from store import output_of, read_evaluations, read_json, read_losses, say, thin

QUESTION = "How accurate is a network trained with a delay, beside one without?"
VARIABLE = "CAROUSEL_CIFAR10_JPEG"
RULES = ("dp", "cdp-v2", "cdp-v1")
SEEDS = (1, 2, 3)
EPOCH = 390  # steps of 128 samples
MEAN = 50  # steps that a point of a curve of losses is the mean of

COMMON = {"model": "resnet20", "workers": 4, "batch": 32, "threads": 2, "lr": 0.1, "momentum": 0.9,
          "weight-decay": 5e-4, "lr-schedule": "cosine", "eval-every": EPOCH, "checkpoint-every": 130,
          "keep": 1}  # fmt: skip
GENTLE = {"lr": 0.05, "warmup": EPOCH, "seed": 1}  # half the rate
CONVOLUTIONS = ("auto", "direct")
COMPARED = {"winograd": "resnet20", "winograd18": "resnet18"}  # by both kinds of convolutions


def long_runs():
    """Key and settings of each, the most useful first: whoever stops early has whole sets."""
    for seed in SEEDS:
        for rule in RULES:
            yield f"{rule}-seed{seed}", {"rule": rule, "epochs": 10, "seed": seed}
    for warmup in (0, EPOCH):
        for rule in RULES:
            yield f"warmup{warmup}-{rule}", {"rule": rule, "epochs": 3, "seed": 1, "warmup": warmup}
    for rule in RULES:
        yield f"gentle-{rule}", {**GENTLE, "rule": rule, "epochs": 3}
    for prefix, model in COMPARED.items():
        for how in CONVOLUTIONS:
            yield f"{prefix}-{how}", {**GENTLE, "model": model, "rule": "cdp-v2", "epochs": 2, "convolutions": how}


def short_runs():
    for rule in RULES:
        yield f"{rule}-seed1", {"rule": rule, "steps": 150, "seed": 1, "eval-every": 75, "checkpoint-every": 0}


def packed_cifar10(work):
    """The images, decoded once for all runs. None if nobody said where they are."""
    directory = os.environ.get(VARIABLE)
    if not directory or not os.path.isdir(os.path.join(directory, "train")):
        say(f"* CIFAR-10 is MISSING: set {VARIABLE} to a folder with train/CLASS/*.jpg and test/CLASS/*.jpg.")
        return None
    path = os.path.join(work, "cifar10.packed")
    if not os.path.exists(path):
        os.makedirs(work, exist_ok=True)
        if os.path.exists(path + ".part"):
            os.remove(path + ".part")
        output_of(program(), "data", "pack", f"imagefolder:{os.path.abspath(directory)}", "-o", path + ".part")
        os.replace(path + ".part", path)
    return f"packed:{path}"


def figures_of(directory):
    summary, losses = read_json(os.path.join(directory, "summary.json")), read_losses(directory)
    curve = [[step, round(loss, 4)] for step, loss in enumerate(smooth(losses, MEAN), 1)]
    return {
        "steps": summary["steps"],
        "accuracy": summary["accuracy"],
        "eval_loss": summary["eval_loss"],
        "loss_last": summary["loss_last"],
        "weights_sha256": summary["weights_sha256"],
        "activations_peak_bytes": summary["memory"]["activations_peak_bytes"],
        "evaluations": read_evaluations(directory),
        "losses": thin(curve),
    }


def measure(store, options):
    data = packed_cifar10(options.work)
    if not data:
        return
    for key, settings in long_runs() if options.long else short_runs():
        if options.only in key:
            store.train(key, {**COMMON, "data": data, **settings}, figures_of)


# ---- showing ----------------------------------------------------------------------------------------------


def seeds_of(raw, rule):
    return [run for seed in SEEDS if (run := raw["runs"].get(f"{rule}-seed{seed}"))]


def percent(values):
    values = [100 * v for v in values]
    if len(values) < 2:
        return f"{values[0]:.2f} %"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} %"


def at_epoch(run, epoch):
    for step, _, top1 in run["evaluations"]:
        if step == epoch * EPOCH:
            return top1 / 100
    return None


def rules_table(raw):
    rows = []
    baseline = [run["accuracy"] for run in seeds_of(raw, "dp")]
    for rule in RULES:
        runs = seeds_of(raw, rule)
        if not runs:
            continue
        early = []
        for epoch in (1, 3, 5):
            found = [value for run in runs if (value := at_epoch(run, epoch)) is not None]
            early.append(percent(found) if found else "–")
        final = [run["accuracy"] for run in runs]
        pairs = [100 * (a - b) for a, b in zip(final, baseline)]
        apart = "" if rule == "dp" or not pairs else f"{statistics.mean(pairs):+.2f}"
        loss, peak = statistics.mean(r["eval_loss"] for r in runs), max(r["activations_peak_bytes"] for r in runs)
        rows.append([rule, len(runs), *early, percent(final), apart, f"{loss:.4f}", f"{peak / 1e6:.1f} MB"])
    return table(["rule", "seeds", "after epoch 1", "3", "5", "at the end", "less dp's, points", "test loss",
                  "peak of activations"], rows) if rows else ""  # fmt: skip


def warmup_table(raw):
    rows = []
    for warmup in (0, EPOCH):
        runs = {rule: raw["runs"].get(f"warmup{warmup}-{rule}") for rule in RULES}
        cells = [percent([run["accuracy"]]) if run else "–" for run in runs.values()]
        if any(runs.values()):
            rows.append([warmup, *cells])
    return table(["warm-up, steps", *RULES], rows) if rows else ""


def gentle_table(raw):
    rows = []
    for rule in RULES:
        run = raw["runs"].get(f"gentle-{rule}")
        if run:
            rows.append([rule, f"{run['loss_last']:.4f}", f"{run['eval_loss']:.4f}", percent([run["accuracy"]]),
                         f"{run['activations_peak_bytes'] / 1e6:.1f} MB"])  # fmt: skip
    return table(["rule", "loss, last step", "test loss", "test accuracy", "peak of activations"], rows) if rows else ""


def winograd_table(raw):
    rows = [[model, how, f"{run['eval_loss']:.4f}", percent([run["accuracy"]])] for prefix, model in COMPARED.items()
            for how in CONVOLUTIONS if (run := raw["runs"].get(f"{prefix}-{how}"))]  # fmt: skip
    return table(["model", "convolutions", "test loss", "test accuracy"], rows) if rows else ""


def tables(raw):
    parts = {"rules": rules_table(raw), "warmup": warmup_table(raw), "gentle": gentle_table(raw),
             "winograd": winograd_table(raw)}  # fmt: skip
    return {part: text for part, text in parts.items() if text}


def headline(raw):
    """Ten epochs if all rules have had them, else three with warm-up."""
    ten = {rule: seeds_of(raw, rule) for rule in RULES}
    if all(ten.values()):
        cells = [f"{rule} {percent([run['accuracy'] for run in runs])}" for rule, runs in ten.items()]
        seeds = min(len(runs) for runs in ten.values())
        return [[f"resnet20 on CIFAR-10, 10 epochs without warm-up, seeds: {seeds}", ", ".join(cells)]]
    three = {rule: raw["runs"].get(f"gentle-{rule}") for rule in RULES}
    if all(three.values()):
        cells = [f"{rule} {percent([run['accuracy']])}" for rule, run in three.items()]
        return [["resnet20 on CIFAR-10, 3 epochs with a warm-up", ", ".join(cells)]]
    return []


def column(runs, of):
    """Points and a band over runs of the same length."""
    lists = [of(run) for run in runs]
    count = min(len(values) for values in lists)
    xs = [lists[0][n][0] for n in range(count)]
    ys = [[values[n][1] for values in lists] for n in range(count)]
    return ([(x, statistics.mean(y)) for x, y in zip(xs, ys)], [(x, min(y), max(y)) for x, y in zip(xs, ys)])


def marks(raw, of):
    lines, bands = [], []
    for n, rule in enumerate(RULES):
        runs = seeds_of(raw, rule)
        if not runs:
            continue
        points, band = column(runs, of)
        if len(runs) > 1:
            bands.append({"kind": "band", "points": band, "colour": n})
        lines.append({"kind": "line", "points": points, "name": rule, "colour": n, "dash": DASHES[n]})
    return bands + lines


def losses_of(run):
    return [(step / EPOCH, loss) for step, loss in run["losses"]]


def accuracies_of(run):
    return [(step / EPOCH, top1) for step, _, top1 in run["evaluations"]]


def loss_panel(raw, prefix, names, title, y_range=None):
    """The losses of the runs PREFIX-NAME."""
    lines = [{"kind": "line", "points": losses_of(raw["runs"][f"{prefix}-{name}"]), "name": name, "colour": n,
              "dash": DASHES[n]} for n, name in enumerate(names) if f"{prefix}-{name}" in raw["runs"]]  # fmt: skip
    panel = {"title": title, "x": "epochs", "y": f"loss in training, mean of {MEAN} steps", "marks": lines}
    return {**panel, "legend": True, "y_range": y_range}


def figures(raw):
    count = max((len(seeds_of(raw, rule)) for rule in RULES), default=0)
    made = {}
    if count:
        of = f"mean and range of {count} seeds" if count > 1 else "one seed"
        losses = {"title": f"Loss in training, {of}", "x": "epochs", "y": f"mean of {MEAN} steps",
                  "marks": marks(raw, losses_of), "legend": True}  # fmt: skip
        tests = {"title": f"Test accuracy, {of}", "x": "epochs", "y": "%", "marks": marks(raw, accuracies_of),
                 "legend": False}  # fmt: skip
        made["accuracy-cifar10.svg"] = figure([losses, tests], columns=2, width=960, height=340)
    warm = [run for key, run in raw["runs"].items() if key.startswith("warmup")]
    if warm:
        values = [loss for run in warm for _, loss in run["losses"]]
        y_range = (min(values) - 0.05, max(values) + 0.05)
        panels = [loss_panel(raw, "warmup0", RULES, "No warm-up", y_range),
                  loss_panel(raw, f"warmup{EPOCH}", RULES, f"Warm-up of {EPOCH} steps", y_range)]  # fmt: skip
        made["accuracy-warmup.svg"] = figure([p for p in panels if p["marks"]], columns=2, width=960, height=320)
    gentle = loss_panel(raw, "gentle", RULES, "resnet20 on CIFAR-10, rate 0.05, warm-up")
    if gentle["marks"]:
        made["cifar10-rules.svg"] = figure([gentle])
    for prefix, model in COMPARED.items():
        panel = loss_panel(raw, prefix, CONVOLUTIONS, f"{model} on CIFAR-10, cdp-v2: convolutions")
        if panel["marks"]:
            made[f"winograd-{model}.svg"] = figure([panel])
    return made
