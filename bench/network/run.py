#!/usr/bin/env python3
"""What does a network of a given rate cost each rule, beside an overlapped all-reduce and PyTorch's DDP? See README.md.

    BUILD_DIR=build bench/network/run.py [--models a,b] [--rounds N] [--quick] [--json FILE] [--minutes M]

Four ranks in network namespaces whose links are limited by tc's tbf, see links.py; needs root. A missed bar is printed
as such and is no error; the exit code is 1 only if something could not be measured.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import models  # noqa: E402
from links import LinkError, Links, obstacle  # noqa: E402
from models import QUIET, Worker, WorkerError, print_machine, print_table, say_peer_is_missing, spread, text  # noqa: E402
from ranks import LEAST_STEPS, STEP_SECONDS, train_ddp, train_ours  # noqa: E402
from runs import plan, program  # noqa: E402

RANKS = 4
STAGES = 16  # k = 4 for each worker: smaller messages, which leave sooner; dp's buckets are as many
SLACK = 2 * STAGES // RANKS  # 2k: what is fresh has as long to arrive as all else
SHARE = 0.9  # of a step's forwards and backwards that sending twice the weights takes, at the rate of the bars
LR = 0.001  # as torch_training.py

TASKS = {
    "resnet18": {"model": "resnet18", "batch": 4, "image-size": 32, "classes": 10},
    "mlp": {"model": "mlp", "batch": 64, "image-size": 32, "classes": 10, "width": 1024, "depth": 8},
}
QUICK_TASK = {"model": "mlp", "batch": 16, "image-size": 32, "classes": 10, "width": 256, "depth": 4}
OURS = {
    "dp": {"rule": "dp"},
    "cdp-v1": {"rule": "cdp-v1"},
    "cdp-v2": {"rule": "cdp-v2"},
    f"cdp-v2, slack {SLACK}": {"rule": "cdp-v2", "freshness-slack": SLACK},
}
DDP = "PyTorch DDP, gloo"
JUDGED = ["cdp-v1", f"cdp-v2, slack {SLACK}"]
MATCHED = "matched"  # the rate that SHARE says
# Bits in a second, steps of a run, and whether it is measured in every round or in the first.
RATES = {
    MATCHED: (None, LEAST_STEPS + 4, True),
    "unlimited": (None, LEAST_STEPS + 2, False),
    "1 Gbit/s": (1e9, LEAST_STEPS + 2, False),
    "100 Mbit/s": (1e8, LEAST_STEPS - 2, False),
}
BURST_BAR = 0.25


# ---- measuring --------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    pass


class Bench:
    """Keeps each run's figures under its key, and makes only those runs that are missing."""

    def __init__(self, links, worker, options, state):
        self.links, self.worker, self.options, self.state = links, worker, options, state
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else None

    def keep(self):
        if self.options.json:
            with open(self.options.json + ".new", "w") as file:
                json.dump(self.state, file, indent=1)
            os.replace(self.options.json + ".new", self.options.json)

    def run(self, name, who, steps):
        task = TASKS[name]
        if who == DDP:
            return train_ddp(self.links, self.options.torch, task, steps)
        return train_ours(self.links, {**task, **OURS[who], "stages": STAGES, "lr": LR}, steps)

    def measure(self, name, number, label, rate, who, steps):
        key = f"{name}|{number}|{label}|{who}"
        if key in self.state["runs"]:
            return
        if self.until and time.monotonic() > self.until:
            raise OutOfTime
        before = [self.worker.ask("sgemm", threads, models.SGEMM_SECONDS)["gflops"] for threads in (1, models.THREADS)]
        self.links.limit(rate)
        try:
            result = self.run(name, who, steps)
        except (WorkerError, LinkError, subprocess.TimeoutExpired) as error:
            print(f"bench: {error}", file=sys.stderr, flush=True)
            self.state["errors"].append(f"{key}: {error}")
            return
        result.update(rate=rate, sgemm=before, quiet=before[1] >= QUIET * before[0])
        self.state["runs"][key] = result
        self.keep()
        print(f"{name} round {number + 1}, {label}{f' ({rate / 1e6:.0f} Mbit/s)' if label == MATCHED else ''}, {who}: "
              f"{1e3 * result['step_s']:.0f} ms, exposed {1e3 * result['exposed_s']:.0f} ms",
              file=sys.stderr, flush=True)  # fmt: skip

    def round(self, name, number, label, contenders):
        """All contenders in turn; who begins changes from round to round."""
        rate, steps, always = RATES[label]
        if not always and number > 0:
            return
        turn = number % len(contenders)
        weights = sum(p["bytes"] for p in plan(plan_settings(name))["parameters"])
        self.state["weights"][name] = weights
        rate = 2 * weights * 8 / (SHARE * STEP_SECONDS) if label == MATCHED else rate
        for who in contenders[turn:] + contenders[:turn]:
            self.measure(name, number, label, rate, who, steps)


