"""Quantised gradients through the command: one job simulated and really trained, bytes of both, refusals, going on from a checkpoint."""

from cli_test_train_data import TrainingCase

FEWER = {"int8-sync": 3.9, "qsgd": 3.9, "ef-signsgd": 31}  # how many times fewer bytes than ddp, at least


class Quantised(TrainingCase):
    def run_of(self, command, method, *more, out=None):
        keys = {"method.name": method, "train.out": str(self.tmp / (out or method))}
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(), *(("--nproc", 2) if command == "train" else ()), *sets, *more)

    def test_real_and_simulated_runs_send_the_same_bytes_far_fewer_than_ddp(self):
        sent = {}
        for method in ("ddp", *FEWER):
            with self.subTest(method):
                found = self.run_of("simulate", method)["bytes_sent_per_rank"]
                real = self.run_of("train", method)
                self.assertEqual(found["mean"], found["max"])
                self.assertEqual(real["bytes_sent_by_rank_0"], 12 * found["mean"])
                self.assertLess(real["last_loss"], real["first_loss"] - 0.3)
                sent[method] = found["mean"]
        for method, times in FEWER.items():
            self.assertGreater(sent["ddp"] / sent[method], times, method)

    def test_bits_and_blocks_change_the_bytes(self):
        def sent(method, **keys):
            sets = [word for key, value in keys.items() for word in ("--set", f"method.{key}={value}")]
            return self.run_of("simulate", method, *sets)["bytes_sent_per_rank"]["mean"]

        whole = sent("qsgd")
        self.assertAlmostEqual(sent("qsgd", bits=4) / whole, 0.5, delta=0.01)
        self.assertAlmostEqual(sent("qsgd", bits=2) / whole, 0.25, delta=0.01)
        self.assertAlmostEqual(sent("int8-sync", block=8) / sent("int8-sync", block=4096), 1.5, delta=0.01)
        self.assertEqual(sent("int8-sync", error_feedback="false"), sent("int8-sync"))

    def test_a_run_goes_on_as_if_it_had_not_stopped(self):
        def weights(out):
            return {p.name: p.read_bytes() for p in (self.tmp / out / "step-00000009").glob("*.safetensors")}

        for method in FEWER:
            with self.subTest(method):
                constant = ("--set", "train.schedule=constant")
                self.run_of("train", method, *constant, "--set", "train.steps=9", out="whole-" + method)
                self.run_of("train", method, *constant, "--set", "train.steps=4", out="cut-" + method)
                on = self.run_of("train", method, *constant, "--set", "train.steps=9", "--resume", out="cut-" + method)
                self.assertEqual((on["first_step"], on["end_step"]), (4, 9))
                self.assertTrue(weights("whole-" + method))
                self.assertEqual(weights("cut-" + method), weights("whole-" + method))
                saved = (self.tmp / ("cut-" + method) / "step-00000009/manifest.json").read_text()
                self.assertEqual(method != "qsgd", "sum_residual" in saved)

    def test_refusals(self):
        for method, key, value, words in (
            ("int8-sync", "bits", "4", ["method.bits", "codes of 8 bits"]),
            ("qsgd", "bits", "5", ["method.bits", "2, 4 or 8"]),
            ("qsgd", "block", "12", ["method.block", "a multiple of 8", "nearest"]),
            ("int8-sync", "zero", "1", ["method.zero", "at most 0"]),
            ("int8-sync", "precision", "fp16", ["method.precision", "bf16"]),
            ("int8-sync", "pp", "2", ["method.pp", "pp must be 1"]),
            ("ddp", "bits", "8", ["method.bits", "int8-sync"]),
            ("ef-signsgd", "error_feedback", "1", ["method.error_feedback"]),
        ):
            with self.subTest(method=method, key=key):
                given = ("--set", f"method.name={method}", "--set", f"method.{key}={value}")
                self.refused("simulate", self.job(), *given, says=words)
