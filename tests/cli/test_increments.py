"""Incremental checkpoints (checkpoint.kind = "incremental"): a run that goes on from one ends with the weights of a run that never
stopped; a damaged base is refused by name and an older checkpoint taken; rounding stays within what is said; `train` says what changed."""

import json
import shutil

import pytest
from cli_test_train_data import TrainingCase
from test_checkpoints import METHODS, sets

INCREMENTS = {"checkpoint.kind": "incremental", "checkpoint.full_every": 4, "train.save_every": 1}
# Half of the weights are rows of a vocabulary that mostly does not occur.
RARE = """family = "gpt"
layers = 2
hidden = 64
heads = 4
vocab = 32768
seq_len = 64
tied = false
"""


class Increments(TrainingCase):
    def command(self, out, steps, keys, *more, method="ddp"):
        ranks, own = METHODS[method]
        keys = {"method.name": method, "train.out": str(self.tmp / out), "train.steps": steps, "train.schedule": "constant"} | own | keys
        return ["train", self.job(), "--nproc", ranks, *sets(keys), *more]

    def train(self, *words, **keys):
        return self.json(*self.command(*words, **keys))

    def folder(self, out, step):
        return self.tmp / out / f"step-{step:08}"

    def manifest(self, out, step):
        return json.loads((self.folder(out, step) / "manifest.json").read_text())

    def state_of(self, out, step):
        return {path.name: path.read_bytes() for path in self.folder(out, step).glob("*.safetensors")}

    def bytes_of(self, out, step):
        return sum(len(data) for data in self.state_of(out, step).values())

    def checkpoints(self, out):
        return sorted(int(path.name.removeprefix("step-")) for path in (self.tmp / out).glob("step-????????"))

    def increments(self, out):
        rows = map(json.loads, (self.tmp / out / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row for row in rows if "base" in row}

    def flip(self, path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    @pytest.mark.long
    def test_a_run_goes_on_from_an_increment_as_if_it_had_not_stopped(self):
        # Copies of weights in fp32, a loss scale, two versions, residuals, a server.
        for method in ("zero2", "megatron", "pipedream-2bw", "topk-sync", "ps-sync"):
            with self.subTest(method):
                whole, cut = f"whole-{method}", f"cut-{method}"
                self.train(whole, 9, {}, method=method)
                self.train(cut, 7, INCREMENTS, method=method)
                # Step 1 is whole because nothing was before, 4 because it is the fourth, 7 because it is the last.
                self.assertEqual(self.checkpoints(cut), [4, 6, 7])
                self.assertNotIn("base", self.manifest(cut, 4))
                self.assertEqual(self.manifest(cut, 6)["base"]["step"], 4)
                self.assertNotIn("base", self.manifest(cut, 7))
                self.assertEqual({s: row["base"] for s, row in self.increments(cut).items()}, {2: 1, 3: 1, 5: 4, 6: 4})
                shutil.rmtree(self.folder(cut, 7))
                one = self.train(cut, 9, INCREMENTS, "--resume", method=method)
                self.assertEqual((one["first_step"], one["end_step"]), (6, 9))
                self.assertTrue(self.state_of(whole, 9))
                self.assertEqual(self.state_of(cut, 9), self.state_of(whole, 9))

    def test_a_damaged_base_is_refused_by_name_and_an_older_checkpoint_taken(self):
        self.train("whole", 9, {})
        self.train("cut", 11, INCREMENTS)
        self.assertEqual(self.checkpoints("cut"), [8, 10, 11])
        shutil.rmtree(self.folder("cut", 11))
        shutil.copytree(self.folder("cut", 8), self.tmp / "good")
        shutil.copytree(self.folder("whole", 9), self.folder("cut", 3))  # an older whole one
        for file in ("manifest.json", "rank-00001.safetensors"):
            self.flip(self.folder("cut", 8) / file)
            self.refused(
                *self.command("cut", 12, INCREMENTS, "--resume"),
                says=[
                    str(self.folder("cut", 10) / "manifest.json"),
                    "what changed since step 8",
                    str(self.folder("cut", 8) / file),
                    "--resume-from",
                ],
            )
            shutil.copy(self.tmp / "good" / file, self.folder("cut", 8))
        shutil.rmtree(self.folder("cut", 8))
        said = self.refused(
            *self.command("cut", 12, INCREMENTS, "--resume"), says=["what changed since step 8", str(self.folder("cut", 8))]
        )
        self.assertIn(f"--resume-from {self.folder('cut', 3)}", said)

    def test_a_recovery_takes_the_newest_that_is_whole(self):
        """The base is damaged behind the run's back, and then a rank dies: the run goes on from the whole one before it."""
        trace = self.tmp / "faults.toml"
        events = [("checkpoint_flipped", 0, 8, "save"), ("rank_dies", 1, 11, "begin")]
        text = "".join(
            f'[[event]]\nkind = "{kind}"\nrank = {rank}\nstep = {step}\nphase = "{phase}"\n' for kind, rank, step, phase in events
        )
        trace.write_text("version = 1\n" + text)
        self.train("whole", 14, {})
        done = self.rehearse(*self.command("cut", 14, INCREMENTS | {"recovery.restarts": 1}, "--faults", trace))
        self.assertIn("ranks go on from step 4", done.stderr)
        self.assertEqual(self.state_of("cut", 14), self.state_of("whole", 14))
        # Without damage it goes on from the increment itself.
        trace.write_text("version = 1\n" + text[text.index("[[event]]", 1) :])
        done = self.rehearse(*self.command("again", 14, INCREMENTS | {"recovery.restarts": 1}, "--faults", trace))
        self.assertIn("ranks go on from step 10", done.stderr)
        self.assertEqual(self.state_of("again", 14), self.state_of("whole", 14))

    def test_what_has_changed_is_said(self):
        # AdamW changes every number that has ever had a gradient, so there is little to save.
        done = self.rehearse(*self.command("dense", 4, INCREMENTS | {"checkpoint.full_every": 100}))
        changed = self.increments("dense")[3]["changed"]
        self.assertGreater(changed, 0.9)
        self.assertLess(changed, 1)
        self.assertEqual(self.manifest("dense", 3)["base"]["changed"], changed)
        self.assertRegex(done.stdout, rf"saved \S+step-00000003  \(.*, {100 * changed:.1f}% has changed since step 1\)")
        # Without decay, rows of words that do not occur stay as they are, and so do their moments.
        model = self.tmp / "rare.toml"
        model.write_text(RARE)
        keys = {"model.name": str(model), "train.weight_decay": 0, "train.global_batch": 2, "checkpoint.full_every": 100}
        self.train("rare", 5, INCREMENTS | keys)
        rows = self.increments("rare")
        self.assertLess(rows[4]["changed"], 0.6)
        self.assertGreaterEqual(rows[4]["changed"], rows[2]["changed"])
        self.assertAlmostEqual(self.bytes_of("rare", 4) / self.bytes_of("rare", 1), rows[4]["changed"], delta=0.01)

    def test_rounded_differences(self):
        exact = self.train("exact", 12, INCREMENTS)
        sizes = {}
        for bits, least in ((8, 0.4), (16, 0.6)):
            out = f"bits-{bits}"
            self.train(out, 7, INCREMENTS | {"checkpoint.bits": bits})
            base = self.manifest(out, 6)["base"]
            self.assertEqual(base["bits"], bits)
            # Half a code, of a part's largest number.
            self.assertGreater(base["relative_error"], 0)
            self.assertLess(base["relative_error"], 0.5001 / (2 ** (bits - 1) - 1) + 2**-24)
            self.assertEqual(self.increments(out)[6]["error"], base["error"])
            sizes[bits] = self.bytes_of(out, 6) / self.bytes_of(out, 4)
            self.assertGreater(sizes[bits], least)
            shutil.rmtree(self.folder(out, 7))
            one = self.train(out, 12, INCREMENTS | {"checkpoint.bits": bits}, "--resume")
            self.assertEqual((one["first_step"], one["end_step"]), (6, 12))
            self.assertAlmostEqual(one["last_loss"], exact["last_loss"], delta=0.01 * exact["last_loss"])
            self.assertNotEqual(self.state_of(out, 12), self.state_of("exact", 12))
        self.assertLess(sizes[8], 0.55)
        self.assertLess(sizes[16], 0.7)

    def test_bad_keys(self):
        for keys, says in (
            ({"checkpoint.bits": 4}, ["checkpoint.bits", "8 or 16"]),
            ({"checkpoint.bits": 8, "checkpoint.kind": "sharded"}, ["checkpoint.bits", "incremental"]),
            ({"checkpoint.place": "memory"}, ["checkpoint.place", "incremental", "shared"]),
        ):
            self.refused("train", self.job(), "--nproc", 2, *sets({"checkpoint.kind": "incremental"} | keys), says=says)
