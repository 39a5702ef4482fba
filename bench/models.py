#!/usr/bin/env python3
"""How fast do our models run forward and backward, compared with SGEMM and PyTorch? See README.md.

    BUILD_DIR=build bench/models.py [--models a,b] [--rounds N] [--seconds S] [--minutes M] [--json FILE]

Drives the worker (models.c) and PyTorch processes (torch_peer.py), one for each setting, in interleaved rounds. Some
models also run in bf16, with a second worker and PyTorch's autocast. Rounds in which the machine was not quiet are
discarded and repeated while there is time. A missed target is printed as such and is not an error; the exit code is 1
only if something could not be measured.
"""

import argparse
import json
import os
import sys
import time

sys.dont_write_bytecode = True
from tables import print_machine, print_table, rounds_text, spread, text, was_quiet  # noqa: E402
from workers import AUTOCAST, ENOUGH_QUIET, HERE, QUIET, SETTINGS, SETTLE_SECONDS, SGEMM_SECONDS, THREADS  # noqa: E402
from workers import Witness, Worker, WorkerError  # noqa: E402
from workers import find_python, machine, may_use, say_peer_is_missing, survivable  # noqa: E402

# Name: micro-batch, image size, classes, sequence length; 0 stands for the model's own.
MODELS = {
    "mlp": (64, 32, 10, 0),
    "resnet20": (32, 32, 10, 0),
    "resnet18": (16, 32, 10, 0),
    "resnet50": (4, 224, 1000, 0),
    "vit-tiny": (16, 32, 10, 0),
    "vit-b16": (2, 224, 1000, 0),
    "gpt2-nano": (8, 0, 0, 128),
    "gpt2": (1, 0, 0, 256),
}

# Our targets: model, figure, and the least value.
BARS = [
    ("resnet18", "ratio", 1.15),
    ("resnet18", "conv_share", 0.75),
    ("vit-b16", "ratio", 1.4),
    ("gpt2", "ratio", 1.4),
    ("vit-b16", "bf16_own", 1.5),
    ("gpt2", "bf16_own", 1.5),
    ("resnet50", "bf16_own", 1.3),
    ("vit-b16", "bf16_ratio", 1.2),
    ("gpt2", "bf16_ratio", 1.2),
    ("resnet50", "bf16_ratio", 1.4),
    ("resnet18", "bf16_ratio", 2.0),
]
BF16_MODELS = ("resnet18", "resnet50", "vit-b16", "gpt2")
BAR_TEXT = {
    "ratio": "two threads over PyTorch's two at the same total batch",
    "bf16_own": "bf16 over fp32",
    "bf16_ratio": "bf16 over the better of PyTorch's fp32 and bf16 autocast",
    "conv_share": "convolutions' FLOPs over two-thread SGEMM",
}

# ---- the peer ---------------------------------------------------------------------------------------------


def start_peers(options, settings):
    python = find_python(options.python)
    if not python:
        return {}
    settings = survivable(python, settings)
    command = [python, os.path.join(HERE, "torch_peer.py")] + ["--channels-last"] * options.channels_last
    # Debian's build of PyTorch uses only half of the processors by default, so set the number explicitly.
    threads = {"OMP_NUM_THREADS": str(THREADS), "OPENBLAS_NUM_THREADS": str(THREADS)}
    return {setting: Worker(command, {**threads, **extra}) for setting, extra in settings.items()}


