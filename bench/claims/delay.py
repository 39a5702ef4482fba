"""What the delay costs with and without its correction: resnet20 and the paper's networks on CIFAR-10 by SGD, gpt2-nano
and vit-tiny by AdamW and Muon. By SGD each rule is compared with the better of dp and dp with Nesterov's momentum,
by AdamW and Muon with both dp and dp with what is left of the correction where no gradient is late."""

import os
import statistics

from curves import smooth
from draw import DASHES, figure
from render import table
from runs import program
from stability import stability_figure
from store import output_of, read_evaluations, read_json, read_losses, say, thin

QUESTION = "What does the delay cost in accuracy, and what is left of that with the correction?"
IMAGES_VARIABLE, TEXT_VARIABLE = "CAROUSEL_CIFAR10_JPEG", "CAROUSEL_TINYSHAKESPEARE"
MEAN = 50  # each point of a loss curve is the mean over this many steps
EPOCH = 390  # steps of 128 samples

# The name of a run in tables, and its options. The program reports what --delay-correction auto chose.
SGD_RULES = {
    "dp": {"rule": "dp"},
    "dp, Nesterov": {"rule": "dp", "nesterov": True},
    "cdp-v2, off": {"rule": "cdp-v2", "delay-correction": "off"},
    "cdp-v2": {"rule": "cdp-v2"},
    "cdp-v1, off": {"rule": "cdp-v1", "delay-correction": "off"},
    "cdp-v1": {"rule": "cdp-v1"},
    # The same samples in twice as many micro-batches, so that half as many gradients are late.
    "cdp-v1, M 2": {"rule": "cdp-v1", "accumulate": 2, "batch": 16},
}
RULES = {
    "dp": {"rule": "dp"},
    "dp, corrected": {"rule": "dp", "delay-correction": "0.9,0"},  # what remains of the correction without late gradients
    "cdp-v2, off": {"rule": "cdp-v2", "delay-correction": "off"},
    "cdp-v2": {"rule": "cdp-v2"},
    "cdp-v2, M 2": {"rule": "cdp-v2", "accumulate": 2},  # with half the batch
    "cdp-v1, off": {"rule": "cdp-v1", "delay-correction": "off"},
    "cdp-v1": {"rule": "cdp-v1"},
    "cdp-v1, M 2": {"rule": "cdp-v1", "accumulate": 2},
}
OFF = ("cdp-v2, off", "cdp-v1, off")  # for AdamW and Muon at dp's best rate only
SEVERAL = ("cdp-v2, M 2", "cdp-v1, M 2")  # for AdamW only, which loses most by the delay
PAPER_RULES = ("dp", "cdp-v2, off", "cdp-v2", "cdp-v1")

IMAGES = {"workers": 4, "batch": 32, "threads": 2, "lr": 0.1, "momentum": 0.9, "weight-decay": 5e-4,
          "lr-schedule": "cosine", "eval-every": EPOCH, "checkpoint-every": 130, "keep": 1}  # fmt: skip
SEEDS = {3: 6, 10: 3, 30: 1}  # epochs of resnet20: seeds
# These, AdamW's and Muon's are in bf16, which ends where fp32 does (the claim `precision`) in two thirds of the time.
PAPER = {"resnet18": 5, "resnet50": 1}  # epochs
BRIEF = {"workers": 4, "threads": 2, "precision": "bf16"}
MODELS = {
    "gpt2-nano": {**BRIEF, "batch": 8, "weight-decay": 0.1, "betas": "0.9,0.95", "eval-every": 100},
    "vit-tiny": {**BRIEF, "batch": 16, "weight-decay": 0.05, "eval-every": 240, "eval-batches": 125},
}
STEPS = {"gpt2-nano": 400, "vit-tiny": 240}
LONG_STEPS = 1600
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "muon": (0.005, 0.01, 0.02, 0.04)}
DOUBLINGS = 2  # of the highest rate, for rules whose loss still falls there
TARGETS = {"cdp-v2": {3: -0.5, 10: -0.5}, "cdp-v1": {3: -1.5, 10: -0.7},
           "cdp-v1, M 2": {3: -1.5, 10: -0.7}}  # fmt: skip # points, less one standard error
