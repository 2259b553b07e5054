"""experiments/figure2 at reduced size: step times of a small model on two different nodes (analytic, two seeds), and losses of a few steps.
Also checks that the expected output of the full study is consistent with its own numbers."""

import argparse
import json
import os
import sys
import unittest

import pytest
from cli_test_case import REHEARSE, ROOT, CliTestCase
from cli_test_train_data import TOKENS
from test_experiments import differences

FOLDER = ROOT / "experiments/figure2"
os.environ["REHEARSE"] = str(REHEARSE)
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(FOLDER)]
import figure2  # noqa: E402
import learning  # noqa: E402
import printed  # noqa: E402
import study  # noqa: E402
import timing  # noqa: E402
import verdicts  # noqa: E402

# Two nodes of the paper's cluster, one with V100s, which are slow enough to get fewer samples.
CLUSTER = """
summary = "a node with two RTX 4090, one with two V100"
nodes = [{ devices = ["RTX 4090", "RTX 4090"], parts = ["host", "nic0"], links = [
  { from = "gpu*", to = "host", bandwidth = "15.5GB/s", latency = "5.8us" },
  { from = "host", to = "nic0", bandwidth = "24GB/s", latency = "0.5us" },
  { from = "nic0", to = "fabric", bandwidth = "1Gb/s", latency = "1us" } ] },
  { devices = ["V100 PCIe 32GB", "V100 PCIe 32GB"], parts = ["host", "nic0"], links = [
  { from = "gpu*", to = "host", bandwidth = "12GB/s", latency = "1us" },
  { from = "host", to = "nic0", bandwidth = "24GB/s", latency = "0.5us" },
  { from = "nic0", to = "fabric", bandwidth = "1Gb/s", latency = "1us" } ] }]
"""
MODEL = 'family = "bert"\nlayers = 2\nhidden = 768\nheads = 12\nvocab = 2048\nseq_len = 512\nmax_positions = 512\n'
JOB = """
model.name = "{model}"
cluster.name = "{cluster}"
method.name = "ddp"
train.global_batch = 64
disturb = {{ compute_jitter = 0.05, link_jitter = 0.05 }}
"""


class Timing(CliTestCase):
    def reading(self, *reductions):
        job = self.job(JOB.format(model=self.job(MODEL, "two-layers.toml"), cluster=self.job(CLUSTER, "two.toml")))
        return timing.reading(job, reductions, argparse.Namespace(seeds=2, fidelity="analytic"))

    def test_every_layer_sparse(self):
        one = self.reading("two_level", "sparse")
        self.assertEqual(one["reduction"], min(one["tried"], key=one["tried"].get))
        full, placement, layers, feedback = one["rows"]
        self.assertEqual([row["variant"] for row in one["rows"]], list(timing.ROWS))
        self.assertTrue(all(row["sparse_layers"] == 6 for row in one["rows"] + one["bounds"]))
        self.assertTrue(layers["same"] and feedback["same"] and not placement["same"])
        self.assertEqual(full["step_time_s"].mean, one["tried"][one["reduction"]])
        self.assertTrue(full["samples"] and not placement["samples"])
        self.assertAlmostEqual(placement["more_than_full"], placement["step_time_s"].mean / full["step_time_s"].mean - 1)
        self.assertEqual(placement["p"], study.welch(placement["step_time_s"], full["step_time_s"]))
        self.assertGreater(placement["more_than_full"], 0.1)
        least, most = one["bounds"]
        self.assertLess(least["step_time_s"].mean, full["step_time_s"].mean)
        self.assertGreater(most["step_time_s"].mean, full["step_time_s"].mean)
        said = {what: line for _, what, line in verdicts.of_time({"one": one})}
        self.assertIn("Uniform equals layer-wise by construction", said["sparsity and feedback"])
        self.assertIn(f"{placement['more_than_full']:.1%} longer", said["placement"])


