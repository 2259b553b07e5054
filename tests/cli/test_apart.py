"""Methods whose ranks train apart, through the command: one job simulated and really trained, bytes of both, steps that differ, going on
from a checkpoint on as many ranks and on others, and refusals."""

import json
import shutil

import pytest
from cli_test_case import ROOT
from cli_test_train_data import TrainingCase

METHODS = ("local-sgd", "diloco", "d-psgd")


class Apart(TrainingCase):
    def run_of(self, command, method, *more, out=None, ranks=2, **keys):
        keys = {"method.name": method, "train.out": str(self.tmp / (out or method)), "cluster.world_size": ranks, "method.dp": ranks} | keys
        if method == "diloco":
            keys = {"method.local_steps": 4} | keys
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(), *(("--nproc", ranks) if command == "train" else ()), *sets, *more)

    def test_real_and_simulated_runs_send_the_same_bytes(self):
        sent, learnt = {}, {}
        for method in ("ddp", *METHODS):
            with self.subTest(method):
                found = self.run_of("simulate", method)["bytes_sent_per_rank"]
                real = self.run_of("train", method)
                self.assertEqual(found["mean"], found["max"])
                self.assertEqual(real["bytes_sent_by_rank_0"], 12 * found["mean"])  # three exchanges every 4 steps
                self.assertLess(real["last_loss"], real["first_loss"] - 0.2)
                sent[method], learnt[method] = found["mean"], real["last_loss"]
        # 2 (n-1)/n P b with n = 2; every fourth step; once to the one neighbour.
        self.assertEqual(sent["local-sgd"], sent["ddp"] / 4)
        self.assertEqual(sent["diloco"], sent["ddp"] / 4)
        self.assertEqual(sent["d-psgd"], sent["ddp"])

    def test_every_step_and_sgd_are_ddp(self):
        one = {"train.optimizer": "sgd", "train.lr": 0.1}
        ddp = self.run_of("train", "ddp", **one)["last_loss"]
        local = self.run_of("train", "local-sgd", **one, **{"method.local_steps": 1})["last_loss"]
        self.assertAlmostEqual(local / ddp, 1, delta=1e-5)
        bf16 = one | {"method.precision": "bf16"}
        ddp = self.run_of("train", "ddp", out="ddp16", **bf16)["last_loss"]
        local = self.run_of("train", "local-sgd", out="local16", **bf16, **{"method.local_steps": 1})["last_loss"]
        self.assertAlmostEqual(local / ddp, 1, delta=1e-3)
        outer = {"method.local_steps": 4, "method.outer_lr": 1, "method.outer_momentum": 0}
        diloco = self.run_of("train", "diloco", **one, **outer)["last_loss"]
        local = self.run_of("train", "local-sgd", out="rarely", **one, **{"method.local_steps": 4})["last_loss"]
        self.assertAlmostEqual(diloco / local, 1, delta=1e-5)

    def test_simulated_steps_are_whole_periods_and_executors_agree(self):
        for method in METHODS:
            with self.subTest(method):
                means = [
                    self.run_of("simulate", method, "--fidelity", fidelity)["step_time_s"]["mean"]
                    for fidelity in ("analytic", "fluid", "chunk")
                ]
                self.assertAlmostEqual(means[1] / means[0], 1, delta=0.02)
                self.assertAlmostEqual(means[2] / means[0], 1, delta=0.05)
        found = self.run_of("simulate", "diloco", "--fidelity", "analytic", **{"method.local_steps": 30})
        self.assertEqual(found["steps"]["most"] % 30, 0)
        self.assertEqual(found["warnings"], [w for w in found["warnings"] if "too rare" not in w])
        rare = self.run_of("simulate", "diloco", "--fidelity", "analytic", **{"method.local_steps": 2000})
        self.assertIn("exchanges every 2000 steps are too rare: no simulated step has one", rare["warnings"])

    def test_more_local_steps_than_the_run_has(self):
        stated = {"method.local_steps": 20, "train.steps": 12}
        warned = "method.local_steps: 20: in train.steps = 12 ranks would never exchange weights"
        said = self.run_of("simulate", "local-sgd", "--fidelity", "analytic", **stated)["warnings"]
        self.assertEqual([one.split(",")[0] for one in said if "never exchange" in one], [warned])
        fits = self.run_of("simulate", "local-sgd", "--fidelity", "analytic", **stated | {"train.steps": 20})["warnings"]
        self.assertFalse([one for one in fits if "never exchange" in one])

    def test_a_run_goes_on_as_if_it_had_not_stopped(self):
        def state(out, step):
            return {p.name: p.read_bytes() for p in (self.tmp / out / f"step-{step:08}").glob("*.safetensors")}

        for method in METHODS:
            with self.subTest(method):
                keys = {"train.schedule": "constant"}
                whole, cut = f"whole-{method}", f"cut-{method}"
                self.run_of("train", method, out=whole, **keys, **{"train.steps": 11})
                self.run_of("train", method, out=cut, **keys, **{"train.steps": 6})
                on = self.run_of("train", method, "--resume", out=cut, **keys, **{"train.steps": 11})
                self.assertEqual((on["first_step"], on["end_step"]), (6, 11))
                self.assertEqual(len(state(whole, 11)), 2)  # each rank saves its own
                self.assertEqual(state(cut, 11), state(whole, 11))
                manifest = json.loads((self.tmp / cut / "step-00000011/manifest.json").read_text())
                self.assertEqual(method == "diloco", '"anchor"' in json.dumps(manifest))
                self.assertIn('"copy": 1', json.dumps(manifest))

    @pytest.mark.long
    def test_on_another_number_of_ranks_all_begin_with_the_mean(self):
        for method in METHODS:
            with self.subTest(method):
                constant = {"train.schedule": "constant"}
                whole = self.run_of("train", method, out=f"whole-{method}", **constant, **{"train.steps": 7})
                self.run_of("train", method, out=f"more-{method}", **constant, **{"train.steps": 6})
                on = self.run_of("train", method, "--resume", out=f"more-{method}", ranks=4, **constant, **{"train.steps": 12})
                self.assertEqual((on["first_step"], on["end_step"]), (6, 12))
                # The loss at the mean of the weights, of the same samples as in the run on two ranks.
                self.assertAlmostEqual(on["first_loss"] / whole["last_loss"], 1, delta=0.01)
                # So does another method, with the loss that this one would have had.
                shutil.copytree(self.tmp / f"more-{method}", self.tmp / f"ddp-{method}")
                more = self.run_of("train", method, "--resume", out=f"more-{method}", ranks=4, **constant, **{"train.steps": 13})
                alone = self.run_of("train", "ddp", "--resume", out=f"ddp-{method}", ranks=1, **constant, **{"train.steps": 13})
                self.assertEqual(alone["first_step"], 12)
                self.assertAlmostEqual(alone["first_loss"] / more["last_loss"], 1, delta=0.01)

    def test_exchanges_pay_on_a_slow_network(self):
        """The example of docs/methods.md."""
        job, cluster = "experiments/what-if/gpt2.toml", "cluster.links.network.bandwidth=10Gb/s"

        def step(method, *more):
            given = ("--set", f"method.name={method}", "--set", cluster, *more, "--fidelity", "analytic")
            return self.json("simulate", job, *given, cwd=ROOT)["step_time_s"]["mean"]

        ddp = step("ddp")
        self.assertLess(step("local-sgd", "--set", "method.local_steps=8"), 0.9 * ddp)
        self.assertLess(step("local-sgd", "--set", "method.local_steps=32"), step("local-sgd", "--set", "method.local_steps=8"))

    def test_refusals(self):
        for method, key, value, words in (
            ("ddp", "local_steps", "4", ["method.local_steps", "diloco, fedavg, local-sgd"]),
            ("local-sgd", "outer_lr", "0.5", ["method.outer_lr", "diloco"]),
            ("local-sgd", "local_steps", "0", ["method.local_steps", "1"]),
            ("d-psgd", "local_steps", "4", ["method.local_steps"]),
            ("d-psgd", "graph", "rign", ["method.graph", "ring"]),
            ("d-psgd", "degree", "2", ["method.degree", "random graph"]),
            ("diloco", "outer_momentum", "1", ["method.outer_momentum"]),
            ("diloco", "zero", "1", ["method.zero", "at most 0"]),
            ("local-sgd", "shares", "[6, 2]", ["method.shares", "equally many"]),
            ("local-sgd", "precision", "fp16", ["method.precision", "bf16"]),
            ("d-psgd", "offload", "optimizer", ["method.offload", "must be none"]),
            ("diloco", "pp", "2", ["method.pp", "pp must be 1"]),
        ):
            with self.subTest(method=method, key=key):
                given = ("--set", f"method.name={method}", "--set", f"method.{key}={value}")
                self.refused("simulate", self.job(), *given, says=words)
        self.refused(
            "simulate", self.job(), "--set", "method.name=local-sgd", "--set", "train.clip=1", says=["train.clip", "no common norm"]
        )
        never = ("--set", "method.name=diloco", "--nproc", 2)
        self.refused("train", self.job(), *never, says=["method.local_steps: 500 by default with diloco", "train.steps = 12", "at most 12"])
        random = ("--set", "method.name=d-psgd", "--set", "method.graph=random", "--set", "method.degree=7")
        self.refused("simulate", self.job(), *random, says=["method.degree", "at most as many neighbours", "nearest: 1"])
