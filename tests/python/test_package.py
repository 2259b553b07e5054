"""The Python package gives the numbers and the error texts of the command, as objects and frames."""

import inspect
import os
import pathlib
import pickle
import sys
import typing
import unittest
from unittest import mock

import numpy
import pandas
from package_case import PACKAGE, TINY, PackageCase

import rehearse


class Simulate(PackageCase):
    def test_the_numbers_of_the_command(self):
        expected = self.json("simulate", self.job)
        for job in (str(self.job), self.job, TINY, rehearse.Job(TINY), rehearse.Job.from_toml(self.job.read_text())):
            with self.subTest(job=job):
                result = rehearse.simulate(job)
                self.assertEqual(result.to_dict(), expected)
        self.assertEqual(result.step_s, expected["step_time_s"]["mean"])
        self.assertEqual(len(result.step_by_seed_s), 5)
        self.assertEqual(result.peak_memory_bytes, max(expected["peak_memory_bytes"].values()))
        (memory,) = result.memory.to_dict("records")
        self.assertEqual(sum(memory.values()) - memory["capacity"] - memory["reserve"], 2 * memory["peak"])
        self.assertIsNone(result.interval_s)
        self.assertIn("uncalibrated", repr(result))
        self.assertIn("<table", result._repr_html_())
        result.to_dict()["step_time_s"]["mean"] = 0
        self.assertEqual(result.to_dict(), expected)

    def test_overrides(self):
        expected = self.json("simulate", self.job, "--set", "method.name=zero3", "--set", "train.global_batch=", "--seeds", 2)
        for overrides in (
            {"method.name": "zero3", "train.global_batch": None},
            {"method": {"name": "zero3"}, "train": {"global_batch": None}},
        ):
            self.assertEqual(rehearse.simulate(self.job, overrides, seeds=2).to_dict(), expected)
            self.assertEqual(rehearse.simulate(rehearse.Job(TINY).replace(overrides), seeds=2).to_dict(), expected)

    def test_a_calibrated_job(self):
        job = {
            "model.name": "gpt2-1.5b",
            "cluster.name": "dgx-a100:1",
            "software.name": "megatron-2021",
            "method": {"name": "ddp", "precision": "fp16"},
            "train.global_batch": 16,
        }
        result = rehearse.simulate(job, fidelity="analytic")
        self.assertTrue(result.calibrated)
        self.assertLess(result.interval_s.low, result.step_s)
        self.assertGreater(result.interval_s.high, result.step_s)

    def test_an_adaptive_plan_with_its_migration(self):
        job = TINY | {"method.name": "adaptive", "adaptive.warmup_steps": 3}
        text = self.job.read_text().replace("ddp", "adaptive") + "adaptive.warmup_steps = 3\n"
        self.job.write_text(text)
        self.assertEqual(rehearse.simulate(job).to_dict(), self.json("simulate", self.job))

    def test_a_job_is_a_value(self):
        job = rehearse.Job(self.job, {"method.name": "zero2"})
        self.job.write_text("")  # it was read
        again = pickle.loads(pickle.dumps(job))
        self.assertEqual(rehearse.simulate(again, seeds=1).method, "zero2")
        self.assertIn("job.toml", repr(again))

    def test_python_values(self):
        job = TINY | {
            "train": {"global_batch": numpy.int64(32)},
            "disturb": {"compute_jitter": numpy.float32(0.25), "seed": 3, "slow_ranks": pandas.Series([1, 2])},
            "cluster": {"name": "paper", "world_size": 4},
        }
        del job["train.global_batch"], job["disturb"]["slow_ranks"]
        self.assertEqual(rehearse.simulate(job, seeds=1).to_dict()["seeds"], [3])


