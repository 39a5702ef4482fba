#!/usr/bin/env python3
"""Samples the bytes received by each interface of a namespace, until its standard input ends. Used by links.py.

    counters.py PREFIX SECONDS

Prints one line of JSON: [[when, bytes of the first interface, of the second, ...], ...], for the interfaces whose
names begin with PREFIX, in order of names; `when` by the monotonic clock."""

import json
import select
import sys
import time


def read(file, prefix):
    file.seek(0)
    found = [line.split(":") for line in file if line.lstrip().startswith(prefix)]
    return [int(rest.split()[0]) for _, rest in sorted((name.strip(), rest) for name, rest in found)]


def main():
    prefix, pause = sys.argv[1], float(sys.argv[2])
    samples = []
    with open("/proc/self/net/dev") as file:
        while not select.select([sys.stdin], [], [], pause)[0]:
            samples.append([time.monotonic(), *read(file, prefix)])
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
