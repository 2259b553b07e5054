"""method.precision fp8: faster predictions that say what they are, refusals by the device's name, plan files, and no training."""

from cli_test_case import ROOT, CliTestCase

NEMO = ROOT / "experiments/what-if/nemo-fp8.toml"
JOB = """model = { name = "gpt2-1.5b", layers = 4 }
cluster.name = "dgx-h100:1"
method = { name = "ddp", precision = "fp8" }
train.global_batch = 64
"""
ANALYTIC = ("--fidelity", "analytic")


class Fp8(CliTestCase):
    def planned(self):
        """A plan file, and a job that names it."""
        out = self.tmp / "planned.toml"
        done = self.rehearse("plan", self.job(JOB), "-o", out)
        self.assertIn("FP8 products", done.stdout)
        return out, self.job(JOB.replace('{ name = "ddp", precision = "fp8" }', f'{{ plan = "{out}" }}'), "by-plan.toml")

    def seconds(self, job, *more):
        return self.json("simulate", job, *ANALYTIC, *more)["step_time_s"]["mean"]

    def test_products_are_faster_and_the_result_says_why(self):
        job = self.job(JOB)
        one = self.json("simulate", job, *ANALYTIC)
        self.assertEqual((one["precision"], one["calibrated"]), ("fp8", False))
        self.assertRegex(self.rehearse("simulate", job, *ANALYTIC).stdout, r"\nMFU +[\d.]+% of the FP8 peak  uncalibrated\n")
        self.assertTrue(any("FP8" in words for words in one["warnings"]), one["warnings"])
        bf16 = self.seconds(job, "--set", "method.precision=bf16")
        self.assertTrue(1.05 < bf16 / one["step_time_s"]["mean"] < 2, bf16)
        # The sums over ranks stay in bf16.
        sent = self.json("simulate", job, *ANALYTIC, "--set", "method.precision=bf16")
        self.assertEqual(sent["bytes_sent_per_rank"], one["bytes_sent_per_rank"])

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
        out, job = self.planned()
        text = out.read_text()
        self.assertIn('precision = "bf16"\nfp8 = true\n', text)
        self.assertEqual(self.json("simulate", job, *ANALYTIC)["precision"], "fp8")
        out.write_text(text.replace('precision = "bf16"', 'precision = "f32"'))
        self.refused("simulate", job, *ANALYTIC, says=["planned.toml", "fp8", 'needs precision = "bf16"'])

    def test_the_program_says_it(self):
        job = self.job(JOB)
        fp8, bf16 = (self.rehearse("program", job, "--set", f"method.precision={p}").stdout.splitlines() for p in ("fp8", "bf16"))
        self.assertEqual([line for line in fp8 if line != "precision fp8"], bf16)
        self.assertEqual(fp8.count("precision fp8"), 1)

    def test_other_methods_are_compared_in_it(self):
        job = self.job(JOB)
        for which in (job, self.planned()[1]):
            with self.subTest(which):
                results = self.json("compare", which, "--methods", "zero1,1f1b", *ANALYTIC)["results"]
                self.assertEqual([one["precision"] for one in results], ["fp8", "fp8"])
                (zero1,) = (one for one in results if one["method"] == "zero1")
                self.assertEqual(zero1["step_time_s"]["mean"], self.seconds(job, "--set", "method.name=zero1"))

    def test_it_is_not_trained_or_profiled(self):
        job = self.job(JOB)
        self.refused("train", job, "--nproc", "8", says=["method.precision", "simulated only", 'nearest: "bf16"'])
        self.rehearse("profile", "--cluster", "dgx-h100:1", "--precision", "fp8", "-o", self.tmp / "p.json", expect=2)

    def test_nemo(self):
        """The page says 16,847 tokens/s a GPU; docs/accuracy.md has the prediction."""
        one = self.json("simulate", NEMO, *ANALYTIC)
        self.assertAlmostEqual(one["tokens_per_s"] / 8 / 16847, 1, delta=0.15)
