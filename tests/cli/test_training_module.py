"""The code that needs LibTorch is a module, loaded only by the commands that need it. The program starts without LibTorch, and says what
is missing if the module is missing or does not load."""

import pathlib
import shutil
import subprocess

from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase


class TrainingModule(CliTestCase):
    def setUp(self):
        super().setUp()
        self.program = self.tmp / "bin/rehearse"
        self.program.parent.mkdir()
        shutil.copy(REHEARSE, self.program)

    def lone(self, *arguments):
        """Runs the program without the libraries that are built beside it."""
        command = [self.program, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)

    def refused_without(self, *says):
        profile = ("profile", "-o", self.tmp / "profile.json", "--model", "gpt-tiny")
        for command in (("train", "experiments/demo-ddp.toml"), profile):
            done = self.lone(*command)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            for words in says:
                self.assertIn(words, done.stderr)

    def test_the_program_needs_no_libtorch(self):
        self.assertNotIn("torch", subprocess.check_output(["ldd", REHEARSE], text=True))
        done = self.lone("simulate", "experiments/paper-ddp.toml", "--seeds", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step time", done.stdout)

    def test_no_module(self):
        self.refused_without("training needs LibTorch: librehearse_training.so is neither", "`make build`")
        self.assertRegex(self.lone("doctor").stdout, r"LibTorch +missing +training needs LibTorch: .*\n +disables: train, ")

    def test_a_module_that_does_not_load(self):
        (self.program.parent / "librehearse_training.so").write_text("no library")
        self.refused_without("training needs LibTorch: ", "librehearse_training.so: ", "`make build`")

    def test_another_library_of_that_name(self):
        [libm] = [line.split()[2] for line in subprocess.check_output(["ldd", REHEARSE], text=True).splitlines() if "libm.so" in line]
        (self.program.parent / "librehearse_training.so").symlink_to(pathlib.Path(libm).resolve())
        self.refused_without("librehearse_training.so is no module of this program")
