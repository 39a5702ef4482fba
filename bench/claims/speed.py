"""Whole training steps compared with PyTorch, in one process and with DDP over gloo: samples/s and resident memory."""

import argparse
import contextlib
import io
import json
import os

from tables import rounds_text, text, was_quiet
from workers import HERE, Worker, WorkerError, find_python, say_peer_is_missing
import training
from render import page, table

QUESTION = "How fast is training, and how much memory does the process take, beside PyTorch?"
MODELS = tuple(training.TASKS)
GROWTH = f"{training.GROWTH_TASK}-growth"
LONG = {"rounds": 5, "steps": None, "seconds": 5.0, "minutes": 5}
SHORT = {"rounds": 1, "steps": None, "seconds": 0.1, "minutes": 0}


def rounded(value):
    """Rounds to six digits, more than the clocks can resolve."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(f"{float(number):.6g}"))


def compare(options, worker, name):
    return rounded(training.TrainingBench(worker, {}, options).compare(name))  # starts its clock


def ddp(python, name):
    return rounded(training.run_ddp(python, name, training.DDP_STEPS))


def measure(store, options):
    settings = argparse.Namespace(torch=find_python(None), **(LONG if options.long else SHORT))
    if not settings.torch:
        say_peer_is_missing()
    path = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "bench", "models")
    if not os.access(path, os.X_OK):
        raise WorkerError(f"{path} is not there: `make bench` builds it")
    worker = Worker([path])
    try:
        for name in MODELS:
            command = f"bench/training.py --models {name}"
            if options.only in name:
                store.once(name, command, lambda n=name: compare(settings, worker, n))
            if options.only in f"{name}-ddp" and settings.torch:
                store.once(f"{name}-ddp", command, lambda n=name: ddp(settings.torch, n))
        if options.long and options.only in GROWTH:
            bench = training.TrainingBench(worker, {}, settings)
            store.once(GROWTH, "bench/training.py", lambda: rounded(bench.growth()))
    finally:
        worker.close()


# ---- showing ----------------------------------------------------------------------------------------------


def rows_of(name, run, ddp):
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
        activations = f"{s['activations'][key] / 1e6:.0f}" if mine else "–"
        yield [name, size, key if mine else f"PyTorch, {key}", text(s[key]) + mark, ratio,
               f"{s['rss'][key] / 1e6:.0f}", activations, rounds_text(s)]  # fmt: skip
    if ddp:
        yield [name, size, f"PyTorch, DDP, {training.WORKERS} processes", f"{ddp['samples_per_s']:.2f}", "",
               f"{ddp['rss_peak_bytes'] / 1e6:.0f} in all", "–", "1, for the record"]  # fmt: skip


def bars(runs):
    """Our targets, as training.py prints them."""
    summaries = {(name, bar[1]): runs[name]["summary"] for bar in training.BARS if (name := bar[0]) in runs}
    if GROWTH in runs:
        summaries[training.GROWTH_TASK, "growth"] = runs[GROWTH]["summary"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        training.print_bars(summaries)
    return "\n".join(f"- {' '.join(line.split())}" for line in printed.getvalue().splitlines()
                     if line.startswith("  ") and "not run" not in line)  # fmt: skip


def short(runs):
    """For each model, ours against the better of PyTorch's two settings."""
    rows = []
    for name in MODELS:
        s = runs.get(name, {}).get("summary", {})
        if "ratio" in s:
            rows.append([name, text(s[training.MAIN]), text(s[s["best_setting"]]), text(s["ratio"], 2), text(s["rss_ratio"], 2),
                         "" if was_quiet(s) else "not quiet: no evidence"])  # fmt: skip
    header = ["model", "samples/s", "PyTorch's", "over PyTorch's", "resident memory over PyTorch's", ""]
    return table(header, rows) if rows else ""


def listing(runs):
    rows = [row for name in MODELS if name in runs for row in rows_of(name, runs[name], runs.get(f"{name}-ddp"))]
    header = ["model", "batch", "who", "samples/s", "cdp-v2 over PyTorch*", "resident, MB", "activations, MB", "rounds"]
    return table(header, rows) if rows else ""


def tables(raw):
    parts = {"training": short(raw["runs"]), "bars": bars(raw["runs"])}
    return {part: text for part, text in parts.items() if text}


def files(raw):
    about = "Median (lowest..highest) of the rounds kept. A star: the better of PyTorch's settings."
    found = listing(raw["runs"])
    return {"speed-runs.md": page(raw, "Speed of training, all runs", about, ("", found))} if found else {}


def headline(raw):
    runs = raw["runs"]
    found = {name: s for name in MODELS if "ratio" in (s := runs.get(name, {}).get("summary", {}))}
    ratios = [f"{name} {s['ratio']['median']:.1f}{'' if was_quiet(s) else '?'}, {s['rss_ratio']['median']:.2f}"
              for name, s in found.items()]  # fmt: skip
    return [["training over PyTorch's, 2 threads: samples/s (?: the machine was not quiet), resident memory",
             "; ".join(ratios)]] if found else []  # fmt: skip


def figures(raw):
    return {}
