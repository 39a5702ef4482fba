"""Network namespaces connected by links of limited rate: a network of several hosts on one machine.

    NAME-hub   the bridge, and mpirun
    NAME-0 ..  one for each rank: eth0, a veth pair whose other end is a port of the bridge

Nothing is created outside of these namespaces, so deleting them leaves no trace. Used by run.py."""

import json
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILY = "carousel-net-"
NETWORK = "198.18.0"  # set aside for benchmarks (RFC 2544)
SAMPLE_SECONDS = 0.004
# tbf's burst and buffer. The first must exceed a segment that TCP hands over as a whole (64 KiB); the second must be
# large enough that nothing is dropped.
BURST_BYTES, QUEUE_BYTES = 131072, 1 << 24
CONGESTION_CONTROL = "cubic"  # Linux's and Debian's default, whatever this machine is set to


class LinkError(Exception):
    pass


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise LinkError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def obstacle():
    """Why namespaces cannot be created here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"{FAMILY}{os.getpid()}-try"
    try:
        call("ip", "netns", "add", name)
        call("ip", "-n", name, "link", "add", "name", "v0", "type", "veth", "peer", "name", "v1")
        call("tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "1gbit", "burst", "131072",
             "limit", "1mb")  # fmt: skip
    except (LinkError, OSError) as error:
        return str(error)
    finally:
        remove(name)
    return None


def remove(name):
    """Removes a namespace and the processes in it."""
    try:
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    except OSError:
        pass


def sweep():
    """Removes what killed benches have left behind."""
    for line in call("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name[len(FAMILY) :].split("-")[0] if name.startswith(FAMILY) else ""
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            remove(name)


class Links:
    """Use as `with Links(4) as links`."""

    def __init__(self, ranks):
        self.name, self.ranks = f"{FAMILY}{os.getpid()}", ranks
        self.hub = f"{self.name}-hub"
        self.rate = None

    def __enter__(self):
        sweep()
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [self.hub, *map(self.space, range(self.ranks))]:
            remove(name)

    def space(self, rank):
        return f"{self.name}-{rank}"

    def address(self, rank):
        return f"{NETWORK}.{rank + 1}"

    def build(self):
        call("ip", "netns", "add", self.hub)
        call("ip", "-n", self.hub, "link", "set", "lo", "up")
        call("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", self.hub, "addr", "add", f"{NETWORK}.254/24", "dev", "bridge")
        call("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for rank in range(self.ranks):
            space, port = self.space(rank), f"port{rank}"
            call("ip", "netns", "add", space)
            call("ip", "-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            call("ip", "-n", self.hub, "link", "set", port, "master", "bridge", "up")
            call("ip", "-n", space, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0")
            call("ip", "-n", space, "link", "set", "lo", "up")
            call("ip", "-n", space, "link", "set", "eth0", "up")
            call("ip", "-n", space, "route", "replace", f"{NETWORK}.0/24", "dev", "eth0", "proto", "kernel", "scope", "link",
                 "src", self.address(rank), "congctl", CONGESTION_CONTROL)  # fmt: skip

    def limit(self, rate):
        """Sets the bits per second in each direction of each link; None: unlimited."""
        for rank in range(self.ranks):
            for space, device in ((self.space(rank), "eth0"), (self.hub, f"port{rank}")):
                if self.rate:
                    call("tc", "-n", space, "qdisc", "delete", "dev", device, "root")
                if rate:
                    call("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{int(rate)}bit",
                         "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))  # fmt: skip
        self.rate = rate

    def inside(self, where):
        """The start of a command that runs in the namespace of a rank, or of "hub"."""
        return ["ip", "netns", "exec", self.hub if where == "hub" else self.space(where)]

    def processes(self, rank, name):
        """The processes of a program in a rank's namespace."""
        found = []
        for pid in call("ip", "netns", "pids", self.space(rank)).split():
            try:
                with open(f"/proc/{pid}/comm") as file:
                    found += [int(pid)] if file.read().strip() == name else []
            except OSError:
                pass  # it has ended
        return found

    def goodput(self, seconds=4):
        """Bytes per second that a program can send through a link with TCP: the link's rate without headers."""
        words = [[*self.inside(rank), sys.executable, os.path.join(HERE, "goodput.py"), what, self.address(1), "5001",
                  str(seconds)] for rank, what in ((1, "receive"), (0, "send"))]  # fmt: skip
        receiver = subprocess.Popen(words[0], stdout=subprocess.PIPE, text=True)
        try:
            call(*words[1])
            output, _ = receiver.communicate(timeout=10 * seconds)
        finally:
            receiver.kill()
            receiver.wait()
        return float(output)

    def watch(self):
        return Watch(self)


class Watch:
    """Records what ranks send, with the counters of the bridge's ports. After the `with`, `samples` is [[when, rank 0's
    bytes so far, ...], ...]."""

    def __init__(self, links):
        counters = os.path.join(HERE, "counters.py")
        self.command = links.inside("hub") + [sys.executable, counters, "port", str(SAMPLE_SECONDS)]
        self.samples = []

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        output, _ = self.process.communicate()
        self.samples = json.loads(output) if output else []
