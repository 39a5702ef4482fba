"""Runs the program for the training benches: `carousel train` to its end, `carousel plan` for predictions.

Used by memory.py, training.py and the claims."""

import json
import os
import resource
import subprocess
import sys
import tempfile

from workers import HERE, Witness, WorkerError


def program():
    path = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "carousel")
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: `make build` makes it")
    return path


def command_words(command, settings):
    """The words of a command with {option: value}; True stands for an option without a value."""
    words = [program(), command]
    for option, value in settings.items():
        words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return words


def clean_environment():
    """An environment in which the caller's settings cannot change how many threads compute, or how they wait.

    Open MPI has to be told to allow more ranks than cores, and root."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "OPENBLAS_"))}
    return {**env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_base_warn_component_unused": "0"}  # fmt: skip


def run_program(command, settings, launcher=()):
    """Runs a command of the program to its end, with a launcher's words before it if there is one (mpirun)."""
    words = [*launcher, *command_words(command, settings)]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_environment())
    if done.returncode != 0:
        error = WorkerError(f"{' '.join(words[1:])}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        error.code, error.reason = done.returncode, done.stderr
        raise error
    return done.stdout


def launcher(ranks):
    """The launcher's words for this many ranks; none for a single process."""
    return [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks)] if ranks else []


def read_object(directory, name):
    with open(os.path.join(directory, name)) as file:
        return json.load(file)


def train_in(directory, settings, ranks=0):
    """Trains in a separate process, or over MPI ranks. Returns its summary.json, with `step_s`, the seconds of a step in
    steady state, and `timeline` if the program wrote one.

    Leaves out the first step, which fills the cycle and warms up, and the last one, which drains it and has less work."""
    # Do not time a checkpoint at the end.
    run_program("train", {**settings, "out": directory, "keep": 0}, launcher(ranks))
    summary = read_object(directory, "summary.json")
    if os.path.exists(os.path.join(directory, "timeline.json")):
        summary["timeline"] = read_object(directory, "timeline.json")
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        seconds = [json.loads(line)["seconds"] for line in file]
    if len(seconds) < 3 or summary["interrupted"]:
        raise WorkerError(f"{settings}: {len(seconds)} steps are too few to measure")
    summary["step_s"] = (seconds[-2] - seconds[0]) / (len(seconds) - 2)
    return summary


def train(settings, ranks=0):
    """The same, in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        return train_in(directory, settings, ranks)


def plan(settings):
    """The plan of a run with these settings, as JSON."""
    return json.loads(run_program("plan", {**settings, "json": True}))


class RunWitness(Witness):
    """A witness that also counts our processes that have ended meanwhile."""

    def others(self):
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return super().others() - ended.ru_utime - ended.ru_stime
