"""A sample of the campaign of kills while saving (bench/save_kills.py): one for each kind of checkpoint."""

import json
import subprocess
import sys

import pytest
from cli_test_case import PATIENCE, ROOT, CliTestCase

pytestmark = pytest.mark.soak


class SaveKills(CliTestCase):
    def test_the_newest_checkpoint_loads_after_each(self):
        out = self.tmp / "kills.json"
        command = [sys.executable, ROOT / "bench/save_kills.py", "--kills", 8, "--seed", 7, "-o", out]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        kinds = json.loads(out.read_text())["kinds"]
        self.assertEqual([(one["kills"], one["loaded"]) for one in kinds], [(1, 1)] * 8)
        self.assertGreaterEqual(sum(one["writing"] for one in kinds), 2)
        self.assertEqual({one["kind"]: one["same_weights"] for one in kinds if not one["same_weights"]}, {"incremental, 8 bits": None})
