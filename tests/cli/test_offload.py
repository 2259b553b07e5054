"""What is on the host, the optimizer (method.offload, zero-offload) or activations (method.offload_activations): less device memory in
simulation, the same losses in real runs, and refusals that name what is missing."""

import json
import re
import shlex

from cli_test_case import ROOT, CliTestCase
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


class Activations(TrainingCase):
    ON = ("--set", "method.offload_activations=true")

    def long(self, change=lambda text: text):
        """256 small layers over a sequence of 65,536 tokens on one device of 32 GB."""
        platform = self.tmp / "node.toml"
        platform.write_text(change(NODE))
        job = BIG.format(platform=platform).replace("seq_len = 1024", "seq_len = 65536")
        model = "layers = 256, hidden = 512, heads = 8, ffn = 2048, vocab = 1024, max_positions = 65536"
        return CliTestCase.job(self, job.replace("layers = 40, hidden = 5120, heads = 40", model))

    def test_a_job_that_fits_only_so(self):
        """The inputs of attention and MLP are 67 MB each, and the refusal without it offers it."""
        job = self.long()
        self.refused("simulate", job, says=["activations", "--set method.offload_activations=true"])
        one = self.json("simulate", job, *self.ON)
        self.assertLess(max(one["peak_memory_bytes"].values()), 32e9)
        # Those of the head and of the last MLP stay.
        self.assertEqual(one["host_memory_bytes"], (2 * 256 - 1) * 65536 * 512 * 2)
        small = self.long(lambda text: text.replace("1.5TB", "8GB"))
        self.refused("simulate", small, *self.ON, says=["the host of node 0 has 8 GB", "for activations"])

    def exposed(self):
        """A job whose copies take longer than its passes."""
        return self.long(lambda text: text.replace('host_link = "12GB/s"', 'host_link = "50MB/s"'))

    def test_text(self):
        out = self.rehearse("simulate", self.exposed(), *self.ON, "--explain").stdout
        for words in (
            r"host memory +34\.3 GB of 1\.5 TB on node 0",
            "copies to and from the host",
            "act.d2h copy",
            "hosts: link to a device",
        ):
            self.assertRegex(out, words)

    def test_explained_communication_has_no_copies(self):
        """Copies between host and device are no communication of ranks."""
        one = self.json("simulate", self.exposed(), *self.ON, "--explain", "--fidelity", "analytic")
        self.assertEqual(one["explain"]["exposed_comm_s"], one["exposed_comm_s"])
        self.assertIn("host_copy", [part["kind"] for part in one["explain"]["parts"]])
        gain = one["explain"]["ten_percent_more"][0]
        self.assertEqual(gain["resource"], "hosts: link to a device")
        self.assertGreater(gain["saved"], 0.05)

    def test_report(self):
        report = self.tmp / "report.html"
        self.rehearse("simulate", self.exposed(), *self.ON, "--explain", "--report", report)
        self.assertIn("<h2>Where the step goes</h2>", report.read_text())

    def test_documented_figures(self):
        rows = re.findall(
            r"\| ([\d.]+) s \| ([\d.]+) GB \|(.*)\| `rehearse (simulate .*activations-on-host.*)` \|",
            (ROOT / "docs/methods.md").read_text(),
        )
        self.assertEqual(len(rows), 3)
        for step, device, host, command in rows:
            one = self.json(*shlex.split(command), cwd=ROOT)
            self.assertEqual(float(step), float(f"{one['step_time_s']['mean']:.3g}"))
            self.assertEqual(float(device), float(f"{max(one['peak_memory_bytes'].values()) / 1e9:.3g}"))
            said = "" if one["host_memory_bytes"] is None else f"{one['host_memory_bytes'] / 1e9:.3g} GB".replace("1.14e+03 GB", "1.14 TB")
            self.assertEqual(host.strip(), said)

    def test_plans(self):
        out = self.rehearse("plan", self.long(), "--set", "method.dp=1").stdout
        self.assertIn("activations on the host", out)

    def test_keys(self):
        job = self.long()
        self.refused(
            "simulate", job, *self.ON, "--set", "method.offload_layers=257", says=["method.offload_layers", "256 layers; at most 256"]
        )
        out = self.rehearse("simulate", job, "--set", "train.seq_len=1024", "--set", "method.offload_ahead=3")
        self.assertIn("method.offload_ahead: 3 has no effect where offload_activations is false", out.stdout + out.stderr)
        silent = self.long(
            lambda text: text.replace('host_link = "12GB/s"\n', "").replace('host_memory = "1.5TB"\n', "").split("parts = ")[0]
        )
        self.refused("simulate", silent, *self.ON, says=["method.offload_activations", "nodes.host_link"])

    def test_trained_losses_are_those_without(self):
        for method, more in {"ddp": {}, "1f1b": {"method.pp": 2, "method.dp": 1}}.items():
            runs = []
            for on in ("false", "true"):
                keys = {"method.name": method, "method.dp": 2, "method.micro_batches": 2, "train.steps": 4, "train.save_every": 4}
                keys |= more | {"method.offload_activations": on, "method.offload_ahead": 1, "train.out": str(self.tmp / (method + on))}
                self.json("train", self.job(), "--nproc", "2", *sets(keys))
                runs.append(sorted(p.read_bytes() for p in (self.tmp / (method + on) / "step-00000004").glob("*.safetensors")))
            self.assertEqual(*runs)
