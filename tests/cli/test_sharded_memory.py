"""Memory of sharded data parallelism: it does not grow with micro-batches, and published runs that fitted fit (experiments/memory)."""

import pytest
from cli_test_case import ROOT, CliTestCase

FOLDER = ROOT / "experiments/memory"


class ShardedMemory(CliTestCase):
    def peak(self, job, **keys):
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        (peak,) = self.json("simulate", job, "--fidelity", "analytic", *sets, cwd=ROOT)["peak_memory_bytes"].values()
        return peak

    def test_it_does_not_grow_with_micro_batches(self):
        job = self.job('model.name = "gpt2-124m"\ncluster.name = "dgx1:1"\nmethod.name = "ddp"\n')
        for method in ("ddp", "zero1", "zero2", "zero3"):
            with self.subTest(method):
                few, many = (
                    self.peak(job, **{"method.name": method, "method.micro_batches": n, "train.global_batch": 8 * n}) for n in (2, 16)
                )
                # The batch and, with ZeRO 2 and 3, the shard that the second micro-batch is added to.
                self.assertLess(many, 1.03 * few)

    def test_bytes_of_a_published_run(self):
        for batch, measured in ((720, 53.8e9), (90, 19.7e9)):
            with self.subTest(batch=batch):
                self.assertAlmostEqual(self.peak(FOLDER / "175b.toml", **{"train.global_batch": batch}) / measured, 1, delta=0.1)

    @pytest.mark.long
    def test_sequence_parallel_runs_that_fitted_fit(self):
        for job in ("gpt-1t", "llama3-405b"):
            with self.subTest(job):
                self.assertLess(self.peak(FOLDER / f"{job}.toml"), 85.9e9 - 1.5e9)
        # Not with norms that every tensor rank keeps whole.
        words = ("--fidelity", "analytic", "--set", "software.memory.norms=kept")
        said = self.rehearse("simulate", FOLDER / "llama3-405b.toml", *words, expect=2, cwd=ROOT).stderr
        self.assertIn("needs 143 GB", said)

    def test_runs_that_fitted_fit(self):
        """Rows of llm-foundry's table: GPUs, sequences of a micro-batch, micro-batches."""
        for gpus, sequences, micro_batches in ((64, 8, 4), (32, 2, 16)):
            with self.subTest(gpus=gpus):
                keys = {"cluster.name": f"dgx-h100:{gpus // 8}", "method.micro_batches": micro_batches}
                self.peak(FOLDER / "mpt-70b.toml", **keys, **{"train.global_batch": gpus * sequences * micro_batches})