# ---- printing ---------------------------------------------------------------------------------------------


def runs_of(state, name, label, who):
    """{round: figures}"""
    found = {}
    for key, figures in state["runs"].items():
        model, number, rate, contender = key.split("|")
        if (model, rate, contender) == (name, label, who):
            found[int(number)] = figures
    return found


def over_rounds(runs, figure, scale, digits=0):
    values = [r[figure] for r in runs.values() if r.get(figure) is not None]
    return text(spread(values), digits, scale) if values else "–"


def print_curve(state, name, contenders):
    weights = state["weights"][name]
    rows = []
    for label in RATES:
        for who in contenders:
            runs, free = runs_of(state, name, label, who), runs_of(state, name, "unlimited", who)
            if not runs:
                continue
            lost = {n: {"lost_s": r["step_s"] - free[0]["step_s"]} for n, r in runs.items() if 0 in free}
            shown = f"{runs[min(runs)]['rate'] / 1e6:.0f} Mbit/s: {SHARE}" if label == MATCHED else label
            rows.append([shown, who, over_rounds(runs, "step_s", 1e3), over_rounds(runs, "exposed_s", 1e3),
                         "–" if label == "unlimited" else over_rounds(lost, "lost_s", 1e3),
                         *(over_rounds(runs, key, 1e-6, 1) for key in ("carried_burst", "handed_burst", "handed_slot"))])  # fmt: skip
    print_table(
        f"{name}: {RANKS} ranks, {weights / 1e6:.1f} MB of weights, {STAGES} stages; forwards and backwards of a step take "
        f"{1e3 * STEP_SECONDS:.0f} ms. Milliseconds of a step; exposed: the step less its compute; lost: beside the same "
        f"without a limit. MB of all ranks together: by how much the traffic on the links ran ahead of its mean rate; the "
        f"same of what was handed to the network; what was handed to it within a slot. Median (min..max) of rounds.",
        ["rate", "who", "step ms", "exposed ms", "lost ms", "burst MB", "handed MB", "in a slot MB"],
        rows,
    )


def print_conditions(state):
    noisy = [key for key, run in state["runs"].items() if not run["quiet"]]
    print(f"\nConditions: {RANKS} ranks of one thread each on {len(os.sched_getaffinity(0))} cores; every task takes "
          f"its share of {STEP_SECONDS:.1f} s, so that ranks do not fight for cores. {len(state['runs'])} runs; before "
          f"{len(noisy)} of them two threads of SGEMM did not reach {QUIET} times one.")  # fmt: skip


def print_bars(state, names):
    print(f"\nBars, at the rate where sending twice the weights takes {SHARE} of a step's compute\n")
    outcome = []
    for name in names:
        dp = runs_of(state, name, MATCHED, "dp")
        for who in JUDGED:
            runs = runs_of(state, name, MATCHED, who)
            both = sorted(set(dp) & set(runs))
            if not both:
                print(f"  not run  {name}, {who}")
                continue
            bars = {
                "exposed over dp's": (spread(runs[n]["exposed_s"] / dp[n]["exposed_s"] for n in both), 1),
                "largest burst over dp's": (spread(runs[n]["carried_burst"] / dp[n]["carried_burst"] for n in both), BURST_BAR),
            }
            for what, (value, bound) in bars.items():
                passed = value["median"] < bound if bound == 1 else value["median"] <= bound
                relation = "less than" if bound == 1 else "at most"
                print(f"  {'PASS' if passed else 'MISS':<8} {name}, {who}: {what}: {text(value, 3)}, {relation} {bound}")
                outcome.append({"model": name, "who": who, "what": what, "value": value, "passed": passed})
    return outcome


