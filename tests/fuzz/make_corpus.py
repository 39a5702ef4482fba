#!/usr/bin/env python3
"""Makes the inputs that fuzzing begins with, in tests/fuzz/corpus: small ones that are sound, and some that are not.

The JPEG, PNG and WebP files want PIL (python3-pil); without it those that are there stay as they are.
"""
import hashlib
import io
import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def write(target, name, data):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as file:
        file.write(data)


# ---- safetensors ----------------------------------------------------------------------------------


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


sound = {
    "__metadata__": {"format": "pt"},
    "a.weight": tensor("F32", [2, 3], 0, 24),
    "a.bias": tensor("F16", [2], 24, 28),
    "step": tensor("I64", [], 28, 36),
    "none": tensor("U8", [4, 0], 36, 36),
}
write("safetensors", "sound", safetensors(sound, bytes(36)))
write("safetensors", "escapes", safetensors(b'{"\\u00e9\\"\\\\":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}  ', bytes(2)))
write("safetensors", "empty", safetensors({}, b""))
write("safetensors", "overlap", safetensors({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, bytes(6)))
write("safetensors", "huge", safetensors({"a": tensor("F64", [1 << 26, 1 << 26], 0, 1e15)}, bytes(8)))
write("safetensors", "length", struct.pack("<Q", 1 << 62) + b"{}")

# ---- configurations -------------------------------------------------------------------------------

every = {"flag": True, "count": 12, "rate": 0.05, "seed": 7, "name": "resnet20"}
write("config", "every", json.dumps(every).encode())
write("config", "texts", b'{"count": "12", "rate": "1e-3", "seed": "18446744073709551615", "name": null}')
write("config", "passing", b'{"config": "again.json"}')
write("config", "none", b" {}")
write("config", "nested", b'{"name": {"a": [1, 2, {"b": "\\u20ac"}]}}')
write("config", "cut", b'{"flag": tru')

# ---- files of run directories: which one, file ----------------------------------------------------

timeline = {
    "carousel_timeline": 1, "workers": 2, "stages": 2, "lanes": ["thread 0"], "kinds": ["forward", "backward"],
    "tasks": [[0, 5.5, 0, 0, 1, 1, 4, -1, 0], [6, 7, 0, 1, 0, 0, 4, 4, 0.5]],
    "memory": {"workers": [[[0, 1], [2, 3]], []], "limit_bytes": 5, "dp_peak_bytes": None},
    "messages": [[1, -1, 0, 1, 3, 100, 2]], "bytes_per_slot": {"plan": [1, 2], "measured": None},
    "partition": [{"stage": 0, "first": "a", "last": "b"}],
}
write("run", "timeline", b"\0" + json.dumps(timeline).encode())
write("run", "foreign", b"\0" + json.dumps({"carousel_timeline": 2}).encode())
write("run", "metrics", b'\1{"step": 0, "loss": 1.5, "gradient_norm": 2, "skipped": true}\n\n{"step": 1, "loss": null}\n{"st')
write("run", "evaluations", b'\2{"step": 5, "accuracy": 0.5}\n{"step": 10, "loss": 1e999}\n')

# ---- clusters -------------------------------------------------------------------------------------

link = {"bandwidth": 2.5e10, "latency": 5e-6}
cluster = {"name": "a", "devices": 64, "devices_per_node": 8, "flops": 1e14, "memory": 8e10, "inside": link, "between": link}
write("cluster", "sound", json.dumps(cluster).encode())
write("cluster", "least", json.dumps({"flops": 1, "between": link}).encode())
write("cluster", "twice", b'{"flops": 1, "flops": 1e400, "between": {"bandwidth": 1}}')
write("cluster", "nested", b'{"flops": [1], "between": {"latency": {"between": {}}}}')

# ---- tokens: choice, length of samples, file ------------------------------------------------------

llm_c = struct.pack("<256i", 20240520, 1, 40, *[0] * 253)
tokens = struct.pack("<40H", *range(50217, 50257))
write("tokens", "text", bytes([0, 7]) + b"First Citizen: Before we proceed any further, hear me speak.")
write("tokens", "text_shifted", bytes([4, 3]) + b"First Citizen: Before we proceed any further")
write("tokens", "two_texts", bytes([2, 2]) + b"one two three four five six ")
write("tokens", "bare", bytes([1, 3]) + tokens)
write("tokens", "headed", bytes([1, 3]) + llm_c + tokens)
write("tokens", "headed_wrong", bytes([1, 3]) + llm_c + tokens[:-1])
write("tokens", "look", bytes([9, 0]) + llm_c + tokens)
write("tokens", "large_token", bytes([7, 1]) + b"\xff\xff" * 20)

# ---- cifar10: choice, length of the names, names, records -----------------------------------------

names = b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n"
write("cifar10", "filled", bytes([1, len(names)]) + names + b"\x03\x80\x90")
write("cifar10", "label", bytes([1, 0, 200, 200]))
write("cifar10", "one_file", bytes([3, 2]) + b"ab\x01")
write("cifar10", "cut", bytes([0, 0]) + bytes(64))

# ---- packed ---------------------------------------------------------------------------------------


def packed(images, train, size=None, names=b"cat\0dog\0"):
    """images: (width, height, label); width 0: could not be read."""
    pixels, index = b"", b""
    for number, (width, height, _) in enumerate(images):
        offset = 128 + len(pixels) if width else 0
        index += struct.pack("<QII", offset, width, height)
        pixels += bytes([number * 40 % 256]) * (3 * width * height)
    labels = b"".join(struct.pack("<i", label) for _, _, label in images)
    tables = (b"" if size else index) + labels + names
    width, height = size or (0, 0)
    header = b"\x89CARP\r\n\x1a" + struct.pack("<II", 1, 0x01020304)
    header += struct.pack("<QQ", train, len(images) - train) + struct.pack("<IIII", 2, width, height, 0)
    header += struct.pack("<QQ", 128 + len(pixels), len(names))
    return header + hashlib.sha256(header + tables).hexdigest().encode() + pixels + tables


write("packed", "alike", packed([(4, 4, 0), (4, 4, 1), (4, 4, 1)], 2, (4, 4)))
write("packed", "indexed", packed([(5, 3, 0), (0, 0, -1), (2, 9, 1), (8, 8, 0)], 3))
write("packed", "unnamed", packed([(3, 2, 1)], 1, (3, 2), b""))
write("packed", "none", packed([], 0))

# ---- tokenizer: choice of the files and whether bytes are filled in, files ------------------------

BEHIND = ', "merges": ["t h", ["th", "e"]]}, "added_tokens": [{"id": 258, "content": "<|endoftext|>"}]}'
write("tokenizer", "whole", ('\3,"th": 256, "the": 257, "<|endoftext|>": 258}' + BEHIND).encode())
TWO = '\2,"th": 256, "ca": 257, "\u0120h": 258, "<|endoftext|>": 259}\0#version: 0.2\nt h\nc a\n\u0120 h\n'
write("tokenizer", "two", TWO.encode())
FEW = '\1{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel"}}'
write("tokenizer", "few", FEW.encode())
write("tokenizer", "number", b'\3, "th": 300}}}')
write("tokenizer", "merge", b"\2}\0a  b\n")
write("tokenizer", "no_merges", b"\2}")

# ---- jpeg: choice of the sample's size, file ------------------------------------------------------

try:
    from PIL import Image
except ImportError:
    Image = None
if Image:
    colours = Image.new("RGB", (17, 11))
    colours.putdata([(x * 15, y * 23, (x * y) % 256) for y in range(11) for x in range(17)])

    def jpeg(image, **options):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=40, **options)
        return out.getvalue()

    plain = jpeg(colours)
    write("jpeg", "rgb", b"\0" + plain)
    write("jpeg", "rgb_small", b"\3" + plain)
    write("jpeg", "grey", b"\1" + jpeg(colours.convert("L")))
    write("jpeg", "cmyk", b"\0" + jpeg(colours.convert("CMYK")))
    write("jpeg", "progressive", b"\2" + jpeg(colours, progressive=True))
    tall = jpeg(colours.resize((17, 48)))
    write("jpeg", "cut", b"\0" + tall[:-40])

