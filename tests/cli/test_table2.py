"""experiments/table2 at reduced size: one reading, two seeds, the analytic fidelity; and what lies beside it as the output of the
whole is not stale. REHEARSE_UPDATE=1 writes the reduced expectation anew."""

import json
import os
import re
import subprocess
import sys
import unittest

from cli_test_case import REHEARSE, ROOT, CliTestCase
from test_experiments import differences

sys.path.insert(0, str(ROOT / "experiments/table2"))
import paper

FOLDER = ROOT / "experiments/table2"
REDUCED = FOLDER / "reduced.expected.json"
UPDATE = os.environ.get("REHEARSE_UPDATE") == "1"
# Between the analytic fidelity, where nothing contends, and the fluid one of the expected output.
FIDELITIES_DIFFER = 0.05


def exact(rows):
    """What does not amplify the last digits: no standard deviations, no p-values."""
    return [
        {
            "method": r["method"],
            "settings": {k: v for k, v in r["settings"].items() if k != "method.plan"},
            "mesh": r["mesh"],
            "samples_per_s": r["samples_per_s"]["values"],
            "gb_per_step": r["gb_per_step"],
            "peak_memory_bytes": r["peak_memory_bytes"],
        }
        for r in rows
    ]


class Table2(CliTestCase):
    def test_reduced(self):
        command = [ROOT / "tools/python", FOLDER / "table2.py", "-o", self.tmp, "--seeds", "2"]
        done = subprocess.run(
            [*command, "--fidelity", "analytic", "--readings", "110m"],
            capture_output=True, text=True, timeout=280, env={**os.environ, "REHEARSE": REHEARSE},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads((self.tmp / "table2.json").read_text())
        one = found["readings"]["110m"]
        self.assertEqual(one["cannot_run"], {})
        if UPDATE:
            REDUCED.write_text(json.dumps(exact(one["rows"]), indent=1) + "\n")
        wrong = list(differences(exact(one["rows"]), json.loads(REDUCED.read_text())))
        self.assertEqual(wrong, [], "\n".join(wrong[:10]))
        self.everything_is_shown(found)
        self.flops_agree(one["rows"])
        self.expected_is_not_stale(one["rows"])

    def everything_is_shown(self, found):
        text = (self.tmp / "table2.md").read_text()
        rows = found["readings"]["110m"]["rows"]
        best = max(rows, key=lambda row: row["samples_per_s"]["mean"])
        self.assertEqual([row["method"] for row in rows if row["p_samples_per_s"] is None], [best["method"]])
        for row in rows:
            self.assertRegex(text, rf"\n\| {row['method']}\b")
        self.assertIn("beyond the GPUs' peak", text)
        self.assertIn("<svg", (self.tmp / "table2.svg").read_text())

    def flops_agree(self, rows):
        """The engine's model FLOPs (from MFU) are those that the impossibilities count with, but for attention's."""
        for row in rows:
            of_a_sample = row["mfu"] * paper.peak("paper", "f32") / row["samples_per_s"]["values"][0]
            bound = paper.training_flops(paper.SHAPE, paper.TOKENS)
            self.assertTrue(1 < of_a_sample / bound < 1.15, (row["method"], of_a_sample / bound))

    def expected_is_not_stale(self, rows):
        expected = json.loads((FOLDER / "expected/table2.json").read_text())
        self.assertEqual((expected["seeds"], expected["fidelity"]), (5, "fluid"))
        whole = {r["method"]: r for r in expected["readings"]["110m"]["rows"]}
        self.assertEqual(set(whole), {r["method"] for r in rows})
        for row in rows:
            ratio = row["samples_per_s"]["mean"] / whole[row["method"]]["samples_per_s"]["mean"]
            self.assertLess(abs(ratio - 1), FIDELITIES_DIFFER, row["method"])
            self.assertAlmostEqual(row["gb_per_step"], whole[row["method"]]["gb_per_step"], places=9)
        headings = re.findall(r"^## (\S+)$", (FOLDER / "expected/table2.md").read_text(), re.M)
        self.assertEqual(headings, list(expected["readings"]))


if __name__ == "__main__":
    unittest.main()
