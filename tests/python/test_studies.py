"""The arithmetic of experiments/: intervals, tests and the contradictions in the paper, compared with values computed by hand."""

import math
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "experiments/table2")]
import paper  # noqa: E402
import study  # noqa: E402


def two_sided(t, degrees, steps=200_000, far=2000.0):
    """P(|T| > t) of Student's t by Simpson's rule over its density, without SciPy."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def density(x):
        return scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)

    # x = t + u^3 puts more points where the density is high.
    h = (far - t) ** (1 / 3) / steps
    points = [3 * (i * h) ** 2 * density(t + (i * h) ** 3) for i in range(steps + 1)]
    return 2 * h / 3 * (points[0] + points[-1] + 4 * sum(points[1:-1:2]) + 2 * sum(points[2:-1:2]))


class Statistics(unittest.TestCase):
    def test_interval(self):
        # std of 1, 2, 3 is 1; t(0.975, 2) = 4.302653: 4.302653 / sqrt(3) = 2.484138.
        self.assertAlmostEqual(study.Sample([1, 2, 3]).ci95, 2.484138, places=5)
        self.assertIsNone(study.Sample([1]).ci95)
        self.assertEqual(study.Sample([1]).std, 0)

    def test_welch(self):
        # Means 2 and 10/3, variances 1 and 7/3: se^2 = 1/3 + 7/9 = 10/9, t = -(4/3) / sqrt(10/9) = -1.264911,
        # degrees = (10/9)^2 / ((1/3)^2 / 2 + (7/9)^2 / 2) = 100 / 29.
        p = study.welch(study.Sample([1, 2, 3]), study.Sample([2, 3, 5]))
        self.assertAlmostEqual(p, two_sided(1.264911, 100 / 29), places=4)
        # A pooled test has 4 degrees of freedom and another p, so this test would detect it.
        self.assertGreater(abs(p - two_sided(1.264911, 4)), 1e-3)
        self.assertIsNone(study.welch(study.Sample([1, 1]), study.Sample([2, 2])))
        self.assertIsNone(study.welch(study.Sample([1]), study.Sample([2, 3])))

    def test_welch_of_summaries(self):
        a, b = study.Sample([1, 2, 3]), study.Sample([2, 3, 5])
        self.assertAlmostEqual(study.welch_of_summaries((a.mean, a.std), (b.mean, b.std), 3), study.welch(a, b), places=12)

    def test_paired(self):
        # Differences 1, 1, 2: mean 4/3, std 1 / sqrt(3), t = 4; with 2 degrees p = 1 - t / sqrt(2 + t^2).
        p = study.paired(study.Sample([2, 3, 5]), study.Sample([1, 2, 3]))
        self.assertAlmostEqual(p, 1 - 4 / math.sqrt(18), places=9)
        self.assertIsNone(study.paired(study.Sample([2, 3]), study.Sample([1, 2])))

    def test_numbers_as_text(self):
        self.assertEqual(study.number(2268.4), "2,268")
        self.assertEqual(study.number(0.04213), "0.04213")
        self.assertEqual(study.plus_minus(study.Sample([0.99, 0.99])), "0.9900")
        self.assertEqual(study.plus_minus(study.Sample([0.991, 0.992, 0.993])), "0.9920 ± 0.0025")
        self.assertEqual([study.probability(p) for p in (None, 1e-9, 3e-5, 0.04)], ["", "<1e-6", "3.0e-05", "0.040"])

    def test_a_refusal_names_its_remedy(self):
        text = "memory: ... weights 1 GB; this would fit, with 2 GB: --set method.micro_batches=2 --set method.zero=1"
        self.assertEqual(study.remedy(text), {"method.micro_batches": "2", "method.zero": "1"})
        self.assertEqual(study.remedy("no number of micro-batches makes it fit"), {})


class Paper(unittest.TestCase):
    def test_peak(self):
        # 24 x 165.2 + 8 x 112 and 32 x 165.2 TFLOP/s.
        self.assertAlmostEqual(paper.peak("paper") / 1e12, 4860.8, places=6)
        self.assertAlmostEqual(paper.peak("paper-homogeneous") / 1e12, 5286.4, places=6)

    def test_impossibilities(self):
        # 2268 x 512 x 6 x 1.3e9 = 9.0575e15; 2 x 31/32 x 2.6 GB = 5.0375 GB; 2 x 11/12 x 2.6 GB / 12.5 GB/s = 0.3813 s;
        # 31 x 0.13e9 x 6 B = 24.18 GB; 14.7 h x 3600 x 1842 = 97.48 M.
        text = " ".join(" ".join(pair) for pair in paper.impossibilities())
        for words in ("9,057 TFLOP/s", "1.86 times", "5.04 GB", "0.381 s", "0.320 s", "24.2 GB", "Megatron-LM 97 M", "16% of the peak"):
            self.assertIn(words, text)

    def test_rings(self):
        self.assertEqual(paper.ring(4, 100), 150)
        self.assertEqual(paper.gathered(3, 1000, 0.1, 2), 2 * 100 * 6)


class Documents(unittest.TestCase):
    def test_numbers_stand_in_the_expected_output(self):
        """Every "a ± b" in docs/experiments.md is in the expected output of a study."""
        expected = "".join(p.read_text() for p in sorted((ROOT / "experiments").glob("*/expected/*.md")))
        found = re.findall(r"[\d,.]+ ± [\d.]*\d", (ROOT / "docs/experiments.md").read_text())
        self.assertGreaterEqual(len(found), 5)
        for numbers in found:
            self.assertIn(numbers, expected)