# ---- png and webp: the same -------------------------------------------------------------------------

if Image:

    def encode(image, kind, **options):
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    small = colours.resize((9, 6))
    clear = small.copy()
    clear.putalpha(small.convert("L"))
    for number, mode in enumerate(("1", "L", "P", "RGB", "I")):
        write("png", mode, bytes([number % 4]) + encode(small.convert(mode), "PNG"))
    write("png", "RGBA", b"\0" + encode(clear, "PNG"))
    write("png", "few", b"\1" + encode(small.quantize(3), "PNG", bits=2, transparency=1))
    write("png", "cut", b"\1" + encode(colours, "PNG")[:-60])
    # Adam7: the passes of one pixel are one pass.
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 1)
    write("png", "interlaced", b"\1\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
          chunk(b"IDAT", zlib.compress(b"\0abc")) + chunk(b"IEND", b""))
    write("webp", "lossy", b"\0" + encode(small, "WEBP", quality=20))
    write("webp", "lossless", b"\1" + encode(small, "WEBP", lossless=True))
    write("webp", "alpha", b"\2" + encode(clear, "WEBP", quality=20))
    write("webp", "moving", b"\1" + encode(clear, "WEBP", save_all=True, append_images=[small]))
    write("webp", "cut", b"\1" + encode(colours, "WEBP", quality=20)[:-30])
