"""`recovery.restarts`: ranks that are killed start again from the newest checkpoint, and the run ends as if nothing had happened. With
policy spare a process that stood by takes the place; with shrink the ranks that are left go on with the same batch; with grow others join
them later. The processes that are left do not start anew."""

import json
import os
import re
import shutil
import signal
import statistics
import time

import pytest
from cli_test_case import PATIENCE
from cli_test_train_data import TWO_NODES
from endless_training import ranks_of
from recovery_case import SAVING, STEPS, RecoveryCase, sets

# A checkpoint that takes long by itself, so that the factors by which it is slowed are small: they also apply to the time in which a
# busy machine lets the process wait.
LARGE = {"model.vocab": 100_000}


class Recovery(RecoveryCase):
    def saved_s(self, said):
        """The seconds of each save that a run tells of, by step."""
        lines = re.findall(r"step (\d+)/\d+  saved .*\(([0-9.]+) (\w+)\)", said)
        return {int(step): float(value) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit] for step, value, unit in lines}

    @pytest.mark.soak
    def test_restart_ends_with_the_weights_of_an_undisturbed_run(self):
        self.whole("whole", 2, {})
        with self.start("cut", 2, {"recovery.restarts": 3}) as child:
            first = self.kill_after(child, "cut", 0, 1)
            time.sleep(0.5)  # the ranks start again
            second = self.kill_after(child, "cut", first, 0)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        found = {key: json.loads(text)[key] for key in ("first_step", "end_step", "starts", "losses")}
        self.assertEqual(found, {"first_step": 0, "end_step": STEPS, "starts": 3, "losses": list(self.losses_of("cut").values())})
        self.assertIn("recovery 1 of 3 (restart): 2 ranks go on from step", said)
        notes = self.recoveries("cut")
        self.assertEqual([(n["number"], n["died"], n["ranks"]) for n in notes], [(1, [1], 2), (2, [0], 2)])
        for note, seen in zip(notes, (first, second), strict=True):
            self.assertGreaterEqual(note["from_step"], seen)  # nothing older than the checkpoint that was there
            self.assertGreater(note["down_s"], 0)
        self.assertEqual(list(self.losses_of("cut")), list(range(1, STEPS + 1)))  # every step once
        self.assertEqual(self.state_of("cut", STEPS), self.state_of("whole", STEPS))

    @pytest.mark.soak
    def test_before_the_first_checkpoint_the_run_begins_anew(self):
        keys = {"recovery.restarts": 1, "train.save_every": 0, "train.steps": 200}
        with self.start("anew", 2, keys) as child:
            deadline = time.monotonic() + PATIENCE
            while not (self.tmp / "anew/metrics.jsonl").exists() or len(self.losses_of("anew")) < 3:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            os.kill(ranks_of(child.pid)[1], signal.SIGKILL)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(list(self.losses_of("anew")), list(range(1, 201)))
        self.assertEqual([n["from_step"] for n in self.recoveries("anew")], [0])

    @pytest.mark.soak
    def test_shrink_goes_on_with_the_ranks_that_are_left(self):
        keys = {"method.dp": 4, "recovery.policy": "shrink", "recovery.restarts": 2}
        whole = self.whole("whole", 4, {"method.dp": 4})
        with self.start("fewer", 4, keys) as child:
            self.kill_after(child, "fewer", 0, 2)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        one = json.loads(text)
        # Three ranks are left; a batch of eight is divided among two.
        self.assertEqual((one["world_size"], one["end_step"], one["global_batch"]), (2, STEPS, 8))
        note = self.recoveries("fewer")[0]
        self.assertEqual((note["policy"], note["died"], note["ranks"]), ("shrink", [2], 2))
        self.assertEqual(list(self.losses_of("fewer")), list(range(1, STEPS + 1)))
        # The same batches in the same order: the losses differ by rounding alone.
        self.assertAlmostEqual(one["last_loss"], whole["last_loss"], delta=1e-3 * whole["last_loss"])

    @pytest.mark.soak
    def test_spare_takes_the_place_and_the_other_process_stays(self):
        self.whole("whole", 2, {})
        keys = {"recovery.policy": "spare", "recovery.spares": 1, "recovery.restarts": 2}
        with self.start("spared", 2, keys) as child:
            first = self.kill_after(child, "spared", 0, 1)
            survivor = ranks_of(child.pid)[0]
            while not (self.tmp / "spared/recoveries.jsonl").exists():
                time.sleep(0.01)
            self.kill_after(child, "spared", first, 0)  # rank 0: a new process takes its place, no spare is left
            gone = time.monotonic() + PATIENCE
            while survivor in ranks_of(child.pid).values():
                self.assertLess(time.monotonic(), gone)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(json.loads(text)["end_step"], STEPS)
        notes = self.recoveries("spared")
        self.assertEqual([(n["policy"], n["died"], n["ranks"]) for n in notes], [("spare", [1], 2), ("spare", [0], 2)])
        self.assertEqual(list(self.losses_of("spared")), list(range(1, STEPS + 1)))
        self.assertEqual(self.state_of("spared", STEPS), self.state_of("whole", STEPS))

    @pytest.mark.soak
    def test_shrink_without_rank_0(self):
        keys = {"method.dp": 4, "recovery.policy": "shrink", "recovery.restarts": 1}
        with self.start("headless", 4, keys) as child:
            self.kill_after(child, "headless", 0, 0)
            left = set(ranks_of(child.pid).values())
            while not (self.tmp / "headless/recoveries.jsonl").exists():
                self.assertIsNone(child.poll())
                time.sleep(0.01)
            self.assertLessEqual(set(ranks_of(child.pid).values()), left)  # no process has started anew
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual((json.loads(text)["world_size"], json.loads(text)["end_step"]), (2, STEPS))
        self.assertEqual(list(self.losses_of("headless")), list(range(1, STEPS + 1)))

    @pytest.mark.soak
    def test_grow_joins_without_a_restart(self):
        keys = {"method.dp": 4, "recovery.policy": "grow", "recovery.restarts": 1, "train.steps": 2 * STEPS}
        whole = self.whole("whole", 4, {"method.dp": 4, "train.steps": 2 * STEPS})
        with self.start("grown", 4, keys) as child:
            self.kill_after(child, "grown", 0, 1)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        one = json.loads(text)
        self.assertEqual((one["world_size"], one["end_step"]), (4, 2 * STEPS))
        notes = self.recoveries("grown")
        self.assertEqual([(n["number"], n["died"], n["joined"], n["ranks"]) for n in notes], [(1, [1], 0, 2), (1, [], 2, 4)])
        self.assertIn("2 ranks join (grow): 4 ranks go on from step", said)
        # Ranks join between two steps: none is done again.
        self.assertEqual(list(self.losses_of("grown")), list(range(1, 2 * STEPS + 1)))
        self.assertAlmostEqual(one["last_loss"], whole["last_loss"], delta=1e-3 * whole["last_loss"])

    @pytest.mark.soak
    def test_replica_leaves_out_the_samples_of_the_lost_one(self):
        """The step goes on with the other replicas. Its mathematics are those of one process that trains the same samples."""
        memory = self.tmp / "memory"
        memory.mkdir()
        keys = {
            "method.dp": 4,
            "train.save_every": 1,
            "checkpoint.place": "memory",
            "checkpoint.folder": str(memory),
            "checkpoint.full_every": 1000,
            "recovery.policy": "replica",
            "recovery.replacement": "1h",
            "recovery.restarts": 1,
            "train.steps": 120,
            "train.warmup_steps": 12,
        }
        with self.start("less", 4, keys) as child:
            while not (self.tmp / "less/metrics.jsonl").exists() or len(self.losses_of("less")) < 20:
                self.assertIsNone(child.poll())
                time.sleep(0.01)
            os.kill(ranks_of(child.pid)[1], signal.SIGKILL)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        one = json.loads(text)
        self.assertEqual((one["world_size"], one["global_batch"], one["end_step"]), (3, 6, 120))
        note = self.recoveries("less")[0]
        self.assertEqual((note["died"], note["ranks"]), ([1], 3))
        # Nothing is lost: at most the step under way is done again.
        lost = note["from_step"]
        self.assertEqual(list(self.losses_of("less")), list(range(1, 121)))
        # One process: the same steps with all samples, then without those of replica 1.
        alone = SAVING | {"method.dp": 1, "checkpoint.kind": "sharded", "train.warmup_steps": 12, "train.out": str(self.tmp / "alone")}
        self.json("train", self.job(), *sets(alone | {"train.steps": lost, "train.save_every": 0}))
        rest = {"train.steps": 120, "train.global_batch": 6, "train.left_out": "[2,4]", "train.save_every": 0}
        self.json("train", self.job(), *sets(alone | rest), "--resume")
        expected, got = self.losses_of("alone"), self.losses_of("less")
        for step in range(1, 121):
            self.assertAlmostEqual(got[step], expected[step], delta=1e-3 * expected[step])
        # With all samples the losses differ: the comparison can fail.
        self.json("train", self.job(), *sets(alone | {"train.out": str(self.tmp / "other"), "train.steps": 120, "train.save_every": 0}))
        other = self.losses_of("other")
        self.assertGreater(max(abs(other[step] - got[step]) for step in range(lost + 1, 121)), 1e-2 * expected[120])

    @pytest.mark.soak
    def test_a_lost_replica_comes_back(self):
        keys = {"method.dp": 2, "recovery.policy": "replica", "recovery.restarts": 1, "train.steps": 2 * STEPS}
        with self.start("back", 2, keys) as child:
            self.kill_after(child, "back", 0, 0)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual((json.loads(text)["world_size"], json.loads(text)["global_batch"]), (2, 8))
        self.assertEqual([(n["ranks"], n["joined"]) for n in self.recoveries("back")], [(1, 0), (2, 1)])
        self.assertEqual(list(self.losses_of("back")), list(range(1, 2 * STEPS + 1)))

    @pytest.mark.soak
    def test_a_slow_rank_leaves(self):
        trace = self.trace({"kind": "slows", "rank": 2, "step": 70, "factor": 20.0})
        keys = {"method.dp": 4, "recovery.policy": "shrink", "recovery.restarts": 1, "recovery.slow_factor": 5}
        with self.start("evicted", 4, keys, "--faults", trace) as child:
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertRegex(said, r"rank 2.*it is slow: it computes [0-9.]+ times as long as it should \(recovery.slow_factor = 5\)")
        self.assertEqual([(n["died"], n["ranks"]) for n in self.recoveries("evicted")], [([2], 2)])
        self.assertEqual((json.loads(text)["world_size"], json.loads(text)["end_step"]), (2, STEPS))
        self.refused("train", self.job(), "--nproc", "2", "--set", "recovery.slow_factor=1.2", says=["recovery.slow_factor", "1.5"])

    @pytest.mark.soak
    def test_a_slow_rank_hands_samples_to_others(self):
        """The processes stay, and so do the batch and its samples: the losses differ by rounding alone."""
        trace = self.trace({"kind": "slows", "rank": 2, "step": 45, "factor": 20.0})
        keys = {"method.dp": 4, "train.global_batch": 16, "train.steps": 140}
        whole = self.whole("whole", 4, keys)
        keys |= {"recovery.restarts": 1, "recovery.slow_factor": 5, "recovery.slow_rank": "rebalance"}
        with self.start("balanced", 4, keys, "--faults", trace) as child:
            before = self.pids_after(child, "balanced", 1)
            while not (self.tmp / "balanced/recoveries.jsonl").exists():
                self.assertIsNone(child.poll())
                time.sleep(0.01)
            self.assertEqual(ranks_of(child.pid), before)
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertRegex(
            said, r"rank 2: it is slow: it computes [0-9.]+ times as long .*; shares \[.*\] \(restart\): 4 ranks go on from step"
        )
        (note,) = self.recoveries("balanced")
        self.assertEqual((note["number"], note["died"], note["joined"], note["ranks"]), (0, [], 0, 4))
        self.assertEqual((sum(note["shares"]), min(note["shares"])), (16, note["shares"][2]))
        self.assertLess(note["shares"][2], 3, note)  # of 4, twenty times as slow
        self.assertGreaterEqual(note["from_step"], 80)  # two windows of 20 steps in which it is slow
        one = json.loads(text)
        self.assertEqual((one["world_size"], one["global_batch"], one["end_step"]), (4, 16, 140))
        self.assertEqual(list(self.losses_of("balanced")), list(range(1, 141)))  # no step is done again
        got, expected = self.losses_of("balanced"), self.losses_of("whole")
        for step in range(1, 141):
            self.assertAlmostEqual(got[step], expected[step], delta=1e-3 * expected[step])
        self.assertAlmostEqual(one["last_loss"], whole["last_loss"], delta=1e-3 * whole["last_loss"])

    def test_a_rebalance_that_cannot_be(self):
        slow = {"recovery.slow_factor": 3, "recovery.slow_rank": "rebalance", "recovery.restarts": 1}
        for keys, says in (
            (slow | {"recovery.slow_factor": 0}, ["recovery.slow_rank", "recovery.slow_factor"]),
            (slow | {"recovery.restarts": 0}, ["recovery.slow_rank", "recovery.restarts > 0"]),
            (slow | {"adaptive.balance_every": 20}, ["recovery.slow_rank", "adaptive.balance_every", "evict"]),
            (slow | {"method.name": "1f1b", "method.pp": 2, "method.dp": 1}, ["recovery.slow_rank", "method.dp >= 2", "1f1b"]),
        ):
            self.refused("train", self.job(), "--nproc", "2", *sets(keys), says=says)
        self.refused("train", self.job(), *sets(slow), says=["recovery.slow_rank", "--nproc"])

    def test_a_trace_of_faults_is_survived_event_by_event(self):
        """A rank dies in each phase, during a save and during a recovery; one freezes and goes on, one is slow for a while."""
        trace = self.trace(
            *({"kind": "rank_dies", "rank": i % 2, "step": 4 + i, "phase": p} for i, p in enumerate(("forward", "backward", "update"))),
            {"kind": "rank_dies", "rank": 1, "step": 12, "phase": "exchange"},
            {"kind": "rank_dies", "rank": 0, "step": 0, "phase": "recovery"},
            {"kind": "freezes", "rank": 1, "step": 14, "duration": "300ms"},
            {"kind": "slows", "rank": 0, "step": 15, "duration": "100ms", "factor": 3.0},
            {"kind": "rank_dies", "rank": 0, "step": 20, "phase": "save"},
        )
        self.assertEqual(len(self.struck(trace, 8, {})), 6)  # as many as ranks died

    @pytest.mark.soak
    def test_ranks_that_never_end_are_killed_at_the_verdict(self):
        """One hangs, one is stopped for good. By itself the first ends after 5 s, and the launcher waits 10 s for others that do not."""
        trace = self.trace({"kind": "hangs", "rank": 1, "step": 10, "phase": "exchange"}, {"kind": "freezes", "rank": 0, "step": 20})
        hung, stopped = self.struck(trace, 2, {"run.timeout": "2s", "run.heartbeat": "500ms"})
        self.assertEqual([(n["died"], n["hung"]) for n in (hung, stopped)], [([], [1]), ([], [0])])
        self.assertIn("rank 1 ", self.said)
        self.assertIn("lane dp has been at step 10, op", self.said)
        self.assertGreater(min(hung["down_s"], stopped["down_s"]), 2)  # run.timeout passes before it is noticed
        self.assertLess(hung["down_s"], 7)
        self.assertLess(stopped["down_s"], 12)

    def struck(self, trace, events, keys):
        """Runs 40 steps under a trace of so many events; returns the recoveries."""
        keys = {"train.steps": 40} | keys
        self.whole("whole", 2, keys)
        with self.start("struck", 2, keys | {"recovery.restarts": 20}, "--faults", trace) as child:
            _, said = child.communicate(timeout=PATIENCE)
        self.said = said
        self.assertEqual(child.returncode, 0, said)
        lines = (self.tmp / "struck/faults.jsonl").read_text().splitlines()
        self.assertEqual(sorted(json.loads(line)["event"] for line in lines), list(range(events)))  # each once
        self.assertEqual(list(self.losses_of("struck")), list(range(1, 41)))
        self.assertEqual(self.state_of("struck", 40), self.state_of("whole", 40))
        return self.recoveries("struck")

    def test_a_trace_goes_on_with_fewer_ranks(self):
        """After a recovery the trace names a rank that is no more."""
        trace = self.trace(
            {"kind": "rank_dies", "rank": 3, "step": 12},
            {"kind": "slows", "rank": 0, "step": 20, "duration": "10ms", "factor": 2.0},
            {"kind": "hangs", "rank": 3, "step": 25, "duration": "60s"},
        )
        keys = {"method.dp": 4, "recovery.policy": "shrink", "recovery.restarts": 1, "train.steps": 30}
        with self.start("fewer", 4, keys, "--faults", trace) as child:
            text, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(json.loads(text)["world_size"], 2)
        self.assertIn("event 3 (hangs) did not strike: there was no rank 3 any more: the run ended with 2 ranks", said)
        self.assertEqual([json.loads(line)["event"] for line in (self.tmp / "fewer/faults.jsonl").read_text().splitlines()], [0, 1])

    @pytest.mark.soak
    def test_a_slow_disk(self):
        """Saves take longer from the event on, also after a rank has died; the mathematics stay. A node's disk counts for its ranks."""
        slow = {"kind": "disk_slow", "step": 20, "factor": 100.0}
        for number, (kind, more) in enumerate((("sharded", {}), ("async", {"node": 0}))):
            with self.subTest(kind):
                out = f"slow-{number}"
                trace = self.trace(slow | more, {"kind": "rank_dies", "rank": 1, "step": 31})
                keys = {"train.steps": 40, "checkpoint.kind": kind, "recovery.restarts": 1, "train.out": str(self.tmp / out)}
                command = ["train", self.job(), "--nproc", "2", *sets(SAVING | keys), "--faults", trace]
                done = self.rehearse(*command)
                seconds = self.saved_s(done.stdout)
                before = statistics.median(seconds[step] for step in (5, 10, 15))
                after = statistics.median(seconds[step] for step in (25, 30, 35))
                self.assertGreater(after, 2 * before)
                self.assertEqual([json.loads(line)["event"] for line in (self.tmp / out / "faults.jsonl").read_text().splitlines()], [0, 1])
                self.whole("whole", 2, keys | {"train.out": str(self.tmp / "whole"), "recovery.restarts": 0})
                self.assertEqual(self.state_of(out, 40), self.state_of("whole", 40))
                shutil.rmtree(self.tmp / "whole")

    @pytest.mark.soak
    def test_saves_that_take_longer_than_the_timeouts(self):
        """Neither the ranks that wait for the one that writes (full) nor training that waits for a save behind it (async) end the run."""
        for kind in ("full", "async"):
            with self.subTest(kind):
                factor, slowest = 1.0, 0.0
                while slowest < 8:  # seconds; a factor of 1 tells how long a save takes here
                    factor *= 1 if slowest == 0 else max(2, 10 / slowest)
                    trace = self.trace({"kind": "disk_slow", "step": 2, "factor": factor})
                    keys = {"train.steps": 11, "checkpoint.kind": kind, "train.out": str(self.tmp / f"{kind}-{factor}")}
                    keys |= {"run.timeout": "2s", "run.connect_timeout": "4s"} | LARGE
                    done = self.rehearse("train", self.job(), "--nproc", "2", *sets(SAVING | keys), "--faults", trace)
                    saves = self.saved_s(done.stdout)
                    slowest = max(saves.values())
                self.assertEqual(list(saves), [5, 10, 11])

    @pytest.mark.soak
    def test_a_read_that_takes_longer_than_the_timeouts(self):
        """After a recovery one of two nodes reads the checkpoint much more slowly than the other, which waits for it."""
        platform = self.tmp / "two.toml"
        platform.write_text(TWO_NODES)
        factor, down = 1.0, 0.0
        while down < 12:  # seconds, of which at least 8 are reads; a factor of 1 tells how long a recovery takes here
            factor *= 1 if down == 0 else max(2, 14 / down)
            dies = {"kind": "rank_dies", "rank": 0, "step": 7}
            slow = {"kind": "disk_slow", "node": 1, "step": 5, "phase": "recovery", "factor": factor, "duration": "1ms"}
            keys = {"cluster.name": platform, "method.dp": 4, "train.steps": 11, "checkpoint.kind": "full", "recovery.restarts": 1}
            keys |= {"train.out": str(self.tmp / f"{factor}"), "run.timeout": "2s", "run.connect_timeout": "4s"} | LARGE
            self.rehearse("train", self.job(), "--nproc", "4", *sets(SAVING | keys), "--faults", self.trace(dies, slow))
            [recovery] = self.recoveries(f"{factor}")
            self.assertEqual(recovery["from_step"], 5)
            down = recovery["down_s"]

    def test_damaged_checkpoints_are_passed_over(self):
        """Nothing is lost but the steps since the newest checkpoint that is whole. All ranks stop for these checkpoints, so their order
        with the deaths is known."""
        trace = self.trace(
            {"kind": "checkpoint_flipped", "rank": 0, "step": 25, "phase": "save"},
            {"kind": "rank_dies", "rank": 1, "step": 27},
            {"kind": "checkpoint_truncated", "rank": 0, "step": 30, "phase": "save"},
            {"kind": "rank_dies", "rank": 0, "step": 31},
        )
        notes = self.struck(trace, 4, {"checkpoint.kind": "sharded"})
        self.assertEqual([n["from_step"] for n in notes], [20, 25])
        for step, what in ((25, "checksum"), (30, "truncated")):
            path = self.tmp / f"struck/step-{step:08}/rank-00000.safetensors"
            self.assertRegex(self.said, rf"rehearse: the checkpoint of step {step} is passed over: {path}: .*{what}")

    def test_events_that_ranks_cannot_replay(self):
        for event, says in (
            ({"kind": "rank_dies", "rank": 0, "at": "10s"}, "keyed by time"),
            ({"kind": "node_returns", "node": 0, "step": 3}, "rank_dies, node_dies, freezes, hangs, slows, disk_full, disk_slow"),
            ({"kind": "disk_full", "step": 3}, "target is a rank"),
            ({"kind": "freezes", "node": 0, "step": 3}, "target is a rank"),
        ):
            path = self.trace({"kind": "rank_dies", "rank": 1, "step": 2}, event)
            self.refused("train", self.job(), "--nproc", "2", "--faults", path, says=[str(path), "event 2", event["kind"], says])
        path = self.trace({"kind": "rank_dies", "rank": 7, "step": 2})
        self.refused("train", self.job(), "--nproc", "2", "--faults", path, says=[str(path), "rank", "7"])
        keys = ["--set", "faults.model=llama3-h100"]
        self.refused("train", self.job(), "--nproc", "2", *keys, says=["faults.model", "rehearse faults"])

    @pytest.mark.soak
    def test_too_few_are_left(self):
        keys = {"method.name": "1f1b", "method.pp": 2, "method.dp": 1, "recovery.policy": "shrink", "recovery.restarts": 2}
        with self.start("few", 2, keys) as child:
            self.kill_after(child, "few", 0, 1)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 1, said)
        self.assertIn("recovery.policy = shrink: 1 of 2 ranks are left", said)

    @pytest.mark.soak
    def test_the_last_failure_ends_the_run(self):
        with self.start("over", 2, {"recovery.restarts": 0}) as child:
            self.kill_after(child, "over", 0, 1)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 1, said)
        self.assertNotIn("recovery", said)
        self.assertFalse((self.tmp / "over/recoveries.jsonl").exists())

    def test_what_only_predictions_know_is_refused(self):
        keys = {"recovery.policy": "replica", "recovery.restarts": 1, "method.name": "zero2"}
        self.refused(*("train", self.job(), "--nproc", "2", *sets(keys)), says=["recovery.policy", "whole replicas", "zero", "shrink"])
        for value, says in (("[1]", "pairs"), ("[4,2]", "rising"), ("[2,2]", "rising")):
            self.refused(*("train", self.job(), "--nproc", "2", "--set", f"train.left_out={value}"), says=["train.left_out", says])
