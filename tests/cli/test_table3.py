"""experiments/table3 at reduced size: two ranks of which one dies, a few steps, one method; a recovery on a simulated cluster. Also checks
the definitions of recovery on made-up curves."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import pytest
from cli_test_case import REHEARSE, ROOT
from cli_test_train_data import TOKENS

FOLDER = ROOT / "experiments/table3"
os.environ["REHEARSE"] = str(REHEARSE)
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(FOLDER)]
import paper  # noqa: E402
import recovery  # noqa: E402
import simulated  # noqa: E402
import study  # noqa: E402
import table3  # noqa: E402
import trained  # noqa: E402

from plots import table3 as picture  # noqa: E402


def falling(steps, more=lambda step: 0.0):
    """A loss that falls as 1 + 10 / step, and by how much it is higher."""
    return {step: (1 + 10 / step) * (1 + more(step)) for step in range(1, steps + 1)}


class Definitions(unittest.TestCase):
    def run_of(self, goes_on_from, more=lambda step: 0.0):
        return recovery.Faulted(step=121, goes_on_from=goes_on_from, curve=falling(400, more), twin=falling(400))

    def test_an_exact_recovery_takes_the_steps_that_are_done_again(self):
        for goes_on_from in (60, 100, 120):
            run = self.run_of(goes_on_from)
            self.assertEqual(run.again, 120 - goes_on_from)
            for width in recovery.WIDTHS:
                self.assertEqual(recovery.back_on_course(run, 0.0, width), run.again)

    def test_a_worse_state_takes_until_it_has_caught_up(self):
        # 50% above the twin after the fault, halved every ten steps.
        run = self.run_of(120, lambda step: 0.5 * 0.5 ** ((step - 120) / 10) if step > 120 else 0)
        one = [recovery.back_on_course(run, tolerance, 1) for tolerance in (0.05, 0.01, 0.005)]
        self.assertEqual(one, [33, 56, 66])  # 10 log2(0.5 / tolerance), rounded to the step before which it holds
        self.assertLess(recovery.back_on_course(run, 0.01, 20), 56)  # a window looks ahead

    def test_what_falls_back_has_not_recovered(self):
        run = self.run_of(120, lambda step: 0.2 if 250 < step <= 260 else 0)
        self.assertEqual(recovery.back_on_course(run, 0.01, 1), 140)
        forever = self.run_of(120, lambda step: 0.02 if step > 120 else 0)
        self.assertIsNone(recovery.back_on_course(forever, 0.01, 10))
        self.assertEqual(recovery.back_on_course(forever, 0.03, 10), 0)

    def test_the_level_before_the_fault(self):
        # From step 60, the loss 1 + 10 / step is at the mean of steps 111 to 120 again after 50 steps.
        self.assertEqual(recovery.back_at_level(self.run_of(60), 0.0, 10), 50)
        self.assertEqual(recovery.back_at_level(self.run_of(60), 0.10, 10), 0)
        self.assertIsNone(recovery.back_at_level(self.run_of(120, lambda step: 1.0 if step > 120 else 0), 0.01, 10))


class Paper(unittest.TestCase):
    def test_what_the_printed_numbers_imply(self):
        self.assertEqual(paper.rework(71), (35, 20.493901531919196))
        self.assertAlmostEqual(paper.beyond(1000), 0.799)
        self.assertAlmostEqual(paper.failures(5, 4, 0.8), 5 * 0.8**4 * 0.2)
        self.assertAlmostEqual(paper.seconds("megatron", 35), 35 * 512 / 1842)
        self.assertTrue(990 < paper.likeliest() < 1020)
        self.assertEqual(len(paper.implications()), 4)


@pytest.mark.long
class Trained(unittest.TestCase):
    """Two ranks, one of which dies in a step between two checkpoints."""

    def test_rows(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            for name in (trained.TRAINED_ON, *trained.ELSEWHERE):
                (folder / name).symlink_to(TOKENS)
            methods = {"topk-sync": {"method.name": "topk-sync", "method.dp": 2, "cluster.world_size": 2, "train.global_batch": 8}}
            options = argparse.Namespace(
                seeds=2,
                lossy_seeds=1,
                methods=list(methods),
                steps=24,
                fault=(7, 11),
                save_every=5,
                tokens=folder,
                output=folder / "result",
            )
            # The lost replica stays away: it may be back before the others have done a step without it.
            away = trained.IN_MEMORY | {"recovery.replacement": "1h"}
            with mock.patch.multiple(trained, METHODS=methods, RANKS=2, IN_MEMORY=away), contextlib.redirect_stdout(io.StringIO()):
                found = trained.study_of(options)
            rows = {row["recovery"]: row for row in found["rows"]}
            self.assertEqual(list(rows), ["checkpoint", "checkpoint without residuals", "survivors"])
            again = [(step - 1) % 5 for step, _ in found["faults"].values()]
            exact, lossy, survivors = rows.values()
            self.assertEqual(exact["again"].values, again)
            self.assertEqual(exact["on_course"]["values"], again)
            self.assertEqual((exact["same_state"], exact["loss_ratio"].values), (2, [1, 1]))
            self.assertEqual((lossy["again"].values, lossy["same_state"]), (again[:1], 0))
            self.assertEqual((survivors["again"].values, survivors["same_state"], survivors["ranks"]), ([0, 0], 0, [1]))
            (perplexity,) = found["perplexity"]
            # All three texts are the same here.
            self.assertEqual(len({tuple(sample.values) for sample in perplexity["texts"].values()}), 1)
            result = study.plain({"trained": found, "simulated": []}) | {"paper": {"topk-sync": {"steps": (42, 5)}}}
            self.assertIn(b"<svg", picture.draw(json.loads(study.to_json(result))))
            text = table3.trained_part(found, options) + table3.sensitivity_part(found) + table3.perplexity_part(found)
            self.assertIn("| topk-sync | survivors | 0 |", text)


class Simulated(unittest.TestCase):
    def test_the_walk_gives_what_the_places_say(self):
        with mock.patch.multiple(simulated, POLICIES=("restart", "replica"), DURATION="10min"):
            rows = simulated.rows(argparse.Namespace(seeds=2, methods=["megatron"]))
        self.assertEqual([(r["policy"], r["speed"]) for r in rows], [(p, s) for p in ("restart", "replica") for s in ("cold", "warm")])
        again = [(simulated.fault_of(seed, 32)[0] - 1) % simulated.EVERY for seed in (1, 2)]
        for row in rows:
            self.assertEqual(row["rework"].values, again if row["policy"] == "restart" else [0, 0])
            for steps, seconds in zip(row["steps"].values, row["seconds"].values, strict=True):
                self.assertAlmostEqual(steps * row["step_time_s"], seconds)
        cold, warm = rows[0]["seconds"].values, rows[1]["seconds"].values
        self.assertGreater(cold[0] - warm[0], 50)


def samples_of(value):
    """The kept JSON with samples as in the study, computed from their values."""
    if isinstance(value, dict):
        if set(value) == {"mean", "std", "ci95", "values"}:
            return study.Sample(value["values"])
        return {key: samples_of(one) for key, one in value.items()}
    return [samples_of(one) for one in value] if isinstance(value, list) else value


class Expected(unittest.TestCase):
    """The kept output of the whole study."""

    @classmethod
    def setUpClass(cls):
        cls.kept = json.loads((FOLDER / "expected/table3.json").read_text())
        cls.found = samples_of(cls.kept)
        cls.rows = cls.found["trained"]["rows"]

    def test_every_run_is_there_and_comes_from_the_present_inputs(self):
        self.assertEqual(self.kept["inputs"], table3.inputs())
        options = argparse.Namespace(save_every=self.kept["save_every"])
        ways = [(method, way) for method in trained.METHODS for way in trained.recoveries(method, options)]
        self.assertEqual([(row["method"], row["recovery"]) for row in self.rows], ways)
        for row in self.rows:
            runs = self.kept["lossy_seeds"] if "without" in row["recovery"] else self.kept["seeds"]
            self.assertEqual(len(row["again"].values), runs)
        self.assertEqual([row["method"] for row in self.found["trained"]["perplexity"]], list(trained.METHODS))
        self.assertEqual(list(dict.fromkeys(row["method"] for row in self.found["simulated"])), list(simulated.METHODS))

    def test_numbers_and_table_follow_from_the_values(self):
        self.assertEqual(json.loads(study.to_json(self.found)), self.kept)
        names = ("seeds", "lossy_seeds", "steps", "fault", "save_every")
        options = argparse.Namespace(**{name: self.kept[name] for name in names})
        self.assertEqual(table3.markdown(self.found, options), (FOLDER / "expected/table3.md").read_text())
        for row in self.rows:
            one = next(s for s in row["sensitivity"] if (s["tolerance"], s["width"]) == (recovery.TOLERANCE, recovery.WIDTH))
            self.assertEqual((one["on_course"], one["level"]), (row["on_course"]["values"], row["level"]["values"]))

    def test_a_recovery_with_its_whole_state_costs_the_steps_since_the_checkpoint(self):
        options = argparse.Namespace(fault=self.kept["fault"])
        faults = [trained.fault_of(seed, options) for seed in range(1, self.kept["seeds"] + 1)]
        self.assertEqual([tuple(fault) for fault in self.kept["trained"]["faults"].values()], faults)
        again = [(step - 1) % self.kept["save_every"] for step, _ in faults]
        for row in self.rows:
            with self.subTest(method=row["method"], recovery=row["recovery"]):
                runs = len(row["again"].values)
                self.assertEqual(row["again"].values, [0] * runs if row["recovery"] == "survivors" else again[:runs])
                if row["recovery"] == "checkpoint":
                    self.assertEqual(row["on_course"]["values"], again)
                    self.assertEqual((row["same_state"], row["loss_ratio"].values), (runs, [1] * runs))
                else:
                    self.assertEqual(row["same_state"], 0)

    def test_a_simulated_row_is_repeated(self):
        with mock.patch.multiple(simulated, POLICIES=("restart",)):
            (again, _) = simulated.rows(argparse.Namespace(seeds=self.kept["seeds"], methods=["megatron"]))
        kept = next(r for r in self.found["simulated"] if (r["method"], r["policy"], r["speed"]) == ("megatron", "restart", "cold"))
        self.assertEqual(again["rework"].values, kept["rework"].values)
        for key in ("steps", "seconds"):
            for ours, theirs in zip(again[key].values, kept[key].values, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-9 * theirs)
