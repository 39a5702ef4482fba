#!/usr/bin/env python3
"""Writes known.h: small cases with the outputs and gradients that PyTorch computes for them.

Usage: python3 make_known.py | clang-format > known.h   (needs PyTorch; the committed file is from 1.13)

Finite differences prove that a backward belongs to its forward; these numbers prove that the forward is
the right one. Element i of tensor s (the inputs are 0 and 1, the parameters 2 to 5) is
((7 i + 3 s) mod 11 - 5) / 4 on both sides, of the gradient of the output s = 6.
"""
import torch
import torch.nn.functional as F

GRADIENT = 6


def values(slot, *shape):
    count = 1
    for extent in shape:
        count *= extent
    numbers = [((7 * i + 3 * slot) % 11 - 5) / 4 for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def attention(x, heads, causal):
    batch, tokens, triple = x.shape
    q, k, v = (part.reshape(batch, tokens, heads, -1).transpose(1, 2) for part in x.chunk(3, dim=2))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, triple // 3)


def batchnorm(x, residual, weight, bias, mean, variance, relu):
    # With a momentum of 1 the running statistics become the batch's, which is what we call their gradient.
    mean.grad, variance.grad = torch.empty(2, 2, dtype=torch.float64)
    y = F.batch_norm(x, mean.grad, variance.grad, weight, bias, training=True, momentum=1, eps=1e-5)
    y = y if residual is None else y + residual
    return y.relu() if relu else y


def patch_tokens(x, class_token, position):
    patches = x.flatten(2).transpose(1, 2)
    return torch.cat([class_token.expand(x.shape[0], -1, -1), patches], 1) + position


def shortcut(x, channels):
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, channels - x.shape[1]))


NORM = ".kind = CAR_OP_BATCHNORM, .config.batchnorm = {.eps = 1e-5, .relu = %s}"
tokens = torch.tensor([[2, 0, 2], [1, 2, 0]])
labels = torch.tensor([2, -1, 0])

