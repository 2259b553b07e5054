"""tools/tests says what ran and what failed; tools/lint knows which changes clang-tidy cannot see."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

GTEST = """[ RUN      ] Link.Fails
[  FAILED  ] Link.Fails (3 ms)
[  FAILED  ] All/Programs.Text/ddp_of_4, where GetParam() = 16-byte object <00-00> (12 ms)
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] Link.Fails
"""
PYTEST = """FAILED tests/cli/test_train.py::Train::test_refusals - AssertionError: 1 != 0
ERROR tests/cli/test_plans.py - ImportError: no module
"""
UNITTEST = """FAIL: test_interval (__main__.Statistics.test_interval)
ERROR: test_t (test_studies.Statistics)
"""


def tool(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Tests(unittest.TestCase):
    def ran(self, *entries, tier="fast"):
        """The exit status of tools/tests in a build folder with these entries (name, shell script), and what it printed."""
        with tempfile.TemporaryDirectory() as folder:
            lines = []
            for name, script in entries:
                command = f'"sh" "-c" "{script}"' if script else '"/nowhere/program"'
                lines.append(f"add_test({name} {command})\nset_tests_properties({name} PROPERTIES LABELS fast SKIP_RETURN_CODE 77)\n")
            pathlib.Path(folder, "CTestTestfile.cmake").write_text("".join(lines))
            command = [ROOT / "tools/tests", *tier.split()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | {"BUILD": folder})
        return done.returncode, done.stdout

    def test_passed_and_skipped(self):
        status, said = self.ran(("one", "true"), ("two", "exit 77"))
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"\none +passed ")
        self.assertRegex(said, r"\ntwo +skipped ")

    def test_failed_killed_and_not_to_be_started(self):
        for name, script in (("fails", "exit 1"), ("killed", "kill -9 $$"), ("absent", None)):
            with self.subTest(name):
                status, said = self.ran(("one", "true"), (name, script))
                self.assertEqual(status, 1, said)
                self.assertIn(f"failed: {name}\n", said)

    def test_failed_tests_of_an_entry_are_named(self):
        status, said = self.ran(("suite", "echo 'FAILED test_x.py::A::test_b - why'; exit 1"))
        self.assertEqual(status, 1, said)
        self.assertIn("failed: test_x.py::A::test_b\n", said)

    def test_no_such_tests(self):
        self.assertEqual(self.ran(("one", "true"), tier="long")[0], 2)
        self.assertEqual(self.ran(("one", "true"), tier="fast absent")[0], 2)

    def test_flaky(self):
        """A test whose failure depends on the seed is named with it."""
        script = "test $GTEST_RANDOM_SEED != 2"
        status, said = self.ran(("steady", "true"), ("unsteady", script), tier="flaky --runs 3")
        self.assertEqual(status, 1, said)
        self.assertIn("unsteady: failed in 1 of 3 runs; GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=2 beside other work\n", said)
        self.assertIn("\n1 tests failed at least once\n", said)
        status, said = self.ran(("steady", "true"), tier="flaky --runs 2")
        self.assertEqual(status, 0, said)
        self.assertIn("\n0 tests failed at least once\n", said)

    def test_other_work_ends_with_a_command_that_is_killed(self):
        script = (
            "import runpy\nwith runpy.run_path('tools/tests')['busy_cores']() as others:\n"
            "    print(*[other.pid for other in others], flush=True)\n    input()"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, text=True, **pipes)
        loops = [pathlib.Path("/proc", pid, "stat") for pid in command.stdout.readline().split()]
        self.assertEqual(len(loops), os.cpu_count())
        self.assertTrue(all(map(self.runs, loops)))
        command.kill()
        command.communicate()
        deadline = time.monotonic() + 600
        while any(map(self.runs, loops)):
            self.assertLess(time.monotonic(), deadline, "the loops go on")
            time.sleep(0.01)

    @staticmethod
    def runs(stat):
        """Whether a process has not ended; nobody may have asked for its status."""
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def test_names_of_failures(self):
        failures = tool("tests").failures
        self.assertEqual(failures(GTEST), ["Link.Fails", "All/Programs.Text/ddp_of_4"])
        self.assertEqual(failures(PYTEST), ["tests/cli/test_train.py::Train::test_refusals", "tests/cli/test_plans.py"])
        self.assertEqual(failures(UNITTEST), ["__main__.Statistics.test_interval", "test_studies.Statistics"])


class Lint(unittest.TestCase):
    def code(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
            file.write(text)
            file.flush()
            return tool("lint").code_of(pathlib.Path(file.name)).decode()

    def test_comments_and_blank_lines_do_not_count(self):
        self.assertEqual(self.code("int a;  // one\n\n/* two\n   lines */\nint b;\n"), self.code("int a;\nint b;  // other words\n"))

    def test_what_clang_tidy_reads_counts(self):
        plain = self.code("int a;\nint b;\n")
        for other in ("int a;  // NOLINT\nint b;\n", "int a;\nint c;\n", "f(/*lines=*/a);\n"):
            self.assertNotEqual(self.code(other), plain)
        self.assertIn("/*lines=*/", self.code("f(/*lines=*/a);\n"))

    def test_marks_inside_literals_are_code(self):
        for line in ('auto s = "http://x";', "char c = '\"';  int d = 1'000;", 'auto r = R"x(// not a comment)x";'):
            self.assertEqual(self.code(line + "\n"), line)
