"""Checkpoints that nodes keep in their memory or on their disks (`checkpoint.place`, and kind "peer"): after a failure the run goes on
from what the nodes still hold together, and ends with the weights of an undisturbed run."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE
from cli_test_train_data import TWO_NODES, TrainingCase
from endless_training import ranks_of

STEPS = 60
RUN = {"train.steps": STEPS, "train.schedule": "constant", "train.lr": 1e-3}
METHODS = {  # method -> keys of four ranks, two on each node
    "ddp": {"method.dp": 4},
    "zero2": {"method.dp": 4, "method.precision": "bf16"},
    "1f1b": {"method.pp": 2, "method.dp": 2},  # each node has a stage that the other lacks
    "pipedream-2bw": {"method.pp": 2, "method.dp": 2},
}


def sets(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def thread_states(pid):
    """/proc/.../status of each thread; of a thread that has just ended, nothing."""
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            yield (thread / "status").read_text()
        except OSError:
            yield ""


class NodeCheckpoints(TrainingCase):
    def setUp(self):
        super().setUp()
        self.memory = self.tmp / "memory"
        self.memory.mkdir()
        self.platform = self.tmp / "two.toml"
        self.platform.write_text(TWO_NODES)

    def keys(self, out, method, keys=()):
        return (
            RUN
            | {"cluster.name": str(self.platform)}
            | {"train.out": str(self.tmp / out), "method.name": method}
            | METHODS[method]
            | dict(keys)
        )

    def command(self, out, method, keys, *more):
        return [REHEARSE, "train", self.job(), *sets(self.keys(out, method, keys)), *more]

    def whole(self, method):
        self.json(*self.command("whole", method, {}, "--nproc", "4")[1:])
        return self.state_of("whole")

    def state_of(self, out, step=STEPS):
        folder = self.tmp / out / f"step-{step:08}"
        return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}

    def steps_in(self, out):
        path = self.tmp / out / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
        return [row["step"] for row in rows if "loss" in row]

    def await_steps(self, out, steps, *children):
        deadline = time.monotonic() + PATIENCE
        while len(self.steps_in(out)) < steps:
            self.assertTrue(all(child.poll() is None for child in children))
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def recoveries(self, out):
        return [json.loads(line) for line in (self.tmp / out / "recoveries.jsonl").read_text().splitlines()]

    def remove(self, folder):
        """Removes a folder into which ranks may still write."""
        deadline = time.monotonic() + PATIENCE
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.assertLess(time.monotonic(), deadline, f"{folder} comes back again and again")

    def await_stop(self, pid):
        """Returns when no thread of the process runs any more, after a SIGSTOP."""
        deadline = time.monotonic() + PATIENCE
        while not all(re.search(r"^State:\tT", status, re.M) for status in thread_states(pid)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)

    def killed(self, out, method, keys, ranks, lost=()):
        """A run whose ranks are killed after ten steps, and whose nodes' folders in `lost` are removed. Returns steps done by then."""
        keys = {"checkpoint.folder": str(self.memory), "train.save_every": 1, "recovery.restarts": 1} | keys
        with subprocess.Popen(
            self.command(out, method, keys, "--nproc", "4"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            self.await_steps(out, 10, child)
            pids = ranks_of(child.pid)
            for rank in ranks:
                os.kill(pids[rank], signal.SIGSTOP)
            for rank in ranks:
                self.await_stop(pids[rank])
            done = len(self.steps_in(out))
            for node in lost:
                self.remove(next(self.memory.glob(f"rehearse-*/node-{node}")))
            for rank in ranks:
                os.kill(pids[rank], signal.SIGKILL)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(self.steps_in(out), list(range(1, STEPS + 1)))  # each once
        self.assertEqual(list(self.memory.iterdir()), [])  # a run that has ended occupies no memory
        return done

    @pytest.mark.soak
    def test_memory_survives_the_death_of_processes(self):
        """Nothing is lost but the step that was under way, also of states that no other rank has."""
        for method in ("zero2", "1f1b"):
            with self.subTest(method):
                whole = self.whole(method)
                done = self.killed(f"cut-{method}", method, {"checkpoint.place": "memory", "checkpoint.full_every": 1000}, [2])
                note = self.recoveries(f"cut-{method}")[0]
                self.assertGreaterEqual(note["from_step"], done - 1)
                self.assertEqual(self.state_of(f"cut-{method}"), whole)
                shutil.rmtree(self.tmp / "whole")

    @pytest.mark.soak
    def test_peers_survive_the_death_of_a_node(self):
        for method in METHODS:
            with self.subTest(method):
                whole = self.whole(method)
                keys = {"checkpoint.kind": "peer", "checkpoint.full_every": 1000}
                done = self.killed(f"cut-{method}", method, keys, [2, 3], lost=[1])
                note = self.recoveries(f"cut-{method}")[0]
                # The snapshot of the last step may not have reached the other node yet.
                self.assertGreaterEqual(note["from_step"], done - 3)
                self.assertEqual(self.state_of(f"cut-{method}"), whole)
                shutil.rmtree(self.tmp / "whole")

    def test_a_damaged_checkpoint_of_nodes_is_passed_over_and_said(self):
        trace = self.tmp / "faults.toml"
        trace.write_text(
            'version = 1\n[[event]]\nkind = "checkpoint_flipped"\nrank = 1\nstep = 4\n[[event]]\nkind = "rank_dies"\nrank = 3\nstep = 6\n'
        )
        keys = {"checkpoint.place": "memory", "checkpoint.folder": str(self.memory), "checkpoint.full_every": 1000}
        keys |= {"train.save_every": 2, "train.steps": 8}
        said = r"the checkpoint of step 4 is passed over: \S+/node-0/step-00000004/rank-00001.safetensors: damaged, and no node has a copy"
        with self.subTest("a recovery"):
            command = self.command("cut", "zero2", keys | {"recovery.restarts": 1}, "--nproc", "4", "--faults", str(trace))
            done = self.rehearse(*command[1:])
            self.assertRegex(done.stderr, rf"rehearse: {said}")
            self.assertEqual([note["from_step"] for note in self.recoveries("cut")], [2])
        with self.subTest("--resume"):
            self.rehearse(*self.command("kept", "zero2", keys, "--nproc", "4", "--faults", str(trace))[1:], expect=1)
            done = self.rehearse(*self.command("kept", "zero2", keys, "--nproc", "4", "--resume")[1:])
            self.assertRegex(done.stdout, said)
            self.assertEqual(self.steps_in("kept"), list(range(1, 9)))

    @pytest.mark.soak
    def test_a_trace_takes_a_node_away(self):
        """Its ranks and its memory, while the step is computed."""
        whole = self.whole("1f1b")
        trace = self.tmp / "faults.toml"
        trace.write_text('version = 1\n[[event]]\nkind = "node_dies"\nnode = 1\nstep = 21\nphase = "backward"\n')
        keys = {"checkpoint.kind": "peer", "checkpoint.folder": str(self.memory), "train.save_every": 1, "recovery.restarts": 1}
        keys |= {"checkpoint.full_every": 1000, "recovery.policy": "spare", "recovery.spares": 2}
        command = self.command("cut", "1f1b", keys, "--nproc", "4", "--faults", str(trace))
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        note = self.recoveries("cut")[0]
        self.assertEqual(sorted(note["died"]), [2, 3], done.stderr)
        self.assertGreaterEqual(note["from_step"], 18)
        self.assertEqual(self.state_of("cut"), whole)

    @pytest.mark.soak
    def test_without_peers_a_node_takes_its_part_with_it(self):
        """Then the newest checkpoint on the shared disk counts."""
        whole = self.whole("1f1b")
        keys = {"checkpoint.place": "memory", "checkpoint.full_every": 4}
        self.killed("cut", "1f1b", keys, [2, 3], lost=[1])
        note = self.recoveries("cut")[0]
        self.assertEqual(note["from_step"] % 4, 0)
        self.assertGreaterEqual(note["from_step"], 4)
        self.assertEqual(self.state_of("cut"), whole)

    @pytest.mark.soak
    def test_parts_travel_between_hosts_that_share_no_memory(self):
        """Two processes, each with a memory of its own. The first host's is lost; it gets everything from the other one."""
        self.platform.write_text(TWO_NODES.replace('"CPU core", "CPU core"', '"CPU core"'))
        method, more = "1f1b", {"method.dp": 1, "checkpoint.kind": "peer", "checkpoint.full_every": 1000, "train.save_every": 1}
        whole = self.tmp / "whole"
        self.json("train", self.job(), *sets(self.keys("whole", method, {"method.dp": 1})), "--nproc", "2")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]

        def start(rank, *flags):
            folder = self.tmp / f"host{rank}"
            folder.mkdir(exist_ok=True)
            names = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            names["REHEARSE_SECRET"] = "5e" * 32
            command = self.command("cut", method, more | {"checkpoint.folder": str(folder)}, *flags)
            env = os.environ | {name: str(value) for name, value in names.items()}
            return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        first = [start(rank) for rank in range(2)]
        self.await_steps("cut", 10, *first)
        for child in first:
            child.kill()
        for child in first:
            child.communicate()
        shutil.rmtree(self.tmp / "host0")
        for child in [start(rank, "--resume") for rank in range(2)]:
            _, said = child.communicate(timeout=PATIENCE)
            self.assertEqual(child.returncode, 0, said)
        self.assertEqual(self.steps_in("cut"), list(range(1, STEPS + 1)))
        expected = {path.name: path.read_bytes() for path in (whole / f"step-{STEPS:08}").glob("*.safetensors")}
        self.assertEqual(self.state_of("cut"), expected)

    @pytest.mark.soak
    def test_a_new_run_does_not_find_the_memory_of_an_old_one(self):
        keys = {"checkpoint.place": "memory", "checkpoint.folder": str(self.memory), "train.save_every": 1}
        with subprocess.Popen(
            self.command("out", "ddp", keys, "--nproc", "4"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            self.await_steps("out", 5, child)
            child.kill()
        self.assertTrue(list(self.memory.iterdir()))
        shutil.rmtree(self.tmp / "out")
        one = self.json(*self.command("out", "ddp", keys, "--nproc", "4")[1:])
        self.assertEqual((one["first_step"], one["end_step"]), (0, STEPS))
        self.assertEqual(list(self.memory.iterdir()), [])

    def test_bad_keys(self):
        self.refused(
            *("train", self.job(), "--nproc", "2", "--set", "checkpoint.kind=peer"), says=["checkpoint.kind", "two nodes", "memory"]
        )
        own_steps = ("--set", "checkpoint.kind=peer", "--set", "method.name=ps-ssp", "--set", "method.dp=1")
        self.refused(*("train", self.job(), "--nproc", "2", *own_steps), says=["two nodes", '"sharded" fits'])
        self.refused(*("train", self.job(), "--nproc", "2", "--set", "checkpoint.place=local"), says=["checkpoint.folder", "local"])
        keys = {"checkpoint.place": "memory", "checkpoint.folder": str(self.tmp / "no")}
        self.refused(*("train", self.job(), "--nproc", "2", *sets(keys)), says=["checkpoint.folder", "no such folder"])
        self.refused(*("simulate", self.job(), "--set", "checkpoint.folder=/tmp"), says=["checkpoint.folder", "local", "memory", "peer"])
