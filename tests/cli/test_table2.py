"""experiments/table2 with one seed: every row of every reading equals the expected output."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase
from test_experiments import differences

sys.path.insert(0, str(ROOT / "experiments/table2"))
import paper

pytestmark = pytest.mark.long

FOLDER = ROOT / "experiments/table2"


def of_first_seed(reading):
    """The values that depend on the first seed only: no intervals, no p-values."""
    rows = [
        {
            "method": r["method"],
            "settings": {k: v for k, v in r["settings"].items() if k != "method.plan"},
            "mesh": r["mesh"],
            "samples_per_s": r["samples_per_s"]["values"][0],
            "robustness": r["robustness"]["values"][0],
            "gb_per_step": r["gb_per_step"],
            "mfu": r["mfu"],
            "peak_memory_bytes": r["peak_memory_bytes"],
        }
        for r in reading["rows"]
    ]
    return {"rows": rows, "cannot_run": reading["cannot_run"]}


class Table2(CliTestCase):
    def test_expected_output_is_not_stale(self):
        expected = json.loads((FOLDER / "expected/table2.json").read_text())
        self.assertEqual((expected["seeds"], expected["fidelity"]), (5, "fluid"))
        headings = re.findall(r"^## (\S+)$", (FOLDER / "expected/table2.md").read_text(), re.M)
        self.assertEqual(headings, list(expected["readings"]))
        done = subprocess.run(
            [ROOT / "tools/python", FOLDER / "table2.py", "-o", self.tmp, "--seeds", "1"],
            capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "REHEARSE": REHEARSE},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads((self.tmp / "table2.json").read_text())
        self.assertEqual(list(found["readings"]), list(expected["readings"]))
        for name, one in expected["readings"].items():
            with self.subTest(reading=name):
                best = max(one["rows"], key=lambda row: row["samples_per_s"]["mean"])
                untested = [row["method"] for row in one["rows"] if row["p_samples_per_s"] is None]
                self.assertEqual(untested, [best["method"]])
                now = of_first_seed(found["readings"][name])
                self.assertEqual(list(differences(now, of_first_seed(one))), [])
        for plan in FOLDER.glob("expected/plan-*.toml"):  # the hash is of all that the plan decides
            found_plan, expected_plan = (tomllib.loads((at / plan.name).read_text()) for at in (self.tmp, plan.parent))
            self.assertEqual(found_plan["hash"], expected_plan["hash"], plan.name)
        self.everything_is_shown(found)
        self.flops_agree(found["readings"]["110m"]["rows"])

    def everything_is_shown(self, found):
        text = (self.tmp / "table2.md").read_text()
        rows = found["readings"]["110m"]["rows"]
        for row in rows:
            self.assertRegex(text, rf"\n\| {row['method']}\b")
        self.assertIn("beyond the GPUs' peak", text)
        self.assertIn("<svg", (self.tmp / "table2.svg").read_text())

    def flops_agree(self, rows):
        """The engine's model FLOPs (from MFU) equal those of paper.py, except for the products of attention."""
        for row in rows:
            of_a_sample = row["mfu"] * paper.peak("paper", "f32") / row["samples_per_s"]["values"][0]
            bound = paper.training_flops(paper.SHAPE, paper.TOKENS)
            self.assertTrue(1 < of_a_sample / bound < 1.15, (row["method"], of_a_sample / bound))
