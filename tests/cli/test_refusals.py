"""Impossible jobs of any size are refused within seconds, and the refusal names what is possible. All commands respect the memory
reserve of a device."""

import re
import shlex

from cli_test_case import CliTestCase

BATCH = """model.name = "gpt2-1.5b"
cluster.name = "dgx1"
method.name = "zero3"
train.global_batch = 100000
"""
DEMO = """model.name = "gpt-demo"
cluster.name = "paper"
method.name = "1f1b"
"""
NEARLY_FULL = """model.name = "gpt2-1.5b"
cluster.name = "paper-homogeneous"
method.name = "zero2"
method.precision = "bf16"
method.recompute = true
train.global_batch = 64
"""


class Sizes(CliTestCase):
    def test_a_mesh_beyond_the_world(self):
        for cluster in ("paper", "this-machine", "dgx-h100:64"):
            job = self.job(DEMO)
            for command in ("simulate", "plan"):
                with self.subTest(cluster=cluster, command=command):
                    self.refused(
                        command,
                        job,
                        "--set",
                        f"cluster.name={cluster}",
                        "--set",
                        "method.pp=100000",
                        timeout=120,
                        says=['"method.pp"', "gpt-demo has 4; at most 4"],
                    )

    def advised(self, text):
        """The changes that are advised for a job that does not fit. They are followed: the job fits."""
        job = self.job(text)
        said = self.refused("simulate", job, "--fidelity", "analytic", says=["this would fit, with"])
        changes = re.search(r"this would fit, with [^:]*: (--set .*)$", said, re.M)[1]
        self.json("simulate", job, "--fidelity", "analytic", *shlex.split(changes))
        return changes

    def test_a_batch_beyond_memory_names_one_that_fits(self):
        self.assertIn("train.global_batch=", self.advised(BATCH))

    def test_advice_holds_for_a_job_that_states_its_micro_batch(self):
        self.advised(BATCH + "method.micro_batch = 100\n")

    def test_advice_can_be_followed(self):
        job = 'model.name = "{}"\ncluster.name = "{}"\nmethod = {{ name = "{}", precision = "{}"{} }}\ntrain.global_batch = {}\n'
        # The job states a level that the advised method does not have.
        self.assertIn("method.name=zero3", self.advised(job.format("llama-7b", "paper-homogeneous", "zero1", "fp16", ", zero = 1", 64)))
        # The name implied the optimizer on the host, which the advised method lacks.
        self.assertIn("method.offload=optimizer", self.advised(job.format("llama3-70b", "paper", "zero-offload", "fp16", "", 32)))
        # Many micro-batches of a pipeline, which take long to compile.
        long = self.advised(job.format("qwen2-1.5b", "server-4090", "1f1b", "fp16", "", 256))
        self.assertEqual(long, "--set method.micro_batches=128 --set method.recompute=true")
        # Not more micro-batches than are needed beside another change.
        self.assertEqual(
            self.advised(job.format("gpt2-1.5b", "server-4090", "ddp", "bf16", "", 64)), "--set method.zero=1 --set method.micro_batches=2"
        )

    def test_sizes_beyond_any_machine(self):
        job = self.job(DEMO.replace("1f1b", "ddp"))
        model = self.tmp / "tall.toml"
        model.write_text('family = "gpt"\nlayers = 1000000\nhidden = 64\nheads = 4\nvocab = 512\nseq_len = 64\n')
        for change, says in (
            (["method.micro_batches=2000000000"], ["micro_batches", "at most"]),
            (["train.global_batch=16777216"], ["memory", "this would fit"]),
            (["train.global_batch=16777216", "method.micro_batches=524289"], ["method.micro_batches", "at most"]),
            (["train.global_batch=2147483616"], ["train.global_batch", "to 16777216"]),
            (["method.tp=1048576"], ["method.tp", "nearest"]),
            (["cluster.world_size=1048576"], ["at most 32"]),
            (["train.seq_len=2147483647"], ["train.seq_len", "to 1048576"]),
            ([f"model.name={model}"], ["layers", "1000000 is out of range: must be from 1 to 10000"]),
            (["method.name=interleaved", "method.pp=2", "method.virtual_stages=1024"], ["virtual_stages", "layers"]),
            (["method.shares=[2147483647,2147483647]", "cluster.world_size=2"], ["shares"]),
        ):
            with self.subTest(change=change):
                sets = [word for key in change for word in ("--set", key)]
                self.refused("simulate", job, *sets, says=says)
        # A layer's gradients cannot be split, so there is one bucket per layer and not more ops than layers.
        self.rehearse("simulate", job, "--set", "method.bucket=1B", "--fidelity", "analytic")


