"""tools/gpu-check, on the emulated GPU: its checks pass, a check that fails is named and fails the command, and results are kept."""

import json
import pathlib
import subprocess
import unittest

import pytest
from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase, has_device

BUILD = pathlib.Path(REHEARSE).resolve().parent.parent


@pytest.mark.skipif(not has_device("emulated"), reason="a build without tests has no emulated GPU")
class GpuCheck(CliTestCase):
    def check(self, *words, expect):
        out = self.tmp / "gpu-check.json"
        command = [ROOT / "tools/gpu-check", "--build", BUILD, "-o", out, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done, json.loads(out.read_text())["checks"] if out.exists() else []

    def test_checks_pass(self):
        names = [
            "machine",
            "kernels",
            "sparse-kernels",
            "code-kernels",
            "factor-kernels",
            "wires",
            "losses-fp32",
            "method-topk-sync",
            "activations-on-host",
            "experts",
            "speed-tiny",
            "killed-rank",
        ]
        done, results = self.check("--device", "emulated", *names, expect=0)
        self.assertEqual([(one["check"], one["passed"]) for one in results], [(name, True) for name in names])
        self.assertIn("12 of 12 checks passed", done.stdout)
        self.assertGreater(results[-2]["tokens_per_s"], 0)
        self.assertIn("rank 1", results[-1]["said"])

    def test_a_check_that_fails_is_named(self):
        done, results = self.check("--device", "tpu", "losses-fp32", expect=1)
        self.assertIn("FAILED", done.stdout)
        self.assertIn("no device: auto, cpu or cuda", results[0]["why"])
        done, results = self.check("--device", "tpu", expect=1)  # no other check would say more
        self.assertEqual([one["check"] for one in results], ["machine"])

    def test_a_wrong_name(self):
        done, _ = self.check("kernel", expect=2)
        self.assertIn("kernel: no such check; machine, kernels, sparse-kernels", done.stderr)


if __name__ == "__main__":
    unittest.main()
