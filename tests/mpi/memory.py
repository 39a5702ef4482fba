#!/usr/bin/env python3
"""Does every rank hold what the plan says?

    CAROUSEL=build/carousel tests/mpi/memory.py [--full]

Trains over ranks and compares each rank's peaks with `carousel plan --json`:

- weights, gradients, optimizer and activations are the plan's, within 4 %. A rank of a pipeline holds N-j micro-batches'
  share of its stages, where one of a grid holds one. (How many versions of the weights all ranks of zero have together at
  any time is for ranks.c.)
- what is in flight comes on top, and is bounded by the plan too: a message's buffer at the receiver is there from when
  it may be posted to the slot of its receive, at the sender from the slot of its send to that same slot. Real clocks
  are not slots: ranks are allowed to be twice as far apart as a message has time, 4k slots.

Steps take as long as `--step-seconds` says, so that messages keep up: of a step of a few milliseconds, on more ranks than
cores, sums come late, and a gradient that waits for one lies beside it.

Messages that are late, because the machine is busy with something else, make ranks hold more for a while: so a case that
fails is run again, twice at most.
"""

import collections
import os
import sys

sys.dont_write_bytecode = True
from ranks import Plan, RunError, ranks_of, train  # noqa: E402

MODELS = {
    "mlp": {"model": "mlp", "batch": 64},
    "gpt2-nano": {"model": "gpt2-nano", "batch": 4, "seq-len": 32, "piece-bytes": 200000},  # its sums in pieces
    "gpt2-nano in bf16": {"model": "gpt2-nano", "batch": 4, "seq-len": 32, "precision": "bf16"},
    "resnet20 in bf16": {"model": "resnet20", "batch": 4, "image-size": 32, "classes": 10, "precision": "bf16"},
}
# Of the short form, for each placement.
SHORT = {"replica": "gpt2-nano in bf16", "zero": "gpt2-nano", "pipeline": "resnet20 in bf16", "grid": "gpt2-nano"}
STEPS = 8
SECONDS = 0.3  # of a step: long beside what a message takes, as it is where somebody trains
WITHIN = 0.04
APART = 4
ATTEMPTS = 3
KINDS = ("weights", "gradients", "optimizer", "activations")


# ---- what may be in flight ------------------------------------------------------------------------


def in_flight(plan, placement, ranks):
    """The most bytes that messages of a rank take, by the plan."""
    changes = [collections.Counter() for _ in range(ranks)]
    receives = plan.receives()
    k = len(plan.stages) // plan.workers
    apart = APART * k
    taken = collections.Counter()
    for send in plan.sends():
        way = (send.device, send.peer, send.what)
        arrival = receives[way][taken[way]]
        taken[way] += 1
        finished = placement == "replica" and send.cargo == "s"  # as slots_ahead() of the engine has it
        ahead = 4 * k if finished else 2 * k
        for rank, begin, end in ((send.device, send.slot, arrival + apart),
                                 (send.peer, arrival - ahead - apart, arrival)):
            changes[rank][begin] += send.bytes
            changes[rank][end + 1] -= send.bytes
    peaks = []
    for rank in range(ranks):
        now = peak = 0
        for slot in sorted(changes[rank]):
            now += changes[rank][slot]
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


# ---- comparing ------------------------------------------------------------------------------------


def bounds(kind, placement):
    """Over the plan's. Sums, and weights where they move, may be passed on before their slot is over: then they are in
    flight earlier."""
    passed_on = kind == "gradients" or (kind == "weights" and placement == "zero")
    return 0.5 if passed_on else 1 - WITHIN, 1 + WITHIN


def check_rank(rank, measured, predicted, flight, placement):
    wrong = []
    for kind in KINDS:
        is_, said = measured[f"{kind}_peak_bytes"], predicted[f"{kind}_bytes"]
        least, most = bounds(kind, placement)
        if not least * said <= is_ <= most * said:
            wrong.append(f"rank {rank}: {is_:.0f} bytes of {kind}, and the plan has {said:.0f}")
    if measured["messages_peak_bytes"] > (1 + WITHIN) * flight:
        wrong.append(f"rank {rank}: {measured['messages_peak_bytes']:.0f} bytes of messages, and the plan has at most "
                     f"{flight:.0f} in flight")
    return wrong


