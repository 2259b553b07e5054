"""What `train --nproc N` says of a job on this machine is said of N ranks, not of the machine's cores, and its advice can be followed."""

import pytest
from cli_test_train_data import TrainingCase

OPEN = ("--set", "method.dp=")  # the ranks that are started count


class StartedRanks(TrainingCase):
    def test_the_nearest_values_are_those_of_the_started_ranks(self):
        for keys, says in (
            ({"method.micro_batches": 3, "train.global_batch": 16}, ["4 ranks: ", "multiple of dp 4 x micro_batches 3 = 12; nearest: 12"]),
            ({"method.micro_batches": 3, "train.global_batch": 18}, ["4 ranks: ", "multiple of dp 4 x micro_batches 3 = 12; nearest: 24"]),
            ({"method.name": "d-psgd", "method.graph": "random", "method.degree": 9}, ["4 ranks: ", "nearest: 3"]),
            ({"method.tp": 8}, ["4 ranks: ", "but the world has 4"]),
        ):
            with self.subTest(keys):
                sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
                self.refused("train", self.job(), "--nproc", 4, *OPEN, *sets, says=says)
        # A wrong key has nothing to do with the number of ranks.
        self.refused("train", self.job(), "--nproc", 4, *OPEN, "--set", "method.nam=ddp", says=['did you mean "name"'])

    def test_a_server_needs_a_worker(self):
        one = ("--nproc", 1, *OPEN, "--set", "method.name=ps-sync")
        self.refused("train", self.job(), *one, says=["method.servers", "needs at least 2 ranks, a server and a worker"])

    def test_load_balancing_needs_shares(self):
        for method, *more in (("local-sgd",), ("ps-sync",), ("byteps",), ("zero3", "method.cp=2", "method.dp=1")):
            with self.subTest(method):
                sets = [word for key in (f"method.name={method}", *more) for word in ("--set", key)]
                balanced = ("--set", "adaptive.balance_every=3", "--set", "cluster.world_size=2", *OPEN, *sets)
                self.refused("simulate", self.job(), *balanced, says=["adaptive.balance_every", "equally many"])
        slow = ("--set", "method.name=local-sgd", "--set", "recovery.slow_factor=2", "--set", "recovery.slow_rank=rebalance")
        self.refused("train", self.job(), "--nproc", 2, *slow, says=["recovery.slow_rank", "takes method.shares", '"evict"'])

    @pytest.mark.long
    def test_clients_that_are_all_late_are_no_divergence(self):
        late = ("method.name=fedavg", "method.local_steps=4", "method.deadline=1us", "method.dp=2", "cluster.world_size=3")
        done = self.rehearse("train", self.job(), "--nproc", 3, "-q", *(word for key in late for word in ("--set", key)))
        self.assertRegex(done.stderr, r"warning: all clients were late in 3 of 3 rounds, .*method\.deadline")
        self.assertNotIn("not finite", done.stderr)
