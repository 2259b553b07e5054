"""Methods that compress after some steps (powersgd, onebit-adam), and votes of signs, through the command: one job simulated and really
trained, losses and bytes before and after, going on from a checkpoint, refusals."""

import json

import pytest
from cli_test_train_data import TrainingCase

STEPS, BEFORE = 12, 4
PHASED = {"powersgd": {"start": BEFORE, "rank": 2}, "onebit-adam": {"freeze": BEFORE}}
FEWER = {"powersgd": 5, "onebit-adam": 31, "signsgd-majority": 31}  # how many times fewer bytes than ddp, at least


class Phases(TrainingCase):
    def run_of(self, command, method, *more, out=None, **keys):
        keys = {f"method.{key}": value for key, value in (PHASED.get(method, {}) | keys).items()}
        keys |= {"method.name": method, "train.out": str(self.tmp / (out or method))}
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(STEPS), *(("--nproc", 2) if command == "train" else ()), *sets, *more)

    def losses_of(self, out):
        rows = map(json.loads, (self.tmp / out / "metrics.jsonl").read_text().splitlines())
        return [row["loss"] for row in rows if "loss" in row]

    def test_losses_are_those_of_ddp_before_and_bytes_those_of_the_prediction_after(self):
        dense = self.run_of("simulate", "ddp")["bytes_sent_per_rank"]["mean"]
        self.run_of("train", "ddp")
        for method, times in FEWER.items():
            with self.subTest(method):
                found = self.run_of("simulate", method)
                sent = found["bytes_sent_per_rank"]["mean"]
                self.assertGreater(dense / sent, times)
                before = BEFORE if method in PHASED else 0
                self.assertEqual(found.get("first_step", 0), before)
                real = self.run_of("train", method)
                self.assertEqual(real["bytes_sent_by_rank_0"], before * dense + (STEPS - before) * sent)
                if method != "onebit-adam":  # four steps are too few for its second moment
                    self.assertLess(real["last_loss"], real["first_loss"] - 0.3)
                losses, of_ddp = self.losses_of(method), self.losses_of("ddp")
                self.assertEqual(losses[: before + 1], of_ddp[: before + 1])
                self.assertNotEqual(losses[before + 1 :], of_ddp[before + 1 :])

    def test_a_prediction_does_not_depend_on_how_many_steps_are_left_out(self):
        for method, key in (("powersgd", "start"), ("onebit-adam", "freeze")):
            with self.subTest(method):
                near = self.run_of("simulate", method, **{key: 2})
                for steps in (1000, 100_000):
                    far = self.run_of("simulate", method, **{key: steps})
                    self.assertEqual(far["first_step"], steps)
                    self.assertEqual(far["step_time_s"], near["step_time_s"])
                    self.assertEqual(far["bytes_sent_per_rank"], near["bytes_sent_per_rank"])
        said = self.rehearse("simulate", self.job(), "--set", "method.name=powersgd").stdout
        self.assertIn("from step 1000 on", said)
        said = self.rehearse("simulate", self.job(), "--set", "method.name=onebit-adam").stdout
        self.assertIn("from step 100000 on", said)

    def test_momenta_sent_as_signs_learn(self):
        more = ("--set", "train.steps=40", "--set", "train.lr=1e-3")
        self.run_of("train", "onebit-adam", *more, freeze=20)
        losses = self.losses_of("onebit-adam")
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertLess(losses[-1], losses[20])

    def test_ranks_change_the_bytes(self):
        def sent(**keys):
            return self.run_of("simulate", "powersgd", **keys)["bytes_sent_per_rank"]["mean"]

        one, two, four = (sent(rank=rank) for rank in (1, 2, 4))
        self.assertAlmostEqual((four - two) / (two - one), 2, delta=0.1)
        self.assertEqual(sent(rank=1, warm_start="false", error_feedback="false", start=0), one)

    @pytest.mark.long
    def test_a_run_goes_on_as_if_it_had_not_stopped(self):
        def weights(out):
            return {p.name: p.read_bytes() for p in (self.tmp / out / "step-00000009").glob("*.safetensors")}

        for method in PHASED:
            for stop in (3, 6):  # before it compresses, and while it does
                with self.subTest(method=method, stop=stop):
                    constant = ("--set", "train.schedule=constant")
                    whole, cut = f"whole-{method}-{stop}", f"cut-{method}-{stop}"
                    self.run_of("train", method, *constant, "--set", "train.steps=9", out=whole)
                    self.run_of("train", method, *constant, "--set", f"train.steps={stop}", out=cut)
                    on = self.run_of("train", method, *constant, "--set", "train.steps=9", "--resume", out=cut)
                    self.assertEqual((on["first_step"], on["end_step"]), (stop, 9))
                    self.assertTrue(weights(whole))
                    self.assertEqual(weights(cut), weights(whole))

    def test_methods_are_compared_with_one_command(self):
        methods = "ddp,powersgd,onebit-adam,signsgd-majority"
        rows = {row["method"]: row for row in self.json("compare", self.job(), "--methods", methods)["results"]}
        dense = rows["ddp"]["bytes_sent_per_rank"]["mean"]
        for method, times in FEWER.items():
            self.assertGreater(dense / rows[method]["bytes_sent_per_rank"]["mean"], times, method)

    def test_refusals(self):
        for method, key, value, words in (
            ("ddp", "method.rank", "4", ["method.rank", "not sent as factors", "powersgd"]),
            ("ddp", "method.freeze", "4", ["method.freeze", "onebit-adam"]),
            ("onebit-adam", "method.start", "4", ["method.start", "powersgd"]),
            ("powersgd", "method.start", "1", ["method.start", "at least 2", "nearest: 2"]),
            ("powersgd", "method.rank", "0", ["method.rank", "1"]),
            ("powersgd", "method.bits", "1", ["method.bits", "not quantised"]),
            ("powersgd", "method.zero", "1", ["method.zero", "at most 0"]),
            ("powersgd", "method.precision", "fp16", ["method.precision", "bf16"]),
            ("onebit-adam", "method.bits", "4", ["method.bits", "codes of 1 bits"]),
            ("onebit-adam", "method.freeze", "0", ["method.freeze", "1"]),
            ("onebit-adam", "train.optimizer", "sgd", ["train.optimizer", "kind of Adam", "adamw"]),
            ("onebit-adam", "train.clip", "1", ["train.clip", "onebit-adam"]),
            ("signsgd-majority", "method.error_feedback", "true", ["method.error_feedback", "no scale"]),
            ("signsgd-majority", "method.block", "64", ["method.block", "no scales"]),
        ):
            with self.subTest(method=method, key=key):
                given = ("--set", f"method.name={method}", "--set", f"{key}={value}")
                self.refused("simulate", self.job(), *given, says=words)
