#!/usr/bin/env python3
"""PyTorch's side of moving weights to and from Carousel. Safetensors files are parsed with numpy alone.

    torch_weights.py export MODEL WEIGHTS.safetensors [--dtype F32|F16|BF16] [--classes N]
                     seeded random weights of PyTorch's model, as its state dict has them
    torch_weights.py batch MODEL BATCH.safetensors [--batch N] [--classes N]
                     seeded inputs, and what the model is in the file's metadata
    torch_weights.py logits WEIGHTS.safetensors BATCH.safetensors LOGITS.safetensors
                     what PyTorch's model makes of the batch with these weights, in evaluation
    torch_weights.py compare WEIGHTS.safetensors BATCH.safetensors LOGITS.safetensors [--tolerance 1e-4]
                     the same, compared with logits that are there: fails if the largest difference is above the
                     tolerance times the largest logit
    torch_weights.py gradients WEIGHTS.safetensors BATCH.safetensors GRADIENTS.safetensors [--tolerance 2e-2]
                     the gradient of every parameter by PyTorch in fp32, compared with those that are there: fails if
                     one differs by more than the tolerance, by Euclidean norms

MODEL is resnet18, resnet50 or vit-b16 (torchvision's own classes), gpt2 or gpt2-nano (Hugging Face's names and
layouts: gpt2 without the prefix "transformer." and with its masks, as the published file has them).
"""

import argparse
import json
import os
import struct
import sys

import numpy as np
import torch
import torchvision

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import make_golden

VOCABULARY = {"gpt2": 50257, "gpt2-nano": 256}
TORCHVISION = {"resnet18": "resnet18", "resnet50": "resnet50", "vit-b16": "vit_b_16"}


# ---- files ------------------------------------------------------------------------------------------------

NUMPY = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}


