"""experiments/own-runs with two short runs: predictions are written before the runs and are not changed by them, and the table follows."""

import hashlib
import json
import statistics
import subprocess
import sys

import pytest
from cli_test_case import PATIENCE, ROOT, CliTestCase

SCRIPT = ROOT / "experiments/own-runs/own_runs.py"
sys.path.insert(0, str(SCRIPT.parent))
import own_runs  # noqa: E402 - found by the line above


class OwnRuns(CliTestCase):
    def script(self, *arguments, status=0):
        done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, status, done.stderr[-2000:])
        return done

    @pytest.mark.soak
    def test_two_runs(self):
        out = self.tmp / "own-runs"
        done = self.script("-o", out, "--only", "ddp-demo,1f1b-demo", "--steps", "9")
        whole = json.loads((out / "predictions.json").read_text())
        self.assertEqual([one["name"] for one in whole["runs"]], ["ddp-demo", "1f1b-demo"])
        errors = []
        for one in whole["runs"]:
            prediction = (out / f"prediction-{one['name']}.json").read_bytes()
            self.assertEqual(one["prediction_hash"], hashlib.sha256(prediction).hexdigest())
            self.assertEqual(one["predicted_step_time_s"], json.loads(prediction)["step_time_s"]["mean"])
            values = one["measured_step_time_s"]["values"]
            self.assertTrue(2 <= len(values) <= 4)
            self.assertEqual(one["measured_step_time_s"]["median"], statistics.median(values))
            errors.append(abs(one["predicted_step_time_s"] / statistics.median(values) - 1))
            self.assertIn(f"`{one['name']}`", done.stdout)
        self.assertEqual(whole["summary"]["runs"], 2)
        self.assertAlmostEqual(whole["summary"]["median_abs_error"], statistics.median(errors))
        self.assertIn("median error", done.stdout)

    def test_kept_runs(self):
        """The documents print what the kept file says, all twelve runs of the script are in it, and the figures follow from the values."""
        kept = json.loads((SCRIPT.parent / "expected/predictions.json").read_text())
        self.assertEqual([one["name"] for one in kept["runs"]], list(own_runs.RUNS))
        text = (ROOT / "docs/experiments.md").read_text()
        for one in kept["runs"]:
            was = one["measured_step_time_s"]
            self.assertEqual(was["median"], statistics.median(was["values"]))
            self.assertGreaterEqual(len(was["values"]), 25)
        self.assertEqual(kept["summary"], own_runs.summary(kept["runs"]))
        self.assertIn(own_runs.table(kept["runs"]), text)
        sentence = "**median error of {median_abs_error:.1%}**, a mean of {mean_abs_error:.1%} and a worst of {worst:.1%}"
        self.assertIn(sentence.format(**kept["summary"]), text.replace("\n", " "))

    def test_refusals(self):
        self.assertIn("known are ddp-demo", self.script("--only", "ddp", status=2).stderr)
        self.assertIn("at least 8", self.script("--steps", "7", status=2).stderr)
