#!/usr/bin/env python3
"""How much memory and time does --rule stagger take, compared with accumulate, dp and the plan? See README.md.

    BUILD_DIR=build bench/stagger.py [--models a,b] [--rounds N] [--steps T] [--json FILE]

Against accumulate, the fair peer on one machine: two workers with 16 micro-batches on two threads. Against dp: four
workers on four threads. The waveform is examples/waveform, a gradient of 32 shots. Rules take turns; the best round's
time and the worst round's peak count. A missed target is printed as such and is not an error; the exit code is 1 only
if something could not be measured.
"""

import argparse
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from claims import waveform  # noqa: E402
from tables import print_table  # noqa: E402
from workers import WorkerError, cpu_name, may_use  # noqa: E402
from runs import RunWitness, plan, train  # noqa: E402

MODELS = {
    "vit-b16": {"model": "vit-b16", "batch": 1},
    "gpt2": {"model": "gpt2", "batch": 1, "seq-len": 128},
    "waveform": None,  # not a model of the program: see measure_waveform
}
STAGES = 16
# The peer: its settings, and our targets: the largest peak and time relative to it.
PEERS = {
    "accumulate": ({"workers": 2, "threads": 2, "accumulate": 16}, 0.70, 1.06),
    "dp": ({"workers": 4, "threads": 4, "accumulate": 1}, 0.60, None),
}
OF_PLAN = 0.03  # how far a peak may be from the plan's, as a share of it


def settings_of(model, peer, rule):
    return {**MODELS[model], **PEERS[peer][0], "stages": STAGES, "rule": rule, "lr": 0.0001}


def run_once(settings, steps):
    run = train({**settings, "steps": steps})
    planned = plan({k: v for k, v in settings.items() if k != "lr"})["predictions"]["activations_peak_bytes"]
    memory = run["memory"]
    return {"peak": memory["activations_peak_bytes"], "rss": memory["rss_peak_bytes"], "step_s": run["step_s"],
            "planned": planned}  # fmt: skip


def run_waveform(program, peer, rule):
    run = waveform.once(program, {**waveform.LONG, **PEERS[peer][0], "stages": STAGES}, rule, 0)
    return {"peak": 1e6 * run["activations_mb"], "rss": 1e6 * run["resident_mb"], "step_s": run["seconds"],
            "planned": 1e6 * run["predicted_mb"]}  # fmt: skip


def measure(peer, rounds, run):
    """{rule: figures} for a rule and its peer; `run(rule)` returns the figures of one round."""
    out = {}
    for _ in range(rounds):
        for rule in (peer, "stagger"):
            found = run(rule)
            before = out.setdefault(rule, found)
            out[rule] = {name: (min if name == "step_s" else max)(before[name], found[name]) for name in found}
    return out


def measure_model(model, peer, options):
    return measure(peer, options.rounds, lambda rule: run_once(settings_of(model, peer, rule), options.steps))


def measure_waveform(peer, options):
    with tempfile.TemporaryDirectory() as work:
        program = waveform.build(work)
        return measure(peer, options.rounds, lambda rule: run_waveform(program, peer, rule))


def relate(peer, figures):
    ours, theirs = figures["stagger"], figures[peer]
    return {
        "peak": ours["peak"] / theirs["peak"],
        "time": ours["step_s"] / theirs["step_s"],
        "above": ours["peak"] / ours["planned"] - 1,
        "rss": ours["rss"] / theirs["rss"],
    }


def verdict(value, most):
    return "" if most is None else f" {'PASS' if value <= most else 'MISS'}, at most {most}"


def row_of(model, peer, figures):
    ratio, (_, most_peak, most_time) = relate(peer, figures), PEERS[peer]
    return [
        model,
        peer,
        *(f"{figures[rule]['peak'] / 1e6:.1f}" for rule in ("stagger", peer)),
        f"{ratio['peak']:.3f}{verdict(ratio['peak'], most_peak)}",
        f"{ratio['time']:.3f}{verdict(ratio['time'], most_time)}",
        f"{100 * ratio['above']:+.1f} %{verdict(abs(ratio['above']), OF_PLAN)}",
        f"{ratio['rss']:.2f}",
    ]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="which, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting, in turns (default 3)")
    parser.add_argument("--steps", type=int, default=4, help="of each run (default 4)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.models = [name for name in options.models.split(",") if name]
    if any(name not in MODELS for name in options.models) or options.rounds < 1 or options.steps < 3:
        parser.error(f"the models are {', '.join(MODELS)}; there must be a round, and 3 steps")
    return options


def main():
    options, witness, results, failed = parse_options(), RunWitness([]), {}, False
    for model in options.models:
        for peer in PEERS:
            try:
                own = MODELS[model] is None
                results[model, peer] = measure_waveform(peer, options) if own else measure_model(model, peer, options)
            except WorkerError as error:
                print(f"bench: {error}", file=sys.stderr)
                failed = True
    others, cores = witness.cores(), len(os.sched_getaffinity(0))
    mark = "" if others <= may_use(cores) else "  NOT QUIET"
    print(f"Machine: {cpu_name()}, {cores} cores; others used {others:.2f} cores{mark}")
    print_table(
        f"stagger beside a peer with as many threads, S = {STAGES}: peaks of activations in MB, peak and time of a step over "
        "the peer's, how far the peak is off the plan's, resident memory over the peer's.",
        ["model", "peer", "stagger", "peer's", "peak", "time", "of the plan", "resident"],
        [row_of(model, peer, figures) for (model, peer), figures in results.items()],
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({f"{m}, {p}": {**f, "over": relate(p, f)} for (m, p), f in results.items()}, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
