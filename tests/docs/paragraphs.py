#!/usr/bin/env python3
"""Looks for paragraphs of more than five sentences in README.md and docs/: what is longer becomes a list, a table or a figure.

    tests/docs/paragraphs.py [PAGE...]

A line of a page is a paragraph, or an item of a list. Tables, headings, blocks of code and what is rendered from raw
files do not count.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST = 5
BLOCK = re.compile(r"^```.*?^```$|<!-- results: .*?<!-- /results -->|<!--.*?-->", re.M | re.S)
CODE = re.compile(r"`[^`]*`|\([^()]*\)")  # a sentence in brackets belongs to the one around it
END_OF = re.compile(r"[.!?:]?[.!?]['\"*)]*(?:\s+(?=[\"'*(]*(?:[A-Z0-9Ψθ`]|\[\w))|$)")


def sentences(line):
    return len(END_OF.findall(CODE.sub("x", line).strip()))


def long_ones(path):
    """(line, sentences) of each paragraph that is too long."""
    page = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), open(path).read())
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith(("|", "#", "!")) and (count := sentences(line)) > MOST:
            yield number, count


def main():
    docs = os.path.join(ROOT, "docs")
    pages = sys.argv[1:] or [os.path.join(ROOT, "README.md"), *sorted(os.path.join(docs, n) for n in os.listdir(docs) if n.endswith(".md"))]
    wrong = [f"{os.path.relpath(page, ROOT)}:{line}: a paragraph of {count} sentences, at most {MOST}"
             for page in pages for line, count in long_ones(page)]  # fmt: skip
    print("\n".join([*wrong, f"{len(pages)} pages read"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
