#!/usr/bin/env python3
"""Makes training_*.safetensors, which tests/engine/training_golden_test.c compares with: a few steps of training
under each update rule, done by PyTorch from the definition.

    python3 tests/golden/make_training.py [DIRECTORY]

Three workers, three stages. Every version of the weights is kept; worker i computes step t's gradient with, for the
parameters of stage j, the version that the rule says; gradients are averaged and given to PyTorch's own optimizer,
which acts on the newest weights; with a correction of the delay (docs/delay.md), to the formula. BatchNorm's running statistics are part of the update: acc = (1-m) acc + m s_i over
the workers, then r = (1-m)^N r + acc.

As in make_golden.py PyTorch computes in double precision, and a case is only written if single precision comes close
to it. Made with torch 1.13, on one thread.
"""

import math
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from make_golden import BUILDERS, is_counter, scramble, write_safetensors

WORKERS = STAGES = 3
STEPS = 5
SEVERAL, SEVERAL_STEPS = (2, 3), 3  # micro-batches a worker; micro-batch n takes the samples of n mod 15
FLOAT_TOLERANCE = 2e-5
RULES = ("dp", "cdp-v1", "cdp-v2")
SGD = dict(lr=0.05, momentum=0.9, weight_decay=5e-4)
# A larger eps than usual: some gradients are zero but for rounding, and AdamW would make whole steps of them.
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.01)
MUON = dict(lr=0.02, momentum=0.95, weight_decay=0.01)
OPTIMIZERS = ("sgd", "adamw", "muon", "sgd-corrected", "adamw-corrected", "muon-corrected")
CORRECTION = (0.8, 1.2)  # c, a

# Model, what is asked of the builder, what only the batch knows; the operations at which stages 1 and 2 begin in
# Carousel's graph, and the first parameter of each. Parameters are in the order of operations.
CASES = {
    "mlp": (dict(width=16, depth=3, classes=5, image_size=4), dict(batch=4), (2, 4), ("3.weight", "5.weight")),
    "resnet20": (
        dict(width=2, classes=5, image_size=8),
        dict(batch=4),
        (11, 26),
        ("layer1.2.bn1.weight", "layer2.2.bn2.weight"),
    ),
    "gpt2-nano": (
        dict(width=8, depth=2, heads=2, vocabulary=24),
        dict(batch=2, seq_len=8),
        (9, 18),
        ("transformer.h.0.mlp.c_proj.weight", "transformer.h.1.mlp.c_proj.weight"),
    ),
}


def find_stages(model, firsts):
    """The stage of each entry of the state dict. A tied one has the stage of its first use: it comes first."""
    stages, stage = {}, 0
    for name in model.state_dict():
        if not is_counter(name):
            stage += stage < len(firsts) and name == firsts[stage]
            stages[name] = stage
    assert stage == STAGES - 1
    return stages


def version(rule, step, worker, stage):
    """Of a micro-batch of a step: worker `worker`'s first. Its others are never late."""
    if worker >= WORKERS:
        return step
    fresh = {"dp": True, "cdp-v1": False, "cdp-v2": worker + 1 + stage >= STAGES}[rule]
    return step if fresh else max(0, step - 1)


def run_worker(model, weights, inputs, labels):
    """Loss, gradients and the batch's statistics at these weights."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not is_counter(name):
                value.copy_(weights[name])
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 1.0  # the buffers become the batch's own statistics
    model.zero_grad()
    loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    statistics = {name: b.clone() for name, b in model.named_buffers() if not is_counter(name)}
    return loss.item(), gradients, statistics


class CorrectedSGD:
    """v_t = mu v_{t-1} + g_t; w -= lr (v_t + c (v_t - v_{t-1}) + a (g_t - g_{t-1})). v has the decay in it, g has not;
    there is no g_{-1}, so a's term begins with the second step."""

    def __init__(self, params):
        self.params = params
        self.v = [torch.zeros_like(p) for p in params]
        self.g = None

    @torch.no_grad()
    def step(self):
        c, a = CORRECTION
        gradients = [p.grad.clone() for p in self.params]
        last = self.g or gradients
        for n, p in enumerate(self.params):
            v = SGD["momentum"] * self.v[n] + gradients[n] + SGD["weight_decay"] * p
            p -= SGD["lr"] * (v + c * (v - self.v[n]) + a * (gradients[n] - last[n]))
            self.v[n] = v
        self.g = gradients


