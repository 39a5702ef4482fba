"""Trains with a rank in each namespace, with the program or PyTorch, and measures what went over the network.

A run's result is a dictionary about steps in steady state. The first steps, which fill the cycle, and the last one,
which drains it, are left out.

    step_s      seconds of a step
    compute_s   seconds of its computation, mean over ranks
    exposed_s   the rest of the step, at least 0: compute_s is over all steps, and the first one is slower
    waited_s    the same as reported by the program, for the whole run (not for DDP)
    held        messages per step, over all ranks, that were delayed to pace their links (not for DDP)
    carried_burst  the most bytes by which the ranks' traffic was ahead of its mean rate (see largest_burst)
    handed_burst   the same for what ranks handed to the network. A sum over all ranks counts when it begins, with all
                   that a rank must send for it.
    handed_slot    the most bytes that all ranks handed over within a slot, the time of a step over 2 S
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from workers import WorkerError  # noqa: E402
from runs import program  # noqa: E402

FILLING = 4  # steps until the distances between ranks have settled
LEAST_STEPS = FILLING + 5
RUN_SECONDS = 600  # a run that takes longer hangs
SLOTS = 32  # of a step: forwards and backwards of 16 stages
STEP_SECONDS = 1.0  # of forwards and backwards in a step: see README.md


def clean_environment(**more):
    """An environment in which the caller's settings cannot change how many threads compute, or how ranks start."""
    prefixes = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "OMPI_", "PMIX_")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(prefixes)}, **more}


def all_reduce_bytes(size, ranks):
    """The least bytes that each rank must send for an all-reduce; rings and halving-doubling send no more."""
    return 2 * (ranks - 1) / ranks * size


# ---- ours -------------------------------------------------------------------------------------------------


def mpirun(links, sends):
    hosts = ",".join(links.address(rank) for rank in range(links.ranks))
    settings = {
        "plm_rsh_agent": os.path.join(HERE, "agent.sh"),
        "plm_rsh_no_tree_spawn": 1,
        "oob_tcp_if_include": "198.18.0.0/24",
        "btl_tcp_if_include": "198.18.0.0/24",
        "pml": "ob1",
        "btl": "tcp,self",  # no shared memory, which would bypass the network
    }
    words = links.inside("hub") + ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    words += ["--host", hosts, "-x", f"CAROUSEL_SENDS={sends}"]
    words += ["-x", f"LD_PRELOAD={os.path.join(os.path.dirname(program()), 'bench', 'sends.so')}"]
    for key, value in settings.items():
        words += ["--mca", key, str(value)]
    return words


def read_sends(path, ranks):
    """For each rank, [[when, bytes, tag], ...] as sends.c wrote them."""
    by_rank = []
    for rank in range(ranks):
        sends = []
        with open(f"{path}.{rank}") as file:
            for line in file:
                when, kind, size, tag = line.split()
                if kind not in "sa":
                    raise WorkerError(f"a collective that this bench knows nothing of: {line}")
                size = all_reduce_bytes(int(size), ranks) if kind == "a" else int(size)
                sends.append([float(when), size, int(tag)])
        by_rank.append(sends)
    return by_rank


def full_swing(by_rank, steps):
    """Seconds of a step, from the times between two sends of the same message once the cycle has filled, and when the first
    of these steps began and the last one ended. Uses an even number of steps: if the network limits them, long and
    short steps alternate, like the two versions of the weights.

    A tag belongs to one message of the plan, which every step has, except for new weights that nobody needs at the end
    of the run. Sums over all ranks have no tags, but every step has the same number of them."""
    times, begins, ends = [], [], []
    for sends in by_rank:
        same = [when for when, _, tag in sends if tag == sends[0][2]]
        if same and len(same) % steps == 0:
            starts = same[:: len(same) // steps]
            count = (steps - 1 - FILLING) // 2 * 2
            begins.append(starts[-1 - count])
            ends.append(starts[-1])
            times.append((starts[-1] - starts[-1 - count]) / count)
    if not times:
        raise WorkerError("no rank sent something in each step")
    return statistics.median(times), max(begins), min(ends)


class Pause(threading.Thread):
    """Stops a rank's process for a while, once a number of steps have been reported."""

    def __init__(self, links, metrics, rank=1, steps=FILLING + 3, seconds=1.0):
        super().__init__(daemon=True)
        self.links, self.metrics, self.rank, self.steps, self.seconds = links, metrics, rank, steps, seconds
        self.over, self.paused = threading.Event(), False

    def reported(self):
        try:
            with open(self.metrics) as file:
                return sum(1 for _ in file)
        except OSError:
            return 0

    def run(self):
        while not self.over.wait(0.02):
            if self.reported() >= self.steps:
                pids = self.links.processes(self.rank, os.path.basename(program()))
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        os.kill(pid, number)
                    time.sleep(self.seconds if number == signal.SIGSTOP else 0)
                self.paused = bool(pids)
                return

    def end(self):
        self.over.set()
        self.join()
        if not self.paused:
            raise WorkerError(f"rank {self.rank} was not paused: the run was too short")


def train_ours(links, settings, steps, pause=False):
    """Trains with the program. With `pause`, one rank stops for a second during the run."""
    with tempfile.TemporaryDirectory() as directory:
        sends, out = os.path.join(directory, "sends"), os.path.join(directory, "out")
        fixed = {"placement": "replica", "threads": 1, "keep": 0, "step-seconds": STEP_SECONDS}
        words = mpirun(links, sends) + [program(), "train"]
        for option, value in {**fixed, **settings, "workers": links.ranks, "steps": steps, "out": out}.items():
            words += [f"--{option}", str(value)]
        environment = clean_environment(CAROUSEL_NETWORK=links.name)
        pausing = Pause(links, os.path.join(out, "metrics.jsonl")) if pause else None
        if pausing:
            pausing.start()
        with links.watch() as watch:
            done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=RUN_SECONDS)
        if done.returncode != 0:
            raise WorkerError(f"{settings}: exit code {done.returncode}: {done.stderr.strip()[:2000]}")
        if pausing:
            pausing.end()
        with open(os.path.join(out, "summary.json")) as file:
            summary = json.load(file)
        by_rank = read_sends(sends, links.ranks)
    step, begin, end = full_swing(by_rank, steps)
    compute = statistics.mean(rank["compute_s"] for rank in summary["ranks"]) / steps
    events = [[[when, size] for when, size, _ in sends] for sends in by_rank]
    return {
        "step_s": step,
        "compute_s": compute,
        "exposed_s": max(0.0, step - compute),
        "waited_s": summary["comm"]["exposed_ms_per_step"] / 1e3,
        "held": sum(rank["held_messages"] for rank in summary["ranks"]) / steps,
        **bursts(events, watch.samples, begin, whole_steps(begin, end, step), compute / SLOTS),
    }


