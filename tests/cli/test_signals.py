"""SIGINT and SIGTERM: the first one makes the run save a checkpoint and end, even if it arrives twice. A second one, more than a second
later, ends the run at once. No rank is reported as the cause."""

import contextlib
import os
import signal
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TrainingCase
from endless_training import ENDLESS, ranks_of

pytestmark = pytest.mark.soak

# A step so long that no test waits for its end.
SLOW = ["--set", "disturb.stragglers=[{rank=0,factor=3000.0}]", "--set", "run.timeout=300s"]


class Signals(TrainingCase):
    def checkpoints(self):
        return sorted(path.name for path in (self.tmp / "out").glob("step-????????"))

    @contextlib.contextmanager
    def training(self, *more, steps=3):
        """An endless run in its own process group, during or after its first steps."""
        command = [REHEARSE, "train", self.job(ENDLESS), "--overwrite", *map(str, more)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
            try:
                deadline = time.monotonic() + PATIENCE
                while not (self.tmp / "out/metrics.jsonl").exists() or len(self.losses()) < steps:
                    self.assertIsNone(child.poll())
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                yield child
            finally:
                child.kill()
        for path in (self.tmp / "out").glob("*"):
            if path.is_file():
                path.unlink()

    def check_saved(self, child, number):
        out, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 128 + number, said)
        self.assertNotRegex(out + said, r"rank \d")
        self.assertIn("interrupted", out)
        self.assertEqual(len(self.checkpoints()), 1, said)
        self.assertIn(self.checkpoints()[0], out)
        return said

    def test_two_signals_at_once_are_one(self):
        for target in ("launcher", "group"):
            for pause in (0, 0.005, 0.02):
                for number in (signal.SIGINT, signal.SIGTERM):
                    send = os.kill if target == "launcher" else os.killpg
                    with self.subTest(target=target, pause=pause, number=number), self.training("--nproc", 2) as child:
                        for wait in (pause, 0):
                            send(child.pid, number)
                            time.sleep(wait)
                        self.assertEqual(self.check_saved(child, number), "rehearse: interrupted\n")

    def test_every_rank_may_get_it_twice(self):
        """As with a terminal and a launcher that both send the signal."""
        for pause in (0, 0.005, 0.02):
            with self.subTest(pause=pause), self.training("--nproc", 2) as child:
                ranks = list(ranks_of(child.pid).values())
                for wait in (pause, 0):
                    for pid in ranks:
                        with contextlib.suppress(ProcessLookupError):  # a rank may have saved and ended within the pause
                            os.kill(pid, signal.SIGINT)
                    time.sleep(wait)
                self.check_saved(child, signal.SIGINT)

    def test_signals_until_the_end_are_one(self):
        """Also those that come while the processes are ending."""
        for target in ("launcher", "ranks"):
            with self.subTest(target=target), self.training("--nproc", 2) as child:
                pids = [child.pid] if target == "launcher" else list(ranks_of(child.pid).values())
                began = time.monotonic()
                while child.poll() is None and time.monotonic() - began < 0.9:
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGINT)
                    time.sleep(0.0005)
                self.check_saved(child, signal.SIGINT)

    def test_a_process_of_its_own(self):
        with self.training("--set", "method.dp=1") as child:
            for _ in range(2):
                child.send_signal(signal.SIGINT)
            self.check_saved(child, signal.SIGINT)

    def check_ended_at_once(self, child, send):
        """A step takes seconds, so a run that ends sooner did not wait for it."""
        began = time.monotonic()
        send()
        time.sleep(1.2)
        self.assertIsNone(child.poll())
        send()
        out, said = child.communicate(timeout=PATIENCE)
        self.assertLess(time.monotonic() - began, 3)
        self.assertEqual(child.returncode, 130, said)
        self.assertNotRegex(out + said, r"rank \d")
        self.assertRegex(said, r"\Arehearse: interrupted by a second SIGINT before the run had saved and ended\n\Z")
        self.assertEqual(self.checkpoints(), [])

    def test_a_second_one_later_ends_it_at_once(self):
        with self.training(*SLOW, "--set", "method.dp=1", steps=0) as child:
            self.check_ended_at_once(child, lambda: child.send_signal(signal.SIGINT))
        with self.training(*SLOW, "--nproc", 2, steps=0) as child:
            self.check_ended_at_once(child, lambda: child.send_signal(signal.SIGINT))

    def test_a_rank_that_is_ended_at_once_ends_the_others(self):
        for rank in (0, 1):
            with self.subTest(rank=rank), self.training(*SLOW, "--nproc", 2, steps=0) as child:
                pid = ranks_of(child.pid)[rank]
                os.kill(pid, signal.SIGINT)
                time.sleep(1.2)
                os.kill(pid, signal.SIGINT)
                _, said = child.communicate(timeout=10)
                self.assertEqual(child.returncode, 130, said)
                self.assertEqual(said.count("interrupted by a second SIGINT"), 1)
                self.assertNotIn("ended without a word", said)

    def test_before_the_first_step(self):
        command = [REHEARSE, "train", self.job(ENDLESS), "--nproc", "2"]
        for pause in (0.05, 0.2, 0.4, 0.7, 1.0):
            with (
                self.subTest(pause=pause),
                subprocess.Popen([*command, "--overwrite"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child,
            ):
                time.sleep(pause)
                child.send_signal(signal.SIGINT)
                out, said = child.communicate(timeout=PATIENCE)
                self.assertIn(child.returncode, (130, -signal.SIGINT), said)
                self.assertNotRegex(out + said, r"rank \d")
