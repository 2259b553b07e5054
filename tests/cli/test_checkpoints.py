"""Checkpoints behind training (checkpoint.kind = "async"): the same program in `simulate` and in `train`. A run that goes on from one ends
with the weights of a run that never stopped; kills while one is written leave one that loads; the prediction agrees with a closed form."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TOKENS, TrainingCase
from endless_training import ranks_of
from test_huggingface import tensors_of

ASYNC = ["--set", "checkpoint.kind=async"]
METHODS = {  # method -> ranks, further keys
    "ddp": (2, {"method.dp": 2}),
    "zero2": (2, {"method.dp": 2, "method.precision": "bf16"}),
    "zero3": (3, {"method.dp": 3, "train.global_batch": 6}),
    "hsdp": (4, {"method.dp": 4, "method.shard_group": 2, "train.global_batch": 8}),
    "1f1b": (2, {"method.pp": 2, "method.dp": 1}),
    "megatron": (4, {"method.tp": 2, "method.dp": 2, "method.precision": "fp16"}),
    "pipedream-2bw": (2, {"method.pp": 2, "method.dp": 1}),
    "topk-sync": (2, {"method.dp": 2}),
    "int8-sync": (3, {"method.dp": 3, "train.global_batch": 6}),
    "ef-signsgd": (2, {"method.dp": 2, "method.precision": "bf16"}),
    "powersgd": (2, {"method.dp": 2, "method.start": 2}),
    "onebit-adam": (2, {"method.dp": 2, "method.freeze": 2, "method.precision": "bf16"}),
    "local-sgd": (3, {"method.dp": 3, "train.global_batch": 6}),
    "diloco": (2, {"method.dp": 2, "method.local_steps": 2, "method.precision": "bf16"}),
    "d-psgd": (3, {"method.dp": 3, "train.global_batch": 6}),
    "ps-sync": (3, {"method.dp": 2, "method.servers": 1}),
}


def sets(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


class Checkpoints(TrainingCase):
    def train(self, out, method, steps, *more):
        ranks, keys = METHODS[method]
        keys = {"method.name": method, "train.out": str(self.tmp / out), "train.steps": steps, "train.schedule": "constant"} | keys
        return self.json("train", self.job(), "--nproc", ranks, *sets(keys), *more)

    def checkpoints(self, out):
        return sorted(int(path.name.removeprefix("step-")) for path in (self.tmp / out).glob("step-????????"))

    def losses_of(self, out):
        rows = map(json.loads, (self.tmp / out / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def state_of(self, out, step):
        return {path.name: path.read_bytes() for path in (self.tmp / out / f"step-{step:08}").glob("*.safetensors")}

    @pytest.mark.long
    def test_a_run_goes_on_from_a_snapshot_as_if_it_had_not_stopped(self):
        for method in METHODS:
            with self.subTest(method):
                whole, cut = f"whole-{method}", f"cut-{method}"
                self.train(whole, method, 9)
                # Steps 3 and 6 are saved behind training, step 7 at the end.
                self.train(cut, method, 7, *ASYNC, "--set", "train.save_every=3")
                self.assertEqual(self.checkpoints(cut), [6, 7])
                # The run goes on from step 6: the last checkpoint is taken away.
                for file in (self.tmp / cut / "step-00000007").iterdir():
                    file.unlink()
                (self.tmp / cut / "step-00000007").rmdir()
                one = self.train(cut, method, 9, *ASYNC, "--resume")
                self.assertEqual((one["first_step"], one["end_step"]), (6, 9))
                self.assertEqual(self.losses_of(cut).keys(), self.losses_of(whole).keys())
                self.assertTrue(self.state_of(whole, 9))
                self.assertEqual(self.state_of(cut, 9), self.state_of(whole, 9))

    @pytest.mark.long
    def test_state_that_a_run_goes_on_without(self):
        """Weights are always read: the first step after has the loss of the undisturbed run, if it computes with the newest ones."""
        cases = {"ddp": ["moments"], "topk-sync": ["residuals"], "int8-sync": ["residuals"], "pipedream-2bw": ["versions"]}
        for method, without in cases.items():
            with self.subTest(method):
                whole, cut = f"kept-{method}", f"left-{method}"
                adam = ["--set", "train.optimizer=adamw"]
                self.train(whole, method, 9, *adam)
                self.train(cut, method, 5, *adam)
                self.train(cut, method, 9, *adam, "--resume", "--set", f"recovery.without={json.dumps(without)}")
                straight, left = self.losses_of(whole), self.losses_of(cut)
                self.assertEqual(list(left), list(straight))
                first = 7 if without != ["versions"] else 6  # the first step whose loss differs
                differs = [step for step in straight if straight[step] != left[step]]
                self.assertEqual((differs[0], differs[-1]), (first, 9))
                # What a method does not have cannot be left out.
                self.train(f"same-{method}", method, 5, *adam)
                foreign = "versions" if method == "ddp" else "residuals" if method == "pipedream-2bw" else "versions"
                self.train(f"same-{method}", method, 9, *adam, "--resume", "--set", f'recovery.without=["{foreign}"]')
                self.assertEqual(self.losses_of(f"same-{method}"), straight)
        self.refused("train", self.job(), "--nproc", "2", "--set", 'recovery.without=["moment"]', says=["recovery.without", "moments"])

    def test_a_new_optimizer_counts_from_its_first_update(self):
        """Adam's first update moves no weight by more than the learning rate. With corrections of step 30, it would, by 1.7 times."""
        keys = ("--set", "train.optimizer=adamw", "--set", "train.schedule=constant", "--set", "train.warmup_steps=0")
        keys = (*keys, "--set", "train.lr=1e-3", "--set", "train.weight_decay=0", "--set", "train.save_every=1")

        def weights(step):
            out = {}
            for path in (self.tmp / f"new/step-{step:08}").glob("*.safetensors"):
                for name, (_, data) in tensors_of(path).items():
                    if "param" in name:
                        out[name] = struct.unpack(f"<{len(data) // 4}f", data)
            return out

        self.train("new", "ddp", 30, *keys)
        before = weights(30)
        self.train("new", "ddp", 31, *keys, "--resume", "--set", 'recovery.without=["moments"]')
        after = weights(31)
        self.assertEqual(before.keys(), after.keys())
        moved = [abs(a - b) for name in before for a, b in zip(before[name], after[name], strict=True)]
        self.assertAlmostEqual(max(moved), 1e-3, delta=2e-5)

    def test_second_moments_that_stand_still(self):
        """A run goes on where second moments stopped, or where they have not stopped yet."""
        self.train("plain", "ddp", 6, "--set", "train.optimizer=adamw")
        self.train("frozen", "onebit-adam", 6, "--set", "train.optimizer=adamw", "--set", "method.freeze=4")
        plain, frozen = (f"--resume-from={self.tmp}/{out}/step-00000006" for out in ("plain", "frozen"))

        def on(out, start, method, *keys):
            sets = (word for key in (f"method.name={method}", f"train.out={self.tmp}/{out}", *keys) for word in ("--set", key))
            return ("train", self.job(8), "--nproc", "2", "--set", "train.optimizer=adamw", start, *sets)

        freeze = {n: f"method.freeze={n}" for n in (3, 4, 6, 7)}
        without, bf16 = 'recovery.without=["moments"]', "method.precision=bf16"  # as `frozen`
        self.refused(*on("a", plain, "onebit-adam", freeze[3]), says=["method.freeze: 3", "until step 6; at least 6"])
        self.refused(*on("a", frozen, "onebit-adam", bf16, freeze[6]), says=["still since step 4", "method.freeze = 4"])
        self.refused(*on("a", frozen, "ddp", bf16), says=["still since step 4", '"onebit-adam"', "recovery.without"])
        self.refused(*on("a", plain, "onebit-adam", freeze[6], without), says=["method.freeze: 6", "at least 7"])
        for out, start, *more in (("b", plain, "onebit-adam", freeze[6]), ("c", frozen, "onebit-adam", bf16, freeze[4]),
                                  ("d", frozen, "ddp", bf16, without), ("e", plain, "onebit-adam", freeze[7], without)):  # fmt: skip
            self.rehearse(*on(out, start, *more))

    def test_data_of_another_tokenizer(self):
        """The same numbers would mean other text: refused. Other text of the same tokenizer is said; the run's own text is not."""
        self.train("own", "ddp", 2)
        manifest = json.loads((TOKENS / "manifest.json").read_text())
        others = {"tokenizer": manifest | {"tokenizer": manifest["tokenizer"] | {"sha256": "ab" * 32}}, "text": manifest | {"train": {}}}
        others["unknown"] = {key: value for key, value in manifest.items() if key != "tokenizer"}
        for name, changed in others.items():
            shutil.copytree(TOKENS, self.tmp / name)
            (self.tmp / name / "manifest.json").write_text(json.dumps(changed))
        go_on = ("train", self.job(3), "--nproc", "2", "--set", "method.dp=2", "--resume-from", self.tmp / "own/step-00000002")

        def keys(folder, out):
            return sets({"train.data": str(folder), "train.out": str(self.tmp / out)})

        says = ["step-00000002/manifest.json", "48785066ce90...", "abababababab...", 'train.data = "', "--tokenizer"]
        self.refused(*go_on, *keys(self.tmp / "tokenizer", "a"), says=says)
        self.assertFalse((self.tmp / "a/metrics.jsonl").exists())
        for name in ("text", "unknown"):
            self.assertIn("samples from step 3 on come from it", self.rehearse(*go_on, *keys(self.tmp / name, f"on-{name}")).stdout)
        self.assertNotIn("other text", self.rehearse(*go_on, *keys(TOKENS, "same")).stdout)

    @pytest.mark.soak
    def test_training_does_not_stop_for_them(self):
        """The trace of a real run has the copies and writes on lanes of their own, and steps go on beside a write."""
        trace = self.tmp / "trace.json"
        self.train("traced", "ddp", 6, *ASYNC, "--set", "train.save_every=2", "--trace", trace)
        slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        saves = [e for e in slices if e["cat"] == "save"]
        copies = [e for e in slices if e["cat"] == "copy"]
        self.assertTrue(saves and copies)
        self.assertEqual({e["args"]["step"] % 2 for e in saves + copies}, {1})
        for save in saves:
            mine = [c for c in copies if (c["pid"], c["args"]["step"]) == (save["pid"], save["args"]["step"])]
            self.assertGreaterEqual(save["ts"], max(c["ts"] + c["dur"] for c in mine) - 0.01)
        beside = [
            e
            for e in slices
            for s in saves
            if e["cat"] == "compute" and e["pid"] == s["pid"] and e["args"]["step"] > s["args"]["step"] and e["ts"] < s["ts"] + s["dur"]
        ]
        self.assertTrue(beside, "no step began before a write ended")

    @pytest.mark.soak
    def test_kills_while_saving_leave_a_checkpoint_that_loads(self):
        draw = random.Random(5)
        out = self.tmp / "killed"
        keys = {"train.out": str(out), "train.save_every": 1, "train.steps": 100000, "checkpoint.kind": "async"}
        command = [REHEARSE, "train", self.job(), "--nproc", "2", "--quiet", *sets(keys)]
        for kill in range(6):
            with subprocess.Popen([*command, *(["--resume"] if kill else [])], stderr=subprocess.DEVNULL) as child:
                before = self.checkpoints(out)
                deadline = time.monotonic() + PATIENCE
                while self.checkpoints(out) == before and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(draw.uniform(0, 0.1))
                os.kill(ranks_of(child.pid)[draw.randrange(2)], signal.SIGKILL)
                self.assertEqual(child.wait(timeout=PATIENCE), 1)
            self.assertTrue(self.checkpoints(out))
        last = self.checkpoints(out)[-1]
        keys["train.steps"] = last + 2
        one = self.json("train", self.job(), "--nproc", "2", *sets(keys), "--resume")
        self.assertEqual((one["first_step"], one["end_step"]), (last, last + 2))

    def test_methods_that_cannot(self):
        for method in ("ps-async", "ps-ssp", "fedavg"):
            self.refused(
                *("simulate", self.job(), *ASYNC, "--set", "train.save_every=5"),
                *("--set", f"method.name={method}", "--set", "method.servers=1", "--set", "cluster.world_size=3"),
                says=["checkpoint.kind", "async", method, "full"],
            )

    PLATFORM = """summary = "two nodes"
[[nodes]]
count = 2
devices = ["RTX 4090"]
host_memory = "{memory}"
host_link = "{link}"
disk = {{ read = "1GB/s", write = "{disk}" }}
parts = ["nic"]
links = [
  {{ from = "gpu*", to = "nic", bandwidth = "15GB/s", latency = "1us" }},
  {{ from = "nic", to = "fabric", bandwidth = "100Gb/s", latency = "1us" }},
]
[shared_disk]
read = "1GB/s"
write = "{shared}"
"""

    def simulated(self, every, memory="64GB", link="20GB/s", disk="1GB/s", shared="1GB/s", **keys):
        path = self.tmp / "two.toml"
        path.write_text(self.PLATFORM.format(memory=memory, link=link, disk=disk, shared=shared))
        more = sets({"cluster.name": str(path), "model.name": "gpt2-124m", "train.save_every": every} | keys)
        return self.json("simulate", self.job(), *more, "--fidelity", "analytic")

    def test_the_prediction_follows_from_rates(self):
        plain = self.simulated(0)
        self.assertIsNone(plain["checkpoint"])
        step = plain["step_time_s"]["mean"]
        quick = self.simulated(5, shared="100GB/s", **{"checkpoint.kind": "async"})
        c = quick["checkpoint"]
        # Weights and two moments in fp32; each of two ranks saves a half.
        self.assertEqual(c["every_steps"], 5)
        self.assertAlmostEqual(c["bytes_per_rank_max"], c["bytes_total"] / 2, delta=1e4)
        self.assertAlmostEqual(c["snapshot_s"], c["bytes_per_rank_max"] / 20e9, delta=1e-4 * c["snapshot_s"])
        self.assertAlmostEqual(c["write_s"], c["bytes_per_rank_max"] / 12.5e9, delta=1e-3 * c["write_s"])  # the node's network
        # A framework that stages no faster than its own rate, and one that is faster than the link.
        for rate, bytes_per_second in (("100MB/s", 100e6), ("1TB/s", 20e9)):
            staged = self.simulated(5, shared="100GB/s", **{"checkpoint.kind": "async", "software.host.staging": rate})["checkpoint"]
            self.assertAlmostEqual(staged["snapshot_s"], c["bytes_per_rank_max"] / bytes_per_second, delta=1e-4 * staged["snapshot_s"])
        self.assertEqual(quick["peak_memory_bytes"], plain["peak_memory_bytes"])
        # A write that takes longer than the steps between two snapshots sets the pace: the next snapshot waits for it, and updates wait
        # for the snapshot.
        slow = self.simulated(2, shared="20MB/s", **{"checkpoint.kind": "async"})
        c = slow["checkpoint"]
        self.assertAlmostEqual(c["write_s"], c["bytes_total"] / 20e6, delta=1e-3 * c["write_s"])
        self.assertGreater(c["write_s"], 4 * step)
        expected = (c["write_s"] + c["snapshot_s"]) / 2
        self.assertAlmostEqual(slow["step_time_s"]["mean"], expected, delta=0.02 * expected)
        # A quick disk costs no more than the snapshots.
        self.assertLess(quick["step_time_s"]["mean"] - step, quick["checkpoint"]["snapshot_s"] / 5 + 1e-6)
        # The node's own disk: each node writes a half.
        local = self.simulated(5, disk="100MB/s", **{"checkpoint.kind": "async", "checkpoint.place": "local"})["checkpoint"]
        self.assertAlmostEqual(local["write_s"], local["bytes_total"] / 2 / 100e6, delta=1e-3 * local["write_s"])
        # The memory of hosts: as quick as a snapshot. Of other nodes: each node sends what it has to one other node.
        memory = self.simulated(5, **{"checkpoint.kind": "async", "checkpoint.place": "memory"})["checkpoint"]
        self.assertAlmostEqual(memory["write_s"], memory["snapshot_s"], delta=1e-4 * memory["write_s"])
        peers = self.simulated(5, **{"checkpoint.kind": "peer"})["checkpoint"]
        self.assertEqual((memory["to"], peers["to"]), ("memory", "peers"))
        self.assertAlmostEqual(peers["write_s"], peers["bytes_per_rank_max"] / 12.5e9, delta=1e-3 * peers["write_s"])

    def test_nodes_with_unlike_numbers_of_ranks_share_the_disk_by_bytes(self):
        # Nodes of the paper's cluster have two or four ranks. The disk is the limit, so all bytes at its rate.
        job = ("experiments/paper-ddp.toml", "--fidelity", "analytic", *sets({"checkpoint.kind": "async"}))
        step = self.json("simulate", *job, "--set", "train.save_every=1")["checkpoint"]
        self.assertAlmostEqual(step["write_s"], step["bytes_total"] / 5e9, delta=1e-3 * step["write_s"])
        long = self.json("simulate", *job, "--duration", "1d", "--set", "faults.model=rsc1-a100")
        self.assertAlmostEqual(long["checkpoint"]["persist_s"], step["write_s"], delta=1e-3 * step["write_s"])

    def test_what_does_not_fit_or_is_not_known(self):
        path = self.tmp / "two.toml"
        path.write_text(self.PLATFORM.format(memory="1GB", link="20GB/s", disk="1GB/s", shared="1GB/s"))
        keys = {"cluster.name": str(path), "model.name": "gpt2-124m", "train.save_every": 5, "checkpoint.kind": "async"}
        # Weights and moments of 124 million parameters take 1.5 GB; alone on a node, a replica would save all of it.
        self.refused(
            *("simulate", self.job(), *sets(keys | {"method.dp": 1, "cluster.world_size": 1})),
            says=["memory", "host of node 0", "1 GB", "sharded"],
        )
        path.write_text(path.read_text().split("[shared_disk]")[0])
        self.refused("simulate", self.job(), *sets(keys), says=["checkpoint.kind", "[shared_disk]", "docs/platforms.md"])
