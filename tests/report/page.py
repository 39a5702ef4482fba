#!/usr/bin/env python3
"""The report's page in a browser: it opens without a word in the console, its charts have the extents of the data, and
it can be used.

    CAROUSEL=PROGRAM tests/report/page.py

Wants Chromium (another one: CHROMIUM=PROGRAM). Ends with 77, "skipped", where there is none.
"""

import json
import os
import subprocess
import sys
import tempfile

import browser

HERE = os.path.dirname(os.path.abspath(__file__))
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAIL: " + what, file=sys.stderr)


def near(a, b, tolerance=1e-9):
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1)


def look(chromium, page):
    """What the driver saw of a page, and what the console was told."""
    chromium.open(page)
    with open(os.path.join(HERE, "driver.js")) as file:
        seen = chromium.run(file.read())
    seen["problems"] = chromium.problems()
    return seen


def read_run(root, name):
    run = {}
    for file in ("summary", "timeline", "config"):
        path = os.path.join(root, name, file + ".json")
        if os.path.exists(path):
            with open(path) as text:
                run[file] = json.load(text)
    with open(os.path.join(root, name, "metrics.jsonl")) as text:
        run["metrics"] = [json.loads(line) for line in text if line.endswith("\n")]
    return run


def extents_of(seen, chart, run=None):
    found = [one for one in seen["extents"] if one["chart"] == chart and one.get("run") == run]
    check(len(found) == 1, f"{len(found)} charts of {chart} {run or ''} where one was expected")
    return found[0] if found else {}


def check_extent(seen, chart, run, axis, values):
    extent = extents_of(seen, chart, run)
    for end, value in (("Min", min(values)), ("Max", max(values))):
        got = float(extent.get(axis + end, "nan"))
        check(near(got, value), f"{chart} {run or ''}: {axis}{end} is {got}, the data's {value}")


def total_memory(workers):
    """The sum over workers at every moment."""
    events = sorted((when, worker, live) for worker, points in enumerate(workers) for when, live in points)
    now = [points[0][1] for points in workers]
    sums = []
    for place, (when, worker, live) in enumerate(events):
        now[worker] = live
        if place + 1 == len(events) or events[place + 1][0] != when:
            sums.append(sum(now))
    return sums


def check_charts(seen, runs):
    steps = [line["step"] for run in runs.values() for line in run["metrics"]]
    check_extent(seen, "loss", None, "x", steps)
    check_extent(seen, "evaluation", None, "x", [50, 9000])
    for name, run in runs.items():
        if "timeline" not in run:
            continue
        timeline = run["timeline"]
        workers = timeline["memory"]["workers"]
        times = [time for task in timeline["tasks"] for time in task[:2]]
        check_extent(seen, "schedule", name, "x", times + [point[0] for points in workers for point in points])
        check_extent(seen, "memory", name, "x", [point[0] for points in workers for point in points])
        memory = extents_of(seen, "memory", name)
        check(near(float(memory["yMax"]), max(total_memory(workers))), f"memory {name}: {memory['yMax']} is not the sum's peak")
        check(near(max(total_memory(workers)), timeline["memory"]["measured_peak_bytes"]), "the test's own sum is wrong")
    slots = runs["replica"]["timeline"]["bytes_per_slot"]
    check_extent(seen, "traffic", "replica", "x", [0, len(slots["plan"]) - 1])
    check_extent(seen, "traffic", "replica", "y", slots["plan"] + slots["measured"])
    partitions = [one for one in seen["extents"] if one["chart"] == "partition"]
    check(len(partitions) == 1 and partitions[0]["stages"] == "8", "runs with one partition do not share its figure")
    classes = [one for one in seen["extents"] if one["chart"] == "classes"]
    check([(one["run"], one["right"], one["samples"]) for one in classes] == [("dp", "7", "8")],
          f"the classes are not those of confusion.json: {classes}")


def width(view):
    return view["max"] - view["min"]


