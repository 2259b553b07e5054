"""`[scaling]` of SWEEP.toml: the same job on more and more devices. Each point is what `rehearse simulate` gives for that many nodes."""

import csv
import re

from cli_test_case import CliTestCase

JOB = """model.name = "gpt2-124m"
cluster.name = "h200x4"
method.name = "ddp"
method.precision = "bf16"
train.global_batch = 64
"""
SWEEP = 'job = "job.toml"\nfidelity = "analytic"\n[scaling]\ndevices = [2, 4, 16]\n'


class Scaling(CliTestCase):
    def sweep(self, text=SWEEP, job=JOB):
        self.job(job)
        path = self.tmp / "sweep.toml"
        path.write_text(text)
        return path

    def points(self, text=SWEEP, job=JOB, folder="out"):
        points = self.json("sweep", self.sweep(text, job), "-o", self.tmp / folder)["points"]
        return {tuple(point["point"].values()): point["metrics"] for point in points}

    def step(self, devices, nodes, batch=64, *more):
        keys = {"cluster.world_size": devices, "cluster.name": f"h200x4:{nodes}", "train.global_batch": batch}
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json("simulate", self.job(JOB), "--fidelity", "analytic", *sets, *more)["step_time_s"]["mean"]

    def test_strong_scaling_shares_one_batch(self):
        steps = {devices: self.step(devices, nodes) for devices, nodes in ((2, 1), (4, 1), (16, 4))}
        points = self.points()
        self.assertEqual({devices: p["step_s"] for (devices,), p in points.items()}, steps)
        for devices, seconds in steps.items():
            self.assertAlmostEqual(points[devices,]["efficiency"], steps[2] * 2 / (seconds * devices))

    def test_weak_scaling_has_a_batch_that_grows(self):
        points = self.points(SWEEP.replace("[scaling]", '[scaling]\nkind = "weak"'))
        steps = {devices: self.step(devices, nodes, 32 * devices) for devices, nodes in ((2, 1), (4, 1), (16, 4))}
        self.assertEqual({devices: p["step_s"] for (devices,), p in points.items()}, steps)
        for devices, seconds in steps.items():
            self.assertAlmostEqual(points[devices,]["efficiency"], steps[2] / seconds)

    def test_each_method_has_a_curve_of_its_own(self):
        text = SWEEP + '[axes]\nmethods = ["ddp", "zero3"]\n'
        said = self.rehearse("sweep", self.sweep(text), "-o", self.tmp / "out").stdout
        self.assertEqual(re.findall(r"^ *(\d+)  (?:ddp|zero3) ", said, re.M), ["2", "2", "4", "4", "16", "16"])
        with (self.tmp / "out/results.csv").open() as file:
            rows = {(int(row["devices"]), row["methods"]): row for row in csv.DictReader(file)}
        self.assertEqual(list(rows), [(devices, method) for devices in (2, 4, 16) for method in ("ddp", "zero3")])
        for (devices, method), row in rows.items():
            first = float(rows[2, method]["step_s"]) * 2
            self.assertAlmostEqual(float(row["efficiency"]), first / (float(row["step_s"]) * devices))
        self.assertIn("strong scaling; efficiency beside the fewest devices", said)
        # All points, unless a metric ranks them.
        self.refused("sweep", self.sweep(text), "-o", self.tmp / "out", "--top", 1, says=["--top 1", "all points", "--by METRIC"])
        ranked = ("--by", "tokens_per_s", "--top", 2)
        said = self.rehearse("sweep", self.sweep(text), "-o", self.tmp / "out", *ranked).stdout
        self.assertEqual(re.findall(r"^ *(\d+)  (?:ddp|zero3) ", said, re.M), ["16", "16"])
        self.assertIn("the best 2 of 6 points that can run, by tokens_per_s\nstrong scaling; ", said)
        self.assertIn("perfect scaling", re.sub(r"<!--|-->", "", (self.tmp / "out/sweep.svg").read_text()))

    def test_clusters_of_a_fixed_size_use_a_part(self):
        job = JOB.replace("h200x4", "paper").replace("gpt2-124m", "gpt-tiny").replace('"bf16"', '"fp32"')
        two, four, more = self.json("sweep", self.sweep(SWEEP.replace("16]", "64]"), job), "-o", self.tmp / "out")["points"]
        self.assertEqual([point["metrics"]["world_size"] for point in (two, four)], [2, 4])
        self.assertIn("64 ranks, but paper has 32 devices", more["refused"])

    def test_wrong_files(self):
        for before, after, says in (
            ("[2, 4, 16]", "[4, 2]", ["scaling.devices", "2: must be whole numbers that rise"]),
            ("[2, 4, 16]", "[0, 2]", ["must be whole numbers"]),
            ("[2, 4, 16]", "[]", ["needs at least one number"]),
            ("devices = [2, 4, 16]", "", ["scaling.devices", "needs it"]),
            ("[scaling]", '[scaling]\nkind = "soft"', ["strong", "weak"]),
            ("[scaling]", 'what = "goodput"\nduration = "1d"\n[scaling]', ["has no scaling"]),
            ("16]", "16]\n[axes]\ncluster.world_size = [2]", ["[scaling] chooses the devices"]),
            ("[2, 4, 16]", '[3, 4]\nkind = "weak"', ["train.global_batch", "64 on 3 devices would be 256 / 3 on 4"]),
        ):
            with self.subTest(after=after):
                self.refused("sweep", self.sweep(SWEEP.replace(before, after)), "-o", self.tmp / "out", says=says)
        weak = SWEEP.replace("[scaling]", '[scaling]\nkind = "weak"')
        without = JOB.replace("train.global_batch = 64\n", "")
        self.refused("sweep", self.sweep(weak, without), "-o", self.tmp / "out", says=["train.global_batch", "required"])
        listed = JOB + 'cluster.devices = ["node0"]\n'
        self.refused("sweep", self.sweep(SWEEP, listed), "-o", self.tmp / "out", says=["cluster.devices", "leave it out"])

    def test_a_changed_platform_file_is_another_point(self):
        """Also where the cluster's name has a size behind the file's."""
        platform = self.tmp / "nodes.toml"
        text = """summary = "any"
source = "a test"
scale = "nodes"
[[nodes]]
devices = ["H100"]
links = [{ from = "gpu0", to = "fabric", bandwidth = "10Gb/s", latency = "1us" }]
"""
        sweep = self.sweep(job=JOB.replace("h200x4", str(platform)))
        keys = []
        for rate in ("10Gb/s", "100Gb/s", "10Gb/s"):
            platform.write_text(text.replace("10Gb/s", rate))
            keys.append([point["key"] for point in self.json("sweep", sweep, "--dry-run")["points"]])
        self.assertEqual(keys[0], keys[2])
        self.assertFalse(set(keys[0]) & set(keys[1]))
