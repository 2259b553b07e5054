"""Parameter servers whose ranks are lost: a server's shard comes from the memory of another node, and the others go on without the
samples of a lost worker."""

import os
import signal

import pytest
from cli_test_case import PATIENCE
from recovery_case import SAVING, sets
from server_case import METHODS, STEPS, ServerCase


class ServerRecovery(ServerCase):
    @pytest.mark.soak
    def test_a_lost_server_costs_no_step(self):
        """Its node dies with its memory. The step under way is done again, no step before it."""
        for method in METHODS:
            keys = self.keys(method, 2)
            whole = self.whole(f"whole-{method}", 3, keys)
            # Steps are slow, as those of large models: the copies of a step arrive before the next one ends.
            slow = {"kind": "slows", "rank": 0, "step": 15, "factor": 100.0, "duration": "60s"}
            trace = self.trace(slow, {"kind": "node_dies", "node": 2, "step": 21, "phase": self.server_phase(method)})
            for policy in ("restart", "spare") if method == "ps-sync" else ("restart",):
                with self.subTest(method=method, policy=policy):
                    out = f"cut-{method}-{policy}"
                    one, notes, said = self.survive(out, 3, keys | self.in_memory("peer", policy), "--faults", trace)
                    self.assertEqual([(n["died"], n["ranks"], n["from_step"]) for n in notes], [([2], 3, 20)], said)
                    if method == "ps-sync":
                        self.assertEqual(self.state_of(out, STEPS), self.state_of(f"whole-{method}", STEPS))
                    else:
                        self.alike(one, whole, 0.1)

    def test_without_a_copy_the_shard_is_lost(self):
        """The same without peers: the control of the test above."""
        keys = self.keys("ps-sync", 2) | self.in_memory("sharded", "restart")
        _, notes, _ = self.survive("cut", 3, keys, "--faults", self.trace({"kind": "node_dies", "node": 2, "step": 21}))
        self.assertEqual([n["from_step"] for n in notes], [0])

    def test_the_others_go_on_without_the_samples_of_a_lost_worker(self):
        """The mathematics are those of one process that trains the same samples."""
        keys = self.keys("ps-sync", 3) | self.in_memory("sharded", "replica") | {"recovery.replacement": "1h", "train.warmup_steps": 0}
        trace = self.trace({"kind": "rank_dies", "rank": 1, "step": 21, "phase": "backward"})
        one, notes, _ = self.survive("less", 4, keys, "--faults", trace)
        self.assertEqual((one["world_size"], one["global_batch"]), (3, 8))
        lost = notes[0]["from_step"]
        self.assertEqual((notes[0]["died"], notes[0]["ranks"], lost), ([1], 3, 20))
        alone = SAVING | {"method.dp": 1, "train.global_batch": 12, "checkpoint.kind": "sharded", "train.save_every": 0}
        alone |= {"train.warmup_steps": 0, "train.out": str(self.tmp / "alone")}
        self.json("train", self.job(), *sets(alone | {"train.steps": lost}))
        rest = {"train.steps": STEPS, "train.global_batch": 8, "train.left_out": "[4,8]"}
        self.json("train", self.job(), *sets(alone | rest), "--resume")
        expected, got = self.losses_of("alone"), self.losses_of("less")
        for step in range(1, STEPS + 1):
            self.assertAlmostEqual(got[step], expected[step], delta=1e-3 * expected[step])
        # With all samples the losses differ: the comparison can fail.
        self.json("train", self.job(), *sets(alone | {"train.out": str(self.tmp / "other"), "train.steps": STEPS}))
        other = self.losses_of("other")
        self.assertGreater(max(abs(other[step] - got[step]) for step in range(lost + 1, STEPS + 1)), 3e-3 * expected[STEPS])

    @pytest.mark.soak
    def test_a_server_and_a_worker_at_once(self):
        keys = self.keys("ps-sync", 2, servers=2) | self.in_memory("peer", "shrink") | {"method.bucket": "50kB"}
        with self.start("both", 4, keys | {"train.steps": 400}) as child:
            pids = self.pids_after(child, "both", 10)
            for sent in (signal.SIGSTOP, signal.SIGKILL):
                for rank in (0, 3):
                    os.kill(pids[rank], sent)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 1, said)  # two processes, and two of them must be servers
        self.assertIn("recovery.policy = shrink: 2 of 4 ranks are left", said)

    def test_refusals(self):
        keys = {"checkpoint.kind": "async", "method.name": "ps-async", "train.save_every": 5}
        self.refused("train", self.job(), "--nproc", "3", *sets(keys), says=["checkpoint.kind", "ps-async", "sharded", "peer"])
        keys = {"recovery.slow_factor": 3, "method.name": "ps-async"}
        self.refused("train", self.job(), "--nproc", "3", *sets(keys), says=["recovery.slow_factor", "ps-async", "do not wait"])
        keys = {"recovery.slow_factor": 3, "recovery.slow_rank": "rebalance", "recovery.restarts": 1, "method.name": "ps-sync"}
        self.refused("train", self.job(), "--nproc", "3", *sets(keys), says=["recovery.slow_rank", "method.shares", "ddp", '"evict"'])
        keys = {"recovery.policy": "replica", "recovery.restarts": 1, "method.name": "ps-sync", "method.dp": 1}
        self.refused("train", self.job(), "--nproc", "2", *sets(keys), says=["recovery.policy", "method.dp >= 2", "shrink"])
