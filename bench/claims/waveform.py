"""Full waveform inversion (examples/waveform): memory and time of a gradient, staggered shots against accumulation."""

import glob
import os
import subprocess

from draw import figure
from workers import WorkerError
from render import table
from store import ROOT

QUESTION = "How much memory does a gradient of many shots need, and how long does it take?"
RULES = ("stagger", "accumulate")
LONG = {"size": 96, "steps": 480, "stages": 16, "workers": 2, "threads": 2, "accumulate": 16}
SHORT = {**LONG, "size": 48, "steps": 192, "accumulate": 4}
CHECKPOINTS = {True: (0, 1, 2, 3, 5, 6), False: (0, 1, 3)}  # of a stage's 30, or 12, time steps
ROUNDS = {True: 5, False: 2}


def build(work):
    """Builds the example with the command in its first lines and the library of the build."""
    library = os.path.abspath(os.environ.get("BUILD_DIR", os.path.join(ROOT, "build")))
    program = os.path.join(work, "waveform")
    os.makedirs(work, exist_ok=True)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libpng"], capture_output=True, text=True).stdout.split()
    command = [os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-O3", f"-I{ROOT}/include",
               *sorted(glob.glob(f"{ROOT}/examples/waveform/*.c")), f"-L{library}", "-lcarousel",
               f"-Wl,-rpath,{library}", *flags, "-lm", "-o", program]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        raise WorkerError(f"examples/waveform: {made.stderr.strip()[-400:]}")
    return program


def arguments(settings, rule, checkpoints):
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    return [*options, "--rule", rule, "--checkpoints", str(checkpoints), "--repeat", "2"]


def once(program, settings, rule, checkpoints):
    ran = subprocess.run([program, *arguments(settings, rule, checkpoints)], capture_output=True, text=True)
    if ran.returncode != 0:
        raise WorkerError(f"waveform, {rule}, {checkpoints} checkpoints: {ran.stderr.strip()}")
    words = ran.stdout.split()
    return {name: float(words[words.index(name) + 1])
            for name in ("seconds", "activations_mb", "predicted_mb", "resident_mb")}  # fmt: skip


def rounds(program, settings, checkpoints, count):
    """Runs the rules in turn, so that both see the same machine. Returns all rounds of each."""
    found = {rule: [] for rule in RULES}
    for _ in range(count):
        for rule in RULES:
            found[rule].append(once(program, settings, rule, checkpoints))
    return {"checkpoints": checkpoints, **found}


def measure(store, options):
    settings = LONG if options.long else SHORT
    program = None
    for checkpoints in CHECKPOINTS[bool(options.long)]:
        key = f"checkpoints{checkpoints}"
        if options.only in key:
            program = program or build(options.work)
            command = " ".join(["waveform", *arguments(settings, "stagger|accumulate", checkpoints)])
            store.once(key, command, lambda c=checkpoints: rounds(program, settings, c, ROUNDS[bool(options.long)]))


def best(run, rule):
    """The shortest time and the most memory of all rounds."""
    return {name: (min if name == "seconds" else max)(one[name] for one in run[rule]) for name in run[rule][0]}


def points(raw):
    runs = sorted(raw["runs"].values(), key=lambda run: run["checkpoints"])
    return [(run["checkpoints"], {rule: best(run, rule) for rule in RULES}) for run in runs]


def tables(raw):
    rows = []
    for checkpoints, found in points(raw):
        peer = found["accumulate"]
        for rule in RULES:
            one = found[rule]
            rows.append([str(checkpoints) if checkpoints else "none", rule, f"{one['seconds']:.2f}",
                         f"{one['seconds'] / peer['seconds']:.2f}", f"{one['activations_mb']:.1f}",
                         f"{one['predicted_mb']:.1f}", f"{one['activations_mb'] / peer['activations_mb']:.2f}",
                         f"{one['resident_mb']:.1f}"])  # fmt: skip
    head = ["checkpoints of a stage", "rule", "s a gradient", "of accumulate's", "activations MB", "predicted MB",
            "of accumulate's", "resident MB"]  # fmt: skip
    return {"gradient": table(head, rows)} if rows else {}


def figures(raw):
    found = points(raw)
    if not found:
        return {}
    marks = []
    for n, rule in enumerate(RULES):
        for name, dash in (("activations", ""), ("resident", "7 4")):
            line = sorted((one[rule][f"{name}_mb"], one[rule]["seconds"]) for _, one in found)
            marks.append({"kind": "line", "points": line, "name": f"{rule}: {name}", "colour": n, "dash": dash, "dots": True})
    panel = {"title": "full waveform inversion: from 1 checkpoint in a stage (left) to all states held (right)",
             "x": "MB at most", "y": "seconds a gradient", "marks": marks, "legend": True,
             "y_range": (0, 1.5 * max(y for mark in marks for _, y in mark["points"]))}  # fmt: skip
    return {"waveform-memory.svg": figure([panel])}
