#!/usr/bin/env python3
"""Run directories as `carousel train --out` leaves them, made up: the same on every machine, in no time, with numbers
that a test can foresee.

    make_runs.py DIRECTORY

writes DIRECTORY/dp, cdp-v2 (both in one process with threads), replica (four ranks, with messages) and bare (a run
that was killed: no summary, no timeline, the last line of its metrics cut off).
"""

import json
import math
import os
import random
import sys

WORKERS, STAGES = 4, 8
FIRST_STEP, END_STEP = 4, 8
STAGE_BYTES = [9e6, 8e6, 7e6, 6e6, 6e6, 5e6, 5e6, 4e6]
FORWARD_US = [2100, 2000, 1900, 2000, 2100, 2000, 1900, 2200]
ONE_WORKER = sum(STAGE_BYTES)
FORWARD, BACKWARD, UPDATE = 0, 1, 2


class Clock:
    """Runs tasks on lanes, each when its worker and a lane are free and `ready` allows it."""

    def __init__(self, lanes, seed):
        self.free = [0.0] * lanes
        self.draw = random.Random(seed)
        self.tasks = []

    def run(self, lane, earliest, duration, kind, worker, stage, step, version):
        start = max(earliest, self.free[lane])
        end = start + duration * self.draw.uniform(0.96, 1.04)
        waited = start - self.free[lane]
        self.tasks.append([round(start), round(end), lane, kind, worker, stage, step, version, round(waited)])
        self.free[lane] = end
        return end


def stale(rule, worker, stage):
    fresh = STAGES // WORKERS * (worker + 1) + stage >= STAGES
    return rule == "cdp-v2" and not fresh


def slots_of(rule):
    """(slot, worker, kind, stage, step) of all that is recorded, by the idealised clock."""
    delay = 0 if rule == "dp" else 2 * STAGES // WORKERS
    for step in range(FIRST_STEP - 1, END_STEP + 1):
        for worker in range(WORKERS):
            begin = 2 * STAGES * step + delay * worker
            for stage in range(STAGES):
                yield begin + stage, worker, FORWARD, stage, step
                yield begin + 2 * STAGES - 1 - stage, worker, BACKWARD, stage, step


def execute(rule, lanes, lane_of, seed):
    clock = Clock(lanes, seed)
    # One lane each: they start evenly spaced. With fewer lanes than workers the order of slots spaces them.
    done = [i * 3 * sum(FORWARD_US) / WORKERS if lane_of else 0.0 for i in range(WORKERS)]
    barrier = 0.0
    for slot, worker, kind, stage, step in sorted(slots_of(rule)):
        if rule == "dp" and slot % STAGES == 0 and stage in (0, STAGES - 1):
            barrier = max(done) if worker == 0 else barrier
        lane = lane_of(worker) if lane_of else min(range(lanes), key=lambda l: clock.free[l])
        duration = FORWARD_US[stage] * (2 if kind == BACKWARD else 1)
        version = step - 1 if stale(rule, worker, stage) else step
        done[worker] = clock.run(lane, max(done[worker], barrier), duration, kind, worker, stage, step, version)
        if kind == BACKWARD and worker == WORKERS - 1:
            clock.run(lane, done[worker], 150, UPDATE, worker, stage, step, step + 1)
    origin = min(task[0] for task in clock.tasks if task[6] == FIRST_STEP)
    end = max(task[1] for task in clock.tasks if task[6] == END_STEP - 1)
    kept = [task for task in clock.tasks if origin <= task[0] and task[1] <= end]
    return sorted([task[0] - origin, task[1] - origin] + task[2:] for task in kept)


def memory_of(tasks):
    """Live bytes at each change: a stage's activations are held from its forward to its backward."""
    workers = []
    for worker in range(WORKERS):
        changes = [(start, STAGE_BYTES[stage]) for start, _, _, kind, w, stage, *_ in tasks if w == worker and kind == 0]
        changes += [(end, -STAGE_BYTES[stage]) for _, end, _, kind, w, stage, *_ in tasks if w == worker and kind == 1]
        low = live = 0.0
        for _, change in sorted(changes):
            live += change
            low = min(low, live)
        live, points = -low, [[0, -low]]
        for when, change in sorted(changes):
            live += change
            points.append([when, live])
        workers.append(points)
    return workers


def peak_of(workers):
    """The largest sum over workers; what changes at one moment changes at once."""
    moments = sorted({when for points in workers for when, _ in points})
    return max(sum([live for when, live in points if when <= moment][-1] for points in workers) for moment in moments)


def messages_of(tasks):
    """After each backward a partial sum goes to the next worker's rank."""
    found = []
    for start, end, lane, kind, worker, stage, step, *_ in tasks:
        if kind == BACKWARD and worker < WORKERS - 1:
            bytes_sent = 400000 + 50000 * stage
            found.append([end, end + 600 + 40 * stage, worker, worker + 1, 3, bytes_sent, (2 * STAGES - 1 - stage)])
    return found


