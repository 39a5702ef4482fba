"""Holds a trace against the plan: each row must have exactly the tasks that the plan's table has for it.

    trace_tasks.py TRACE DUMP      DUMP is what `carousel plan --dump` prints for the same run and as many steps
"""

import json
import re
import sys
from collections import defaultdict


def tasks_of_plan(path):
    """The names of the tasks of each device, in their order, as a trace writes them."""
    devices, device = defaultdict(list), None
    for line in open(path):
        if line.startswith("device "):
            device = int(line.split()[1])
        elif device is not None and ":" in line and not line.startswith("#"):
            for word in line.split(":", 1)[1].split():
                devices[device].append(re.split("[-{]", word)[0].replace("@", "@v"))
    return devices


def rows_of_trace(events):
    """By process and the row's name: the slices that are tasks, in the order of time."""
    rows = defaultdict(list)
    labels = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X" and event["cat"] not in ("operation", "wait"):
            rows[event["pid"], labels[event["tid"]]].append(event)
    for row in rows.values():
        row.sort(key=lambda event: event["ts"])
    return rows


def names(events):
    return [event["name"] for event in events]


def check(condition, message):
    if not condition:
        sys.exit("trace_tasks: " + message)


def main():
    trace = json.load(open(sys.argv[1]))
    plan = tasks_of_plan(sys.argv[2])
    rows = rows_of_trace(trace["traceEvents"])
    workers, ranks = trace["otherData"]["workers"], len(trace["otherData"]["clocks"])
    shared = trace["otherData"]["placement"] == "shared"
    # What the threads of a process did is what its devices were to do.
    for rank in range(ranks):
        did = [name for (process, _), row in rows.items() if process == rank + 1 for name in names(row)]
        planned = [name for device, row in plan.items() if shared or device == rank for name in row]
        check(sorted(did) == sorted(planned), f"rank {rank} did {len(did)} tasks of {len(planned)}, or others: "
              f"{sorted(set(did) ^ set(planned))[:8]}")
    # Each worker has its own row, where its tasks keep their order.
    for worker in range(workers):
        own = [f"worker {worker} on rank {rank}" if ranks > 1 else f"worker {worker}" for rank in range(ranks)]
        did = [event for name in own for event in rows.pop((ranks + 1, name), [])]
        did.sort(key=lambda event: event["ts"])
        check(len(did) > 0, f"worker {worker} has no tasks")
        if shared:
            # Updates are made beside what the worker computes that they are listed with.
            planned = [name for name in plan[worker] if name[0] in "FB"]
            check(names(did) == planned, f"worker {worker} did {names(did)}, not {planned}")
        else:
            planned = [name for row in plan.values() for name in row if re.match(rf"[FB][^.]*\.{worker}@", name)]
            check(sorted(name for name in names(did) if name[0] in "FB") == sorted(planned), f"worker {worker}: other tasks")
    check(all(process <= ranks for process, _ in rows), "rows that belong to no worker")
    # Operations lie inside of the tasks of their row.
    inside, threads = 0, defaultdict(list)
    for row in rows.values():
        threads[row[0]["tid"]] = row
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "operation" and event["pid"] <= ranks:
            ends = event["ts"] + event["dur"]
            check(any(task["ts"] <= event["ts"] and ends <= task["ts"] + task["dur"] + 1e-6
                      for task in threads[event["tid"]]), f"{event['name']} is in no task")
            inside += 1
    check(inside > 0, "no operations")


main()
