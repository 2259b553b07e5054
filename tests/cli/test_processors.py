"""Support of all x86-64 processors: doctor shows what computes the products here, large products train under every limit on instructions,
and no code needs more than the first x86-64 unless it is selected at run time by the processor's features."""

import json
import math
import os
import pathlib
import platform
import re
import subprocess
import unittest

import pytest
from cli_test_case import REHEARSE, ROOT, CliTestCase
from large_products_job import write_job

pytestmark = pytest.mark.long

CAPS = (
    {},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},  # oneDNN then refuses our calls, as on a processor without AVX-512
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "default"},
)


class Caps(CliTestCase):
    def products(self, cap):
        said = self.json("doctor", env=os.environ | cap)
        [found] = [f["detail"] for f in said["findings"] if f["what"] == "fp32 products"]
        return found

    def test_large_products_train_under_every_cap(self):
        job, plain = write_job(self.tmp, 2), None
        for cap in CAPS:
            losses = self.json("train", job, "--nproc", 2, env=os.environ | cap)["losses"]
            plain = plain or losses
            self.assertEqual(len(losses), 3)
            for a, b in zip(plain, losses, strict=True):
                self.assertTrue(math.isclose(a, b, rel_tol=1e-5), f"{plain} without caps, {losses} with {cap}")

    def test_large_products_train_in_16_bits(self):
        for precision in ("bf16", "fp16"):
            job = write_job(self.tmp, 1, precision=precision)
            for cap in CAPS[:2]:
                losses = self.json("train", job, env=os.environ | cap)["losses"]
                self.assertTrue(all(8 < loss < 10 for loss in losses), f"{precision} {cap}: {losses}")

    def test_profile_under_a_cap(self):
        write_job(self.tmp, 1)
        path = self.tmp / "profile.json"
        cap = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        given = ["--model", self.tmp / "model.toml", "--samples", 2, "--threads", 1]
        self.rehearse("profile", "-o", path, *given, env=os.environ | cap)
        self.assertTrue(json.loads(path.read_text())["segments"])

    def test_two_runs_have_the_same_bits(self):
        job = write_job(self.tmp, 2)
        runs = [self.json("train", job, "--nproc", 2)["losses"] for _ in range(2)]
        self.assertEqual(*runs)

    def test_doctor_says_whose_products_they_are(self):
        for cap, instructions in (({"ATEN_CPU_CAPABILITY": "avx2"}, "AVX2"), ({"ATEN_CPU_CAPABILITY": "default"}, "DEFAULT")):
            said = self.products(cap)
            self.assertRegex(said, rf"^LibTorch's \({instructions}\); those of 2\^\d+ .* more too: without AVX-512")
        here = self.products({})
        if "(AVX512)" not in here:
            self.skipTest("this processor has no AVX-512")
        self.assertRegex(here, r"more are oneDNN's: compared with LibTorch's own on this processor$")
        # The internal function of oneDNN behaves as on processors without AVX-512.
        self.assertRegex(self.products({"ONEDNN_MAX_CPU_ISA": "AVX2"}), r"more too: oneDNN's are refused: ")


@unittest.skipUnless(platform.machine() == "x86_64", "of x86-64 processors")
class Code(unittest.TestCase):
    # Functions that also exist in a version for every processor: GCC's clones, and those selected by __builtin_cpu_supports.
    CHOSEN = re.compile(r"\.avx2$|\.arch_x86_64_v[34]$|(pass|keep)_avx512|add_f16_wide")
    # Instructions beyond SSE2: those with 256-bit or 512-bit vectors or masks, AVX encodings, SSE3 to SSE4.2, BMI. tzcnt is not
    # included, because the disassembler also shows "rep bsf" as tzcnt, which every processor has.
    BEYOND = re.compile(
        r"%[yz]mm|%k[0-7]\b|\t(v[a-z0-9]+|p(insr[bdq]|extr[bdq]|max(sb|sd|ud|uw)|min(sb|sd|ud|uw)|mulld|blend\w+|shufb|abs[bwd])|"
        r"h(add|sub)p[sd]|blendv?p[sd]|round[sp][sd]|dpp[sd]|crc32\w?|popcnt|lzcnt|andn|bextr|bls\w+|mulx|pdep|pext|rorx|s[ah][rl]x)\s"
    )

    def beyond(self, binary):
        """Functions of a program or library with instructions that the first x86-64 does not have."""
        found, function = set(), ""
        with subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", binary], stdout=subprocess.PIPE, text=True) as dump:
            for line in dump.stdout:
                if line.endswith(">:\n"):
                    function = line.split("<", 1)[1][:-3]
                elif self.BEYOND.search(line):
                    found.add(function.split(".constprop")[0].split(".part")[0])
        self.assertEqual(dump.returncode, 0)
        return found

    def test_nothing_unguarded_is_compiled_in(self):
        module = pathlib.Path(REHEARSE).parent.parent / "lib/librehearse_training.so"
        found = self.beyond(REHEARSE) | self.beyond(module)
        self.assertEqual({f for f in found if not self.CHOSEN.search(f)}, set())
        self.assertGreater(len(found), 15)  # the search finds the functions that are selected at run time
        [simgrid] = set(re.findall(r"=> (\S*libsimgrid\S*)", subprocess.check_output(["ldd", REHEARSE], text=True)))
        self.assertEqual(self.beyond(simgrid), set())

    def test_no_flag_asks_for_more(self):
        build = pathlib.Path(os.environ.get("REHEARSE_BUILD", ROOT / "build"))
        for file in json.loads((build / "compile_commands.json").read_text()):
            self.assertNotRegex(file["command"], r"\s-m(arch|tune|cpu|avx|sse|fma|f16c|bmi)", file["file"])

    def test_no_path_is_chosen_by_vendor(self):
        for folder in ("engine", "sim", "models", "runtime", "cli"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                    self.assertNotRegex(path.read_text(), r"__builtin_cpu_is|GenuineIntel|AuthenticAMD", path)