# ---- the whole --------------------------------------------------------------------------------------------


def plan_settings(name):
    return {**TASKS[name], "rule": "cdp-v1", "placement": "replica", "workers": RANKS, "stages": STAGES}


def only_small():
    """Of the models and rates what shows whether all works. Returns the models."""
    TASKS["mlp"] = QUICK_TASK
    del RATES["1 Gbit/s"], RATES["100 Mbit/s"]
    return ["mlp"]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(TASKS), help="which, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--quick", action="store_true", help="one round of a small mlp: only whether it works")
    parser.add_argument("--json", metavar="FILE", help="all figures; what is there already is not measured again")
    parser.add_argument("--minutes", type=float, help="begin no run after that; --json goes on where it ended")
    parser.add_argument("--python", help="the Python that has PyTorch (default: /usr/bin/python3 or this one)")
    options = parser.parse_args()
    if options.quick:
        options.models, options.rounds = ",".join(only_small()), 1
    options.models = [name for name in options.models.split(",") if name]
    unknown = [name for name in options.models if name not in TASKS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the models are {', '.join(TASKS)}")
    if options.rounds < 1:
        parser.error("there must be a round")
    options.torch = models.find_python(options.python)
    return options


def versions_of(python):
    asked = "import json, torch, torchvision as v; print(json.dumps([torch.__version__, v.__version__]))"
    return dict(zip(("torch", "torchvision"), json.loads(subprocess.check_output([python, "-c", asked]))))


def check():
    """Skips, loudly, where there can be no such network; the exit code 77 says skipped, as test runners have it."""
    worker = os.path.join(os.path.dirname(program()), "bench", "models")
    if not os.access(worker, os.X_OK):
        sys.exit(f"{worker} is not there: `make bench-network` builds it")
    why = obstacle()
    if why:
        for line in ("*" * 100, f"* SKIPPED: the bench of networks cannot run here: {why}", "*" * 100):
            print(line)
        sys.exit(77)
    return worker


def read_state(path):
    if path and os.path.exists(path):
        with open(path) as file:
            return {**json.load(file), "errors": []}
    return {"runs": {}, "weights": {}, "errors": []}


def measure(bench, options, contenders):
    try:
        for number in range(options.rounds):
            for label in RATES:
                for name in options.models:
                    bench.round(name, number, label, contenders)
    except OutOfTime:
        print("bench: out of time; the same command with --json goes on from here", file=sys.stderr, flush=True)


def main():
    options = parse_options()
    path = check()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that namespaces are removed
    contenders = [*OURS, *([DDP] if options.torch else [])]
    if not options.torch:
        say_peer_is_missing()
    state = read_state(options.json)
    worker = Worker([path])
    try:
        fma = [[worker.ask("fma", threads, models.SGEMM_SECONDS)["gflops"] for threads in (1, models.THREADS)]]
        with Links(RANKS) as links:
            bench = Bench(links, worker, options, state)
            measure(bench, options, contenders)
        fma.append([worker.ask("fma", threads, models.SGEMM_SECONDS)["gflops"] for threads in (1, models.THREADS)])
        state["machine"] = models.machine(worker, {})
    finally:
        worker.close()
    if options.torch:
        state["machine"].update(versions_of(options.torch))
    print_machine(state["machine"], *fma)
    print_conditions(state)
    names = [name for name in options.models if name in state["weights"]]
    for name in names:
        print_curve(state, name, contenders)
    state["bars"] = print_bars(state, names)
    bench.keep()
    return 1 if state["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
