"""`rehearse sweep`: axes, conditions, refused points, a sweep that goes on after SIGKILL, shards, and refusals of wrong files. The numbers
of a point are those of `rehearse simulate`."""

import fcntl
import json
import os
import signal
import subprocess
import time

from cli_test_case import PATIENCE, REHEARSE, ROOT, TINY, CliTestCase

SMALL = """job = "job.toml"
fidelity = "analytic"
[axes]
"""


class Sweep(CliTestCase):
    def sweep(self, axes, head=SMALL):
        self.job()
        path = self.tmp / "sweep.toml"
        path.write_text(head + axes)
        return path

    def points(self, axes, head=SMALL):
        listed = self.json("sweep", self.sweep(axes, head), "--dry-run")["points"]
        return [tuple(point["point"].values()) for point in listed]

    def lines(self, folder="out", name="results.jsonl"):
        return [json.loads(line) for line in (self.tmp / folder / name).read_text().splitlines()]

    def run_sweep(self, path, *more, folder="out"):
        return self.json("sweep", path, "-o", self.tmp / folder, *more)

    def test_axes_are_crossed(self):
        axes = 'methods = ["ddp", "1f1b@pp=2"]\ntrain.global_batch = [16, 32]'
        self.assertEqual(self.points(axes), [("ddp", 16), ("ddp", 32), ("1f1b@pp=2", 16), ("1f1b@pp=2", 32)])

    def test_axes_and_options_hold_for_every_method(self):
        job = self.job(TINY + "method.zero = 1\nmethod.micro_batches = 4\n", "own.toml")
        head = 'job = "own.toml"\nfidelity = "analytic"\nwhere = ["method.micro_batches < 4 or methods == \'ddp\'"]\n[axes]\n'
        path = self.sweep('methods = ["ddp", "zero2"]\nmethod.micro_batches = [1, 2, 4]', head)
        for more in ([], ["--set", "method.bucket=1MB"]):
            points = self.run_sweep(path, *more, folder=f"out{len(more)}")["points"]
            self.assertEqual(len(points), 5)
            for point in points:
                name, number = point["point"].values()
                keys = [f"method.name={name}", f"method.micro_batches={number}", f"method.zero={dict(ddp=1, zero2=2)[name]}", *more[1:]]
                one = self.json("simulate", job, "--fidelity", "analytic", *(word for key in keys for word in ("--set", key)))
                self.assertEqual(point["metrics"]["step_s"], one["step_time_s"]["mean"], (name, number))

    def test_ranges(self):
        self.assertEqual(self.points("train.global_batch = { from = 16, to = 64, factor = 2 }"), [(16,), (32,), (64,)])
        self.assertEqual(self.points("disturb.compute_jitter = { from = 0, to = 0.5, steps = 3 }"), [(0,), (0.25,), (0.5,)])
        self.assertEqual(self.points('method.bucket = { from = 1, to = 4, factor = 4, unit = "MB" }'), [("1MB",), ("4MB",)])

    def test_zipped_axes_and_conditions(self):
        axes = """size = [{ label = "small", cluster.world_size = 2, train.global_batch = 16 }, { cluster.world_size = 4 }]
method.micro_batches = [1, 2, 4]"""
        where = 'where = ["cluster.world_size * method.micro_batches <= 8", "method.micro_batches != 2 or size == \\"small\\""]\n'
        large = "cluster.world_size=4"
        self.assertEqual(self.points(axes, where + SMALL), [("small", 1), ("small", 2), ("small", 4), (large, 1)])

    def test_quantities_compare_by_their_amounts(self):
        axes = 'method.bucket = ["900kB", "1MB", "1MiB"]'
        for condition, left in (("<= '1MB'", ["900kB", "1MB"]), ("== '1000kB'", ["1MB"]), ("> '0.95MB'", ["1MB", "1MiB"])):
            with self.subTest(condition):
                head = f'where = ["method.bucket {condition}"]\n' + SMALL
                self.assertEqual(self.points(axes, head), [(size,) for size in left])
        said = self.refused(
            "sweep", self.sweep(axes, "where = [\"method.bucket < '1GB/s'\"]\n" + SMALL), "--dry-run", says=["have an order"]
        )
        self.assertIn("method.bucket", said)

    def test_each_value_alone(self):
        axes = 'methods = ["zero2"]\ntrain.global_batch = [8, 32]'
        alone = 'vary = "alone"\n' + SMALL
        self.assertEqual(self.points(axes, alone), [(None, None), ("zero2", None), (None, 8), (None, 32)])
        where = 'where = ["train.global_batch >= 16"]\n' + alone
        self.assertEqual(self.points(axes, where), [(None, None), ("zero2", None), (None, 32)])
        points = self.run_sweep(self.sweep(axes, alone))["points"]
        job = self.json("simulate", self.job(), "--fidelity", "analytic")["step_time_s"]["mean"]
        more = self.json("simulate", self.job(), "--fidelity", "analytic", "--set", "train.global_batch=32")["step_time_s"]["mean"]
        self.assertEqual((points[0]["metrics"]["step_s"], points[3]["metrics"]["step_s"]), (job, more))
        self.assertEqual((self.tmp / "out/results.csv").read_text().splitlines()[1].split(",")[:3], ["", "", "ddp"])
        self.assertIn("each input alone", (self.tmp / "out/sweep.svg").read_text())
        self.refused("sweep", self.sweep("", alone + "[scaling]\ndevices = [2]\n"), "--dry-run", says=["vary", "alone"])

    def test_two_that_set_one_key(self):
        for axes, who in (
            ('method.pp = [1, 2]\nmethods = ["megatron@pp=4"]', ['axis "method.pp"', 'axis "methods"', "method.pp"]),
            ("x = [{train.global_batch = 32}]\ntrain.global_batch = [16]", ['axis "x"', 'axis "train.global_batch"']),
            ('method.name = ["ddp"]\nmethods = ["zero2"]', ["method.name"]),
        ):
            self.refused("sweep", self.sweep(axes), "--dry-run", says=[*who, "both set"])
        given = ("--dry-run", "--set", "train.global_batch=64")
        self.refused("sweep", self.sweep("train.global_batch = [16, 32]"), *given, says=["--set train.global_batch=64", "both set"])
        self.assertEqual(len(self.points(axes, 'vary = "alone"\n' + SMALL)), 3)

    def test_the_answer_does_not_wait_for_its_picture(self):
        bare = self.tmp / "python3"
        bare.write_text("#!/bin/sh\necho no figure >&2\nexit 1\n")
        bare.chmod(0o755)
        env = os.environ | {"REHEARSE_PYTHON": str(bare)}
        done = self.rehearse("sweep", self.sweep("train.global_batch = [16]"), "-o", self.tmp / "out", expect=1, env=env)
        self.assertIn("no figure", done.stderr)
        self.assertIn("the best 1 of 1 points", done.stdout)

    def test_numbers_are_those_of_simulate(self):
        axes = 'methods = ["ddp", "1f1b@pp=2"]\ndisturb.compute_jitter = [0, 0.1]'
        path = self.sweep(axes, 'job = "job.toml"\nseeds = 2\n[axes]\n')
        for point in self.run_sweep(path)["points"]:
            name, jitter = point["point"].values()
            keys = {"ddp": [], "1f1b@pp=2": ["--set", "method.name=1f1b", "--set", "method.pp=2"]}[name]
            one = self.json("simulate", self.job(), "--seeds", 2, "--set", f"disturb.compute_jitter={jitter}", *keys)
            found = point["metrics"]
            self.assertEqual(found["step_s"], one["step_time_s"]["mean"])
            self.assertEqual(found["step_ci95_s"], one["step_time_s"]["ci95"])
            self.assertEqual(found["peak_memory_bytes"], max(one["peak_memory_bytes"].values()))
            for key in ("method", "world_size", "samples_per_s", "tokens_per_s", "mfu", "bubble_fraction", "exposed_comm_s"):
                self.assertEqual(found[key], one[key], key)
            self.assertIn("uncalibrated", " ".join(one["warnings"]))
            self.assertEqual(point["warnings"], one["warnings"])

    def test_plans_are_those_of_plan(self):
        path = self.sweep("train.global_batch = [16, 64]", 'job = "job.toml"\nwhat = "plan"\n[axes]\n')
        for point in self.run_sweep(path)["points"]:
            one = self.json("plan", self.job(), "--set", f"train.global_batch={point['point']['train.global_batch']}")
            found = point["metrics"]
            self.assertEqual((found["step_s"], found["plan"]), (one["step_time_s"], one["summary"]))
            for key in ("dry_run_s", "candidates", "pruned", "dry_run", "simulations"):
                self.assertEqual(found[key], one[key], key)
            self.assertEqual(point.get("warnings", []), one["warnings"])
        said = self.rehearse("sweep", path, "-o", self.tmp / "out", "--by", "dry_run_s").stdout
        self.assertIn("by dry_run_s", said)
        self.assertIn(found["plan"], said)

    def test_a_wrong_failure_model_is_refused_by_every_question(self):
        for what in ("plan", "simulate"):
            axes = 'faults.model = ["llama3-h100", "lama3-h100"]'
            right, wrong = self.run_sweep(self.sweep(axes, f'job = "job.toml"\nwhat = "{what}"\n[axes]\n'), folder=what)["points"]
            self.assertIn("step_s", right["metrics"])
            self.assertIn('did you mean "llama3-h100"?', wrong["refused"])
            self.assertIn("faults.model", wrong["refused"])

    def test_long_runs_are_those_of_simulate(self):
        axes = 'faults.model = ["llama3-h100"]\nfaults.rate = [1e3]\nrecovery.policy = ["restart", "shrink"]'
        path = self.sweep(axes, 'job = "job.toml"\nwhat = "goodput"\nduration = "10d"\nseeds = 2\nfidelity = "analytic"\n[axes]\n')
        given = ("--duration", "10d", "--seeds", 2, "--fidelity", "analytic")
        answer = self.run_sweep(path)
        self.assertEqual((answer["by"], answer["most"]), ("goodput", True))
        for point in answer["points"]:
            sets = [word for key, value in point["point"].items() for word in ("--set", f"{key}={value}")]
            one = self.json("simulate", self.job(), *given, *sets)
            found = point["metrics"]
            self.assertGreater(found["interruptions"], 0)
            self.assertEqual((found["goodput"], found["goodput_ci95"]), (one["goodput"]["mean"], one["goodput"]["ci95"]))
            self.assertEqual((found["step_s"], found["every_steps"]), (one["step_time_s"], one["checkpoint"]["every_steps"]))
            for key in ("nodes", "productive_s", "interruptions", "steps", "lost_steps", "checkpoints"):
                self.assertEqual(found[key], one[key], key)
            self.assertLessEqual(set(one["notes"]), set(point["warnings"]))
            for cause, seconds in one["lost_s"].items():
                self.assertEqual(found[f"lost_{cause}_s"], seconds)
            self.assertAlmostEqual(found["productive_s"] + found["lost_s"], 10 * 86400, delta=1)
        self.assertIn("<svg", (self.tmp / "out/sweep.svg").read_text())

    def test_refused_points_are_rows(self):
        path = self.sweep("method.tp = [1, 3]")
        able, refused = self.run_sweep(path)["points"]
        self.assertIn("metrics", able)
        self.assertIn("method.tp", refused["refused"])
        said = self.rehearse("sweep", path, "-o", self.tmp / "out").stdout
        self.assertIn("2 points, 1 cannot run", said)
        self.assertIn("1 x ", said)
        table = (self.tmp / "out/results.csv").read_text().splitlines()
        self.assertEqual(len(table), 3)
        self.assertTrue(table[0].startswith("method.tp,method,world_size,step_s,"), table[0])
        self.assertIn("<svg", (self.tmp / "out/sweep.svg").read_text())

    def test_no_point_can_run(self):
        said = self.rehearse("sweep", self.sweep("method.tp = [3, 5]"), "-o", self.tmp / "out", expect=2).stdout
        self.assertIn("2 points, 2 cannot run", said)

    def test_equal_points_are_computed_once(self):
        path = self.sweep("train.global_batch = [16, 16, 32]")
        points = self.run_sweep(path)["points"]
        self.assertEqual(len(self.lines()), 2)
        self.assertEqual(points[0]["metrics"], points[1]["metrics"])
        before = (self.tmp / "out/results.jsonl").read_bytes()
        self.assertEqual(self.run_sweep(path)["points"], points)
        self.assertEqual((self.tmp / "out/results.jsonl").read_bytes(), before)

    def test_files_that_named_files_name_count(self):
        """The base of a software file, its library, and a model in a folder of Hugging Face: after a change, points are computed anew."""
        hub = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128}
        folder, library = self.tmp / "hub", ROOT / "software/libraries/nccl-2.20.toml"
        folder.mkdir()
        texts = {
            "top.toml": f'base = "{self.tmp}/base.toml"\nsource = "none"\n[communication]\nlibrary = "{self.tmp}/library.toml"\n',
            "base.toml": 'base = "pytorch-2"\nsource = "none"\n[host]\nforward = "10us"\n',
            "library.toml": library.read_text(),
            "hub/config.json": json.dumps(hub | {"vocab_size": 512}),
        }
        changes = {
            "library.toml": ("efficiency = 0.", "efficiency = 0.0"),
            "hub/config.json": ('"n_layer": 2', '"n_layer": 3'),
            "base.toml": ("10us", "900us"),
        }
        for name, text in texts.items():
            (self.tmp / name).write_text(text)
        keys = f'[axes]\ntrain.global_batch = [16]\nsoftware.name = ["{self.tmp}/top.toml"]\nmodel.name = ["{folder}"]\n'
        path = self.sweep("", SMALL.replace("[axes]\n", keys))
        for name, (old, new) in changes.items():
            with self.subTest(name):
                (point,) = self.run_sweep(path)["points"]
                text = (self.tmp / name).read_text()
                self.assertIn(old, text)
                (self.tmp / name).write_text(text.replace(old, new))
                (changed,) = self.run_sweep(path)["points"]
                self.assertNotEqual(changed["metrics"]["step_s"], point["metrics"]["step_s"])

    def test_goes_on_after_a_kill(self):
        path = self.sweep("train.global_batch = { from = 16, to = 1600, steps = 100 }")
        whole = self.run_sweep(path, folder="whole")["points"]
        running = subprocess.Popen([REHEARSE, "sweep", path, "-o", self.tmp / "out", "--jobs", "1", "-q"], stdout=subprocess.DEVNULL)
        results = self.tmp / "out/results.jsonl"
        end = time.monotonic() + PATIENCE
        while not (results.exists() and results.read_bytes().count(b"\n") >= 5):
            self.assertIsNone(running.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        os.kill(running.pid, signal.SIGKILL)
        running.wait(PATIENCE)
        kept = results.read_bytes()
        kept = kept[: kept.rfind(b"\n") + 1]
        self.assertEqual(self.run_sweep(path)["points"], whole)
        self.assertTrue(results.read_bytes().startswith(kept))
        self.assertEqual(len({line["key"] for line in self.lines()}), len(self.lines()))

    def test_a_torn_last_line_is_computed_again(self):
        path = self.sweep("train.global_batch = [16, 32]")
        points = self.run_sweep(path, "--jobs", 1)["points"]
        results = self.tmp / "out/results.jsonl"
        text = results.read_bytes()
        for cut in (1, 40):  # only the end of the line is lost; half of the line is lost
            results.write_bytes(text[:-cut])
            self.assertEqual(self.run_sweep(path)["points"], points)
            self.assertEqual(results.read_bytes(), text)

    def test_a_damaged_line_is_named_and_kept(self):
        path = self.sweep("train.global_batch = [16, 32]")
        self.run_sweep(path)
        results = self.tmp / "out/results.jsonl"
        damaged = b"what is this\n" + results.read_bytes()
        results.write_bytes(damaged)
        self.refused("sweep", path, "-o", self.tmp / "out", says=["results.jsonl:1", "not a line of a sweep's results"])
        self.assertEqual(results.read_bytes(), damaged)

    def test_two_sweeps_do_not_write_one_folder(self):
        path = self.sweep("train.global_batch = [16, 32]")
        (self.tmp / "out").mkdir()
        with open(self.tmp / "out/results.jsonl", "w") as other:
            fcntl.lockf(other, fcntl.LOCK_EX)
            self.refused("sweep", path, "-o", self.tmp / "out", says=["results.jsonl", "another sweep writes it"])
        self.assertEqual(len(self.run_sweep(path)["points"]), 2)

    def test_shards_are_the_whole(self):
        path = self.sweep("train.global_batch = { from = 16, to = 160, steps = 10 }")
        whole = self.run_sweep(path, folder="whole")["points"]
        for shard in (1, 2, 3):
            self.run_sweep(path, "--shard", f"{shard}/3")
        files = sorted((self.tmp / "out").glob("results-*.jsonl"))
        self.assertEqual(sum(len(file.read_text().splitlines()) for file in files), len(whole))
        self.assertEqual(self.run_sweep(path)["points"], whole)
        self.assertEqual(self.lines(), [])

    def test_wrong_files(self):
        for axes, says in (
            ("train.global_bach = [1]", ['did you mean "train.global_batch"?']),
            ("train.global_batch = []", ["an axis needs at least one value"]),
            ("train.global_batch = 3", ["must be a list of values"]),
            ("train.global_batch = { from = 1, to = 2, steps = 0 }", ["steps", "0"]),
            ("train.global_batch = { from = 2, to = 1, steps = 3 }", ["must be above from"]),
            ("train.global_batch = { from = 1, to = 2, factor = 1 }", ["factor"]),
            ("train.global_batch = { from = 1, to = 2 }", ["either steps or factor"]),
            ('methods = ["dpp"]', ['"ddp"']),
            ("", ["no axis"]),
        ):
            with self.subTest(axes=axes):
                self.refused("sweep", self.sweep(axes), "-o", self.tmp / "out", says=["sweep.toml", *says])
        for head, says in (
            ("seed = 3\n" + SMALL, ['did you mean "seeds"?']),
            ('what = "plans"\n' + SMALL, ['"plans"', "plan", "goodput"]),
            ('what = "plan"\nseeds = 3\n' + SMALL, ['is not for what = "plan"']),
            ('what = "goodput"\n' + SMALL, ["duration"]),
            ('duration = "3d"\n' + SMALL, ['is for what = "goodput"']),
            ('where = ["train.global_bach < 3"]\n' + SMALL, ['did you mean "train.global_batch"?']),
            ('where = ["train.global_batch<3"]\n' + SMALL, ["must be comparisons"]),
            ('where = ["train.global_batch > 99"]\n' + SMALL, ["leaves no point"]),
        ):
            with self.subTest(head=head):
                self.refused("sweep", self.sweep("train.global_batch = [16]", head), "-o", self.tmp / "out", says=says)
        path = self.sweep("train.global_batch = [16]")
        for shard in ("0/2", "3/2", "1", "1/x", "1/2/3"):
            self.refused("sweep", path, "-o", self.tmp / "out", "--shard", shard, says=[f"--shard {shard}: must be I/N"])
        self.refused("sweep", path, says=["needs -o DIR"])
        self.refused("sweep", path, "-o", self.tmp / "out", "--by", "goodput", says=["--by goodput", "step_s, samples_per_s"])

    def test_a_job_inside(self):
        inline = "\n".join(f"job.{line}" for line in TINY.strip().splitlines())
        path = self.sweep("train.global_batch = [16]", f'fidelity = "analytic"\n{inline}\n[axes]\n')
        (inside,) = self.run_sweep(path)["points"]
        (named,) = self.run_sweep(self.sweep("train.global_batch = [16]"), folder="other")["points"]
        self.assertEqual(inside["metrics"], named["metrics"])
