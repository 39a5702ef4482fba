#!/usr/bin/python3
"""Pixels of JPEG, PNG and WebP files as Pillow's Image.open(file).convert("RGB"), every kind of colour, to the bit.

    CAROUSEL=PROGRAM tests/torch/pixels.py

Makes one file of each kind, all of one size, packs them with `carousel data pack` and compares what is stored. Ends with
77, "skipped", without Pillow.
"""
import os
import struct
import subprocess
import sys
import tempfile

try:
    from PIL import Image, features
except ImportError:
    print("SKIPPED: this Python has no Pillow", file=sys.stderr)
    sys.exit(77)

WIDTH, HEIGHT = 53, 37


def colours(mode):
    """A picture with every level of every channel, more or less."""
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.putdata([((x * 5 + y) % 256, (y * 7 + x * x) % 256, (x * y * 3) % 256) for y in range(HEIGHT) for x in range(WIDTH)])
    if mode in ("RGBA", "LA"):
        alpha = Image.new("L", (WIDTH, HEIGHT))
        alpha.putdata([(x * 9 + y * 4) % 256 for y in range(HEIGHT) for x in range(WIDTH)])
        image = image.convert("RGB" if mode == "RGBA" else "L")
        image.putalpha(alpha)
        return image
    return image.convert(mode)


def raw_png(path, depth, kind, rows, chunks=b"", interlaced=False):
    """PNG files that Pillow does not write: rows are the bytes of each row."""
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, kind, 0, 0, int(interlaced))
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def deep_rows(channels):
    """16 bits for every channel; some of them below 256."""
    def level(x, y, c):
        return (x * 9 + y + 40 * c) % 300 if (x + y) % 2 else (x * 977 + y * 313 + c * 5000) % 65536
    return [b"".join(struct.pack(">H", level(x, y, c)) for x in range(WIDTH) for c in range(channels)) for y in range(HEIGHT)]


def packed_rows(depth):
    """`depth` bits for every pixel."""
    rows = []
    for y in range(HEIGHT):
        bits = "".join(format((x * 3 + y) % (1 << depth), f"0{depth}b") for x in range(WIDTH))
        bits += "0" * (-len(bits) % 8)
        rows.append(bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8)))
    return rows


def palette_chunk(entries, transparent=False):
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    text = chunk(b"PLTE", bytes(v % 256 for i in range(entries) for v in (i * 37, i * 11 + 5, 255 - i)))
    return text + (chunk(b"tRNS", bytes([0, 128, 255][:min(entries, 3)])) if transparent else b"")


def make_files(folder):
    for quality in (30, 90):
        colours("RGB").save(f"{folder}/rgb-{quality}.jpg", quality=quality)
    colours("L").save(f"{folder}/grey.jpg")
    colours("CMYK").save(f"{folder}/cmyk.jpg")
    colours("RGB").save(f"{folder}/progressive.jpg", progressive=True, subsampling=0)
    # Adobe's marker with transform 2 makes it YCCK.
    plain = open(f"{folder}/cmyk.jpg", "rb").read()
    place = plain.find(b"Adobe\0")
    if place > 0:
        with open(f"{folder}/ycck.jpg", "wb") as file:
            file.write(plain[:place + 11] + b"\2" + plain[place + 12:])
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        colours(mode).save(f"{folder}/{mode}.png")
    colours("P").save(f"{folder}/few.png", bits=4)
    colours("RGB").quantize(7).save(f"{folder}/seven.png", transparency=3)
    colours("RGB").save(f"{folder}/named.jpg", "PNG")
    for depth in (1, 2, 4):
        raw_png(f"{folder}/grey-{depth}.png", depth, 0, packed_rows(depth))
        raw_png(f"{folder}/palette-{depth}.png", depth, 3, packed_rows(depth), palette_chunk(1 << depth, True))
    for kind, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        raw_png(f"{folder}/deep-{channels}.png", 16, kind, deep_rows(channels))
    if features.check("webp"):
        colours("RGB").save(f"{folder}/lossy.webp", quality=70)
        colours("RGB").save(f"{folder}/lossless.webp", lossless=True)
        colours("RGBA").save(f"{folder}/alpha.webp", quality=60)
        colours("RGBA").save(f"{folder}/alpha-lossless.webp", lossless=True, exact=True)
        colours("L").save(f"{folder}/grey.webp")
        if features.check("webp_anim"):
            colours("RGBA").save(f"{folder}/moving.webp", save_all=True, append_images=[colours("RGB").transpose(0)])


def stored_pixels(path, count):
    """Of a packed file whose images are all of one size."""
    size = 3 * WIDTH * HEIGHT
    with open(path, "rb") as file:
        file.seek(128)
        return [file.read(size) for _ in range(count)]


def main():
    program = os.environ["CAROUSEL"]
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        folder = f"{work}/data/train/all"
        os.makedirs(folder)
        os.makedirs(f"{work}/data/val/all")
        make_files(folder)
        names = sorted(os.listdir(folder), key=lambda name: name.encode())
        subprocess.run([program, "data", "pack", f"imagefolder:{work}/data", "-o", f"{work}/packed"], check=True,
                       stdout=subprocess.DEVNULL)
        for name, ours in zip(names, stored_pixels(f"{work}/packed", len(names))):
            theirs = Image.open(f"{folder}/{name}").convert("RGB").tobytes()
            differing = sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
            if differing:
                most = max(abs(a - b) for a, b in zip(ours, theirs))
                print(f"FAIL: {name}: {differing} of {len(theirs)} levels differ from Pillow's, by up to {most}")
                wrong += 1
    print(f"{len(names) - wrong} of {len(names)} kinds of files have Pillow's pixels")
    sys.exit(wrong > 0)


main()
