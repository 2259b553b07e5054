"""Recomputation of some layers, or of attention alone, through the commands: time against memory in simulation, and the bits of a real run
without recomputation."""

from cli_test_train_data import TrainingCase
from recovery_case import sets

CLUSTER = """model.name = "gpt2-124m"
cluster.name = "dgx-a100:1"
method = { name = "1f1b", pp = 2, micro_batches = 8 }
train.global_batch = 128
"""
SOME = {"layers": {"method.recompute_layers": 2}, "attention": {"method.recompute_unit": "attention"}}


class Recompute(TrainingCase):
    def test_some_take_less_time_and_more_memory_than_all(self):
        job = self.tmp / "cluster.toml"
        job.write_text(CLUSTER)

        def run(**keys):
            one = self.json("simulate", job, *sets({key.replace("__", "."): value for key, value in keys.items()}))
            return one["step_time_s"]["mean"], max(one["peak_memory_bytes"].values())

        none, every = run(), run(method__recompute="true")
        for what, keys in SOME.items():
            with self.subTest(what):
                some = run(method__recompute="true", **keys)
                self.assertTrue(none[0] < some[0] < every[0], (none, some, every))
                self.assertTrue(every[1] < some[1] < none[1], (none, some, every))
        # Each further layer takes the same time more: two chunks of six layers.
        times = [run(method__recompute="true", method__recompute_layers=n)[0] for n in (1, 2, 3)]
        self.assertAlmostEqual((times[2] - times[1]) / (times[1] - times[0]), 1, delta=0.1)

    def test_real_runs_have_the_bits_of_a_run_without(self):
        def weights(name, **keys):
            self.json("train", self.job(steps=5), "--nproc", 2, *sets({"train.out": self.tmp / name} | keys))
            return [p.read_bytes() for p in sorted((self.tmp / name / "step-00000005").glob("*.safetensors"))]

        plain = weights("plain")
        for what, keys in SOME.items():
            self.assertEqual(weights(what, **{"method.recompute": "true"}, **keys), plain, what)

    def test_refusals(self):
        self.refused("simulate", self.job(), "--set", "method.recompute_layers=-1", says=["method.recompute_layers", "-1"])
        self.refused("simulate", self.job(), "--set", "method.recompute_unit=mlp", says=["method.recompute_unit", "attention"])