def one_micro_batch(settings, group):
    """What a rank of a grid holds of those stages: one micro-batch's share."""
    grid = Plan({**settings, "placement": "grid"}, 1)
    return grid.json["rank_predictions"][sum(grid.workers - g for g in range(group))]["activations_bytes"]


def check_together(plan, placement, settings, accounts):
    """The promise of each placement, over all ranks."""
    weights = sum(stage["weight_bytes"] for stage in plan.stages)
    total = sum(account["weights_peak_bytes"] for account in accounts)
    wrong = []
    if placement == "zero" and plan.predictions["weights_total_bytes"] > 2 * (weights + sum(plan.tied)):
        wrong.append("the plan of zero has more of the weights than owners keep and ranks use")
    if placement == "replica" and total < plan.workers * weights:
        wrong.append(f"replica holds {total:.0f} bytes of weights, less than {plan.workers} times {weights}")
    if placement == "pipeline":
        for group, account in enumerate(accounts):
            share, most = one_micro_batch(settings, group), plan.workers - group
            k = len(plan.stages) // plan.workers
            kept = sum(stage["held_bytes"] for stage in plan.stages[group * k : (group + 1) * k])  # for its backward
            if not (most - 1) * kept < account["activations_peak_bytes"] <= most * share:
                wrong.append(f"rank {group} of the pipeline holds {account['activations_peak_bytes']} bytes, not {most} "
                             f"micro-batches' of {kept} to {share}")
    return wrong, total / weights


def check_case(case):
    model, rule, placement, workers, k = case
    settings = {**MODELS[model], "rule": rule, "placement": placement, "workers": workers, "stages": workers * k}
    ranks = ranks_of(placement, rule, workers)
    plan = Plan(settings, STEPS)
    predicted = plan.json["rank_predictions"]
    accounts = train(ranks, {**settings, "steps": STEPS, "lr": 0.001, "step-seconds": SECONDS})["ranks"]
    flight = in_flight(plan, placement, ranks)
    wrong, share = check_together(plan, placement, settings, accounts)
    for rank in range(ranks):
        wrong += check_rank(rank, accounts[rank], predicted[rank], flight[rank], placement)
        for kind in KINDS:  # the check must be able to fail
            less = accounts[rank][f"{kind}_peak_bytes"] * 0.99 / bounds(kind, placement)[1]
            changed = {**predicted[rank], f"{kind}_bytes": less}
            if less and not check_rank(rank, accounts[rank], changed, flight[rank], placement):
                wrong.append(f"rank {rank}: a plan with less {kind} goes unnoticed")
    activations = " ".join(f"{account['activations_peak_bytes'] / 1e6:.2f}" for account in accounts)
    print(f"{'FAILED' if wrong else 'ok'} {model} {rule} {placement} N={workers} k={k}: weights {share:.2f} of the "
          f"model's over all ranks, activations {activations} MB", flush=True)
    return wrong


def cases(full):
    for placement in ("replica", "zero", "pipeline", "grid"):
        for model in MODELS if full else (SHORT[placement],):
            for rule in ("cdp-v1", "cdp-v2") if full else ("cdp-v2",):
                for workers in (2, 3, 4) if full else (3 if placement == "grid" else 4,):
                    for k in (1, 2) if full else (1,):
                        yield model, rule, placement, workers, k


def main():
    failures = []
    for case in cases("--full" in sys.argv[1:] or os.environ.get("CAR_MPI_FULL") == "1"):
        for _ in range(ATTEMPTS):
            try:
                wrong = check_case(case)
            except RunError as error:
                wrong = [str(error)]
            if not wrong:
                break
        failures += [f"{' '.join(map(str, case))}: {text}" for text in wrong]
    for failure in failures[:40]:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
