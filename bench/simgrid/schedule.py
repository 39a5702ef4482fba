"""From the table of a plan, as `carousel plan --dump` prints it, to what each rank of replay.c does.

A device becomes up to three ranks of SMPI on one host: one computes, and sends and waits for what it computes with, in
the table's order; beside it one takes sums that come, adds to them and hands them on (and does dp's all-reduces), and
one makes versions: a finished sum comes, the update is made, the sum or the weights go on. What these two do are jobs
that wait beside each other, as those of the engine: a large sum that is late does not hold up small ones. Bytes
and times are those of `carousel plan --json`; order comes from the table alone. Broadcasts and reductions to one rank
(dp over zero) are not replayed.
"""

import collections
import operator
import os
import re

TASK = re.compile(r"([FBUSRCD])([agpsw]?)(~?\d+)(?:\.(\d+))?(?:@(-?\d+)(?:~(-?\d+))?)?(?:/(-?\d+))?(?:[<>](\d+))?"
                  r"(?:-[aws]+)?(\{.*\})?")  # fmt: skip
TIE = re.compile(r"# (~\d+): (\S+) of stage (\d+), used again in stage (\d+)")
Task = collections.namedtuple("Task", "kind cargo name worker version tied step peer")
SLOT = operator.itemgetter(0)
Bundle = collections.namedtuple("Bundle", "stage home bytes")


class ReplayError(Exception):
    """A table that cannot be replayed."""


def read_task(text):
    found = TASK.fullmatch(text)
    if not found or found.group(9):
        raise ReplayError(f"not a task that can be replayed: {text}")
    kind, cargo, name, *rest = found.groups()
    return Task(kind, cargo, name, *(None if value is None else int(value) for value in rest[:-1]))


def read_table(text):
    """The header, the ties, and for each device [(slot, [task, ...]), ...]."""
    lines = text.splitlines()
    header = dict(word.split("=") for word in lines[0].split()[2:])
    ties, devices = {}, []
    for line in lines[1:]:
        if line.startswith("#"):
            found = TIE.match(line)
            if found:
                ties[found.group(1)] = (found.group(2), int(found.group(3)), int(found.group(4)))
        elif line.startswith("device "):
            devices.append([])
        else:
            slot, tasks = line.split(": ", 1)
            devices[-1].append((int(slot), [read_task(word) for word in tasks.split()]))
    return header, ties, devices


