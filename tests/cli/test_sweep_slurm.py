"""`rehearse sweep --on slurm` on a real Slurm of two nodes of a testbed: the same results as without it, also when a node is lost. Ctrl-C
cancels the job."""

import contextlib
import os
import pathlib
import shutil
import signal
import time
import unittest

import pytest
import slurm_cluster
import testbed_case
from cli_test_case import PATIENCE
from test_sweep_on import PICTURELESS, SweepOnCase

pytestmark = pytest.mark.soak


@unittest.skipIf(slurm_cluster.missing(), f"not installed: {', '.join(slurm_cluster.missing())}; tools/setup launchers installs them")
@unittest.skipIf(os.geteuid() != 0, "Slurm's daemons need root")
class OnSlurm(SweepOnCase, testbed_case.TestbedCase):
    def setUp(self):
        super().setUp()
        self.tmp.chmod(0o755)
        self.bed = self.network(2)
        self.slurm = slurm_cluster.Slurm(self.bed, self.tmp / "slurm")
        programs = self.tmp / "bin"
        programs.mkdir()
        for name in ("sinfo", "sbatch", "squeue", "scancel"):
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec {" ".join(self.bed.enter("node0"))} {shutil.which(name)} "$@"\n')
            path.chmod(0o755)
        self.env = self.slurm.env | PICTURELESS | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def tasks(self):
        """The processes of tasks."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"SLURM_ARRAY_TASK_ID=" in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def processes(self, node):
        """All that runs on a node."""
        holder = self.bed.enter(node)[-2]
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if path.name != holder and (path / "ns/net").readlink() == pathlib.Path(f"/proc/{holder}/ns/net").readlink():
                    found.append(int(path.name))
        return found

    def kill(self, processes):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def test_two_nodes(self):
        self.check(self.sweep(60), "slurm", "--shards", 6)

    def test_killed_tasks_are_submitted_again(self):
        path = self.sweep(300)
        running = self.begin(*self.arguments(path, "--on", "slurm", "--shards", 4))
        self.wait_until(lambda: len(self.lines("out")) >= 20 and self.tasks(), running)
        self.kill(self.tasks())
        said = running.communicate(timeout=PATIENCE)[1]
        self.assertEqual(running.returncode, 0, said)
        self.check(path, "slurm", "--shards", 4)

    def test_a_lost_node(self):
        """All its processes end at once: Slurm misses it, and its tasks run on the other node."""
        path = self.sweep(600)
        running = self.begin(*self.arguments(path, "--on", "slurm", "--shards", 6))
        self.wait_until(lambda: len(self.lines("out")) >= 20 and set(self.tasks()) & set(self.processes("node1")), running)
        self.kill(self.processes("node1"))
        said = running.communicate(timeout=PATIENCE)[1]
        self.assertEqual(running.returncode, 0, said)
        self.check(path, "slurm", "--shards", 6)

    def test_an_interrupt_cancels_the_job(self):
        running = self.begin(*self.arguments(self.sweep(2000), "--on", "slurm", "--shards", 8))
        self.wait_until(lambda: len(self.lines("out")) >= 20, running)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=PATIENCE)[1]
        self.assertEqual(running.returncode, 130, said)
        deadline = time.monotonic() + PATIENCE
        while self.slurm.run("squeue", "--noheader").strip():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        known = self.lines("out")
        self.assertGreaterEqual(len(known), 20)
        self.check(self.tmp / "sweep.toml", "slurm", "--shards", 8)
        self.assertLessEqual(set(known), set(self.lines("out")))


if __name__ == "__main__":
    testbed_case.main()
