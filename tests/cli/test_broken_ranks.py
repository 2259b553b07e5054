"""A rank that has proven that it belongs to a run sends what no rank sends: to rank 0's supervisor, to another rank, to its launcher. Its
connection is closed, the error names it and what was wrong, and the run recovers as if it had died. docs/security.md says so."""

import json
import os
import struct
import subprocess

import pytest
from cli_test_case import PATIENCE, REHEARSE
from proxy import CONTROL, DATA, Harm, Proxy, preload
from recovery_case import RecoveryCase, sets

NEVER = {"run.timeout": "1h", "run.heartbeat": "100ms"}  # nobody waits for a time-out
BEAT, SET = 2, 3  # MessageKind (runtime/control/net/frame.h)
LETTER, END = 0x5248544C, 0x52485445  # LetterKind (runtime/communication/data_frame.h)


def control(size, kind, body=b""):
    return struct.pack("<IB", size, kind) + body


def data(word, second, size):
    return struct.pack("<IIQ", word, second, size)


WORKERS = {"method.name": "ps-async", "method.servers": 1}
# What rank 1 sends, and what is said of it. With `back` rank 0 sends it to rank 1.
CASES = {
    "control-unknown": (Harm(CONTROL, 1, insert=control(0, 200)), {}, r"0: no message has the kind 200 and 0 bytes"),
    "control-long": (Harm(CONTROL, 1, insert=control(1 << 27, SET)), {}, r"0: no message has the kind 3 and 134217728 bytes"),
    "control-short": (
        Harm(CONTROL, 1, insert=control(4, SET, bytes(4))),
        {},
        r"0: a message of the control plane is shorter than it should be",
    ),
    "from-supervisor": (Harm(CONTROL, 1, True, insert=control(0, 200)), {}, r"1: no message has the kind 200 and 0 bytes"),
    "piece": (Harm(DATA, 1, insert=data(0, 0, 5)), {}, r"0: channel [^:]+: 5 bytes as transfer 0 came, others were due"),
    "letter-unknown": (
        Harm(DATA, 1, insert=data(7, 0, 5)),
        WORKERS,
        r"2: channel [^:]+: no message of a mailbox has the kind 0x7 and 5 bytes",
    ),
    "letter-long": (
        Harm(DATA, 1, insert=data(END, 0, 5)),
        WORKERS,
        r"2: channel [^:]+: no message of a mailbox has the kind 0x52485445 and 5",
    ),
    "letter-short": (
        Harm(DATA, 1, insert=data(LETTER, 0, 4) + bytes(4)),
        WORKERS,
        r"2: channel [^:]+: 4 bytes came where \d+ were due",
    ),
}

SENDS_NONSENSE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  ssize_t (*next)(int, const void*, size_t, int) = dlsym(RTLD_NEXT, "send");
  int type = 0;
  socklen_t type_size = sizeof type;
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size);
  const char* rank = getenv("RANK");
  const int breaks = type == SOCK_SEQPACKET && rank && !strcmp(rank, "0");
  return breaks ? next(fd, "what?", 5, flags) : next(fd, bytes, size, flags);
}
"""


class BrokenRanks(RecoveryCase):
    def command(self, out, ranks, keys):
        keys = NEVER | {"train.out": str(self.tmp / out), "train.schedule": "constant", "train.lr": 1e-3, "train.steps": 40} | keys
        return ["train", self.job(), "--nproc", str(ranks), "--quiet", *sets(keys)]

    def disturbed(self, out, ranks, keys, harm):
        """A run to which harm is done after three steps. Returns what it said and its exit status."""
        command = self.command(out, ranks, keys)
        sent = self.json("simulate", self.job(), "--fidelity", "analytic", *command[command.index("--set") :])["bytes_sent_per_rank"][
            "mean"
        ]
        harm = Harm(harm.purpose, harm.caller, harm.back, insert=harm.insert, after=3 * sent)
        proxy = Proxy(self.tmp, harm)
        self.addCleanup(proxy.close)
        self.addCleanup(harm.finished.set)
        done = subprocess.run(
            [REHEARSE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=proxy.environment(), timeout=PATIENCE
        )
        self.assertTrue(harm.done)
        return done.stderr, done.returncode

    def check(self, case):
        harm, keys, what = CASES[case]
        said, status = self.disturbed(f"ends-{case}", 3 if keys else 2, keys | {"train.steps": 100000}, harm)
        self.assertEqual(status, 1, said)
        sender = "0" if harm.back else "1"
        self.assertRegex(said, rf"rehearse: rank {sender} \(\S+, pid \d+\) sent a broken message to rank {what}")
        self.assertEqual(said.count("sent a broken message"), 1, said)  # named once
        self.assertEqual(said.count("rehearse: "), 1, said)  # and nobody else is

    def test_control_message_of_an_unknown_kind(self):
        self.check("control-unknown")

    def test_supervisors_message_of_an_unknown_kind(self):
        self.check("from-supervisor")

    def test_piece_that_was_not_due(self):
        self.check("piece")

    def test_letter_of_an_unknown_kind(self):
        self.check("letter-unknown")

    @pytest.mark.long
    def test_all_others(self):
        for case in ("control-long", "control-short", "letter-long", "letter-short"):
            with self.subTest(case):
                self.check(case)

    def recovers(self, case, policy, ranks):
        harm = CASES[case][0]
        keys = {"recovery.restarts": 1, "recovery.policy": policy, "train.save_every": 1}
        said, status = self.disturbed(case, 2, keys, harm)
        self.assertEqual(status, 0, said)
        lost = 0 if harm.back else 1
        self.assertEqual([(n["died"], n["hung"], n["ranks"]) for n in self.recoveries(case)], [([lost], [], ranks)], said)
        self.assertEqual(list(self.losses_of(case)), list(range(1, 41)))

    def test_run_goes_on_without_the_rank(self):
        self.recovers("piece", "shrink", 1)

    @pytest.mark.long
    def test_run_recovers_from_all_connections(self):
        self.rehearse(*self.command("whole", 2, {}))
        for case in ("control-unknown", "from-supervisor", "piece"):
            with self.subTest(case):
                self.recovers(case, "restart", 2)
                self.assertEqual(self.state_of(case, 40), self.state_of("whole", 40))

    def test_launcher_does_without_a_rank_that_reports_nonsense(self):
        out = str(self.tmp / "out")
        keys = {"recovery.restarts": 1, "recovery.policy": "shrink", "train.steps": 20, "train.save_every": 5, "train.out": out} | NEVER
        env = os.environ | {"LD_PRELOAD": preload(self.tmp, SENDS_NONSENSE)}
        said = self.rehearse("train", self.job(), "--nproc", "2", "--json", *sets(keys), env=env)
        self.assertRegex(said.stderr, r"rehearse: rank 0 \(pid \d+\) counts as dead: a broken message between launcher and rank")
        self.assertEqual([(n["died"], n["ranks"]) for n in self.recoveries("out")], [([0], 1)])
        self.assertEqual((json.loads(said.stdout)["world_size"], json.loads(said.stdout)["end_step"]), (1, 20))
