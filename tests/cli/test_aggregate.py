"""`rehearse aggregate`: predicted and really run rounds of secure aggregation, with clients that leave; bytes, times and refusals."""

import pytest
from cli_test_case import CliTestCase

JOB = """model.name = "gpt-tiny"
cluster.name = "paper"
cluster.world_size = 9
method.name = "fedavg"
method.shares = [1, 2, 5, 2, 1, 1, 2, 2]
train.global_batch = 16
"""


class Aggregate(CliTestCase):
    def found(self, *more):
        return self.json("aggregate", self.job(JOB), *more)

    def test_bytes_are_those_of_the_protocol(self):
        found = self.found()
        n, size = 8, 4 * found["elements"]
        self.assertEqual((found["clients"], found["neighbours"], found["threshold"]), (8, 7, 6))
        up = [64, 84 * 7, size, 32 * 8]
        down = [68 * 7, 84 * 7, 7, size]
        for at, one in enumerate(found["rounds"]):
            self.assertEqual((one["messages"], one["bytes_from_clients"], one["bytes_to_clients"]), (2 * n, n * up[at], n * down[at]))
            self.assertGreater(one["seconds"], 0)
        self.assertEqual(found["bytes_in_the_clear"], 2 * n * size)
        self.assertAlmostEqual(sum(one["seconds"] for one in found["rounds"]), found["seconds"])

    def test_real_rounds(self):
        for more, counted in (((), 8), (("--drop", "2:share"), 7), (("--drop", 2, "--drop", "3:unmask", "--threshold", 5), 7)):
            with self.subTest(more=more):
                found = self.found("--run", *more)
                self.assertEqual(found["run"]["clients_in_the_sum"], counted)
                self.assertTrue(found["run"]["sum_is_exact"])
                self.assertLess(found["run"]["error"], found["error_bound"] + 1e-7)
        coarse = self.found("--run", "--clip", 1, "--levels", 101, "--neighbours", 4)
        self.assertGreater(coarse["run"]["error"], coarse["error_bound"] / 10)
        self.assertLess(coarse["run"]["error"], coarse["error_bound"] + 1e-7)
        # Numbers beyond the range are clipped, which the bound does not cover.
        clipped = self.found("--run", "--clip", 0.5)
        self.assertTrue(clipped["run"]["sum_is_exact"])
        self.assertGreater(clipped["run"]["error"], 100 * clipped["error_bound"])

    def test_times(self):
        by_fidelity = {f: self.found("--fidelity", f, "--mask-rate", "1TB/s")["seconds"] for f in ("analytic", "fluid", "chunk")}
        # Only the simulator sees that clients share the server's links.
        self.assertGreater(by_fidelity["fluid"], 2 * by_fidelity["analytic"])
        self.assertAlmostEqual(by_fidelity["chunk"] / by_fidelity["fluid"], 1, delta=0.05)
        plain, dropped = (self.found("--mask-rate", "1MB/s", *drop) for drop in ((), ("--drop", 1)))
        size = 4 * plain["elements"]
        more = [
            one["rounds"][3]["seconds"] - self.found("--mask-rate", "2MB/s", *drop)["rounds"][3]["seconds"]
            for one, drop in ((plain, ()), (dropped, ("--drop", 1)))
        ]
        # Numbers of levels take as long as two masks. Half of it is saved.
        self.assertAlmostEqual(more[0], (8 + 2) / 2 * size / 1e6, places=6)  # eight self masks
        self.assertAlmostEqual(more[1], (14 + 2) / 2 * size / 1e6, places=6)  # seven, and seven of the client that left
        self.assertLess(self.found("--mask-rate", "1MB/s", "--neighbours", 2)["seconds"], plain["seconds"])

    def test_the_job_disturbs_the_round(self):
        # Clients 6 and 7 of node3 wait for its link to the switch; the mask of client 2 takes three times as long.
        slow_link = 'disturb.slow_links=[{link="node3/nic0>fabric", factor=20}]'
        slow_rank = "disturb.stragglers=[{rank=2, factor=3}]"
        for fidelity in ("analytic", "fluid", "chunk"):
            how = ("--fidelity", fidelity, "--mask-rate", "1MB/s")
            quiet, link, rank = (
                self.found(*how, *more)["rounds"][2]["seconds"] for more in ((), ("--set", slow_link), ("--set", slow_rank))
            )
            size = 4 * self.found()["elements"]
            self.assertGreater(link, quiet)
            self.assertAlmostEqual(rank - quiet, 2 * (8 + 2) * size / 1e6, delta=0.01 * size / 1e6)  # eight masks and levels, twice more

    def test_the_server_waits_for_silent_clients(self):
        plain, dropped = self.found("--drop", 2), self.found("--silent", 2, "--timeout", "90s")
        self.assertEqual([one["waiting_seconds"] for one in dropped["rounds"]], [0, 0, 90, 0])
        self.assertAlmostEqual(dropped["seconds"], plain["seconds"] + 90)
        self.assertEqual((dropped["dropped"], dropped["silent"]), ([], [{"client": 2, "before": "mask"}]))
        out = self.rehearse("aggregate", self.job(JOB), "--silent", "2:unmask").stdout
        self.assertIn("client 2 falls silent before round unmask, the server waits 10 min for it", out)

    @pytest.mark.soak  # a client that answers must do so within the timeout
    def test_real_rounds_go_on_without_silent_clients(self):
        found = self.found("--run", "--silent", 1, "--silent", 2, "--threshold", 5, "--timeout", "5s")
        self.assertEqual(found["run"]["clients_in_the_sum"], 6)
        self.assertTrue(found["run"]["sum_is_exact"])
        # Both fall silent before the same round, and the server waits once.
        self.assertTrue(5 < found["run"]["seconds"] < 10, found["run"]["seconds"])

    @pytest.mark.soak
    def test_a_client_that_needs_too_long_is_named(self):
        done = self.rehearse("aggregate", self.job(JOB), "--run", "--elements", 1 << 22, "--timeout", "1ms", expect=1)
        self.assertRegex(done.stderr, r"client .*--timeout")

    def test_text(self):
        out = self.rehearse("aggregate", self.job(JOB), "--drop", "2", "--run").stdout
        for words in ("secure sum of 8 clients", "client 2 leaves before round mask", "the sum of 7 clients equals that in the clear"):
            self.assertIn(words, out)

    def test_refusals(self):
        def refused(*more, says):
            self.refused("aggregate", self.job(JOB), *more, says=says)

        refused(
            "--set",
            "method.name=ddp",
            "--set",
            "method.shares=",
            "--set",
            "train.global_batch=18",
            says=['"method.secure": true', "fedavg"],
        )
        refused("--threshold", 4, says=['"method.threshold": 4', "from 5 to 8"])
        refused("--neighbours", 3, says=['"method.neighbours": 3', "nearest: 2"])
        refused("--levels", 1 << 30, says=["method.levels", "536870912"])
        refused("--clip", 0, says=["method.clipping_range", "above 0"])
        refused("--clip", "1e31", says=['"method.clipping_range": 1e+31', "at most 1e30"])
        refused("--levels", "-1", says=["method.levels"])
        refused("--neighbours", "-2", says=["method.neighbours"])
        refused("--drop", "9", says=["--drop 9", "last client is 7"])
        refused("--drop", "1:never", says=["--drop 1:never", "no round"])
        refused("--drop", "1", "--drop", "1:share", says=["named twice"])
        refused("--drop", "1", "--drop", "2", "--drop", "3", says=["--drop", "5 shares remain", "6 are needed"])
        refused("--mask-rate", "0GB/s", says=["--mask-rate", "above 0"])
        refused("--silent", "9", says=["--silent 9", "last client is 7"])
        refused("--silent", "1", "--drop", "1", says=["--silent 1", "--drop names"])
        refused("--timeout", "0s", says=["--timeout 0s", "from 1 ms"])
        refused("--timeout", "5", says=["--timeout: ", "5"])