class Refusals(PackageCase):
    def says(self, expected, call, *arguments, **keywords):
        with self.assertRaises(rehearse.InputError) as caught:
            call(*arguments, **keywords)
        self.assertEqual(str(caught.exception), expected)
        self.assertIsInstance(caught.exception, ValueError)

    def command_says(self, *arguments):
        return self.command(*arguments, expect=2).stderr.removeprefix("rehearse: ").rstrip("\n")

    def test_the_texts_of_the_command(self):
        self.says(self.command_says("simulate", self.tmp / "no.toml"), rehearse.simulate, self.tmp / "no.toml")
        said = self.command_says("simulate", self.job, "--set", 'method.name="zero33"')
        self.says(said, rehearse.simulate, self.job, {"method.name": "zero33"})
        self.says(said, rehearse.Job, self.job, {"method": {"name": "zero33"}})
        self.says(self.command_says("compare", self.job, "--methods", "ddp,dpp"), rehearse.compare, self.job, ["ddp", "dpp"])
        self.job.write_text(self.job.read_text().replace("global_batch", "global_bach"))
        said = self.command_says("simulate", self.job)
        self.says(said, rehearse.simulate, self.job)
        self.assertIn("job.toml:5: ", said)
        # A dictionary has no lines.
        wrong = {key.replace("batch", "bach"): value for key, value in TINY.items()}
        self.says(said.replace(f"{self.job}:5", "<job>"), rehearse.Job, wrong)

    def test_dictionaries(self):
        self.says('<job>: key "method.name": is there twice', rehearse.Job, TINY | {"method": {"name": "zero2"}})
        self.says('<job>: key "method": is there both as a value and as a table', rehearse.Job, TINY | {"method": "ddp"})
        self.says(
            '<job>: key "method.pp": <object>: must be a number, a text, a truth value, or a list or dictionary of these',
            rehearse.Job,
            TINY | {"method.pp": type("A", (), {"__repr__": lambda self: "<object>"})()},
        )
        with self.assertRaises(TypeError):
            rehearse.simulate(3)

    def test_options(self):
        said = 'fidelity: "fluit": must be one of analytic, fluid, chunk; did you mean "fluid"?'
        self.says(said, rehearse.simulate, TINY, fidelity="fluit")
        self.says("seeds: 0: must be at least 1", rehearse.simulate, TINY, seeds=0)
        self.says("budget: -1: must be at least 0", rehearse.plan, TINY, budget=-1)

    def test_sweeps(self):
        with self.assertRaisesRegex(rehearse.InputError, r'^<sweep>: key "axes.method.ppp": .*did you mean "method.pp"'):
            rehearse.sweep(TINY, {"method.ppp": [1]})
        with self.assertRaisesRegex(rehearse.InputError, r'^<sweep>: key "where": .*neither an axis'):
            rehearse.sweep(TINY, {"method.pp": [1]}, where=["method.qq > 1"])
        for wrong in ((TINY,), (self.job, None, None, {"seeds": 2})):
            with self.assertRaises(TypeError):
                rehearse.sweep(*wrong[:3], **(wrong[3] if len(wrong) > 3 else {}))


class Compare(PackageCase):
    def test_the_rows_of_the_command(self):
        methods = ["ddp", "1f1b@pp=3", "zero3", "1f1b@pp=2,micro_batches=8"]
        frame = rehearse.compare(self.job, methods, seeds=2)
        expected = self.json("compare", self.job, "--methods", ",".join(methods), "--seeds", 2)
        self.assertEqual(list(frame["method"]), methods)
        able = frame[frame["refused"].isna()]
        self.assertEqual(
            [(row.method, row.step_s, row.tokens_per_s, row.peak_memory_bytes) for row in able.itertuples()],
            [
                (one["method"], one["step_time_s"]["mean"], one["tokens_per_s"], max(one["peak_memory_bytes"].values()))
                for one in expected["results"]
            ],
        )
        refused = frame[frame["refused"].notna()]
        self.assertEqual(list(refused["refused"]), [one["reason"] for one in expected["cannot_run"]])
        self.assertTrue(refused["step_s"].isna().all())
        self.assertEqual((frame["step_s"].dtype, frame["world_size"].dtype), ("float64", "Int64"))
        self.assertEqual(able["mesh"].iloc[-1], "pp 2 x dp 2")
        self.assertEqual(list(frame.loc[able["step_s"].idxmin()].index), list(frame.columns))


class Plan(PackageCase):
    def test_the_plan_of_the_command(self):
        planned = rehearse.plan(TINY, budget=50)
        self.assertEqual(planned.to_dict(), self.json("plan", self.job, "--budget", 50))
        self.command("plan", self.job, "--budget", 50, "-o", self.tmp / "plan.toml")
        planned.save(self.tmp / "saved.toml")
        self.assertEqual((self.tmp / "saved.toml").read_text(), (self.tmp / "plan.toml").read_text())
        choices = planned.choices
        self.assertEqual(list(choices.columns), ["choice", "value", "chosen", "step_s", "why"])
        self.assertTrue(choices.groupby("choice")["chosen"].sum().eq(1).all())
        self.assertEqual(list(planned.runners_up.columns), ["plan", "step_s", "why"])
        used = rehearse.simulate(TINY, {"method.name": None, "method.plan": self.tmp / "saved.toml"}, seeds=1)
        self.assertGreater(used.step_s, 0)
        self.assertFalse(list(self.tmp.glob("*rehears*")), "only the command writes the plan's rehearsal")