LOSS_TARGETS = {"cdp-v2": 0.02, "cdp-v2, M 2": 0.02, "cdp-v1": 0.10, "cdp-v1, M 2": 0.10}


def rules_of(optimizer):
    return [name for name in RULES if optimizer == "adamw" or name not in SEVERAL]


def swept_rules(optimizer):
    """Those whose rate is swept."""
    return [name for name in rules_of(optimizer) if name not in OFF]


def warmup_of(steps, optimizer="sgd"):
    """The warm-up for all rules: the program's default for cdp-v1 (src/engine/correction.c)."""
    part, of = {"sgd": (1, 6), "adamw": (3, 8), "muon": (1, 4)}[optimizer]
    return min(steps * part // of, 2000)


def word(name):
    return name.replace(", ", "-").replace(" ", "-").lower()


# ---- which runs -------------------------------------------------------------------------------------------


def image_key(model, epochs, name, seed):
    return f"{model}-{epochs}ep-{word(name)}-seed{seed}"


def resnet20_runs(lengths):
    """Keys and settings, seed by seed, so that complete sets exist if it is stopped early."""
    for epochs in lengths:
        for seed in range(1, SEEDS[epochs] + 1):
            for name, settings in SGD_RULES.items():
                yield image_key("resnet20", epochs, name, seed), {
                    **IMAGES, "model": "resnet20", "epochs": epochs, "warmup": warmup_of(epochs * EPOCH), "seed": seed,
                    **settings}  # fmt: skip


def paper_runs():
    for model, epochs in PAPER.items():
        for name in PAPER_RULES:
            yield image_key(model, epochs, name, 1), {
                **IMAGES, "model": model, "epochs": epochs, "warmup": warmup_of(epochs * EPOCH), "seed": 1,
                "precision": "bf16", **SGD_RULES[name]}  # fmt: skip


def sweep_key(model, optimizer, name, rate, seed=1, steps=None):
    return f"{model}-{optimizer}-{word(name)}-lr{rate:g}-{steps or STEPS[model]}steps-seed{seed}"


def sweep_settings(model, optimizer, name, rate, seed=1, steps=None):
    steps = steps or STEPS[model]
    batch = MODELS[model]["batch"] // RULES[name].get("accumulate", 1)
    return {**MODELS[model], "batch": batch, "model": model, "optimizer": optimizer, "lr": rate, "lr-schedule": "cosine",
            "steps": steps, "warmup": warmup_of(steps, optimizer), "checkpoint-every": 100, "keep": 1, "seed": seed,
            **RULES[name]}  # fmt: skip


def doublings(optimizer):
    return [RATES[optimizer][-1] * 2**n for n in range(1, DOUBLINGS + 1)]


def swept(runs, model, optimizer, name):
    """The rates that were tried with the first seed, with their losses."""
    rates = (*RATES[optimizer], *doublings(optimizer))
    found = {rate: runs.get(sweep_key(model, optimizer, name, rate)) for rate in rates}
    return {rate: run["eval_loss"] for rate, run in found.items() if run and run["eval_loss"] is not None}


def best_rate(runs, model, optimizer, name):
    """None if no rate was tried. Rules without a correction use dp's."""
    found = swept(runs, model, optimizer, "dp" if name in OFF else name)
    return min(found, key=found.get) if found else None


# ---- measuring --------------------------------------------------------------------------------------------


def packed_cifar10(work):
    """The images, decoded once for all runs. None if their location is not set."""
    directory = os.environ.get(IMAGES_VARIABLE)
    if not directory or not os.path.isdir(os.path.join(directory, "train")):
        say(f"* CIFAR-10 is MISSING: set {IMAGES_VARIABLE} to a folder with train/CLASS/*.jpg and test/CLASS/*.jpg.")
        return None
    path = os.path.join(work, "cifar10.packed")
    if not os.path.exists(path):
        os.makedirs(work, exist_ok=True)
        if os.path.exists(path + ".part"):
            os.remove(path + ".part")
        output_of(program(), "data", "pack", f"imagefolder:{os.path.abspath(directory)}", "-o", path + ".part")
        os.replace(path + ".part", path)
    return f"packed:{path}"


def text_data():
    path = os.environ.get(TEXT_VARIABLE)
    if path and os.path.exists(path):
        return f"tokens:{os.path.abspath(path)}"
    say(f"* The text is MISSING: set {TEXT_VARIABLE} to a text file, tiny Shakespeare for instance.")
    return None


def figures_of(directory):
    summary, losses = read_json(os.path.join(directory, "summary.json")), read_losses(directory)
    evaluations = read_evaluations(directory)
    curve = [[step, round(loss, 4)] for step, loss in enumerate(smooth(losses, MEAN), 1)]
    images = bool(evaluations) and evaluations[-1][2] is not None
    return {
        "steps": summary["steps"],
        "correction": summary["delay_correction"],
        "warmup": summary["warmup"],
        "accuracy": summary["accuracy"] if images else None,
        "eval_loss": summary["eval_loss"],
        "loss_last": curve[-1][1],
        "weights_sha256": summary["weights_sha256"],
        "evaluations": evaluations,
        "losses": thin(curve, 40),  # keep the file small, as there are many runs
    }


def measure_sweeps(store, options, model, data):
    """Measures all rates with one seed by each optimizer, and higher ones where the highest is the best; then two more
    seeds at each rule's best rate."""

    def train(*run):
        if options.only in sweep_key(*run):
            store.train(sweep_key(*run), {**sweep_settings(*run), "data": data}, figures_of)

    for optimizer, rates in RATES.items():
        for rate in rates:
            for name in swept_rules(optimizer):
                train(model, optimizer, name, rate)
        for name in swept_rules(optimizer):
            for rate in doublings(optimizer):
                if best_rate(store.runs, model, optimizer, name) == rate / 2:
                    train(model, optimizer, name, rate)
    for optimizer in RATES:
        for name in rules_of(optimizer):
            rate = best_rate(store.runs, model, optimizer, name)
            for seed in () if not rate else (1,) if name in OFF else (1, 2, 3):
                train(model, optimizer, name, rate, seed)


def measure_long_sweeps(store, options, data):
    """One long run of each rule that was swept, at the best rate of the short runs."""
    for optimizer in RATES:
        for name in swept_rules(optimizer):
            run = ("gpt2-nano", optimizer, name, best_rate(store.runs, "gpt2-nano", optimizer, name), 1, LONG_STEPS)
            if run[3] and options.only in sweep_key(*run):
                store.train(sweep_key(*run), {**sweep_settings(*run), "data": data}, figures_of)


def measure_short(store, options, images, text):
    """Checks in minutes that everything works: the first steps of each rule."""
    few = {"steps": 60, "warmup": 15, "eval-every": 0, "checkpoint-every": 0, "eval-batches": 8}
    for name, settings in SGD_RULES.items() if images else ():
        key = image_key("resnet20", 3, name, 1)
        if options.only in key:
            store.train(key, {**IMAGES, "model": "resnet20", "seed": 1, **settings, **few, "data": images}, figures_of)
    for name in ("dp", "cdp-v2", "cdp-v1") if text else ():
        key = sweep_key("gpt2-nano", "adamw", name, 1e-3)
        if options.only in key:
            store.train(key, {**sweep_settings("gpt2-nano", "adamw", name, 1e-3), **few, "steps": 25, "warmup": 10,
                              "data": text}, figures_of)  # fmt: skip


def measure(store, options):
    images, text = packed_cifar10(options.work), text_data()
    if not options.long:
        return measure_short(store, options, images, text)

    def train_all(runs):
        for key, settings in runs if images else ():
            if options.only in key:
                store.train(key, {**settings, "data": images}, figures_of)

    train_all(resnet20_runs((3, 10)))
    for model, data in (("gpt2-nano", text), ("vit-tiny", images)):
        if data:
            measure_sweeps(store, options, model, data)
    train_all(paper_runs())
    if text:
        measure_long_sweeps(store, options, text)
    train_all(resnet20_runs((30,)))


# ---- tables -----------------------------------------------------------------------------------------------


def accuracies(raw, epochs, name):
    """{seed: percent}"""
    return {seed: 100 * run["accuracy"] for seed in range(1, SEEDS[epochs] + 1)
            if (run := raw["runs"].get(image_key("resnet20", epochs, name, seed)))}  # fmt: skip


def spread(values):
    values = list(values)
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def better_dp(raw, epochs):
    means = {name: statistics.mean(found.values()) for name in ("dp", "dp, Nesterov")
             if (found := accuracies(raw, epochs, name))}  # fmt: skip
    return max(means, key=means.get) if means else None


def difference(raw, epochs, name, base):
    """The mean of paired differences and its standard error (0 with one pair); None without pairs."""
    ours, theirs = accuracies(raw, epochs, name), accuracies(raw, epochs, base)
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return None
    return statistics.mean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0


def judged(raw, epochs, name, base):
    target, found = TARGETS.get(name, {}).get(epochs), difference(raw, epochs, name, base)
    whole = raw["runs"][image_key("resnet20", epochs, name, 1)]["steps"] == epochs * EPOCH
    if target is None or not found or not whole:
        return ""
    return f"{target:+.1f}: {'met' if found[0] + found[1] >= target else 'missed'}"


def resnet20_table(raw):
    rows = []
    for epochs in SEEDS:
        base = better_dp(raw, epochs)
        for name in SGD_RULES:
            found = accuracies(raw, epochs, name)
            if found and base:
                apart = difference(raw, epochs, name, base) if name != base else None
                cell = f"{apart[0]:+.2f} ± {apart[1]:.2f}" if apart else ""
                rows.append([epochs, name, len(found), spread(found.values()), cell, judged(raw, epochs, name, base)])
    header = ["epochs", "rule", "seeds", "test accuracy, %", "less the better dp's, points ± standard error", "target"]
    return table(header, rows) if rows else ""


def paper_table(raw):
    rows = []
    for model, epochs in PAPER.items():
        runs = {name: raw["runs"].get(image_key(model, epochs, name, 1)) for name in PAPER_RULES}
        if any(runs.values()):
            rows.append([model, epochs, *(f"{100 * run['accuracy']:.2f}" if run else "–" for run in runs.values())])
    return table(["network", "epochs", *(f"{name}, %" for name in PAPER_RULES)], rows) if rows else ""


def rates_table(raw):
    rows = []
    for model in MODELS:
        for optimizer in RATES:
            for name in swept_rules(optimizer):
                found = swept(raw["runs"], model, optimizer, name)
                if found:
                    cells = [f"{rate:g}: {loss:.3f}" for rate, loss in found.items()]
                    rows.append([model, optimizer, name, *cells])
    columns = max(map(len, rows), default=0)
    header = ["model", "optimizer", "rule", *(f"rate {n}: loss" for n in range(1, columns - 2))]
    return table(header, [row + [""] * (columns - len(row)) for row in rows]) if rows else ""


def best_losses(raw, model, optimizer, name):
    rate = best_rate(raw["runs"], model, optimizer, name)
    keys = [sweep_key(model, optimizer, name, rate, seed) for seed in (1, 2, 3)] if rate else []
    return rate, [raw["runs"][key]["eval_loss"] for key in keys if key in raw["runs"]]


def is_swept(raw, model, optimizer, name):
    """Whether all rates of a rule were tried; before that, the best one is unknown."""
    found = swept(raw["runs"], model, optimizer, "dp" if name in OFF else name)
    return all(rate in found for rate in RATES[optimizer])


def beside(apart, target):
    return f"{apart:+.3f}" + (f": {'met' if apart <= target else 'missed'}" if target else "")


def losses_table(raw):
    """Three seeds at each rule's best rate, compared with dp at its best."""
    rows = []
    for model in MODELS:
        for optimizer in RATES:
            bases = [statistics.mean(losses) for name in ("dp", "dp, corrected")
                     if is_swept(raw, model, optimizer, name)
                     and (losses := best_losses(raw, model, optimizer, name)[1])]  # fmt: skip
            for name in rules_of(optimizer):
                rate, losses = best_losses(raw, model, optimizer, name)
                if not losses or len(bases) < 2 or not is_swept(raw, model, optimizer, name):
                    continue
                target = LOSS_TARGETS.get(name)
                apart = [beside(statistics.mean(losses) - base, target) for base in bases]
                key = sweep_key(model, optimizer, name, rate, 1, LONG_STEPS)
                long = f"{raw['runs'][key]['eval_loss']:.3f}" if key in raw["runs"] else ""
                rows.append([model, optimizer, name, f"{rate:g}", len(losses), f"{statistics.mean(losses):.3f}",
                             f"{target:+.2f}" if target else "", *apart, long])  # fmt: skip
    header = ["model", "optimizer", "rule", "best rate", "seeds", "evaluation loss", "target", "less dp's",
              "less corrected dp's", f"{LONG_STEPS} steps"]  # fmt: skip
    return table(header, rows) if rows else ""


def tables(raw):
    parts = {"resnet20": resnet20_table(raw), "paper": paper_table(raw), "rates": rates_table(raw),
             "losses": losses_table(raw)}  # fmt: skip
    return {part: text for part, text in parts.items() if text}


def spelt_out(name):
    return name.replace(", M 2", " with --accumulate 2")


def headline(raw):
    rows = []
    for epochs in (3, 10):
        base = better_dp(raw, epochs)
        names = [name for name in ("cdp-v2", "cdp-v1", "cdp-v1, M 2") if accuracies(raw, epochs, name)]
        if base and names:
            found = {name: accuracies(raw, epochs, name) for name in (base, *names)}
            cells = [f"{spelt_out(name)} {spread(of.values())} %" for name, of in found.items()]
            counts = [str(len(of)) for of in found.values()]
            seeds = counts[0] if len(set(counts)) == 1 else ", ".join(counts)
            rows.append([f"resnet20 on CIFAR-10, {epochs} epochs, seeds: {seeds}", ", ".join(cells)])
    for optimizer in RATES:
        names = [name for name in rules_of(optimizer) if name in ("dp", *LOSS_TARGETS)]
        if all(is_swept(raw, "gpt2-nano", optimizer, name) for name in names):
            means = [statistics.mean(best_losses(raw, "gpt2-nano", optimizer, name)[1]) for name in names]
            cells = [f"{spelt_out(name)} {mean:.3f}" for name, mean in zip(names, means)]
            rows.append([f"gpt2-nano on a text, {STEPS['gpt2-nano']} steps by {optimizer}: loss", ", ".join(cells)])
    return rows


# ---- figures ----------------------------------------------------------------------------------------------


def lines(runs, of):
    """A rule has the same colour in all figures; the second one is that of dp with the same correction."""
    places = {**{name: place for place, name in enumerate(RULES)}, "dp, Nesterov": 1}
    return [{"kind": "line", "points": of(run), "name": name, "colour": places[name], "dash": DASHES[places[name]]}
            for name, run in runs.items() if run]  # fmt: skip


def panel(title, runs, of=lambda run: run["losses"], x="step", y=f"loss, mean of {MEAN}", legend=True):
    return {"title": title, "x": x, "y": y, "marks": lines(runs, of), "legend": legend}


def image_panels(raw, model, epochs, names):
    runs = {name: raw["runs"].get(image_key(model, epochs, name, 1)) for name in names}
    title = f"{model}, {epochs} {'epochs' if epochs > 1 else 'epoch'}"
    tests = panel(f"{title}: test accuracy", runs, lambda run: [(s / EPOCH, top) for s, _, top in run["evaluations"]],
                  "epochs; lines as on the left", "%", legend=False)  # fmt: skip
    return [panel(title, runs, lambda run: [(s / EPOCH, loss) for s, loss in run["losses"]], "epochs"), tests]


def sweep_panel(raw, model, optimizer):
    runs = {}
    for name in rules_of(optimizer):
        rate = best_rate(raw["runs"], model, optimizer, name)
        runs[name] = raw["runs"].get(sweep_key(model, optimizer, name, rate)) if rate else None
    return panel(f"{model}, {optimizer}, each at its best rate", runs)


def figures(raw):
    made = {"delay.svg": stability_figure()}
    groups = {
        "delay-resnet20.svg": [p for epochs in (3, 10) for p in image_panels(raw, "resnet20", epochs, SGD_RULES)],
        "delay-paper.svg": [
            p for model, epochs in PAPER.items() for p in image_panels(raw, model, epochs, PAPER_RULES)
        ],
        "delay-optimizers.svg": [sweep_panel(raw, model, optimizer) for model in MODELS for optimizer in RATES],
    }
    for name, panels in groups.items():
        panels = [p for p in panels if p["marks"]]
        if panels:
            made[name] = figure(panels, columns=2, width=960, height=320)
    return made
