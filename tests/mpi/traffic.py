#!/usr/bin/env python3
"""Does a cyclic run send what its plan says, and nothing else?

    CAROUSEL=build/carousel COUNTER=build/tests/mpi/libpmpi_counter.so tests/mpi/traffic.py [--full]

Trains under the counter (pmpi_counter.c) and compares what it saw inside of the training loop with the table of
`carousel plan --dump`: no collective; every message of the plan, no other, and each to the byte; at most one of each
kind for a worker and slot. Besides there may be statuses, which are small and few, notes of losses and of the end, and between replicas beats: 32 bytes
to the next rank, one for a micro-batch at most. Then the comparison itself is checked: it must notice records and plans
that were changed on purpose, and dp's collectives.
"""

import collections
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from ranks import Plan, RunError, program, ranks_of, train  # noqa: E402

MODELS = {
    "mlp": {"model": "mlp", "batch": 4, "piece-bytes": 100000},  # every sum in several pieces
    "gpt2-nano": {"model": "gpt2-nano", "batch": 2, "seq-len": 16},  # its embedding is tied
    "resnet20": {"model": "resnet20", "batch": 2, "image-size": 8},
}
STEPS = 6  # fill, steady state and drain of every placement
STATUS_BYTES = 256  # at most
NOTE_TAGS, NOTE_BYTES = 16, 64  # from this tag on; at most
BEAT_TAG, BEAT_BYTES = 3, 32
STATUS_SECONDS = 0.25  # between two of a rank to the same listener, on average at least
COLLECTIVES = {"Ibarrier", "Bcast", "Ibcast", "Ireduce", "Iallreduce", "Iallgather", "Ialltoall", "Comm_dup",
               "Comm_split", "Comm_split_type", "Comm_free"}
# What neither sends nor is collective, or has nothing to do with the loop.
SILENT = {"Abort", "Cancel", "Comm_get_attr", "Comm_rank", "Comm_set_errhandler", "Comm_set_name", "Comm_size",
          "Error_string", "Finalize", "Finalized", "Get_count", "Get_library_version", "Init_thread", "Initialized",
          "Iprobe", "Irecv", "Pcontrol", "Query_thread", "Recv", "Request_free", "Test", "Testall", "Testsome", "Wait",
          "Waitall"}

Record = collections.namedtuple("Record", "rank in_loop seconds call comm peer tag bytes")


# ---- reading ------------------------------------------------------------------------------------


def check_symbols():
    """Calls that the counter does not know could send unseen."""
    symbols = subprocess.run(["nm", "-D", "--undefined-only", program()], check=True, capture_output=True, text=True)
    called = {word[4:] for word in symbols.stdout.split() if word.startswith("MPI_")}
    unknown = called - COLLECTIVES - SILENT - {"Send", "Isend", "Issend"}
    return [f"the program calls MPI_{name}, which the counter does not count" for name in sorted(unknown)]


def read_records(directory, ranks):
    records = []
    for rank in range(ranks):
        with open(os.path.join(directory, f"rank.{rank}")) as file:
            lines = file.read().splitlines()
        if not lines or lines[-1] != "end":
            raise RunError(f"the record of rank {rank} is not whole")
        for line in lines[:-1]:
            in_loop, seconds, call, comm, peer, tag, size = line.split()
            records.append(Record(rank, in_loop == "1", float(seconds), call, comm, int(peer), int(tag), int(size)))
    return records


def run(settings, ranks):
    with tempfile.TemporaryDirectory() as directory:
        summary = train(ranks, {**settings, "steps": STEPS, "lr": 0.001},
                        {"LD_PRELOAD": os.environ["COUNTER"], "COUNTER_DIR": directory})
        return summary, read_records(directory, ranks)


# ---- comparing ----------------------------------------------------------------------------------


def check_statuses(records):
    wrong = [f"rank {r.rank}: a status of {r.bytes} bytes" for r in records if r.bytes > STATUS_BYTES]
    times = collections.defaultdict(list)
    for r in records:
        times[r.rank, r.peer].append(r.seconds)
    for (rank, peer), seconds in times.items():
        most = (max(seconds) - min(seconds)) / STATUS_SECONDS + 2  # where the machine is busy some come late, and are near
        if len(seconds) > most:
            wrong.append(f"rank {rank}: {len(seconds)} statuses to rank {peer}, not {most:.0f}")
    return wrong


def check_beats(records, placement, ranks, workers):
    wrong = [f"rank {r.rank}: a beat of {r.bytes} bytes to rank {r.peer}" for r in records
             if r.bytes != BEAT_BYTES or r.peer != (r.rank + 1) % ranks]
    most = STEPS * workers // ranks if placement in ("replica", "zero") else 0
    return wrong + [f"rank {rank}: {count} beats, not at most {most}"
                    for rank, count in collections.Counter(r.rank for r in records).items() if count > most]


