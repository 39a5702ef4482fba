#!/usr/bin/env python3
"""The page of `carousel report --live` in a browser: it shows by itself what the run has written since, holds still while
it is zoomed or paused, and stays as it is when the run has ended.

    CAROUSEL=PROGRAM tests/report/live.py

Wants Chromium (another one: CHROMIUM=PROGRAM). Ends with 77, "skipped", where there is none.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time

import browser
import make_runs

EVERY = 0.3
LOSS = 'document.querySelector(\'figure[data-chart="loss"]\')'
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAIL: " + what, file=sys.stderr)


def ask(chromium, script):
    """The page may be on its way to the next load."""
    for _ in range(50):
        try:
            return chromium.run(script)
        except RuntimeError:
            time.sleep(0.05)
    raise RuntimeError(f"no answer to {script}")


def await_value(chromium, script, wanted, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = ask(chromium, script)
        if value == wanted:
            return value
        time.sleep(0.1)
    return value


class Run:
    """A run that goes on: it holds the lock of its directory, and writes metrics."""

    def __init__(self, directory):
        self.directory = directory
        make_runs.write_run(directory, "dp", "shared")
        for name in ("summary.json", "timeline.json", "evaluations.jsonl"):
            os.remove(os.path.join(directory, name))
        path = os.path.join(directory, "metrics.jsonl")
        with open(path) as file:
            self.lines = file.readlines()
        os.remove(path)
        self.metrics = open(path, "w")
        self.lock = open(os.path.join(directory, "lock"), "w")
        fcntl.lockf(self.lock, fcntl.LOCK_EX)
        self.made = 0

    def step(self, count):
        self.metrics.writelines(self.lines[self.made:self.made + count])
        self.metrics.flush()
        self.made += count

    def end(self):
        self.lock.close()


def follow(chromium, run, page):
    last_step = f"{LOSS} && Number({LOSS}.dataset.xMax)"
    # A page from before would not have been loaded again: this mark is gone with the first load.
    chromium.run("window.mark = 1")
    run.step(50)
    check(await_value(chromium, last_step, 149) == 149, f"the page shows step {ask(chromium, last_step)}, not 149")
    check(ask(chromium, "window.mark") is None, "the page was not loaded again")
    check(ask(chromium, 'document.getElementById("live").textContent') == "Live", "the page does not say that it is live")

    # Zoomed, or paused, it holds still.
    ask(chromium, f"{LOSS}.querySelector('.zoom button:nth-child(2)').click(), window.mark = 2")
    run.step(50)
    time.sleep(4 * EVERY)
    check(ask(chromium, "window.mark") == 2, "a page that is zoomed was loaded again")
    ask(chromium, f"document.getElementById('live').click(), {LOSS}.querySelector('.zoom button:last-child').click()")
    time.sleep(3 * EVERY)
    check(ask(chromium, "window.mark") == 2, "a page that is paused was loaded again")
    ask(chromium, "window.scrollTo(0, 60), document.getElementById('live').click()")
    check(await_value(chromium, last_step, 199) == 199, "the page did not go on after its pause")
    check(ask(chromium, "window.scrollY") == 60, f"the page was scrolled to {ask(chromium, 'window.scrollY')}, not to 60")


def main():
    program = browser.find()
    if not program:
        print("SKIPPED: there is no Chromium, so nobody has looked at a live report (Debian: chromium)", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as work:
        page = os.path.join(work, "page.html")
        run = Run(os.path.join(work, "run"))
        run.step(100)
        reporter = subprocess.Popen([os.environ["CAROUSEL"], "report", "--live", run.directory, "-o", page, "--every", str(EVERY)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        chromium = browser.Browser(program, os.path.join(work, "profile"))
        try:
            while not os.path.exists(page) and reporter.poll() is None:
                time.sleep(0.05)
            chromium.open(page)
            follow(chromium, run, page)
            run.end()
            check(reporter.wait(20) == 0, "the reporter did not end well when the run had ended")
            check(await_value(chromium, 'document.getElementById("live")', None) is None, "the last page still is live")
            check(chromium.problems() == [], f"the console says {chromium.problems()}")
        finally:
            chromium.close()
            if reporter.poll() is None:
                reporter.kill()
    print("all well" if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
