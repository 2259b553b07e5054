"""`rehearse sweep --on`: the same results as on this machine, whatever is lost on the way; refusals that say what to do; Ctrl-C. Slurm is
a stand-in here (test_sweep_slurm.py has a real one), HyperQueue's server and workers are real."""

import os
import signal
import subprocess
import time

import hyperqueue_cluster
import pytest
import stand_in_slurm
from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase

SMALL = """job = "job.toml"
fidelity = "analytic"
[axes]
train.global_batch = {{ from = 16, to = {most}, steps = {count} }}
"""


PICTURELESS = {"REHEARSE_PYTHON": "/bin/true"}  # a picture takes seconds


class SweepOnCase(CliTestCase):
    """A sweep of `count` points."""

    def setUp(self):
        super().setUp()
        self.env = os.environ | PICTURELESS

    def sweep(self, count=12):
        CliTestCase.job(self)
        path = self.tmp / "sweep.toml"
        path.write_text(SMALL.format(most=16 * count, count=count))
        return path

    def lines(self, folder):
        """All lines of a folder's results, in an order of their own."""
        return sorted(line for path in (self.tmp / folder).glob("results*.jsonl") for line in path.read_text().splitlines())

    def arguments(self, path, *more, folder="out"):
        return ["sweep", path, "-o", self.tmp / folder, *more]

    def check(self, path, system, *more, also=(), folder="out"):
        """The sweep on `system` gives what it gives without: all points, each once, in the same bytes. `also`: words for both."""
        found = self.json(*self.arguments(path, "--on", system, *more, *also, folder=folder), env=self.env)
        whole = self.json(*self.arguments(path, *also, folder="whole"), env=self.env)
        self.assertEqual(found["points"], whole["points"])
        self.assertEqual(self.lines(folder), self.lines("whole"))
        self.assertEqual((self.tmp / folder / "results.csv").read_bytes(), (self.tmp / "whole/results.csv").read_bytes())

    def begin(self, *arguments):
        words = [REHEARSE, *map(str, arguments)]
        return subprocess.Popen(words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_until(self, holds, running):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            self.assertIsNone(running.poll(), running.stderr.read() if running.poll() is not None else "")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


class StandIn(SweepOnCase):
    def setUp(self):
        super().setUp()
        self.folder = self.tmp / "bin"
        self.env = stand_in_slurm.install(self.folder) | PICTURELESS

    def calls(self, name):
        return stand_in_slurm.calls(self.folder, name)

    def array(self, number):
        return next(word for word in self.calls("sbatch")[number] if word.startswith("--array="))

    def test_results_are_those_without(self):
        self.check(self.sweep(), "slurm", "--shards", 4)
        self.assertEqual(len(self.calls("sbatch")), 1)
        self.assertEqual(self.array(0), "--array=1-4")
        self.assertEqual(len(list((self.tmp / "out").glob("results-*-of-4.jsonl"))), 4)

    def test_what_is_known_is_not_submitted(self):
        path = self.sweep()
        self.check(path, "slurm", "--shards", 4)
        self.check(path, "slurm", "--shards", 4)
        self.assertEqual(len(self.calls("sbatch")), 1)

    def test_a_lost_task_is_submitted_again(self):
        (self.folder / "lose").write_text("2-3")
        self.check(self.sweep(), "slurm", "--shards", 4)
        self.assertEqual([self.array(0), self.array(1)], ["--array=1-4", "--array=2-3"])

    def test_other_words_and_keys_go_along(self):
        path = self.sweep()
        words = "--time=1:00:00  --comment='two words'"
        self.check(path, "slurm", "--shards", 2, "--jobs", 3, "--on-args", words, "--on-args", "--nice", also=("--set", "train.steps=7"))
        (call,) = self.calls("sbatch")
        for word in ("--time=1:00:00", "--comment=two words", "--nice", "--cpus-per-task=3"):
            self.assertIn(word, call)
        self.assertIn("--set train.steps=7", call[-1])
        self.assertIn("--jobs 3", call[-1])

    def test_names_with_blanks_and_quotes(self):
        self.tmp = self.tmp / "it's here"
        self.tmp.mkdir()
        self.check(self.sweep(), "slurm", "--shards", 3)

    def test_points_without_a_result_are_named(self):
        path = self.sweep()
        (self.tmp / "out").mkdir()
        (self.tmp / "out/results-2-of-4.jsonl").mkdir()  # nobody can write there
        self.refused(*self.arguments(path, "--on", "slurm"), env=self.env, says=["results-2-of-4.jsonl"])
        (self.tmp / "out/results-2-of-4.jsonl").rmdir()
        sbatch = self.folder / "sbatch"
        text = sbatch.read_text()
        sbatch.write_text(text.replace('["sh", "-c", given["wrap"]]', '["sh", "-c", "echo the disk is full; exit 1"]'))
        done = self.rehearse(*self.arguments(path, "--on", "slurm", "--shards", 2), env=self.env, expect=1)
        self.assertIn("12 points have no result after 3 jobs of slurm", done.stderr)
        self.assertIn('{"train.global_batch":16}: shard ', done.stderr)
        self.assertIn(f"log {self.tmp}/out/logs/", done.stderr)
        self.assertIn(".log: the disk is full", done.stderr)
        self.assertIn("and 7 other points", done.stderr)
        self.assertEqual(len(self.calls("sbatch")), 3)
        sbatch.write_text(text)
        self.check(path, "slurm", "--shards", 2)

    def test_a_folder_that_is_not_shared(self):
        (self.folder / "sbatch").write_text("#!/bin/sh\necho 5\n")
        done = self.rehearse(*self.arguments(self.sweep(), "--on", "slurm"), env=self.env, expect=1)
        self.assertIn("do all machines share this folder?", done.stderr)

    def test_an_interrupt_cancels_the_job(self):
        (self.folder / "pending").touch()
        for sent in (signal.SIGINT, signal.SIGTERM):
            (self.folder / "calls").unlink(missing_ok=True)
            running = self.begin(*self.arguments(self.sweep(), "--on", "slurm"))
            self.wait_until(lambda: self.calls("squeue"), running)
            running.send_signal(sent)
            said = running.communicate(timeout=PATIENCE)[1]
            self.assertEqual(running.returncode, 128 + sent, said)
            self.assertIn("interrupted: job 1 of slurm was cancelled", said)
            self.assertEqual(self.calls("scancel"), [["1"]])

    def test_the_wait_has_an_end(self):
        (self.folder / "pending").touch()
        done = self.rehearse(*self.arguments(self.sweep(), "--on", "slurm", "--wait", "300ms"), env=self.env, expect=1)
        self.assertIn("--wait is over: job 1 of slurm was cancelled", done.stderr)
        self.assertEqual(self.calls("scancel"), [["1"]])

    def test_refusals(self):
        path = self.sweep()
        (self.folder / "refuse").write_text("sbatch: error: invalid partition specified: x")
        self.refused(*self.arguments(path, "--on", "slurm"), env=self.env, says=["sbatch refused", "invalid partition specified: x"])
        (self.folder / "sinfo").write_text("#!/bin/sh\necho no controller; exit 1\n")
        self.refused(*self.arguments(path, "--on", "slurm"), env=self.env, says=["Slurm does not answer (no controller)"])
        (self.folder / "sinfo").unlink()
        env = self.env | {"PATH": str(self.folder)}
        self.refused(*self.arguments(path, "--on", "slurm"), env=env, says=["sinfo", "No such file", "a login node"])
        self.refused(*self.arguments(path, "--on", "hq"), env=env, says=["hq: No such file", "HyperQueue's releases"])
        for more, says in (
            (["--on", "pbs"], ["--on"]),
            (["--on", "hq", "--shard", "1/2"], ["--shard and --on exclude each other"]),
            (["--shards", 3], ["belong to --on"]),
            (["--on", "hq", "--wait", "soon"], ["--wait"]),
            (["--on", "hq", "--on-args", "--time '1"], ["a quote has no end"]),
        ):
            with self.subTest(more=more):
                self.refused(*self.arguments(path, *more), env=self.env, says=says)

    def test_no_server(self):
        (self.folder / "hq").write_text('#!/bin/sh\nprintf "%s" \'{"error": "No online server\\nmore"}\'; exit 1\n')
        (self.folder / "hq").chmod(0o755)
        says = ["no HyperQueue server answers (No online server)", "hq server start", "hq worker start"]
        self.refused(*self.arguments(self.sweep(), "--on", "hq"), env=self.env, says=says)


class OnHyperQueue(SweepOnCase):
    def setUp(self):
        super().setUp()
        self.hq = hyperqueue_cluster.HyperQueue(self.tmp / "hq")
        self.addCleanup(self.hq.stop)
        self.env = self.hq.env | PICTURELESS

    @pytest.mark.long
    def test_one_worker(self):
        """Its environment lacks what this command's has, so that goes along."""
        self.hq.add_worker()
        self.env = self.env | {"REHEARSE_PYTHON": str(ROOT / "tools/python")}
        self.check(self.sweep(), "hq", "--shards", 4, "--on-args", "--crash-limit=7")
        self.assertIn("<svg", (self.tmp / "out/sweep.svg").read_text())
        (submitted,) = self.hq.submitted()
        self.assertIn("--array=1-4", submitted)
        self.assertIn("--crash-limit=7", submitted)
        self.assertIn(f"--env=REHEARSE_PYTHON={ROOT}/tools/python", submitted)

    @pytest.mark.long
    def test_an_interrupt_cancels_the_job(self):
        """No worker takes the tasks: they wait until the interrupt."""
        running = self.begin(*self.arguments(self.sweep(), "--on", "hq"))
        self.wait_until(lambda: (self.tmp / "hq/server/submitted").exists(), running)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=PATIENCE)[1]
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("job 1 of hq was cancelled", said)
        self.assertTrue((self.tmp / "hq/server/cancelled-1").exists())

    def kill_in_the_middle(self, path, known, *more):
        """Of two workers one is killed when `known` points are known, and a third one takes its place."""
        first = self.hq.add_worker()
        self.hq.add_worker()
        running = self.begin(*self.arguments(path, "--on", "hq", *more))
        self.wait_until(lambda: len(self.lines("out")) >= known, running)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
        self.hq.add_worker()
        said = running.communicate(timeout=PATIENCE)[1]
        self.assertEqual(running.returncode, 0, said)
        self.check(path, "hq", *more)

    @pytest.mark.soak
    def test_a_killed_worker(self):
        self.kill_in_the_middle(self.sweep(300), 30, "--shards", 6)

    @pytest.mark.soak
    def test_many_points(self):
        self.kill_in_the_middle(self.sweep(10_000), 2000, "--shards", 40)
