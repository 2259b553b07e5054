"""Strangers connect to the ports of a run while it trains, and say whatever comes to their minds. The run does not notice: no rank ends,
no descriptor is left open, and the weights are those of a run that nobody disturbed. docs/security.md says why."""

import contextlib
import hashlib
import hmac
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import time
import unittest

import pytest
from cli_test_case import REHEARSE
from cli_test_train_data import TrainingCase

MAGIC, VERSION = 0x52484853, 4  # runtime/control/handshake.h
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


def secret_of(pid):
    values = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return bytes.fromhex(next(v for v in values if v.startswith(b"REHEARSE_SECRET=")).split(b"=")[1].decode())


def answer_to(challenge, secret, purpose=CONTROL, rank=1):
    """What a rank that knows the secret would answer."""
    words = struct.pack("<6IQ", MAGIC, VERSION, purpose, rank, 0, 0, 0) + bytes(32)
    return words + hmac.new(secret, b"a" + challenge + words, hashlib.sha512).digest()[:32]


class Strangers(TrainingCase):
    def begin(self, ranks, folder, *sets):
        """An endless run, after its first steps."""
        folder.mkdir()
        job = self.job(100000, folder=folder)
        words = [word for one in (f"method.dp={ranks}", *sets) for word in ("--set", one)]
        said = (folder / "said").open("w")
        self.addCleanup(said.close)
        run = subprocess.Popen([REHEARSE, "train", job, "--nproc", str(ranks), *words], stdout=subprocess.DEVNULL, stderr=said)
        self.addCleanup(run.kill)
        self.until(lambda: run.poll() is not None or len(self.losses(folder)) > 1)
        self.assertIsNone(run.poll(), (folder / "said").read_text())
        return run

    def until(self, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def end(self, run):
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 128 + signal.SIGTERM)

    def weights(self, folder, name):
        """{file: hash} of a checkpoint's tensors."""
        found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder / "out" / name).glob("*.safetensors")}
        self.assertTrue(found)
        return found

    def visit(self, places, secret, times):
        """Each visit says something else; the connections of some are left open until the end."""
        noise = random.Random(1)
        open_ones, old = [], []

        def call(what, place):
            stranger = socket.create_connection(place, timeout=PATIENCE)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it had said everything
                what(stranger)
            return stranger

        def challenge(stranger):
            return stranger.recv(40, socket.MSG_WAITALL)

        def replay(stranger):
            challenge(stranger)
            old.append(answer_to(bytes(40), secret))
            stranger.sendall(old[0])
            self.assertNotEqual(stranger.recv(4)[:1], b"\1", "a replayed answer was accepted")

        def other_run(stranger):
            stranger.sendall(answer_to(challenge(stranger), bytes(32)))
            self.assertNotEqual(stranger.recv(4)[:1], b"\1", "another secret was accepted")

        def reset(stranger):
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.sendall(bytes(7))

        kinds = [
            lambda s: s.sendall(bytes(16)),
            lambda s: s.sendall(noise.randbytes(noise.randrange(300))),
            lambda s: s.sendall(bytes(noise.randrange(300))),
            lambda s: s.sendall(struct.pack("<IBIIII", 22, 0, 3, 1, 2, 0)),  # a hello without a proof
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

    def check(self, ranks, times):
        folder = self.tmp / "disturbed"
        run = self.begin(ranks, folder)
        pids = children(run.pid)
        self.assertEqual(len(pids), ranks)
        places = sorted(set().union(*map(listening, pids)))
        self.assertEqual(len(places), 1 + ranks)  # rank 0's for control, and each rank's for data
        self.assertEqual({address for address, _ in places}, {"127.0.0.1"})
        before = {pid: len(descriptors(pid)) for pid in pids}
        self.visit(places, secret_of(pids[0]), times)
        self.until(lambda: all(len(descriptors(pid)) <= before[pid] for pid in pids))
        self.assertEqual(children(run.pid), pids)
        self.assertIsNone(run.poll())
        self.end(run)
        said = (folder / "said").read_text()
        self.assertEqual(said.count("a connection from 127.0.0.1 is refused: it is no rank of this build"), 1, said)
        checkpoint = max(path.name for path in (folder / "out").glob("step-????????"))

        alone = self.tmp / "alone"
        run = self.begin(ranks, alone, f"train.save_every={int(checkpoint.removeprefix('step-'))}")
        self.until(lambda: (alone / "out" / checkpoint).exists())
        self.end(run)
        self.assertEqual(self.weights(folder, checkpoint), self.weights(alone, checkpoint))

    def test_the_run_does_not_notice(self):
        self.check(ranks=2, times=240)

    @pytest.mark.soak
    def test_the_run_does_not_notice_ten_thousand(self):
        self.check(ranks=4, times=10000)

    def test_who_does_not_belong_to_the_run_is_refused_by_name(self):
        run = self.begin(2, self.tmp / "run")
        rank0, rank1 = children(run.pid)
        [(_, port)] = listening(rank0) & listening(run.pid)
        secret = secret_of(rank1).hex()
        said = self.tmp / "run/said"

        def join(rank, world, secret):
            names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "REHEARSE_SECRET": secret}
            names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            env = os.environ | {name: str(value) for name, value in names.items()}
            sets = ("--set", f"method.dp={world}", "--set", f"train.global_batch={4 * world}")
            return self.rehearse("train", self.job(100000), *sets, env=env, expect=1).stderr

        self.assertIn("has another secret than this rank", join(1, 2, "ab" * 32))
        self.until(lambda: "is refused: it says that it is rank 1, but it has another secret" in said.read_text())
        self.assertIn("two processes are rank 1", join(1, 2, secret))
        self.assertIn("was started for 3 ranks, rank 0 for 2", join(2, 3, secret))
        self.assertEqual(children(run.pid), [rank0, rank1])
        for pid in (run.pid, rank0, rank1):
            self.assertNotIn(secret, pathlib.Path(f"/proc/{pid}/cmdline").read_text())
        self.end(run)
        self.assertNotIn(secret, said.read_text())

    def test_several_hosts_need_a_secret(self):
        names = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        env = os.environ | {name: str(value) for name, value in names.items()}
        said = self.rehearse("train", self.job(), env=env, expect=2).stderr
        for way in ("run.secret_file", "REHEARSE_SECRET", "run.trust_network = true"):
            self.assertIn(way, said)
        said = self.rehearse("train", self.job(), env=env | {"REHEARSE_SECRET": "hunter2"}, expect=2).stderr
        self.assertIn("environment variable REHEARSE_SECRET: it must have 64 hexadecimal digits", said)
        self.assertNotIn("hunter2", said)


if __name__ == "__main__":
    unittest.main()
