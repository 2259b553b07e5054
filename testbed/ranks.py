"""Starts a command as ranks on the nodes of a bed, with torchrun's variables (docs/multi-host.md), passes their output on, and applies
faults when they are due. The exit status is that of `rehearse train --nproc`: the gravest of the ranks'."""

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time

from testbed import bed

PORT = 29500
SECRET = secrets.token_hex(32)  # of the runs that this process starts (docs/security.md)
SECOND_REQUEST_AFTER = 1  # seconds; signals within them are one request, as in rehearse train


def variables(rank, world, local, on_node, head, port):
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": on_node,
        "MASTER_ADDR": head,
        "MASTER_PORT": port,
        "REHEARSE_SECRET": SECRET,
    }


class Rank:
    """A process of the run. Of rank 0 all output is passed on as it comes, of other ranks whole lines with their number."""

    def __init__(self, network, node, command, env, label):
        self.label, self.text = label, b""
        self.out, writes = os.pipe()
        self.process = network.start(node, command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=writes, stderr=writes)
        os.close(writes)

    def read(self):
        """Passes on what there is; False at the end."""
        piece = os.read(self.out, 65536)
        if not self.label:
            say(piece)
        else:
            *lines, self.text = (self.text + piece).split(b"\n")
            if not piece and self.text:
                lines.append(self.text)
            say(b"".join(self.label + line + b"\n" for line in lines))
        return bool(piece)


def has_line(path):
    try:
        with open(path, "rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False


def say(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class Run:
    """The ranks of one or more commands. Several commands are several jobs that share the network."""

    def __init__(self, network, log=None):
        self.network, self.log = network, log
        self.ranks, self.signalled, self.failed_at = [], None, None
        self.begun = time.monotonic()

    def note(self, event, **more):
        """Writes a line of the log: {"t": seconds from the start of the ranks, "event": text, ...}."""
        if self.log:
            self.log.write(json.dumps({"t": round(time.monotonic() - self.begun, 4), "event": event, **more}) + "\n")
            self.log.flush()

    def start(self, commands, per_node=None):
        """`per_node`: ranks on each node; default: as many as it has devices."""
        places = [(node, i, per_node or spec.devices) for node, spec in self.network.nodes.items() for i in range(per_node or spec.devices)]
        self.begun = time.monotonic()
        for job, command in enumerate(commands):
            for rank, (node, local, on_node) in enumerate(places):
                values = variables(rank, len(places), local, on_node, places[0][0], PORT + job)
                of_job = f"job {job} " if len(commands) > 1 else ""
                label = f"[{of_job}rank {rank}] ".encode() if rank or of_job else b""
                self.ranks.append(Rank(self.network, node, command, {k: str(v) for k, v in values.items()}, label))
        self.note("start", ranks=len(self.ranks))

    def on_signal(self, number, _):
        """Passes the first request to the ranks, which may save; kills them on a second one."""
        again = self.signalled and time.monotonic() - self.signalled[1] > SECOND_REQUEST_AFTER
        self.signalled = self.signalled or (number, time.monotonic())
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGKILL if again else number)

    def wait(self, changes=(), grace=120, after=None):
        """Returns the status when all ranks have ended. When one has failed, the others get `grace` seconds. `after`: times of changes
        count from when this file has its first line, and not from the start of the ranks."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        due, running = sorted(changes, key=lambda change: change.at), list(range(len(self.ranks)))
        zero = None if after else self.begun
        with selectors.DefaultSelector() as wait:
            for rank in self.ranks:
                wait.register(rank.out, selectors.EVENT_READ, rank)
            while wait.get_map() or running:
                if zero is None and has_line(after):
                    zero = time.monotonic()
                now = -1 if zero is None else time.monotonic() - zero
                while due and due[0].at <= now:
                    change = due.pop(0)
                    change.apply(self.network)
                    self.note(change.text)
                for key, _ in wait.select(min(0.05 if zero else 0.005, max(0, due[0].at - now)) if due else 0.05):
                    if not key.data.read():
                        wait.unregister(key.fd)
                        os.close(key.fd)
                running = [rank for rank in running if self.runs(rank)]
                if self.failed_at and time.monotonic() - self.failed_at > grace:
                    bed.stop([self.ranks[rank].process for rank in running], 0)
        return self.status()

    def runs(self, rank):
        status = self.ranks[rank].process.poll()
        if status is None:
            return True
        self.note("end", rank=rank, status=status)
        if status and not self.failed_at:
            self.failed_at = time.monotonic()
        return False

    def status(self):
        codes = [rank.process.returncode for rank in self.ranks]
        if self.signalled and any(code in (128 + self.signalled[0], -self.signalled[0], -signal.SIGKILL) for code in codes):
            return 128 + self.signalled[0]
        # A rank that refuses (2) makes others fail (1). A signal from elsewhere is a failure.
        return max(1 if code < 0 else code for code in codes)
