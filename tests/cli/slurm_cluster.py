"""A real Slurm on the nodes of a testbed: munged, slurmctld on node0, and a slurmd on each node. The daemons are in the testbed's
namespaces and end with them. The programs are Debian's (tools/setup launchers)."""

import os
import secrets
import shutil
import subprocess
import time

from cli_test_case import PATIENCE

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "squeue", "sinfo")

CONF = """ClusterName=testbed
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=30
SlurmdTimeout=10
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing():
    """The programs of Slurm that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


class Slurm:
    """Starts the daemons in `folder`. `env` is the environment in which Slurm's commands find the cluster."""

    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, nodes=",".join(network.nodes)))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
        self._daemon("node0", "munged", "--foreground", "--force", *files)
        self._until(lambda: (folder / "munge.socket").exists(), "munged does not begin")
        self._daemon("node0", "slurmctld", "-D")
        for node in network.nodes:
            self._daemon(node, "slurmd", "-D", "-N", node)
        self._until(lambda: self.run("sinfo", "-h", "-o", "%t %D").split() == ["idle", str(len(network.nodes))], "the nodes are not idle")

    def _daemon(self, node, *command):
        with (self.folder / f"{command[0]}-{node}.out").open("w") as out:
            self.network.start(node, command, env=self.env, stdout=out, stderr=out)

    def _until(self, holds, otherwise, patience=60):
        deadline = time.monotonic() + patience
        while not holds():
            if time.monotonic() > deadline:
                logs = [path.read_text(errors="replace")[-800:] for path in sorted(self.folder.glob("*.out"))]
                raise RuntimeError(f"{otherwise}\n{self.run('sinfo')}\n" + "\n".join(logs))
            time.sleep(0.2)

    def run(self, *command):
        """The output of one of Slurm's commands on node0."""
        words = [*self.network.enter("node0"), *map(str, command)]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout if done.returncode == 0 else done.stderr
