"""Shared code of tests that train: fixed token shards, a tiny job with two ranks."""

import json

from cli_test_case import ROOT, CliTestCase

# 213,000 tokens for gpt-tiny: the pages of docs/ as they were in November 2026, prepared by `data/prepare.py docs -o DIR --vocab-size 512`.
# They stay as they are, so that no edit of a page changes a loss.
TOKENS = ROOT / "tests/data/tokens"

JOB = """model.name = "gpt-tiny"
cluster.name = "this-machine"
method = {{ name = "ddp", dp = 2 }}
train = {{ global_batch = 8, steps = {steps}, lr = 1e-2, data = "{tokens}", out = "{out}" }}
run = {{ threads = 1, timeout = "10min" }}
"""

TWO_NODES = """summary = "two nodes of two ranks"
source = "a test"
[[nodes]]
count = 2
devices = ["CPU core", "CPU core"]
host_memory = "8GB"
host_link = "5GB/s"
parts = ["nic"]
links = [
  { from = "gpu*", to = "nic", bandwidth = "5GB/s", latency = "1us" },
  { from = "nic", to = "fabric", bandwidth = "10Gb/s", latency = "10us" },
]
"""


class TrainingCase(CliTestCase):
    def job(self, steps=12, more="", folder=None):
        folder = folder or self.tmp
        text = JOB.format(steps=steps, tokens=TOKENS, out=folder / "out")
        return super().job(text + more, name=folder / "job.toml")

    def losses(self, folder=None):
        """The losses that a run has written so far, by step."""
        path = (folder or self.tmp) / "out/metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row["loss"] for row in rows if "loss" in row]