def check_notes(records, ranks, workers):
    """A loss of each micro-batch to rank 0, unless that made it; and that the run ends, from rank 0 to all."""
    wrong = [f"rank {r.rank}: a note of {r.bytes} bytes" for r in records if r.bytes > NOTE_BYTES]
    losses = sum(r.peer == 0 for r in records)
    if losses > STEPS * workers or len(records) - losses != ranks - 1:
        wrong.append(f"{losses} notes to rank 0, not at most {STEPS * workers}, and {len(records) - losses} others, not "
                     f"{ranks - 1}")
    return wrong


def check_messages(records, sends):
    """The same messages, told apart by both ends, tag and bytes."""
    seen = collections.Counter((r.rank, r.peer, r.tag, r.bytes) for r in records)
    planned = collections.Counter((s.device, s.peer, s.tag, s.bytes) for s in sends)
    wrong = [f"{count} unplanned: {key[0]} to {key[1]}, tag {key[2]}, {key[3]} bytes"
             for key, count in (seen - planned).items()]
    return wrong + [f"{count} missing: {key[0]} to {key[1]}, tag {key[2]}, {key[3]} bytes"
                    for key, count in (planned - seen).items()]


def check_bounds(plan, sends, placement, ranks):
    """One of each kind for a worker and slot; ties each for themselves; under zero, three in all."""
    wrong = []
    computing = {(device, slot): sum(task[0] in "FB" for task in tasks) for device, slot, tasks in plan.slots}
    alike, together = collections.Counter(), collections.Counter()
    for device, slot, cargo, tied, worker, peer, tag, _, _, piece in sends:
        if piece == 0:  # pieces are one message
            alike[device, slot, cargo, tag // 14 if tied else None, worker if cargo == "p" else None] += 1
            together[device, slot] += not tied
        jump = placement == "replica" and cargo == "s" and device == ranks - 1
        if placement == "replica" and peer != (device + 1) % ranks and not jump:
            wrong.append(f"rank {device} sends to {peer}, which is no neighbour")
        if placement == "pipeline" and abs(peer - device) != 1 and not tied:
            wrong.append(f"rank {device} sends to {peer}, which is no neighbour")
    for (device, slot, cargo, _, worker), count in alike.items():
        workers = max(1, computing[device, slot]) if worker is None else 1
        if placement != "zero" and count > workers:
            wrong.append(f"rank {device} sends {count} messages of kind {cargo} in slot {slot} for {workers} workers")
    if placement == "zero":
        wrong += [f"rank {d} sends {count} messages in slot {s}" for (d, s), count in together.items() if count > 3]
    return wrong


def check_summary(summary, data):
    """The program's own account."""
    wrong = []
    for rank, account in enumerate(summary["ranks"]):
        own = [r.bytes for r in data if r.rank == rank]
        if (account["messages"], account["bytes_sent"]) != (len(own), sum(own)):
            wrong.append(f"rank {rank} accounts for {account['messages']} messages, {account['bytes_sent']} bytes; "
                         f"seen were {len(own)}, {sum(own)}")
    return wrong


def compare(plan, sends, records, placement, ranks):
    loop = [r for r in records if r.in_loop]
    data = [r for r in loop if r.call == "Isend" and r.comm == "carousel_data"]
    control = [r for r in loop if r.call == "Isend" and r.comm == "carousel_control"]
    notes, beats = [r for r in control if r.tag >= NOTE_TAGS], [r for r in control if r.tag == BEAT_TAG]
    statuses = [r for r in control if r.tag != BEAT_TAG and r.tag < NOTE_TAGS]
    wrong = [f"rank {r.rank}: MPI_{r.call} inside of the loop" for r in loop if r not in data and r not in control]
    wrong += check_statuses(statuses)
    wrong += check_beats(beats, placement, ranks, plan.workers)
    wrong += check_notes(notes, ranks, plan.workers)
    wrong += check_messages(data, sends)
    wrong += check_bounds(plan, sends, placement, ranks)
    planned, seen = sum(s.bytes for s in sends), sum(r.bytes for r in data)
    if planned != seen:
        wrong.append(f"{seen} bytes were sent, {planned} are planned")
    return wrong, len(data), seen, len(statuses)


def check_comparison(plan, sends, records, placement, ranks):
    """Every one of these must be noticed."""
    at = next(n for n, r in enumerate(records) if r.in_loop and r.comm == "carousel_data")
    one, rest = records[at], records[:at] + records[at + 1:]
    changes = {
        "a message is missing": (sends, rest),
        "a message comes twice": (sends, [*records, one]),
        "four bytes more": (sends, [*rest, one._replace(bytes=one.bytes + 4)]),
        "another receiver": (sends, [*rest, one._replace(peer=(one.peer + 1) % ranks)]),
        "another tag": (sends, [*rest, one._replace(tag=one.tag + 1)]),
        "a collective in the loop": (sends, [*records, one._replace(call="Iallreduce")]),
        "a large status": (sends, [*records, one._replace(comm="carousel_control", bytes=STATUS_BYTES + 4)]),
        "a large beat": (sends, [*records, one._replace(comm="carousel_control", tag=BEAT_TAG, bytes=BEAT_BYTES + 4)]),
        "a plan with other bytes": ([sends[0]._replace(bytes=sends[0].bytes + 4), *sends[1:]], records),
        "a plan with two more in a slot": ([sends[0], sends[0], *sends], [*records, one, one]),
    }
    return [f"not noticed: {what}" for what, (s, r) in changes.items() if not compare(plan, s, r, placement, ranks)[0]]


# ---- the cases ----------------------------------------------------------------------------------


def cases(full):
    """(model, rule, placement, workers, stages for each worker[, ranks])"""
    yield "mlp", "cdp-v2", "replica", 4, 1, 2
    if not full:
        for n, placement in enumerate(("replica", "zero", "pipeline", "grid")):
            yield "gpt2-nano", "cdp-v2", placement, 3, 1
            yield ("mlp", "resnet20")[n < 2], ("cdp-v1", "cdp-v2")[n % 2], placement, 2, 2
        return
    for model in MODELS:
        for rule in ("cdp-v1", "cdp-v2"):
            for placement in ("replica", "zero", "pipeline", "grid"):
                for workers in (2, 3, 4):
                    for k in (1, 2):
                        yield model, rule, placement, workers, k


def check_case(case):
    model, rule, placement, workers, k = case[:5]
    settings = {**MODELS[model], "rule": rule, "placement": placement, "workers": workers, "stages": workers * k}
    ranks, fewer = ranks_of(placement, rule, workers), {}
    if len(case) > 5:
        ranks = case[5]
        settings["mapping"] = "interleaved"
        fewer = {"ranks": ranks}
    plan = Plan({**settings, **fewer}, STEPS)
    sends = list(plan.sends())
    summary, records = run(settings, ranks)
    wrong, messages, seen, statuses = compare(plan, sends, records, placement, ranks)
    wrong += check_summary(summary, [r for r in records if r.in_loop and r.comm == "carousel_data"])
    wrong += [] if messages else ["there are no messages"]
    wrong += check_comparison(plan, sends, records, placement, ranks) if not wrong else []
    print(f"{'FAILED' if wrong else 'ok'} {model} {rule} {placement} N={workers} k={k}: {messages} messages, "
          f"{seen} bytes, {statuses} statuses", flush=True)
    return wrong


def check_dp():
    """The counter sees collectives where there are some; an all-reduce is a ring of messages, each rank's 2(N-1)/N of all
    sums."""
    settings = {**MODELS["mlp"], "rule": "dp", "placement": "zero", "workers": 2}
    _, records = run(settings, 2)
    seen = {r.call for r in records if r.in_loop and r.call in COLLECTIVES}
    wrong = [] if seen == {"Ibcast", "Ireduce"} else [f"collectives of dp over zero in its loop: {seen}"]
    settings.update(placement="replica", workers=3)
    summary, records = run(settings, 3)
    ring = sum(r.bytes for r in records if r.in_loop and r.comm == "carousel_sums")
    least = STEPS * 2 * 2 * sum(stage["weight_bytes"] for stage in Plan(settings, 1).stages)
    wrong += [] if ring == least else [f"{ring} bytes of sums over all ranks, {least} are due"]
    told = summary["comm"]["bytes_sent"]
    wrong += [] if told == ring else [f"the program accounts for {told} bytes of sums over all ranks, seen were {ring}"]
    print(f"{'FAILED' if wrong else 'ok'} dp: {', '.join(sorted(seen))}; {ring} bytes in a ring", flush=True)
    return wrong


def main():
    full = "--full" in sys.argv[1:] or os.environ.get("CAR_MPI_FULL") == "1"
    failures = check_symbols()
    failures += check_dp()
    for case in cases(full):
        try:
            failures += [f"{' '.join(map(str, case))}: {text}" for text in check_case(case)]
        except RunError as error:
            failures.append(f"{' '.join(map(str, case))}: {error}")
    for failure in failures[:40]:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
