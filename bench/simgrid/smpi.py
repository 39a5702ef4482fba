"""Replays plans on SimGrid's SMPI and returns how long their steps take there."""

import collections
import os
import re
import shutil
import subprocess
import tempfile

from simgrid.schedule import ReplayError, Schedule, hosts_of, platform_of

HERE = os.path.dirname(os.path.abspath(__file__))
FILL = 2  # steps, as the plan's timing: they fill the cycle, and the last drains it
# Plain links, as described in the cluster: no protocol factors, no windows, full duplex. The program's own computation
# takes no simulated time. All buffers share the same pages, in blocks so large that many ranks do not exceed a process's
# limit of mappings.
SETTINGS = ("network/model:CM02", "network/TCP-gamma:0", "network/weight-S:0", "network/crosstraffic:no",
            "smpi/simulate-computation:no", "smpi/shared-malloc:global", "smpi/privatization:no",
            "smpi/shared-malloc-blocksize:16777216")  # fmt: skip


def missing():
    """What is missing for SimGrid on this machine, or nothing."""
    return [name for name in ("smpicc", "smpirun") if not shutil.which(name)]


def version():
    found = re.search(r"[\d.]+", subprocess.run(["smpirun", "--version"], capture_output=True, text=True).stdout)
    return found.group(0) if found else "unknown"


def compile_replay(directory):
    """The path of the program, which is compiled if it is older than its source."""
    source, target = os.path.join(HERE, "replay.c"), os.path.join(directory, "replay")
    if not os.path.exists(target) or os.path.getmtime(target) < os.path.getmtime(source):
        os.makedirs(directory, exist_ok=True)
        subprocess.run(["smpicc", "-O2", "-Wall", "-Wextra", source, "-o", target], check=True)
    return target


def replay(table, plan, program, timeout=None, disturbance=None, steps=None):
    """Runs the table (`carousel plan --dump --edges`) of a plan (`carousel plan --json --cluster`) on SMPI, for `steps` steps
    (as many as its timing has).

    Returns the seconds of a step in steady state, and what was run."""
    schedule = Schedule(table, plan, disturbance)
    steps = steps or plan["timing"]["steps"]
    with tempfile.TemporaryDirectory(prefix="carousel-simgrid-") as directory:
        ranks = schedule.write(directory)
        platform, hosts = os.path.join(directory, "platform.xml"), os.path.join(directory, "hosts")
        with open(platform, "w") as file:
            file.write(platform_of(plan["cluster"], schedule.devices))
        with open(hosts, "w") as file:
            file.write(hosts_of(schedule.devices, ranks))
        words = ["smpirun", "-np", str(ranks), "-platform", platform, "-hostfile", hosts,
                 *(f"--cfg={setting}" for setting in SETTINGS), "--log=root.thres:warning",
                 program, directory, str(schedule.devices), str(schedule.largest)]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    ends = collections.defaultdict(float)
    for step, seconds in re.findall(r"^mark (\d+) (\S+)$", done.stdout, re.MULTILINE):
        ends[int(step)] = max(ends[int(step)], float(seconds))
    if done.returncode != 0 or len(ends) != steps:
        raise ReplayError(f"SMPI came to no end: {(done.stderr or done.stdout)[-500:]}")
    last = steps - 2
    return {"step_s": (ends[last] - ends[FILL - 1]) / (last - FILL + 1), "ranks": ranks, "messages": schedule.messages}
