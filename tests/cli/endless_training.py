"""Shared code of tests that disturb a run without an end of its own, and the processes of its ranks. bench/ uses it too, without pytest."""

import contextlib
import pathlib
import subprocess
import time

from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TrainingCase

ENDLESS = 100000


def ranks_of(launcher):
    """rank -> pid of the processes that `--nproc` has started."""
    found = {}
    for child in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
            name = pathlib.Path(f"/proc/{child}/comm").read_text()
            if name.startswith("rehearse r"):
                found[int(name.removeprefix("rehearse r"))] = int(child)
    return found


class EndlessTraining(TrainingCase):
    @contextlib.contextmanager
    def training(self, *more):
        """An endless run with two ranks, after its first steps."""
        command = [REHEARSE, "train", self.job(ENDLESS), "--nproc", "2", "--quiet", *more]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            try:
                deadline = time.monotonic() + PATIENCE
                while len(self.losses()) < 3:
                    self.assertIsNone(child.poll())
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)
                yield child
            finally:
                child.kill()
