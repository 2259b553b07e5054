"""The commands of docs/multi-host.md under real launchers, each on two nodes of a testbed: Slurm's srun and sbatch, Open MPI's mpirun,
torchrun. They train the same as --nproc. What a lost rank, a signal or a requeue does to a run is what the document says."""

import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import pytest
import slurm_cluster
import strangers
import testbed_case
from cli_test_case import PATIENCE, REHEARSE, ROOT
from test_multi_host import documented, free_port, python_with_torch

pytestmark = pytest.mark.soak

HOSTS = 2
ENDLESS = 100000


class Launchers(testbed_case.TestbedCase):
    """Runs a launcher's command on node0, where `rehearse` and the launchers are in PATH."""

    def use(self, ranks):
        """So many ranks on each node."""
        self.ranks_on_node = ranks
        self.env["RANKS"] = str(ranks)

    def setUp(self):
        super().setUp()
        self.tmp.chmod(0o755)
        self.bed = self.network(HOSTS)
        self.program("rehearse", f'exec "{REHEARSE}" "$@"')
        self.env = os.environ | {
            "PATH": f"{self.tmp}/bin:{os.environ['PATH']}",
            "NODES": str(HOSTS),
            "HEAD": "node0",
            "OTHER": "node1",
            "PORT": str(free_port()),
            # A test may run as root, for which Open MPI requires two confirmations.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        self.use(1)

    def program(self, name, text):
        path = self.tmp / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def begin(self, command, node="node0"):
        return self.bed.start(
            node, ["bash", "-c", command], cwd=self.tmp, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def job_of(self, steps=12, train=""):
        """The job file of the documented commands. `train`: further keys of that table."""
        path = self.tmp / "JOB.toml"
        text = pathlib.Path(self.job(steps)).read_text().replace("train = {", f"train = {{ {train}")
        path.write_text(text.replace("dp = 2", f"dp = {HOSTS * self.ranks_on_node}"))
        return path

    def check(self, command, nodes=("node0",)):
        self.job_of()
        hosts = [self.begin(command, node) for node in nodes]
        said = [host.communicate(timeout=PATIENCE)[0] for host in hosts]
        self.assertEqual([host.returncode for host in hosts], [0] * len(hosts), "\n".join(said))
        found = self.losses()
        self.assertEqual(len(found), 12)
        self.rehearse("train", self.tmp / "JOB.toml", "--overwrite", "--nproc", HOSTS)
        self.assertEqual(found, self.losses())

    def ranks(self):
        """{rank: process} of the run under way."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if not (path / "exe").readlink().name.startswith("rehearse"):
                    continue
                values = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for name in (b"SLURM_PROCID=", b"OMPI_COMM_WORLD_RANK=", b"RANK="):
                found |= {int(value[len(name) :]): int(path.name) for value in values if value.startswith(name)}
        return found

    def under_way(self, *commands, train=""):
        """An endless run under a launcher, after its first steps. `commands`: one for each of the first nodes."""
        self.job_of(ENDLESS, train)
        started = [self.begin(command, node) for command, node in zip(commands, self.bed.nodes, strict=False)]
        self.wait_for_steps({})
        self.assertEqual(set(self.ranks()), set(range(HOSTS * self.ranks_on_node)))
        return started[0] if len(started) == 1 else started

    def weights(self, folder, step):
        """{file: hash} of a checkpoint's tensors, once it is there."""
        path = folder / "out" / f"step-{step:08}"
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.glob("*.safetensors")}
        self.assertTrue(found)
        return found

    def check_strangers(self, *commands, has_file=False):
        """They come from a node to all ports of a run of four ranks, which does as a run that nobody disturbs: it has the same weights."""
        self.use(2)
        every = 20
        self.under_way(*commands, train=f"save_every = {every}, ")
        secret = self.file_of_secret() if has_file else bytes(32)
        ranks = self.ranks()
        before = {pid: len(strangers.descriptors(pid)) for pid in ranks.values()}
        places = set()
        for rank, pid in ranks.items():
            here = strangers.listening(pid)
            self.assertEqual({address for address, _ in here}, {self.bed.address[f"node{rank // self.ranks_on_node}"]})
            places |= here
        self.assertEqual(len(places), 1 + len(ranks))
        strangers.visit_from(self.bed.enter("node1"), places, secret, 10_000)
        saved = (len(self.losses()) // every + 1) * every
        disturbed = self.weights(self.tmp, saved)
        self.assertEqual(self.ranks(), ranks)
        deadline = time.monotonic() + 60
        while any(len(strangers.descriptors(pid)) > count for pid, count in before.items()):
            self.assertLess(time.monotonic(), deadline, "a descriptor is left open")
            time.sleep(0.1)
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        alone = self.tmp / "alone"
        sets = ("--set", f"train.out={alone}/out", "--set", f"train.save_every={saved}")
        with subprocess.Popen(
            [REHEARSE, "train", self.tmp / "JOB.toml", "--nproc", str(len(ranks)), *sets], stdout=subprocess.DEVNULL
        ) as run:
            self.addCleanup(run.kill)
            self.assertEqual(disturbed, self.weights(alone, saved))
            run.terminate()

    def file_of_secret(self):
        path = self.tmp / "run.secret"
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        return bytes.fromhex(path.read_text())

    def checkpoints(self):
        return sorted(path.name for path in (self.tmp / "out").glob("step-????????"))

    def end_of(self, started, within):
        began = time.monotonic()
        said = started.communicate(timeout=PATIENCE)[0]
        self.assertLess(time.monotonic() - began, within, said)
        print(f"{self.id()}: status {started.returncode} after {time.monotonic() - began:.1f} s")
        return said


@unittest.skipIf(python_with_torch() is None, "no Python with torch: tools/setup bench makes one")
class Torchrun(Launchers):
    def setUp(self):
        super().setUp()
        self.program("torchrun", f'exec "{python_with_torch()}" -m torch.distributed.run "$@"')

    @pytest.mark.long
    def test_trains_the_same(self):
        self.check(documented()["torchrun"], nodes=self.bed.nodes)

    def agents(self):
        return self.under_way(*["exec " + documented()["torchrun"]] * HOSTS)

    def test_a_killed_rank_ends_the_run(self):
        agents = self.agents()
        os.kill(self.ranks()[1], signal.SIGKILL)
        said = "".join(self.end_of(agent, within=60) for agent in agents)
        self.assertEqual([agent.returncode for agent in agents], [1, 1], said)
        self.assertRegex(said, r"rehearse: rank 1 \(node1, pid \d+\) ended without a word")

    def test_strangers_do_no_harm(self):
        self.check_strangers(*["exec " + documented()["torchrun"]] * HOSTS)

    def test_a_signal_to_an_agent_saves(self):
        agents = self.agents()
        agents[0].send_signal(signal.SIGTERM)
        said = "".join(self.end_of(agent, within=60) for agent in agents)
        self.assertEqual(agents[0].returncode, 1, said)
        self.assertEqual(len(self.checkpoints()), 1, said)


@unittest.skipIf(slurm_cluster.missing(), f"not installed: {', '.join(slurm_cluster.missing())}; tools/setup launchers installs them")
@unittest.skipIf(os.geteuid() != 0, "Slurm's daemons need root")
class Slurm(Launchers):
    def setUp(self):
        super().setUp()
        self.slurm = slurm_cluster.Slurm(self.bed, self.tmp / "slurm")
        self.env |= {"SLURM_CONF": self.slurm.env["SLURM_CONF"]}

    @pytest.mark.long
    def test_trains_the_same(self):
        self.check(documented()["srun"])

    def check_a_killed_rank(self, options=""):
        """srun loses lines of a step that it ends, so each rank's errors go to a file."""
        started = self.under_way(documented()["srun"].replace("srun ", f"srun --error=said-%t.txt {options} "))
        os.kill(self.ranks()[1], signal.SIGKILL)
        said = self.end_of(started, within=15)
        self.assertEqual(started.returncode, 137, said)  # the gravest of the tasks': 128 + SIGKILL
        self.assertRegex((self.tmp / "said-0.txt").read_text(), r"rehearse: rank 1 \(node1, pid \d+\) ended without a word")
        self.assertEqual(self.checkpoints(), [])

    def test_a_killed_rank_ends_the_step(self):
        self.check_a_killed_rank()

    def test_strangers_do_no_harm(self):
        self.check_strangers(documented()["srun"], has_file=True)

    def test_no_kill_does_not_help(self):
        """The allocation stays, but the other ranks end all the same: nothing replaces a rank."""
        self.check_a_killed_rank("--no-kill")

    def test_scancel_saves(self):
        started = self.under_way(documented()["srun"])
        self.slurm.run("scancel", self.slurm.run("squeue", "-h", "-o", "%i").strip())
        said = self.end_of(started, within=30)
        self.assertNotEqual(started.returncode, 0, said)
        self.assertEqual(len(self.checkpoints()), 1, said)

    def test_a_requeued_job_goes_on(self):
        """The script that the document shows."""
        self.job_of(ENDLESS)
        text = (ROOT / "docs/multi-host.md").read_text()
        script = re.search(r"^```bash\n(#!/bin/bash\n.*?)^```", text, re.M | re.S)[1]
        (self.tmp / "train.sbatch").write_text(script)
        done = self.begin("sbatch --nodes 2 --ntasks-per-node 1 train.sbatch")
        number = re.search(r"\d+", done.communicate(timeout=PATIENCE)[0])[0]
        self.wait_for_steps({})
        self.slurm.run("scontrol", "requeue", number)
        deadline = time.monotonic() + 60
        while not self.checkpoints() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(len(self.checkpoints()), 1)
        saved = int(self.checkpoints()[0].removeprefix("step-"))
        self.wait_for_steps({}, steps=saved + 3)
        self.assertIn(f"step-{saved:08}", (self.tmp / f"slurm-{number}.out").read_text())
        self.slurm.run("scancel", number)


@unittest.skipIf(shutil.which("mpirun") is None, "not installed: mpirun; tools/setup launchers installs it")
class OpenMpi(Launchers):
    def setUp(self):
        super().setUp()
        # In the place of ssh: enters the namespaces of the node that Open MPI names.
        cases = "\n".join(f'  {node}) shift; exec {" ".join(self.bed.enter(node))} sh -c "$*" ;;' for node in self.bed.nodes)
        self.program("agent", f'case "$1" in\n{cases}\nesac\nexit 1')
        self.env |= {"OMPI_MCA_plm_rsh_agent": f"{self.tmp}/bin/agent"}

    @pytest.mark.long
    def test_trains_the_same(self):
        self.check(documented()["mpirun"])

    def test_a_killed_rank_ends_the_run(self):
        started = self.under_way(documented()["mpirun"])
        os.kill(self.ranks()[1], signal.SIGKILL)
        said = self.end_of(started, within=15)
        self.assertIn(started.returncode, (137, 1), said)  # of the rank that mpirun saw end first
        self.assertRegex(said, "exited on signal 9|rank 1 .* ended without a word")

    def test_strangers_do_no_harm(self):
        self.check_strangers(documented()["mpirun"], has_file=True)

    def test_a_signal_to_mpirun_ends_the_run(self):
        """mpirun repeats the signal and then kills, so the ranks may or may not have saved. What they have saved is whole."""
        started = self.under_way("exec " + documented()["mpirun"])
        started.send_signal(signal.SIGTERM)
        said = self.end_of(started, within=30)
        self.assertEqual(started.returncode, 1, said)
        if self.checkpoints():
            done = int(self.checkpoints()[0].removeprefix("step-"))
            one = self.json("train", self.tmp / "JOB.toml", "--nproc", HOSTS, "--resume", "--set", f"train.steps={done + 2}")
            self.assertEqual((one["first_step"], one["end_step"]), (done, done + 2))


if __name__ == "__main__":
    testbed_case.main()
