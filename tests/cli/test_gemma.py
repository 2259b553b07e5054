"""Gemma 2 through the commands: it trains under every kind of parallelism that it has, each of its keys changes what is computed, and
predictions know which of its layers have a window and what software does with its caps."""

from cli_test_case import ROOT, CliTestCase
from cli_test_train_data import TrainingCase

TINY = (ROOT / "models/gemma2-tiny.toml").read_text()
SIMULATED = """model.name = "{model}"
cluster = {{ name = "dgx-a100:1", world_size = {ranks} }}
method = {{ name = "{method}", precision = "bf16" }}
train = {{ global_batch = 8, seq_len = 8192 }}
"""


class Train(TrainingCase):
    def train(self, *keys, ranks=2, model="gemma2-tiny", job=None, more=()):
        sets = [f"--set={key}" for key in (f"model.name={model}", *keys)]
        return self.json("train", job or self.job(8), "--nproc", ranks, *sets, *(more or ["--overwrite"]))

    def test_it_learns(self):
        """Over shards and pipelines, recomputed, in fp32 and bf16: from the same first loss."""
        first = []
        for keys in (
            ("method.name=zero3",),
            ("method.name=zero2", "method.precision=bf16"),
            ("method.name=1f1b", "method.dp=1", "method.pp=2", "method.micro_batches=2", "method.recompute=true"),
            ("method.name=zb-h1", "method.dp=1", "method.pp=2", "method.micro_batches=2"),
        ):
            with self.subTest(keys=keys):
                one = self.train(*keys)
                self.assertLess(one["last_loss"], one["first_loss"] - 0.2)
                first.append(one["first_loss"])
        self.assertLess(max(first) / min(first), 1.001)

    def test_it_goes_on_from_a_checkpoint(self):
        constant = "train.schedule=constant"  # otherwise the rate depends on the number of steps
        whole = self.train(constant)
        self.train("train.steps=4", constant)
        more = self.train("train.steps=8", constant, more=["--resume"])
        self.assertEqual((more["first_step"], more["losses"]), (4, whole["losses"][4:]))

    def test_each_key_changes_what_is_computed(self):
        """A model file without the key has another loss: the first one, or where weights begin as they are, that after a step."""
        losses = set()
        for number, (line, other) in enumerate(
            (
                ("", ""),
                ('activation = "geglu"', 'activation = "swiglu"'),
                ("norm_offset = true", "norm_offset = false"),
                ("output_norm = true", "output_norm = false"),
                ("scaled_embedding = true", "scaled_embedding = false"),
                ("query_scalar = 16", "query_scalar = 0"),
                ("attention_cap = 2", "attention_cap = 0"),
                ("logit_cap = 3", "logit_cap = 0"),
                ("global_every = 2", "global_every = 1"),
            )
        ):
            self.assertIn(line, TINY)
            path = self.tmp / f"model{number}.toml"
            path.write_text(TINY.replace(line, other))
            losses.add(tuple(self.train("method.dp=1", "train.steps=4", "train.lr=0.01", ranks=1, model=path)["losses"]))
        self.assertEqual(len(losses), 9)

    def test_what_divides_a_segment_is_refused(self):
        job = self.job()
        for keys, says in (
            (("method.name=megatron", "method.dp=1", "method.tp=2"), ["method.tp", "must be 1", "output_norm"]),
            (("method.name=ddp", "method.dp=1", "method.cp=2", "cluster.world_size=2"), ["method.cp", "must be 1", "output_norm"]),
        ):
            sets = [f"--set={key}" for key in ("model.name=gemma2-tiny", *keys)]
            self.refused("train", job, "--nproc", "2", *sets, says=says)


class Simulate(CliTestCase):
    def seconds(self, *keys, model="gemma2-2b", method="zero2", ranks=8):
        job = self.job(SIMULATED.format(model=model, method=method, ranks=ranks))
        sets = [f"--set={key}" for key in ("cluster.memory_reserve=0", *keys)]
        return self.json("simulate", job, "--fidelity", "analytic", *sets)["step_time_s"]["mean"]

    def test_the_sizes_run_in_a_simulation(self):
        times = [self.seconds("method.recompute=true", model=f"gemma2-{size}", method="zero3") for size in ("2b", "9b", "27b")]
        self.assertEqual(times, sorted(times))

    def test_half_of_the_layers_have_a_window(self):
        """With the window in all layers or in none, a step takes as much less as more."""
        text = (ROOT / "models/gemma2-2b.toml").read_text()
        times = {}
        for name, change in (("all", "global_every = 3000"), ("half", "global_every = 2"), ("none", "global_every = 1")):
            path = self.tmp / f"{name}.toml"
            path.write_text(text.replace("global_every = 2", change))
            times[name] = self.seconds("method.recompute=true", model=path)
        self.assertLess(times["all"], times["half"])
        self.assertAlmostEqual((times["all"] + times["none"]) / 2 / times["half"], 1, delta=1e-6)

    def test_caps_that_software_does_not_fuse_take_time(self):
        own = self.seconds("method.recompute=true")
        self.assertEqual(own, self.seconds("method.recompute=true", "software.kernels.soft_caps=fused"))
        self.assertGreater(self.seconds("method.recompute=true", "software.kernels.soft_caps=separate"), 1.2 * own)

    def test_the_planner_divides_no_segment(self):
        text = 'model.name = "gemma2-27b"\ncluster.name = "dgx-a100:2"\ntrain = { global_batch = 16, seq_len = 4096 }\n'
        job = self.job(text + 'method = { name = "adaptive", precision = "bf16" }\n')
        said = self.rehearse("plan", job, "--explain").stdout
        self.assertIn("tp must be 1: gemma2-27b has norms of what attention and feed-forward return", said)
