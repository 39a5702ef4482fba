#!/usr/bin/env python3
"""PyTorch as models.py measures it: the counterpart of models.c, with the same commands and answers.

    about
    warm MODEL BATCH IMAGE CLASSES SEQ THREADS
    run MODEL BATCH IMAGE CLASSES SEQ THREADS MIN_SECONDS

BATCH is the whole batch, which all THREADS work on together. The networks are torchvision's own where it has them.
A step is forward, loss and backward in training mode; no optimizer. Gradients are set to None before each step,
which is what PyTorch recommends for speed. With --channels-last, image models get that memory format. With
CAROUSEL_PEER_AUTOCAST=bf16 in the environment, forward and loss run under torch.autocast to bf16.
"""

import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden"))
import make_golden  # noqa: E402: mlp, resnet20 and vit-tiny, which torchvision does not have

SMALL_IMAGE = 64  # up to this size residual networks have the CIFAR stem


# ---- models -----------------------------------------------------------------------------------------------


def resnet(build, image, classes):
    model = build(num_classes=classes)
    if image <= SMALL_IMAGE:
        model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    return model


class Block(nn.Module):
    """GPT-2's, with as few passes over memory as PyTorch's operations allow."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x, mask):
        B, T, E = x.shape
        H, D = self.heads, E // self.heads
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4).reshape(3, B * H, T, D).unbind(0)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(D))
        y = torch.bmm(F.softmax(scores, dim=-1), v)
        return self.proj(y.view(B, H, T, D).transpose(1, 2).reshape(B, T, E))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, context, width, depth, heads, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("mask", torch.triu(torch.full((context, context), -math.inf), 1))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        T = tokens.shape[1]
        x, mask = self.wte(tokens) + self.wpe.weight[:T], self.mask[:T, :T]
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.ln_f(x), self.wte.weight)


# Name: how to build it, and the defaults for zeros in a command: image and classes, or SEQ and vocabulary.
IMAGE_MODELS = {
    "mlp": (lambda image, classes: make_golden.mlp(image_size=image, classes=classes), 32, 10),
    "resnet20": (lambda image, classes: make_golden.resnet20(image_size=image, classes=classes), 32, 10),
    "resnet18": (lambda image, classes: resnet(torchvision.models.resnet18, image, classes), 224, 1000),
    "resnet50": (lambda image, classes: resnet(torchvision.models.resnet50, image, classes), 224, 1000),
    "vit-tiny": (lambda image, classes: make_golden.vit_tiny(image_size=image, classes=classes), 32, 10),
    "vit-b16": (lambda image, classes: torchvision.models.vit_b_16(image_size=image, num_classes=classes), 224, 1000),
}
TOKEN_MODELS = {
    "gpt2-nano": (lambda: GPT2(128, 192, 6, 6, 256), 128, 256),
    "gpt2": (lambda: GPT2(1024, 768, 12, 12, 50257), 1024, 50257),
}


def make(name, batch, image, classes, seq):
    torch.manual_seed(1)
    if name in TOKEN_MODELS:
        build, own_seq, vocabulary = TOKEN_MODELS[name]
        shape = (batch, seq or own_seq)
        return build(), torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, shape)
    build, own_image, own_classes = IMAGE_MODELS[name]
    image, classes = image or own_image, classes or own_classes
    return build(image, classes), torch.randn(batch, 3, image, image), torch.randint(0, classes, (batch,))


# ---- commands ---------------------------------------------------------------------------------------------


class Peer:
    """Keeps the latest model, so that it is warm in later rounds."""

    def __init__(self, channels_last):
        self.key, self.channels_last = None, channels_last
        self.autocast = os.environ.get("CAROUSEL_PEER_AUTOCAST") == "bf16"

    def step(self):
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), self.labels.flatten())
        loss.backward()
        return loss

    def timed(self, steps):
        begin = time.perf_counter()
        for _ in range(steps):
            self.loss = self.step()
        self.step_seconds = (time.perf_counter() - begin) / steps
        return self.step_seconds * steps

    def warm(self, name, batch, image, classes, seq, threads):
        key = (name, batch, image, classes, seq, threads)
        if key != self.key:
            self.key = self.model = None
            torch.set_num_threads(threads)
            self.model, self.inputs, self.labels = make(name, batch, image, classes, seq)
            if self.channels_last and self.inputs.dim() == 4:
                self.model = self.model.to(memory_format=torch.channels_last)
                self.inputs = self.inputs.to(memory_format=torch.channels_last)
            self.model.train()
            self.timed(1)
            self.timed(1)
            self.key = key
        parameters = sum(p.numel() for p in self.model.parameters())
        return {"parameters": parameters, "loss": self.loss.item(), "threads": torch.get_num_threads()}

    def run(self, name, batch, image, classes, seq, threads, seconds):
        self.warm(name, batch, image, classes, seq, threads)
        steps = max(1, round(seconds / self.step_seconds))
        elapsed = self.timed(steps)
        return {"seconds": elapsed, "steps": steps, "samples_per_s": batch * steps / elapsed}

    def answer(self, words):
        if words[:1] == ["about"]:
            return {"torch": torch.__version__, "torchvision": torchvision.__version__}
        if words[:1] == ["warm"] and len(words) == 7:
            return self.warm(words[1], *map(int, words[2:7]))
        if words[:1] == ["run"] and len(words) == 8:
            return self.run(words[1], *map(int, words[2:7]), float(words[7]))
        raise ValueError("not a command; see the head of torch_peer.py")


def main():
    torch.set_flush_denormal(True)  # as ours does
    peer = Peer("--channels-last" in sys.argv[1:])
    for line in sys.stdin:
        try:
            answer = peer.answer(line.split())
        except Exception as error:  # report any error to the driver
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
