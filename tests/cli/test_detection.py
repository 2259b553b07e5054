"""How long after a fault the other ranks end, and whom they name: real ranks on nodes of a testbed, so that a cable can be pulled. A closed
connection is seen within two seconds, whatever the timeout. Silence is seen after run.timeout."""

import os
import re
import signal
import time

import pytest
import testbed_case

pytestmark = pytest.mark.soak

ENDLESS = 100000
NODES = 3
TIMEOUT, HEARTBEAT = 4, 0.5


class Detection(testbed_case.TestbedCase):
    def fault(self, culprit, act, timeout):
        """Trains on three nodes and calls act(network, process of the culprit). Returns {rank: seconds until its end} of the others."""
        network = self.network(NODES)
        started = self.train(network, ENDLESS, f"run.timeout={timeout}s", f"run.heartbeat={HEARTBEAT}s")
        self.wait_for_steps(started)
        at = time.monotonic()
        act(network, started[culprit])
        others = {rank: process for rank, process in started.items() if rank != culprit}
        ended = self.ends(others, 3 * timeout + 10)
        self.assertEqual(set(ended), set(others), "some rank did not end")
        for rank, process in others.items():
            self.assertEqual(process.returncode, 1, self.said(rank))
        seconds = {rank: when - at for rank, when in ended.items()}
        print(f"{self.id()}: the others ended after {', '.join(f'{s:.2f}' for s in seconds.values())} s, run.timeout {timeout} s")
        return seconds

    def assert_blamed(self, culprit, what):
        for rank in range(NODES):
            if rank == culprit:
                continue
            self.assertRegex(self.said(rank), rf"rehearse: rank {culprit} \(node{culprit}, pid \d+\) {what}")
            self.assertEqual(set(re.findall(r"rehearse: rank (\d)", self.said(rank))), {str(culprit)}, self.said(rank))

    def killed(self, culprit):
        seconds = self.fault(culprit, lambda network, process: process.kill(), 60)
        self.assertLess(max(seconds.values()), 2)
        self.assert_blamed(culprit, "ended without a word")

    def test_rank_0_is_killed(self):
        self.killed(0)

    def test_another_rank_is_killed(self):
        self.killed(1)

    def silent(self, culprit, act):
        seconds = self.fault(culprit, act, TIMEOUT)
        # A rank was last heard of up to a heartbeat before the fault. The verdict comes with the tick after the timeout.
        self.assertGreater(min(seconds.values()), TIMEOUT - 2 * HEARTBEAT)
        self.assertLess(max(seconds.values()), 1.75 * TIMEOUT)

    def last_words(self, culprit):
        """What the culprit says. It may have heard of the others up to a heartbeat after they heard of it, and so end after them."""
        deadline = time.monotonic() + 2 * TIMEOUT
        while "rehearse: " not in self.said(culprit) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.said(culprit)

    def test_a_stopped_rank(self):
        self.silent(2, lambda network, process: os.kill(process.pid, signal.SIGSTOP))
        self.assert_blamed(2, "has been silent for")

    def test_a_cable_is_pulled(self):
        self.silent(1, lambda network, process: network.down("node1"))
        self.assert_blamed(1, "has been silent for")
        self.assertIn("rank 0 (node0", self.last_words(1))  # from there, the others are silent

    def test_the_cable_of_rank_0_is_pulled(self):
        self.silent(0, lambda network, process: network.down("node0"))
        self.assert_blamed(0, "has been silent for")
        self.assertRegex(self.last_words(0), r"rank 0 \(node0, pid \d+\) has heard from no other host")

    def test_a_short_break_is_survived(self):
        network = self.network(NODES)
        started = self.train(network, ENDLESS, f"run.timeout={2 * TIMEOUT}s", f"run.heartbeat={HEARTBEAT}s")
        self.wait_for_steps(started)
        network.down("node1")
        time.sleep(TIMEOUT / 4)
        network.up("node1")
        self.wait_for_steps(started, steps=len(self.losses()) + 20)

    @testbed_case.needs_filter
    def test_lost_packets_are_sent_again(self):
        network = self.network(NODES)
        network.lose("node1", 0.02)
        started = self.train(network, 12, f"run.timeout={2 * TIMEOUT}s")
        self.ends(started, 100)
        self.assertEqual([process.returncode for process in started.values()], [0] * NODES, self.said(0))
        self.assertEqual(len(self.losses()), 12)

    @testbed_case.needs_filter
    def test_a_partition(self):
        seconds = self.fault(0, lambda network, process: network.part(["node0"]), TIMEOUT)
        self.assertLess(max(seconds.values()), 1.75 * TIMEOUT)
        self.assert_blamed(0, "has been silent for")


if __name__ == "__main__":
    testbed_case.main()
