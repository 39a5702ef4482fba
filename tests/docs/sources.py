#!/usr/bin/env python3
"""Every figure that README.md and docs/ show is made by a command, and every number of a table that was typed is printed by one.

    CAROUSEL=build/carousel tests/docs/sources.py

Figures: those of carousel itself are drawn here and compared. Those of tools/ and bench/ have checks of their own
(docs.figures, docs.design_figures, docs.results); the rest must name its command on the page that shows it.

Numbers: the tables of docs/results.md that are not rendered from a raw file, those of the benches of their own, have
their numbers from results/bench-*.txt.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIGURES = os.path.join(ROOT, "docs", "figures")
SHOWN = re.compile(r"!\[[^\]]*\]\((?:docs/)?figures/([\w.-]+)\)")
RENDERED = re.compile(r"<!-- results: .*?<!-- /results -->", re.S)
NUMBER = re.compile(r"\d[\d.,]*\d|\d")
DRAWN = {"vit-b16.svg": ["plan", "--model", "vit-b16", "--workers", "4", "--svg"]}
TYPED = "# Benches of their own"
CHECKED = ("cycle-", "design-")  # by the scripts in tools/


def read(path):
    with open(path) as file:
        return file.read()


def unmade(page, rendered):
    """Figures of a page that nothing makes or names."""
    text = read(page)
    for name in SHOWN.findall(text):
        known = name in DRAWN or name in rendered or name.startswith(CHECKED)
        if not known and f"docs/figures/{name}" not in text:
            yield f"{os.path.relpath(page, ROOT)}: no command on the page makes {name}"


def stale(carousel):
    """Figures of carousel that it draws differently now."""
    with tempfile.TemporaryDirectory() as directory:
        for name, command in DRAWN.items():
            path = os.path.join(directory, name)
            subprocess.run([carousel, *command, path], check=True, stdout=subprocess.DEVNULL)
            if read(path) != read(os.path.join(FIGURES, name)):
                yield f"docs/figures/{name}: `carousel {' '.join(command)} docs/figures/{name}` draws another one"


def unprinted():
    """Numbers of typed tables that no bench has printed."""
    printed = " ".join(read(path) for path in glob.glob(os.path.join(ROOT, "results", "bench-*.txt")))
    known = set(NUMBER.findall(printed))
    lines = RENDERED.sub(lambda found: "\n" * found[0].count("\n"), read(os.path.join(ROOT, "docs", "results.md"))).splitlines()
    for number in range(lines.index(TYPED), len(lines)):
        if lines[number].startswith("|"):
            if missing := [word for word in NUMBER.findall(lines[number]) if word not in known]:
                yield f"docs/results.md:{number + 1}: no results/bench-*.txt has {', '.join(missing)}"


def main():
    carousel = os.environ.get("CAROUSEL")
    if not carousel:
        sys.exit("CAROUSEL must name the program")
    pages = [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]
    rendered = set(re.findall(r"<!-- results: \w+\.([\w.-]+\.svg) -->", read(os.path.join(ROOT, "docs", "results.md"))))
    wrong = [line for page in pages for line in unmade(page, rendered)] + list(stale(carousel)) + list(unprinted())
    print("\n".join([*wrong, f"{len(pages)} pages read"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
