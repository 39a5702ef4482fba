"""Renders docs/results.md and docs/figures from the raw files in results/.

The text of docs/results.md is written by hand. What comes from a raw file stands between two comments,

    <!-- results: CLAIM.PART -->
    <!-- /results -->

and is made anew: PART is a key of what the claim's tables() returns. Figures are docs/figures/NAME.svg, by the
claim's figures()."""

import os
import re

from store import ROOT, read_json, say

PATTERN = re.compile(r"(<!-- results: ([\w.-]+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)


def table(header, rows):
    """Markdown, with columns as wide as their widest cell."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    lines = ["| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |"
             for row in [header, *rows]]  # fmt: skip
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def setup_line(raw):
    """Where, when and with what the runs of a file were measured; a sentence for each machine and set of libraries."""
    groups = {}
    for number, setup in enumerate(raw["setups"]):
        dates = [run["date"][:10] for run in raw["runs"].values() if run["setup"] == number]
        if dates:
            alike = tuple((key, value) for key, value in setup.items() if key not in ("commit", "torch"))
            groups.setdefault(alike, []).append((setup, dates))
    lines = []
    for alike, members in groups.items():
        s = dict(alike)
        commits = ", ".join(dict.fromkeys(setup["commit"] for setup, _ in members))
        dates = sorted(date for _, dates in members for date in dates)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        torch = {setup["torch"] for setup, _ in members} - {"none", ""}
        peer = f", PyTorch {', '.join(sorted(torch))}" if torch else ""
        lines.append(f"{s['cpu']}, {s['cores']} cores, {s['system']}; Carousel {s['carousel']} at {commits}; "
                     f"{s['compiler']}, oneDNN {s['onednn']}, {s['mpi']}{peer}; {when}.")  # fmt: skip
    return f"Raw figures: [results/{raw['name']}.json](../results/{raw['name']}.json). " + " ".join(lines)


def render(claims, results):
    """Returns an exit code: 1 if the text asks for what no raw file gives."""
    parts, figures = {}, {}
    for name, claim in claims.items():
        path = os.path.join(results, f"{name}.json")
        if not os.path.exists(path):
            continue
        raw = read_json(path)
        parts[f"{name}.setup"] = setup_line(raw)
        parts.update({f"{name}.{part}": text for part, text in claim.tables(raw).items()})
        figures.update(claim.figures(raw))
    missing = []

    def fill(found):
        if found.group(2) not in parts:
            missing.append(found.group(2))
            return found.group(0)
        return f"{found.group(1)}\n{parts[found.group(2)]}\n\n{found.group(4)}"

    document = os.path.join(ROOT, "docs", "results.md")
    with open(document) as file:
        old = file.read()
    new = PATTERN.sub(fill, old)
    with open(document, "w") as file:
        file.write(new)
    for name, text in figures.items():
        with open(os.path.join(ROOT, "docs", "figures", name), "w") as file:
            file.write(text)
    count = len(PATTERN.findall(new)) - len(missing)
    say(f"docs/results.md: {count} parts; docs/figures: {', '.join(figures) or 'none'}")
    for part in missing:
        say(f"render: no raw file gives {part}")
    return 1 if missing else 0
