"""Grid: N(N+1)/2 ranks in the cycle do what N² ranks do under dp, with the same weights as one process."""

import array
import json
import os
import struct
import tempfile

from render import table
from runs import train_in
from store import shown_command

QUESTION = "Do N(N+1)/2 devices that hold one stage's activations each train what N² devices train?"
# A smooth network: where a ReLU's input is almost zero, rounding decides about its gradient.
COMMON = {"model": "gpt2-nano", "seq-len": 32, "batch": 2, "steps": 8, "lr": 0.05, "threads": 1}
ALIKE = 1e-5  # tolerance for dp, whose collectives add in an order of their own
RULES = ("cdp-v2", "cdp-v1", "dp")


def ranks_of(rule, workers):
    return workers * workers if rule == "dp" else workers * (workers + 1) // 2


def read_weights(directory):
    """All floats of weights.safetensors, in the order of the file."""
    with open(os.path.join(directory, "weights.safetensors"), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        json.loads(file.read(length))
        values = array.array("f")
        values.frombytes(file.read())
    return values


def compare(settings, ranks):
    with tempfile.TemporaryDirectory() as directory:
        alone, spread = (os.path.join(directory, name) for name in ("shared", "grid"))
        shared = train_in(alone, settings)
        grid = train_in(spread, {**settings, "placement": "grid"}, ranks)
        apart = max(abs(a - b) for a, b in zip(read_weights(alone), read_weights(spread)))
    return {
        "ranks": ranks,
        "same_weights": shared["weights_sha256"] == grid["weights_sha256"],
        "weights_sha256": [shared["weights_sha256"], grid["weights_sha256"]],
        "weights_apart": apart,
        "loss_last": [shared["loss_last"], grid["loss_last"]],
        "activations_peak_bytes": [rank["activations_peak_bytes"] for rank in grid["ranks"]],
        "weights_bytes": [rank["weights_peak_bytes"] for rank in grid["ranks"]],
        "bytes_sent": grid["comm"]["bytes_sent"],
        "collectives": grid["comm"]["collectives"],
    }


def measure(store, options):
    for workers in (2, 3, 4) if options.long else (2, 3):
        for rule in RULES:
            key, ranks = f"n{workers}-{rule}", ranks_of(rule, workers)
            settings = {**COMMON, "workers": workers, "rule": rule}
            command = f"mpirun -n {ranks} {shown_command('train', {**settings, 'placement': 'grid'})}"
            if options.only in key:
                store.once(key, command, lambda s=settings, r=ranks: compare(s, r))


# ---- showing ----------------------------------------------------------------------------------------------


def same(run):
    if run["same_weights"]:
        return "to the bit"
    apart = f"within {run['weights_apart']:.1e}"
    return apart if run["weights_apart"] <= ALIKE else f"**NO**: {apart}"


def tables(raw):
    rows = []
    for key, run in sorted(raw["runs"].items()):
        workers, rule = key[1:].split("-", 1)
        most = max(run["activations_peak_bytes"])
        rows.append([workers, rule, run["ranks"], same(run), f"{most / 1e6:.2f}",
                     f"{sum(run['activations_peak_bytes']) / 1e6:.2f}", f"{sum(run['weights_bytes']) / 1e6:.2f}",
                     f"{run['bytes_sent'] / 1e6:.1f}", run["collectives"]])  # fmt: skip
    header = ["N", "rule", "ranks", "weights as of one process", "activations of a rank, MB at most",
              "of all ranks", "weights of all ranks, MB", "MB in messages", "collectives"]  # fmt: skip
    return {"grid": table(header, rows)} if rows else {}


def headline(raw):
    runs = {rule: raw["runs"].get(f"n4-{rule}") for rule in ("cdp-v2", "dp")}
    if not all(runs.values()):
        return []
    return [[f"ranks of a grid of 4 workers and 4 stages, for dp's {runs['dp']['ranks']}",
             f"{runs['cdp-v2']['ranks']}; weights as of one process: {same(runs['cdp-v2'])}"]]  # fmt: skip


def figures(raw):
    return {}