FAILING = TINY | {"faults.model": "rsc1-a100", "faults.rate": 1000}


class Goodput(PackageCase):
    def test_the_rows_of_the_command(self):
        sets = ("--set", "faults.model=rsc1-a100", "--set", "faults.rate=1000", "--set", "method.name=zero2")
        lists = ("--recovery", "replica,restart", "--checkpoint", "sharded,peer")
        expected = self.json("compare", self.job, "--duration", "2d", *lists, *sets, "--seeds", 3)
        options = {"recovery": ["replica", "restart"], "checkpoint": ("sharded", "peer"), "seeds": 3}
        frame = rehearse.goodput(FAILING, "2d", **options, overrides={"method.name": "zero2"})
        self.assertEqual(list(frame["recovery"] + ", " + frame["checkpoint"]),
                         [one["label"] for one in expected["long_runs"] + expected["cannot_run"]])  # fmt: skip
        rows = frame.to_dict("records")
        for row, one in zip(rows, expected["long_runs"], strict=False):
            self.assertEqual((row["goodput"], row["goodput_ci95"]), (one["goodput"]["mean"], one["goodput"]["ci95"]))
            self.assertEqual({cause: row[f"lost_{cause}_s"] for cause in one["lost_s"]}, one["lost_s"])
            self.assertEqual(row["every_s"], one["checkpoint"]["every_steps"] * one["step_time_s"])
        self.assertEqual(len(expected["cannot_run"]), 2)
        for row, one in zip(rows[2:], expected["cannot_run"], strict=True):
            self.assertEqual(row["refused"], one["reason"].replace(str(self.job), "<job>"))

    def test_seconds_and_the_jobs_own_recovery(self):
        (row,) = rehearse.goodput(FAILING | {"recovery.policy": "spare"}, 86400, fidelity="analytic").to_dict("records")
        self.assertEqual((row["recovery"], row["checkpoint"]), ("spare", "sharded"))
        lost = sum(value for name, value in row.items() if name.startswith("lost_") and name.endswith("_s"))
        self.assertAlmostEqual(row["goodput"], 1 - lost / 86400)

    def test_a_sweep(self):
        frame = rehearse.sweep(FAILING, {"recovery.policy": ["restart", "spare"]}, what="goodput", duration="1d", fidelity="analytic")
        rows = rehearse.goodput(FAILING, "1d", ["restart", "spare"], fidelity="analytic", seeds=1)
        self.assertEqual(list(frame["goodput"]), list(rows["goodput"]))
        self.assertGreater(frame["goodput"].nunique(), 1)

    def test_refusals(self):
        for says, arguments in (
            ("duration 1s: must be from 1 min to", (FAILING, 1)),
            ("duration: .*2w", (FAILING, "2w")),
            ('recovery restat: "restat" is not one of .*did you mean "restart"', (FAILING, "2d", "restat")),
            ("faults.model", (TINY, "2d")),
        ):
            with self.assertRaisesRegex(rehearse.InputError, says):
                rehearse.goodput(*arguments, fidelity="analytic")


