#!/usr/bin/env python3
"""Whether what `carousel plan --compare` says against the cycle is all that its tables show. Reads that output.

    carousel plan ... --compare | tests/cli/plan_judgement.py

For each placement and cyclic rule, each number that is larger than dp's there must stand in a line of the judgement.
"""

import re
import sys

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "us": 1e-6, "ms": 1e-3, "s": 1}
SIZE = r"[\d.]+ [kMGTP]?B"
PLACE = r"^(shared|replica|zero|pipeline|grid) +(\S+) +\d+\+? +"
FIRST = re.compile(PLACE + rf"({SIZE}) +({SIZE}) +[\d.]+ +({SIZE}) +\d+ .* ([\d.]+)$")
SECOND = re.compile(PLACE + rf"({SIZE})\*? +[\d.]+ [mu]?s +([\d.]+ [mu]?s) ")


def value(text):
    number, _, unit = text.partition(" ")
    return float(number) * UNITS.get(unit, 1)


def read(lines):
    rows = {}
    for line in lines:
        if found := FIRST.match(line):
            place, rule, device, total, weights, time = found.groups()
            rows[place, rule] = {"device": device, "total": total, "weights": weights, "time": time}
        elif found := SECOND.match(line):
            place, rule, memory, step = found.groups()
            rows[place, rule].update({"memory": memory, "step": step})
    return rows


def main():
    lines = sys.stdin.read().split("\n")
    said = lines[next(n for n, line in enumerate(lines) if line.startswith("Where cyclic")) + 1 :]
    rows, failures, found = read(lines), 0, 0
    for (place, rule), row in rows.items():
        dp = rows.get((place, "dp"))
        if rule not in ("cdp-v1", "cdp-v2") or not dp:
            continue
        about = [line for line in said if re.match(rf"- {place}, [^:]*{rule}[^:]*, beside dp: ", line)]
        more = {name for name in row if value(row[name]) > value(dp[name])}
        if "step" in more:
            more.discard("time")
        if place == "shared":
            more.discard("total")
        for name in more:
            found += 1
            if not any(re.search(rf" {re.escape(row[name])}[^,;]*, not {re.escape(dp[name])}", line) for line in about):
                print(f"{place} {rule}: {name} {row[name]} beside {dp[name]} is not named in {about}")
                failures += 1
        if about and not more:
            print(f"{place} {rule}: nothing is shown, but said is {about}")
            failures += 1
    if not found:
        print("nothing was found to be said")
    return 1 if failures or not found else 0


sys.exit(main())
