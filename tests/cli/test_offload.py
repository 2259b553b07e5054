"""method.offload and zero-offload: less device memory in simulation, the same losses in real runs, and refusals that name what is
missing."""

import json

from cli_test_case import CliTestCase
from cli_test_train_data import TrainingCase
from recovery_case import sets

# One device with 32 GB, as in figure 7 of Ren et al. 2021.
NODE = """summary = "x"
source = "x"
[[nodes]]
devices = ["V100 PCIe 32GB"]
host_memory = "1.5TB"
host_link = "12GB/s"
host_bandwidth = "200GB/s"
parts = ["host"]
links = [{ from = "gpu*", to = "host", bandwidth = "12GB/s", latency = "5us" }]
"""
BIG = """model = {{ name = "gpt2-1.5b", layers = 40, hidden = 5120, heads = 40 }}
cluster.name = "{platform}"
method = {{ name = "ddp", precision = "fp16", recompute = true }}
train = {{ global_batch = 1, seq_len = 1024 }}
"""


class Offload(TrainingCase):
    def big(self, change=lambda text: text):
        platform = self.tmp / "node.toml"
        platform.write_text(change(NODE))
        return CliTestCase.job(self, BIG.format(platform=platform))

    def test_a_model_that_fits_only_so(self):
        """13 billion parameters on one device of 32 GB (Ren et al. 2021, figure 7). The refusal without it offers it."""
        job = self.big()
        self.refused("simulate", job, says=["--set method.offload=optimizer"])
        one = self.json("simulate", job, "--set", "method.offload=optimizer")
        self.assertLess(max(one["peak_memory_bytes"].values()), 32e9)
        small = self.big(lambda text: text.replace("1.5TB", "128GB"))
        self.refused("simulate", small, "--set", "method.offload=optimizer", says=["the host of node 0 has 128 GB", "for the optimizer"])

    def test_text(self):
        out = self.rehearse("simulate", self.big(), "--set", "method.offload=optimizer", "--explain").stdout
        for words in ("d2h copy", "h2d copy"):
            self.assertIn(words, out)

    def train(self, method, out, *more):
        keys = {"method": f'{{name="{method}",dp=2}}', "train.out": str(self.tmp / out), "train.steps": 6, "train.save_every": 3}
        self.json("train", self.job(), "--nproc", "2", *sets(keys), *more)
        return {p.name: p.read_bytes() for p in (self.tmp / out / "step-00000006").glob("*.safetensors")}

    def losses_of(self, out):
        rows = map(json.loads, (self.tmp / out / "metrics.jsonl").read_text().splitlines())
        return [row["loss"] for row in rows if "loss" in row]

    def test_trained_losses_are_those_of_zero2(self):
        self.train("zero2", "device")
        whole = self.train("zero-offload", "host")
        self.assertEqual(self.losses_of("device"), self.losses_of("host"))
        # A run that goes on from its third step ends with the same bits.
        self.train("zero-offload", "resumed", "--resume-from", str(self.tmp / "host/step-00000003"))
        resumed = {p.name: p.read_bytes() for p in (self.tmp / "resumed/step-00000006").glob("*.safetensors")}
        self.assertEqual(whole, resumed)

    def test_a_platform_that_does_not_say_how_fast_its_hosts_are(self):
        job = self.big(lambda text: text.replace('host_bandwidth = "200GB/s"\n', ""))
        keys = sets({"model.layers": 4})
        self.refused("simulate", job, *keys, "--set", "method.offload=optimizer", says=["nodes.host_bandwidth"])
        # Other methods of a comparison still stand in its table.
        out = self.rehearse("compare", job, *keys, "--methods", "ddp,zero-offload").stdout
        self.assertRegex(out, r"ddp +\d")
        self.assertIn("host_bandwidth", out)
