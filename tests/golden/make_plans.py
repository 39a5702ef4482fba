#!/usr/bin/env python3
"""Writes tests/golden/plans/*.txt: who computes what in which slot, with which weights, for every rule and placement.

Straight from the definitions in docs/design.md, and slot by slot rather than by closed formulas where a schedule has a
definition of its own (gpipe, 1f1b: every rank does the next thing of its list as soon as its input is there). It shares
nothing with src/plan. The grid of cdp-v2 with three workers in shared was written by hand first, from the definition; this
script had to give the same.
"""
import os

STEPS = 3


def pipeline_step(order, N, B):
    """Runs each rank's list of (micro-batch, backward) greedily; returns {(micro-batch, stage, backward): slot} for k = 1."""
    done, at, slot = {}, [0] * N, 0
    while any(at[r] < 2 * B for r in range(N)):
        started = []
        for r in range(N):
            if at[r] == 2 * B:
                continue
            i, backward = order(r)[at[r]]
            if backward:
                needs = (i, r + 1, True) if r + 1 < N else (i, r, False)
            else:
                needs = (i, r - 1, False) if r else None
            if needs is None or done.get(needs, slot) < slot:
                started.append((r, (i, r, backward)))
        for r, task in started:
            done[task] = slot
            at[r] += 1
        slot += 1
    return done


def gpipe(N, B):
    return pipeline_step(lambda r: [(i, False) for i in range(B)] + [(i, True) for i in range(B)], N, B)


def one_f_one_b(N, B):
    def order(r):
        todo, f, b = [], 0, 0
        while b < B:
            if f < B and f - b < N - r:
                todo.append((f, False))
                f += 1
            else:
                todo.append((b, True))
                b += 1
        return todo

    return pipeline_step(order, N, B)


def clock(rule, placement, N, S, threads, M):
    """{(step, micro-batch, stage, backward): slot} and the period."""
    k, B = S // N, M * N
    if rule == "dp" and placement == "pipeline":
        rule = "gpipe"
    if rule == "stagger" and placement == "pipeline":
        rule = "1f1b"
    table = {}
    if rule in ("gpipe", "1f1b"):
        one = gpipe(N, B) if rule == "gpipe" else one_f_one_b(N, B)
        period = max(one.values()) + 1
        for t in range(STEPS + 4):
            for (i, j, backward), slot in one.items():
                table[t, i, j, backward] = period * t + slot
        return table, period
    groups = -(-B // threads) if rule == "accumulate" else M
    period = 2 * S * groups
    if rule == "stagger":
        period = 2 * k * (B - 1) + 2 * S  # the next step begins when the last has ended
    for t in range(STEPS + 4):
        for i in range(B):
            start = period * t
            if rule in ("cdp-v1", "cdp-v2", "2bw", "stagger"):
                start += 2 * k * i
            elif rule == "accumulate":
                start += 2 * S * (i // threads)
            else:
                start += 2 * S * (i // N)
            for j in range(S):
                table[t, i, j, False] = start + j
                table[t, i, j, True] = start + 2 * S - 1 - j
    return table, period


def version(rule, t, i, j, N, S):
    k = S // N
    if i >= N:  # a worker begins its second micro-batch of a step when the update is made
        return t
    if rule in ("cdp-v1", "2bw"):
        return max(0, t - 1)
    if rule == "cdp-v2":
        return t if k * (i + 1) + j >= S else max(0, t - 1)
    return t


def device(rule, placement, t, i, j, N, S, M):
    r = j // (S // N)
    if placement == "pipeline":
        return r
    if placement == "grid":
        if rule == "dp":
            return r * N + i % N
        return sum(N - q for q in range(r)) + (t * M * N + i) % (N - r)
    return i % N


def grid(rows, first, last, label):
    """rows: {row: {slot: text}} as aligned columns."""
    names = ["%s %d" % (label, r) for r in rows]
    left = max(map(len, names)) + 2
    wide = 1 + max([len(str(last))] + [len(c) for row in rows.values() for s, c in row.items() if first <= s <= last])
    out = [("slot".ljust(left) + "".join(str(s).ljust(wide) for s in range(first, last + 1))).rstrip()]
    for name, row in zip(names, rows.values()):
        out.append((name.ljust(left) + "".join(row.get(s, ".").ljust(wide) for s in range(first, last + 1))).rstrip())
    return out


def plan(rule, placement, N, S, threads, M=1):
    table, period = clock(rule, placement, N, S, threads, M)
    alone = placement in ("pipeline", "grid")
    label = "worker" if placement == "shared" else "rank"
    count = N if placement != "grid" else N * N if rule == "dp" else N * (N + 1) // 2

    def rows(steps, with_version):
        out = {d: {} for d in range(count)}
        for (t, i, j, backward), slot in table.items():
            if t < steps:
                cell = "%d%s%s" % (j, ".%d" % i if alone else "", "'" if backward else "")
                if with_version:
                    cell += "@%d" % version(rule, t, i, j, N, S)
                row = out[device(rule, placement, t, i, j, N, S, M)]
                assert slot not in row
                row[slot] = cell
        return out

    title = "plan %s %s workers=%d stages=%d threads=%d" % (rule, placement, N, S, threads)
    lines = [title + (" accumulate=%d" % M if M > 1 else ""), "one period of a long run:"]
    lines += grid(rows(6, False), 2 * period, 3 * period - 1, label)
    run = rows(STEPS, True)
    last = max(s for row in run.values() for s in row)
    lines.append("a run of %d steps, with versions:" % STEPS)
    for first in range(0, last + 1, period):
        lines += grid(run, first, first + period - 1, label)
    return lines + [""]


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plans")
    os.makedirs(here, exist_ok=True)
    for N in (2, 3, 4):
        for placement in ("shared", "replica", "zero", "pipeline", "grid"):
            rules = ["dp", "cdp-v1", "cdp-v2"]
            rules += {"shared": ["accumulate"], "pipeline": ["gpipe", "1f1b", "2bw"]}.get(placement, []) + ["stagger"]
            lines = []
            for rule in rules:
                lines += plan(rule, placement, N, N, (N + 1) // 2 if rule == "accumulate" else N)
            if N == 2:
                for rule in ("cdp-v1", "cdp-v2"):
                    lines += plan(rule, placement, N, 2 * N, N)
            for rule in rules if N == 2 else []:
                lines += plan(rule, placement, N, N, N, 2)
            with open(os.path.join(here, "%s-%d.txt" % (placement, N)), "w") as out:
                out.write("\n".join(lines[:-1]) + "\n")


main()
