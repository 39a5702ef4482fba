"""AdamW under the delay: vit-tiny on CIFAR-10 and gpt2-nano on a text, by dp, cdp-v1 and cdp-v2."""

import math
import os

from claims.accuracy import MEAN, RULES, packed_cifar10
from curves import smooth
from draw import DASHES, figure
from render import table
from store import read_evaluations, read_json, read_losses, say, thin

QUESTION = "Does AdamW suffer from gradients that are a step old?"
VARIABLE = "CAROUSEL_TINYSHAKESPEARE"

COMMON = {"workers": 4, "threads": 2, "optimizer": "adamw", "lr": 1e-3, "lr-schedule": "cosine",
          "checkpoint-every": 100, "keep": 1}  # fmt: skip
MODELS = {
    "gpt2-nano": {"batch": 8, "weight-decay": 0.1, "betas": "0.9,0.95", "steps": 400, "eval-every": 100},
    "vit-tiny": {"batch": 16, "weight-decay": 0.05, "steps": 240, "eval-every": 80, "eval-batches": 125},
}
WARMUP = 50  # steps
SHORT = {"steps": 25, "eval-every": 0, "checkpoint-every": 0, "eval-batches": 8}


def key_of(model, rule):
    return f"{model}-{rule}-warmup{WARMUP}"


def data_of(model, options):
    if model == "vit-tiny":
        return packed_cifar10(options.work)
    path = os.environ.get(VARIABLE)
    if path and os.path.exists(path):
        return f"tokens:{os.path.abspath(path)}"
    say(f"* The text is MISSING: set {VARIABLE} to a text file, tiny Shakespeare for instance.")
    return None


def figures_of(directory):
    summary, losses = read_json(os.path.join(directory, "summary.json")), read_losses(directory)
    evaluations = read_evaluations(directory)
    curve = [[step, round(loss, 4)] for step, loss in enumerate(smooth(losses, MEAN), 1)]
    return {
        "steps": summary["steps"],
        "accuracy": summary["accuracy"] if evaluations[-1][2] is not None else None,
        "eval_loss": summary["eval_loss"],
        "loss_last": curve[-1][1],
        "weights_sha256": summary["weights_sha256"],
        "evaluations": evaluations,
        "losses": thin(curve),
    }


def measure(store, options):
    for model in MODELS:
        data = data_of(model, options)
        for rule in RULES:
            key = key_of(model, rule)
            if data and options.only in key:
                settings = {"model": model, **COMMON, **MODELS[model], "warmup": WARMUP, "rule": rule, "data": data}
                store.train(key, settings if options.long else {**settings, **SHORT, "warmup": 10}, figures_of)


# ---- showing ----------------------------------------------------------------------------------------------


def chosen(raw, model):
    return {rule: run for rule in RULES if (run := raw["runs"].get(key_of(model, rule)))}


def quality(run):
    if run["accuracy"] is None:
        return f"perplexity {math.exp(run['eval_loss']):.2f}"
    return f"accuracy {100 * run['accuracy']:.2f} %"


def tables(raw):
    rows = []
    for model in MODELS:
        runs = chosen(raw, model)
        for rule, run in runs.items():
            apart = f"{run['eval_loss'] - runs['dp']['eval_loss']:+.4f}" if rule != "dp" and "dp" in runs else ""
            rows.append([model, run["steps"], rule, f"{run['loss_last']:.4f}", f"{run['eval_loss']:.4f}", apart,
                         quality(run)])  # fmt: skip
    header = ["model", "steps", "rule", f"loss, last {MEAN}", "evaluation loss", "less dp's", "quality"]
    return {"rules": table(header, rows)} if rows else {}


def panel(raw, model):
    lines = [
        {"kind": "line", "points": run["losses"], "name": rule, "colour": RULES.index(rule),
         "dash": DASHES[RULES.index(rule)]}
        for rule, run in chosen(raw, model).items()
    ]  # fmt: skip
    return {"title": f"{model}, AdamW", "x": "step", "y": f"loss, mean of {MEAN}", "marks": lines, "legend": True}


def figures(raw):
    panels = [panel(raw, model) for model in MODELS]
    panels = [p for p in panels if p["marks"]]
    return {"adamw.svg": figure(panels, columns=2, width=960, height=300)} if panels else {}
