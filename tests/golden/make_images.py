#!/usr/bin/env python3
"""Makes golden_images.safetensors, which images_golden_test.c compares with, using torchvision and PIL.

    python3 tests/golden/make_images.py [DIRECTORY]

    resize/WIDTHxHEIGHT/WIDTHxHEIGHT                            levels, [height, width, 3]
    sample/WIDTHxHEIGHT/SIZE/TRAIN/SEED/EPOCH/NUMBER            what a model is fed, [3, SIZE, SIZE]

Of samples larger than 64 pixels every fourth pixel is stored, across and down. The pictures are made by a formula
that both sides know. Random draws are Carousel's: its generator is written down here once more; what is made of the
draws is torchvision's definition.

Made with torch 1.13, torchvision 0.14 and PIL 9.4.
"""

import math
import os
import sys

import numpy as np
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as F
from make_golden import write_safetensors
from PIL import Image

MASK = (1 << 64) - 1
SMALL = 64
SMALL_MEAN, SMALL_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(width, height):
    """Slopes, edges and noise."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    value = 3 * x + 2 * y * (c + 1) + (x // 5 + y // 3) % 2 * 90 + (x * x + 3 * y * y + 17 * c) % 61
    return Image.fromarray((value % 256).astype(np.uint8), "RGB")


# ---- Carousel's random numbers ----------------------------------------------------------------------------


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw(key, counter):
    return mix(key ^ mix(counter))


def uniform(key, counter):
    return (draw(key, counter) >> 40) * 2.0**-24


def sample_key(seed, epoch, number):
    key = mix(seed)
    for character in b"augmentation":
        key = mix(key ^ character)
    return draw(draw(key, epoch), number)


# ---- torchvision's transforms -----------------------------------------------------------------------------


def random_region(key, width, height):
    """RandomResizedCrop.get_params with these draws."""
    area, log_ratio = width * height, (math.log(3 / 4), math.log(4 / 3))
    for attempt in range(10):
        at = 16 + 4 * attempt
        target = area * (0.08 + (1 - 0.08) * uniform(key, at))
        ratio = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * uniform(key, at + 1))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw(key, at + 2) % (height - h + 1), draw(key, at + 3) % (width - w + 1), h, w
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * (4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def sample(width, height, size, train, seed, epoch, number):
    image, key = picture(width, height), sample_key(seed, epoch, number)
    if size <= SMALL:
        image = T.CenterCrop(size)(T.Resize(size)(image))
        if train:
            pad = size // 8
            top, left = draw(key, 1) % (2 * pad + 1), draw(key, 2) % (2 * pad + 1)
            image = F.crop(F.pad(image, pad), top, left, size, size)
    elif train:
        image = F.resized_crop(image, *random_region(key, width, height), (size, size))
    else:
        image = T.CenterCrop(size)(T.Resize(round(size * 256 / 224))(image))
    if train and draw(key, 0) & 1:
        image = F.hflip(image)
    mean, deviation = (SMALL_MEAN, SMALL_DEVIATION) if size <= SMALL else (MEAN, DEVIATION)
    tensor = F.normalize(F.to_tensor(image), mean, deviation)
    step = 1 if size <= SMALL else 4
    return tensor[:, ::step, ::step].contiguous()


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    tensors = {}
    for width, height, to_width, to_height in [(61, 43, 16, 16), (20, 14, 33, 27), (300, 200, 12, 8), (7, 90, 3, 5)]:
        resized = picture(width, height).resize((to_width, to_height), Image.Resampling.BILINEAR)
        name = f"resize/{width}x{height}/{to_width}x{to_height}"
        tensors[name] = torch.from_numpy(np.array(resized, dtype=np.float32))
    samples = [
        (32, 32, 32, 0, 1, 0, 0),  # as it is stored
        (50, 40, 32, 0, 1, 0, 0),
        (131, 97, 72, 0, 1, 0, 0),
        (132, 97, 72, 0, 1, 0, 0),  # the middle lies between two pixels
        (80, 151, 96, 0, 1, 0, 0),  # enlarged
        (400, 20, 72, 1, 5, 1, 3),  # no shape fits: the middle
        (20, 400, 72, 1, 5, 1, 3),
    ]
    samples += [(32, 32, 32, 1, 7, epoch, 123456789) for epoch in range(4)]
    samples += [(131, 97, 72, 1, 9, 2, number) for number in range(6)]
    for case in samples:
        width, height, *rest = case
        tensors[f"sample/{width}x{height}/" + "/".join(map(str, rest))] = sample(*case)
    size = write_safetensors(os.path.join(directory, "golden_images.safetensors"), {"made_by": "make_images.py"}, tensors)
    print(f"golden_images: {len(tensors)} tensors, {size} bytes")


main()
