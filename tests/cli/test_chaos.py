"""`rehearse chaos`: small campaigns of real runs, and what they must notice."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TrainingCase
from test_recovery import sets

STEPS = 20
KEYS = {"train.steps": STEPS, "train.save_every": 4, "train.lr": 1e-3, "run.timeout": "8s"}


class Chaos(TrainingCase):
    def chaos(self, *more, keys=None, expect=0):
        words = ["chaos", self.job(), "--folder", self.tmp / "runs", "--json", *sets(KEYS | (keys or {})), *more]
        return json.loads(self.rehearse(*words, expect=expect).stdout)

    @pytest.mark.soak
    def test_a_small_campaign(self):
        one = self.chaos("--kinds", "kill,wrong-numbers,stop-continue", "--methods", "ddp,zero3", "--nproc", 2, "--trials", 5)
        self.assertEqual(
            [(t["kind"], t["method"]) for t in one["trials"][:3]], [("kill", "ddp"), ("kill", "zero3"), ("wrong-numbers", "ddp")]
        )
        self.assertEqual((one["survived"], one["refused"], one["wrong"]), (5, 0, 0), one["trials"])
        self.assertEqual([t["seed"] for t in one["trials"]], list(range(1, 6)))
        self.assertEqual([(m["method"], m["ranks"], m["bits"]) for m in one["methods"]], [("ddp", 2, True), ("zero3", 2, True)])
        for trial in one["trials"]:
            recovers = trial["kind"] != "stop-continue"
            self.assertEqual(any("recover" in note for note in trial["notes"]), recovers, trial)
        self.assertEqual(list((self.tmp / "runs").iterdir()), [])  # nothing is kept

    @pytest.mark.soak
    def test_without_recovery_the_right_rank_is_named(self):
        one = self.chaos("--kinds", "kill,hang", "--trials", 2, keys={"recovery.restarts": 0})
        self.assertEqual([t["verdict"] for t in one["trials"]], ["refused"] * 2, one["trials"])
        for trial in one["trials"]:
            self.assertIn(trial["what"].split(" at ")[0] + " (", trial["why"])  # "rank 1 (host, pid ...)"
        self.assertIn("--seed 2", one["trials"][1]["command"])
        # With this seed it is rank 0 that cannot write.
        (full,) = self.chaos("--kinds", "disk-full", "--seed", 8, keys={"recovery.restarts": 0})["trials"]
        self.assertEqual((full["verdict"], full["what"][:6]), ("refused", "rank 0"), full)
        self.assertRegex(full["why"], "cannot (be )?writ")

    @pytest.mark.soak
    def test_a_run_that_ends_with_other_weights_is_wrong(self):
        """Without checks, a wrong number goes into the last weights, and the campaign must say so."""
        keys = {"run.check_every": 0, "method.name": "zero3"}
        done = self.chaos("--kinds", "wrong-numbers", "--trials", 1, "--keep", keys=keys, expect=1)
        (trial,) = done["trials"]
        self.assertEqual((done["wrong"], trial["verdict"]), (1, "wrong"))
        self.assertIn("weights", trial["why"])
        self.assertTrue((pathlib.Path(trial["folder"]) / "out/metrics.jsonl").exists())

    @pytest.mark.soak
    def test_a_trial_is_repeated_by_its_command(self):
        first = self.chaos("--kinds", "slow,flipped-bit", "--trials", 2)["trials"][1]
        self.assertEqual(first["verdict"], "survived", first)
        again = self.chaos("--kinds", "flipped-bit", "--trials", 1, "--seed", first["seed"])["trials"][0]
        self.assertEqual(again["what"], first["what"])
        self.assertIn(f"--kinds flipped-bit --methods ddp --seed {first['seed']}", first["command"])

    @pytest.mark.soak
    def test_the_launcher_dies(self):
        """Nobody starts the ranks again: they end, and a second run goes on to the same weights. In words, as on a terminal."""
        words = ["chaos", self.job(), "--kinds", "kill-launcher", "--trials", "1", *sets(KEYS | {"train.steps": 60})]
        said = self.rehearse(*words).stdout
        self.assertRegex(said, r"kill-launcher +1 survived\n")
        self.assertIn("note: kill-launcher (1 trial): a second run went on, to the weights of the undisturbed one", said)

    def test_link_kinds_run_or_say_why_not(self):
        env = os.environ | {"PATH": str(self.tmp / "empty")}
        (self.tmp / "empty").mkdir()
        words = ["chaos", self.job(), "--kinds", "loss-1", "--json", *sets(KEYS)]
        one = json.loads(self.rehearse(*words, env=env).stdout)
        self.assertEqual(one["trials"], [])
        self.assertEqual([n["kind"] for n in one["not_run"]], ["loss-1"])
        self.assertTrue(one["not_run"][0]["why"])

    @pytest.mark.soak
    def test_ctrl_c_leaves_nothing_behind(self):
        runs = self.tmp / "temporary"
        runs.mkdir()
        command = [REHEARSE, "chaos", self.job(), "--kinds", "slow", "--trials", "50", *sets(KEYS)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(runs)}
        ) as child:
            deadline = time.monotonic() + PATIENCE
            while not list(runs.glob("*/*/out/metrics.jsonl")):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            out, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 128 + signal.SIGINT, said)
        self.assertIn("rehearse: interrupted", said)
        self.assertEqual(list(runs.iterdir()), [])
        left = subprocess.run(["pgrep", "-f", str(runs)], capture_output=True, text=True).stdout
        self.assertEqual(left, "", out)

    def test_refusals(self):
        self.refused("chaos", self.job(), "--kinds", "kil", says=["--kinds", '"kil"', '"kill"'])
        self.refused("chaos", self.job(), "--kinds", "kill", *sets({"train.steps": 3}), says=["train.steps = 3", "at least 4 steps"])
        self.refused("chaos", self.job(), "--methods", "dpp", says=["--methods", "ddp"])
        out = self.refused("chaos", self.job(), "--kinds", "kill", *sets(KEYS | {"train.data": "nowhere"}), says=["nowhere"])
        self.assertIn("the undisturbed run of ddp failed", out)
