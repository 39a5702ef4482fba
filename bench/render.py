"""Renders docs/results.md, the README's table and docs/figures from the raw files in results/.

The text is written by hand. Parts that come from a raw file are between two comments,

    <!-- results: CLAIM.PART -->
    <!-- /results -->

and are regenerated. PART is a key of the dictionary that the claim's tables() returns, or the name of a file that its
figures() draws, which goes to docs/figures and is shown there. README.md has one such place, for the claims' headlines.
Tables too long for the page are separate files in results/, made by a claim's files(); the page has a short one with a
verdict."""

import html
import os
import re

from store import ROOT, read_json, say

DOCUMENTS = (("docs", "results.md"), ("README.md",))
HEADLINES = "all.headlines"  # a line or two per claim, for the README
VERDICTS = "all.verdicts"  # each claim's question, and how often its tables say PASS and MISS
JUDGED = re.compile(r"\b(PASS|MISS)\b(\?)?|: (met|missed)\b")
PATTERN = re.compile(r"(<!-- results: ([\w.-]+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)


def table(header, rows):
    """A Markdown table, with columns as wide as their widest cell."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    lines = ["| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |"
             for row in [header, *rows]]  # fmt: skip
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def setup_line(raw):
    """Where, when and with which versions the runs of a file were measured; a sentence for each setup."""
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


def verdict(passed):
    return "PASS" if passed else "MISS"


def page(raw, title, about, *tables_):
    """A file in results/ with tables too long for docs/results.md; tables are (heading or "", text)."""
    out = [f"# {title}", "", f"Made from [{raw['name']}.json]({raw['name']}.json) by `bench/evidence.py --render`. {about}"]
    for heading, text in tables_:
        out += ["", *([f"## {heading}", ""] if heading else []), text]
    return "\n".join([*out, ""])


def count_verdicts(texts):
    """Counts passes, misses, and results from machines that were not quiet, which are no evidence."""
    found = [match for text in texts for match in JUDGED.findall(text)]
    sure = [word for word, doubt, target in found if not doubt for word in (word or target,)]
    passed = sum(word in ("PASS", "met") for word in sure)
    return [passed, len(sure) - passed, len(found) - len(sure)]


def title_of(svg):
    return html.unescape(re.search(r"<text[^>]*>([^<]*)</text>", svg).group(1))


def made(claims, results):
    """Everything rendered from the raw files: parts of the text, and whole files by path."""
    parts, files, lines, judged = {}, {}, [], []
    for name, claim in claims.items():
        path = os.path.join(results, f"{name}.json")
        if os.path.exists(path):
            raw = read_json(path)
            parts[f"{name}.setup"] = setup_line(raw)
            tables = claim.tables(raw)
            parts.update({f"{name}.{part}": text for part, text in tables.items()})
            judged.append([claim.QUESTION, *(count or "" for count in count_verdicts(tables.values())), f"`{name}`"])
            drawn = claim.figures(raw)
            parts.update({f"{name}.{file}": f"![{title_of(text)}](figures/{file})" for file, text in drawn.items()})
            files.update({os.path.join(ROOT, "docs", "figures", file): text for file, text in drawn.items()})
            listed = claim.files(raw) if hasattr(claim, "files") else {}
            files.update({os.path.join(results, file): text for file, text in listed.items()})
            lines += claim.headline(raw) if hasattr(claim, "headline") else []
    parts[HEADLINES] = table(["", "measured"], lines)
    parts[VERDICTS] = table(["question", "PASS", "MISS", "not quiet", "claim"], judged)
    return parts, files


def filled(text, parts, missing):
    """The text with regenerated parts. Parts without a raw file are marked as such and added to `missing`."""

    def fill(found):
        opening, part, _, closing = found.groups()
        if part not in parts:
            missing.append(part)
            if part.endswith((".svg", ".setup")):
                return opening + closing
            return f"{opening}\n*Not measured yet: `bench/evidence.py {part.split('.')[0]} --long`.*\n\n{closing}"
        return f"{opening}\n{parts[part]}\n\n{closing}"

    return PATTERN.sub(fill, text)


def read_text(path):
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def render(claims, results, check=False):
    """Writes what has changed or, for a check, only reports it. Returns the exit code: 1 if a check finds a change. Missing
    measurements are reported, but no error."""
    parts, whole = made(claims, results)
    missing, changed = [], []
    texts = [os.path.join(ROOT, *path) for path in DOCUMENTS]
    files = {path: filled(read_text(path), parts, missing) for path in texts}
    files.update(whole)
    for path, text in files.items():
        if read_text(path) != text:
            changed.append(os.path.relpath(path, ROOT))
            if not check:
                with open(path, "w") as file:
                    file.write(text)
    for part in missing:
        say(f"render: no raw file gives {part}")
    if check:
        for path in changed:
            say(f"render: {path} is not what the raw files give; `bench/evidence.py --render` makes it")
        return 1 if changed else 0
    say(f"rendered: {', '.join(changed) or 'nothing has changed'}")
    return 0