def read_safetensors(path):
    """(tensors, metadata) of a file; halves come as floats."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], NUMPY[entry["dtype"]])
        values = values.astype(np.float32) if values.dtype == np.float16 else values
        tensors[name] = values.reshape(entry["shape"]).copy()
    return tensors, metadata


def encode(array, dtype):
    """The bytes of an array and the name of their type; integers stay what they are."""
    if array.dtype != np.float32 or dtype == "F32":
        return array.tobytes(), {v: k for k, v in NUMPY.items()}[array.dtype.type]
    if dtype == "F16":
        return array.astype(np.float16).tobytes(), dtype
    bits = array.view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)  # to nearest, ties to even
    return (rounded >> 16).astype(np.uint16).tobytes(), "BF16"


def write_safetensors(path, tensors, metadata, dtype="F32"):
    header, blobs, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, array in tensors.items():
        blob, stored = encode(np.ascontiguousarray(array), dtype)
        header[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            file.write(blob)


# ---- models -----------------------------------------------------------------------------------------------


def build(name, classes):
    if name in TORCHVISION:
        return getattr(torchvision.models, TORCHVISION[name])(num_classes=classes)
    return make_golden.BUILDERS[name]()


def published_names(name, state):
    """As the file that one downloads has them."""
    if name == "gpt2":
        state = {key.removeprefix("transformer."): value for key, value in state.items()}
        for key in [k for k in state if k.endswith(".attn.c_attn.weight")]:
            mask = torch.ones(1024, 1024).tril().view(1, 1, 1024, 1024)
            state[key.replace("c_attn.weight", "bias")] = mask
    elif name == "gpt2-nano":
        state["lm_head.weight"] = state["transformer.wte.weight"]
    return state


def load(model, tensors):
    """Fills the model; everything must be there and nothing left over, but what training does not need."""
    if "wte.weight" in tensors:
        tensors = {f"transformer.{key}": value for key, value in tensors.items()}
    ignored = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
    state = {k: torch.from_numpy(v) for k, v in tensors.items() if not k.endswith(ignored)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not make_golden.is_counter(name)]
    if missing or unexpected:
        sys.exit(f"missing: {missing}; left over: {unexpected}")


# ---- commands ---------------------------------------------------------------------------------------------


def command_export(options):
    torch.manual_seed(options.seed)
    model = build(options.model, options.classes)
    make_golden.scramble(model)
    state = published_names(options.model, dict(model.state_dict()))
    write_safetensors(
        options.weights, {name: value.numpy() for name, value in state.items()}, {"format": "pt"}, options.dtype
    )


def command_batch(options):
    torch.manual_seed(options.seed + 1)
    metadata = {"model": options.model, "batch": options.batch}
    if options.model in VOCABULARY:
        metadata["seq_len"] = 32
        inputs = torch.randint(0, VOCABULARY[options.model], (options.batch, 32)).int()
        labels = torch.randint(0, VOCABULARY[options.model], (options.batch, 32)).int()
    else:
        metadata.update(classes=options.classes, image_size=224)
        inputs = torch.randn(options.batch, 3, 224, 224)
        labels = torch.randint(0, options.classes, (options.batch,)).int()
    write_safetensors(options.file, {"input": inputs.numpy(), "labels": labels.numpy()}, metadata)


def open_model(options):
    """The model with its weights, inputs and labels."""
    tensors, metadata = read_safetensors(options.batch)
    model = build(metadata["model"], int(metadata.get("classes", 0)))
    load(model, read_safetensors(options.weights)[0])
    inputs = torch.from_numpy(tensors["input"])
    return model, inputs if inputs.is_floating_point() else inputs.long(), torch.from_numpy(tensors["labels"]).long()


def compute_logits(options):
    model, inputs, _ = open_model(options)
    model.eval()
    with torch.no_grad():
        return model(inputs).numpy()


def command_logits(options):
    write_safetensors(options.logits, {"logits": compute_logits(options)}, {})


def command_compare(options):
    ours, theirs = read_safetensors(options.logits)[0]["logits"].reshape(-1), compute_logits(options).reshape(-1)
    largest, difference = np.abs(theirs).max(), np.abs(ours - theirs).max()
    share = difference / largest
    print(f"{ours.size} logits up to {largest:.4g} differ by at most {difference:.2e}, {share:.1e} of the largest")
    if not share <= options.tolerance or not theirs.std() > 0:
        sys.exit(f"more than {options.tolerance:g}")


def command_gradients(options):
    model, inputs, labels = open_model(options)
    logits = model.train()(inputs)
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    ours, errors = read_safetensors(options.logits)[0], {}
    for name, parameter in model.named_parameters():
        theirs = parameter.grad.numpy()
        errors[name] = np.linalg.norm((ours[name] - theirs).ravel()) / np.linalg.norm(theirs.ravel())
    worst = max(errors, key=errors.get)
    print(f"{len(errors)} gradients: relative errors {np.median(list(errors.values())):.1e} in the median, "
          f"{errors[worst]:.1e} at most ({worst})")  # fmt: skip
    if not errors[worst] <= options.tolerance or not np.isfinite(list(errors.values())).all():
        sys.exit(f"more than {options.tolerance:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    models = [*TORCHVISION, *VOCABULARY]
    export = commands.add_parser("export")
    export.add_argument("model", choices=models)
    export.add_argument("weights")
    export.add_argument("--dtype", choices=("F32", "F16", "BF16"), default="F32")
    batch = commands.add_parser("batch")
    batch.add_argument("model", choices=models)
    batch.add_argument("file")
    batch.add_argument("--batch", type=int, default=2)
    for command in (export, batch):
        command.add_argument("--classes", type=int, default=1000)
        command.add_argument("--seed", type=int, default=1)
    logits, compare = commands.add_parser("logits"), commands.add_parser("compare")
    for command in (logits, compare):
        for name in ("weights", "batch", "logits"):
            command.add_argument(name)
    compare.add_argument("--tolerance", type=float, default=1e-4)
    gradients = commands.add_parser("gradients")
    for name in ("weights", "batch", "logits"):
        gradients.add_argument(name)
    gradients.add_argument("--tolerance", type=float, default=2e-2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    globals()[f"command_{options.command}"](options)


if __name__ == "__main__":
    main()