# ---- measuring --------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, ours, peers, options, half=None, autocast=()):
        """half: our worker in bf16, with autocast peers, if there are any."""
        self.ours, self.peers, self.options = ours, peers, options
        self.half, self.autocast = half, dict(autocast)
        self.deadline = time.monotonic() + 60 * options.minutes

    def sgemm(self):
        time.sleep(SETTLE_SECONDS)
        return [self.ours.ask("sgemm", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]

    def warm(self, name):
        """Runs everyone's first steps outside of the rounds, and checks that all run the same network."""
        batch, *shape = MODELS[name]
        self.ours.ask("warm", name, batch, *shape, 1)
        facts = self.ours.ask("warm", name, batch, *shape, THREADS)
        if self.half and name in BF16_MODELS:
            self.half.ask("warm", name, batch, *shape, THREADS)
        for setting, peer in self.peers_of(name).items():
            theirs = peer.ask("warm", name, batch * THREADS, *shape, THREADS)
            if theirs["parameters"] != facts["parameters"] or theirs["threads"] != THREADS:
                raise WorkerError(f"{name}: PyTorch ({setting}) has {theirs}, ours {facts}: not the same task")
        return facts

    def peers_of(self, name):
        return {**self.peers, **(self.autocast if name in BF16_MODELS else {})}

    def round(self, name, number):
        batch, *shape = MODELS[name]
        seconds = self.options.seconds
        tasks = [
            ("ours_1", self.ours, (name, batch, *shape, 1, seconds)),
            ("ours_2", self.ours, (name, batch, *shape, THREADS, seconds)),
        ]
        if self.half and name in BF16_MODELS:
            tasks.append(("ours_bf16", self.half, (name, batch, *shape, THREADS, seconds)))
        for setting, peer in self.peers_of(name).items():
            tasks.append((setting, peer, (name, batch * THREADS, *shape, THREADS, seconds)))
        # Rotate the order: the first one always finds the machine as the check left it.
        turn = number % len(tasks)
        witness = Witness([self.ours, *filter(None, [self.half]), *self.peers.values(), *self.autocast.values()])
        result = {"before": self.sgemm()}
        for key, worker, words in tasks[turn:] + tasks[:turn]:
            time.sleep(SETTLE_SECONDS)
            result[key] = worker.ask("run", *words)
        result["after"] = self.sgemm()
        result["others"] = witness.cores()
        undisturbed = result["others"] <= may_use(len(os.sched_getaffinity(0)))
        result["quiet"] = undisturbed and all(b >= QUIET * a for a, b in (result["before"], result["after"]))
        return result

    def model(self, name):
        """Runs all rounds of a model and summarises those that count."""
        facts = self.warm(name)
        quiet, loud = [], []
        while len(quiet) < self.options.rounds:
            measured = len(quiet) + len(loud)
            spare = measured < self.options.rounds or time.monotonic() < self.deadline
            if not spare or len(loud) >= 2 * self.options.rounds:
                break
            result = self.round(name, measured)
            (quiet if result["quiet"] else loud).append(result)
            progress(name, measured + 1, result)
        enough = min(ENOUGH_QUIET, self.options.rounds)
        kept = quiet if len(quiet) >= enough else quiet + loud
        summary = summarize(facts, kept, list(self.peers_of(name)))
        summary.update(
            rounds=len(kept),
            thrown_away=len(quiet) + len(loud) - len(kept),
            quiet=len(quiet) >= self.options.rounds,
            quiet_rounds=len(quiet),
        )
        return {"shape": MODELS[name], "facts": facts, "summary": summary, "kept": kept}


def progress(name, number, result):
    one, two = result["after"]
    rates = ", ".join(f"{k} {v['samples_per_s']:.1f}" for k, v in result.items() if isinstance(v, dict))
    mark = "" if result["quiet"] else "  NOT QUIET"
    others = f"others used {result['others']:.2f} cores"
    print(f"{name} round {number}: {rates}; SGEMM {one:.0f}, {two:.0f}; {others}{mark}", file=sys.stderr, flush=True)


def summarize(facts, rounds, settings):
    def sgemm(r, index):
        return (r["before"][index] + r["after"][index]) / 2

    s = {key: spread(r[key]["samples_per_s"] for r in rounds) for key in ["ours_1", "ours_2"] + settings}
    s["sgemm_1"] = spread(sgemm(r, 0) for r in rounds)
    s["sgemm_2"] = spread(sgemm(r, 1) for r in rounds)
    s["gflops_1"] = spread(r["ours_1"]["gflops"] for r in rounds)
    s["gflops_2"] = spread(r["ours_2"]["gflops"] for r in rounds)
    s["share"] = spread(r["ours_2"]["gflops"] / sgemm(r, 1) for r in rounds)
    s["scaling"] = spread(r["ours_2"]["samples_per_s"] / r["ours_1"]["samples_per_s"] for r in rounds)
    s["peak_bytes"] = [max(r[key]["activations_peak_bytes"] for r in rounds) for key in ("ours_1", "ours_2")]
    if facts["conv_gflop_per_sample"] > 0.5 * facts["gflop_per_sample"]:
        s["conv_gflops_2"] = spread(r["ours_2"]["conv_gflops"] for r in rounds)
        s["conv_share"] = spread(r["ours_2"]["conv_gflops"] / sgemm(r, 1) for r in rounds)
        s["conv_inner_share"] = spread(r["ours_2"]["conv_inner_gflops"] / sgemm(r, 1) for r in rounds)
    floats = [setting for setting in settings if setting in SETTINGS]

    def over(ours, best):
        return spread(r[ours]["samples_per_s"] / r[best]["samples_per_s"] for r in rounds)

    def better(settings):
        return max(settings, key=lambda setting: s[setting]["median"])

    if floats:
        s["best_setting"] = better(floats)
        s["ratio"] = over("ours_2", s["best_setting"])
    if "ours_bf16" in rounds[0]:
        s["ours_bf16"] = spread(r["ours_bf16"]["samples_per_s"] for r in rounds)
        s["bf16_own"] = over("ours_bf16", "ours_2")
        s["bf16_activations"] = spread(
            r["ours_bf16"]["activations_peak_bytes"] / r["ours_2"]["activations_peak_bytes"] for r in rounds
        )
        if settings:
            s["bf16_best_setting"] = better(settings)
            s["bf16_ratio"] = over("ours_bf16", s["bf16_best_setting"])
    return s


# ---- printing ---------------------------------------------------------------------------------------------


def describe(shape):
    batch, image, _, seq = shape
    return f"{batch}, {image} px" if image else f"{batch}, {seq} tokens"


def print_models(results):
    rows = []
    for name, result in results.items():
        s = result["summary"]
        peers = [text(s.get(setting)) + ("*" if s.get("best_setting") == setting else "") for setting in SETTINGS]
        rows.append([name, describe(result["shape"]), text(s["ours_1"]), text(s["ours_2"]), *peers,
                     text(s.get("ratio"), 2), rounds_text(s)])  # fmt: skip
    print_table(
        "Samples/s, forward and backward: median (min..max). PyTorch: two threads at the same total batch; "
        "* is its better setting, which the ratio is with.",
        ["model", "micro-batch", "1 thread", "2 threads", "PyTorch", "PyTorch, passive", "ratio", "rounds"],
        rows,
    )
    rows = []
    for name, result in results.items():
        s = result["summary"]
        shares = [text(s.get(key), 0, 100, " %") for key in ("share", "conv_share", "conv_inner_share")]
        peaks = ", ".join(f"{peak / 2**20:.0f}" for peak in s["peak_bytes"])
        rows.append([name, text(s["gflops_1"]), text(s["gflops_2"]), text(s["scaling"], 2), text(s["sgemm_1"]),
                     text(s["sgemm_2"]), *shares, peaks])  # fmt: skip
    print_table(
        "GFLOP/s beside SGEMM in the same rounds: median (min..max). Shares are two threads' of two-thread SGEMM, "
        "over all FLOPs, over the convolutions' only, and over those without products with padding.",
        ["model", "1 thread", "2 threads", "2 over 1", "SGEMM 1", "SGEMM 2", "share", "convolutions",
         "without padding", "activations, peak MiB: 1, 2 threads"],
        rows,
    )  # fmt: skip


def print_bf16(results):
    rows = []
    for name, result in results.items():
        s = result["summary"]
        if "ours_bf16" in s:
            best = s.get("bf16_best_setting")
            peers = [text(s.get(setting)) + ("*" if best == setting else "") for setting in AUTOCAST]
            rows.append([name, text(s["ours_2"]), text(s["ours_bf16"]), text(s["bf16_own"], 2),
                         text(s["bf16_activations"], 2), *peers, text(s.get("bf16_ratio"), 2)])  # fmt: skip
    if rows:
        print_table(
            "bf16, two threads: samples/s. The ratio is with the better one of PyTorch's settings in either precision.",
            ["model", "fp32", "bf16", "over fp32", "activations over fp32", *(f"PyTorch, {name}" for name in AUTOCAST),
             "ratio"],
            rows,
        )  # fmt: skip


def print_bars(results):
    """Prints and returns the results of the targets. A miss is for the reader to see, not an error of the bench."""
    outcome = []
    print("\nBars\n")
    for name, figure, least in BARS:
        what = f"{name}: {BAR_TEXT[figure]}"
        result = results.get(name)
        if not result:
            print(f"  not run  {what}")
            continue
        value = result["summary"].get(figure)
        if not value:
            print(f"  NO PEER  {what}: at least {least}, but PyTorch is missing")
            continue
        passed = value["median"] >= least
        doubt, mark = ("", "") if was_quiet(result["summary"]) else ("?", "  (machine was NOT QUIET)")
        verdict = ("PASS" if passed else "MISS") + doubt
        print(f"  {verdict:<8} {what}: {text(value, 3)}, at least {least}{mark}")
        outcome.append({"model": name, "figure": figure, "least": least, "value": value, "passed": passed})
    return outcome


# ---- main -------------------------------------------------------------------------------------------------


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="which, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="quiet rounds for each model (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement, at least a step (default 1)")
    parser.add_argument("--minutes", type=float, default=10, help="after which no round is repeated (default 10)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--python", help="the Python that has PyTorch (default: /usr/bin/python3 or this one)")
    parser.add_argument("--channels-last", action="store_true", help="PyTorch's image models in that memory format")
    options = parser.parse_args()
    options.models = [name for name in options.models.split(",") if name]
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the models are {', '.join(MODELS)}")
    if options.rounds < 1 or options.seconds < 0:
        parser.error("there must be a round, and no negative time")
    return options


def main():
    options = parse_options()
    program = os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "bench", "models")
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is not there: `make bench-models` builds it")
    ours, peers, half, autocast = Worker([program]), start_peers(options, SETTINGS), None, {}
    if set(BF16_MODELS) & set(options.models):
        half, autocast = Worker([program, "bf16"]), start_peers(options, AUTOCAST)
    if not peers:
        say_peer_is_missing()
    try:
        about = machine(ours, peers)
        fma = [[ours.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)]]
        bench = Bench(ours, peers, options, half, autocast)
        results, failed = {}, False
        # Models with a target come first, while there is time to repeat rounds.
        for name in sorted(options.models, key=lambda name: name not in {bar[0] for bar in BARS}):
            try:
                results[name] = bench.model(name)
            except WorkerError as error:
                print(f"bench: {error}", file=sys.stderr)
                failed = True
        time.sleep(SETTLE_SECONDS)
        fma.append([ours.ask("fma", threads, SGEMM_SECONDS)["gflops"] for threads in (1, THREADS)])
    except WorkerError as error:
        sys.exit(f"bench: {error}")
    finally:
        for worker in [ours, *filter(None, [half]), *peers.values(), *autocast.values()]:
            worker.close()
    results = {name: results[name] for name in options.models if name in results}
    print_machine(about, *fma)
    print_models(results)
    print_bf16(results)
    bars = print_bars(results)
    loud = [f"{name} ({r['summary']['quiet_rounds']})" for name, r in results.items() if not was_quiet(r["summary"])]
    if loud:
        print(f"\nThe machine was NOT QUIET. Models with too few quiet rounds: {', '.join(loud)}.")
        print("What is marked so is no evidence.")
    if not peers:
        say_peer_is_missing()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "fma": fma, "results": results, "bars": bars}, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
