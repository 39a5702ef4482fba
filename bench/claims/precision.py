"""What bf16 costs in accuracy: resnet20 on CIFAR-10 and gpt2-nano on a text, each seed in fp32 and in bf16. Other
settings are those of the claim `delay` for cdp-v2."""

import statistics

from claims.delay import EPOCH, IMAGES, figures_of, packed_cifar10, spread, sweep_settings, text_data, warmup_of
from render import table

QUESTION = "Does training in bf16 reach what training in fp32 does?"
PRECISIONS = ("fp32", "bf16")
EPOCHS, RATE = 3, 1e-3

# Name: seeds; figure, unit, number of digits; how much worse bf16 may be, besides one standard error; and whether less
# is better.
MODELS = {
    "resnet20": {"seeds": 6, "figure": "accuracy", "what": "test accuracy, %", "scale": 100, "digits": 2,
                 "may_lose": 0.5, "less_is_better": False},
    "gpt2-nano": {"seeds": 3, "figure": "eval_loss", "what": "evaluation loss", "scale": 1, "digits": 4,
                  "may_lose": 0.02, "less_is_better": True},
}  # fmt: skip


def key_of(model, precision, seed):
    return f"{model}-{precision}-seed{seed}"


def settings_of(model, precision, seed):
    if model == "resnet20":
        settings = {**IMAGES, "model": model, "rule": "cdp-v2", "epochs": EPOCHS, "warmup": warmup_of(EPOCHS * EPOCH)}
    else:
        settings = sweep_settings(model, "adamw", "cdp-v2", RATE)
    return {**settings, "seed": seed, "precision": precision}


def measure(store, options):
    data = {"resnet20": packed_cifar10(options.work), "gpt2-nano": text_data()}
    few = {} if options.long else {"steps": 25, "warmup": 10, "eval-every": 0, "checkpoint-every": 0, "eval-batches": 8}
    for model, facts in MODELS.items():
        for seed in range(1, (facts["seeds"] if options.long else 1) + 1):
            for precision in PRECISIONS if data[model] else ():
                key = key_of(model, precision, seed)
                settings = {**settings_of(model, precision, seed), **few, "data": data[model]}
                if few:
                    settings.pop("epochs", None)
                if options.only in key:
                    store.train(key, settings, figures_of)


# ---- tables -----------------------------------------------------------------------------------------------


def pairs_of(raw, model):
    """The figures of each seed that has both."""
    facts = MODELS[model]
    for seed in range(1, facts["seeds"] + 1):
        runs = [raw["runs"].get(key_of(model, precision, seed)) for precision in PRECISIONS]
        if all(runs) and all(run[facts["figure"]] is not None for run in runs):
            yield [facts["scale"] * run[facts["figure"]] for run in runs]


def verdict(model, pairs, apart, error):
    facts = MODELS[model]
    if len(pairs) < facts["seeds"]:
        return f"{len(pairs)} of {facts['seeds']} seeds"
    lost = apart if facts["less_is_better"] else -apart
    return f"{facts['may_lose']:g}: {'met' if lost - error <= facts['may_lose'] else 'missed'}"


def tables(raw):
    rows = []
    for model, facts in MODELS.items():
        pairs = list(pairs_of(raw, model))
        if not pairs:
            continue
        differences = [bf16 - fp32 for fp32, bf16 in pairs]
        apart = statistics.mean(differences)
        error = statistics.stdev(differences) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
        digits = facts["digits"]
        means = [f"{statistics.mean(column):.{digits}f}" for column in zip(*pairs)]
        rows.append([model, facts["what"], len(pairs), *means, f"{apart:+.{digits}f} ± {error:.{digits}f}",
                     verdict(model, pairs, apart, error)])  # fmt: skip
    header = ["model", "figure", "seeds", *PRECISIONS, "bf16 less fp32 ± standard error", "may be worse by"]
    return {"accuracy": table(header, rows)} if rows else {}


def headline(raw):
    rows = []
    for model, facts in MODELS.items():
        columns = list(zip(*pairs_of(raw, model)))
        if columns:
            cells = [f"{name} {spread(column)}" for name, column in zip(PRECISIONS, columns)]
            rows.append([f"{model} in fp32 and bf16, {facts['what']}, seeds: {len(columns[0])}", ", ".join(cells)])
    return rows


def figures(raw):
    return {}
