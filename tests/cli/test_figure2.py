"""experiments/figure2 at reduced size: the time part analytic with two seeds, the learning part with few steps of two variants; and
what lies beside it as the output of the whole says what its own numbers say."""

import argparse
import json
import os
import sys
import tempfile
import unittest

from cli_test_case import REHEARSE, ROOT, CliTestCase

FOLDER = ROOT / "experiments/figure2"
os.environ["REHEARSE"] = str(REHEARSE)
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(FOLDER)]
import learning  # noqa: E402
import study  # noqa: E402

from data import prepare  # noqa: E402


class Learning(CliTestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tokens = folder.name + "/tokens"
        pages = [str(page) for page in sorted((ROOT / "docs").glob("*.md"))]
        status = prepare.main([*pages, "-o", cls.tokens, "--vocab-size", "512", "--quiet"])
        assert status == 0

    def test_two_variants(self):
        """Dense and 1% without feedback: the same start, different ends, a paired test."""
        options = argparse.Namespace(steps=6, seeds=2, tokens=self.tokens)
        every = learning.forms_of_feedback()
        variants = {name: every[name] for name in ("dense", "literal, 1% kept")}
        dense, literal = learning.study_of(variants, options, "dense")
        self.assertEqual((dense["seeds"], dense["diverged"], dense["p"], dense["more_than"]), (2, 0, None, 0))
        self.assertEqual(literal["settings"]["method.feedback"], "literal")
        for a, b in zip(dense["validation_loss"].values, literal["validation_loss"].values, strict=True):
            self.assertTrue(3 < a < 6.5 and 3 < b < 6.5 and a != b)
        self.assertAlmostEqual(literal["more_than"], literal["validation_loss"].mean - dense["validation_loss"].mean)
        self.assertEqual(literal["p"], study.paired(literal["validation_loss"], dense["validation_loss"]))

    def test_divergence_is_seen(self):
        self.assertTrue(learning.diverged({"first": 6.2, "last": 9, "validation": 6.3}))
        self.assertTrue(learning.diverged({"first": 6.2, "last": None, "validation": None}))
        self.assertFalse(learning.diverged({"first": 6.2, "last": 5, "validation": 5.1}))


class Expected(unittest.TestCase):
    def setUp(self):
        self.found = json.loads((FOLDER / "expected/figure2.json").read_text())

    def test_all_variants_stand_there(self):
        self.assertEqual(self.found["seeds"], 5)
        self.assertEqual([r["variant"] for r in self.found["feedback"]], list(learning.forms_of_feedback()))

    def test_numbers_follow_from_values(self):
        dense = self.found["feedback"][0]
        for row in self.found["feedback"]:
            sample = study.Sample(row["validation_loss"]["values"])
            self.assertAlmostEqual(sample.ci95, row["validation_loss"]["ci95"], places=12)
            self.assertAlmostEqual(row["more_than"], sample.mean - dense["validation_loss"]["mean"], places=12)
            if row is not dense and not row["diverged"]:
                p = study.paired(sample, study.Sample(dense["validation_loss"]["values"]))
                self.assertAlmostEqual(row["p"], p, places=12)


if __name__ == "__main__":
    unittest.main()
