"""Shared code of the tests of the Python package: finds the build's package, and runs the command to compare with."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("REHEARSE_BUILD", ROOT / "build"))
PACKAGE = BUILD / "python"
# Seconds. Only ends what hangs.
PATIENCE = 600

if not any((PACKAGE / "rehearse").glob("_core.*.so")):
    print(f"{PACKAGE} is not built: configure with -DREHEARSE_PYTHON=ON")
    sys.exit(77)
sys.path.insert(0, str(PACKAGE))

TINY = {
    "model.name": "gpt-tiny",
    "cluster": {"name": "paper", "world_size": 4},
    "method.name": "ddp",
    "train.global_batch": 16,
    "disturb": {"compute_jitter": 0.1, "link_jitter": 0.1},
}
TINY_TOML = """model.name = "gpt-tiny"
cluster.name = "paper"
cluster.world_size = 4
method.name = "ddp"
train.global_batch = 16
disturb = { compute_jitter = 0.1, link_jitter = 0.1 }
"""


class PackageCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)
        self.job = self.tmp / "job.toml"
        self.job.write_text(TINY_TOML)

    def command(self, *arguments, expect=0):
        command = [BUILD / "bin/rehearse", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done

    def json(self, *arguments):
        answer = json.loads(self.command(*arguments, "--json").stdout)
        del answer["version"], answer["command"]
        return answer

    def python(self, text, **more):
        """What a new interpreter prints that imports the package."""
        command = [sys.executable, "-c", text]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout
