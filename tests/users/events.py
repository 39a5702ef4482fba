#!/usr/bin/env python3
"""Reads the event files of a run as TensorBoard would, and holds them against metrics.jsonl and evaluations.jsonl.

    events.py RUN_DIR [FILES]

Written from the definitions of TFRecord, CRC-32C and the protocol buffer wire format; it shares nothing with the program.
FILES: how many event files there must be.
"""

import glob
import json
import os
import struct
import sys


def make_table():
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


TABLE = make_table()


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        head = data[at:at + 8]
        assert len(head) == 8, f"{path}: a record ends in its length"
        length, = struct.unpack("<Q", head)
        crc, = struct.unpack("<I", data[at + 8:at + 12])
        assert crc == masked(head), f"{path}: the checksum of a length at byte {at}"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"{path}: a record ends in the middle"
        crc, = struct.unpack("<I", data[at + 12 + length:at + 16 + length])
        assert crc == masked(body), f"{path}: the checksum of a record at byte {at}"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at


def fields(data):
    """(number, value) of a message; nested messages and texts are bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack("<d", data[at:at + 8])[0], at + 8
        elif kind == 5:
            value, at = struct.unpack("<f", data[at:at + 4])[0], at + 4
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            raise AssertionError(f"wire type {kind}")
        yield number, value


def scalars(run, files):
    """{tag: {step: value}}; a start drops what earlier files have of its step and later ones."""
    paths = sorted(glob.glob(os.path.join(run, "events.out.tfevents.*")), key=lambda path: os.stat(path).st_mtime_ns)
    assert files is None or len(paths) == files, f"{len(paths)} event files where {files} were expected"
    found = {}
    for path in paths:
        for n, body in enumerate(records(path)):
            event = dict(fields(body))
            assert 1.7e9 < event[1] < 5e9, f"the wall time is {event[1]}"
            if n == 0:
                assert event[3] == b"brain.Event:2", event
            elif n == 1:
                assert dict(fields(event[7]))[1] == 1, event
                for values in found.values():
                    for step in [step for step in values if step >= event[2]]:
                        del values[step]
            else:
                for number, value in fields(event[5]):
                    assert number == 1
                    scalar = dict(fields(value))
                    found.setdefault(scalar[1].decode(), {})[event[2]] = scalar[2]
    return found


def lines(run, name):
    path = os.path.join(run, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def compare(tag, events, expected):
    assert set(events) == set(expected), f"{tag}: steps {sorted(set(events) ^ set(expected))[:5]} are in one only"
    for step, value in expected.items():
        assert abs(events[step] - value) <= 1e-6 * max(abs(value), 1e-3), f"{tag} of step {step}: {events[step]}, {value}"


def main():
    run, files = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    assert crc32c(b"123456789") == 0xE3069283
    found = scalars(run, files)
    metrics, evaluations = lines(run, "metrics.jsonl"), lines(run, "evaluations.jsonl")
    assert metrics
    for tag, name in (("train/loss", "loss"), ("train/lr", "lr"), ("train/samples_per_s", "samples_per_s"),
                      ("memory/activations_bytes", "activations_bytes"), ("train/gradient_norm", "gradient_norm")):
        expected = {line["step"] + 1: line[name] for line in metrics if line.get(name) is not None}
        tolerant = name in ("samples_per_s", "activations_bytes")  # written with six digits; read a moment later
        if tolerant:
            assert set(found[tag]) == set(expected), tag
        else:
            compare(tag, found.get(tag, {}), expected)
    for line in evaluations:
        for name in set(line) - {"step", "seconds"}:
            compare(f"evaluation/{name}", found[f"evaluation/{name}"], {one["step"]: one[name] for one in evaluations})
    assert all(value > 1e6 for value in found["memory/resident_bytes"].values())
    print(f"{len(found)} scalars over {len(metrics)} steps and {len(evaluations)} evaluations")


if __name__ == "__main__":
    main()
