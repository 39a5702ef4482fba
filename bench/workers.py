"""Processes that benches ask to measure something: our workers and PyTorch's; and whether the machine was quiet."""

import json
import os
import platform
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
THREADS = 2
QUIET = 1.8  # rate of SGEMM with two threads over one thread, at least
SGEMM_SECONDS = 0.3
OTHERS = 0.1  # cores that other processes may use meanwhile
SETTLE_SECONDS = 0.1  # idle threads of OpenMP and OpenBLAS spin for a while before they sleep
ENOUGH_QUIET = 3  # rounds: then only these count; with fewer, all do

# The peer's settings: additions to its environment.
SETTINGS = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
AUTOCAST = {f"bf16 autocast, {name}": {**extra, "CAROUSEL_PEER_AUTOCAST": "bf16"} for name, extra in SETTINGS.items()}


class WorkerError(Exception):
    pass


class Worker:
    """A process that answers each line with a line of JSON."""

    def __init__(self, command, environment=None):
        self.name = os.path.basename(command[-1])
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "OPENBLAS_"))}
        env.update(environment or {})
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, bufsize=1
        )

    def ask(self, *words):
        line = " ".join(str(word) for word in words)
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerError(f"{self.name} ended while it was asked: {line}")
        answer = json.loads(answer)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {line}: {answer['error']}")
        return answer

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()


# ---- the peer ---------------------------------------------------------------------------------------------


def find_python(asked):
    """The first Python that has PyTorch and torchvision, or None."""
    for python in [asked] if asked else ["/usr/bin/python3", sys.executable]:
        try:
            found = subprocess.run([python, "-c", "import numpy, torch, torchvision"], capture_output=True)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    return None


# On some virtual machines oneDNN 2.6 finds AMX but not its tiles, and crashes at the first bf16 product.
WITHOUT_AMX = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}
PRODUCT = "import torch; a = torch.ones(64, 64).bfloat16(); a @ a"


def survivable(python, settings):
    """The settings, with what autocast needs on this machine not to crash."""
    done = subprocess.run([python, "-c", PRODUCT], capture_output=True)
    extra = WITHOUT_AMX if done.returncode == -signal.SIGILL else {}
    return {name: {**env, **(extra if name in AUTOCAST else {})} for name, env in settings.items()}


def say_peer_is_missing():
    for line in (
        "*" * 100,
        "* PyTorch is MISSING: no Python here imports torch and torchvision, so there is nothing to compare with.",
        "* On Debian: apt-get install python3-torch python3-torchvision; or say --python PYTHON.",
        "*" * 100,
    ):
        print(line)


# ---- other load on the machine ----------------------------------------------------------------------------


def machine_seconds():
    """Processor time used by all processes, or taken by the host, since the machine was started."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Witness:
    """Measures how many cores other processes have used since it was created.

    Otherwise a disturbance between the two checks with SGEMM would go unnoticed. It would hurt PyTorch more than us,
    because its threads wait for each other at every operation."""

    def __init__(self, workers):
        self.pids = [worker.process.pid for worker in workers] + [os.getpid()]
        self.begin, self.start = time.monotonic(), self.others()

    def others(self):
        try:
            return machine_seconds() - sum(process_seconds(pid) for pid in self.pids)
        except OSError:  # not available on this system: rely on SGEMM alone
            return 0.0

    def cores(self):
        return (self.others() - self.start) / (time.monotonic() - self.begin)


def may_use(cores):
    """How many cores others may use: almost none, unless there are cores to spare."""
    return OTHERS + 0.5 * max(0, cores - THREADS)


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine(ours, peers):
    about = ours.ask("about")
    for peer in peers.values():
        about.update(peer.ask("about"))
    return {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform(), **about}
