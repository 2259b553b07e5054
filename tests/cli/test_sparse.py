"""Sparse gradients through the command: random entries are sent without their indices, since every rank draws the same ones."""

from cli_test_train_data import TrainingCase


class Sparse(TrainingCase):
    def run_of(self, command, out, **method):
        keys = {"method.name": "topk-sync", "train.out": str(self.tmp / out)} | {f"method.{key}": value for key, value in method.items()}
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(), *(("--nproc", 2) if command == "train" else ()), *sets)

    def sent(self, **method):
        return self.run_of("simulate", "simulated", **method)["bytes_sent_per_rank"]["mean"]

    def test_random_entries_need_no_indices(self):
        values = self.sent(selector="random_k")
        self.assertEqual(self.sent(selector="random_k", coding="values"), values)
        self.assertEqual(self.sent(selector="random_k", coding="index32"), 2 * values)
        self.assertEqual(self.sent(selector="top_k"), 2 * values)

    def test_real_runs_send_these_bytes_and_train_as_with_indices(self):
        def weights(out):
            return {p.name: p.read_bytes() for p in (self.tmp / out).glob("step-*/*.safetensors")}

        without = self.run_of("train", "without", selector="random_k")
        with_indices = self.run_of("train", "with", selector="random_k", coding="delta16")
        self.assertEqual(without["bytes_sent_by_rank_0"], 12 * self.sent(selector="random_k"))
        self.assertLess(without["bytes_sent_by_rank_0"], 0.7 * with_indices["bytes_sent_by_rank_0"])
        self.assertLess(without["last_loss"], without["first_loss"])
        self.assertTrue(weights("without"))
        self.assertEqual(weights("without"), weights("with"))

    def test_chosen_entries_need_indices(self):
        for selector in ("top_k", "threshold"):
            given = ("--set", "method.name=topk-sync", "--set", f"method.selector={selector}", "--set", "method.coding=values")
            self.refused("simulate", self.job(), *given, says=["method.coding", selector, "nearest", "delta16", "random_k"])
