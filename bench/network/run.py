#!/usr/bin/env python3
"""What does a network of a given rate cost each rule, an overlapped all-reduce and PyTorch's DDP? See README.md.

    BUILD_DIR=build bench/network/run.py [--models a,b] [--only NAME] [--who A;B] [--rounds N] [--quick] [--json FILE] [--minutes M]

Runs four ranks in network namespaces whose links are limited by tc's tbf, see links.py; needs root. A missed target is
printed as such and is not an error; the exit code is 1 only if something could not be measured.
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from links import LinkError, Links, obstacle  # noqa: E402
from tables import print_machine, print_table, spread, text  # noqa: E402
from workers import QUIET, SGEMM_SECONDS, THREADS, Worker, WorkerError, find_python, machine  # noqa: E402
from workers import say_peer_is_missing  # noqa: E402
from ranks import LEAST_STEPS, STEP_SECONDS, train_ddp, train_ours  # noqa: E402
from runs import plan, program  # noqa: E402

RANKS = 4
STAGES = 16  # k = 4 for each worker: smaller messages, which leave earlier; dp has as many buckets
# Slacks of cdp-v2 that are measured, and the one that is judged. With 8 = 2k, fresh weights have as long to arrive as
# everything else; with 10, traffic is as even as that of cdp-v1.
SLACKS, SLACK = (8, 10), 10
SHARE = 0.9  # at the rate of the targets, sending the weights twice takes this share of a step's computation
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
    **{f"cdp-v2, slack {slack}": {"rule": "cdp-v2", "freshness-slack": slack} for slack in SLACKS},
}
DDP = "PyTorch DDP, gloo"
JUDGED = ["cdp-v1", f"cdp-v2, slack {SLACK}"]
# The same with unpaced links at the matched rate, to show what pacing is worth.
UNPACED = {f"{who}, not paced": {**OURS[who], "pace-links": "off"} for who in JUDGED}
# Bits per second (None: the matched rate, or no limit), steps of a run, and whether it is measured in every round or only
# in the first; for the varied ones, options of the program, and whether a rank pauses for a second.
Condition = collections.namedtuple("Condition", "rate steps always settings pause", defaults=({}, False))
MATCHED = "matched"  # the rate that follows from SHARE
SATURATED = "100 Mbit/s"
RATES = {
    MATCHED: Condition(None, LEAST_STEPS + 4, True),
    "unlimited": Condition(None, LEAST_STEPS + 2, False),
    "1 Gbit/s": Condition(1e9, LEAST_STEPS + 2, False),
    SATURATED: Condition(1e8, LEAST_STEPS, False),
}
VARIED = {  # at the matched rate; dp and the judged rules
    # Many steps, over which the random times of the four ranks even out.
    "times of tasks ±20 %": Condition(None, LEAST_STEPS + 40, True, {"step-jitter": 0.2}),
    "a rank pauses for 1 s": Condition(None, LEAST_STEPS + 4, True, {}, True),
}
BURST_BAR = 0.25
SATURATED_BAR = 1.04


# ---- measuring --------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    pass


class Bench:
    """Keeps the figures of each run by key, and makes only the missing runs."""

    def __init__(self, links, worker, options, state):
        self.links, self.worker, self.options, self.state = links, worker, options, state
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else None

    def keep(self):
        if self.options.json:
            with open(self.options.json + ".new", "w") as file:
                json.dump(self.state, file, indent=1)
            os.replace(self.options.json + ".new", self.options.json)

    def run(self, name, who, condition):
        task = TASKS[name]
        if who == DDP:
            return train_ddp(self.links, self.options.torch, task, condition.steps)
        settings = {**task, **{**OURS, **UNPACED}[who], "stages": STAGES, "lr": LR, **condition.settings}
        return train_ours(self.links, settings, condition.steps, condition.pause)

    def measure(self, name, number, label, rate, who, condition):
        key = f"{name}|{number}|{label}|{who}"
        if key in self.state["runs"]:
            return
        if self.until and time.monotonic() > self.until:
            raise OutOfTime
        before = [self.worker.ask("sgemm", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]
        self.links.limit(rate)
        try:
            more = {"goodput": self.links.goodput()} if label == SATURATED else {}
            result = self.run(name, who, condition)
        except (WorkerError, LinkError, subprocess.TimeoutExpired) as error:
            print(f"bench: {error}", file=sys.stderr, flush=True)
            self.state["errors"].append(f"{key}: {error}")
            return
        if label == SATURATED and who in OURS:
            more["predicted_s"] = predict(name, who, rate)
        result.update(more, rate=rate, sgemm=before, quiet=before[1] >= QUIET * before[0])
        self.state["runs"][key] = result
        self.keep()
        print(f"{name} round {number + 1}, {label}{f' ({rate / 1e6:.0f} Mbit/s)' if label == MATCHED else ''}, {who}: "
              f"{1e3 * result['step_s']:.0f} ms, exposed {1e3 * result['exposed_s']:.0f} ms, "
              f"burst {1e-6 * result['carried_burst']:.1f} MB", file=sys.stderr, flush=True)  # fmt: skip

    def round(self, name, number, label, contenders):
        """Runs all contenders in turn, starting with another one in each round."""
        condition = {**RATES, **VARIED}[label]
        if not condition.always and number > 0:
            return
        contenders = choose(label, contenders)
        if not contenders:
            return
        turn = number % len(contenders)
        weights = sum(p["bytes"] for p in plan(plan_settings(name))["parameters"])
        self.state["weights"][name] = weights
        rate = matched_rate(weights) if label == MATCHED or label in VARIED else condition.rate
        for who in contenders[turn:] + contenders[:turn]:
            self.measure(name, number, label, rate, who, condition)


def matched_rate(weights):
    return 2 * weights * 8 / (SHARE * STEP_SECONDS)


def choose(label, contenders):
    if label in VARIED:
        return ["dp", *JUDGED]
    return [who for who in contenders if who not in UNPACED or label == MATCHED]


# ---- predicting -------------------------------------------------------------------------------------------


def predict(name, who, rate):
    """The step time that `carousel plan` predicts for devices that compute a step in STEP_SECONDS."""
    cluster = {"name": "the bench's network", "flops": 1e9, "memory": 1e12,
               "between": {"bandwidth": rate / 8, "latency": 1e-4}}  # fmt: skip
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as file:
        for _ in range(2):  # the first pass finds how much there is to compute
            file.seek(0)
            file.truncate()
            json.dump(cluster, file)
            file.flush()
            timing = plan({**plan_settings(name), **OURS[who], "cluster": file.name})["timing"]
            cluster["flops"] *= timing["compute_s"] / STEP_SECONDS
    return timing["step_s"]


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
        for who in choose(label, contenders):
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


def growth(state, name, label, who):
    """Seconds by which a step is longer than undisturbed ones, by round."""
    calm, varied = runs_of(state, name, MATCHED, who), runs_of(state, name, label, who)
    return {n: varied[n]["step_s"] - calm[n]["step_s"] for n in sorted(set(calm) & set(varied))}


def print_varied(state, names):
    """Prints and returns the results, as print_bars does."""
    rows, outcome = [], []
    for name in names:
        for label in VARIED:
            dp = growth(state, name, label, "dp")
            for who in ["dp", *JUDGED]:
                found = growth(state, name, label, who)
                both = sorted(set(found) & set(dp))
                if both:
                    more = spread(found[n] - dp[n] for n in both)
                    passed = who == "dp" or more["median"] <= 0
                    rows.append([name, label, who, text(spread(found.values()), 0, 1e3),
                                 "–" if who == "dp" else f"{text(more, 0, 1e3)}{'' if passed else ' MISS'}"])  # fmt: skip
                    outcome.append({"model": name, "who": who, "what": label, "value": more, "passed": passed})
    if rows:
        print_table("Disturbed: milliseconds that a step is longer than undisturbed ones of the same rule and round, at the "
                    "matched rate; and by how much more than dp's, which must not be above 0. Median (min..max) of rounds.",
                    ["model", "disturbed by", "who", "longer ms", "more than dp ms"], rows)  # fmt: skip
    return outcome


def print_saturated(state, names):
    """Saturated networks: the cycle's step compared with the traffic of its busiest links, and with the plan."""
    rows, outcome = [], []
    for name in names:
        measured = {who: runs_of(state, name, SATURATED, who).get(0) for who in ["dp", *JUDGED]}
        if SATURATED not in RATES or not all(measured.values()):
            continue
        predicted = {who: run["predicted_s"] for who, run in measured.items()}
        for who, run in measured.items():
            least = 2 * state["weights"][name] / run["goodput"]
            over, better = run["step_s"] / least, predicted["dp"] < predicted[who]
            rows.append([name, who, f"{run['step_s']:.2f}", f"{8e-6 * run['goodput']:.1f}", f"{over:.3f}",
                         f"{predicted[who]:.2f}", "–" if who == "dp" else "yes" if better else "no"])  # fmt: skip
            if who != "dp":
                value = spread([over])
                outcome.append({"model": name, "who": who, "what": "step over 2 Ψ_P, 100 Mbit/s", "value": value,
                                "passed": over <= SATURATED_BAR})  # fmt: skip
                outcome.append({"model": name, "who": who, "what": "the plan says that dp is better, 100 Mbit/s",
                                "value": spread([predicted["dp"] / predicted[who]]), "passed": better})  # fmt: skip
    if rows:
        print_table(f"Saturated, {SATURATED}: seconds of a step; Mbit/s that a program gets through a link (TCP); the step over "
                    f"the time in which it carries 2 Ψ_P, for the cycle at most {SATURATED_BAR}; seconds that `carousel plan "
                    f"--cluster` predicts, and whether it says that dp is better.",
                    ["model", "who", "step s", "goodput", "over 2 Ψ_P", "predicted s", "dp is better"], rows)  # fmt: skip
    return outcome


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
            free = runs_of(state, name, MATCHED, f"{who}, not paced")
            alike = sorted(set(free) & set(runs))
            if alike:
                bars["step over that of links that are not paced"] = (
                    spread(runs[n]["step_s"] / free[n]["step_s"] for n in alike), 1.01)  # fmt: skip
                bars["burst over that of links that are not paced"] = (
                    spread(runs[n]["carried_burst"] / free[n]["carried_burst"] for n in alike), 1)  # fmt: skip
            for what, (value, bound) in bars.items():
                passed = value["median"] < bound if bound == 1 else value["median"] <= bound
                relation = "less than" if bound == 1 else "at most"
                print(f"  {'PASS' if passed else 'MISS':<8} {name}, {who}: {what}: {text(value, 3)}, {relation} {bound}")
                outcome.append({"model": name, "who": who, "what": what, "value": value, "passed": passed})
    return outcome