@pytest.mark.long
class Learning(CliTestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = argparse.Namespace(steps=8, seeds=2, tokens=str(TOKENS))
        cls.dense = learning.dense(cls.options)

    def test_two_forms(self):
        """Dense, and 1% kept without feedback: equal first losses, different last losses, and a paired test."""
        name = "literal, 1% kept"
        other = learning.row_of(name, learning.forms_of_feedback()[name], self.options)
        dense, literal = learning.tested([self.dense, other])
        self.assertEqual((dense["seeds"], dense["diverged"], dense["p"], dense["more_than"]), (2, 0, None, 0))
        self.assertEqual(literal["settings"]["method.feedback"], "literal")
        for a, b in zip(dense["validation_loss"].values, literal["validation_loss"].values, strict=True):
            self.assertTrue(3 < a < 6.5 and 3 < b < 6.5 and a != b)
        self.assertAlmostEqual(literal["more_than"], literal["validation_loss"].mean - dense["validation_loss"].mean)
        self.assertEqual(literal["p"], study.paired(literal["validation_loss"], dense["validation_loss"]))

    def test_ablation(self):
        """Each row trains differently; layer-wise keeps what eq. 3 gives for measured variances, uniform keeps the stated fraction."""
        rows = learning.ablation(self.options, self.dense)
        of = verdicts.of_variants(rows)
        self.assertEqual(list(of), [printed.FULL, learning.TOTAL, printed.LAYERS, learning.AS_MUCH, printed.FEEDBACK, learning.DENSE])
        self.assertEqual(len({row["validation_loss"].values[0] for row in rows}), len(rows))
        full = of[printed.FULL]
        self.assertTrue(all(1 - timing.S_MAX < kept < 1 - timing.S_MIN for kept in full["kept"].values))
        self.assertNotEqual(of[learning.TOTAL]["kept"].values, full["kept"].values)
        for kept in of[printed.LAYERS]["kept"].values:
            self.assertAlmostEqual(kept, 1 - timing.MIDDLE)
        self.assertAlmostEqual(of[learning.AS_MUCH]["kept"].mean, full["kept"].mean, places=4)
        self.assertEqual(of[printed.FEEDBACK]["kept"].values, full["kept"].values)  # the same warm-up
        self.assertIsNone(of[learning.DENSE]["kept"])
        self.assertIsNone(full["p"])
        for row in rows[1:]:
            self.assertEqual(row["p"], study.paired(row["validation_loss"], full["validation_loss"]))

    def test_divergence_is_seen(self):
        self.assertTrue(learning.diverged({"first": 6.2, "last": 9, "validation": 6.3}))
        self.assertTrue(learning.diverged({"first": 6.2, "last": None, "validation": None}))
        self.assertFalse(learning.diverged({"first": 6.2, "last": 5, "validation": 5.1}))


class Verdicts(unittest.TestCase):
    """The sentences follow the numbers in both directions."""

    def test_found(self):
        self.assertIn("direction is reproduced", verdicts.found(0.01, 0.2))
        self.assertIn("opposite", verdicts.found(0.01, -0.2))
        self.assertIn("cannot tell", verdicts.found(0.2, 0.2))
        self.assertIn("cannot tell", verdicts.found(None, 0.2))

    def loss_rows(self, diverged=0, losses=(1.2, 1.3)):
        def row(name, values, kept=0.1, diverged=0):
            loss = study.Sample(list(values)) if values else None
            return {"variant": name, "validation_loss": loss, "kept": study.Sample([kept] * 2), "diverged": diverged, "seeds": 2}

        names = (learning.TOTAL, printed.LAYERS, learning.AS_MUCH, learning.DENSE)
        rows = [row(printed.FULL, (1, 1.1)), *(row(name, (1.1, 1.3)) for name in names)]
        return learning.tested([*rows, row(printed.FEEDBACK, losses, diverged=diverged)])

    def test_divergence(self):
        def said(rows):
            return dict(verdicts.of_loss(rows, learning.AS_MUCH, learning.DENSE, learning.TOTAL))

        self.assertIn("0 of 2 runs diverged, with it 0; the paper: 2 of 5: not reproduced", said(self.loss_rows())["error feedback"])
        self.assertIn("1 of 2 runs diverged, with it 0; the paper: 2 of 5: reproduced", said(self.loss_rows(1, (1.2,)))["error feedback"])
        self.assertIn("2 of 2 runs diverged", said(self.loss_rows(2, ()))["error feedback"])
        self.assertIn("no run is left to compare", said(self.loss_rows(2, ()))["error feedback"])


class Expected(unittest.TestCase):
    def setUp(self):
        self.found = json.loads((FOLDER / "expected/figure2.json").read_text())

    def test_all_variants_stand_there(self):
        self.assertEqual((self.found["seeds"], self.found["steps"], self.found["fidelity"]), (5, 300, "fluid"))
        self.assertEqual(list(self.found["time"]), list(timing.READINGS))
        for one in self.found["time"].values():
            self.assertEqual([row["variant"] for row in one["rows"]], list(timing.ROWS))
            self.assertEqual(bool(one["bounds"]), one["reduction"] is not None)
        names = [printed.FULL, learning.TOTAL, printed.LAYERS, learning.AS_MUCH, printed.FEEDBACK, learning.DENSE]
        self.assertEqual([row["variant"] for row in self.found["loss"]], names)
        self.assertEqual([row["variant"] for row in self.found["feedback"]], [learning.DENSE, *learning.forms_of_feedback()])

    def test_numbers_follow_from_values(self):
        for rows in (self.found["loss"], self.found["feedback"]):
            base = study.Sample(rows[0]["validation_loss"]["values"])
            for row in rows:
                sample = study.Sample(row["validation_loss"]["values"])
                self.assertAlmostEqual(sample.ci95, row["validation_loss"]["ci95"], places=12)
                self.assertAlmostEqual(row["more_than"], sample.mean - base.mean, places=12)
                if row is not rows[0] and not row["diverged"]:
                    by_seed = study.Sample([a / b for a, b in zip(sample.values, base.values, strict=True)])
                    self.assertAlmostEqual(row["relative"]["ci95"], by_seed.ci95, places=12)
                    self.assertAlmostEqual(row["p"], study.paired(sample, base), places=12)
        for one in self.found["time"].values():
            full = study.Sample(one["rows"][0]["step_time_s"]["values"])
            for row in one["rows"] + one["bounds"]:
                sample = study.Sample(row["step_time_s"]["values"])
                self.assertAlmostEqual(row["more_than_full"], sample.mean / full.mean - 1, places=12)
                self.assertEqual(row["same"], row is not one["rows"][0] and sample.values == full.values)
                if row["p"] is not None:
                    self.assertAlmostEqual(row["p"], study.welch(sample, full), places=12)

    @pytest.mark.long
    def test_simulated_numbers_are_not_stale(self):
        """Plans and simulates the first seed of the first row of each reading again."""
        options = argparse.Namespace(seeds=1, fidelity=self.found["fidelity"])
        for name, one in self.found["time"].items():
            with self.subTest(reading=name):
                row = one["rows"][0]
                now = timing.planned_and_simulated(one["job"], row["settings"], options)
                now["step_time_s"] = now["step_time_s"].values
                then = {key: row[key] for key in now} | {"step_time_s": row["step_time_s"]["values"][:1]}
                self.assertEqual(list(differences(now, then)), [])

    def test_what_was_trained_has_not_changed(self):
        """The training runs take minutes and are not repeated; only their inputs are compared."""
        self.assertEqual(learning.inputs(), self.found["inputs"])

    def test_the_report_is_made_of_the_numbers(self):
        """The expected Markdown equals what the script writes for the expected JSON."""

        def samples(value):
            if isinstance(value, dict):
                return study.Sample(value["values"]) if "values" in value else {k: samples(v) for k, v in value.items()}
            return [samples(v) for v in value] if isinstance(value, list) else value

        found = samples({part: self.found[part] for part in ("time", "loss", "feedback")})
        text = figure2.markdown(found, argparse.Namespace(**{k: self.found[k] for k in ("seeds", "steps", "fidelity")}))
        kept = (FOLDER / "expected/figure2.md").read_text()
        self.assertEqual(*(one.partition("\n4 processes shared")[0] for one in (text, kept)))  # this sentence depends on the machine
