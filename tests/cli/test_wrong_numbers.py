"""`run.check_every`: replicas that differ and numbers that cannot be are noticed between two steps, the right rank is named, and a run goes
on from before."""

import json

from cli_test_train_data import TrainingCase
from test_recovery import sets

STEPS = 20
KEYS = {"train.steps": STEPS, "train.save_every": 4, "train.lr": 1e-3}


class WrongNumbers(TrainingCase):
    def failed(self, ranks, event, keys=None, expect=1):
        trace = self.tmp / "faults.toml"
        trace.write_text("version = 1\n[[event]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in event.items()) + "\n")
        keys = KEYS | {"run.check_every": 1, "method.dp": ranks, "train.global_batch": 6} | (keys or {})
        done = self.rehearse("train", self.job(), "--nproc", ranks, "--quiet", "--faults", trace, *sets(keys), expect=expect)
        return done.stderr

    def checked(self):
        rows = map(json.loads, (self.tmp / "out/metrics.jsonl").read_text().splitlines())
        return [row["step"] for row in rows if row.get("checked")]

    EVENT = {"kind": "wrong_numbers", "rank": 1, "step": 6, "phase": "update", "factor": 1.001}

    def test_the_odd_one_of_three_copies_is_named(self):
        said = self.failed(3, self.EVENT)
        self.assertRegex(said, r"rehearse: wrong numbers after step 6 on rank 1: the weight of \S+ differs from that of ranks 0, 2")
        self.assertEqual(self.checked(), [0, 1, 2, 3, 4, 5])

    def test_two_copies_differ(self):
        said = self.failed(2, self.EVENT)
        self.assertRegex(said, "wrong numbers after step 6 on one of ranks 0, 1: they differ in the weight of")

    def test_an_impossible_number_without_a_copy(self):
        event = self.EVENT | {"factor": 1.0}
        said = self.failed(2, event, {"method.name": "zero3"})
        self.assertRegex(said, r"wrong numbers after step 6 on rank 1: weight of \S+ has a number of size \d\S+, and at most 1\.\d+ can")

    def test_the_run_goes_on_from_before_the_last_passed_check(self):
        """The program saves behind training, so the checkpoint after step 8 holds the wrong number when the check finds it."""
        event = self.EVENT | {"step": 8}
        keys = {"checkpoint.kind": "async", "run.check_every": 4}
        whole = self.json("train", self.job(), "--nproc", 2, *sets(KEYS | keys | {"method.dp": 2, "train.global_batch": 6}))
        state = {p.name: p.read_bytes() for p in (self.tmp / f"out/step-{STEPS:08}").glob("*.safetensors")}
        said = self.failed(2, event, keys | {"recovery.restarts": 1, "train.out": self.tmp / "again"}, expect=0)
        self.assertIn("2 ranks go on from step 4", said)
        self.assertEqual(whole["end_step"], STEPS)
        self.assertEqual({p.name: p.read_bytes() for p in (self.tmp / f"again/step-{STEPS:08}").glob("*.safetensors")}, state)

    def test_nothing_is_found_where_nothing_is_wrong(self):
        for ranks, keys in (
            (2, {"method.name": "zero2", "method.precision": "bf16"}),
            (2, {"method.name": "ddp", "train.optimizer": "sgd", "train.lr": 1e-2}),
            (3, {"method.name": "ps-async", "method.dp": 2}),
            (4, {"method.name": "megatron", "method.dp": 2, "method.tp": 2, "method.pp": 1}),
            (4, {"method.name": "pipedream-2bw", "method.dp": 2, "method.pp": 2, "train.global_batch": 8}),
        ):
            with self.subTest(**keys):
                keys = (
                    KEYS
                    | {"method.dp": 2, "train.global_batch": 6, "run.check_every": 2, "train.out": self.tmp / keys["method.name"]}
                    | keys
                )
                self.rehearse("train", self.job(), "--nproc", ranks, "--quiet", *sets(keys))
