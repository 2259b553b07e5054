"""ZeRO 2 and 3 in pipelines, and stages of unequal numbers of layers, through the commands: bytes and memory in simulation, plans, real
runs that end as one rank does, checkpoints that go on elsewhere, refusals."""

from cli_test_train_data import TrainingCase
from recovery_case import sets

CLUSTER = """model.name = "llama-7b"
cluster.name = "dgx-a100:2"
method = { name = "1f1b", pp = 2, dp = 8, precision = "bf16", micro_batches = 8 }
train = { global_batch = 64, seq_len = 512 }
"""
N, M = 8, 8  # data-parallel ranks, micro-batches
P = 6738415616 / 2  # parameters of a stage, on average
TITAN = {"zero": 3, "keep_gathered": "true", "reduce_once": "true"}
LEVELS = ({"zero": 1}, {"zero": 2}, {"zero": 3}, TITAN)


class ZeroPipelines(TrainingCase):
    def of(self, command, *more, **keys):
        """The JSON output of a command for CLUSTER with these keys of [method]."""
        job = self.tmp / "cluster.toml"
        job.write_text(CLUSTER)
        return self.json(command, job, *more, *sets({f"method.{key}": value for key, value in keys.items()}))

    def analytic(self, *more, **keys):
        return self.of("simulate", "--fidelity", "analytic", *more, **keys)

    def test_bytes_and_memory_of_each_level(self):
        for method in ("1f1b", "interleaved"):
            with self.subTest(method):
                found = [self.analytic(name=method, **keys) for keys in LEVELS]
                sent = [one["bytes_sent_per_rank"]["mean"] for one in found]
                exchange = (N - 1) / N * P * 2
                # What a level exchanges beyond the two exchanges of level 1.
                for one, exchanges in zip(sent, (0, M - 1, 3 * M - 2, 0), strict=True):
                    self.assertAlmostEqual((one - sent[0]) / exchange, exchanges, delta=0.01 * M)
                memory = [max(one["peak_memory_bytes"].values()) for one in found]
                # Whole gradients or weights less their shards. Levels 2 and 3 have a few buckets and segments in their place.
                saved = [(memory[0] - one) / exchange for one in memory]
                for one, expected in zip(saved, (0, 1, 2, 0), strict=True):
                    self.assertAlmostEqual(one, expected, delta=0.25)
                roles = self.of("program", "--check", name=method, zero=3)["roles"]
                self.assertEqual(max(role["memory_bytes"]["total"] for role in roles), memory[2])

    def test_memory_does_not_grow_with_micro_batches(self):
        def peak(micro_batches, **keys):
            found = self.analytic("--set", f"train.global_batch={N * micro_batches}", micro_batches=micro_batches, **keys)
            return max(found["peak_memory_bytes"].values())

        for keys in LEVELS:
            for method in ("1f1b", "interleaved"):
                with self.subTest(method, **keys):
                    self.assertLess(peak(32, name=method, **keys), 1.02 * peak(8, name=method, **keys))

    def test_a_stated_level_is_planned(self):
        job, planned, out = (self.tmp / name for name in ("cluster.toml", "planned.toml", "plan.toml"))
        job.write_text(CLUSTER)
        planned.write_text(f'model.name = "llama-7b"\ncluster.name = "dgx-a100:2"\nmethod.plan = "{out}"\ntrain.seq_len = 512\n')
        for keys, said in (({"zero": 2}, "ZeRO-2"), (TITAN, "ZeRO-3, weights kept gathered, gradients reduced once")):
            with self.subTest(said):
                stated = sets({f"method.{key}": value for key, value in keys.items()})
                self.assertIn(said, self.rehearse("plan", job, "--no-rescore", "-o", out, *stated).stdout)
                # The plan file says all of it: the bytes of a step are those of the level.
                found = self.json("simulate", planned, "--fidelity", "analytic")["bytes_sent_per_rank"]["mean"]
                self.assertAlmostEqual(found / self.analytic(**keys)["bytes_sent_per_rank"]["mean"], 1, delta=0.05)

    def test_fewer_layers_on_the_ends(self):
        deep = {"pp": 8, "dp": 2, "micro_batches": 32}
        even = self.analytic(partition="layers", **deep)
        uneven = self.analytic(stage_layers="[4,4,4]", **deep)
        self.assertEqual(uneven["program_hash"], even["program_hash"])
        # The stage with the head is the slowest unless it has fewer layers.
        less = self.analytic("--set", "model.layers=30", stage_layers="[3,4,3]", **deep)
        more = self.analytic("--set", "model.layers=30", stage_layers="[4,4,4,4,4,4,3,3]", **deep)
        self.assertNotEqual(less["program_hash"], more["program_hash"])
        chunks = self.analytic(name="interleaved", virtual_stages=2, stage_layers="[0,1,2,2,2,2,2,3,3,3,2,2,2,2,2,2]", **deep)
        self.assertGreater(chunks["step_time_s"]["mean"], 0)

    def test_real_runs_end_as_one_rank_does(self):
        def run(out, steps=6, *more, **keys):
            keys = {f"method.{key}": value for key, value in {"micro_batches": 2, **keys}.items()}
            keys |= {"train.out": self.tmp / out, "train.schedule": "constant", "train.clip": 0.5}
            ranks = keys.get("method.pp", 1) * keys["method.dp"]
            return self.json("train", self.job(steps=steps), "--nproc", ranks, *sets(keys), *more)

        alone = run("alone", dp=1)
        self.assertLess(alone["last_loss"], alone["first_loss"] - 0.1)
        pipeline = {"name": "interleaved", "pp": 2, "dp": 2, "stage_layers": "[0,1,0]"}
        for name, keys in (("two", {"zero": 2}), ("three", {"zero": 3}), ("titan", TITAN)):
            with self.subTest(name):
                self.assertAlmostEqual(run(name, **pipeline, **keys)["last_loss"], alone["last_loss"], delta=1e-4)
        run("cut", 3, **pipeline, zero=3)
        on = run("cut", 6, "--resume", name="zero2", dp=2)
        self.assertEqual((on["first_step"], on["end_step"]), (3, 6))
        self.assertAlmostEqual(on["last_loss"], alone["last_loss"], delta=1e-4)

    def test_refusals(self):
        for keys, words in (
            ({"zero": 1, "reduce_once": "true"}, ["method.reduce_once", "needs ZeRO 2 or 3"]),
            ({"name": "zb-h1", "zero": 2}, ["method.zero", "at most 1"]),
            ({"stage_layers": "[16,17]"}, ["method.stage_layers", "[16, 17]", "the 32 layers of llama-7b, not to 33", "such as [16, 16]"]),
            ({"stage_layers": "[4,8,8,12]"}, ["method.stage_layers", "each of the 2 model chunks", "such as [16, 16]"]),
            ({"stage_layers": "[16,16]", "partition": "work"}, ["method.stage_layers", 'method.partition = "work"']),
        ):
            with self.subTest(**keys):
                job = self.tmp / "cluster.toml"
                job.write_text(CLUSTER)
                self.refused("simulate", job, *sets({f"method.{key}": value for key, value in keys.items()}), says=words)
