"""experiments/figure3 at reduced size: a few steps, and a clock of a small model on a small cluster. Also checks that the expected output
of the full study is consistent with its own numbers."""

import argparse
import json
import math
import os
import sys
import unittest

import pytest
from cli_test_case import REHEARSE, ROOT, CliTestCase
from cli_test_train_data import TOKENS
from test_experiments import differences

FOLDER = ROOT / "experiments/figure3"
os.environ["REHEARSE"] = str(REHEARSE)
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(FOLDER)]
import claims  # noqa: E402
import curves  # noqa: E402
import figure3  # noqa: E402
import study  # noqa: E402

JOB = """model.name = "gpt2-124m"
cluster.name = "server-4090"
method.name = "ddp"
train.global_batch = 32
disturb = { compute_jitter = 0.05, link_jitter = 0.05 }
"""


def curve(variant, *runs, steps=(10, 20, 30)):
    final = study.Sample([run[-1] for run in runs])
    return {"variant": variant, "steps": list(steps), "losses": list(map(list, runs)), "final": final, "band": 0.1, "rises": 0.0}


class Curves(unittest.TestCase):
    def test_steps_to_a_target_lie_between_evaluations(self):
        steps = [10, 20, 30]
        self.assertEqual(curves.steps_to(4, steps, [5, 3, 2]), 15)
        self.assertEqual(curves.steps_to(5, steps, [5, 3, 2]), 10)
        self.assertEqual(curves.steps_to(2.5, steps, [5, 3, 2]), 25)
        self.assertEqual(curves.steps_to(4, steps, [5, 3, 6]), 15)  # first
        self.assertEqual(curves.steps_to(1, steps, [5, 3, 2]), math.inf)
        self.assertEqual(curves.steps_to(4, steps, [math.nan, 5, 3]), 25)

    def test_the_target_is_reached_by_every_run(self):
        two = [curve("megatron", [5, 4, 3], [5, 4, 3.5]), curve("topk-sync", [6, 5, 4], [6, 3.8, 4.5])]
        self.assertEqual(curves.target_of(two), 4)

    def test_the_same_mathematics_has_no_p(self):
        base, same, other = curves.compared([
            curve("megatron", [5, 4, 3], [5, 4, 3.5]),
            curve("zero2", [5, 4, 3.0001], [5, 4, 3.5]),
            curve("topk-sync", [5, 4, 3.2], [5, 4, 3.8]),
        ])  # fmt: skip
        self.assertEqual([base["same"], same["same"], other["same"]], [True, True, False])
        self.assertIsNone(same["p"])
        self.assertEqual(other["p"], study.paired(other["final"], base["final"]))


class Claims(unittest.TestCase):
    """The sentences follow the numbers in both directions."""

    def rows(self, **seconds):
        names = {"megatron": "megatron", "sparse": claims.OURS, "zero2": "zero2"}
        base = study.Sample([seconds["megatron"], seconds["megatron"] * 1.1])
        return [
            {
                "variant": names[name],
                "seconds_to_target": (own := study.Sample([value, value * 1.11])),
                "of_megatron": own.mean / base.mean,
                "p": None if name == "megatron" else study.paired(own, base),
            }
            for name, value in seconds.items()
        ]

    def test_who_is_first(self):
        self.assertTrue(claims.fastest(self.rows(megatron=2, sparse=1, zero2=3)).endswith("0.87: reproduced."))
        said = claims.fastest(self.rows(megatron=2, sparse=1, zero2=0.5))
        self.assertIn("not reproduced, zero2 is; its place before Megatron-LM is reproduced.", said)
        self.assertTrue(claims.fastest(self.rows(megatron=1, sparse=2, zero2=3)).endswith("not reproduced, megatron is."))

    def final(self, topk):
        base = [curve("megatron", [5, 3], [5, 3.5], [5, 3.2])]
        runs = [curve(claims.OURS, [5, 3], [5, 3.5], [5, 3.2]), curve("topk-sync", *([5, loss] for loss in topk))]
        return claims.final_loss({"curves": curves.compared(base + runs)})

    def test_final_loss(self):
        self.assertIn("the direction is reproduced", self.final((3.5, 4.01, 3.69)))
        self.assertIn("the direction is the opposite", self.final((2.5, 3.01, 2.69)))
        self.assertIn("cannot tell them apart", self.final((2.5, 4, 3.2)))


