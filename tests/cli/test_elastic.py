"""`rehearse train --nnodes MIN:MAX`: launchers that come while a run goes on join it between two steps, those that die leave it, and none
of them is needed from the beginning to the end."""

import json
import os
import signal
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TrainingCase
from endless_training import ranks_of

KEYS = {
    "train.global_batch": 12,
    "train.save_every": 10,
    "checkpoint.kind": "async",
    "train.schedule": "constant",
    "train.lr": 1e-3,
    "train.warmup_steps": 10,
    "recovery.restarts": 3,
}


def sets(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.soak
class Elastic(TrainingCase):
    def node(self, nnodes, steps, keys=()):
        """A launcher with one rank."""
        keys = KEYS | {"train.steps": steps, "method": '{name="ddp"}'} | dict(keys)
        command = [REHEARSE, "train", self.job(), "--nproc", "1", "--nnodes", nnodes, "--quiet", *sets(keys)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.finish, child)
        return child

    @staticmethod
    def finish(child):
        child.kill()
        child.wait()
        child.stderr.close()

    def rows(self):
        path = self.tmp / "out/metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [row for row in (json.loads(line) for line in lines if line.endswith("\n")) if "loss" in row]

    def notes(self):
        """What was written down of each recovery."""
        return [json.loads(line) for line in (self.tmp / "out/recoveries.jsonl").read_text().splitlines()]

    def starts(self):
        """Ranks of each start so far."""
        found = sorted((self.tmp / "out/rendezvous").glob("start-*.json"))
        return [one["ranks"] for one in (json.loads(path.read_text()) for path in found) if not one["over"]]

    def until(self, what, *alive):
        deadline = time.monotonic() + PATIENCE
        while not what():
            for child in alive:
                self.assertIsNone(child.poll(), child.poll() is not None and child.stderr.read())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def end(self, *children):
        for child in children:
            _, said = child.communicate(timeout=PATIENCE)
            self.assertEqual(child.returncode, 0, said)

    def test_nodes_come_and_go(self):
        """Also the first one, which has rank 0 and leads."""
        steps = 10**6
        first = self.node("1:3", steps)
        self.until(lambda: len(self.rows()) > 10, first)
        second = self.node("1:3", steps)
        self.until(lambda: self.starts()[-1] == 2, first, second)
        joined = len(self.rows())
        self.until(lambda: len(self.rows()) > joined + 20, first, second)
        ranks = ranks_of(first.pid).values()
        first.kill()  # its rank dies with it
        self.until(lambda: self.starts()[-1] == 1, second)
        left = len(self.rows())
        third = self.node("1:3", steps)
        self.until(lambda: self.starts()[-1] == 2, second, third)
        self.assertTrue(all(not os.path.exists(f"/proc/{pid}/exe") for pid in ranks))
        back = len(self.rows())
        self.until(lambda: len(self.rows()) > back + 20, second, third)
        second.send_signal(signal.SIGINT)
        for child in (second, third):
            _, said = child.communicate(timeout=PATIENCE)
            self.assertIn(child.returncode, (0, 130), said)
        self.assertEqual(self.starts(), [1, 2, 1, 2])
        steps = len(self.rows())
        self.assertGreater(left, joined - 20)
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, steps + 1)))  # each once
        # Only the launcher that was killed could not take its file away.
        left = [path.stem.rpartition("-")[2] for path in (self.tmp / "out/rendezvous").glob("node-*")]
        self.assertEqual(left, [str(first.pid)])
        # The mathematics are those of one process.
        mixed = [row["loss"] for row in self.rows()]
        keys = KEYS | {"train.steps": steps, "method.dp": 1, "train.out": str(self.tmp / "alone"), "recovery.restarts": 0}
        self.json("train", self.job(), *sets(keys))
        alone = [json.loads(line) for line in (self.tmp / "alone/metrics.jsonl").read_text().splitlines()]
        alone = [row["loss"] for row in alone if "loss" in row]
        for a, b in zip(mixed, alone, strict=True):
            self.assertAlmostEqual(a, b, delta=5e-3 * b)

    def test_a_rank_that_dies_is_replaced_where_it_was(self):
        nodes = [self.node("2:2", 400), self.node("2:2", 400)]
        self.until(lambda: len(self.rows()) > 10, *nodes)
        os.kill(ranks_of(nodes[1].pid).popitem()[1], signal.SIGKILL)
        self.end(*nodes)
        self.assertEqual(self.starts(), [2, 2])
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 401)))
        notes = self.notes()
        self.assertEqual([(n["number"], len(n["died"]), n["ranks"]) for n in notes], [(1, 1, 2)])
        self.assertGreater(notes[0]["down_s"], 0)

    def test_a_rank_that_is_stopped_is_replaced(self):
        """The other node's ranks report that it is silent. Its own launcher hears of that and kills it, long before the 10 s for ranks that
        end by themselves."""
        keys = {"run.timeout": "2s", "run.heartbeat": "500ms"}
        nodes = [self.node("2:2", 4000, keys), self.node("2:2", 4000, keys)]
        self.until(lambda: len(self.rows()) > 10, *nodes)
        os.kill(ranks_of(nodes[1].pid).popitem()[1], signal.SIGSTOP)
        self.until(lambda: self.starts() == [2, 2], *nodes)
        again = len(self.rows())
        self.until(lambda: len(self.rows()) > again + 10, *nodes)
        nodes[0].send_signal(signal.SIGINT)
        for child in nodes:
            _, said = child.communicate(timeout=PATIENCE)
            self.assertIn(child.returncode, (0, 130), said)
        (note,) = self.notes()
        self.assertLess(note["down_s"], 10)

    def test_too_few_nodes(self):
        child = self.node("2:3", 10, {"run.connect_timeout": "2s"})
        _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 1)
        self.assertIn("--nnodes 2:3: 1 node is there after 2 s", said)

    def test_an_interrupt_ends_the_run_on_all_nodes(self):
        nodes = [self.node("2:2", 100000), self.node("2:2", 100000)]
        self.until(lambda: len(self.rows()) > 10, *nodes)
        nodes[1].send_signal(signal.SIGINT)
        for child in nodes:
            _, said = child.communicate(timeout=PATIENCE)
            self.assertIn(child.returncode, (0, 130), said)
        self.assertEqual(nodes[1].returncode, 130)
        self.assertTrue(list((self.tmp / "out").glob("step-*")))


class Refusals(TrainingCase):
    def test_bad_words(self):
        for words, says in (
            (["--nproc", "1", "--nnodes", "0:2"], "MIN:MAX"),
            (["--nproc", "1", "--nnodes", "3:2"], "MIN:MAX"),
            (["--nproc", "1", "--nnodes", "2:x"], "MIN:MAX"),
            (["--nnodes", "1:2"], "--nproc"),
            (["--nproc", "1", "--nnodes", "1:2", "--set", "recovery.policy=spare"], "recovery.policy"),
        ):
            self.refused("train", self.job(), "--set", 'method={name="ddp"}', *words, says=[says])
