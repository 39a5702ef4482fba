#!/usr/bin/env python3
"""Measures each claim, keeps the raw figures, and renders tables and charts from them.

    BUILD_DIR=build bench/evidence.py [CLAIM...]              the short form: minutes, prints its tables
    BUILD_DIR=build bench/evidence.py [CLAIM...] --long       the long form: hours, into results/CLAIM.json; can be
                                                              stopped or killed and started again at any time
    bench/evidence.py --render                                docs/results.md and docs/figures from results/*.json
    bench/evidence.py --check                                 whether that would change anything

A claim is a module in claims/; README.md describes its interface. The exit code is 1 only if something could
not be measured.
"""

import argparse
import importlib
import os
import shutil
import sys
import time

sys.dont_write_bytecode = True
import render  # noqa: E402
from workers import WorkerError  # noqa: E402
from store import ROOT, WORK_VARIABLE, Store, say  # noqa: E402

# In the order in which they are measured and shown.
CLAIMS = ("memory", "communication", "network", "devices", "scale", "speed", "delay", "convolutions", "waveform",
          "recompute", "precision")


def modules(names):
    """All claims, by name."""
    there = os.path.join(ROOT, "bench", "claims")
    return {name: importlib.import_module(f"claims.{name}") for name in names
            if os.path.exists(os.path.join(there, f"{name}.py"))}  # fmt: skip


def measure(name, claim, options):
    """Returns whether everything could be measured."""
    store = Store(name, claim.QUESTION, options.results, options.work)
    begin = time.monotonic()
    if options.again:
        store.forget(options.only)
    try:
        claim.measure(store, options)
    except WorkerError as error:
        store.failed.append(str(error))
    for error in store.failed:
        say(f"evidence: {name}: {error}")
    if not options.long:
        print(f"\n## {name}: {claim.QUESTION}")
        for table in claim.tables(store.raw).values() if store.runs else ():
            print(f"\n{table}")
        print(f"\n{time.monotonic() - begin:.0f} s", flush=True)
    return not store.failed


def parse_options():
    build = os.environ.get("BUILD_DIR", os.path.join(ROOT, "build"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of {', '.join(CLAIMS)} (default: all)")
    parser.add_argument("--long", action="store_true", help="the long form, into results/")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs with this in their key; of network, with all of "
                        "several texts that are separated by |")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="with --only: measure anew what is there of these runs")
    parser.add_argument("--results", help="where raw files go (default: results/, short form: a directory of work)")
    parser.add_argument("--work", default=os.environ.get(WORK_VARIABLE), help=f"runs at work (default: ${WORK_VARIABLE}"
                        " or results/ of the build)")  # fmt: skip
    parser.add_argument("--render", action="store_true", help="measure nothing; render what results/ holds")
    parser.add_argument("--check", action="store_true", help="fail if --render would change anything")
    options = parser.parse_args()
    unknown = [name for name in options.claims if name not in CLAIMS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the claims are {', '.join(CLAIMS)}")
    if options.again and not (options.only and options.claims):
        parser.error("--again needs the claims, and --only: which runs are to be measured anew")
    options.work = os.path.abspath(options.work or os.path.join(build, "results"))
    options.render = options.render or options.check
    if not options.long and not options.render:
        options.work = os.path.join(options.work, "short")
    options.results = os.path.abspath(
        options.results or (os.path.join(ROOT, "results") if options.long or options.render else options.work)
    )
    return options


def main():
    options = parse_options()
    claims = modules(options.claims or CLAIMS)
    if options.render:
        return render.render(claims, options.results, options.check)
    if not options.long:
        shutil.rmtree(options.work, ignore_errors=True)  # a short form always measures again
    good = [measure(name, claim, options) for name, claim in claims.items()]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
