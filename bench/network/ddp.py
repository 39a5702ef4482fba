#!/usr/bin/env python3
"""One of the processes of PyTorch's DistributedDataParallel with gloo, for ranks.py.

    ddp.py RANK RANKS FILE MODEL BATCH IMAGE CLASSES WIDTH DEPTH SECONDS STEPS

BATCH is per process; WIDTH and DEPTH are mlp's, 0 for its defaults. The processes meet through FILE. Forward and
backward take SECONDS, as with the program's --step-seconds: each portion (a layer's forward; backward from one
parameter's gradient to the next) takes its share, by its processor time in the warm-up steps, and sleeps for the rest.
Prints one line of JSON: `ends`, the times at which steps ended; `sends`, [when, bytes] of each bucket of gradients given
to the all-reduce; and `compute_s`, the time of a step's computation, including the update. Times are of the monotonic
clock, which all processes of the machine share. The first steps, which warm up and let DDP arrange its buckets, are left
out."""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch_peer  # noqa: E402
import torch_training  # noqa: E402


WARM_STEPS = 5


class Pace:
    """Makes portions of this thread's computation take their share of a step. On a CPU, backward runs in the thread that
    calls it."""

    def __init__(self, seconds):
        self.seconds, self.measured, self.shares = seconds, [], None
        self.spent = 0

    def begin(self):
        self.piece = 0
        self.wall, self.processor = time.monotonic(), time.thread_time()

    def end(self, *_):
        if not self.shares:
            self.measured[-1].append(time.thread_time() - self.processor)
        else:
            left = self.wall + self.seconds * self.shares[self.piece] - time.monotonic()
            if left > 0:
                time.sleep(left)
            self.spent += time.monotonic() - self.wall
            self.piece += 1
        self.wall, self.processor = time.monotonic(), time.thread_time()

    def settle(self):
        """Computes the shares: the median of each portion over the steps so far."""
        pieces = [statistics.median(times) for times in zip(*self.measured)]
        self.shares = [piece / sum(pieces) for piece in pieces]


class Peer(torch_training.TrainingPeer):
    def __init__(self, pace, sends):
        super().__init__(wrap=self.parallel)
        self.pace, self.sends = pace, sends

    def parallel(self, model):
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self.pace.end)
        for parameter in model.parameters():
            parameter.register_hook(self.pace.end)  # before DDP gets the gradient
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, self.give)
        return model

    def give(self, group, bucket):
        self.sends.append([time.monotonic(), bucket.buffer().numel() * bucket.buffer().element_size()])
        return default_hooks.allreduce_hook(group, bucket)

    def step(self):
        self.pace.measured.append([])
        self.pace.begin()
        return super().step()


def time_optimizer(pace):
    make = torch_training.make_optimizer

    def make_timed(parameters):
        optimizer = make(parameters)
        update = optimizer.step

        def step():
            begin = time.monotonic()
            update()
            pace.spent += time.monotonic() - begin

        optimizer.step = step
        return optimizer

    torch_training.make_optimizer = make_timed


def main():
    rank, ranks, file, name, *numbers = sys.argv[1:]
    seconds, steps = float(numbers[5]), int(numbers[6])
    batch, image, classes, width, depth = map(int, numbers[:5])
    if width or depth:
        variant = {key: value for key, value in (("width", width), ("depth", depth)) if value}
        mlp = torch_peer.make_golden.mlp
        torch_peer.IMAGE_MODELS["mlp"] = (lambda x, c: mlp(image_size=x, classes=c, **variant), 32, 10)
    torch.set_flush_denormal(True)  # as ours does
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(ranks))
    pace, sends, ends = Pace(seconds), [], []
    time_optimizer(pace)
    peer = Peer(pace, sends)
    peer.warm(name, batch, image, classes, 0, 1)
    peer.timed(WARM_STEPS)
    pace.measured = pace.measured[2:]  # the first ones allocate memory and buckets
    pace.settle()
    peer.timed(1)
    sends.clear()
    pace.spent = 0
    ends.append(time.monotonic())
    for _ in range(steps):
        peer.timed(1)
        ends.append(time.monotonic())
    torch.distributed.barrier()
    print(json.dumps({"ends": ends, "sends": sends, "compute_s": pace.spent / steps}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
