"""The man page and the completions come from the same definitions as the help. Tests that all of them have every option of every command,
that completion works in bash, and that the other shells and roff accept their files, if they are installed."""

import re
import shutil
import subprocess
import unittest

from cli_test_case import CliTestCase


class FromTheHelp(CliTestCase):
    def setUp(self):
        super().setUp()
        listed = self.rehearse("--help").stdout
        self.commands = re.findall(r"^  (\w+) {2,}", listed[listed.index("Subcommands") :], re.M)
        self.assertIn("simulate", self.commands)

    def flags(self, *command):
        """The options in the output of --help: ["-o", "--output"] and so on."""
        said = self.rehearse(*command, "--help").stdout
        lines = re.findall(r"^  (-[^ ]*)", said[said.index("Options:") :], re.M)
        return [flag for line in lines for flag in line.split(",")]

    def script(self, shell):
        path = self.tmp / shell
        path.write_text(self.rehearse("completion", shell).stdout)
        return path

    def completed(self, *words):
        """The completions that bash offers for the last word."""
        ask = (
            f'source {self.script("bash")}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rehearse; printf "%s\\n" "${{COMPREPLY[@]}}"; true'
        )
        done = subprocess.run(["bash", "-uc", ask, "-", *words], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout.split()

    def test_bash_offers_every_option(self):
        self.assertEqual(self.completed("rehearse", ""), self.commands)
        self.assertEqual(set(self.completed("rehearse", "-")), set(self.flags()))
        for command in self.commands:
            offered = self.completed("rehearse", command, "-")
            self.assertLessEqual(set(self.flags(command)), set(offered), command)
            self.assertLessEqual({"--set", "--json", "-q"}, set(offered), command)
            self.assertEqual(len(offered), len(set(offered)), command)

    def test_bash_offers_values(self):
        for words, offered in (
            (("simulate", "job.toml", "--fidelity", ""), ["analytic", "fluid", "chunk"]),
            (("simulate", "--fidelity", "=", "ch"), ["chunk"]),
            (("simulate", "--fidelity", "="), ["analytic", "fluid", "chunk"]),
            (("--json", "sim"), ["simulate"]),
            (("profile", "--optimizer", "a"), ["adamw"]),
            (("completion", ""), ["bash", "zsh", "fish"]),
            (("help", "do"), ["doctor"]),
            (("simulate", "--trace", ""), []),  # the shell completes file names itself
            (("simulate", ""), []),
            (("simulate", "--set", ""), []),
        ):
            self.assertEqual(self.completed("rehearse", *words), offered, words)

    def test_zsh_and_fish_know_every_option(self):
        zsh, fish = self.script("zsh").read_text(), self.script("fish").read_text()
        for command in self.commands:
            part = zsh[zsh.index(f"\n      {command})") :]
            part = part[: part.index(";;")]
            for flag in self.flags(command):
                self.assertRegex(part, rf"'\*{flag}=?\[", command)
                name = flag.lstrip("-")
                kind = "l" if flag.startswith("--") else "s"
                self.assertRegex(fish, rf"(?m)^complete .*_from {command}'.* -{kind} {name} ", command)

    def test_other_shells_read_their_scripts(self):
        for shell in ("zsh", "fish"):
            if shutil.which(shell):
                subprocess.run([shell, "-n", self.script(shell)], check=True)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_completes(self):
        ask = f"source {self.script('fish')}; complete -C 'rehearse simulate --fidelity c'"
        done = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, r"\Achunk\b")

    def test_the_manual_page_has_every_option(self):
        page = self.rehearse("help", "--man").stdout
        plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
        sections = re.split(r"^\.SS (\w+)\n", plain, flags=re.M)
        by_name = dict(zip(sections[1::2], sections[2::2], strict=False))
        self.assertEqual(list(by_name), self.commands)
        by_name[""] = sections[0]
        for command, text in by_name.items():
            tags = [tag for line in re.findall(r"^\.TP\n(-.*)$", text, re.M) for tag in re.findall(r"(?:^|, )(--?[\w-]+)", line)]
            self.assertEqual(tags, self.flags(*[command] * bool(command)), command)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_roff_reads_the_manual_page(self):
        page = self.rehearse("help", "--man").stdout
        done = subprocess.run(["groff", "-ww", "-man", "-Tascii", "-P-c"], input=page, capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        text = re.sub(".\b", "", done.stdout)  # bold is a letter printed twice
        self.assertRegex(text, r"(?m)^ +--resume-from PATH$")
        self.assertIn("  rehearse plan experiments/paper-ddp.toml --explain -o plan.toml\n", text)
