"""Shared code of the command's tests: runs the command, writes job files to a temporary folder."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

# Seconds. Only ends a command that hangs: no test of `fast` or `long` depends on how long a command takes.
PATIENCE = 600

ROOT = pathlib.Path(__file__).resolve().parents[2]
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))


def has_device(name):
    """Whether the build has a device for tests ("queues", "emulated")."""
    return any(pathlib.Path(REHEARSE).resolve().parent.parent.glob(f"lib/**/librehearse_device_{name}.so"))


TINY = """model.name = "gpt-tiny"
cluster.name = "paper"
cluster.world_size = 4
method.name = "ddp"
train.global_batch = 16
"""


class CliTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)

    def job(self, text=TINY, name="job.toml"):
        path = self.tmp / name
        path.write_text(text)
        return str(path)

    def rehearse(self, *arguments, expect=0, **options):
        done = subprocess.run(
            [REHEARSE, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=options.pop("timeout", PATIENCE),
            **options,
        )
        what = f"rehearse {' '.join(map(str, arguments))}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        self.assertEqual(done.returncode, expect, what)
        self.assertNotRegex(done.stderr, r"terminate called|Backtrace|#0 |Aborted", what)
        return done

    def refused(self, *arguments, says=(), **options):
        """Checks a refusal: exit status 2, no standard output, and one line with all of `says`. On a
        busy machine there may be progress lines before it."""
        done = self.rehearse(*arguments, expect=2, **options)
        self.assertEqual(done.stdout, "")
        said = re.sub(r"^\.\.\. .*\n", "", done.stderr, flags=re.M)
        self.assertRegex(said, r"\A(\[rank \d+\] )?rehearse: ")
        self.assertEqual(said.count("\n"), 1, said)
        for words in says:
            self.assertIn(words, said)
        return said

    def json(self, *arguments, **options):
        return json.loads(self.rehearse(*arguments, "--json", **options).stdout)


__all__ = ["PATIENCE", "REHEARSE", "ROOT", "TINY", "CliTestCase", "signal"]
