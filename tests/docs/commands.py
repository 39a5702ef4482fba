#!/usr/bin/env python3
"""Runs the commands that README.md and the pages of docs/ show.

    CAROUSEL=build/carousel tests/docs/commands.py [PAGE...]

Every block of code that begins a line with a command of ours must say above it, in a comment of its own, what happens to it:

    <!-- run -->               each of its commands is run here, one after the other
    <!-- run                   the same, with other words: what stands for the reader's own files, or would take long
    DIR => photos
    -->
    <!-- run by users.photos -->   another test runs it
    <!-- shown: why -->        nobody does

All blocks are run in one directory with a few small files in it. A command that fails, or a mark that is missing, fails.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMAND = re.compile(r"^(carousel |mpirun |srun |sbatch |make |bench/|BUILD_DIR=)", re.M)
BLOCK = re.compile(r"(?:<!-- (?P<mark>(?:run|shown)(?:(?!-->).)*?)\s?-->\n+)?^```\w*\n(?P<body>.*?)^```$", re.M | re.S)
NOTE = re.compile(r"\s+#.*$|\s{4,}\S.*$")  # what a line says about its command


def blocks_of(path):
    """(line, mark, commands) of each block with commands of ours."""
    page = open(path).read()
    for block in BLOCK.finditer(page):
        if COMMAND.search(block["body"]):
            lines = [NOTE.sub("", line) for line in block["body"].splitlines()]
            yield page[: block.start("body")].count("\n"), block["mark"], [line for line in lines if COMMAND.match(line)]


def words_of(mark):
    """The pairs `these words => those` of a mark."""
    return [tuple(part.strip() for part in line.split("=>")) for line in mark.splitlines()[1:] if "=>" in line]


def write_png(path, shade):
    """A square of noise, 32 pixels wide, of three colours."""
    rows = b"".join(b"\0" + bytes((shade + x * y) % 256 for x in range(32 * 3)) for y in range(32))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in parts:
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))


def prepare(directory, carousel):
    """Files that commands may name: photos, a text, a cluster; and `carousel` itself."""
    for split, count in (("train", 8), ("val", 2)):
        for number, kind in enumerate(("birds", "dogs")):
            folder = os.path.join(directory, "photos", split, kind)
            os.makedirs(folder)
            for n in range(count):
                write_png(os.path.join(folder, f"{n}.png"), 100 * number + n)
    with open(os.path.join(directory, "text.txt"), "w") as file:
        file.writelines(f"To be number {n}, or not to be number {n * n}.\n" for n in range(400))
    cluster = json.load(open(os.path.join(ROOT, "bench/simgrid/ethernet.json")))
    with open(os.path.join(directory, "cluster.json"), "w") as file:
        json.dump({**cluster, "devices": 2}, file)
    os.makedirs(os.path.join(directory, "bin"))
    os.symlink(os.path.abspath(carousel), os.path.join(directory, "bin/carousel"))


def run(command, directory):
    settings = {**os.environ, "PATH": os.path.join(directory, "bin") + ":" + os.environ["PATH"], "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "EDITOR": "true"}  # fmt: skip
    done = subprocess.run(["bash", "-c", command], cwd=directory, env=settings, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace", timeout=120)  # fmt: skip
    return None if done.returncode == 0 else f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"


def try_page(path, directory, tests):
    """What is wrong with a page's blocks, and how many commands were run."""
    wrong, count, name = [], 0, os.path.relpath(path, ROOT)
    for line, mark, commands in blocks_of(path):
        if mark is None:
            wrong.append(f"{name}:{line}: no mark says who runs these commands: <!-- run -->, <!-- run by TEST -->, <!-- shown: why -->")
        elif other := re.match(r"run by (\S+)", mark):
            if other[1] not in tests:
                wrong.append(f"{name}:{line}: there is no test {other[1]}")
        elif mark.startswith("run"):
            for command in commands:
                for these, those in words_of(mark):
                    command = command.replace(these, those)
                count += 1
                if problem := run(command, directory):
                    wrong.append(f"{name}:{line}: {command}: {problem}")
    return wrong, count


def test_names():
    """The scripts' tests, by the names that CTest gives them."""
    return {f"{folder}.{os.path.splitext(file)[0]}" for folder in ("cli", "users", "mpi", "install")
            for file in os.listdir(os.path.join(ROOT, "tests", folder))}  # fmt: skip


def main():
    carousel = os.environ.get("CAROUSEL")
    if not carousel:
        sys.exit("CAROUSEL must name the program")
    docs = os.path.join(ROOT, "docs")
    pages = sys.argv[1:] or [os.path.join(ROOT, "README.md"), *sorted(os.path.join(docs, n) for n in os.listdir(docs) if n.endswith(".md"))]
    wrong, count, tests = [], 0, test_names()
    for page in pages:
        with tempfile.TemporaryDirectory() as directory:
            prepare(directory, carousel)
            found, number = try_page(page, directory, tests)
            wrong, count = wrong + found, count + number
    print("\n".join([*wrong, f"{count} commands run"]))
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
