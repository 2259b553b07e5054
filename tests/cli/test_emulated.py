"""Runs the built program on other processors, emulated by Debian's qemu-user: one with AVX2 but without AVX-512, one without AVX, and the
first x86-64. Commands must give the same results as here. Real ranks must train a model with large matrix products. The tests of the
kernels must pass."""

import json
import math
import os
import pathlib
import platform
import shutil
import socket
import subprocess

import pytest
from cli_test_case import REHEARSE, ROOT, CliTestCase
from large_products_job import write_job

QEMU = shutil.which("qemu-x86_64")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(QEMU is None or platform.machine() != "x86_64", reason="no qemu-x86_64; tools/setup packages installs qemu-user"),
]
BUILD = pathlib.Path(REHEARSE).parent
# LibTorch's names for the vector instructions of qemu's processor models.
MODELS = {"EPYC": "AVX2", "Nehalem": "DEFAULT"}
# LibTorch starts slowly under emulation, and machines that run tests are busy.
PATIENCE = 250


def without_warnings(text):
    """Standard error without qemu's warnings about processor features that it does not emulate."""
    return "".join(line for line in text.splitlines(True) if "TCG doesn't support requested feature" not in line)


class Emulated(CliTestCase):
    def start(self, model, *command, env=None):
        command = [QEMU, "-cpu", model, *map(str, command)]
        # One thread, because emulated threads that wait for each other take minutes on a busy machine.
        env = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, status=0):
        out, said = process.communicate(timeout=PATIENCE)
        said = without_warnings(said)
        self.assertEqual(process.returncode, status, f"{process.args}\n{out[-2000:]}\n{said[-2000:]}")
        return out, said

    def emulate(self, model, *arguments):
        """Standard output of the command on this processor model; checks that there are no warnings."""
        return self.finish(self.start(model, REHEARSE, *arguments))[0]

    def train(self, model, ranks):
        """The losses of rank 0. Ranks are started one by one, because processes that an emulated launcher starts are not emulated."""
        job = write_job(self.tmp, ranks)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started = [
            self.start(model, REHEARSE, "train", job, "--json", env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        outputs = [self.finish(rank)[0] for rank in started]
        return json.loads(outputs[0])["losses"]

    def check_training(self, model, ranks):
        here = self.json("train", write_job(self.tmp, ranks), "--nproc", ranks)["losses"]
        there = self.train(model, ranks)
        self.assertEqual(len(there), len(here))
        for a, b in zip(here, there, strict=True):
            self.assertTrue(math.isclose(a, b, rel_tol=1e-5), f"{here} here, {there} on {model}")

    def check_kernels(self, model):
        """Results must equal those here to the bit: both ways to compute the blocks' products, blocks that compute all products like
        large ones, and kernels with versions for other processors."""
        tests = {
            "test_models": "LargeProducts.GoOneWay:SameBits*:Sizes/Product*:All/Blocks.FollowAutograd/1:All/Blocks.FollowAutograd/11"
            + "".join(f"{sign}*Product*/{i}" for sign, i in zip("-:::", (6, 7, 8, 9), strict=True)),  # without the large shapes
            "test_runtime": "SameBits*",
        }
        for program, some in tests.items():
            out, _ = self.finish(self.start(model, BUILD / program, f"--gtest_filter={some}"))
            self.assertRegex(out, r"\[  PASSED  \] [1-9]")

    def test_avx2(self):
        self.check_training("EPYC", 2)
        self.check_kernels("EPYC")

    def test_no_avx(self):
        self.check_training("Nehalem", 2)
        self.check_kernels("Nehalem")

    def test_the_first_of_all(self):
        self.check_training("qemu64", 1)

    def test_commands(self):
        """Simulation and planning give the same bits on every processor, and profiling completes."""
        job = ROOT / "experiments/paper-ddp.toml"
        simulate = ["simulate", job]
        small = ["--set", "model.name=gpt-tiny", "--set", "cluster.world_size=4"]
        plan = ["plan", job, *small]
        for model, command in (("EPYC", simulate), ("Nehalem", simulate), ("Nehalem", plan)):
            self.assertEqual(json.loads(self.emulate(model, *command, "--json")), self.json(*command), f"{command} on {model}")
        write_job(self.tmp, 1)
        path = self.tmp / "profile.json"
        self.emulate("Nehalem", "profile", "-o", path, "--model", self.tmp / "model.toml", "--samples", 1, "--threads", 1)
        self.assertTrue(json.loads(path.read_text())["segments"])

    def test_doctor_says_whose_products_they_are(self):
        for model, instructions in MODELS.items():
            said = json.loads(self.emulate(model, "doctor", "--json"))
            [found] = [f["detail"] for f in said["findings"] if f["what"] == "fp32 products"]
            self.assertRegex(found, rf"^LibTorch's \({instructions}\); those of 2\^\d+ multiplications and more too: ")
