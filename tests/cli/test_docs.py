"""Compares docs/cli.md and the README with the command: every help text, and every command with its
output. Every command in an sh block of the documents must run. REHEARSE_UPDATE=1 rewrites the outputs."""

import os
import re
import shlex
import subprocess

import pytest
from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase

UPDATE = os.environ.get("REHEARSE_UPDATE") == "1"
# These commands train; tests of their own run them with small data.
TRAINS = {"train", "profile", "chaos"}
# test_sharded_memory runs the documented commands on these jobs, and checks what they say.
MEASURED = "experiments/memory/"


class Documents(CliTestCase):
    def setUp(self):
        super().setUp()
        for folder in ("experiments", "validation"):
            (self.tmp / folder).symlink_to(ROOT / folder)

    def output(self, line):
        words = shlex.split(line)
        self.assertEqual(words[0], "rehearse", line)
        done = subprocess.run([REHEARSE, *words[1:]], capture_output=True, text=True, timeout=PATIENCE, cwd=self.tmp)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
        return done.stdout

    def excerpt(self, quoted, printed):
        """What a document shows of an output: a line "..." stands for lines that are left out, each other one for the next line with its
        first word."""
        lines, shown = iter(printed.splitlines()), []
        for line in quoted.splitlines():
            if line != "...":
                word = line.split()[0]
                line = next((one for one in lines if one.split()[:1] == [word]), None)
                self.assertIsNotNone(line, f"no further line begins with {word!r}:\n{printed}")
            shown.append(line)
        return "".join(line + "\n" for line in shown)

    def check_console(self, path):
        """Checks ```console blocks: "$ command" and exactly what it prints, or an excerpt of it."""
        text = path.read_text()

        def block(match):
            out = ""
            for part in re.split(r"^(?=\$ )", match[1], flags=re.M):
                if not part:
                    continue
                line, quoted = part.split("\n", 1)
                printed = self.output(line[2:])
                out += line + "\n" + (self.excerpt(quoted, printed) if "...\n" in quoted.splitlines(True) else printed)
            return f"```console\n{out}```"

        found, blocks = re.subn(r"```console\n(.*?)```", block, text, flags=re.S)
        self.assertGreaterEqual(blocks, 1)
        if UPDATE:
            path.write_text(found)
        self.maxDiff = 4000
        self.assertEqual(path.read_text(), found)

    def test_console_blocks(self):
        for name in ("README.md", "docs/cli.md"):
            with self.subTest(document=name):
                self.check_console(ROOT / name)

    @pytest.mark.long
    def test_commands_run(self):
        job = re.search(r"^```toml\n(.*?)^```", (ROOT / "docs/plans.md").read_text(), re.M | re.S)
        (self.tmp / "planned.toml").write_text(job[1])
        seen = set()
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.M | re.S)
            for line in "".join(blocks).splitlines():
                words = tuple(shlex.split(line, comments=True))
                trains = not TRAINS.isdisjoint(words) or "cluster.profile=profile.json" in words
                elsewhere = any(word.startswith(MEASURED) for word in words)
                if words and words[0] == "rehearse" and not trains and not elsewhere and words not in seen:
                    seen.add(words)
                    with self.subTest(document=path.name, command=line):
                        self.output(shlex.join(words))

    def commands(self):
        listed = self.output("rehearse --help")
        commands = re.findall(r"^  (\w+) {2,}", listed[listed.index("Subcommands") :], re.M)
        self.assertIn("simulate", commands)
        return commands

    def test_the_table_of_an_all_gather_over_many_nodes(self):
        text = (ROOT / "docs/simulator.md").read_text()
        command = re.search(r"^rehearse (simulate experiments/what-if/llama3-zero3\.toml .*)$", text, re.M)[1].split()
        step, mfu, exposed, ring = re.search(
            r"^\| 2,048 \| 8 \| ([\d.]+) ms \| ([\d.]+)% \| ([\d.]+) ms \| ([\d,]+) ms \|$", text, re.M
        ).groups()
        one = self.json(*command, cwd=ROOT)
        self.assertAlmostEqual(1000 * one["step_time_s"]["mean"], float(step), delta=0.05)
        self.assertAlmostEqual(100 * one["mfu"], float(mfu), delta=0.05)
        self.assertAlmostEqual(1000 * one["exposed_comm_s"], float(exposed), delta=0.05)
        whole = self.json(*command, "--set", "method.collective=ring", cwd=ROOT)
        self.assertAlmostEqual(1000 * whole["step_time_s"]["mean"], float(ring.replace(",", "")), delta=0.5)

    def test_every_command_and_option_is_documented(self):
        text = (ROOT / "docs/cli.md").read_text()
        for command in self.commands():
            self.assertIn(f"$ rehearse {command} --help", text)

    def test_help_of_a_command(self):
        self.assertEqual(self.output("rehearse help"), self.output("rehearse --help"))
        for command in self.commands():
            self.assertEqual(self.output(f"rehearse help {command}"), self.output(f"rehearse {command} --help"))

    def test_every_file_that_help_names_exists(self):
        named = set()
        for text in [self.output("rehearse --help"), *(self.output(f"rehearse {c} --help") for c in self.commands())]:
            named |= set(re.findall(r"\b(?:experiments|docs|models|platforms|data)/[\w./-]+\.\w+", text))
        self.assertIn("experiments/demo-ddp.toml", named)
        self.assertEqual([name for name in sorted(named) if not (ROOT / name).is_file()], [])

    def test_json_fields_are_documented(self):
        text = (ROOT / "docs/cli.md").read_text()
        one = self.json("simulate", ROOT / "experiments/paper-ddp.toml", "--fidelity", "analytic")
        for key in one:
            self.assertIn(f"`{key}`", text)