# ---- PyTorch ----------------------------------------------------------------------------------------------


def train_ddp(links, python, task, steps):
    """A process in each namespace, with one thread as DDP's launcher sets it."""
    environment = clean_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0")
    with tempfile.TemporaryDirectory() as directory, links.watch() as watch:
        shape = [task["batch"], task["image-size"], task["classes"], task.get("width", 0), task.get("depth", 0)]
        ranks = []
        try:
            for rank in range(links.ranks):
                own = [rank, links.ranks, os.path.join(directory, "meet"), task["model"], *shape, STEP_SECONDS, steps]
                command = links.inside(rank) + [python, os.path.join(HERE, "ddp.py"), *map(str, own)]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                ranks.append(subprocess.Popen(command, env=environment, **pipes))
            outputs = [rank.communicate(timeout=RUN_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(rank.returncode for rank in ranks):
        raise WorkerError(f"DDP: {''.join(errors for _, errors in outputs).strip()[-800:]}")
    answers = [json.loads(output) for output, _ in outputs]
    events = [[[when, all_reduce_bytes(size, links.ranks)] for when, size in a["sends"]] for a in answers]
    step = statistics.median((a["ends"][-1] - a["ends"][1]) / (steps - 1) for a in answers)
    compute = statistics.mean(a["compute_s"] for a in answers)
    begin, end = max(a["ends"][0] for a in answers), min(a["ends"][-1] for a in answers)
    return {
        "step_s": step,
        "compute_s": compute,
        "exposed_s": step - compute,
        **bursts(events, watch.samples, begin, whole_steps(begin, end, step), compute / SLOTS),
    }


# ---- bursts -----------------------------------------------------------------------------------------------


def whole_steps(begin, end, step):
    """Ranks begin and end a step at different times. The mean rate is that of whole steps: a part of one that has more than its
    share of the traffic, or less, would look as if all of it ran ahead, or fell behind."""
    steps = int((end - begin) / step + 0.01)
    return begin + steps * step if steps > 0 else end


def bursts(events, samples, begin, end, window):
    """`events`: for each rank [[when, bytes], ...]. `samples`: see links.Watch."""
    events = sorted(event for own in events for event in own if begin <= event[0] <= end)
    totals = [(when, sum(counts)) for when, *counts in samples if begin <= when <= end]
    carried = [(b[0], b[1] - a[1]) for a, b in zip(totals, totals[1:])]
    return {
        "handed_burst": largest_burst(events, end - begin),
        "carried_burst": largest_burst(carried, end - begin),
        "handed_slot": largest_within(events, window),
    }


def largest_burst(events, seconds):
    """The most bytes by which [[when, bytes], ...] was ahead of its mean rate: the size that a token bucket of that rate
    would need, like `burst` of tc's tbf."""
    rate = sum(size for _, size in events) / seconds
    level, most, last = 0, 0, events[0][0]
    for when, size in events:
        level = max(0, level - rate * (when - last)) + size
        last, most = when, max(most, level)
    return most


def largest_within(events, window):
    """The most bytes in any interval of that many seconds."""
    most = total = first = 0
    for when, size in events:
        total += size
        while events[first][0] < when - window:
            total -= events[first][1]
            first += 1
        most = max(most, total)
    return most
