"""Translates the table and edges of a plan, as `carousel plan --dump --edges` prints them, to the task lists of replay.c.

Which task waits for which, and how early a receive is posted, is taken from that output; nothing is derived here. In
addition, a device computes one task at a time, in the table's order, and dp's all-reduces are grouped into the buckets
of the plan's timing.
Bytes and times are those of `carousel plan --json`. Broadcasts and reductions to one rank (dp over zero) are not replayed.
"""

import collections
import os
import random
import re

TASK = re.compile(r"([FBUSRCD])([agpswb]?)(~?\d+)(?:\.(\d+))?(?:@(-?\d+)(?:~(-?\d+))?)?(?:/(-?\d+))?(?::(\d+))?(?:[<>](\d+))?"
                  r"(\{.*\})?")  # fmt: skip
TIE = re.compile(r"# (~\d+): (\S+) of stage (\d+), used again in stage (\d+)")
SECTION, RANK = re.compile(r"\ndevice \d+\n"), re.compile(r"\n# rank \d+\n")
AHEAD = re.compile(r"(\w) (\d+)")
EDGES = re.compile(r"# (\d+):((?: \d+)+)")
Task = collections.namedtuple("Task", "kind cargo name worker version tied step piece peer slot")


class ReplayError(Exception):
    """A table that cannot be replayed."""


def read_task(text, slot):
    found = TASK.fullmatch(text)
    if not found or found.group(10):
        raise ReplayError(f"not a task that can be replayed: {text}")
    kind, cargo, name, worker, version, tied, step, piece, peer, _ = found.groups()
    return Task(kind, cargo, name, worker and int(worker), version and int(version), tied and int(tied), step and int(step),
                piece and int(piece), peer and int(peer), slot)  # fmt: skip


class Table:
    """The printed table: the tasks of each device in order, and for each task those that it waits for. Kept as text and
    parsed device by device: with a thousand devices the tasks would not fit into memory."""

    def __init__(self, text):
        table, _, behind = text.partition("\n# ahead")
        head, *self.tasks = SECTION.split(table)
        ahead, *self.waits = RANK.split(behind)
        self.header = dict(word.split("=") for word in head.split("\n", 1)[0].split()[2:])
        self.ties = {found[0]: (found[1], int(found[2]), int(found[3])) for found in TIE.findall(head)}
        self.ahead = {what: int(slots) for what, slots in AHEAD.findall(ahead)}
        self.devices = len(self.tasks)
        if not self.ahead or len(self.waits) != self.devices:
            raise ReplayError("the table was printed without the edges of its devices: use --dump --edges")

    def tasks_of(self, device, begins=""):
        """The tasks of a device, or those whose text begins with one of the given words."""
        found = []
        for line in self.tasks[device].splitlines():
            if not line.startswith("#"):
                slot, tasks = line.split(": ", 1)
                slot = int(slot)
                found += [read_task(word, slot) for word in tasks.split() if word.startswith(begins)]
        return found

    def edges_of(self, device):
        return {int(task): [int(number) for number in before.split()] for task, before in EDGES.findall(self.waits[device])}


class Disturbance:
    """Deviations from planned times: each task varies at random by a share, up or down, and one device pauses for some
    seconds in a given step. Rules of one placement get the same random numbers, task for task."""

    def __init__(self, jitter=0.0, pause=0.0, step=0, seed=1):
        self.jitter, self.pause, self.step, self.seed = jitter, pause, step, seed

    def times(self, device, devices, per_step):
        """For each computing task of the device in turn: the factor of its planned time, and additional seconds."""
        draws = random.Random(f"{self.seed}.{device}")
        pauses_at = self.step * per_step if device == devices // 2 else None
        number = 0
        while True:
            yield 1 + self.jitter * draws.uniform(-1, 1), self.pause if number == pauses_at else 0
            number += 1


