"""Horovod and MultiWorkerMirroredStrategy through the command: one job simulated and really trained, the coordinator's messages, which
gradients share a buffer, the barrier at the end of a step, and refusals."""

import collections
import json

from cli_test_case import PATIENCE, ROOT
from recovery_case import RecoveryCase

PAPER = str(ROOT / "experiments/paper-ddp.toml")


class Fused(RecoveryCase):
    def run_of(self, command, method, *more, **keys):
        keys = {"method.name": method, "train.out": str(self.tmp / method)} | keys
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(), *(("--nproc", 2) if command == "train" else ()), *sets, *more)

    def traced(self, command, method):
        """(step, rank, lane) -> its slices, in order of time."""
        path = self.tmp / f"{method}-{command}.json"
        self.run_of(command, method, "--trace", path)
        events = json.loads(path.read_text())["traceEvents"]
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        out = collections.defaultdict(list)
        for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
            out[e["args"]["step"], e["pid"], lanes[e["pid"], e["tid"]]].append(e)
        return out

    def test_real_and_simulated_runs_send_the_same_bytes_and_learn_as_ddp(self):
        losses = {method: self.run_of("train", method)["last_loss"] for method in ("ddp", "multi-worker-mirrored")}
        self.assertAlmostEqual(losses["multi-worker-mirrored"] / losses["ddp"], 1, delta=1e-5)
        sent = self.run_of("simulate", "multi-worker-mirrored")["bytes_sent_per_rank"]
        self.assertEqual(sent["max"], self.run_of("simulate", "ddp")["bytes_sent_per_rank"]["max"] + 4)  # a number for the barrier
        done = self.run_of("train", "horovod")
        self.assertAlmostEqual(done["last_loss"] / losses["ddp"], 1, delta=1e-5)
        sent = self.run_of("simulate", "horovod")["bytes_sent_per_rank"]
        # Rank 0 answers the requests of the first step and sends no bits then, so that step differs.
        steady = 11 * sent["max"]
        self.assertGreater(done["bytes_sent_by_rank_0"], steady)
        self.assertLess(done["bytes_sent_by_rank_0"], steady + 1.1 * sent["max"])

    def test_the_first_step_negotiates_through_rank_0_and_later_ones_by_bits(self):
        for command in ("simulate", "train"):
            with self.subTest(command):
                slices = self.traced(command, "horovod")
                steps = sorted({step for step, _, _ in slices})
                self.assertEqual(steps[0] == 0, command == "train")  # a simulation shows two steps after the warm-up
                for step in steps[:3]:
                    lane = slices[step, 0, "coordinate"]
                    names = [e["name"] for e in lane if not e["name"].startswith("pause")]
                    buckets = sum(e["name"].startswith("all-reduce") for e in slices[step, 0, "dp"])
                    self.assertGreater(buckets, 0)
                    expected = ["reduce", "broadcast"] if step == 0 else ["all-reduce"]
                    self.assertEqual([name.split()[0] for name in names], expected * buckets)
                    # A bucket is copied into its buffer when the coordinators have agreed on it.
                    agreed = [e for e in lane if e["name"].split()[0] == expected[-1]]
                    copied = [e for e in slices[step, 0, "dp"] if e["name"].startswith("copy")][::2]
                    for one, other in zip(agreed, copied, strict=True):
                        self.assertLessEqual(one["ts"] + one["dur"], other["ts"] + 1e-3)

    def test_a_cycle_decides_which_gradients_share_a_buffer(self):
        def program(**keys):
            sets = [word for key, value in keys.items() for word in ("--set", f"method.{key}={value}")]
            text = self.rehearse("program", PAPER, "--set", "method.name=horovod", *sets).stdout
            role = text.split("\nbegin ")[1]
            return sum(" dp all_reduce " in line for line in role.splitlines()), role

        each, _ = program(cycle_time="0s")
        some, role = program(cycle_time="20ms")
        one, _ = program(cycle_time="1s", bucket="1TB")
        self.assertEqual(one, 1)
        self.assertGreater(each, some)
        self.assertGreater(some, one)
        self.assertIn("pause seconds=0.01 ", role)  # half a cycle
        full, _ = program(cycle_time="1s", bucket="16MiB")
        self.assertGreater(full, one)
        _, without = program(response_cache=0)
        self.assertNotIn("until=1", without)
        self.assertNotIn("bits.", without)

    def test_autotune(self):
        def found(*more):
            return self.json("simulate", PAPER, "--set", "method.name=horovod", *more)

        def step(*more):
            return found(*more)["step_time_s"]["mean"]

        worst = step("--set", "method.bucket=1MiB", "--set", "method.cycle_time=100ms")
        whole = found("--set", "method.autotune=true")
        tuned, chosen = whole["step_time_s"]["mean"], whole["fusion"]
        self.assertIn(chosen["bucket_bytes"], [1 << n for n in range(20, 28)])
        self.assertIn(round(1000 * chosen["cycle_time_s"], 6), [1, 2.5, 5, 10, 25, 50, 100])
        said = self.rehearse("simulate", PAPER, "--set", "method.name=horovod").stdout
        self.assertRegex(said, r"fusion +buffers of 134 MB, a cycle of 1 ms, \d+ of which bring gradients")
        self.assertNotIn("fusion", self.json("simulate", PAPER))
        self.assertLess(tuned, worst)
        self.assertLessEqual(tuned, 1.02 * step())  # the dry run, which chooses, knows no jitter
        self.refused("simulate", PAPER, "--set", "method.autotune=true", says=["method.autotune", "no coordinator"])

    def test_a_step_ends_on_all_ranks_before_the_next_begins(self):
        for command in ("simulate", "train"):
            with self.subTest(command):
                slices = self.traced(command, "multi-worker-mirrored")
                ranks = {rank for _, rank, _ in slices}
                self.assertEqual(len(ranks), 2)
                for step in sorted({step for step, _, _ in slices})[:-1][:3]:
                    updates = [e for r in ranks for e in slices[step, r, "compute"] if e["name"].startswith("update")]
                    self.assertTrue(updates)
                    for rank in ranks if command == "simulate" else ():  # the clocks of real ranks differ a little
                        begin = slices[step + 1, rank, "compute"][0]["ts"]
                        self.assertGreaterEqual(begin, max(e["ts"] + e["dur"] for e in updates) - 1e-3)
                    for rank in ranks:
                        (barrier,) = [e for e in slices[step, rank, "barrier"] if e["name"].startswith("all-reduce")]
                        self.assertGreaterEqual(slices[step + 1, rank, "compute"][0]["ts"], barrier["ts"] + barrier["dur"] - 1e-3)

    def test_a_run_whose_worker_died_is_started_again_and_ends_with_the_same_weights(self):
        for method in ("horovod", "multi-worker-mirrored"):
            with self.subTest(method):
                keys = {"method.name": method, "recovery.restarts": 1, "train.steps": 60}
                whole, cut = f"whole-{method}", f"cut-{method}"
                self.whole(whole, 2, keys)
                with self.start(cut, 2, keys, "--faults", self.trace({"kind": "rank_dies", "rank": 1, "step": 31})) as child:
                    _, said = child.communicate(timeout=PATIENCE)
                self.assertEqual(child.returncode, 0, said)
                self.assertEqual([note["policy"] for note in self.recoveries(cut)], ["restart"])
                self.assertTrue(self.state_of(cut, 60))
                self.assertEqual(self.state_of(cut, 60), self.state_of(whole, 60))

    def test_copies_of_gradients_are_no_snapshots(self):
        saving = {"checkpoint.kind": "async", "train.save_every": 4}
        seconds = {m: self.run_of("simulate", m, **saving)["checkpoint"]["snapshot_s"] for m in ("ddp", "horovod", "multi-worker-mirrored")}
        for method in ("horovod", "multi-worker-mirrored"):
            self.assertAlmostEqual(seconds[method] / seconds["ddp"], 1, delta=0.02)

    def test_refusals(self):
        for method, key, value, words in (
            ("ddp", "cycle_time", "1ms", ["method.cycle_time", "no coordinator", "horovod"]),
            ("multi-worker-mirrored", "response_cache", "9", ["method.response_cache", "horovod"]),
            ("horovod", "zero", "1", ["method.zero", "at most 0"]),
            ("horovod", "tp", "2", ["method.tp", "tp must be 1"]),
            ("ddp", "bucket", "0B", ["method.bucket", "at least 1 B"]),
            ("horovod", "offload", "optimizer", ["method.offload", "must be none"]),
        ):
            with self.subTest(method=method, key=key):
                self.refused("simulate", self.job(), "--set", f"method.name={method}", "--set", f"method.{key}={value}", says=words)