class CorrectedAdamW:
    """The same with AdamW's corrected moments, from the second step on."""

    def __init__(self, params, correction=CORRECTION):
        self.params = params
        self.correction = correction
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.g = None
        self.steps = 0

    @torch.no_grad()
    def step(self):
        (c, a), (beta1, beta2), lr = self.correction, ADAMW["betas"], ADAMW["lr"]
        gradients = [p.grad.clone() for p in self.params]
        last = self.g or gradients
        self.steps += 1
        for n, p in enumerate(self.params):
            g, before = gradients[n], self.m[n]
            self.m[n] = beta1 * before + (1 - beta1) * g
            self.v[n] = beta2 * self.v[n] + (1 - beta2) * g * g
            moved = self.m[n] / (1 - beta1**self.steps)
            if self.steps > 1:
                moved = moved + c * (moved - before / (1 - beta1 ** (self.steps - 1))) + a * (1 - beta1) * (g - last[n])
            p *= 1 - lr * ADAMW["weight_decay"]
            p -= lr * moved / ((self.v[n] / (1 - beta2**self.steps)).sqrt() + ADAMW["eps"])
        self.g = gradients


def orthogonalize(x):
    """Five steps of Newton and Schulz, with Muon's coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


def is_hidden(name, names):
    """Matrices and convolutions but the embeddings and the head, which is the last matrix (or an embedding)."""
    matrices = [n for n in names if n.endswith("weight") and not any(w in n for w in ("wte", "wpe", "bn", "ln_"))]
    tied = any("wte" in n for n in names)
    return name in (matrices if tied else matrices[:-1])


class Muon:
    """Muon, and AdamW for the rest; corrected by c times the change of the orthogonal update."""

    def __init__(self, named, correction):
        hidden = [n for n, p in named.items() if p.dim() > 1 and is_hidden(n, [m for m, q in named.items() if q.dim() > 1])]
        self.correction = correction
        self.matrices = {n: named[n] for n in hidden}
        self.momentum = {n: torch.zeros_like(p) for n, p in self.matrices.items()}
        self.last = {}
        self.rest = CorrectedAdamW([p for n, p in named.items() if n not in hidden], correction)

    @torch.no_grad()
    def step(self):
        lr, mu = MUON["lr"], MUON["momentum"]
        for n, p in self.matrices.items():
            self.momentum[n] = mu * self.momentum[n] + p.grad
            u = orthogonalize((p.grad + mu * self.momentum[n]).flatten(1)).view_as(p)
            rows, columns = u.flatten(1).shape
            if n.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):  # Hugging Face's are in x out
                rows, columns = columns, rows
            moved = u + self.correction[0] * (u - self.last.get(n, u))
            self.last[n] = u
            p *= 1 - lr * MUON["weight_decay"]
            p -= lr * max(1, rows / columns) ** 0.5 * moved
        self.rest.step()


def make_optimizer(name, named):
    params = list(named.values())
    return {
        "sgd": lambda: torch.optim.SGD(params, **SGD),
        "adamw": lambda: torch.optim.AdamW(params, **ADAMW),
        "sgd-corrected": lambda: CorrectedSGD(params),
        "adamw-corrected": lambda: CorrectedAdamW(params),
        "muon": lambda: Muon(named, (0, 0)),
        "muon-corrected": lambda: Muon(named, CORRECTION),
    }[name]()


def train(model, stages, start, inputs, labels, rule, optimizer, several=1):
    """Losses of the steps, and the weights after the last."""
    momentum = 0.1
    newest = {n: nn.Parameter(v.clone(), not n.endswith(("running_mean", "running_var"))) for n, v in start.items()}
    optimizer = make_optimizer(optimizer, {n: p for n, p in newest.items() if p.requires_grad})
    history, losses = [start], []
    inputs, labels, count = inputs.flatten(0, 1), labels.flatten(0, 1), several * WORKERS
    for t in range(STEPS if several == 1 else SEVERAL_STEPS):
        total, sums, blended = 0.0, {}, {}
        for i in range(count):
            n = (t * count + i) % len(inputs)
            weights = {n: history[version(rule, t, i, stages[n])][n] for n in start}
            loss, gradients, statistics = run_worker(model, weights, inputs[n], labels[n])
            total += loss
            for name, g in gradients.items():
                sums[name] = sums[name] + g if i > 0 else g
            for name, s in statistics.items():
                blended[name] = (1 - momentum) * blended.get(name, 0) + momentum * s
        for name, g in sums.items():
            newest[name].grad = g / count
        optimizer.step()
        with torch.no_grad():
            for name, s in blended.items():
                newest[name].copy_((1 - momentum) ** count * newest[name] + s)
        losses.append(total / count)
        history.append({n: p.detach().clone() for n, p in newest.items()})
    return torch.tensor(losses, dtype=torch.float64), history[-1]


def make_batches(asked, extra):
    """Labels that can be learnt from the inputs are not needed: 15 micro-batches are fitted anyhow."""
    shape = (STEPS, WORKERS, extra["batch"])
    if "seq_len" in extra:
        shape += (extra["seq_len"],)
        return torch.randint(0, asked["vocabulary"], shape), torch.randint(0, asked["vocabulary"], shape)
    side = asked["image_size"]
    return torch.randn(*shape, 3, side, side), torch.randint(0, asked["classes"], shape)


def run_all(model, stages, start, inputs, labels):
    """What every rule and optimizer makes of it, under the names that the file uses."""
    model.train()
    results = {}
    for rule in RULES:
        for optimizer in OPTIMIZERS:
            losses, final = train(model, stages, start, inputs, labels, rule, optimizer)
            results[f"{rule}.{optimizer}.loss"] = losses
            results.update({f"{rule}.{optimizer}:{name}": value.double() for name, value in final.items()})
        for several in SEVERAL:
            losses, final = train(model, stages, start, inputs, labels, rule, "sgd", several)
            results[f"{rule}.x{several}.loss"] = losses
            results.update({f"{rule}.x{several}:{name}": value.double() for name, value in final.items()})
    return results


def make_case(directory, model_name):
    asked, extra, cuts, firsts = CASES[model_name]
    for seed in range(1, 100):
        torch.manual_seed(seed)
        model = BUILDERS[model_name](**asked)
        scramble(model)
        stages = find_stages(model, firsts)
        inputs, labels = make_batches(asked, extra)
        start = {n: v.clone() for n, v in model.state_dict().items() if not is_counter(n)}
        single = run_all(model, stages, start, inputs, labels)
        as_double = inputs.double() if inputs.is_floating_point() else inputs
        double = run_all(model.double(), stages, {n: v.double() for n, v in start.items()}, as_double, labels)
        errors = {n: ((single[n] - v).norm() / v.norm()).item() for n, v in double.items()}
        worst = max(errors, key=errors.get)
        if errors[worst] <= FLOAT_TOLERANCE:
            break
    else:
        sys.exit(f"{model_name}: no seed gives a well-conditioned case; the last had {errors[worst]:.1e} at {worst}")
    tensors = {"inputs": inputs if inputs.is_floating_point() else inputs.int(), "labels": labels.int()}
    tensors.update({f"param:{name}": value for name, value in start.items()})
    tensors.update({f"stage:{name}": torch.tensor([stage], dtype=torch.int32) for name, stage in stages.items()})
    tensors.update({name: value.float() for name, value in double.items()})
    metadata = {"model": model_name, "cut1": cuts[0], "cut2": cuts[1], "steps": STEPS, "workers": WORKERS}
    path = os.path.join(directory, f"training_{model_name}.safetensors")
    size = write_safetensors(path, {**metadata, **asked, **extra}, tensors)
    print(f"{path}: seed {seed}, {size} bytes, single precision within {errors[worst]:.1e} ({worst})")
    check_rules_differ(double, model_name)


def check_rules_differ(results, model_name):
    """Were two rules closer than the test's tolerance, it could not tell them apart."""
    for optimizer in OPTIMIZERS:
        for a, b in (("dp", "cdp-v1"), ("dp", "cdp-v2"), ("cdp-v1", "cdp-v2")):
            names = [n.split(":")[1] for n in results if n.startswith(f"{a}.{optimizer}:")]
            apart = max(
                ((results[f"{a}.{optimizer}:{n}"] - results[f"{b}.{optimizer}:{n}"]).norm()
                 / results[f"{a}.{optimizer}:{n}"].norm()).item()
                for n in names
            )
            print(f"  {model_name} {optimizer}: {a} and {b} are {apart:.1e} apart")
            assert apart > 1e-3 and math.isfinite(apart)


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    for model_name in CASES:
        make_case(directory, model_name)


if __name__ == "__main__":
    main()
