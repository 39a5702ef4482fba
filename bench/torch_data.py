#!/usr/bin/env python3
"""torchvision as data.py measures it: an ImageFolder behind a DataLoader. Reads commands, one to a line, and answers
each with one line of JSON.

    about
    check COUNT DIR                          mean, and mean square, of the first images to evaluate on
    run SOURCE BATCH WORKERS SECONDS DIR     reads augmented images to train on, for at least that long

SOURCE is `files`, the folder, or `memory`: the same images, decoded once and kept as arrays, which is how torchvision's
own CIFAR10 has them. With 0 workers the process reads itself; with 1 a separate process reads ahead."""

import json
import multiprocessing
import os
import sys
import time

import numpy
import torch
import torchvision
from PIL import Image
from torchvision import transforms

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
NORMALIZE = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
AUGMENT = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]


class Memory(torch.utils.data.Dataset):
    """Images that have already been decoded."""

    def __init__(self, folder, transform):
        self.images = numpy.stack([numpy.asarray(folder.loader(path)) for path, _ in folder.samples])
        self.labels, self.transform = folder.targets, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def endless(loader):
    while True:
        yield from loader


def processor_seconds():
    """Processor time of this process and its readers."""
    own = os.times()
    seconds = own.user + own.system
    for child in multiprocessing.active_children():
        with open(f"/proc/{child.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


class Peer:
    def __init__(self):
        self.datasets, self.batches = {}, {}

    def dataset(self, source, directory):
        if (source, directory) not in self.datasets:
            transform = transforms.Compose(AUGMENT + NORMALIZE)
            folder = torchvision.datasets.ImageFolder(os.path.join(directory, "train"), transform)
            self.datasets[source, directory] = folder if source == "files" else Memory(folder, transform)
        return self.datasets[source, directory]

    def run(self, source, batch, workers, seconds, directory):
        key = (source, batch, workers, directory)
        if key not in self.batches:
            keep = {"persistent_workers": True} if workers else {}
            loader = torch.utils.data.DataLoader(self.dataset(source, directory), batch_size=batch, shuffle=True,
                                                 drop_last=True, num_workers=workers, **keep)  # fmt: skip
            self.batches[key] = endless(loader)
            next(self.batches[key])
        samples, elapsed, processor, begin = 0, 0, processor_seconds(), time.perf_counter()
        while elapsed < seconds or not samples:
            samples += len(next(self.batches[key])[1])
            elapsed = time.perf_counter() - begin
        processor = processor_seconds() - processor
        return {"seconds": elapsed, "samples": samples, "samples_per_s": samples / elapsed, "processor_s": processor}

    def check(self, count, directory):
        test = next(p for p in (os.path.join(directory, name) for name in ("val", "test")) if os.path.isdir(p))
        folder = torchvision.datasets.ImageFolder(test, transforms.Compose(NORMALIZE))
        images, labels = zip(*(folder[i] for i in range(count)))
        values = torch.stack(images).double()
        return {"samples": len(self.dataset("files", directory)), "labels": sum(labels), "mean": values.mean().item(),
                "square": values.square().mean().item()}  # fmt: skip

    def answer(self, line):
        command = line.split()[0]
        if command == "about":
            return {"torch": torch.__version__, "torchvision": torchvision.__version__}
        if command == "check":
            _, count, directory = line.split(maxsplit=2)
            return self.check(int(count), directory)
        if command == "run":
            _, source, batch, workers, seconds, directory = line.split(maxsplit=5)
            return self.run(source, int(batch), int(workers), float(seconds), directory)
        raise ValueError("not a command; see the head of torch_data.py")


def main():
    torch.set_num_threads(1)
    peer = Peer()
    for line in sys.stdin:
        try:
            answer = peer.answer(line.rstrip("\n"))
        except Exception as error:  # report any error to the driver
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