class Sweep(PackageCase):
    AXES = {"methods": ["ddp", "zero2", "1f1b@pp=3"], "train.global_batch": numpy.array([16, 32])}

    def test_the_points_of_the_command(self):
        path = self.tmp / "sweep.toml"
        path.write_text(
            'job = "job.toml"\nfidelity = "analytic"\nwhere = ["train.global_batch > 4"]\n'
            '[axes]\nmethods = ["ddp", "zero2", "1f1b@pp=3"]\ntrain.global_batch = [16, 32]\n'
        )
        points = self.json("sweep", path, "-o", self.tmp / "out")["points"]
        said = []
        options = {"fidelity": "analytic", "where": ["train.global_batch > 4"], "progress": said.append}
        frame = rehearse.sweep(TINY, self.AXES, **options, folder=self.tmp / "ours")
        self.assertEqual(len(said), 6)
        self.assertEqual(list(frame.columns[:2]), ["methods", "train.global_batch"])
        for row, point in zip(frame.to_dict("records"), points, strict=True):
            self.assertEqual({name: row[name] for name in point["point"]}, point["point"])
            if "metrics" in point:
                self.assertEqual({name: row[name] for name in ("step_s", "tokens_per_s")}.items() - point["metrics"].items(), set())
            else:
                self.assertEqual(row["refused"].replace("<job>", ""), point["refused"].replace(f"{self.job}", "").replace(":1:", ":"))
        # The command's results are taken as they are, and the other way round.
        for again in (rehearse.sweep(path, folder=self.tmp / "out", progress=said.append), rehearse.sweep(TINY, self.AXES, **options)):
            pandas.testing.assert_frame_equal(again.drop(columns="refused"), frame.drop(columns="refused"))
        self.assertEqual(len(said), 12)
        self.assertEqual((self.tmp / "out/results.csv").read_text().count("\n"), 7)

    def test_ranges_and_zipped_axes(self):
        axes = {
            "train": {"global_batch": {"from": 16, "to": 64, "factor": 2}},
            "size": [{"label": "one", "cluster": {"world_size": 2}}, {"cluster.world_size": 4, "method.name": "zero1"}],
        }
        frame = rehearse.sweep(TINY, axes, fidelity="analytic")
        self.assertEqual(list(frame["train.global_batch"]), [16, 16, 32, 32, 64, 64])
        self.assertEqual(list(frame["world_size"]), [2, 4] * 3)
        self.assertEqual(list(frame["method"]), ["ddp", "zero1"] * 3)

    def test_each_value_alone(self):
        frame = rehearse.sweep(TINY, {"method.name": ["zero2"], "train.global_batch": [32]}, vary="alone", fidelity="analytic")
        self.assertEqual(list(frame["method"]), ["ddp", "zero2", "ddp"])
        self.assertEqual(list(frame["train.global_batch"].isna()), [True, True, False])

    def test_types_of_options(self):
        same = rehearse.simulate(TINY, fidelity="analytic", seeds=2, precision=0.5)
        of_numpy = rehearse.simulate(TINY, fidelity="analytic", seeds=numpy.int64(2), precision=numpy.float32(0.5))
        self.assertEqual(of_numpy.to_dict(), same.to_dict())
        week = {"faults.model": "llama3-h100"} | TINY
        frames = [rehearse.goodput(week, time, fidelity="analytic", seeds=1) for time in (86400, numpy.int64(86400), "1d")]
        self.assertEqual([frame["goodput"][0] for frame in frames], [frames[0]["goodput"][0]] * 3)
        self.assertEqual(
            len(rehearse.sweep(TINY, {"train.global_batch": [8, 16]}, where="train.global_batch < 16", fidelity="analytic")), 1
        )
        for wrong, says in (
            ({"seeds": 1.5}, "seeds: 1.5: must be a whole number"),
            ({"seeds": "3"}, "seeds: '3': must be a whole number"),
            ({"seeds": True}, "seeds: True"),
            ({"precision": "1%"}, "precision: '1%': must be a number"),
            ({"fidelity": None}, "fidelity: None: must be a text"),
        ):
            with self.assertRaisesRegex(TypeError, says):
                rehearse.simulate(TINY, **wrong)
            with self.assertRaisesRegex(TypeError, says):
                rehearse.compare(TINY, "ddp", **wrong)
        with self.assertRaisesRegex(TypeError, "budget: 'a'"):
            rehearse.plan(TINY, budget="a")
        with self.assertRaisesRegex(TypeError, "fit: 1: must be True or False"):
            rehearse.compare(TINY, "ddp", fit=1)
        with self.assertRaisesRegex(TypeError, "methods: None: must be a text or a list"):
            rehearse.compare(TINY, None)

    def test_a_scaling(self):
        frame = rehearse.sweep(TINY, scaling={"devices": [2, 4, 8]}, fidelity="analytic")
        self.assertEqual((list(frame["devices"]), list(frame["world_size"])), ([2, 4, 8], [2, 4, 8]))
        shares = [frame["step_s"][0] * 2 / (step * devices) for step, devices in zip(frame["step_s"], frame["devices"], strict=True)]
        numpy.testing.assert_allclose(frame["efficiency"], shares)

    def test_a_scaling_of_a_torus(self):
        job = {"model.name": "bert-tiny", "cluster.name": "tpu-v4", "method.name": "ddp", "train.global_batch": 256}
        frame = rehearse.sweep(job, scaling={"devices": [8, 64, 128]}, fidelity="analytic")
        for sizes, step in zip(("2x2x2", "4x4x4", "4x4x8"), frame["step_s"], strict=True):
            one = rehearse.simulate(job | {"cluster.name": f"tpu-v4:{sizes}"}, fidelity="analytic")
            self.assertEqual(one.step_s, step)

    def test_the_frontier_and_a_search(self):
        axes = {"cluster.world_size": [1, 2, 4], "cluster.prices": [["1 USD/h"], ["2 USD/h"]], "method.micro_batches": [1, 2]}
        by = ["step_s", "cost_per_billion_tokens"]
        frame = rehearse.sweep(TINY, axes, fidelity="analytic", by=by, folder=self.tmp / "all")
        figures = frame[by].to_numpy()
        for mine, best in zip(figures, frame["frontier"], strict=True):
            self.assertEqual(best, not any((other <= mine).all() and (other < mine).any() for other in figures))
        one = rehearse.sweep(TINY, axes, fidelity="analytic", by="step_s", folder=self.tmp / "all")
        self.assertEqual(list(one["frontier"]), list(frame["step_s"] == frame["step_s"].min()))
        self.assertNotIn("frontier", rehearse.sweep(TINY, axes, fidelity="analytic", folder=self.tmp / "all"))

        some = rehearse.sweep(TINY, axes, fidelity="analytic", by=by, search=7, folder=self.tmp / "some")
        self.assertEqual((len(frame), len(some)), (12, 7))
        names = [*axes, *by]
        self.assertLessEqual({str(row) for row in some[names].values}, {str(row) for row in frame[names].values})
        with mock.patch.dict(os.environ, REHEARSE_PROGRAM_TIMEOUT="1ms"), self.assertRaisesRegex(rehearse.BackendError, r"after 0\.001 s"):
            rehearse.sweep(TINY, axes, fidelity="analytic", by=by, search=7, folder=self.tmp / "late")
        with self.assertRaisesRegex(rehearse.InputError, r'^by: goodput: what = "simulate" ranks by step_s, '):
            rehearse.sweep(TINY, axes, fidelity="analytic", by="goodput")
        with self.assertRaisesRegex(ValueError, "search: -1: must be at least 0"):
            rehearse.sweep(TINY, axes, search=-1)
        with mock.patch.dict(sys.modules, optuna=None), self.assertRaisesRegex(ModuleNotFoundError, r"pip install 'rehearse\[search\]'"):
            rehearse.sweep(TINY, axes, search=1)


