"""Raw files of results: what was measured, on which machine, with which versions, by which command.

results/NAME.json belongs to one claim and holds all its runs:

    {"carousel_results": 1, "name": NAME, "question": ..., "setups": [SETUP, ...],
     "runs": {KEY: {"setup": index, "date": ..., "command": ..., figures ...}, ...}}

Runs in the file are not repeated. A long run has its own directory below the work directory and continues from its
last checkpoint, so everything can be stopped, or killed, and started again at any time.
"""

import ctypes
import datetime
import fcntl
import json
import os
import platform
import re
import subprocess
import sys

from workers import HERE, WorkerError, cpu_name, find_python
from runs import clean_environment, command_words, program

ROOT = os.path.dirname(HERE)
WORK_VARIABLE = "CAROUSEL_RESULTS_DIR"
COMMIT_VARIABLE = "CAROUSEL_COMMIT"  # for a program that has been moved from its build directory
FORMAT = 1


# ---- machine and versions ---------------------------------------------------------------------------------


def output_of(*words):
    """The output of a command; empty if it does not exist or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit():
    """The commit that the program was built from."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    source = ROOT
    try:
        with open(os.path.join(os.path.dirname(program()), "CMakeCache.txt")) as file:
            source = re.search(r"CMAKE_HOME_DIRECTORY:INTERNAL=(.*)", file.read()).group(1)
    except (OSError, AttributeError):
        pass
    name = output_of("git", "-C", source, "describe", "--always", "--tags")
    # Not results/: it changes with each run that is measured.
    changed = output_of("git", "-C", source, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return f"{name}-dirty" if name and changed else name or "unknown"


def compiler():
    """The compiler's version, as recorded in the program."""
    with open(program(), "rb") as file:
        found = re.search(rb"(GCC: \([^)]*\) [\d.]+|[\w ]*clang version [\d.]+)", file.read())
    return found.group(1).decode() if found else "unknown"


def onednn():
    path = re.search(r"=> (\S*libdnnl\S*)", output_of("ldd", program()))
    if not path:
        return "unknown"
    version = ctypes.CDLL(path.group(1)).dnnl_version
    version.restype = ctypes.POINTER(ctypes.c_int)
    return ".".join(str(version()[n]) for n in range(3))


def torch_version():
    python = find_python(None)
    return output_of(python, "-c", "import torch; print(torch.__version__)") if python else "none"


def setup():
    """The machine, and the versions of all software involved."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "carousel": output_of(program(), "--version").removeprefix("carousel "),
        "commit": commit(),
        "compiler": compiler(),
        "onednn": onednn(),
        "mpi": (output_of("mpirun", "--version").splitlines() or ["none"])[0],
        "torch": torch_version(),
    }


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


# ---- files ------------------------------------------------------------------------------------------------


def write_json(path, value):
    """Writes a file atomically, so that it is complete even if the script is killed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "w") as file:
        # One line per run keeps the file readable and its changes reviewable.
        file.write("{\n")
        for n, (key, part) in enumerate(value.items()):
            if isinstance(part, dict) and key == "runs":
                lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in part.items())
                text = f"{{\n{lines}\n }}"
            else:
                text = json.dumps(part)
            file.write(f"{',' if n else ''}{chr(10) if n else ''} {json.dumps(key)}: {text}")
        file.write("\n}\n")
    os.replace(path + ".tmp", path)


def read_json(path):
    with open(path) as file:
        return json.load(file)


def is_asked_for(key, only):
    """Whether a run's key has all the texts of --only, which are separated by |."""
    return all(text in key for text in only.split("|"))


