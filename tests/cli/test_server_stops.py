"""Asynchronous parameter servers stop at any step: for checkpoints, evaluations, a signal and the end. Each gradient of each worker reaches
each server once, so that all servers end with it and no worker waits for an answer that does not come."""

import json
import signal

import pytest
from cli_test_case import PATIENCE
from recovery_case import RecoveryCase

WORKERS, STEPS = 3, 40


class ServerStops(RecoveryCase):
    def keys(self, servers, saving, method="ps-async"):
        return {
            "method.name": method,
            "method.dp": WORKERS,
            "method.servers": servers,
            "train.global_batch": 12,
            "train.steps": STEPS,
            "train.lr": 3e-4,  # with larger steps, losses of asynchronous workers jump now and then
            "checkpoint.kind": "sharded",
            "train.save_every": saving,
        }

    def own_steps(self, out, step):
        """The next step of each worker in a checkpoint; the servers count the run's steps."""
        steps = json.loads((self.tmp / out / f"step-{step:08}/manifest.json").read_text())["own_steps"]
        self.assertEqual(steps[WORKERS:], [None] * (len(steps) - WORKERS))
        return steps[:WORKERS]

    def run_to_the_end(self, out, keys):
        one = self.whole(out, WORKERS + keys["method.servers"], keys)
        self.assertEqual(one["end_step"], STEPS)
        self.assertEqual(list(self.losses_of(out)), list(range(1, STEPS + 1)))  # each once
        # Steps have as many gradients as there are workers, each of which was computed once: none was lost, none used twice.
        self.assertEqual(sum(self.own_steps(out, STEPS)), WORKERS * STEPS)
        return one

    @pytest.mark.soak
    def test_at_every_step_and_at_a_few(self):
        """With workers of different speed, whose gradients come to the servers in different orders."""
        whole = self.run_to_the_end("whole", self.keys(1, STEPS))
        for servers, saving, slow in ((2, 1, 4), (2, 3, 20), (3, 1, 1), (3, 3, 4)):
            with self.subTest(servers=servers, saving=saving, slow=slow):
                out = f"{servers}-{saving}-{slow}"
                straggler = {"disturb.stragglers": f"[{{rank = 1, factor = {slow}}}]"}
                one = self.run_to_the_end(out, self.keys(servers, saving) | straggler | {"train.eval_every": 4})
                self.assertLess(max(self.losses_of(out).values()), 1.5 * self.losses_of("whole")[1])
                self.assertAlmostEqual(one["last_loss"], whole["last_loss"], delta=0.1 * whole["last_loss"])

    @pytest.mark.soak
    def test_fast_workers_do_more_steps_between_two_stops(self):
        keys = self.keys(2, 20) | {"disturb.stragglers": "[{rank = 1, factor = 50}]"}
        self.run_to_the_end("uneven", keys)
        own = self.own_steps("uneven", STEPS)
        self.assertLess(2 * own[1], min(own[0], own[2]), own)
        # Each stop waits for one gradient of each worker.
        self.assertGreaterEqual(own[1], 2)

    def test_at_a_signal_and_on(self):
        for method in ("ps-async", "byteps-async"):
            keys = self.keys(3, 7, method) | {"train.steps": 1000000, "disturb.stragglers": "[{rank = 0, factor = 4}]"}
            for more in ((), ("--resume",)):
                with self.start(method, WORKERS + 3, keys, *more) as child:
                    done = max(self.losses_of(method), default=0) if more else 0
                    self.pids_after(child, method, done + 10)
                    child.send_signal(signal.SIGINT)
                    text, said = child.communicate(timeout=PATIENCE)
                self.assertEqual(child.returncode, 128 + signal.SIGINT, said)
                end = json.loads(text)["end_step"]
                self.assertGreaterEqual(end, done + 10)
                self.assertEqual(list(self.losses_of(method)), list(range(1, end + 1)))
                self.assertEqual(sum(self.own_steps(method, end)), WORKERS * end)
