"""Memory of sharded data parallelism: it does not grow with micro-batches, and published runs that fitted fit (experiments/memory)."""

import pathlib
import re
import shlex

import pytest
from cli_test_case import ROOT, CliTestCase

FOLDER = ROOT / "experiments/memory"
SERVERS = """summary = "nodes of 8 RTX 4090"
source = "none"
scale = "nodes"
[[nodes]]
devices = ["RTX 4090", "RTX 4090", "RTX 4090", "RTX 4090", "RTX 4090", "RTX 4090", "RTX 4090", "RTX 4090"]
parts = ["host", "nic"]
links = [
  { from = "gpu*", to = "host", bandwidth = "15.5GB/s", latency = "5.8us" },
  { from = "host", to = "nic", bandwidth = "24GB/s", latency = "0.5us" },
  { from = "nic", to = "fabric", bandwidth = "25Gb/s", latency = "5us" },
]
"""
QUICK, SLOW = ("175b", "mpt-70b"), ("gpt-1t", "llama3-405b", "titan-405b")


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

    def test_advice_on_another_mesh_names_the_groups_of_its_replicas(self):
        (self.tmp / "servers.toml").write_text(SERVERS)
        job = self.job(
            'model.name = "mistral-nemo-12b"\n'
            f'cluster.name = "{self.tmp}/servers.toml:2"\n'
            "train = { global_batch = 64, seq_len = 4096 }\n"
            'method = { name = "hsdp", precision = "bf16" }\n'
        )
        said = self.rehearse("simulate", job, expect=2).stderr
        need, changes = re.search(r"this would fit, with ([\d.]+) GB: (--set .*)$", said).groups()
        self.assertIn("method.shard_group=", changes)
        peak = self.json("simulate", job, "--fidelity", "analytic", *shlex.split(changes))["peak_memory_bytes"]["RTX 4090"]
        self.assertAlmostEqual(peak / 1e9, float(need), delta=0.06)

    def test_advice_on_a_deep_model(self):
        """Recomputation with the most micro-batches has more passes than advice compiles: it is tried with fewer of them."""
        job = self.job(
            'model.name = "llama3-70b"\ncluster.name = "dgx-h100:4"\nmethod = { name = "megatron", tp = 8 }\ntrain.global_batch = 64\n'
        )
        said = self.refused("simulate", job, "--fidelity", "analytic", says=["this would fit, with"])
        self.rehearse("simulate", job, "--fidelity", "analytic", *said[said.index(": --set") + 2 :].split())

    def documented(self, *jobs):
        """Runs the commands of docs/accuracy.md on these jobs: the bytes of each, which are those of its row in the table before them."""
        text = (ROOT / "docs/accuracy.md").read_text()
        lines = re.findall(r"^rehearse (simulate experiments/memory/.*)$", text, re.M)
        table = text[: text.index(lines[0])].rsplit("| run |", 1)[1].splitlines()[2:]
        rows = [row.split("|") for row in table if row.startswith("|")]
        self.assertEqual({pathlib.Path(line.split()[1]).stem for line in lines}, set(QUICK + SLOW))
        found = []
        for line, (_, _, measured, predicted, _) in zip(lines, rows, strict=True):
            if pathlib.Path(line.split()[1]).stem not in jobs:
                continue
            with self.subTest(line):
                (peak,) = self.json(*shlex.split(line), cwd=ROOT)["peak_memory_bytes"].values()
                self.assertEqual(f"{peak / 1e9:.1f} GB", predicted.split(" of ")[0].strip())
                found.append((peak, measured.strip()))
        return found

    def test_published_runs(self):
        """Those that fitted fit. Of the others the bytes are close."""
        close = [(peak, float(measured.split()[0]) * 1e9) for peak, measured in self.documented(*QUICK) if measured != "it fitted"]
        self.assertEqual(len(close), 2)
        for (peak, measured), delta in zip(close, (0.25, 0.1), strict=True):
            self.assertAlmostEqual(peak / measured, 1, delta=delta)

    @pytest.mark.long
    def test_published_runs_of_many_stages(self):
        fitted = [peak for peak, measured in self.documented(*SLOW) if measured == "it fitted"]
        self.assertEqual(len(fitted), 2)
        self.assertLess(max(fitted), 85.9e9 - 1.5e9)
        # Not with norms that every tensor rank keeps whole.
        words = ("--fidelity", "analytic", "--set", "software.memory.norms=kept")
        said = self.rehearse("simulate", FOLDER / "llama3-405b.toml", *words, expect=2, cwd=ROOT).stderr
        self.assertIn("needs 143 GB", said)