# ---- main -------------------------------------------------------------------------------------------------


def plan_settings(name):
    return {**TASKS[name], "rule": "cdp-v1", "placement": "replica", "workers": RANKS, "stages": STAGES}


def only_small():
    """Reduces models and rates to what shows that everything works. Returns the models."""
    TASKS["mlp"] = QUICK_TASK
    del RATES["1 Gbit/s"], RATES[SATURATED]
    return ["mlp"]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(TASKS), help="which, separated by commas (default: all)")
    parser.add_argument("--only", default="", help="conditions whose names have this in them, e.g. matched (default: all)")
    parser.add_argument("--who", default="", help="which of the contenders, separated by semicolons (default: all)")
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
    unknown = [who for who in options.who.split(";") if who and who not in [*OURS, *UNPACED, DDP]]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the contenders are {'; '.join([*OURS, *UNPACED, DDP])}")
    if options.rounds < 1:
        parser.error("there must be a round")
    options.torch = find_python(options.python)
    return options


def versions_of(python):
    asked = "import json, torch, torchvision as v; print(json.dumps([torch.__version__, v.__version__]))"
    return dict(zip(("torch", "torchvision"), json.loads(subprocess.check_output([python, "-c", asked]))))


def check():
    """Skips with a message if such a network cannot be created. Exit code 77 means skipped to test runners."""
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
            for label in [*RATES, *VARIED]:
                if options.only not in label:
                    continue
                for name in options.models:
                    bench.round(name, number, label, contenders)
    except OutOfTime:
        print("bench: out of time; the same command with --json goes on from here", file=sys.stderr, flush=True)


def main():
    options = parse_options()
    path = check()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that namespaces are removed on exit
    contenders = [*OURS, *UNPACED, *([DDP] if options.torch else [])]
    if options.who:
        contenders = [who for who in contenders if who in options.who.split(";")]
    if not options.torch:
        say_peer_is_missing()
    state = read_state(options.json)
    worker = Worker([path])
    try:
        fma = [[worker.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]]
        with Links(RANKS) as links:
            bench = Bench(links, worker, options, state)
            measure(bench, options, contenders)
        fma.append([worker.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)])
        state["machine"] = machine(worker, {})
    finally:
        worker.close()
    if options.torch:
        state["machine"].update(versions_of(options.torch))
    print_machine(state["machine"], *fma)
    print_conditions(state)
    names = [name for name in options.models if name in state["weights"]]
    for name in names:
        print_curve(state, name, contenders)
    state["bars"] = print_saturated(state, names) + print_varied(state, names) + print_bars(state, names)
    bench.keep()
    return 1 if state["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
