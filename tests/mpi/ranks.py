"""Runs the program over MPI ranks, for the tests here and the bench of memory.

CAROUSEL names the program, MPIEXEC what starts ranks (default: mpirun)."""

import collections
import json
import os
import re
import subprocess
import tempfile

CARGOS = "-agpswb"  # as in car_cargo: activation, its gradient, partial sum, finished sum, weights (for a backward)
SEND = re.compile(r"S([agpswb])(~?)(\d+)(?:\.(\d+))?(?:@(\d+))?(?:/(\d+))?(?::(\d+))?>(\d+)")

RECEIVE = re.compile(SEND.pattern.replace("S(", "R(", 1).replace(">", "<", 1))

# `what` names the cargo, the same at both ends.
Send = collections.namedtuple("Send", "device slot cargo tied worker peer tag bytes what piece")


class RunError(Exception):
    pass


def program():
    return os.environ.get("CAROUSEL", "build/carousel")


def words_of(settings):
    words = []
    for option, value in settings.items():
        words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return words


def environment():
    """More ranks than cores, as root too; what another MPI than Open MPI has no use for."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    env.update(OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


def command(ranks, settings, variables=None):
    """What starts a training; `variables` are of the ranks alone."""
    launcher = os.environ.get("MPIEXEC", "mpirun").split()
    given = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return [*launcher, "-n", str(ranks), *given, program(), "train", *words_of(settings)]


def train_in(out, ranks, settings, variables=None, timeout=300):
    """Trains into the directory `out`."""
    words = command(ranks, {**settings, "threads": 1, "out": out, "keep": 0}, variables)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RunError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-2000:]}")


def train(ranks, settings, variables=None, timeout=300):
    """Trains and returns summary.json."""
    with tempfile.TemporaryDirectory() as out:
        train_in(out, ranks, settings, variables, timeout)
        with open(os.path.join(out, "summary.json")) as file:
            return json.load(file)


def ranks_of(placement, rule, workers):
    if placement != "grid":
        return workers
    return workers * workers if rule == "dp" else workers * (workers + 1) // 2


# ---- the plan -----------------------------------------------------------------------------------


class Plan:
    """The plan of a run, as `carousel plan` prints it: JSON, and the table of `steps` steps."""

    def __init__(self, settings, steps):
        words = [program(), "plan", *words_of(settings)]
        self.json = json.loads(subprocess.run([*words, "--json"], check=True, capture_output=True, text=True).stdout)
        dump = subprocess.run([*words, "--dump", "--steps", str(steps)], check=True, capture_output=True, text=True)
        self.predictions = self.json["predictions"]
        self.stages = self.json["stages"]
        self.workers = self.json["workers"]
        self.slots = []  # (device, slot, its tasks as text)
        self.tied = []  # bytes of tied bundles
        self.bundles = 0
        self.read(dump.stdout)

    def read(self, text):
        params = {p["name"]: p["bytes"] for p in self.json["parameters"]}
        device = None
        for line in text.splitlines():
            first, _, rest = line.partition(" ")
            if first == "carousel-plan":
                self.bundles = int(re.search(r"bundles=(\d+)", rest).group(1))
            elif line.startswith("# ~"):
                self.tied.append(params[line.split(": ")[1].split(" of stage")[0]])
            elif first == "device":
                device = int(rest)
            elif first.endswith(":"):
                self.slots.append((device, int(first[:-1]), rest.split()))

    def bytes_of(self, cargo, tied, number, piece):
        if cargo in "ag":
            return self.stages[number]["boundary_bytes"]
        size = self.tied[number] if tied else self.stages[number]["weight_bytes"]
        if piece is None:
            return size
        # Sums that are cut: at most 64 pieces, equal but for the last, in steps of 64 bytes.
        count = min(64, -(-size // self.json["piece_bytes"]))
        length = -(-size // (64 * count)) * 64
        return min(length, size - piece * length)

    def sends(self):
        """Every message, as a Send."""
        for device, slot, tasks in self.slots:
            for task in tasks:
                match = SEND.fullmatch(task)
                if task.startswith("S") and not match:
                    raise RunError(f"a send that is not understood: {task}")
                if match:
                    yield self.send(device, slot, match)

    def send(self, device, slot, match):
        cargo, tied, number, worker, version, _, piece, peer = match.groups()
        piece = int(piece) if piece else None
        thing = int(number) + (len(self.stages) if tied else 0)
        whose = int(worker) if worker else -1
        parity = int(version) % 2 if cargo in "wb" else 0
        tag = CARGOS.index(cargo) + len(CARGOS) * (parity + 2 * (thing + self.bundles * (whose + 1)))
        size = self.bytes_of(cargo, bool(tied), int(number), piece)
        return Send(device, slot, cargo, bool(tied), whose, int(peer), tag, size, match.groups()[:-1], piece or 0)

    def receives(self):
        """{(sender, receiver, what): its slots in order}"""
        found = collections.defaultdict(list)
        for device, slot, tasks in self.slots:
            for task in tasks:
                match = RECEIVE.fullmatch(task)
                if match:
                    found[int(match.group(8)), device, match.groups()[:-1]].append(slot)
        return found