class Package(PackageCase):
    def test_everything_has_types_and_a_docstring(self):
        self.assertTrue((PACKAGE / "rehearse/py.typed").exists())
        stub = (PACKAGE / "rehearse/_core.pyi").read_text()
        self.assertIn("def simulate(source: Source, fidelity: str, seeds: int, steps: int, precision: float) -> str:", stub)
        for name in rehearse.__all__:
            one = getattr(rehearse, name)
            if name == "JobLike":
                continue
            self.assertTrue(inspect.getdoc(one), name)
            functions = [one] if inspect.isfunction(one) else [f for _, f in inspect.getmembers(one, inspect.isfunction)]
            for function in functions:
                if function.__module__.startswith("rehearse"):
                    hints = typing.get_type_hints(function, {**vars(inspect.getmodule(function)), "pandas": pandas})
                    self.assertEqual(hints.keys() - {"return"}, inspect.signature(function).parameters.keys() - {"self", "cls"}, function)
                    self.assertIn("return", hints, function)

    def test_the_command(self):
        text = "import sys; sys.argv = ['rehearse', '--version']; import rehearse.__main__ as m; m.main()"
        self.assertEqual(self.python(text), f"rehearse {rehearse.__version__}\n")

    def test_pandas_is_not_loaded_by_a_simulation(self):
        text = f"import sys, rehearse; rehearse.simulate({TINY!r}, seeds=1); print(*('pandas' in sys.modules, 'numpy' in sys.modules))"
        self.assertEqual(self.python(text), "False False\n")

    def test_files_are_short(self):
        for path in (pathlib.Path(__file__).parents[2] / "python").rglob("*.py"):
            self.assertLess(path.read_text().count("\n"), 400, path)


if __name__ == "__main__":
    unittest.main()