class Schedule:
    """The lines of all devices."""

    def __init__(self, text, plan, disturbance=None):
        self.table = Table(text)
        self.plan, self.stages = plan, plan["stages"]
        header = self.table.header
        self.cyclic = header["rule"] in ("cdp-v1", "cdp-v2", "2bw")
        self.workers, self.devices = int(header["workers"]), self.table.devices
        self.per_worker = max(1, len(self.stages) // self.workers)
        sizes = {parameter["name"]: parameter["bytes"] for parameter in plan["parameters"]}
        self.bytes = {str(j): stage["weight_bytes"] for j, stage in enumerate(self.stages)}
        self.bytes.update({name: sizes[tie[0]] for name, tie in self.table.ties.items()})
        self.flops = plan["timing"]["compute_s"] * plan["cluster"]["flops"]
        self.tags, self.largest, self.messages, self.reduces = {}, 8, 0, False
        self.ordered = self.cyclic and (header["placement"] == "replica" or "P" in self.table.ahead)
        self.posted = self.find_posted()
        self.disturbance, self.times = disturbance or Disturbance(), None

    def tag(self, task):
        """Messages between two devices with one tag follow each other."""
        parity = task.version % 2 if task.cargo in ("w", "b") else 0
        return self.tags.setdefault((task.cargo, task.name, task.worker, parity), len(self.tags) + 16)

    def bytes_of(self, task):
        if task.cargo in ("a", "g"):
            return self.stages[int(task.name)]["boundary_bytes"]
        size = self.bytes[task.name]
        if task.piece is None:
            return size
        # At most 64 pieces, multiples of 64 bytes, all equal except for the last.
        length = -(-size // (64 * min(64, -(-size // self.plan["piece_bytes"])))) * 64
        return min(length, size - task.piece * length)

    def ahead(self, task):
        return self.table.ahead[task.cargo if task.piece is None else task.cargo.upper()]

    def find_posted(self):
        """The slots in which receives of sums are posted, where sums are sent in that order: by sender, receiver and tag.
        Messages between two devices with one tag follow each other."""
        posted = collections.defaultdict(collections.deque)
        for device in range(self.devices if self.ordered else 0):
            for task in self.table.tasks_of(device, ("Rp", "Rs")):
                posted[task.peer, device, self.tag(task)].append(task.slot - self.ahead(task))
        return posted

    def step_of(self, task):
        """The step of a backward."""
        slot = task.slot
        if self.cyclic:
            slot -= 2 * self.per_worker * task.worker + 2 * len(self.stages) - 1 - int(task.name)
        return slot // self.plan["period_slots"]

    def buckets(self, tasks):
        """Groups reductions as the plan's timing does: for each, the number of the last one in its bucket, and for that one the
        bytes of all."""
        last_of, filled, bucket = {}, {}, []
        reductions = [number for number, task in enumerate(tasks) if task.kind == "D"]
        if any(task.kind in "CD" and task.peer is not None for task in tasks):
            raise ReplayError("broadcasts and reductions to one rank are not replayed")
        for place, number in enumerate(reductions):
            bucket.append(number)
            size = sum(self.bytes[tasks[n].name] for n in bucket)
            ends_step = place + 1 == len(reductions) or self.step_of(tasks[reductions[place + 1]]) > self.step_of(tasks[number])
            if size >= self.plan["timing"]["bucket_bytes"] or ends_step:
                last_of.update((n, number) for n in bucket)
                filled[number] = size
                bucket = []
        return last_of, filled

    def line(self, device, number, task, filled):
        """KIND SLOT AHEAD WHO TAG AMOUNT, see replay.c. Stages without operations take no time, and nobody computes them."""
        if task.kind in "SR":
            amount = self.bytes_of(task)
            self.messages += task.kind == "S"
            self.largest = max(self.largest, amount)
            if task.kind == "S" and task.cargo in "ps" and self.ordered:
                posted = self.posted[device, task.peer, self.tag(task)].popleft()
                return ["q", task.slot, posted, task.peer, self.tag(task), amount]
            if task.kind == "S":
                return ["s", task.slot, 0, task.peer, self.tag(task), amount]
            return ["r", task.slot, self.ahead(task), task.peer, self.tag(task), amount]
        if task.kind in "FB":
            stage = self.stages[int(task.name)]
            share = stage["forward_share" if task.kind == "F" else "backward_share"]
            over, more = next(self.times)
            amount = self.flops * share * over + more * self.plan["cluster"]["flops"]
            if amount > 0:
                return ["c", task.slot, 0, self.step_of(task) if task.kind == "B" else -1, 0, amount]
            return ["u", task.slot, 0, 0, 0, 0]
        if number in filled:
            self.reduces = True
            self.largest = max(self.largest, -(-filled[number] // self.devices))  # it goes round in parts
            return ["a", task.slot, 0, 0, 0, filled[number]]
        return ["u", task.slot, 0, 0, 0, 0]

    def lines_of(self, device):
        tasks, edges = self.table.tasks_of(device), self.table.edges_of(device)
        last_of, filled = self.buckets(tasks)
        members = collections.defaultdict(list)
        for number, last in last_of.items():
            members[last].append(number)
        lines, computed = [], None
        self.times = self.disturbance.times(device, self.devices, 2 * len(self.stages))
        first = next(task.slot for task in tasks if task.kind in "FB")
        if first > 0 and self.cyclic:  # devices begin one after another
            lines.append(["w", 0, 0, 0, 0, self.flops / self.plan["period_slots"] * first, 0])
        for number, task in enumerate(tasks):
            before = set(edges.get(number, ()))
            # Tasks that wait for a reduction wait for the last one of its bucket, which waits for all of them.
            if last_of.get(number, number) == number and last_of:
                before = {last_of.get(n, n) for n in before} | {n for n in members[number] if n != number}
            if task.kind in "FB":
                before |= {computed} - {None}
                computed = number
            lines.append([*self.line(device, number, task, filled), len(before), *sorted(before)])
        return lines

    def write(self, directory):
        """A file for each device; returns the number of ranks."""
        for device in range(self.devices):
            with open(os.path.join(directory, f"{device}.txt"), "w") as file:
                file.writelines(" ".join(map(str, line)) + "\n" for line in self.lines_of(device))
        return (3 if self.reduces else 2) * self.devices


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
    """A line for each rank with its host; ranks of one device share a host."""
    return "".join(f"d{rank % devices}\n" for rank in range(ranks))
