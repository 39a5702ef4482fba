#!/usr/bin/env python3
"""How many payload bytes per second a link carries, with TCP. Used by links.py, with one end in each namespace.

    goodput.py receive ADDRESS PORT SECONDS      prints bytes per second, once the sender has ended
    goodput.py send ADDRESS PORT SECONDS         sends for SECONDS

The first half is left out, because the buffers of the link and of the sockets fill up during it."""

import socket
import sys
import time

CHUNK = 1 << 20


def receive(address, seconds):
    with socket.create_server(address) as server:
        connection, _ = server.accept()
        total, arrivals, buffer = 0, [], bytearray(CHUNK)
        with connection:
            while count := connection.recv_into(buffer):
                total += count
                arrivals.append((time.monotonic(), total))
    begin = next((when, so_far) for when, so_far in arrivals if when >= arrivals[0][0] + seconds / 2)
    print((total - begin[1]) / (arrivals[-1][0] - begin[0]))


def send(address, seconds):
    end = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    end = time.monotonic() + seconds
    with connection:
        while time.monotonic() < end:
            connection.send(bytes(CHUNK // 16))


def main():
    what, host, port, seconds = sys.argv[1:]
    {"receive": receive, "send": send}[what]((host, int(port)), float(seconds))


if __name__ == "__main__":
    main()
