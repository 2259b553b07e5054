"""Shared code of tests that need a network of nodes on this machine (testbed/): the platform, ranks of `rehearse train` on its nodes.
Such a script runs in namespaces of its own: it ends with `if __name__ == "__main__": testbed_case.main()`. Where the machine cannot do
that, it says why and ends with 77, which ctest shows as skipped."""

import os
import shutil
import sys
import time
import unittest

import pytest
from cli_test_case import REHEARSE, ROOT
from cli_test_train_data import TrainingCase

sys.path.insert(0, str(ROOT))
from testbed import bed, platform, private, ranks

PLATFORM = """summary = "nodes on one switch"
[[nodes]]
count = {nodes}
devices = ["CPU core"]
device_name = "rank"
links = [{{ from = "rank0", to = "fabric", bandwidth = "{bandwidth}", latency = "20us", tcp_mtu = 1500 }}]
"""


needs_filter = unittest.skipIf(shutil.which("nft") is None, "not installed: nft; tools/setup testbed installs it")


class TestbedCase(TrainingCase):
    def platform(self, nodes=2, bandwidth="1Gb/s"):
        path = self.tmp / f"{nodes}-nodes.toml"
        path.write_text(PLATFORM.format(nodes=nodes, bandwidth=bandwidth))
        return path

    def network(self, nodes=2):
        """A bed that ends with the test."""
        return self.enterContext(bed.Bed(platform.load(str(self.platform(nodes)))))

    def train(self, network, steps, *more):
        """Starts a rank on each node; {rank: process}. What each says goes to the file rank-N in the test's folder."""
        job = self.job(steps)
        sets = [f"cluster.name={self.platform(len(network.nodes))}", f"method.dp={len(network.nodes)}", "train.global_batch=12", *more]
        command = [REHEARSE, "train", job, "--overwrite", *(word for one in sets for word in ("--set", one))]
        started = {}
        for rank, node in enumerate(network.nodes):
            values = ranks.variables(rank, len(network.nodes), 0, 1, "node0", ranks.PORT)
            with self.said_file(rank).open("w") as said:
                env = os.environ | {name: str(value) for name, value in values.items()}
                started[rank] = network.start(node, command, env=env, stdout=said, stderr=said)
        return started

    def said_file(self, rank):
        return self.tmp / f"rank-{rank}"

    def said(self, rank):
        return self.said_file(rank).read_text()

    def wait_for_steps(self, started, steps=3, patience=100):
        deadline = time.monotonic() + patience
        while len(self.losses()) < steps:
            for rank, process in started.items():
                self.assertIsNone(process.poll(), self.said(rank))
            self.assertLess(time.monotonic(), deadline, "the ranks do not train")
            time.sleep(0.02)

    def ends(self, started, patience):
        """{rank: time of its end} of those that end within `patience` seconds."""
        ended, deadline = {}, time.monotonic() + patience
        while len(ended) < len(started) and time.monotonic() < deadline:
            for rank, process in started.items():
                if rank not in ended and process.poll() is not None:
                    ended[rank] = time.monotonic()
            time.sleep(0.005)
        return ended


def main():
    """Runs the tests of the script in namespaces of its own, with the options of pytest that the command line has."""
    try:
        sys.exit(private.inside(lambda: int(pytest.main(sys.argv))))
    except private.Missing as missing:
        print(f"skipped: this machine cannot build a network: {missing}")
        sys.exit(77)
