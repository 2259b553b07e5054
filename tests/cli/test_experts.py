"""Mixtures of experts (model.experts): predicted memory, time and MFU, keys, and runs whose losses do not depend on the mesh."""

import json
import re
import shlex

from cli_test_case import ROOT, CliTestCase
from cli_test_train_data import TrainingCase
from recovery_case import sets

LARGE = """model.name = "mixtral-8x7b"
cluster.name = "dgx-h100:4"
method = { name = "zero3", precision = "bf16", recompute = true, recompute_unit = "layer" }
train = { global_batch = 32, seq_len = 4096 }
"""


class Experts(TrainingCase):
    def large(self, *keys, command="simulate"):
        changes = [word for key in keys for word in ("--set", key)]
        return self.json(command, CliTestCase.job(self, LARGE), *changes)

    def test_predictions(self):
        """A mixture takes the state of all experts, and the time of those that a token passes."""
        mixture, one = self.large(), self.large("model.experts=0")
        fewer = self.large("model.experts_per_token=1")
        self.assertGreater(max(mixture["peak_memory_bytes"].values()), 1.5 * max(one["peak_memory_bytes"].values()))
        self.assertLess(fewer["step_time_s"]["mean"], mixture["step_time_s"]["mean"])
        self.assertFalse(mixture["calibrated"])
        out = self.rehearse("simulate", CliTestCase.job(self, LARGE), "--set", "software.name=pytorch-2.2").stdout
        self.assertIn("no constant was fitted to mixtures of experts", out)

    def test_many_small_experts_want_one_kernel(self):
        keys = ("model.name=qwen3-30b-a3b", "software.name=megatron-core")
        grouped, looped = self.large(*keys), self.large(*keys, "software.kernels.experts=looped")
        self.assertLess(1.2 * grouped["step_time_s"]["mean"], looped["step_time_s"]["mean"])

    def test_planned(self):
        """The plan keeps the state of all experts on devices of 80 GB, and runs."""
        plan, file = self.large(command="plan"), self.tmp / "plan.toml"
        self.assertIn("memory of H100", [row["constraint"] for row in plan["infeasible"]])
        self.rehearse("plan", CliTestCase.job(self, LARGE), "-o", file)
        planned = self.large("method=", f"method.plan={file}")
        self.assertLess(planned["step_time_s"]["mean"], self.large()["step_time_s"]["mean"])

    def test_keys(self):
        job = CliTestCase.job(self, LARGE)
        self.refused("simulate", job, "--set", "model.experts_per_token=9", says=["experts_per_token = 9", "at most experts = 8"])
        self.refused(
            "simulate",
            job,
            "--set",
            "model.name=bert-base",
            "--set",
            "model.experts=8",
            "--set",
            "train.seq_len=512",
            says=["experts = 8 is llama's alone"],
        )
        dense = self.json(
            "simulate", job, "--set", "model.name=llama3-8b", "--set", "model.experts=4", "--set", "model.experts_per_token=1"
        )
        self.assertEqual(dense["model"], "llama3-8b+experts=4,experts_per_token=1")

    def test_documented_figures(self):
        rows = re.findall(
            r"\| ([\d.]+) s \| ([\d.]+) GB \| ([\d.]+)% \| `rehearse (simulate .*what-if/experts.*)` \|",
            (ROOT / "docs/model.md").read_text(),
        )
        self.assertEqual(len(rows), 4)
        for step, device, mfu, command in rows:
            one = self.json(*shlex.split(command), cwd=ROOT)
            self.assertEqual(float(step), float(f"{one['step_time_s']['mean']:.3g}"))
            self.assertEqual(float(device), float(f"{max(one['peak_memory_bytes'].values()) / 1e9:.3g}"))
            self.assertEqual(float(mfu), float(f"{100 * one['mfu']:.3g}"))

    def run_of(self, name, **keys):
        keys = {key.replace("__", "."): value for key, value in keys.items()}
        out = self.tmp / name
        self.json("train", self.job(), "--nproc", "2", *sets({"model.name": "moe-tiny", "train.out": str(out), "train.steps": 6} | keys))
        return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]

    def test_losses_do_not_depend_on_the_mesh(self):
        first = self.run_of("ddp")
        self.assertLess(first[-1], 0.9 * first[0])
        for name, keys in {
            "zero3": {"method__name": "zero3", "method__micro_batches": 2},
            "megatron": {"method__name": "megatron", "method__dp": 1, "method__tp": 2, "method__sequence_parallel": "true"},
            "1f1b": {"method__name": "1f1b", "method__dp": 1, "method__pp": 2},
            "cp": {"method__dp": 1, "method__cp": 2},
        }.items():
            with self.subTest(name):
                for a, b in zip(first, self.run_of(name, **keys), strict=True):
                    self.assertAlmostEqual(a / b, 1, delta=2e-5)

    def test_balance_changes_gradients_and_not_the_first_loss(self):
        plain, balanced = self.run_of("plain"), self.run_of("balanced", model__router_aux_loss=0.5)
        self.assertEqual(plain[0], balanced[0])
        self.assertNotEqual(plain[-1], balanced[-1])
