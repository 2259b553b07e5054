"""run.transport = gloo trains the same as sockets: equal bits with two ranks, equal bytes. A failed rank is named."""

import contextlib
import os
import pathlib
import re
import signal

import pytest
from cli_test_case import PATIENCE
from endless_training import EndlessTraining, ranks_of

GLOO = ["--set", "run.transport=gloo"]


def threads_of(pid):
    names = []
    for path in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((path / "comm").read_text().strip())
    return names


class Transport(EndlessTraining):
    def both(self, ranks, *more):
        """The same run with sockets and with Gloo; both use rings."""
        job = self.job(6)
        given = ["--nproc", ranks, "--set", f"method.dp={ranks}", *more]
        sockets = self.json("train", job, *given, "--set", "method.collective=ring")
        return sockets, self.json("train", job, "--overwrite", *given, *GLOO)

    def test_two_ranks_compute_the_same_bits(self):
        for method in ("ddp", "zero2", "zero3"):
            with self.subTest(method=method):
                sockets, gloo = self.both(2, "--set", f"method.name={method}", "--overwrite")
                self.assertEqual(gloo["losses"], sockets["losses"])
                self.assertEqual(gloo["bytes_sent_by_rank_0"], sockets["bytes_sent_by_rank_0"])

    def test_three_ranks_add_in_another_order(self):
        sockets, gloo = self.both(3, "--set", "train.global_batch=9")
        self.assertEqual(gloo["bytes_sent_by_rank_0"], sockets["bytes_sent_by_rank_0"])
        for ours, theirs in zip(sockets["losses"], gloo["losses"], strict=True):
            self.assertAlmostEqual(theirs / ours, 1, places=4)

    def test_a_change_of_plan(self):
        """The second plan creates new groups."""
        adaptive = ["method.name=adaptive", "adaptive.warmup_steps=3", "train.steps=6"]
        sets = [word for key in adaptive for word in ("--set", key)]
        one = self.json("train", self.job(6), "--nproc", "2", *sets, *GLOO)
        self.assertEqual(one["end_step"], 6)
        self.assertEqual([change["step"] for change in one["plan_changes"]], [3])

    def test_only_rings(self):
        job = self.job(2)
        tree = ["--set", "method.collective=double_tree"]
        says = ["run.transport", "gloo has rings alone", '"double_tree"', "sockets"]
        self.refused("train", job, "--nproc", "2", *GLOO, *tree, says=says)
        one = self.json("simulate", job, *GLOO, "--fidelity", "analytic")
        self.assertEqual({c["algorithm"] for c in one["collectives"]}, {"ring"})

    def failing(self, rank, sign, *more):
        """The output of an endless Gloo run with two ranks, after one of them got a signal and all have ended."""
        (self.tmp / "out/metrics.jsonl").unlink(missing_ok=True)
        with self.training(*GLOO, *more) as child:
            pids = ranks_of(child.pid)
            # Checks that Gloo runs and not our own sockets.
            self.assertTrue([name for name in threads_of(pids[1 - rank]) if "gloo" in name])
            os.kill(pids[rank], sign)
            said = child.communicate(timeout=PATIENCE)[1]
            self.assertEqual(child.returncode, 1, said)
            return said

    def test_who_dies_is_named(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.failing(rank, signal.SIGKILL)
                self.assertRegex(said, rf"rehearse: rank {rank} \(\S+, pid \d+\) ended without a word")
                self.assertNotIn(f"rehearse: rank {1 - rank} ", said)

    @pytest.mark.soak
    def test_who_stops_is_named(self):
        said = self.failing(1, signal.SIGSTOP, "--set", "run.timeout=3s")
        self.assertTrue(re.search(r"rehearse: rank 1 \(\S+, pid \d+\) has been silent for", said), said)
