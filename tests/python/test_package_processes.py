"""The Python package in a process where other things run: threads, signals, children that are killed, standard output."""

import contextlib
import os
import pathlib
import pickle
import signal
import subprocess
import threading
import time
import unittest
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy
from package_case import TINY, PackageCase

import rehearse

# Takes minutes.
ENDLESS = {
    "job": {"model.name": "gpt3-175b", "cluster.name": "dgx-h100:64", "method.name": "zero3", "disturb.compute_jitter": 0.1},
    "fidelity": "chunk",
    "steps": 100000,
    "precision": 0,
}


def children(pid="self"):
    """The processes that were started by one and have not ended."""
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


@contextlib.contextmanager
def at_first_child(act):
    """Calls act(pid) as soon as there is a child that was not there before."""
    before, done = children(), threading.Event()

    def watch():
        while not done.is_set():
            if new := children() - before:
                act(new.pop())
                return
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class Processes(PackageCase):
    def setUp(self):
        super().setUp()
        self.before = children()
        self.addCleanup(lambda: self.assertEqual(children(), self.before))

    def step(self, **more):
        return rehearse.simulate(TINY, seeds=2, **more).step_s

    def test_again_and_after_an_error(self):
        first = self.step()
        with self.assertRaises(rehearse.InputError):
            rehearse.simulate(TINY, {"method.pp": 3})
        self.assertEqual(self.step(), first)
        self.assertEqual(self.step(), first)

    def test_beside_threads(self):
        """Threads of numpy that compute and allocate, and calls from several threads."""
        expected, stop = self.step(), threading.Event()

        def busy():
            while not stop.is_set():
                numpy.linalg.svd(numpy.random.default_rng(0).random((60, 60)))

        others = [threading.Thread(target=busy) for _ in range(2)]
        for thread in others:
            thread.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                self.assertEqual(list(pool.map(lambda _: self.step(), range(8))), [expected] * 8)
        finally:
            stop.set()
            for thread in others:
                thread.join()

    def test_other_threads_run_meanwhile(self):
        """While a call waits, the interpreter's lock is free: this thread sees the child, which the watcher could not otherwise."""
        seen = []
        with at_first_child(seen.append):
            self.step()
        self.assertEqual(len(seen), 1)

    def test_in_workers_of_a_pool(self):
        expected = self.step()
        with ProcessPoolExecutor(2) as pool:
            jobs = [pickle.dumps(rehearse.Job(TINY))] * 2
            self.assertEqual(list(pool.map(step_of, jobs)), [expected] * 2)

    def test_a_child_that_is_killed(self):
        with at_first_child(lambda pid: os.kill(pid, signal.SIGKILL)), self.assertRaisesRegex(rehearse.BackendError, "ended by signal 9"):
            rehearse.simulate(**ENDLESS)
        self.assertGreater(self.step(), 0)

    def test_interrupted(self):
        """Ctrl-C reaches the interpreter and all its children; only the interpreter acts, at once, and its children end."""
        for call in (
            lambda: rehearse.simulate(**ENDLESS),
            lambda: rehearse.sweep(ENDLESS["job"], {"train.global_batch": [512, 1024]}, fidelity="chunk", steps=100000, precision=0),
        ):

            def ctrl_c(pid):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    while not children(pid):  # until it simulates
                        time.sleep(0.005)
                    os.kill(pid, signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

            with at_first_child(ctrl_c), self.assertRaises(KeyboardInterrupt):
                call()
            self.assertEqual(children(), self.before)
            self.assertGreater(self.step(), 0)

    def test_an_interrupted_sweep_goes_on(self):
        axes = {"train.global_batch": {"from": 16, "to": 160, "steps": 10}}
        options = {"fidelity": "analytic", "folder": self.tmp / "sweep"}
        heard = []

        def stop_at_third(text):
            heard.append(text)
            if len(heard) == 3:
                signal.raise_signal(signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt):
            rehearse.sweep(TINY, axes, progress=stop_at_third, **options)
        self.assertEqual(len(heard), 3)
        frame = rehearse.sweep(TINY, axes, progress=heard.append, **options)
        self.assertLessEqual(len(heard), 10, "the worker may have computed more than it could say")
        self.assertEqual(list(frame["step_s"]), list(rehearse.sweep(TINY, axes, fidelity="analytic")["step_s"]))

    def test_an_error_of_the_listener(self):
        def wrong(text):
            raise ZeroDivisionError(text)

        with self.assertRaisesRegex(ZeroDivisionError, "1 of 1 points"):
            rehearse.sweep(TINY, {"train.global_batch": [16]}, progress=wrong)

    def test_nothing_is_printed(self):
        text = f"import rehearse\nfor _ in range(2): rehearse.simulate({TINY!r}, fidelity='chunk')\nrehearse.compare({TINY!r}, 'ddp,zero2')"
        self.assertEqual(self.python(text), "")

    def test_buffered_output_is_printed_once(self):
        text = f"import rehearse; print('x', end=''); rehearse.simulate({TINY!r})"
        self.assertEqual(self.python(text, stdin=subprocess.DEVNULL), "x")


def step_of(job):
    return rehearse.simulate(pickle.loads(job), seeds=2).step_s


if __name__ == "__main__":
    unittest.main()
