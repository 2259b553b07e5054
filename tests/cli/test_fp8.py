"""method.precision fp8: faster predictions that say what they are, refusals by the device's name, plan files, and no training."""

import json

from cli_test_case import ROOT, CliTestCase

NEMO = ROOT / "experiments/what-if/nemo-fp8.toml"
JOB = """model = { name = "gpt2-1.5b", layers = 4 }
cluster.name = "dgx-h100:1"
method = { name = "ddp", precision = "fp8" }
train.global_batch = 64
"""
ANALYTIC = ("--fidelity", "analytic")


class Fp8(CliTestCase):
    def seconds(self, job, *more):
        return self.json("simulate", job, *ANALYTIC, *more)["step_time_s"]["mean"]

    def test_products_are_faster_and_the_result_says_why(self):
        job = self.job(JOB)
        one = self.json("simulate", job, *ANALYTIC)
        self.assertEqual((one["precision"], one["calibrated"]), ("fp8", False))
        self.assertTrue(any("FP8" in words for words in one["warnings"]), one["warnings"])
        bf16 = self.seconds(job, "--set", "method.precision=bf16")
        self.assertTrue(1.05 < bf16 / one["step_time_s"]["mean"] < 2, bf16)
        # The sums over ranks stay in bf16.
        sent = self.json("simulate", job, *ANALYTIC, "--set", "method.precision=bf16")
        for key in ("bytes_sent_per_rank", "bytes_sent_total"):
            self.assertEqual(sent.get(key), one.get(key))

    def test_scaling(self):
        """Delayed scaling reads operands less often, and keeps 8-bit weights and inputs."""
        job = self.job(JOB)
        self.assertLess(self.seconds(job, "--set", "software.kernels.fp8=delayed"), self.seconds(job))
        self.refused("simulate", job, "--set", "software.kernels.fp8=static", says=["software.kernels.fp8", "dynamic, delayed"])
        bf16 = ("--set", "method.precision=bf16")
        self.assertEqual(self.seconds(job, *bf16, "--set", "software.kernels.fp8=delayed"), self.seconds(job, *bf16))

    def test_devices_without_it_are_named(self):
        job = self.job(JOB)
        for cluster, device, nearest in (
            ("dgx-a100:1", "A100 80GB of node0/gpu0", "bf16 would fit"),
            ("dgx1:1", "V100 SXM2 16GB of node0/gpu0", "fp32 or fp16 would fit"),
            ("tpu-v4:4x4x4", "TPU v4", "bf16 would fit"),
        ):
            with self.subTest(cluster):
                for command in ("simulate", "plan"):
                    self.refused(command, job, "--set", f"cluster.name={cluster}", says=["method.precision", device, "fp8", nearest])

    def test_a_plan_file_says_it(self):
        out = self.tmp / "planned.toml"
        done = self.rehearse("plan", self.job(JOB), *ANALYTIC, "-o", out)
        self.assertIn("FP8 products", done.stdout)
        text = out.read_text()
        self.assertIn('precision = "bf16"\nfp8 = true\n', text)
        self.assertEqual(self.json("simulate", out, *ANALYTIC)["precision"], "fp8")
        out.write_text(text.replace('precision = "bf16"', 'precision = "f32"'))
        self.assertIn("fp8", self.rehearse("simulate", out, *ANALYTIC, expect=2).stderr)

    def test_the_program_says_it(self):
        job = self.job(JOB)
        fp8, bf16 = (self.rehearse("program", job, "--set", f"method.precision={p}").stdout.splitlines() for p in ("fp8", "bf16"))
        self.assertEqual([line for line in fp8 if line != "precision fp8"], bf16)
        self.assertEqual(fp8.count("precision fp8"), 1)

    def test_other_methods_are_compared_in_it(self):
        job = self.job(JOB)
        compared = self.json("compare", job, "--methods", "zero1,zero3,1f1b", *ANALYTIC)
        self.assertNotIn("bf16", json.dumps([one.get("precision") for one in compared.get("results", [])]))
        self.assertEqual(compared.get("precision", "fp8"), "fp8")

    def test_it_is_not_trained_or_profiled(self):
        if "libtorch" in self.rehearse("train", "--help").stdout.lower():
            self.skipTest("no runtime in this build")
        job = self.job(JOB)
        self.refused("train", job, "--nproc", "8", says=["method.precision", "simulated only", 'nearest: "bf16"'])
        self.rehearse("profile", "--cluster", "dgx-h100:1", "--precision", "fp8", "-o", self.tmp / "p.json", expect=2)

    def test_nemo(self):
        """The page says 16,847 tokens/s a GPU; docs/accuracy.md has the prediction."""
        one = self.json("simulate", NEMO, *ANALYTIC)
        self.assertAlmostEqual(one["tokens_per_s"] / 8 / 16847, 1, delta=0.15)
