#!/usr/bin/env python3
"""PyTorch's side of generating: a GPT-2 of a folder of Hugging Face's, always choosing the likeliest token.

    torch_generate.py make DIR [--width W --depth L --heads H --vocabulary V --positions T] [--bare]
                     a folder with seeded random weights: config.json and model.safetensors; --bare leaves the prefix
                     "transformer." out and adds the masks, as the published files have them
    torch_generate.py check DIR GENERATED.json...
                     what `carousel generate --json --temperature 0` wrote is what PyTorch generates

The model is that of tests/golden/make_golden.py, written from the definition. Every token is computed from the whole
text before it, without anything kept. Where the two best logits are closer than rounding, either may be chosen.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import make_golden
import torch_weights

TIE = 1e-4


def build(config):
    return make_golden.GPT2(
        config["n_positions"], config["n_embd"], config["n_layer"], config["n_head"], config["vocab_size"]
    )


def command_make(options):
    config = {
        "model_type": "gpt2", "n_positions": options.positions, "n_embd": options.width, "n_layer": options.depth,
        "n_head": options.heads, "vocab_size": options.vocabulary, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    }  # fmt: skip
    torch.manual_seed(options.seed)
    model = build(config)
    make_golden.scramble(model)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    if options.bare:
        state = {name.removeprefix("transformer."): value for name, value in state.items()}
        for block in range(options.depth):
            mask = torch.ones(options.positions, options.positions).tril().view(1, 1, options.positions, -1)
            state[f"h.{block}.attn.bias"] = mask.numpy()
            state[f"h.{block}.attn.masked_bias"] = torch.tensor(-1e4).numpy()
    else:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    os.makedirs(options.directory, exist_ok=True)
    with open(os.path.join(options.directory, "config.json"), "w") as file:
        json.dump(config, file)
    torch_weights.write_safetensors(os.path.join(options.directory, "model.safetensors"), state, {"format": "pt"})


def check(model, path):
    with open(path) as file:
        generated = json.load(file)
    tokens, closest = list(generated["prompt_tokens"]), float("inf")
    for number, chosen in enumerate(generated["tokens"]):
        with torch.no_grad():
            logits = model(torch.tensor([tokens]))[0, -1]
        best = logits.topk(2)
        gap = (best.values[0] - best.values[1]).item()
        closest = min(closest, gap)
        if logits[chosen] < best.values[0] - TIE:
            sys.exit(f"{path}: token {number} is {chosen}, PyTorch's {best.indices[0].item()} by {gap:.3g}")
        tokens.append(chosen)
    if not generated["tokens"]:
        sys.exit(f"{path}: nothing was generated")
    print(f"{len(generated['tokens'])} tokens are PyTorch's; the closest second was {closest:.3g} below the best")


def command_check(options):
    with open(os.path.join(options.directory, "config.json")) as file:
        model = build(json.load(file)).eval()
    torch_weights.load(model, torch_weights.read_safetensors(os.path.join(options.directory, "model.safetensors"))[0])
    for path in options.generated:
        check(model, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make, compare = commands.add_parser("make"), commands.add_parser("check")
    for command in (make, compare):
        command.add_argument("directory")
    compare.add_argument("generated", nargs="+")
    make.add_argument("--bare", action="store_true")
    sizes = {"width": 48, "depth": 3, "heads": 4, "vocabulary": 256, "positions": 128, "seed": 1}
    for name, value in sizes.items():
        make.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    globals()[f"command_{options.command}"](options)


if __name__ == "__main__":
    main()
