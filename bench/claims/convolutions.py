"""Is a network trained with Winograd's convolutions as accurate as with direct ones?"""

from claims.delay import EPOCH, IMAGES, MEAN, figures_of, packed_cifar10
from draw import DASHES, figure
from render import table

QUESTION = "Is a network as accurate whose convolutions are computed by Winograd's algorithm?"
SETTINGS = {**IMAGES, "lr": 0.05, "warmup": EPOCH, "seed": 1, "rule": "cdp-v2", "delay-correction": "off", "epochs": 2}
SHORT = {"epochs": 1, "steps": 60, "warmup": 20, "eval-every": 0, "checkpoint-every": 0, "eval-batches": 8}
HOW = ("auto", "direct")
MODELS = ("resnet20", "resnet18")


def measure(store, options):
    data = packed_cifar10(options.work)
    for model in MODELS if data and options.long else MODELS[:1] if data else ():
        for how in HOW:
            key = f"{model}-{how}"
            if options.only in key:
                settings = {**SETTINGS, "model": model, "convolutions": how, **({} if options.long else SHORT)}
                store.train(key, {**settings, "data": data}, figures_of)


def tables(raw):
    rows = [[model, how, f"{run['eval_loss']:.4f}", f"{100 * run['accuracy']:.2f} %"] for model in MODELS for how in HOW
            if (run := raw["runs"].get(f"{model}-{how}"))]  # fmt: skip
    return {"accuracy": table(["model", "convolutions", "test loss", "test accuracy"], rows)} if rows else {}


def figures(raw):
    made = {}
    for model in MODELS:
        runs = [(how, run) for how in HOW if (run := raw["runs"].get(f"{model}-{how}"))]
        marks = [{"kind": "line", "points": [(step / EPOCH, loss) for step, loss in run["losses"]], "name": how,
                  "colour": n, "dash": DASHES[n]} for n, (how, run) in enumerate(runs)]  # fmt: skip
        if marks:
            panel = {"title": f"{model} on CIFAR-10, cdp-v2: convolutions", "x": "epochs", "marks": marks,
                     "y": f"loss in training, mean of {MEAN} steps", "legend": True}  # fmt: skip
            made[f"winograd-{model}.svg"] = figure([panel])
    return made
