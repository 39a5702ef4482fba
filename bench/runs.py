"""Runs the real program for the benches of training: `carousel train` to its end, `carousel plan` for what it predicts.

Used by memory.py and training.py."""

import json
import os
import resource
import subprocess
import sys
import tempfile

from models import HERE, Witness, WorkerError


def program():
    path = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "carousel")
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: `make build` makes it")
    return path


def command_words(command, settings):
    """A command of the program with {option: value}; True stands for an option without a value."""
    words = [program(), command]
    for option, value in settings.items():
        words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return words


def clean_environment():
    """Nothing of the caller's environment may change how many threads compute, or how they wait."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "OPENBLAS_"))}


def run_program(command, settings, launcher=()):
    """Runs a command of the program to its end, behind the words of a launcher if there is one (mpirun)."""
    words = [*launcher, *command_words(command, settings)]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_environment())
    if done.returncode != 0:
        raise WorkerError(f"{' '.join(words[1:])}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def train(settings):
    """Trains in a process of its own. Returns its summary.json, with `step_s`: seconds of a step in full swing.

    The first step fills the cycle and warms everything up, the last one drains it and so has less work than others:
    both are left out."""
    with tempfile.TemporaryDirectory() as directory:
        run_program("train", {**settings, "out": directory, "keep": 0})  # a checkpoint at the end is no training
        with open(os.path.join(directory, "summary.json")) as file:
            summary = json.load(file)
        with open(os.path.join(directory, "metrics.jsonl")) as file:
            seconds = [json.loads(line)["seconds"] for line in file]
    if len(seconds) < 3 or summary["interrupted"]:
        raise WorkerError(f"{settings}: {len(seconds)} steps are too few to measure")
    summary["step_s"] = (seconds[-2] - seconds[0]) / (len(seconds) - 2)
    return summary


def plan(settings):
    """What the planner says of a run with these settings."""
    return json.loads(run_program("plan", {**settings, "json": True}))


class RunWitness(Witness):
    """A witness that knows the processes which ended meanwhile, too, as they were ours."""

    def others(self):
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return super().others() - ended.ru_utime - ended.ru_stime