class Reserve(CliTestCase):
    def test_every_command_goes_by_it(self):
        job = self.job(NEARLY_FULL)
        out = self.rehearse("simulate", job, "--fidelity", "analytic").stdout
        need, unit = re.search(r"peak memory +([\d.]+) (GB|MB) of 25.8 GB less 1.5 GB reserve", out).groups()
        need = float(need) * (1 if unit == "GB" else 1e-3)
        tight = f"cluster.memory_reserve={25.7 - need + 0.2:.2f}GB"
        self.refused("simulate", job, "--fidelity", "analytic", "--set", tight, says=["25.8 GB less", "reserve", "needs"])
        self.rehearse("compare", job, "--methods", "zero2", "--fidelity", "analytic", "--set", tight, expect=2)
        none = self.rehearse("simulate", job, "--fidelity", "analytic", "--set", "cluster.memory_reserve=0B").stdout
        self.assertRegex(none, r"peak memory +\S+ \S+ of 25.8 GB on RTX 4090")
        self.refused("plan", job, "--no-rescore", "--set", "cluster.memory_reserve=25.7GB", says=["memory binds", "less 25.7 GB reserve"])


class Values(CliTestCase):
    def test_a_number_of_more_than_64_bits(self):
        steps = "99999999999999999999"
        self.refused("simulate", self.job(), "--set", f"train.steps={steps}", says=[f"steps={steps}", "below 2^63"])

    def test_shares_by_speed_are_no_slower_than_their_neighbours(self):
        """Times do not grow in proportion to samples, so the neighbours of proportional shares may be better ones."""
        platform = self.tmp / "two.toml"
        platform.write_text(
            'summary = "x"\nsource = "x"\n[[nodes]]\ndevices = ["RTX 4090", "V100 PCIe 32GB"]\nparts = ["host"]\n'
            'links = [{ from = "gpu*", to = "host", bandwidth = "1PB/s", latency = "1ns" }]\n'
        )
        job = self.job(
            f'model.name = "gpt2-124m"\ncluster.name = "{platform}"\n'
            'method = { name = "ddp", precision = "fp16" }\ntrain.global_batch = 24\n'
        )
        times = [
            self.json("simulate", job, "--set", f"method.shares={s}")["step_time_s"]["mean"]
            for s in ("speed", *([n, 24 - n] for n in range(13, 20)))
        ]
        self.assertAlmostEqual(times[0], min(times[1:]))
        self.assertLessEqual(self.json("plan", job)["step_time_s"], min(times))

    def test_shares_of_too_few_replicas(self):
        self.refused(
            "simulate", self.job(), "--set", "method.shares=[1,1,2]", says=["method.shares", "a number for each replica", '"speed"']
        )

    def test_means_that_would_never_change(self):
        for key in ("beta1", "beta2"):
            self.refused("simulate", self.job(), "--set", f"train.{key}=1", says=[f"train.{key}", "must be from 0 to 0.999999999"])


class Collectives(CliTestCase):
    def test_their_algorithms_are_named(self):
        job = self.job(DEMO.replace("1f1b", "ddp"))
        one = self.json("simulate", job, "--fidelity", "analytic")
        [dp] = one["collectives"]
        self.assertEqual((dp["group"], dp["move"], dp["automatic"]), ("dp", "all_reduce", True))
        self.assertGreater(dp["ops"], 0)
        text = self.rehearse("simulate", job, "--fidelity", "analytic").stdout
        self.assertIn(f"dp all_reduce {dp['algorithm']} (automatic)", text)
        stated = self.json("simulate", job, "--fidelity", "analytic", "--set", "method.collective=ring")
        self.assertEqual(stated["collectives"], [{**dp, "algorithm": "ring", "automatic": False}])
        self.assertNotIn("automatic", self.rehearse("simulate", job, "--fidelity", "analytic", "--set", "method.collective=ring").stdout)
        # On a faster network another algorithm is the fastest, and it sends another number of bytes. The result shows why.
        zero = self.json("simulate", job, "--fidelity", "analytic", "--set", "method.name=zero3")
        self.assertEqual({c["group"] for c in zero["collectives"]}, {"dp", "dp.gather"})
