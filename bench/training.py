#!/usr/bin/env python3
"""How fast is a whole training step, under each rule and compared with PyTorch? See README.md.

    BUILD_DIR=build bench/training.py [--rounds N] [--steps T] [--minutes M] [--quick] [--json FILE]

Ours is the program itself, a new process for each measurement. PyTorch's processes (torch_training.py), one for each
setting, stay alive. All take turns in rounds. Rounds in which the machine was not quiet are discarded and repeated while
there is time. A missed target is printed as such and is not an error; the exit code is 1 only if something could not be
measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from models import Bench  # noqa: E402
from tables import print_machine, print_table, rounds_text, spread, text, was_quiet  # noqa: E402
from workers import AUTOCAST, ENOUGH_QUIET, HERE, QUIET, SETTINGS, SETTLE_SECONDS, SGEMM_SECONDS  # noqa: E402
from workers import THREADS, Worker, WorkerError, find_python, machine, may_use, say_peer_is_missing  # noqa: E402
from workers import survivable  # noqa: E402
from runs import RunWitness, plan, train  # noqa: E402

MAIN = "cdp-v2"
DIRECT = "cdp-v2, direct convolutions"  # shows the gain of Winograd's algorithm
BF16 = "cdp-v2, bf16"  # also compared with PyTorch's autocast
WORKERS = 4
LR = 0.001  # as torch_training.py

# Name: micro-batch, image size and classes, or sequence length; steps of a run of ours (without the first and the last);
# rules.
TASKS = {
    "resnet18": {"batch": 16, "image": 32, "classes": 10, "steps": 6,
                 "rules": (MAIN, DIRECT, "dp", "accumulate", BF16)},
    "resnet20": {"batch": 32, "image": 32, "classes": 10, "steps": 12, "rules": (MAIN, DIRECT)},
    "resnet50": {"batch": 4, "image": 224, "classes": 1000, "steps": 4, "rules": (MAIN, DIRECT, BF16)},
    "vit-b16": {"batch": 2, "image": 224, "classes": 1000, "steps": 4, "rules": (MAIN, BF16)},
    "gpt2": {"batch": 1, "seq": 256, "steps": 4, "rules": (MAIN, BF16)},
}
DDP_STEPS = 2
# How the time of a step grows with the number of workers, at a fixed micro-batch.
GROWTH_TASK, GROWTH_WORKERS, GROWTH_ROUNDS = "resnet18", (2, 4, 8), 2

# Our targets: task, figure, bound, whether that is a maximum (else a minimum), description.
BARS = [
    ("resnet18", "own_ratio", 0.97, False, "cdp-v2 over the faster of dp and accumulate"),
    ("resnet18", "ratio", 2.0, False, "cdp-v2 over PyTorch"),
    ("resnet18", "rss_ratio", 0.7, True, "peak of resident memory over PyTorch's in one process"),
    ("resnet18", "executor", 0.01, True, "the executor's own share of the threads' time"),
    ("resnet18", "growth", 1.05, True, "a worker's share of the step with 8 workers over that with 2"),
    ("vit-b16", "ratio", 1.4, False, "cdp-v2 over PyTorch"),
    ("gpt2", "ratio", 1.4, False, "cdp-v2 over PyTorch"),
    ("vit-b16", "bf16_own", 1.5, False, "bf16 over fp32"),
    ("gpt2", "bf16_own", 1.5, False, "bf16 over fp32"),
    ("resnet50", "bf16_own", 1.3, False, "bf16 over fp32"),
    ("vit-b16", "bf16_activations", 0.55, True, "bf16's peak of activations over that of fp32"),
    ("gpt2", "bf16_activations", 0.55, True, "bf16's peak of activations over that of fp32"),
    ("resnet50", "bf16_activations", 0.55, True, "bf16's peak of activations over that of fp32"),
    ("vit-b16", "bf16_ratio", 1.2, False, "bf16 over the better of PyTorch's fp32 and bf16 autocast"),
    ("gpt2", "bf16_ratio", 1.2, False, "bf16 over the better of PyTorch's fp32 and bf16 autocast"),
    ("resnet50", "bf16_ratio", 1.4, False, "bf16 over the better of PyTorch's fp32 and bf16 autocast"),
    ("resnet18", "bf16_ratio", 2.0, False, "bf16 over the better of PyTorch's fp32 and bf16 autocast"),
]


def settings_of(name, rule, workers, steps):
    task = TASKS[name]
    shape = {option: task[key] for option, key in (("image-size", "image"), ("classes", "classes"), ("seq-len", "seq"))
             if key in task}  # fmt: skip
    special = {DIRECT: {"rule": MAIN, "convolutions": "direct"}, BF16: {"rule": MAIN, "precision": "bf16"}}
    how = special.get(rule, {"rule": rule})
    return {"model": name, "batch": task["batch"], **shape, "workers": workers, "threads": THREADS, "steps": steps,
            "lr": LR, **how}  # fmt: skip


def train_ours(name, rule, workers, steps):
    time.sleep(SETTLE_SECONDS)
    summary = train(settings_of(name, rule, workers, steps))
    executor, memory = summary["executor"], summary["memory"]
    return {
        "samples_per_s": workers * TASKS[name]["batch"] / summary["step_s"],
        "step_s": summary["step_s"],
        "executor": executor["choosing_s"] / (executor["wall_s"] * THREADS),
        "waiting": executor["waiting_s"] / (executor["wall_s"] * THREADS),
        "rss_peak_bytes": memory["rss_peak_bytes"],
        "activations_peak_bytes": memory["activations_peak_bytes"],
    }


# ---- the peer ---------------------------------------------------------------------------------------------


def peer_command(python):
    return [python, os.path.join(HERE, "torch_training.py")]


def start_peers(python, name):
    # Debian's build of PyTorch uses only half of the processors by default, so set the number explicitly.
    threads = {"OMP_NUM_THREADS": str(THREADS), "OPENBLAS_NUM_THREADS": str(THREADS)}
    settings = survivable(python, {**SETTINGS, **(AUTOCAST if BF16 in TASKS[name]["rules"] else {})})
    return {setting: Worker(peer_command(python), {**threads, **extra}) for setting, extra in settings.items()}


def peer_words(name, batch, threads):
    task = TASKS[name]
    return (name, batch, task.get("image", 0), task.get("classes", 0), task.get("seq", 0), threads)


def check_parameters(name, warm):
    """Checks that both sides train the same network."""
    settings = settings_of(name, MAIN, WORKERS, 0)
    asked = {key: value for key, value in settings.items() if key not in ("steps", "lr", "rule")}
    # The plan's list includes running statistics, which PyTorch does not count as parameters.
    trained = [p for p in plan(asked)["parameters"] if not p["name"].endswith(("running_mean", "running_var"))]
    parameters = sum(p["bytes"] for p in trained) // 4
    for setting, theirs in warm.items():
        if theirs["parameters"] != parameters or theirs["threads"] != THREADS:
            raise WorkerError(f"{name}: PyTorch ({setting}) has {theirs}, ours {parameters}: not the same task")


def run_ddp(python, name, steps):
    """DDP for comparison: a process for each worker, with one thread each, as its launcher sets it."""
    task = TASKS[name]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as directory:
        meet = os.path.join(directory, "meet")
        words = [WORKERS, meet, *peer_words(name, task["batch"], 1), steps]
        commands = [peer_command(python) + [str(word) for word in (rank, *words)] for rank in range(WORKERS)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks = [subprocess.Popen(command, env=env, **pipes) for command in commands]
        outputs = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise WorkerError(f"DDP: {''.join(errors for _, errors in outputs).strip()[-500:]}")
    answers = [json.loads(output) for output, _ in outputs]
    seconds = max(answer["seconds"] for answer in answers)
    return {
        "samples_per_s": WORKERS * task["batch"] * steps / seconds,
        "rss_peak_bytes": sum(answer["rss_peak_bytes"] for answer in answers),
    }


# ---- measuring --------------------------------------------------------------------------------------------


class TrainingBench(Bench):
    """Rounds of training, judged quiet or not as in models.py."""

    def watched(self, workers, measure):
        """The dictionary that `measure` returns, with the state of the machine meanwhile."""
        witness = self.witness(workers)
        before = self.sgemm()
        result = {**measure(), "before": before, "after": self.sgemm(), "others": witness.cores()}
        undisturbed = result["others"] <= may_use(len(os.sched_getaffinity(0)))
        result["quiet"] = undisturbed and all(b >= QUIET * a for a, b in (before, result["after"]))
        return result

    def witness(self, workers):
        return RunWitness([self.ours, *workers])

    def repeat(self, what, rounds, measure, workers=()):
        """Runs rounds until enough were quiet or time is up. Returns those that count, and their number."""
        quiet, loud = [], []
        while len(quiet) < rounds:
            count = len(quiet) + len(loud)
            if count >= rounds and (time.monotonic() >= self.deadline or len(loud) >= 2 * rounds):
                break
            result = self.watched(workers, lambda: measure(count))
            (quiet if result["quiet"] else loud).append(result)
            progress(what, count + 1, result)
        kept = quiet if len(quiet) >= min(ENOUGH_QUIET, rounds) else quiet + loud
        facts = {"rounds": len(kept), "thrown_away": len(quiet) + len(loud) - len(kept), "quiet_rounds": len(quiet)}
        return kept, {**facts, "quiet": len(quiet) >= rounds}

    def compare(self, name):
        """Measures our rules and PyTorch in turn."""
        steps = self.options.steps or TASKS[name]["steps"]
        self.peers = start_peers(self.options.torch, name) if self.options.torch else {}
        try:
            about = {setting: peer.ask("about") for setting, peer in self.peers.items()}
            words = peer_words(name, WORKERS * TASKS[name]["batch"], THREADS)
            warm = {setting: peer.ask("warm", *words) for setting, peer in self.peers.items()}
            check_parameters(name, warm)
            workers = self.peers.values()
            kept, facts = self.repeat(name, self.options.rounds, lambda n: self.round(name, n, steps), workers)
        finally:
            for peer in self.peers.values():
                peer.close()
        return {"summary": {**summarize(name, kept, list(about)), **facts}, "kept": kept, "about": about, "warm": warm}

    def round(self, name, number, steps):
        tasks = {rule: lambda rule=rule: train_ours(name, rule, WORKERS, steps) for rule in TASKS[name]["rules"]}
        for setting, peer in self.peers.items():
            tasks[setting] = lambda peer=peer: self.ask_peer(name, peer)
        # Rotate the order: the first one always finds the machine as the check left it.
        order = list(tasks)
        turn = number % len(order)
        return {key: tasks[key]() for key in order[turn:] + order[:turn]}

    def ask_peer(self, name, peer):
        time.sleep(SETTLE_SECONDS)
        words = peer_words(name, WORKERS * TASKS[name]["batch"], THREADS)
        return peer.ask("run", *words, self.options.seconds)

    def growth(self):
        """Seconds of a step for each number of workers."""
        steps = self.options.steps or TASKS[GROWTH_TASK]["steps"]

        def measure(_):
            return {str(workers): train_ours(GROWTH_TASK, MAIN, workers, steps) for workers in GROWTH_WORKERS}

        kept, facts = self.repeat("growth", min(GROWTH_ROUNDS, self.options.rounds), measure)
        summary = {str(workers): spread(r[str(workers)]["step_s"] for r in kept) for workers in GROWTH_WORKERS}
        few, many = GROWTH_WORKERS[0], GROWTH_WORKERS[-1]
        summary["growth"] = spread(r[str(many)]["step_s"] / many / (r[str(few)]["step_s"] / few) for r in kept)
        return {"summary": {**summary, **facts}, "kept": kept}


def progress(what, number, result):
    one, two = result["after"]
    rates = ", ".join(f"{k} {v['samples_per_s']:.1f}" for k, v in result.items() if isinstance(v, dict))
    mark = "" if result["quiet"] else "  NOT QUIET"
    others = f"others used {result['others']:.2f} cores"
    print(f"{what} round {number}: {rates}; SGEMM {one:.0f}, {two:.0f}; {others}{mark}", file=sys.stderr, flush=True)


def summarize(name, rounds, settings):
    rules = TASKS[name]["rules"]

    def rates(key):
        return spread(r[key]["samples_per_s"] for r in rounds)

    def over(best, ours=MAIN):
        return spread(r[ours]["samples_per_s"] / r[best]["samples_per_s"] for r in rounds)

    def better(settings):
        return max(settings, key=lambda setting: s[setting]["median"])

    s = {key: rates(key) for key in [*rules, *settings]}
    s["rss"] = {key: max(r[key]["rss_peak_bytes"] for r in rounds) for key in [*rules, *settings]}
    s["activations"] = {rule: max(r[rule]["activations_peak_bytes"] for r in rounds) for rule in rules}
    s["executor"] = spread(r[MAIN]["executor"] for r in rounds)
    s["waiting"] = spread(r[MAIN]["waiting"] for r in rounds)
    if DIRECT in rules:
        s["direct_ratio"] = over(DIRECT)
    if BF16 in rules:
        s["bf16_own"] = over(MAIN, BF16)
        s["bf16_activations"] = spread(
            r[BF16]["activations_peak_bytes"] / r[MAIN]["activations_peak_bytes"] for r in rounds
        )
    if BF16 in rules and settings:
        s["bf16_best_setting"] = better(settings)
        s["bf16_ratio"] = over(s["bf16_best_setting"], BF16)
    others = [rule for rule in rules if rule not in (MAIN, DIRECT, BF16)]
    if others:
        s["own_best"] = max(others, key=lambda rule: s[rule]["median"])
        s["own_ratio"] = over(s["own_best"])
    floats = [setting for setting in settings if setting in SETTINGS]
    if floats:
        s["best_setting"] = better(floats)
        s["ratio"] = over(s["best_setting"])
        least = min(s["rss"][setting] for setting in floats)
        s["rss_ratio"] = spread(r[MAIN]["rss_peak_bytes"] / least for r in rounds)
    return s


# ---- printing ---------------------------------------------------------------------------------------------


def print_speeds(results, ddp):
    rows = []
    for name, result in results.items():
        s = result["summary"]
        for key in [*TASKS[name]["rules"], *result["about"]]:
            ours = key in TASKS[name]["rules"]
            who = key if ours else f"PyTorch, {key}"
            marked = [s.get(best) for best in ("best_setting", "own_best", "bf16_best_setting")]
            mark = "*" if key in marked else ""
            activations = f"{s['activations'][key] / 1e6:.0f}" if ours else "–"
            rows.append([name, who, text(s[key]) + mark, f"{s['rss'][key] / 1e6:.0f}", activations, rounds_text(s)])
        if ddp.get(name):
            rows.append([name, f"PyTorch, DDP, {WORKERS} processes", f"{ddp[name]['samples_per_s']:.2f}",
                         f"{ddp[name]['rss_peak_bytes'] / 1e6:.0f} in all", "–", "1, for the record"])  # fmt: skip
    print_table(
        f"A whole step of training, {THREADS} threads: samples/s as median (min..max), peaks of resident memory and of "
        "activations in MB. * is the better one of the others, which the ratios are with: in fp32, and in either "
        "precision for bf16.",
        ["model", "who", "samples/s", "resident", "activations", "rounds"],
        rows,
    )
    for name, result in results.items():
        s = result["summary"]
        begun = min((about["rss_peak_bytes"] for about in result["about"].values()), default=None)
        libraries = f"; of PyTorch's resident memory, {begun / 1e6:.0f} MB are there at its start" if begun else ""
        print(f"\n{name}, {MAIN}: threads waited {text(s['waiting'], 1, 100, ' %')} of their time, "
              f"the executor took {text(s['executor'], 2, 100, ' %')}{libraries}.")  # fmt: skip
        ratios = [f"{text(s[key], 2)} x {what}" for key, what in (("ratio", "PyTorch"), ("direct_ratio", "direct"),
                  ("bf16_own", "as fast in bf16"), ("bf16_ratio", "PyTorch's better precision in bf16"))
                  if key in s]  # fmt: skip
        print(f"{name}, {MAIN}: {', '.join(ratios)}.")


def print_growth(growth):
    s = growth["summary"]
    few = GROWTH_WORKERS[0]
    base = s[str(few)]["median"] / few
    rows = [[str(n), text(s[str(n)], 3), f"{s[str(n)]['median'] / n / base:.3f}"] for n in GROWTH_WORKERS]
    print_table(
        f"{GROWTH_TASK}, {MAIN}: seconds of a step, and a worker's share of them over that with {few} workers "
        f"(1 is linear growth). Rounds: {rounds_text(s)}.",
        ["workers", "seconds", "worker's share"],
        rows,
    )


def print_bars(summaries):
    outcome = []
    print("\nBars\n")
    for name, figure, bound, is_most, what in BARS:
        s = summaries.get((name, figure))
        if not s or figure not in s:
            print(f"  not run  {name}: {what}")
            continue
        value = s[figure]
        passed = value["median"] <= bound if is_most else value["median"] >= bound
        doubt, mark = ("", "") if was_quiet(s) else ("?", "  (machine was NOT QUIET)")
        verdict = ("PASS" if passed else "MISS") + doubt
        print(f"  {verdict:<8} {name}: {what}: {text(value, 4)}, at {'most' if is_most else 'least'} {bound}{mark}")
        outcome.append({"model": name, "figure": figure, "bound": bound, "value": value, "passed": passed})
    return outcome


# ---- main -------------------------------------------------------------------------------------------------


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(TASKS), help="which, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="quiet rounds (default 5)")
    parser.add_argument("--steps", type=int, help="of each run of ours (default: each model's own)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of PyTorch's, at least a step (default 5)")
    parser.add_argument("--minutes", type=float, default=14, help="after which no round is repeated (default 14)")
    parser.add_argument("--quick", action="store_true", help="one round of a tiny resnet18: only whether it works")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--python", help="the Python that has PyTorch (default: /usr/bin/python3 or this one)")
    options = parser.parse_args()
    if options.quick:
        options.models, options.rounds, options.steps, options.seconds, options.minutes = "resnet18", 1, 3, 0.1, 0
        TASKS["resnet18"]["batch"] = 2
    options.models = [name for name in options.models.split(",") if name]
    unknown = [name for name in options.models if name not in TASKS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the models are {', '.join(TASKS)}")
    if options.rounds < 1 or options.seconds < 0 or (options.steps is not None and options.steps < 3):
        parser.error("there must be a round, 3 steps (the first and the last do not count), and no negative time")
    options.torch = find_python(options.python)
    return options


def attempt(errors, measure, *arguments):
    """Runs a measurement; a failure is reported, but does not end the bench."""
    try:
        return measure(*arguments)
    except WorkerError as error:
        print(f"bench: {error}", file=sys.stderr)
        errors.append(str(error))
        return None


def main():
    options = parse_options()
    program = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "bench", "models")
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is not there: `make bench-train` builds it")
    if not options.torch:
        say_peer_is_missing()
    worker, errors, growth, ddp = Worker([program]), [], None, {}
    try:
        bench = TrainingBench(worker, {}, options)
        fma = [[worker.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]]
        results = {name: attempt(errors, bench.compare, name) for name in options.models}
        if GROWTH_TASK in options.models:
            growth = attempt(errors, bench.growth)
        if options.torch:
            ddp = {name: attempt(errors, run_ddp, options.torch, name, DDP_STEPS) for name in options.models}
        fma.append([worker.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)])
        about = machine(worker, {})
    finally:
        worker.close()
    results = {name: result for name, result in results.items() if result}
    for result in results.values():
        about.update(*[{k: v for k, v in a.items() if k != "rss_peak_bytes"} for a in result["about"].values()][:1])
    print_machine(about, *fma)
    print_speeds(results, ddp)
    summaries = {(name, bar[1]): result["summary"] for name, result in results.items() for bar in BARS}
    if growth:
        print_growth(growth)
        summaries[GROWTH_TASK, "growth"] = growth["summary"]
    bars = print_bars(summaries)
    if not options.torch:
        say_peer_is_missing()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "fma": fma, "results": results, "growth": growth, "ddp": ddp, "bars": bars},
                      file, indent=1)  # fmt: skip
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
