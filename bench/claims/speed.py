"""Whole steps of training beside PyTorch, in one process and by DDP over gloo: samples/s and resident memory."""

import argparse
import json
import os

import models
import training
from models import Worker, WorkerError, rounds_text, say_peer_is_missing, text
from render import table

QUESTION = "How fast is training, and how much memory does the process take, beside PyTorch?"
MODELS = ("resnet18", "resnet50", "vit-b16", "gpt2")
LONG = {"rounds": 5, "steps": None, "seconds": 5.0, "minutes": 14}
SHORT = {"rounds": 1, "steps": None, "seconds": 0.1, "minutes": 0}


def rounded(value):
    """Six digits tell more than any clock here knows."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.6g}"))


def compare(options, worker, name):
    bench = training.TrainingBench(worker, {}, options)  # its time begins now
    result = bench.compare(name)
    if options.torch:
        result["ddp"] = training.run_ddp(options.torch, name, training.DDP_STEPS)
    return rounded(result)


def measure(store, options):
    settings = argparse.Namespace(torch=models.find_python(None), **(LONG if options.long else SHORT))
    if not settings.torch:
        say_peer_is_missing()
    path = os.path.join(os.environ.get("BUILD_DIR", os.path.join(models.HERE, "..", "build")), "bench", "models")
    if not os.access(path, os.X_OK):
        raise WorkerError(f"{path} is not there: `make bench` builds it")
    worker = Worker([path])
    try:
        for name in MODELS:
            if options.only in name:
                store.once(name, f"bench/training.py --models {name}", lambda n=name: compare(settings, worker, n))
    finally:
        worker.close()


# ---- showing ----------------------------------------------------------------------------------------------


def rows_of(name, run):
    s, task = run["summary"], training.TASKS[name]
    shape = f"{task['image']} px" if "image" in task else f"{task['seq']} tokens"
    size = f"{training.WORKERS} × {task['batch']}, {shape}"
    ours, theirs = training.MAIN, s.get("best_setting")
    for key in [*task["rules"], *run["about"]]:
        if key not in s:
            continue
        mine = key in task["rules"]
        mark = "*" if key == theirs else ""
        ratio = text(s["ratio"], 2) if key == ours and "ratio" in s else ""
        yield [name, size, key if mine else f"PyTorch, {key}", text(s[key]) + mark, ratio,
               f"{s['rss'][key] / 1e6:.0f}", rounds_text(s)]  # fmt: skip
    if run.get("ddp"):
        yield [name, size, f"PyTorch, DDP, {training.WORKERS} processes", f"{run['ddp']['samples_per_s']:.2f}", "",
               f"{run['ddp']['rss_peak_bytes'] / 1e6:.0f} in all", "1, for the record"]  # fmt: skip


def tables(raw):
    rows = [row for name in MODELS if name in raw["runs"] for row in rows_of(name, raw["runs"][name])]
    header = ["model", "batch", "who", "samples/s", "cdp-v2 over PyTorch*", "resident, MB", "rounds"]
    return {"training": table(header, rows)} if rows else {}


def figures(raw):
    return {}
