#!/usr/bin/env python3
"""Makes the files that models_golden_test.c and models_test.c compare with, using PyTorch and torchvision.

    python3 tests/golden/make_golden.py [DIRECTORY]

golden_*.safetensors   one small variant of each model: weights, a batch, and what PyTorch makes of them
                       (logits, loss, the gradient of every parameter, running statistics, evaluation)
state_dict_*.txt       the full-size models: name, shape, and mean, deviation and largest magnitude of the
                       initial values of each entry of the state dict

PyTorch computes in double precision from weights and inputs that are exact in single precision, so the
numbers are the truth to a float's last bits. A case is only written if PyTorch's own single precision comes
within FLOAT_TOLERANCE of it: a case so badly conditioned that it cannot would prove nothing.

Made with torch 1.13 and torchvision 0.14, on one thread.
"""

import json
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1
from torchvision.models.vision_transformer import VisionTransformer

FLOAT_TOLERANCE = 1e-5


# ---- models -----------------------------------------------------------------------------------------------


def mlp(width=512, depth=4, classes=10, image_size=32):
    layers, features = [nn.Flatten()], 3 * image_size * image_size
    for _ in range(depth):
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


class PadShortcut(nn.Module):
    """He et al.'s option A: every stride-th pixel, zeros for the new channels."""

    def __init__(self, channels, stride):
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x):
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.channels - x.shape[1]))


class ResNet(nn.Module):
    """torchvision's ResNet from torchvision's blocks, with a free width, both stems and both kinds of shortcut."""

    def __init__(self, block, blocks, width, classes, image_size, large_stem, projection):
        super().__init__()
        large = large_stem and image_size > 64
        self.conv1 = nn.Conv2d(3, width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stages = len(blocks)
        channels = width
        for s, count in enumerate(blocks):
            stage = []
            for b in range(count):
                planes, stride, shortcut = width << s, 2 if s > 0 and b == 0 else 1, None
                out = planes * block.expansion
                if stride != 1 or channels != out:
                    if projection:
                        shortcut = nn.Sequential(conv1x1(channels, out, stride), nn.BatchNorm2d(out))
                    else:
                        shortcut = PadShortcut(out, stride)
                stage.append(block(channels, planes, stride, shortcut))
                channels = out
            setattr(self, f"layer{s + 1}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for s in range(self.stages):
            x = getattr(self, f"layer{s + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet20(width=16, classes=10, image_size=32):
    return ResNet(BasicBlock, [3, 3, 3], width, classes, image_size, False, False)


def resnet18(width=64, classes=1000, image_size=224):
    return ResNet(BasicBlock, [2, 2, 2, 2], width, classes, image_size, True, True)


def resnet50(width=64, classes=1000, image_size=224):
    return ResNet(Bottleneck, [3, 4, 6, 3], width, classes, image_size, True, True)


def vit(patch, width, depth, heads, classes, image_size):
    return VisionTransformer(image_size, patch, depth, heads, width, 4 * width, num_classes=classes)


def vit_tiny(width=192, depth=12, heads=3, classes=10, image_size=32):
    return vit(4 if image_size <= 64 else 16, width, depth, heads, classes, image_size)


def vit_b16(width=768, depth=12, heads=12, classes=1000, image_size=224):
    return vit(16, width, depth, heads, classes, image_size)


class Conv1D(nn.Module):
    """Hugging Face's: a linear layer whose weight is stored [in, out]."""

    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * deviation)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads, residual_deviation):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width, residual_deviation)

    def forward(self, x):
        B, T, E = x.shape
        q, k, v = (u.view(B, T, self.heads, -1).transpose(1, 2) for u in self.c_attn(x).split(E, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(E // self.heads)
        future = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, E))


class Block(nn.Module):
    def __init__(self, width, heads, residual_deviation):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, residual_deviation)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            {"c_fc": Conv1D(width, 4 * width), "c_proj": Conv1D(4 * width, width, residual_deviation)}
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, context, width, depth, heads, vocabulary):
        super().__init__()
        blocks = [Block(width, heads, 0.02 / math.sqrt(2 * depth)) for _ in range(depth)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(context, width),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(width),
            }
        )
        nn.init.normal_(self.transformer["wte"].weight, std=0.02)
        nn.init.normal_(self.transformer["wpe"].weight, std=0.02)

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1]))
        for block in t["h"]:
            x = block(x)
        return t["ln_f"](x) @ t["wte"].weight.T


def gpt2_nano(width=192, depth=6, heads=6, vocabulary=256):
    return GPT2(128, width, depth, heads, vocabulary)


def gpt2(width=768, depth=12, heads=12, vocabulary=50257):
    return GPT2(1024, width, depth, heads, vocabulary)


BUILDERS = {
    "mlp": mlp,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vit-tiny": vit_tiny,
    "vit-b16": vit_b16,
    "gpt2-nano": gpt2_nano,
    "gpt2": gpt2,
}

# ---- cases ------------------------------------------------------------------------------------------------

# File name: model, what is asked of the builder, what only the batch and the loss know.
CASES = {
    "mlp": ("mlp", dict(width=16, depth=3, classes=7, image_size=8), dict(batch=5)),
    "resnet20": ("resnet20", dict(width=4, classes=10, image_size=12), dict(batch=3)),
    "resnet18_small": ("resnet18", dict(width=3, classes=10, image_size=16), dict(batch=4, label_smoothing=0.1)),
    "resnet18_large": ("resnet18", dict(width=2, classes=5, image_size=65), dict(batch=2)),
    "resnet50": ("resnet50", dict(width=2, classes=6, image_size=24), dict(batch=5)),
    "vit_tiny": (
        "vit-tiny",
        dict(width=18, depth=2, heads=3, classes=10, image_size=16),
        dict(batch=3, label_smoothing=0.1),
    ),
    "vit_b16": ("vit-b16", dict(width=16, depth=2, heads=2, classes=5, image_size=32), dict(batch=2)),
    "gpt2_nano": ("gpt2-nano", dict(width=16, depth=2, heads=2, vocabulary=64), dict(batch=3, seq_len=12)),
    "gpt2": ("gpt2", dict(width=8, depth=2, heads=2, vocabulary=64), dict(batch=3, seq_len=17)),
}


