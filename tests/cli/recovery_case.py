"""Shared code of tests in which `rehearse train` recovers: runs that are killed, or struck by a trace of faults."""

import json
import os
import signal
import subprocess
import time

from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TrainingCase
from endless_training import ranks_of

STEPS = 400
SAVING = {"train.save_every": 5, "checkpoint.kind": "async", "train.schedule": "constant", "train.lr": 1e-3}


def sets(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


class RecoveryCase(TrainingCase):
    def losses_of(self, out):
        """The loss of each step that a run has written so far, without a line that it is writing."""
        lines = (self.tmp / out / "metrics.jsonl").read_text().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def recoveries(self, out):
        return [json.loads(line) for line in (self.tmp / out / "recoveries.jsonl").read_text().splitlines()]

    def checkpoints(self, out):
        return sorted(int(path.name.removeprefix("step-")) for path in (self.tmp / out).glob("step-????????"))

    def state_of(self, out, step):
        return {path.name: path.read_bytes() for path in (self.tmp / out / f"step-{step:08}").glob("*.safetensors")}

    def start(self, out, ranks, keys, *more):
        keys = SAVING | {"train.out": str(self.tmp / out), "train.steps": STEPS} | keys
        command = [REHEARSE, "train", self.job(), "--nproc", str(ranks), "--json", *sets(keys), *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill_after(self, child, out, steps, rank):
        """Kills a rank when a checkpoint of a later step than `steps` is there. Returns the newest step then."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.checkpoints(out)) or found[-1] <= steps:
            self.assertIsNone(child.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        os.kill(ranks_of(child.pid)[rank], signal.SIGKILL)
        return found[-1]

    def pids_after(self, child, out, steps):
        """The process of each rank, once so many steps are done."""
        deadline = time.monotonic() + PATIENCE
        while not (self.tmp / out / "metrics.jsonl").exists() or len(self.losses_of(out)) < steps:
            self.assertIsNone(child.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return ranks_of(child.pid)

    def whole(self, out, ranks, keys):
        with self.start(out, ranks, keys) as child:
            text, said = child.communicate(timeout=PATIENCE)
            self.assertEqual(child.returncode, 0, said)
        return json.loads(text)

    def trace(self, *events):
        path = self.tmp / "faults.toml"
        lines = ["version = 1"]
        for event in events:
            lines += ["[[event]]", *(f"{key} = {json.dumps(value)}" for key, value in event.items())]
        path.write_text("\n".join(lines) + "\n")
        return path
