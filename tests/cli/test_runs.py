"""One run per folder: what `train` does if the folder has a run, after a kill, at the end of a run, and with a damaged checkpoint."""

import json
import os
import signal
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TOKENS, TrainingCase
from endless_training import ranks_of

TWO = ["--nproc", "2"]


class Runs(TrainingCase):
    def rows(self, folder=None):
        path = (folder or self.tmp / "out") / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def steps(self, folder=None):
        return [row["step"] for row in self.rows(folder) if "loss" in row]

    def out(self, name="out"):
        """The checkpoints in the folder, without one that is being written."""
        return sorted(path.name for path in (self.tmp / name).glob("step-????????"))

    def test_a_second_run_is_refused_with_the_ways_out(self):
        job = self.job(4)
        self.rehearse("train", job, *TWO)
        before = (self.tmp / "out/metrics.jsonl").read_bytes()
        says = [f'{self.tmp}/out"', "metrics of 4 steps", "step-00000004", "--resume", "--overwrite", "train.out="]
        self.refused("train", job, *TWO, says=says)
        alone = ["--set", "method.dp=1"]
        self.refused("train", job, *alone, says=says)  # also as a rank of any launcher
        self.assertEqual((self.tmp / "out/metrics.jsonl").read_bytes(), before)
        self.assertEqual(self.out(), ["step-00000004"])
        self.rehearse("train", job, *TWO, "--set", f"train.out={self.tmp}/other")
        self.rehearse("train", job, *TWO, "--overwrite", "--set", "train.steps=3")
        self.assertEqual(self.steps(), [1, 2, 3])
        self.assertEqual(self.out(), ["step-00000003"])
        both = ["--overwrite", "--resume"]
        self.refused("train", job, *TWO, *both, says=["--overwrite", "--resume"])

    @pytest.mark.soak
    def test_a_killed_run_goes_on_with_every_step_once(self):
        same = ["--set", "train.schedule=constant", "--set", "train.eval_every=5"]
        straight = self.json("train", self.job(30), *TWO, *same, "--set", f"train.out={self.tmp}/straight")
        # Its steps are slow, so that the kill comes between two checkpoints.
        slow = ["--set", "train.save_every=6", "--set", "disturb.stragglers=[{rank=1,factor=6.0}]"]
        command = [REHEARSE, "train", self.job(30), *TWO, *same, *slow, "--quiet"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            deadline = time.monotonic() + PATIENCE
            while not self.out() or self.steps()[-1] < int(self.out()[-1][5:]) + 2:
                self.assertLess(time.monotonic(), deadline)
                self.assertIsNone(child.poll())
                time.sleep(0.005)
            for pid in [child.pid, *ranks_of(child.pid).values()]:
                os.kill(pid, signal.SIGKILL)
        killed = self.steps()
        saved = int(self.out()[-1][5:])
        self.assertGreater(killed[-1], saved)
        self.refused("train", self.job(30), *TWO, *same, says=[f"metrics of {killed[-1]} steps", "--resume"])
        resumed = self.json("train", self.job(30), *TWO, *same, "--resume")
        self.assertEqual((resumed["first_step"], resumed["end_step"]), (saved, 30))
        self.assertEqual(self.steps(), list(range(1, 31)))
        self.assertEqual(self.losses(), straight["losses"])
        told = [(row["step"], row["validation_loss"]) for row in self.rows() if "validation_loss" in row]
        self.assertEqual([step for step, _ in told], [5, 10, 15, 20, 25, 30])
        self.assertEqual(told, [(r["step"], r["validation_loss"]) for r in self.rows(self.tmp / "straight") if "validation_loss" in r])
        self.assertEqual(list((self.tmp / "out").glob("*.part")) + list((self.tmp / "out").glob("*.new")), [])

    def test_losses_on_other_texts(self):
        other = self.tmp / "other"
        other.mkdir()
        shard = (TOKENS / "train_000000.bin").read_bytes()
        for name in ("train_000000.bin", "val_000000.bin"):
            (other / name).write_bytes(shard)
        folders = [str(TOKENS), str(other)]
        evaluate = ["--set", f"train.evaluate={json.dumps(folders)}", "--set", "train.eval_every=2"]
        one = self.json("train", self.job(4), *TWO, *evaluate)
        self.assertEqual(list(one["evaluated"]), folders)
        self.assertEqual(one["evaluated"][folders[0]], one["validation_loss"])
        self.assertNotEqual(one["evaluated"][folders[1]], one["validation_loss"])
        told = [(r["step"], r["evaluated"], r["evaluated_loss"]) for r in self.rows() if "evaluated" in r]
        self.assertEqual([(step, folder) for step, folder, _ in told], [(2, folders[0]), (2, folders[1]), (4, folders[0]), (4, folders[1])])
        self.assertEqual(told[-1][2], one["evaluated"][folders[1]])
        alone = self.json(
            "train", self.job(4), *TWO, "--set", f"train.data={other}", "--set", f"train.out={self.tmp}/b", "--set", "train.lr=1e-30"
        )
        again = self.json("train", self.job(4), *TWO, *evaluate, "--set", f"train.out={self.tmp}/c", "--set", "train.lr=1e-30")
        self.assertEqual(again["evaluated"][folders[1]], alone["validation_loss"])
        (other / "val_000000.bin").unlink()
        (self.tmp / "tokenizer").mkdir()
        for file in TOKENS.iterdir():
            (self.tmp / "tokenizer" / file.name).write_bytes(file.read_bytes())
        manifest = json.loads((TOKENS / "manifest.json").read_text())
        manifest["tokenizer"]["sha256"] = "ab" * 32
        (self.tmp / "tokenizer/manifest.json").write_text(json.dumps(manifest))
        for folder, why in ((other, "*val*.bin"), (self.tmp / "none", "no such folder"), (self.tmp / "tokenizer", "would mean other text")):
            says = ["train.evaluate", str(folder), why]
            self.refused("train", self.job(4), *TWO, "--overwrite", "--set", f'train.evaluate=["{folder}"]', says=says)

    def test_no_output_replaces_what_the_run_reads(self):
        data, out = self.tmp / "data", self.tmp / "first"
        data.mkdir()
        for file in TOKENS.iterdir():
            (data / file.name).write_bytes(file.read_bytes())
        self.rehearse("train", self.job(2), *TWO, "--set", f"train.out={out}")
        files = [file for folder in (data, out) for file in sorted(folder.rglob("*")) if file.is_file()]
        inputs = {file: file.read_bytes() for file in files}
        run = ("train", self.job(4), *TWO, "--set", f"train.data={data}", "--set", f"train.out={self.tmp}/second")
        checkpoint = out / "step-00000002"
        for words in (
            ("--export", data / "manifest.json"),
            ("--trace", data / "val_000000.bin"),
            ("--trace", data / "train_000000.bin"),
            ("--resume-from", checkpoint, "--trace", checkpoint / "manifest.json"),
        ):
            with self.subTest(words):
                self.refused(*run, *words, says=[str(words[-2]), "would replace it"])
                self.assertEqual({file: file.read_bytes() for file in inputs}, inputs)
        both = ("--set", f"train.out={out}", "--resume", "--export", out / "metrics.jsonl")
        self.refused("train", self.job(4), *TWO, *both, says=["train.out", "metrics.jsonl: --export writes that file, too"])
        self.assertEqual({file: file.read_bytes() for file in inputs}, inputs)

    def test_nothing_to_do(self):
        job = self.job(4)
        self.rehearse("train", job, *TWO)
        before = (self.tmp / "out/metrics.jsonl").read_bytes()
        done = self.rehearse("train", job, *TWO, "--resume")
        self.assertEqual(done.stdout, "nothing to do: the run is at its last step 4\n")
        one = self.json("train", job, *TWO, "--resume", "--set", "train.steps=3")
        self.assertEqual((one["first_step"], one["end_step"], one["losses"]), (4, 4, []))
        self.assertEqual((one["first_loss"], one["validation_loss"], one["tokens_per_s"]), (None, None, None))
        self.assertEqual(one["checkpoint"], f"{self.tmp}/out/step-00000004")
        said = self.rehearse("train", job, *TWO, "--resume", "--set", "train.steps=3").stdout
        self.assertEqual(said, "nothing to do: the run is at step 4, beyond train.steps = 3\n")
        self.assertEqual((self.tmp / "out/metrics.jsonl").read_bytes(), before)

    def test_a_damaged_checkpoint_names_the_one_to_take(self):
        saving = ["--set", "train.save_every=3"]
        straight = self.json("train", self.job(8), *TWO, *saving)
        manifest = self.tmp / "out/step-00000008/manifest.json"
        text = manifest.read_text()
        older = f"{self.tmp}/out/step-00000006"
        for field, value in (("step", "4611686018427387904"), ("step", "9"), ("seed", "2"), ("end", "-1")):
            at = text.index(f'"{field}": ') + len(f'"{field}": ')
            until = min(text.index(c, at) for c in ",\n")
            manifest.write_text(text[:at] + value + text[until:])
            with self.subTest(field=field, value=value):
                said = self.refused("train", self.job(12), *TWO, "--resume", says=[str(manifest), "damaged"])
                self.assertIn(f"--resume-from {older}", said)
                self.assertNotIn("rank 0 (", said)
        again = self.json("train", self.job(8), *TWO, *saving, "--resume-from", older)
        self.assertEqual(again["losses"], straight["losses"][6:])
        self.assertEqual(self.losses(), straight["losses"])
        self.assertEqual(self.out(), ["step-00000006", "step-00000008"])
        self.assertEqual(json.loads(manifest.read_text())["step"], 8)

    def test_a_run_keeps_its_optimizer(self):
        for saved, other in (("adamw", "sgd"), ("sgd", "adamw")):
            with self.subTest(saved=saved):
                self.rehearse("train", self.job(2), *TWO, "--overwrite", "--set", f"train.optimizer={saved}")
                on = ["train", self.job(4), *TWO, "--resume", "--set", f"train.optimizer={other}"]
                self.refused(*on, says=["step-00000002", f'train.optimizer = "{saved}"', f'the job has "{other}"', "recovery.without"])
                self.assertEqual(self.steps(), [1, 2])
                self.rehearse(*on, "--set", 'recovery.without=["moments"]')
                self.assertEqual(self.steps(), [1, 2, 3, 4])

    def test_state_that_another_method_does_not_have_is_told(self):
        for method, keys, has in (
            ("topk-sync", [], "residuals of error feedback"),
            ("diloco", ["--set", "method.local_steps=1"], "momentum"),
        ):
            with self.subTest(method=method):
                self.rehearse("train", self.job(2), *TWO, "--overwrite", "--set", f"method.name={method}", *keys)
                said = self.rehearse("train", self.job(4), *TWO, "--resume").stdout
                self.assertRegex(said, rf'step-00000002 has .*{has}.*, of which method "ddp" has none')
                self.assertNotIn("has none", self.rehearse("train", self.job(6), *TWO, "--resume").stdout)

    def test_as_many_ranks_as_the_batch_can_have(self):
        """The job states no mesh, so the number of ranks is that of the command line, not the host's cores."""
        three = ["train", self.job(2), "--nproc", "3", "--set", "method.dp="]
        batch = ["--set", "train.global_batch=16"]
        said = self.refused(*three, *batch, says=['"train.global_batch": 16: must be a multiple of dp 3; nearest: 15'])
        self.assertNotIn("the job has", said)
        self.refused(*three, *batch, "--set", "method.dp=2", says=["--nproc 3: the job has 2 ranks"])
        self.rehearse(*three, "--set", "train.global_batch=3")

    def test_an_older_format_is_named(self):
        self.rehearse("train", self.job(2), *TWO)
        manifest = self.tmp / "out/step-00000002/manifest.json"
        old = json.loads(manifest.read_text()) | {"version": 1}
        del old["checksum"]
        manifest.write_text(json.dumps(old, indent=1))
        self.refused("train", self.job(4), *TWO, "--resume", says=[str(manifest), "version 1", "version 2 only"])

    def test_a_branch_begins_in_a_folder_of_its_own(self):
        straight = self.json("train", self.job(6), *TWO, "--set", "train.save_every=4")
        there = ["--resume-from", self.tmp / "out/step-00000004", "--set", f"train.out={self.tmp}/branch"]
        branch = self.json("train", self.job(6), *TWO, *there)
        self.assertEqual(branch["losses"], straight["losses"][4:])
        self.assertEqual(self.steps(self.tmp / "branch"), [5, 6])
        self.assertEqual(self.steps(), list(range(1, 7)))
        self.refused("train", self.job(6), *TWO, *there, says=[f'{self.tmp}/branch"', "a run is there already"])
