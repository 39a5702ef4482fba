#!/usr/bin/env python3
"""Do replicas keep their distance?

    CAROUSEL=build/carousel tests/mpi/distance.py

Each micro-batch begins an N-th of a step after the one before (see src/engine/rank_beat.c), 0.95 of that at
least. That is a lower bound, which a busy machine does not change; nobody may be faster than `--step-seconds` here. Without
beats all ranks would begin together. The weights are those of one process, which ranks.c tests."""

import itertools
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from ranks import RunError, train_in  # noqa: E402

SECONDS = 0.3
STEPS = 6
SETTINGS = {"model": "mlp", "batch": 4, "width": 64, "placement": "replica", "steps": STEPS, "step-seconds": SECONDS}
# Rule, workers, ranks; the mapping matters where a rank has several.
CASES = [("cdp-v1", 4, 4, "interleaved"), ("cdp-v2", 2, 2, "interleaved"), ("cdp-v1", 4, 2, "interleaved"),
         ("cdp-v1", 4, 2, "contiguous")]  # fmt: skip
LEAST = 0.9  # of an even share


def begins(timeline):
    """{micro-batch: when its first forward began, its rank}"""
    found = {}
    forward = timeline["kinds"].index("forward")
    for start, _, lane, kind, worker, stage, step, *_ in timeline["tasks"]:
        if kind == forward and stage == 0:
            found[step * timeline["workers"] + worker] = (1e-6 * start, timeline["lanes"][lane].split()[1])
    return found


def check(rule, workers, ranks, mapping):
    settings = {**SETTINGS, "rule": rule, "workers": workers, "stages": 2 * workers, "mapping": mapping}
    with tempfile.TemporaryDirectory() as out:
        train_in(out, ranks, settings)
        with open(os.path.join(out, "timeline.json")) as file:
            found = begins(json.load(file))
    # What a rank with several workers computes takes it as long for each; a micro-batch begins as often.
    share = SECONDS * (workers // ranks) / workers
    wrong, least = [], None
    for n, next_ in itertools.pairwise(sorted(found)):
        (begin, rank), (end, other) = found[n], found[next_]
        if next_ == n + 1 and rank != other:
            least = min(least or end - begin, end - begin)
            if end - begin < LEAST * share:
                wrong.append(f"micro-batch {next_} began {end - begin:.3f} s after the one before, not {LEAST * share:.3f}")
    wrong += [] if least else ["no two micro-batches of different ranks were seen"]
    print(f"{'FAILED' if wrong else 'ok'} {rule} N={workers} over {ranks} ranks, {mapping}: at least {least or 0:.3f} s, an "
          f"even share is {share:.3f}", flush=True)  # fmt: skip
    return wrong


def main():
    failures = []
    for case in CASES:
        try:
            failures += [f"{' '.join(map(str, case))}: {text}" for text in check(*case)]
        except RunError as error:
            failures.append(str(error))
    for failure in failures[:40]:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
