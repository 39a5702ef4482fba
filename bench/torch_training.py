#!/usr/bin/env python3
"""PyTorch as training.py measures it: torch_peer.py's networks and commands, with a whole step of training.

    torch_training.py                                                               about, warm, run: see torch_peer.py
    torch_training.py RANK RANKS FILE MODEL BATCH IMAGE CLASSES SEQ THREADS STEPS   one of DDP's processes

A step is forward, loss, backward and SGD with momentum. The same batch is used in every step, so no time goes into
data. Answers of `run` include the process's peak resident memory. A DDP process meets the others through FILE, which
must not exist before, and answers once; its BATCH is per process.
"""

import inspect
import json
import resource
import sys

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

sys.dont_write_bytecode = True
import torch_peer  # noqa: E402

LR, MOMENTUM = 0.001, 0.9  # a small rate, because overflows would change the speed of arithmetic


def make_optimizer(parameters):
    # Update whole lists of tensors in one call, if this version of PyTorch can.
    lists = {"foreach": True} if "foreach" in inspect.signature(torch.optim.SGD).parameters else {}
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, **lists)


def rss_peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class TrainingPeer(torch_peer.Peer):
    def __init__(self, wrap=lambda model: model):
        super().__init__(channels_last=False)
        self.wrap, self.trained, self.optimizer = wrap, None, None

    def step(self):
        if self.trained is not self.model:
            self.model = self.trained = self.wrap(self.model)
            self.optimizer = make_optimizer(self.model.parameters())
        loss = super().step()
        self.optimizer.step()
        return loss

    def warm(self, *words):
        return {**super().warm(*words), "rss_peak_bytes": rss_peak_bytes()}

    def run(self, *words):
        return {**super().run(*words), "rss_peak_bytes": rss_peak_bytes()}

    def answer(self, words):
        answer = super().answer(words)
        return {**answer, "rss_peak_bytes": rss_peak_bytes()} if words[:1] == ["about"] else answer


def run_rank(rank, ranks, file, name, *numbers):
    *shape, steps = map(int, numbers)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(ranks))
    peer = TrainingPeer(wrap=DistributedDataParallel)
    peer.warm(name, *shape)
    torch.distributed.barrier()
    seconds = peer.timed(steps)
    torch.distributed.barrier()
    answer = {"seconds": seconds, "steps": steps, "rss_peak_bytes": rss_peak_bytes()}
    torch.distributed.destroy_process_group()
    return answer


def main():
    torch.set_flush_denormal(True)  # as ours does
    if len(sys.argv) > 1:
        print(json.dumps(run_rank(*sys.argv[1:])))
        return
    peer = TrainingPeer()
    for line in sys.stdin:
        try:
            answer = peer.answer(line.split())
        except Exception as error:  # report any error to the driver
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