class Schedule:
    """All ranks' lines."""

    def __init__(self, table, plan):
        self.header, ties, self.tables = read_table(table)
        self.plan, self.stages = plan, plan["stages"]
        self.cyclic = self.header["rule"] in ("cdp-v1", "cdp-v2", "2bw")
        self.zero = self.header["placement"] == "zero"
        self.workers, self.devices = int(self.header["workers"]), len(self.tables)
        self.per_worker = max(1, len(self.stages) // self.workers)
        sizes = {parameter["name"]: parameter["bytes"] for parameter in plan["parameters"]}
        self.bundles = {str(j): Bundle(j, j, stage["weight_bytes"]) for j, stage in enumerate(self.stages)}
        for name, (parameter, home, stage) in ties.items():
            self.bundles[name] = Bundle(stage, home, sizes[parameter])
        self.flops = plan["timing"]["compute_s"] * plan["cluster"]["flops"]
        self.tags, self.largest = {}, 8
        self.ranks = [[] for _ in range(3 * self.devices)]  # those that compute, those that add, those that make
        self.sends, self.receives = collections.defaultdict(list), collections.defaultdict(list)
        for device in range(self.devices):
            Device(self, device).write()
        self.match()

    def tag(self, *key):
        return self.tags.setdefault(key, len(self.tags) + 1)

    def send(self, rank, device, slot, task):
        """A send or receive whose other end is found by match()."""
        parity = task.version % 2 if task.cargo == "w" else 0
        tag = self.tag(task.cargo, task.name, task.worker, parity)
        line = [task.kind.lower(), None, tag, self.bytes_of(task)]
        ends = (device, task.peer) if task.kind == "S" else (task.peer, device)
        (self.sends if task.kind == "S" else self.receives)[(*ends, tag)].append((slot, line, rank))
        self.ranks[rank].append(line)

    def notify(self, sender, receiver, *key):
        """A small message from one rank of a device to the other; returns the receive, to be put in place."""
        tag = self.tag("local", *key)
        self.ranks[sender].append(["s", receiver, tag, 8])
        return ["r", sender, tag, 8]

    def bytes_of(self, task):
        if task.cargo in "ag":
            return self.stages[int(task.name)]["boundary_bytes"]
        return self.bundles[task.name].bytes

    def match(self):
        """Messages between two devices with one tag follow each other."""
        for key, sends in self.sends.items():
            receives = self.receives.pop(key, [])
            if len(receives) != len(sends):
                raise ReplayError(f"{len(sends)} sends and {len(receives)} receives of {key}")
            for (_, send, sender), (_, receive, receiver) in zip(sorted(sends, key=SLOT), sorted(receives, key=SLOT)):
                send[1], receive[1] = receiver, sender
                self.largest = max(self.largest, send[3])
        if self.receives:
            raise ReplayError(f"nobody sends {next(iter(self.receives))}")

    def step_of(self, slot, task):
        """Of a backward."""
        period, stage = self.plan["period_slots"], int(task.name)
        if self.cyclic:
            slot -= 2 * self.per_worker * task.worker + 2 * len(self.stages) - 1 - stage
        return slot // period

    def write(self, directory):
        """A file for each rank; returns their number. If none of the last ones has anything to do they are left out."""
        count = len(self.ranks)
        while not any(self.ranks[count - self.devices : count]):
            count -= self.devices
        for rank, lines in enumerate(self.ranks[:count]):
            with open(os.path.join(directory, f"{rank}.txt"), "w") as file:
                file.writelines(" ".join(map(str, line)) + "\n" for line in lines)
        return count


class Device:
    """One device's tasks into lines."""

    def __init__(self, schedule, device):
        self.of, self.device, self.table = schedule, device, schedule.tables[device]
        self.main, self.adder, self.maker = (device + n * schedule.devices for n in range(3))
        self.out = schedule.ranks[self.main]
        self.marks = {}  # step: where its last backward is in `out`
        self.known = {}  # what another rank of the device does, until it is waited for: the receive that tells of it
        self.step = collections.Counter()

    def write(self):
        self.count_buckets()
        first = next(slot for slot, tasks in self.table if any(task.kind in "FB" for task in tasks))
        lead, ready = 2 * self.of.per_worker, 0
        for at, (slot, tasks) in enumerate(self.table):
            while ready < min(at + lead + 1, len(self.table)):
                self.prepare_version(*self.table[ready])
                ready += 1
            if slot == first and slot > 0 and self.of.cyclic:  # devices begin one after another
                self.out.append(["c", self.of.flops / self.of.plan["period_slots"] * first])
            self.write_slot(slot, tasks)
        for step, at in sorted(self.marks.items(), key=lambda item: -item[1]):
            self.out.insert(at, ["t", step])

    def part(self, slot, task, tasks):
        """As the plan's timing has it: what a task is done with."""
        if task.kind in "FBCD" or (task.cargo and task.cargo in "ag") or self.bucket_of:
            return "body"
        bundle = self.of.bundles[task.name]
        step = task.step if task.version is None else task.version - 1
        for other in tasks:
            if other.kind in "FB" and int(other.name) in (bundle.stage, bundle.home):
                if task.cargo == "w" and task.version in (other.version, other.tied):
                    return "body"
                if task.cargo == "p" or (other.kind == "B" and self.of.step_of(slot, other) == step):
                    return "added"
        return "made"

    def place(self, task):
        return int(task.name) if self.of.header["placement"] == "replica" else int(task.name) % self.of.per_worker

    def owns(self, task):
        return self.of.workers - 1 - int(task.name) // self.of.per_worker == self.device

    def keeps_sum(self, backward):
        """Whether the device that finishes a sum updates with it in a later slot."""
        return self.of.header["placement"] == "replica" or (self.of.zero and self.owns(backward))

    def tell(self, rank, *key):
        """The rank tells the one that computes that something is done."""
        self.known[key] = self.of.notify(rank, self.main, *key)

    def await_(self, *key):
        receive = self.known.pop(key, None)
        if receive:
            self.out.append(receive)

    def do_beside(self, rank, slot, job):
        """A job: its receives, then what they allow. Without receives it is done by the rank that computes."""
        waits = any(task.kind == "R" for task in job)
        if waits:
            go = self.of.notify(self.main, rank, "go", slot)
            self.of.ranks[rank] += [["j"], go]
        else:
            rank = self.main
        for task in job:
            if task.kind in "SR":
                self.of.send(rank, self.device, slot, task)
            elif waits:
                self.tell(rank, "made", self.place(task), task.version)
        return waits

    # ---- dp's all-reduces -------------------------------------------------------------------------------

    def count_buckets(self):
        """The reductions of a step, in order, into buckets as the plan's timing makes them: {name: bucket}, and the
        names that are the last of one."""
        self.bucket_of, self.last_of, reduced = {}, {}, []
        for slot, tasks in self.table:
            if slot < self.of.plan["period_slots"]:
                reduced += [task for task in tasks if task.kind == "D"]
        if any(task.kind in "CD" and task.peer is not None for _, tasks in self.table for task in tasks):
            raise ReplayError("broadcasts and reductions to one rank are not replayed")
        filled, bucket = 0, 0
        for task in reduced:
            filled += self.of.bundles[task.name].bytes
            self.bucket_of[task.name] = bucket
            if filled >= self.of.plan["timing"]["bucket_bytes"] or task is reduced[-1]:
                self.last_of[task.name] = filled
                self.of.largest = max(self.of.largest, filled)
                filled, bucket = 0, bucket + 1

    def reduce(self, task):
        if task.name not in self.last_of:
            return
        step, bucket = self.step[task.name], self.bucket_of[task.name]
        self.step[task.name] += 1
        self.of.ranks[self.adder].append(self.of.notify(self.main, self.adder, "full", bucket, step))
        self.of.ranks[self.adder].append(["a", self.last_of[task.name]])
        self.tell(self.adder, "reduced", bucket, step)

    # ---- a slot -----------------------------------------------------------------------------------------

    def wait(self, task, tasks):
        """What a forward or backward needs besides messages."""
        if self.bucket_of:
            if task.kind == "F" and task.name in self.bucket_of:
                self.await_("reduced", self.bucket_of[task.name], task.version - 1)
        elif not any(t.kind == "R" and t.cargo == "w" and t.name == task.name for t in tasks):
            if not self.of.zero or self.owns(task):
                self.await_("made", self.place(task), task.version)

    def parts(self, slot, tasks):
        parts = {"body": [], "added": [], "made": []}
        for task in tasks:
            parts[self.part(slot, task, tasks)].append(task)
        return parts

    def finishes_sum(self, made):
        """Whether an update is of a sum that the device has finished itself, so that no message tells of it."""
        return self.of.cyclic and any(task.kind == "U" for task in made) and not any(
            task.kind == "R" and task.cargo == "s" for task in made)  # fmt: skip

    def is_early(self, made):
        """What comes is waited for some slots before, beside."""
        return any(task.kind == "R" for task in made) and not self.finishes_sum(made)

    def prepare_version(self, slot, tasks):
        made = self.parts(slot, tasks)["made"]
        if self.is_early(made):
            self.do_beside(self.maker, slot, made)

    def write_slot(self, slot, tasks):
        parts = self.parts(slot, tasks)
        if not self.is_early(parts["made"]):
            for task in parts["made"]:
                if task.kind == "U" and self.finishes_sum(parts["made"]):
                    self.await_("summed", task.name, task.version)
            self.do_beside(self.maker, slot, parts["made"])
        for task in parts["body"]:
            if task.kind in "FB":
                self.compute(slot, task, tasks)
            elif task.kind == "D":
                self.reduce(task)
            elif task.kind == "R":
                self.of.send(self.main, self.device, slot, task)
        if self.do_beside(self.adder, slot, parts["added"]):
            for task in tasks:
                if task.kind == "B" and task.worker == self.of.workers - 1 and self.keeps_sum(task):
                    self.tell(self.adder, "summed", task.name, self.of.step_of(slot, task) + 1)
        for task in parts["body"]:
            if task.kind == "S":
                self.of.send(self.main, self.device, slot, task)

    def compute(self, slot, task, tasks):
        self.wait(task, tasks)
        stage = self.of.stages[int(task.name)]
        share = stage["forward_share"] if task.kind == "F" else stage["backward_share"]
        if share > 0:
            self.out.append(["c", self.of.flops * share])
        if task.kind == "B":
            self.marks[self.of.step_of(slot, task)] = len(self.out)


# ---- the cluster ------------------------------------------------------------------------------------------


def platform_of(cluster, devices):
    """SimGrid's description of a cluster: a zone for each node, and the nodes' links between them."""
    per_node = cluster.get("devices_per_node", 1)
    between = cluster["between"]
    inside = cluster["inside"] if per_node > 1 else between
    nodes = -(-devices // per_node)
    out = ["<?xml version='1.0'?>", '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
           '<platform version="4.1">']  # fmt: skip
    device = (f'speed="{cluster["flops"]!r}f" core="4" bw="{inside["bandwidth"]!r}Bps" lat="{inside["latency"] / 2!r}s" '
              f'sharing_policy="SPLITDUPLEX" loopback_bw="1e18Bps" loopback_lat="0s"')  # fmt: skip
    if per_node == 1:
        out.append(f'<cluster id="nodes" prefix="d" suffix="" radical="0-{devices - 1}" {device}/>')
    else:
        out.append('<zone id="world" routing="Full">')
        for node in range(nodes):
            first, last = node * per_node, min(devices, (node + 1) * per_node) - 1
            out.append(f'<cluster id="node{node}" prefix="d" suffix="" radical="{first}-{last}" '
                       f'router_id="router{node}" {device}/>')  # fmt: skip
        latency = (between["latency"] - inside["latency"]) / 2
        for node in range(nodes):
            out.append(f'<link id="link{node}" bandwidth="{between["bandwidth"]!r}Bps" latency="{latency!r}s" '
                       f'sharing_policy="SPLITDUPLEX"/>')  # fmt: skip
        for a in range(nodes):
            for b in range(a + 1, nodes):
                out.append(f'<zoneRoute src="node{a}" dst="node{b}" gw_src="router{a}" gw_dst="router{b}">'
                           f'<link_ctn id="link{a}" direction="UP"/><link_ctn id="link{b}" direction="DOWN"/>'
                           f'</zoneRoute>')  # fmt: skip
        out.append("</zone>")
    return "\n".join([*out, "</platform>", ""])


def hosts_of(devices, ranks):
    """A line for each rank: those beside rank r are on its host."""
    return "".join(f"d{rank % devices}\n" for rank in range(ranks))