def timeline_of(rule, placement):
    ranks = WORKERS if placement == "replica" else 1
    lanes = WORKERS if ranks > 1 else 2
    tasks = execute(rule, lanes, (lambda worker: worker) if ranks > 1 else None, rule + placement)
    workers = memory_of(tasks)
    messages = messages_of(tasks) if ranks > 1 else []
    slots = [0] * (2 * STAGES)
    for message in messages:
        slots[message[6]] += message[5]
    return {
        "carousel_timeline": 1,
        "model": "mlp", "rule": rule, "placement": placement, "workers": WORKERS, "stages": STAGES,
        "threads": 1 if ranks > 1 else 2, "ranks": ranks, "first_step": FIRST_STEP, "end_step": END_STEP,
        "lanes": [f"rank {r}" if ranks > 1 else f"thread {r}" for r in range(lanes)],
        "kinds": ["forward", "backward", "update", "send", "receive", "collective"],
        "tasks": tasks,
        "memory": {
            "workers": workers, "dp_peak_bytes": WORKERS * ONE_WORKER, "limit_bytes": 0.57 * WORKERS * ONE_WORKER,
            "predicted_peak_bytes": (1 if rule == "dp" else 0.66) * WORKERS * ONE_WORKER,
            "measured_peak_bytes": peak_of(workers),
        },
        "messages": messages,
        "bytes_per_slot": {"plan": [round(1.02 * b / (END_STEP - FIRST_STEP)) for b in slots],
                           "measured": [b / (END_STEP - FIRST_STEP) for b in slots] if ranks > 1 else None},
        "partition": [
            {"stage": j, "first": f"layer{j}.0.linear", "last": f"layer{j}.1.relu", "flops": FORWARD_US[j] * 3e6,
             "parameter_bytes": 400000 + 50000 * j, "activation_bytes": STAGE_BYTES[j], "operations": 3 + j % 2}
            for j in range(STAGES)
        ],
    }


def config_of(rule, placement):
    return {"model": "mlp", "data": "synthetic", "rule": rule, "placement": placement, "workers": WORKERS,
            "stages": STAGES, "threads": 2, "batch": 16, "steps": 300, "optimizer": "sgd", "lr": 0.1, "seed": 1}


def metrics_of(rule, steps):
    draw = random.Random("metrics" + rule)
    late = {"dp": 60, "cdp-v2": 70}[rule]
    for step in range(steps):
        loss = 0.3 + 2 * math.exp(-step / late) + draw.gauss(0, 0.05)
        yield {"step": step, "loss": None if step == 17 else round(loss, 6), "lr": 0.1 * (1 - step / steps),
               "samples_per_s": 900.0, "seconds": round(0.07 * (step + 1), 4), "skipped": step == 17,
               "activations_bytes": 16}


def summary_of(rule, placement, timeline):
    result = {key: value for key, value in config_of(rule, placement).items() if key != "lr"}
    result.update({
        "interrupted": False, "loss_first": 2.3, "loss_last": 0.31, "accuracy": 0.91 if rule == "dp" else 0.9,
        "accuracy_top5": 0.99, "eval_loss": 0.35, "samples_per_s": 900.5 if rule == "dp" else 934.1,
        "step_ms_median": 71.1 if rule == "dp" else 68.5,
        "executor": {"wall_s": 20.0, "tasks_s": 38.0, "waiting_s": 1.5, "choosing_s": 0.1},
        "memory": {"weights_bytes": 8.4e6, "gradients_bytes": 4.2e6, "optimizer_bytes": 4.2e6,
                   "activations_peak_bytes": timeline["memory"]["measured_peak_bytes"], "messages_bytes": 0,
                   "workspace_bytes": 1e6, "activations_mean_bytes": 0.5 * WORKERS * ONE_WORKER, "rss_peak_bytes": 3e8},
        "comm": {"bytes_sent": sum(m[5] for m in timeline["messages"]) * 75, "messages": len(timeline["messages"]) * 75,
                 "max_messages_per_slot": 1 if timeline["messages"] else 0, "collectives": 0, "exposed_ms_per_step": 0.4},
        "machine": {"cpu": "Made-up processor </script> & <b>sons</b>", "cores": 2, "threads": 2},
    })
    if placement == "replica":
        whole = timeline["memory"]["measured_peak_bytes"]
        result["ranks"] = [{"activations_peak_bytes": 3 * whole}, {"activations_peak_bytes": 5 * whole}]
    return result


def write(directory, name, value):
    with open(os.path.join(directory, name), "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))


def write_run(directory, rule, placement, steps=300):
    os.makedirs(directory, exist_ok=True)
    timeline = timeline_of(rule, placement)
    write(directory, "config.json", config_of(rule, placement))
    write(directory, "summary.json", summary_of(rule, placement, timeline))
    write(directory, "timeline.json", timeline)
    write(directory, "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics_of(rule, steps)))
    write(directory, "evaluations.jsonl", "".join(
        json.dumps({"step": step, "loss": 0.3 + 2 / step, "accuracy": 0.9 - 20 / step, "accuracy_top5": 0.99,
                    "seconds": 0.07 * step}) + "\n" for step in range(50, steps + 1, 50)))


CONFUSION = {"step": 300, "per_class": [
    {"name": "cat", "samples": 5, "accuracy": 0.8, "predicted": [[0, 4], [1, 1]]},
    {"name": "<b>dog</b>", "samples": 3, "accuracy": 1, "predicted": [[1, 3]]},
    {"name": "none", "samples": 0, "accuracy": 0, "predicted": []},
]}


def main():
    root = sys.argv[1]
    write_run(os.path.join(root, "dp"), "dp", "shared")
    write_run(os.path.join(root, "cdp-v2"), "cdp-v2", "shared")
    write(os.path.join(root, "dp"), "confusion.json", CONFUSION)
    write(os.path.join(root, "cdp-v2"), "confusion.json", {"step": 1, "per_class": "nonsense"})
    write_run(os.path.join(root, "replica"), "cdp-v2", "replica", steps=9000)
    bare = os.path.join(root, "bare")
    os.makedirs(bare, exist_ok=True)
    write(bare, "config.json", config_of("dp", "shared"))
    lines = [json.dumps(line) for line in metrics_of("dp", 40)]
    write(bare, "metrics.jsonl", "\n".join(lines) + "\n" + '{"step": 40, "lo')


if __name__ == "__main__":
    main()
