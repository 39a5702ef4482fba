#!/usr/bin/env python3
"""How fast are images read and augmented, without a model, compared with torchvision? See README.md.

    BUILD_DIR=build bench/data.py --data DIR [--rounds N] [--seconds S] [--minutes M] [--quick] [--json FILE]

DIR (or the environment's CAROUSEL_CIFAR10_JPEG) has CIFAR-10 as JPEG files, train/CLASS/*.jpg and test/CLASS/*.jpg.
Our worker (data.c) and torchvision's (torch_data.py) take turns in rounds. Rounds in which the machine was not quiet
are discarded and repeated while there is time. Without the data nothing is measured, and a message says so. The exit
code is 1 only if something could not be measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from tables import print_machine, print_table, rounds_text, spread, text, was_quiet  # noqa: E402
from workers import HERE, SETTLE_SECONDS, SGEMM_SECONDS, THREADS, Witness, Worker, WorkerError  # noqa: E402
from workers import find_python, machine, process_seconds, say_peer_is_missing  # noqa: E402
from runs import program  # noqa: E402
from training import TrainingBench  # noqa: E402

VARIABLE = "CAROUSEL_CIFAR10_JPEG"
BATCH = 32
CHECKED = 1000  # images on which both must agree
ALIKE = 1e-3

# Contenders: the source, and the number of threads or processes that read ahead.
OURS = {"ours, JPEG": ("jpeg", 0), "ours, packed": ("packed", 0),
        "ours, JPEG, 2 threads": ("jpeg", 1), "ours, packed, 2 threads": ("packed", 1)}  # fmt: skip
THEIRS = {"torchvision, JPEG": ("files", 0), "torchvision, JPEG, 1 worker": ("files", 1),
          "torchvision, in memory": ("memory", 0), "torchvision, in memory, 1 worker": ("memory", 1)}  # fmt: skip
# Ours on one thread, and its rivals, of which the better one counts.
RIVALS = {"ours, JPEG": ("torchvision, JPEG", "torchvision, JPEG, 1 worker"),
          "ours, packed": ("torchvision, in memory", "torchvision, in memory, 1 worker")}  # fmt: skip


class FamilyWitness(Witness):
    """A witness that also counts the children of our processes, such as those of a DataLoader."""

    def others(self):
        return super().others() - sum(process_seconds(child) for pid in self.pids[:-1] for child in children(pid))


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return file.read().split()
    except OSError:
        return []


class DataBench(TrainingBench):
    def __init__(self, sgemm, reader, peer, sources, options):
        super().__init__(sgemm, {}, options)
        self.reader, self.peer, self.sources = reader, peer, sources
        self.tasks = {key: self.task_of_ours(key) for key in OURS if OURS[key][0] in sources}
        if peer:
            self.tasks.update({key: self.task_of_theirs(key) for key in THEIRS})

    def witness(self, workers):
        return FamilyWitness([self.ours, *workers])

    def task_of_ours(self, key):
        source, threads = OURS[key]
        return lambda seconds: self.reader.ask("run", BATCH, threads, seconds, self.sources[source])

    def task_of_theirs(self, key):
        source, workers = THEIRS[key]
        return lambda seconds: self.peer.ask("run", source, BATCH, workers, seconds, self.options.data)

    def fma(self):
        return [self.ours.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]

    def check(self):
        """Checks that all workers see the same images."""
        found = {source: self.reader.ask("check", CHECKED, name) for source, name in self.sources.items()}
        if self.peer:
            found["torchvision"] = self.peer.ask("check", CHECKED, self.options.data)
        first = next(iter(found.values()))
        for who, facts in found.items():
            if any(abs(facts[key] - first[key]) > ALIKE for key in facts):
                raise WorkerError(f"{who} sees other images than the first: {found}")
        return first

    def measure(self):
        for task in self.tasks.values():
            task(0.2)
        workers = [worker for worker in (self.reader, self.peer) if worker]
        return self.repeat("data", self.options.rounds, self.round, workers)

    def round(self, number):
        # Rotate the order: the first one always finds the machine as the check left it.
        order = list(self.tasks)
        turn = number % len(order)
        result = {}
        for key in order[turn:] + order[:turn]:
            time.sleep(SETTLE_SECONDS)
            result[key] = self.tasks[key](self.options.seconds)
        return result


def summarize(rounds, keys):
    summary = {}
    for key in keys:
        summary[key] = {
            "samples_per_s": spread(r[key]["samples_per_s"] for r in rounds),
            "per_core_s": spread(r[key]["samples"] / r[key]["processor_s"] for r in rounds),
        }
    for key, rivals in RIVALS.items():
        if key in summary and rivals[0] in summary:
            best = max(rivals, key=lambda rival: summary[rival]["samples_per_s"]["median"])
            ratio = spread(r[key]["samples_per_s"] / r[best]["samples_per_s"] for r in rounds)
            summary[key].update(rival=best, ratio=ratio)
    return summary


def print_results(summary, facts):
    rows = []
    for key, s in summary.items():
        ratio = f"{text(s['ratio'], 2)} × {s['rival']}" if "ratio" in s else ""
        rows.append([key, text(s["samples_per_s"], 0), text(s["per_core_s"], 0), ratio])
    print_table(
        "CIFAR-10, random crop with padding 4, flip, normalised, micro-batches of "
        f"{BATCH}: samples/s, and samples for each second of processor time, as median (min..max). "
        f"Rounds: {rounds_text(facts)}.",
        ["who", "samples/s", "samples/s per core", "ratio"],
        rows,
    )
    if not was_quiet(facts):
        print("\nThe machine was NOT QUIET: this is no evidence.")


# ---- main -------------------------------------------------------------------------------------------------


def read_all(directory):
    """Reads all files once, so that they are in memory before anything is measured."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                file.read()


