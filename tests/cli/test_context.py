"""Context parallelism through the commands: ring, zigzag and ulysses simulated at 128 k tokens and really run at 2 k, plans, refusals."""

import json

import pytest
from cli_test_case import ROOT
from cli_test_train_data import TOKENS, TrainingCase
from recovery_case import sets

LONG = ROOT / "experiments/what-if/llama3-128k.toml"
GPT = """family = "gpt"
layers = 2
hidden = 64
heads = 4
vocab = 512
seq_len = 2048
"""
REAL = """model.name = "{model}"
cluster.name = "this-machine"
method = {{ name = "ddp" }}
train = {{ global_batch = 2, steps = 3, seq_len = 2048, lr = 1e-2, data = "{tokens}" }}
run = {{ threads = 1, timeout = "10min" }}
"""
WAYS = ("ring", "zigzag", "ulysses")


class Context(TrainingCase):
    def simulated(self, **keys):
        return self.json("simulate", LONG, *sets({"method." + key: value for key, value in keys.items()}))

    def test_zigzag_balances_what_a_plain_ring_does_not(self):
        ring, zigzag = (self.simulated(context=way)["step_time_s"]["mean"] for way in ("ring", "zigzag"))
        # Attention is most of the work, and the last rank of a plain ring of 8 has 15/8 of its share of it.
        self.assertGreater(ring / zigzag, 1.4)
        self.assertLess(ring / zigzag, 15 / 8)
        # The figures of docs/methods.md.
        self.assertAlmostEqual(ring, 22.1, delta=0.1)
        self.assertAlmostEqual(zigzag, 12.6, delta=0.1)

    def test_a_sequence_that_one_device_cannot_hold_fits_on_eight(self):
        self.simulated(context="zigzag")
        alone = ("--set", "method.cp=1", "--set", "cluster.world_size=1", "--set", "method.context=ring")
        self.refused("simulate", LONG, *alone, says=["memory:", "needs", "zero3"])

    def real(self, model, name, **keys):
        text = REAL.format(model=model, tokens=TOKENS)
        job = self.tmp / "real.toml"
        job.write_text(text)
        out = self.tmp / name
        nproc = keys.get("method.cp", 1) * keys.get("method.tp", 1)
        run = self.json("train", job, "--nproc", nproc, *sets(keys | {"train.out": out, "cluster.world_size": nproc}))
        rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return run, [row["loss"] for row in rows if "loss" in row]

    def expect_simulated_bytes(self, model, keys, sent):
        """Two of the three steps of a run; evaluations exchange keys and values, too, and are equal in a run of one step."""
        one, _ = self.real(model, f"one-{keys['method.context']}-{len(str(model))}", **keys, **{"train.steps": 1})
        found = self.json("simulate", self.tmp / "real.toml", *sets(keys | {"cluster.world_size": keys["method.cp"]}))
        self.assertEqual(found["bytes_sent_per_rank"]["mean"] * 2, sent - one["bytes_sent_by_rank_0"])

    @pytest.mark.long
    def test_ranks_that_divide_sequences_learn_what_one_rank_learns(self):
        gpt = self.tmp / "gpt-2k.toml"
        gpt.write_text(GPT)
        for model in (gpt, "llama-tiny"):
            _, alone = self.real(model, f"alone-{len(str(model))}")
            for way in WAYS:
                for cp in (2, 4):
                    if (model, way, cp) == ("llama-tiny", "ulysses", 4):
                        continue  # it has two key-value heads
                    with self.subTest(model=model, way=way, cp=cp):
                        keys = {"method.cp": cp, "method.context": way}
                        run, divided = self.real(model, f"{way}-{cp}-{len(str(model))}", **keys)
                        for one, other in zip(divided, alone, strict=True):
                            self.assertAlmostEqual(one / other, 1, delta=1e-4)
                        if cp == 2:
                            self.expect_simulated_bytes(model, keys, run["bytes_sent_by_rank_0"])

    def test_a_plan_file_keeps_how_sequences_are_divided(self):
        text = self.rehearse(
            "program", self.job(), *sets({"method.cp": 2, "method.dp": 1, "cluster.world_size": 2, "method.context": "zigzag"})
        ).stdout
        self.assertIn(" cp=2:zigzag ", text)
        self.assertIn("part=attend block=1", text)
        path = self.tmp / "ring.program"
        path.write_text(text)
        checked = self.rehearse("program", "--from", path, "--check").stdout
        self.assertIn("worker.1", checked)

    def test_refusals(self):
        for keys, says in (
            ({"cp": 3}, ["method.cp", "must divide the 2 ranks", "nearest: 2"]),
            ({"cp": 2, "context": "zigzag", "sequence": 66}, ["method.cp", "2 x cp", "nearest"]),
            ({"cp": 2, "context": "spiral"}, ["method.context", "ring", "zigzag", "ulysses"]),
            ({"cp": 2, "order": "pp,dp,tp"}, ["method.order", "cp"]),
            ({"cp": 2, "name": "horovod"}, ["method.cp", "horovod", "zero3"]),
            ({"cp": 2, "name": "adaptive"}, ["method.cp", "planner"]),
            ({"cp": 2, "model": "bert-tiny", "context": "zigzag"}, ["method.context", "both directions"]),
        ):
            names = {"sequence": "train.seq_len", "model": "model.name"}
            with self.subTest(**keys):
                given = {names.get(key, "method." + key): value for key, value in keys.items()} | {"method.dp": 1}
                given["cluster.world_size"] = 2
                self.refused("simulate", self.job(), *sets(given), says=says)
