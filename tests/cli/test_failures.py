"""Exit statuses of failed runs: a failure during the run gives 1 and names the failed rank; an error that can be found before the first
step gives 2; a signal gives 128 + n, with the state saved. tests/runtime/control/comm_culprit_test.cpp tests hung and stopped processes."""

import os
import re
import resource
import signal
import socket

import pytest
from cli_test_case import PATIENCE, has_device
from endless_training import EndlessTraining, ranks_of


def as_on_a_full_disk():
    """Makes writes fail that would make a file longer than a limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


class Failures(EndlessTraining):
    def checkpoints(self):
        return sorted(path.name for path in (self.tmp / "out").glob("step-????????"))

    def test_a_killed_rank_is_named(self):
        for rank in (0, 1):
            with self.subTest(rank=rank), self.training() as child:
                pid = ranks_of(child.pid)[rank]
                os.kill(pid, signal.SIGKILL)
                said = child.communicate(timeout=PATIENCE)[1]
                self.assertEqual(child.returncode, 1, said)
                self.assertRegex(said, rf"rehearse: rank {rank} \(\S+, pid {pid}\) ended without a word")
                self.assertIn(f"rehearse: rank {rank} (pid {pid}) was ended by signal 9 (KILL)", said)
                self.assertNotIn(f"rehearse: rank {1 - rank} ", said)
                self.assertEqual(self.checkpoints(), [])
            (self.tmp / "out/metrics.jsonl").unlink()

    def test_a_signal_to_any_rank_saves(self):
        with self.training() as child:
            os.kill(ranks_of(child.pid)[1], signal.SIGTERM)
            said = child.communicate(timeout=PATIENCE)[1]
        self.assertEqual(child.returncode, 128 + signal.SIGTERM, said)
        self.assertEqual(len(self.checkpoints()), 1)
        done = int(self.checkpoints()[0].removeprefix("step-"))
        more = ["--resume", "--set", f"train.steps={done + 2}"]
        one = self.json("train", self.job(), "--nproc", "2", *more)
        self.assertEqual((one["first_step"], one["end_step"]), (done, done + 2))

    def op(self, kind):
        """Number of the first op of this kind in the job's program, which has one role."""
        return re.search(rf"^%(\d+) \S+ {kind}", self.rehearse("program", self.job()).stdout, re.M)[1]

    @pytest.mark.soak
    @pytest.mark.skipif(not has_device("queues"), reason="a build without tests has no device queues")
    def test_an_op_that_never_ends_on_the_device_is_named(self):
        """The host issues ops up to two steps ahead of a device, so the op that it issued last says nothing. The step counts from 1."""
        for rank, lane, kind, says in [
            (1, "compute", "backward", "makes no progress"),
            (0, "dp", "all_reduce", "every rank waits for another"),
        ]:
            with self.subTest(kind=kind):
                op = self.op(kind)
                env = os.environ | {"REHEARSE_QUEUES_STUCK": f"{rank}:{op}:4"}
                keys = {"run.device": "queues", "run.timeout": "5s", "run.heartbeat": "200ms", "train.steps": 50}
                sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
                said = self.rehearse("train", self.job(), "--nproc", "2", "--overwrite", *sets, env=env, expect=1).stderr
                self.assertIn(says, said)
                self.assertRegex(said, rf"rank {rank}\b.*lane {lane} has been at step 5, op {op} \(")

    def lonely(self, rank, port):
        """Runs one of two ranks; the other is never started."""
        env = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = os.environ | {name: str(value) for name, value in env.items()}
        patience = ["--set", "run.connect_timeout=1s"]
        return self.rehearse("train", self.job(), *patience, env=env, expect=1).stderr

    @pytest.mark.soak
    def test_who_never_comes_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # the port is taken, but nobody listens
            said = self.lonely(1, taken.getsockname()[1])
        self.assertIn("rank 0 did not come", said)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.assertIn("rank 1 did not come within 1 s", self.lonely(0, port))

    def test_a_port_in_use(self):
        with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
            port = taken.getsockname()[1]
            self.assertIn(f"port {port} is in use by another program", self.lonely(0, port))

    def test_a_full_disk_leaves_the_last_checkpoint(self):
        job = self.job(4)
        self.rehearse("train", job, "--nproc", "2")
        longer = ["--resume", "--set", "train.steps=6"]
        done = self.rehearse("train", job, "--nproc", "2", *longer, expect=1, preexec_fn=as_on_a_full_disk)
        self.assertIn("safetensors: cannot write", done.stderr)
        self.assertEqual(self.checkpoints(), ["step-00000004"])
        one = self.json("train", job, "--nproc", "2", *longer)
        self.assertEqual((one["first_step"], one["end_step"]), (4, 6))

    def test_a_damaged_checkpoint_is_refused(self):
        job = self.job(4)
        self.rehearse("train", job, "--nproc", "2")
        shard = self.tmp / "out/step-00000004/rank-00000.safetensors"
        good = shard.read_bytes()
        longer = ["--nproc", "2", "--resume", "--set", "train.steps=6"]
        for bad, why in ((good[:-100] + bytes(100), "checksum"), (good[: len(good) // 2], "truncated")):
            shard.write_bytes(bad)
            said = self.rehearse("train", job, *longer, expect=2).stderr
            self.assertIn(shard.name, said)
            self.assertIn(why, said)
