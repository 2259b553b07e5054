"""Shared code of tests in which parameter servers and their workers are lost."""

import json
import shutil

from cli_test_case import PATIENCE
from cli_test_train_data import TWO_NODES
from recovery_case import RecoveryCase

ASYNCHRONOUS = ("ps-async", "byteps-async")
METHODS = ("ps-sync", "ps-ssp", *ASYNCHRONOUS)
STEPS = 40


class ServerCase(RecoveryCase):
    def setUp(self):
        super().setUp()
        self.memory = self.tmp / "memory"
        self.platform = self.tmp / "nodes.toml"

    def keys(self, method, workers, servers=1):
        """Each rank is on a node of its own; the servers are the last ones."""
        one_each = TWO_NODES.replace('"CPU core", "CPU core"', '"CPU core"').replace("count = 2", f"count = {workers + servers}")
        self.platform.write_text(one_each)
        return {
            "cluster.name": str(self.platform),
            "method.name": method,
            "method.dp": workers,
            "method.servers": servers,
            "train.global_batch": 12,
            "train.steps": STEPS,
            # With larger steps, losses of asynchronous workers jump now and then.
            "train.lr": 3e-4 if method in ASYNCHRONOUS else 1e-3,
            "checkpoint.kind": "sharded",
        }

    def server_phase(self, method):
        """The phase in which a server's state changes. Servers of byteps-async add, and update nothing."""
        return "exchange" if method == "byteps-async" else "update"

    def in_memory(self, kind, policy):
        """Checkpoints that nodes keep, after each step; none on the shared disk."""
        shutil.rmtree(self.memory, ignore_errors=True)
        self.memory.mkdir()
        return {
            "checkpoint.kind": kind,
            "checkpoint.place": "memory",
            "checkpoint.folder": str(self.memory),
            "checkpoint.full_every": 1000,
            "train.save_every": 1,
            "recovery.policy": policy,
            "recovery.restarts": 2,
        }

    def survive(self, out, ranks, keys, *more):
        """Runs to the end; returns the result, the recoveries and what was said."""
        with self.start(out, ranks, keys, *more) as child:
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(list(self.losses_of(out)), list(range(1, STEPS + 1)))  # each step once
        self.assertEqual(list(self.memory.iterdir()), [])
        return json.loads(text), self.recoveries(out), said

    def alike(self, got, expected, part):
        self.assertAlmostEqual(got["last_loss"], expected["last_loss"], delta=part * expected["last_loss"])
