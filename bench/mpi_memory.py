#!/usr/bin/env python3
"""Ranks on one machine: does the sum of their resident memory fall under the cyclic rules? See README.md.

    BUILD_DIR=build bench/mpi_memory.py [--model NAME] [--batch B] [--workers N] [--steps T] [--most RATIO]
                                          [--json FILE]

Trains with placement replica and one rank for each worker, under dp and under the cyclic rules, and samples the sum of
the ranks' proportional set sizes (PSS of /proc/PID/smaps_rollup), which counts shared pages once. It also prints the
peak of each rank's arena, which no rule reduces, since a rank has one micro-batch.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("CAROUSEL", os.path.join(os.environ.get("BUILD_DIR", os.path.join(HERE, "..", "build")), "carousel"))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tests", "mpi")]
from tables import print_table  # noqa: E402
from workers import cpu_name  # noqa: E402
from ranks import command, environment  # noqa: E402

RULES = ("dp", "cdp-v2", "cdp-v1")


def children(parent):
    """All descendants of a process, from a table of all processes."""
    found, parents = [], {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    for pid in parents:
        above = pid
        while above in parents and above != parent:
            above = parents[above]
        if above == parent and pid != parent:
            found.append(pid)
    return found


def is_rank(pid):
    try:
        return os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(os.environ["CAROUSEL"])
    except OSError:
        return False


def pss(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def cpu_seconds(pids):
    """User and system time of all threads; page faults are part of the latter."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def steps_made(out):
    try:
        with open(os.path.join(out, "metrics.jsonl")) as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def measure(settings, ranks, steps):
    """Samples from step 3 to the last but one, to leave out the fill and the gathering at the end."""
    with tempfile.TemporaryDirectory() as out:
        words = command(ranks, {**settings, "steps": steps, "threads": 1, "lr": 0.001, "out": out, "keep": 0})
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        pids, samples, marks = [], [], []
        while process.poll() is None:
            if len(pids) < ranks:
                pids = [pid for pid in children(process.pid) if is_rank(pid)]
            made = steps_made(out)
            if len(pids) == ranks and 2 <= made < steps - 1:
                samples.append(sum(pss(pid) for pid in pids))
                if not marks or made > marks[-1][0]:
                    marks.append((made, cpu_seconds(pids)))
            time.sleep(0.005)
        if process.returncode != 0 or len(samples) < 10:
            sys.exit(f"{' '.join(words)}: exit code {process.returncode}, {len(samples)} samples: {process.stderr.read()}")
        with open(os.path.join(out, "summary.json")) as file:
            summary = json.load(file)
        with open(os.path.join(out, "metrics.jsonl")) as file:
            seconds = [json.loads(line)["seconds"] for line in file]
    samples.sort()
    (first, before), (last, after) = marks[0], marks[-1]
    return {
        "cpu_s": (after - before) / max(1, last - first),
        "samples": len(samples),
        "pss_peak": samples[-1],
        "pss_p99": samples[int(0.99 * (len(samples) - 1))],
        "pss_mean": sum(samples) / len(samples),
        "rank_activations": max(rank["activations_peak_bytes"] for rank in summary["ranks"]),
        "messages": sum(rank["messages_peak_bytes"] for rank in summary["ranks"]),
        "weights": sum(rank["weights_peak_bytes"] for rank in summary["ranks"]),
        "step_s": (seconds[-2] - seconds[1]) / (len(seconds) - 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit-tiny")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--most", type=float, help="fail if a cyclic rule's mean is above this part of dp's")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    for rule in RULES:
        settings = {"model": options.model, "batch": options.batch, "workers": options.workers, "rule": rule,
                    "placement": "replica"}
        results[rule] = measure(settings, options.workers, options.steps)
    dp = results["dp"]
    rows = [[rule, f"{r['pss_peak'] / 1e6:.1f}", f"{r['pss_peak'] / dp['pss_peak']:.2f}", f"{r['pss_mean'] / 1e6:.1f}",
             f"{r['pss_mean'] / dp['pss_mean']:.2f}", f"{r['rank_activations'] / 1e6:.1f}", f"{r['messages'] / 1e6:.1f}",
             f"{1e3 * r['step_s']:.0f}", f"{1e3 * r['cpu_s']:.0f}", str(r["samples"])] for rule, r in results.items()]
    title = f"{options.model}, batch {options.batch}, {options.workers} ranks, one thread each; sums over ranks in MB"
    print(f"Machine: {cpu_name()}, {len(os.sched_getaffinity(0))} cores; {platform.platform()}")
    print_table(title, ["rule", "PSS peak", "of dp", "PSS mean", "of dp", "a rank's activations", "messages", "step ms",
                        "processor ms", "samples"], rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)
    above = [rule for rule, r in results.items() if options.most and rule != "dp"
             and r["pss_mean"] > options.most * dp["pss_mean"]]  # not the peaks, which depend on chance
    if above:
        sys.exit(f"above {options.most} of dp's resident memory: {', '.join(above)}")


if __name__ == "__main__":
    main()
