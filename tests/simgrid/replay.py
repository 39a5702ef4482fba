#!/usr/bin/env python3
"""SimGrid's SMPI finds the steps that `carousel plan --cluster` predicts, on a network that steps wait for.

bench/evidence.py scale does the same for many workers. Exits with 77 if SimGrid is missing (Debian: libsimgrid-dev)."""

import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
os.environ["BUILD_DIR"] = os.path.dirname(os.environ["CAROUSEL"])

from claims.scale import MOST_APART, printed_table  # noqa: E402
from runs import plan  # noqa: E402
from simgrid import smpi  # noqa: E402
from simgrid.schedule import Disturbance  # noqa: E402

STEPS, PAUSE = 12, 1.0
CLUSTER = {"name": "slow", "devices_per_node": 2, "flops": 1e12,
           "inside": {"bandwidth": 4e9, "latency": 5e-6}, "between": {"bandwidth": 1e9, "latency": 2e-5}}  # fmt: skip
CASES = (("dp", "replica"), ("cdp-v1", "replica"), ("cdp-v2", "replica"), ("cdp-v1", "zero"), ("cdp-v2", "zero"))


def main():
    if smpi.missing():
        print(f"{', '.join(smpi.missing())} is missing")
        return 77
    with tempfile.TemporaryDirectory() as directory:
        program, cluster = smpi.compile_replay(directory), os.path.join(directory, "cluster.json")
        with open(cluster, "w") as file:
            json.dump(CLUSTER, file)
        for rule, placement in CASES:
            settings = {"model": "gpt2-nano", "batch": 4, "workers": 8, "rule": rule, "placement": placement, "cluster": cluster}
            asked = plan(settings)
            predicted, steps = asked["timing"]["step_s"], asked["timing"]["steps"]
            found = smpi.replay(printed_table(settings, asked, steps), asked, program)["step_s"]
            print(f"{rule} over {placement}: {predicted / asked['timing']['compute_s']:.3f} of computing, "
                  f"SMPI / plan {found / predicted:.4f}")  # fmt: skip
            assert abs(found / predicted - 1) < MOST_APART, f"{rule} over {placement}: {predicted} s, SMPI {found} s"
        # dp waits for a device that pauses: all of it is in the sum of the counted steps.
        settings = {**settings, "rule": "dp", "placement": "replica"}
        asked = plan(settings)
        printed = printed_table(settings, asked, STEPS)
        calm, paused = (smpi.replay(printed, asked, program, None, Disturbance(pause=pause, step=5), STEPS)["step_s"]
                        for pause in (0, PAUSE))  # fmt: skip
        counted = STEPS - 1 - smpi.FILL
        assert abs(counted * (paused - calm) / PAUSE - 1) < 0.01, f"a pause adds {paused - calm} s to a step"
    return 0


if __name__ == "__main__":
    sys.exit(main())