def thin(values, most=200):
    """At most `count` values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(n * (len(values) - 1) / (most - 1))] for n in range(most)]


class Store:
    """The raw file of one claim, and the work directory of its runs."""

    def __init__(self, name, question, results, work):
        self.path, self.work = os.path.join(results, f"{name}.json"), os.path.join(work, name)
        self.setup, self.failed = None, []
        self.raw = {"carousel_results": FORMAT, "name": name, "question": question, "setups": [], "runs": {}}
        self.load()

    def load(self):
        """Reads the file again, as another process may have added runs."""
        if os.path.exists(self.path):
            self.raw = {**self.raw, **read_json(self.path), "question": self.raw["question"]}

    @property
    def runs(self):
        return self.raw["runs"]

    def add(self, key, command, figures, about=None, date=None):
        """Adds a run and its figures, and writes the file at once."""
        if about is None:
            self.setup = about = self.setup or setup()
        self.load()
        if about not in self.raw["setups"]:
            self.raw["setups"].append(about)
        index = self.raw["setups"].index(about)
        self.runs[key] = {"setup": index, "date": date or now(), "command": command, **figures}
        write_json(self.path, self.raw)

    def forget(self, only):
        """Drops the runs that --only names, so that they are measured anew."""
        self.raw["runs"] = {key: run for key, run in self.runs.items() if not is_asked_for(key, only)}
        write_json(self.path, self.raw)

    def once(self, key, command, measure):
        """Measures a run unless it is in the file."""
        if key not in self.runs:
            self.add(key, command, measure())
            say(self.raw["name"], key, "measured")
        return self.runs[key]

    # ---- runs of `carousel train` ------------------------------------------------------------------------

    def directory(self, key):
        return os.path.join(self.work, key)

    def train(self, key, settings, figures_of):
        """Trains to the end, in the run's directory, and adds figures_of(directory) to the file.

        Continues a stopped run from its last checkpoint, to the bit."""
        if key in self.runs:
            return self.runs[key]
        directory = self.directory(key)
        os.makedirs(directory, exist_ok=True)
        try:
            self.train_on(key, directory, settings)
        except WorkerError as error:  # go on with the other runs
            self.failed.append(str(error))
            return None
        known = os.path.join(directory, "setup.json")
        about = read_json(known) if os.path.exists(known) else None
        date = datetime.datetime.fromtimestamp(
            os.path.getmtime(os.path.join(directory, "summary.json")), datetime.timezone.utc
        ).isoformat(timespec="seconds")
        used = {"data": read_json(os.path.join(directory, "config.json"))["data"]}
        shown = shown_command("train", {**settings, **used})
        self.add(key, shown, figures_of(directory), about, date)
        say(self.raw["name"], key, "done")
        return self.runs[key]

    def train_on(self, key, directory, settings):
        """One attempt. The program inherits the lock, which is held while it runs, even if this script is killed."""
        with open(os.path.join(directory, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if finished(directory):  # the process that held the lock has finished it
                return
            resume = any(name.startswith("step-") for name in list_names(os.path.join(directory, "checkpoints")))
            if not os.path.exists(os.path.join(directory, "setup.json")):
                write_json(os.path.join(directory, "setup.json"), setup())
            say(self.raw["name"], key, "goes on" if resume else "begins")
            words = command_words("train", {**settings, "out": directory, **({"resume": True} if resume else {})})
            with open(os.path.join(directory, "log.txt"), "a") as log:
                done = subprocess.run(words, stdout=log, stderr=log, env=clean_environment(), pass_fds=[lock.fileno()])
        if done.returncode != 0:
            raise WorkerError(f"{key}: exit code {done.returncode}; see {os.path.join(directory, 'log.txt')}")
        if not finished(directory):
            raise WorkerError(f"{key}: was interrupted; started again, it goes on from its checkpoint")


def list_names(directory):
    return os.listdir(directory) if os.path.isdir(directory) else []


def finished(directory):
    path = os.path.join(directory, "summary.json")
    return os.path.exists(path) and not read_json(path)["interrupted"]


def shown_command(command, settings):
    """The command as a reader would type it, without this machine's directories."""
    words = command_words(command, settings)[1:]
    return " ".join(["carousel", *(re.sub(r"(^|:)/\S*/", r"\1", word) for word in words)])


def say(*words):
    print(*words, file=sys.stderr, flush=True)


# ---- what a run directory holds ---------------------------------------------------------------------------


def read_losses(directory):
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        return [json.loads(line)["loss"] for line in file]


def read_evaluations(directory):
    """[step, loss, top-1 in percent (None for tokens)] of each evaluation during training."""
    path = os.path.join(directory, "evaluations.jsonl")
    if not os.path.exists(path):
        return []  # there was none
    with open(path) as file:
        found = [json.loads(line) for line in file]
    percent = [round(100 * e["accuracy"], 2) if "accuracy" in e else None for e in found]
    return [[e["step"], e["loss"] and round(e["loss"], 4), top1] for e, top1 in zip(found, percent)]