def check_zoom(seen):
    first = seen["atFirst"]["gantt"]
    check(seen["atFirst"]["all"], "'all' can be pressed though all is shown")
    check(seen["wheelWithoutFocus"]["gantt"] == first, "the wheel zooms a chart that was not clicked")
    check(width(seen["wheel"]["gantt"]) < 0.8 * width(first), "the wheel does not zoom")
    check(not seen["wheel"]["all"], "'all' cannot be pressed though a part is shown")
    check(seen["wheel"]["ink"] != seen["atFirst"]["ink"], "zooming does not draw anew")
    check(near(width(seen["arrow"]["gantt"]), width(seen["wheel"]["gantt"])), "an arrow key changes the zoom")
    check(seen["arrow"]["gantt"]["min"] > seen["wheel"]["gantt"]["min"], "an arrow key does not move")
    check(width(seen["plus"]["gantt"]) < 0.8 * width(first), "+ does not zoom")
    for name in ("reset", "doubleClick", "button"):
        check(seen[name]["gantt"] == first, f"{name} does not show all")
        check(seen[name]["ink"] == seen["atFirst"]["ink"], f"{name} does not draw what there was at first")
    plot = seen["plotWidth"] - 76 - 16
    check(near(width(seen["drag"]["gantt"]) / width(first), 0.2 * seen["plotWidth"] / plot, 0.02), "dragging does not zoom to what was marked")
    check(near(width(seen["select"]["memory"]) / width(first), 0.25, 0.02),
          f"marking a range in the memory chart zooms to {seen['select']['memory']}")
    for name in ("wheel", "arrow", "reset", "plus", "drag", "select"):
        check(seen[name]["memory"] == seen[name]["gantt"], f"{name}: memory and schedule show different times")
    check(seen["laneRows"] == 2, "by threads there are not two rows")
    inks = [seen[name]["ink"] for name in ("button", "byLanes", "byVersion")]
    check(len(set(inks)) == 3, "rows and colours draw the same")
    check("stage" in seen["tip"] and "weights" in seen["tip"], f"the pointer is told: '{seen['tip']}'")


def check_page(seen):
    check(seen["problems"] == [], f"the console says {seen['problems']}")
    check(seen["ready"] == "true", "the script did not come to its end")
    check(seen["resources"] == 0, "the page asks for something else")
    check(seen["overflow"] <= 0, f"the page is {seen['overflow']} pixels wider than the window")
    check(seen["unnamed"] == 0, f"{seen['unnamed']} elements have no name")
    check(seen["title"] == "Made & <up>" == seen["heading"], f"the title is '{seen['title']}'")
    want = ["runs", "memory", "schedule", "learning", "classes", "traffic", "numbers", "partition"]
    check(seen["sections"] == want, f"the sections are {seen['sections']}")
    check("Made-up processor </script> & <b>sons</b>" in seen["numbers"], "text of a file is not shown as it is")
    for part in ("summary.json is missing", "timeline.json is missing", "ends in the middle of a line"):
        check(part in seen["notes"], f"'{part}' is not noted")
    check("0.64 of what dp held" in seen["headlines"][1], f"cdp-v2 is described as '{seen['headlines'][1]}'")
    check("all workers together" in seen["headlines"][1], f"it is not said of what the peak is: '{seen['headlines'][1]}'")
    check("all ranks together" in seen["headlines"][2] and "on a rank" in seen["headlines"][2],
          f"over ranks it is not said of what the peak is: '{seen['headlines'][2]}'")
    for part in ("peak of all workers together", "largest rank's peak", "sum of all ranks' peaks"):
        check(part in seen["numbers"], f"the table has no '{part}'")
    themes = {name: (theme, ground) for name, theme, ground in seen["themes"]}
    check(themes["Theme: light"][0] == "light" and themes["Theme: dark"][0] == "dark", f"the themes are {themes}")
    check(themes["Theme: light"][1] != themes["Theme: dark"][1], "light and dark look the same")
    check(seen["printed"] == ["light", 680], f"printed, the page is {seen['printed']}")


def make_page(work, names, *options):
    page = os.path.join(work, "page.html")
    subprocess.run([os.environ["CAROUSEL"], "report", *names, "-o", page, *options], check=True, cwd=work,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return page


def main():
    program = browser.find()
    if not program:
        print("SKIPPED: there is no Chromium, so nobody has looked at the report's page (Debian: chromium)", file=sys.stderr)
        return 77
    names = ["dp", "cdp-v2", "replica", "bare"]
    # The browser may still write into its profile while it ends.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        subprocess.run([sys.executable, os.path.join(HERE, "make_runs.py"), work], check=True)
        chromium = browser.Browser(program, os.path.join(work, "profile"))
        try:
            seen = look(chromium, make_page(work, names, "--title", "Made & <up>"))
            check_page(seen)
            check_charts(seen, {name: read_run(work, name) for name in names})
            check_zoom(seen)
            # A run that has nothing but its metrics makes a page, too.
            bare = look(chromium, make_page(work, ["bare"]))
            check(bare["problems"] == [], f"with one bare run the console says {bare['problems']}")
            check(bare["sections"] == ["runs", "learning", "numbers"], f"a bare run has the sections {bare['sections']}")
        finally:
            chromium.close()
    print("all well" if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