@pytest.mark.long
class Study(CliTestCase):
    def test_losses_are_trained_and_time_is_simulated(self):
        options = argparse.Namespace(steps=8, every=4, seeds=2, tokens=str(TOKENS), fidelity="analytic", output=self.tmp)
        names = (curves.MEGATRON, "zero2", curves.TOPK, curves.SPARSE)
        trained = curves.compared([curves.curve_of(name, options) for name in names])
        base, zero2, topk, sparse = trained
        for one in trained:
            self.assertEqual(one["steps"], [4, 8])
            self.assertTrue(all(3 < loss < 6.5 for run in one["losses"] for loss in run))
        self.assertTrue(zero2["same"])
        self.assertFalse(topk["same"] or sparse["same"])
        self.assertAlmostEqual(base["band"], 2 * study.Sample([run[-1] for run in base["losses"]]).ci95)  # of the second half
        target = curves.target_of(trained)
        rows = curves.clock_of(self.job(JOB), trained, target, options)
        self.assertEqual([row["variant"] for row in rows], list(names))
        for one, row in zip(trained, rows, strict=True):
            for run, steps, step, seconds in zip(
                one["losses"], row["steps_to_target"].values, row["step_time_s"].values, row["seconds_to_target"].values, strict=True
            ):
                self.assertEqual(steps, curves.steps_to(target, one["steps"], run))
                self.assertTrue(4 <= steps <= 8)
                self.assertAlmostEqual(seconds, steps * step)
        self.assertEqual(len(claims.verdicts({"curves": trained, "clocks": {"two": rows}})), 5)


class Expected(unittest.TestCase):
    def setUp(self):
        self.found = json.loads((FOLDER / "expected/figure3.json").read_text())

    def test_all_variants_stand_there(self):
        self.assertEqual((self.found["seeds"], self.found["fidelity"]), (5, "fluid"))
        self.assertEqual([one["variant"] for one in self.found["curves"]], list(curves.TRAINED))
        self.assertEqual(list(self.found["clocks"]), list(curves.CLOCKS))
        for rows in self.found["clocks"].values():
            self.assertEqual([row["variant"] for row in rows], list(curves.TRAINED))

    def test_numbers_follow_from_values(self):
        self.assertEqual(self.found["target"], curves.target_of(self.found["curves"]))
        again = curves.compared([one | {"final": study.Sample([run[-1] for run in one["losses"]])} for one in self.found["curves"]])
        self.assertEqual(list(differences(json.loads(study.to_json(again)), self.found["curves"])), [])
        for rows in self.found["clocks"].values():
            for one, row in zip(self.found["curves"], rows, strict=True):
                self.assertEqual(row["steps_to_target"]["values"],
                                 [curves.steps_to(self.found["target"], one["steps"], run) for run in one["losses"]])  # fmt: skip

    def test_what_was_trained_has_not_changed(self):
        """The training runs take minutes and are not repeated; only their inputs are compared."""
        self.assertEqual(curves.inputs(), self.found["inputs"])

    def test_simulated_numbers_are_not_stale(self):
        """Simulates the first seed of a baseline in each clock again."""
        for name, rows in self.found["clocks"].items():
            with self.subTest(clock=name):
                how = ("--set", "method.name=zero2", "--seeds", 1, "--fidelity", self.found["fidelity"], *study.ALL_STEPS)
                now = study.rehearse("simulate", curves.CLOCKS[name], *how)["step_time_s"]["values"]
                self.assertEqual(list(differences(now, claims.named(rows)["zero2"]["step_time_s"]["values"][:1])), [])

    def test_steps_of_the_adaptive_method_are_those_of_figure_2(self):
        """These are planned and simulated again there."""
        figure2 = json.loads((study.ROOT / "experiments/figure2/expected/figure2.json").read_text())["time"]
        for name, rows in self.found["clocks"].items():
            for variant, reading in ((curves.DENSE_SUMS, name), (curves.SPARSE, f"{name}, every layer sparse")):
                with self.subTest(clock=name, variant=variant):
                    full = figure2[reading]["rows"][0]
                    row = claims.named(rows)[variant]
                    self.assertEqual((row["step_time_s"], row["mesh"]), (full["step_time_s"], full["mesh"]))

    def test_the_report_is_made_of_the_numbers(self):
        found = study.sampled({part: self.found[part] for part in ("curves", "target", "clocks")})
        options = argparse.Namespace(**{k: self.found[k] for k in ("seeds", "steps", "every", "fidelity")})
        self.assertEqual(figure3.markdown(found, options), (FOLDER / "expected/figure3.md").read_text())
