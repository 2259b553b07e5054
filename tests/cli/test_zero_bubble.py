"""zb-h1 and zb-h2: shorter steps than 1F1B in simulation, and the same weights in real runs."""

from cli_test_train_data import TrainingCase
from recovery_case import sets

PIPELINE = """model.name = "gpt2-1.5b"
cluster.name = "dgx-a100"
method = {{ name = "{method}", pp = 4, dp = 2, micro_batches = 8, precision = "bf16" }}
train = {{ global_batch = 64, seq_len = 1024 }}
"""


class ZeroBubble(TrainingCase):
    def simulated(self, method, **keys):
        path = self.tmp / f"{method}.toml"
        path.write_text(PIPELINE.format(method=method))
        return self.json("simulate", path, *sets(keys))

    def test_bubbles_and_memory(self):
        one = {method: self.simulated(method) for method in ("1f1b", "zb-h1", "zb-h2")}
        step = {method: found["step_time_s"]["mean"] for method, found in one.items()}
        self.assertLess(step["zb-h1"], 0.97 * step["1f1b"])
        self.assertLess(step["zb-h2"], 0.97 * step["zb-h1"])
        self.assertLess(one["zb-h1"]["bubble_fraction"], one["1f1b"]["bubble_fraction"])
        self.assertLess(one["zb-h2"]["bubble_fraction"], one["zb-h1"]["bubble_fraction"])
        peak = {method: max(found["peak_memory_bytes"].values()) for method, found in one.items()}
        self.assertLess(peak["1f1b"], peak["zb-h2"])
        self.assertLess(peak["zb-h1"], peak["zb-h2"])
        # All stages wait for the norm, so steps no longer overlap.
        clipped = self.simulated("zb-h2", **{"train.clip": 1})["step_time_s"]["mean"]
        self.assertGreater(clipped, step["zb-h2"])

    def test_the_planner_tries_them_where_the_job_names_them(self):
        found = {}
        for method in ("1f1b", "zb-h1", "zb-h2"):
            path = self.tmp / f"{method}.toml"
            path.write_text(PIPELINE.format(method=method))
            found[method] = self.json("plan", path, "--no-rescore", "--set", "method.virtual_stages=1")
        self.assertEqual([one["plan"]["method"] for one in found.values()], ["1f1b", "zb-h1", "zb-h2"])
        times = [one["step_time_s"] for one in found.values()]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertIn(", zb-h2, ", found["zb-h2"]["summary"])
        (schedule,) = (one for one in found["zb-h2"]["choices"] if one["choice"] == "schedule")
        self.assertEqual(schedule["value"], "zb-h2")
        self.assertIn("1f1b", [other["value"] for other in schedule["runners_up"]])
        plan = self.tmp / "plan.toml"
        self.rehearse("plan", self.tmp / "zb-h2.toml", "--no-rescore", "--set", "method.virtual_stages=1", "-o", plan)
        again = self.json("simulate", self.tmp / "zb-h2.toml", "--set", f"method={{plan='{plan}'}}", "--fidelity", "analytic")
        self.assertEqual(again["method"], "zb-h2")

    def test_trained_weights_are_those_of_1f1b(self):
        weights = {}
        for method in ("1f1b", "zb-h1", "zb-h2"):
            keys = {"method": f'{{name="{method}",pp=2,micro_batches=4}}', "train.out": str(self.tmp / method), "train.steps": 6}
            self.json("train", self.job(), "--nproc", "2", *sets(keys))
            weights[method] = {p.name: p.read_bytes() for p in (self.tmp / method / "step-00000006").glob("*.safetensors")}
            self.assertTrue(weights[method])
        self.assertEqual(weights["1f1b"], weights["zb-h1"])
        self.assertEqual(weights["1f1b"], weights["zb-h2"])

    def test_recomputation_is_refused(self):
        keys = {"method": '{name="zb-h1",pp=2,micro_batches=4,recompute=true}', "cluster.world_size": 2}
        said = self.refused("simulate", self.job(), *sets(keys))
        self.assertIn('key "method.recompute": true does not combine with method "zb-h1"', said)