# name, initialiser of the case, input shapes, parameter shapes, the function
CASES = [
    ("conv", ".kind = CAR_OP_CONV, .config.conv = {2, 3, 2, 1, true}", [(1, 2, 4, 5)], [(2, 2, 3, 3), (2,)],
     lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1)),
    ("batchnorm", NORM % "false", [(2, 2, 1, 3)], [(2,)] * 4,
     lambda x, w, b, m, v: batchnorm(x, None, w, b, m, v, False)),
    ("batchnorm-residual-relu", NORM % "true" + ", .residual = true", [(2, 2, 1, 3)] * 2, [(2,)] * 4,
     lambda x, r, w, b, m, v: batchnorm(x, r, w, b, m, v, True)),
    ("relu", ".kind = CAR_OP_RELU", [(2, 5)], [], F.relu),
    ("maxpool", ".kind = CAR_OP_MAXPOOL, .config.pool = {3, 2, 1}", [(1, 1, 5, 4)], [],
     lambda x: F.max_pool2d(x, 3, 2, 1)),
    # With a width of 11 all rows are alike: the first of equal values must win.
    ("maxpool-ties", ".kind = CAR_OP_MAXPOOL, .config.pool = {3, 2, 1}", [(1, 1, 4, 11)], [],
     lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("avgpool", ".kind = CAR_OP_AVGPOOL, .config.pool = {3, 2, 1}", [(1, 1, 5, 4)], [],
     lambda x: F.avg_pool2d(x, 3, 2, 1)),
    ("global-avgpool", ".kind = CAR_OP_GLOBAL_AVGPOOL", [(2, 2, 2, 3)], [], lambda x: x.mean((2, 3))),
    ("shortcut", ".kind = CAR_OP_SHORTCUT, .config.shortcut.stride = 2, .channels = 3", [(1, 2, 3, 4)], [],
     lambda x: shortcut(x, 3)),
    ("add", ".kind = CAR_OP_ADD", [(2, 3)] * 2, [], lambda x, y: x + y),
    ("flatten", ".kind = CAR_OP_FLATTEN", [(1, 2, 2, 3)], [], lambda x: x.flatten(1)),
    ("linear", ".kind = CAR_OP_LINEAR, .config.linear = {.out_features = 3, .bias = true}", [(2, 4)], [(3, 4), (3,)],
     F.linear),
    ("linear-in-by-out", ".kind = CAR_OP_LINEAR, .config.linear = {.out_features = 3, .bias = true, .in_by_out = true}",
     [(2, 4)], [(4, 3), (3,)], lambda x, w, b: x @ w + b),
    ("layernorm", ".kind = CAR_OP_LAYERNORM, .config.layernorm.eps = 1e-5", [(2, 5)], [(5,), (5,)],
     lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-5)),
    ("gelu", ".kind = CAR_OP_GELU", [(2, 5)], [], F.gelu),
    ("gelu-tanh", ".kind = CAR_OP_GELU, .config.gelu.tanh = true", [(2, 5)], [],
     lambda x: F.gelu(x, approximate="tanh")),
    ("attention", ".kind = CAR_OP_ATTENTION, .config.attention = {.heads = 2}", [(1, 3, 12)], [],
     lambda x: attention(x, 2, False)),
    ("attention-causal", ".kind = CAR_OP_ATTENTION, .config.attention = {.heads = 2, .causal = true}", [(1, 3, 12)], [],
     lambda x: attention(x, 2, True)),
    ("embedding", ".kind = CAR_OP_EMBEDDING, .vocabulary = 4, .positions = 4, .width = 2", [tokens], [(4, 2), (4, 2)],
     lambda t, w, p: F.embedding(t, w) + p[:3]),
    ("patch-tokens", ".kind = CAR_OP_PATCH_TOKENS", [(2, 2, 1, 3)], [(1, 1, 2), (1, 4, 2)], patch_tokens),
    ("select-token", ".kind = CAR_OP_SELECT_TOKEN, .config.select_token.index = 1", [(2, 3, 2)], [], lambda x: x[:, 1]),
    ("cross-entropy", ".kind = CAR_OP_CROSS_ENTROPY", [(3, 4), labels], [],
     lambda x, t: F.cross_entropy(x, t, ignore_index=-1).reshape(1)),
    ("cross-entropy-smoothing", ".kind = CAR_OP_CROSS_ENTROPY, .config.cross_entropy.smoothing = 0.1", [(3, 4), labels],
     [], lambda x, t: F.cross_entropy(x, t, ignore_index=-1, label_smoothing=0.1).reshape(1)),
    ("head-loss", ".kind = CAR_OP_HEAD_LOSS, .config.head_loss = {.classes = 5, .smoothing = 0.1}", [(3, 4), labels],
     [(5, 4)], lambda x, t, w: F.cross_entropy(x @ w.T, t, ignore_index=-1, label_smoothing=0.1).reshape(1)),
]


def literal(tensor):
    if tensor.dtype == torch.int64:
        return "{" + ", ".join(str(int(v)) for v in tensor.flatten()) + "}"
    return "{" + ", ".join(f"{float(v):.8g}" for v in tensor.flatten()) + "}"


def main():
    print("/* What PyTorch computes for small cases. Made by make_known.py, which tells how; do not edit. */")
    print("static const known_case known_cases[] = {")
    for name, kind, inputs, params, function in CASES:
        given = [x if isinstance(x, torch.Tensor) else values(q, *x).requires_grad_() for q, x in enumerate(inputs)]
        given_params = [values(2 + p, *shape).requires_grad_() for p, shape in enumerate(params)]
        out = function(*given, *given_params)
        out.backward(values(GRADIENT, *out.shape))
        shape = given[0].shape
        integers = [x for x in given if x.dtype == torch.int64]
        grads = [x.grad if x.dtype != torch.int64 else None for x in given] + [None] * (2 - len(given))
        grads += [p.grad for p in given_params] + [None] * (4 - len(params))
        dims = ", ".join(str(d) for d in shape)
        fields = [f'{{{{"{name}", {kind}, .shape = {{{len(shape)}, {{{dims}}}}}}}', f".out = {literal(out)}"]
        if integers:
            fields.append(f".integers = {literal(integers[0])}")
        for index, grad in enumerate(grads):
            if grad is not None:
                fields.append(f".grad[{index}] = {literal(grad)}")
        print(", ".join(fields) + "},")
    print("};")


main()
