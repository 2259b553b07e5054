"""Runs the commands of docs/multi-host.md unchanged, and checks that they train the same as --nproc, where no network of nodes can be
built: this machine takes the place of all hosts. test_launchers.py runs them on nodes, and also those of Slurm."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest
import unittest.mock

import pytest
import stand_in_launchers
from cli_test_case import PATIENCE, REHEARSE, ROOT
from cli_test_train_data import TrainingCase

HOSTS = 2


def documented():
    """launcher -> its command, from the document's sh blocks."""
    text = (ROOT / "docs/multi-host.md").read_text()
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)).splitlines()
    return {line.split()[0]: line for line in lines if not line.startswith("#")}


def python_with_torch():
    """A Python that can import torch, to run the real torchrun; None if `tools/setup bench` was not run."""
    where = subprocess.run([ROOT / "tools/setup", "where"], capture_output=True, text=True, check=True).stdout
    python = pathlib.Path(re.search(r"^BENCH_ROOT=(.*)$", where, re.M)[1], "bin/python")
    return python if python.exists() else None


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class MultiHost(TrainingCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.commands = documented()

    def program(self, name, command):
        """Makes a program of that name, first in PATH."""
        path = self.tmp / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)

    def check(self, name, times=1):
        """Runs the documented command of a launcher on `times` hosts, and `--nproc`; both must train the same."""
        folder = self.tmp / name
        folder.mkdir()
        pathlib.Path(self.job(folder=folder)).rename(folder / "JOB.toml")
        self.program("rehearse", f'"{REHEARSE}"')
        env = os.environ | {
            "PATH": f"{self.tmp}/bin:{os.environ['PATH']}",
            "NODES": str(HOSTS),
            "RANKS": "1",
            "HEAD": "localhost",
            "OTHER": "localhost",
            "PORT": str(free_port()),
            # A test may run as root, for which Open MPI requires two confirmations.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        hosts = [
            subprocess.Popen(
                ["bash", "-c", self.commands[name]],
                cwd=folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(times)
        ]
        said = "".join(host.communicate(timeout=PATIENCE)[0] for host in hosts)
        self.assertEqual([host.returncode for host in hosts], [0] * times, said)
        self.rehearse("train", self.job(), "--nproc", HOSTS)
        self.assertEqual(self.losses(folder), self.losses())
        self.assertEqual(len(self.losses()), 12)

    def test_every_command_is_run_here(self):
        self.assertEqual(set(self.commands), {"torchrun", "srun", "mpirun"})

    @pytest.mark.soak
    def test_torchrun_without_a_store(self):
        self.program("torchrun", f'"{sys.executable}" "{stand_in_launchers.__file__}"')
        with unittest.mock.patch.dict(os.environ, REHEARSE_SECRET="5e" * 32):
            self.check("torchrun", HOSTS)

    @pytest.mark.soak
    def test_torchrun_as_it_is(self):
        """The store of the agent uses the port. CommAgentStore also tests this, without torch's Python."""
        python = python_with_torch()
        if python is None:
            self.skipTest("no Python with torch: tools/setup bench makes one")
        self.program("torchrun", f'"{python}" -m torch.distributed.run')
        self.check("torchrun", HOSTS)

    @pytest.mark.soak
    @unittest.skipIf(shutil.which("mpirun") is None, "not installed: mpirun; tools/setup launchers installs it")
    def test_mpirun(self):
        self.check("mpirun")

    def test_listed_variables_are_those_read(self):
        text = (ROOT / "docs/multi-host.md").read_text()
        read = (ROOT / "runtime/control/launch/environment.cpp").read_text()
        names = set(re.findall(r'"((?:SLURM|OMPI|PMIX|TORCHELASTIC|MASTER|RANK|WORLD|LOCAL)[A-Z_a-z]*)"', read))
        self.assertGreater(len(names), 15)
        for name in names:
            self.assertIn(f"`{name}`", text)