def pack(directory, path):
    done = subprocess.run([program(), "data", "pack", f"imagefolder:{directory}", "-o", path],
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode != 0:
        raise WorkerError(f"carousel data pack: exit code {done.returncode}: {done.stderr.strip()[-500:]}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get(VARIABLE), help=f"the folder (default: ${VARIABLE})")
    parser.add_argument("--rounds", type=int, default=5, help="quiet rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--minutes", type=float, default=5, help="after which no round is repeated (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round: only whether it works")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--python", help="the Python that has torchvision (default: /usr/bin/python3 or this one)")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.minutes = 1, 0.2, 0
    if options.rounds < 1 or options.seconds < 0:
        parser.error("there must be a round, and no negative time")
    return options


def say_data_is_missing(options):
    for line in (
        "*" * 100,
        f"* The data is MISSING, so NOTHING was measured: {options.data or 'no folder was named'}.",
        f"* Say --data DIR, or set {VARIABLE}: a folder with train/CLASS/*.jpg and test/CLASS/*.jpg of CIFAR-10.",
        "*" * 100,
    ):
        print(line)


def start(name):
    path = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "bench", name)
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: `make bench-data` builds it")
    return Worker([path])


def main():
    options = parse_options()
    if not options.data or not os.path.isdir(os.path.join(options.data, "train")):
        say_data_is_missing(options)
        return 0
    options.data = os.path.abspath(options.data)
    python = find_python(options.python)
    if not python:
        say_peer_is_missing()
    workers = [start("models"), start("data")]
    peer = Worker([python, os.path.join(HERE, "torch_data.py")]) if python else None
    try:
        with tempfile.TemporaryDirectory() as directory:
            read_all(options.data)
            packed = os.path.join(directory, "cifar10.packed")
            pack(options.data, packed)
            sources = {"jpeg": f"imagefolder:{options.data}", "packed": f"packed:{packed}"}
            bench = DataBench(*workers, peer, sources, options)
            bench.check()
            fma = [bench.fma()]
            kept, facts = bench.measure()
            fma.append(bench.fma())
        about = machine(workers[0], {"torchvision": peer} if peer else {})
    except WorkerError as error:
        sys.exit(f"bench: {error}")
    finally:
        for worker in [*workers, *([peer] if peer else [])]:
            worker.close()
    summary = summarize(kept, bench.tasks)
    print_machine(about, *fma)
    print_results(summary, facts)
    if not python:
        say_peer_is_missing()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "fma": fma, "summary": summary, **facts, "kept": kept}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
