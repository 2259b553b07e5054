"""Strangers connect to the ports of a run while it trains, and say whatever comes to their minds. The run does not notice: no rank ends,
no descriptor is left open, and the weights are those of a run that nobody disturbed. docs/security.md says why."""

import hashlib
import os
import pathlib
import signal
import subprocess
import time

import pytest
from cli_test_case import REHEARSE
from cli_test_train_data import TrainingCase
from recovery_case import sets
from strangers import PATIENCE, children, descriptors, listening, visit
from test_multi_host import free_port

SECRET = "5e" * 32  # of every run here
# A step is the same in runs of different length.
SAME = {"train.schedule": "constant", "train.warmup_steps": 0, "train.lr": 1e-3}


class Strangers(TrainingCase):
    def begin(self, ranks, folder, *sets):
        """An endless run, after its first steps."""
        folder.mkdir()
        job = self.job(100000, folder=folder)
        words = [word for one in (f"method.dp={ranks}", *sets) for word in ("--set", one)]
        said = (folder / "said").open("w")
        self.addCleanup(said.close)
        command = [REHEARSE, "train", job, "--nproc", str(ranks), *words]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ | {"REHEARSE_SECRET": SECRET})
        self.addCleanup(run.kill)
        self.until(lambda: run.poll() is not None or len(self.losses(folder)) > 1)
        self.assertIsNone(run.poll(), (folder / "said").read_text())
        return run

    def until(self, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def end(self, run):
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 128 + signal.SIGTERM)

    def weights(self, folder, name):
        """{file: hash} of a checkpoint's tensors."""
        found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder / "out" / name).glob("*.safetensors")}
        self.assertTrue(found)
        return found

    def check(self, ranks, times):
        folder = self.tmp / "disturbed"
        run = self.begin(ranks, folder, *(f"{key}={value}" for key, value in SAME.items()))
        pids = children(run.pid)
        self.assertEqual(len(pids), ranks)
        places = sorted(set().union(*map(listening, pids)))
        self.assertEqual(len(places), 1 + ranks)  # rank 0's for control, and each rank's for data
        self.assertEqual({address for address, _ in places}, {"127.0.0.1"})
        before = {pid: len(descriptors(pid)) for pid in pids}
        visit(places, bytes.fromhex(SECRET), times)
        self.until(lambda: all(len(descriptors(pid)) <= before[pid] for pid in pids))
        self.assertEqual(children(run.pid), pids)
        self.assertIsNone(run.poll())
        self.end(run)
        said = (folder / "said").read_text()
        self.assertEqual(said.count("a connection from 127.0.0.1 is refused: it is no rank of this build"), 1, said)
        checkpoint = max(path.name for path in (folder / "out").glob("step-????????"))

        alone = self.tmp / "alone"
        alone.mkdir()
        job = self.job(int(checkpoint.removeprefix("step-")), folder=alone)
        self.rehearse("train", job, "--nproc", ranks, *sets({"method.dp": ranks} | SAME))
        self.assertEqual(self.weights(folder, checkpoint), self.weights(alone, checkpoint))

    def test_doctor_lists_the_ports_of_a_run(self):
        sets = ("--set", "run.transport=gloo")
        ports = self.json("doctor", self.job(), *sets)["ports"]
        self.assertEqual([p["what"] for p in ports if not p["proven"]], ["Gloo", "NCCL", "store of torchrun"])
        opened_by = {"rank 0; with --nproc, the launcher": 1, "each rank": 2}
        promised = [p["one_host"] for p in ports for _ in range(opened_by.get(p["opened_by"], 0)) if p["one_host"]]
        run = self.begin(2, self.tmp / "run", sets[1])
        opened = set().union(*map(listening, (run.pid, *children(run.pid))))
        self.assertEqual(sorted(address for address, _ in opened), sorted(promised))
        self.end(run)

    def test_doctor_lists_the_address_for_other_hosts(self):
        said = self.rehearse("doctor", self.job(), "--set", "run.interface=127.0.0.0/8").stdout
        self.assertRegex(said, r"control +yes +no +127\.0\.0\.1 +127\.0\.0\.1 +rank 0")
        self.assertRegex(said, r"data, .* +yes +no +127\.0\.0\.1 +127\.0\.0\.1 +each rank")
        self.assertRegex(said, r"Gloo +no +no +none +none +each rank")
        self.refused(
            "doctor",
            self.job(),
            "--set",
            "run.interface=ether9",
            says=['run.interface: "ether9" is no network interface', "lo (127.0.0.1)"],
        )

    def test_the_run_does_not_notice(self):
        self.check(ranks=2, times=240)

    @pytest.mark.soak
    def test_the_run_does_not_notice_ten_thousand(self):
        self.check(ranks=4, times=10000)

    def test_who_does_not_belong_to_the_run_is_refused_by_name(self):
        run = self.begin(2, self.tmp / "run")
        rank0, rank1 = children(run.pid)
        [(_, port)] = listening(rank0) & listening(run.pid)
        said = self.tmp / "run/said"

        def join(rank, world, secret):
            names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "REHEARSE_SECRET": secret}
            names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            env = os.environ | {name: str(value) for name, value in names.items()}
            sets = ("--set", f"method.dp={world}", "--set", f"train.global_batch={4 * world}")
            return self.rehearse("train", self.job(100000), *sets, env=env, expect=1).stderr

        self.assertIn("has another secret than this rank", join(1, 2, "ab" * 32))
        self.until(lambda: "is refused: it says that it is rank 1, but it has another secret" in said.read_text())
        self.assertIn("two processes are rank 1", join(1, 2, SECRET))
        self.assertIn("was started for 3 ranks, rank 0 for 2", join(2, 3, SECRET))
        self.assertEqual(children(run.pid), [rank0, rank1])
        for pid in (run.pid, rank0, rank1):
            self.assertNotIn(SECRET, pathlib.Path(f"/proc/{pid}/cmdline").read_text())
        self.end(run)
        self.assertNotIn(SECRET, said.read_text())

    def test_several_hosts_need_a_secret(self):
        names = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        env = os.environ | {name: str(value) for name, value in names.items()}
        said = self.rehearse("train", self.job(), env=env, expect=2).stderr
        for way in ("run.secret_file", "REHEARSE_SECRET", "run.trust_network = true"):
            self.assertIn(way, said)
        said = self.rehearse("train", self.job(), env=env | {"REHEARSE_SECRET": "hunter2"}, expect=2).stderr
        self.assertIn("environment variable REHEARSE_SECRET: it must have 64 hexadecimal digits", said)
        self.assertNotIn("hunter2", said)

    @pytest.mark.soak
    def test_the_user_may_trust_the_network(self):
        """This machine takes the place of two hosts."""
        common = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        command = [REHEARSE, "train", self.job(), "--set", "run.trust_network=true"]
        hosts = []
        for rank in range(2):
            env = os.environ | {name: str(value) for name, value in (common | {"RANK": rank}).items()}
            hosts.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        said = [host.communicate(timeout=PATIENCE)[0] for host in hosts]
        self.assertEqual([host.returncode for host in hosts], [0, 0], said)
        warning = "rehearse: run.trust_network = true: whoever reaches the ports of this run can join it or end it"
        self.assertEqual(said[0].splitlines()[0], warning)
        self.assertEqual(len(self.losses()), 12)
