"""Strangers who connect to the ports of a run and say whatever comes to their minds; what a test needs to know of the run's processes."""

import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys

MAGIC, VERSION = 0x52484853, 5  # runtime/control/net/handshake.h
CONTROL, DATA = 1, 2
PATIENCE = 600  # seconds; only ends a hang


def children(pid):
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def descriptors(pid):
    """{descriptor: what it is} of a process."""
    found = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found[entry.name] = os.readlink(entry)
    return found


def listening(pid):
    """(address, port) of each TCP socket on which a process listens."""
    sockets = set(descriptors(pid).values())
    found = set()
    for family, table in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] != "0A" or f"socket:[{words[9]}]" not in sockets:
                continue
            address, port = words[1].split(":")
            packed = b"".join(struct.pack("=I", int(address[i : i + 8], 16)) for i in range(0, len(address), 8))
            found.add((socket.inet_ntop(table, packed), int(port, 16)))
    return found


def answer_to(challenge, secret, purpose=CONTROL, rank=1):
    """What a rank that knows the secret would answer."""
    words = struct.pack("<6IQ", MAGIC, VERSION, purpose, rank, 0, 0, 0) + bytes(32)
    return words + hmac.new(secret, b"a" + challenge + words, hashlib.sha512).digest()[:32]


def visit(places, secret, times):
    """Each visit says something else; the connections of some are left open until the end."""
    noise = random.Random(1)
    open_ones, old = [], []

    def call(what, place):
        stranger = socket.create_connection(tuple(place), timeout=PATIENCE)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it had said everything
            what(stranger)
        return stranger

    def challenge(stranger):
        return stranger.recv(40, socket.MSG_WAITALL)

    def replay(stranger):
        challenge(stranger)
        old.append(answer_to(bytes(40), secret))
        stranger.sendall(old[0])
        if stranger.recv(4)[:1] == b"\1":
            raise RuntimeError("a replayed answer was accepted")

    def other_run(stranger):
        stranger.sendall(answer_to(challenge(stranger), bytes(32)))
        if stranger.recv(4)[:1] == b"\1":
            raise RuntimeError("another secret was accepted")

    def reset(stranger):
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.sendall(bytes(7))

    kinds = [
        lambda s: s.sendall(bytes(16)),
        lambda s: s.sendall(noise.randbytes(noise.randrange(300))),
        lambda s: s.sendall(bytes(noise.randrange(300))),
        lambda s: s.sendall(struct.pack("<IB5Icq", 29, 0, 3, 1, 3, 0, 1, b"x", 1)),  # version 3's hello, of a run of 3 ranks
        replay,
        other_run,
        reset,
        lambda s: None,
    ]
    for i in range(times):
        stranger = call(kinds[i % len(kinds)], places[i // len(kinds) % len(places)])
        # One byte, and then it stays.
        if i % 40 == 39:
            open_ones.append(call(lambda s: s.sendall(struct.pack("<I", MAGIC)[:1]), places[i % len(places)]))
        stranger.close()
    for stranger in open_ones:
        stranger.close()


def visit_from(enter, places, secret, times):
    """The same from a node of a testbed; `enter`: the words that begin a command there."""
    given = json.dumps([sorted(places), secret.hex(), times])
    subprocess.run([*enter, sys.executable, __file__], input=given, text=True, check=True)


if __name__ == "__main__":
    said_places, said_secret, said_times = json.load(sys.stdin)
    visit(said_places, bytes.fromhex(said_secret), said_times)