def is_counter(name):
    """Carousel has no use for the batches that a BatchNorm has seen."""
    return name.endswith("num_batches_tracked")


def scramble(model):
    """Values that hide no mistake: nothing is zero or one, running statistics have a history."""
    scales = [m for m in model.modules() if isinstance(m, (nn.BatchNorm2d, nn.LayerNorm))]
    # Branches that start weak keep a deep network from magnifying rounding errors.
    last = {m.bn3 for m in model.modules() if isinstance(m, Bottleneck)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.2)
            elif p.dim() == 2 and not isinstance(model, nn.Sequential):
                p.normal_(0, 1 / math.sqrt(min(p.shape)))
            elif p.dim() == 3:
                p.normal_(0, 0.5)
        for m in scales:
            m.weight.uniform_(*((0.1, 0.4) if m in last else (0.5, 1.5)))
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.2)
                m.running_var.uniform_(0.5, 1.5)


def make_batch(asked, extra):
    if "seq_len" in extra:
        shape = (extra["batch"], extra["seq_len"])
        inputs = torch.randint(0, asked["vocabulary"], shape)
        labels = torch.randint(0, asked["vocabulary"], shape)
        labels[1, 3] = labels[2, 0] = -100  # PyTorch's mark for "does not count"
        return inputs, labels
    side = asked["image_size"]
    return torch.randn(extra["batch"], 3, side, side), torch.randint(0, asked["classes"], (extra["batch"],))


def run(model, inputs, labels, smoothing):
    """One training step's forward and backward, then an evaluation with the statistics from before it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model.zero_grad()
    logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)
    loss.backward()
    result = {"logits": logits, "loss": loss.reshape(1)}
    result.update({f"grad:{name}": p.grad for name, p in model.named_parameters()})
    result.update({f"after:{name}": b.clone() for name, b in model.named_buffers() if not is_counter(name)})
    model.load_state_dict(before)
    model.eval()
    result["eval_logits"] = model(inputs)
    return {name: value.detach().double() for name, value in result.items()}


def conditioning(single, double):
    """Largest relative error of single precision, by the test's own rule for gradients that are all but zero."""
    total = math.sqrt(sum(v.square().sum() for n, v in double.items() if n.startswith("grad:")))
    errors = {n: ((single[n] - v).norm() / max(v.norm(), 1e-6 * total)).item() for n, v in double.items()}
    worst = max(errors, key=errors.get)
    return errors[worst], worst


def make_case(directory, file_name):
    model_name, asked, extra = CASES[file_name]
    smoothing = extra.get("label_smoothing", 0.0)
    for seed in range(1, 100):
        torch.manual_seed(seed)
        model = BUILDERS[model_name](**asked)
        scramble(model)
        inputs, labels = make_batch(asked, extra)
        tensors = {"input": inputs if inputs.is_floating_point() else inputs.int(), "labels": labels.int()}
        tensors.update({f"param:{n}": v.clone() for n, v in model.state_dict().items() if not is_counter(n)})
        single = run(model, inputs, labels, smoothing)
        double = run(model.double(), inputs.double() if inputs.is_floating_point() else inputs, labels, smoothing)
        error, worst = conditioning(single, double)
        if error <= FLOAT_TOLERANCE:
            break
    else:
        sys.exit(f"{file_name}: no seed gives a well-conditioned case; the last had {error:.1e} at {worst}")
    tensors.update({name: value.float() for name, value in double.items()})
    path = os.path.join(directory, f"golden_{file_name}.safetensors")
    size = write_safetensors(path, {"model": model_name, **asked, **extra}, tensors)
    print(f"{path}: seed {seed}, {size} bytes, {len(tensors)} tensors, single precision within {error:.1e} ({worst})")


# ---- files ------------------------------------------------------------------------------------------------


def write_safetensors(path, metadata, tensors):
    header, blobs, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().numpy())
        dtype = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + array.nbytes]}
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return os.path.getsize(path)


def make_state_dict(directory, model_name):
    torch.manual_seed(1)
    # torchvision's own where it has one; the classes above must agree with them.
    own = {"resnet18": torchvision.models.resnet18, "resnet50": torchvision.models.resnet50}
    own["vit-b16"] = torchvision.models.vit_b_16
    model = own.get(model_name, BUILDERS[model_name])()
    trainable = sum(p.numel() for p in model.parameters())
    path = os.path.join(directory, f"state_dict_{model_name}.txt")
    with open(path, "w") as file:
        file.write(f"# {model_name}: {trainable} trainable parameters. name shape mean deviation largest\n")
        for name, value in model.state_dict().items():
            if not is_counter(name):
                shape = "x".join(str(d) for d in value.shape)
                value = value.double()
                deviation = value.std(unbiased=False).item()
                file.write(f"{name} {shape} {value.mean().item():.4g} {deviation:.4g} {value.abs().max().item():.4g}\n")
    print(f"{path}: {trainable} trainable parameters")


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    for file_name in CASES:
        make_case(directory, file_name)
    for model_name in BUILDERS:
        make_state_dict(directory, model_name)


if __name__ == "__main__":
    main()
