"""Whatever can be told before the first step is exit status 2 and one line that names the place, the
value, the constraint and the nearest choice."""

import os
import unittest

from cli_test_case import TINY, CliTestCase


class CommandLine(CliTestCase):
    def test_unknown_command(self):
        self.refused("simulat", self.job(), says=["unknown command simulat", "mean simulate?"])

    def test_no_command(self):
        self.refused(says=["which command?", "simulate", "doctor"])

    def test_unknown_option(self):
        said = ["unknown option --sedes", "mean --seeds?", "rehearse simulate --help"]
        self.refused("simulate", self.job(), "--sedes", "3", says=said)
        self.refused("simulate", self.job(), "--jso", says=["mean --json?"])

    def test_no_job(self):
        self.refused("simulate", says=["JOB.toml is required"])

    def test_one_argument_too_many(self):
        self.refused("simulate", self.job(), "other.toml", says=["other.toml is one argument too many"])

    def test_option_values(self):
        self.refused("simulate", self.job(), "--fidelity", "exact", says=["--fidelity", "chunk"])
        self.refused("simulate", self.job(), "--seeds", "0", says=["--seeds"])
        self.refused("simulate", self.job(), "--seeds", "many", says=["--seeds"])
        self.refused("simulate", self.job(), "--set", "method", says=["--set method", "key.path=value"])

    def test_methods(self):
        job = self.job()
        self.refused("compare", job, "--methods", "dpp", says=['method "dpp"', 'mean "ddp"?'])
        self.refused("compare", job, "--methods", "ddp@pp", says=["ddp@pp", "KEY=VALUE"])
        self.refused("compare", job, "--methods", ",ddp", says=["a name is missing"])

    def test_program_source(self):
        self.refused("program", says=["JOB.toml or --from"])
        self.refused("program", "--from", self.tmp / "none.program", says=["none.program", "cannot be read"])


class Jobs(CliTestCase):
    def simulate(self, text, *says, more=()):
        self.refused("simulate", self.job(text), "--fidelity", "analytic", *more, says=says)

    def with_line(self, line):
        """The tiny job with a line that replaces the one of the same key."""
        key = line.split(" = ")[0]
        return "".join(l + "\n" for l in TINY.splitlines() if not l.startswith(key + " ")) + line + "\n"

    def test_no_file(self):
        self.refused("simulate", self.tmp / "none.toml", says=["none.toml", "No such file"])
        self.refused("simulate", self.tmp, says=["cannot be read"])

    def test_not_toml(self):
        self.simulate("model.name = \n", "job.toml:1", "not TOML")

    def test_unknown_key(self):
        self.simulate(TINY + "train.global_bach = 8\n", "job.toml:6", '"train.global_bach"', "global_batch")
        self.simulate(TINY, "--set metod.pp=2", 'mean "method"?', more=["--set", "metod.pp=2"])

    def test_wrong_unit(self):
        self.simulate(TINY + 'method.bucket = "25Gb/s"\n', "job.toml:6", '"method.bucket"', "25Gb/s", "MB")
        self.simulate(TINY + 'run.timeout = "3 parsecs"\n', "job.toml:6", '"run.timeout"', "parsecs")
        self.simulate(TINY + "method.bucket = 25\n", '"method.bucket"', "unit")

    def test_wrong_type(self):
        self.simulate(TINY + 'train.steps = "ten"\n', '"train.steps"', "integer")

    def test_missing_key(self):
        self.simulate('model.name = "gpt-tiny"\ncluster.name = "paper"\n', '"method.name"')

    def test_unknown_names(self):
        self.simulate(self.with_line('method.name = "zero4"'), '"zero4"', "zero3")
        self.simulate(self.with_line('model.name = "gpt2-124"'), "gpt2-124m")
        self.simulate(self.with_line('cluster.name = "papr"'), 'mean "paper"?')

    def test_mesh(self):
        self.simulate(TINY + "method.dp = 3\n", "job.toml:6", "3", "the world has 4", "nearest mesh")
        self.simulate(self.with_line("cluster.world_size = 99"), '"cluster.world_size"', "at most 32")

    def test_layers_and_heads(self):
        mesh = "method.dp = 1\nmethod.tp = 3\n"
        text = TINY.replace('"ddp"', '"megatron"').replace("world_size = 4", "world_size = 3") + mesh
        self.simulate(text, '"method.tp"', "heads", "nearest")
        text = TINY.replace('"ddp"', '"1f1b"').replace("world_size = 4", "world_size = 32")
        self.simulate(text + "method.pp = 32\nmethod.dp = 1\n", '"method.pp"', "layers")

    def test_batch(self):
        self.simulate(self.with_line("train.global_batch = 15"), '"train.global_batch"', "15", "nearest: 16")

    def test_method_does_not_combine(self):
        self.simulate(TINY + "method.pp = 2\nmethod.dp = 2\n", '"method.pp"', '"ddp"')

    def test_memory(self):
        job = self.job('model.name = "gpt2-1.5b"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        said = self.refused("simulate", job, "--fidelity", "analytic", says=["node0/gpu0", "RTX 4090", "needs"])
        self.assertRegex(said, r"the largest: \S+ [\d.]+ [GM]B, \S+ [\d.]+ [GM]B, \S+ [\d.]+ [GM]B;")
        # What the message proposes does fit.
        self.assertIn("this would fit, with", said)
        proposed = said[said.index(": --set") + 2 :].split()
        self.rehearse("simulate", job, "--fidelity", "analytic", *proposed)

    def test_memory_hopeless(self):
        job = self.job('model.name = "gpt3-175b"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        self.refused("simulate", job, "--set", "cluster.world_size=1", says=["needs", "no number of micro-batches"])

    def test_profile(self):
        self.simulate(TINY + 'cluster.profile = "none.json"\n', '"cluster.profile"', "does not exist")
        bad = self.tmp / "profile.json"
        bad.write_text('{"profile_version": 99}')
        self.simulate(TINY + f'cluster.profile = "{bad}"\n', "profile.json", "99")

    def test_disturbance(self):
        self.simulate(TINY + '[[disturb.slow_links]]\nlink = "node0/nic>fabric"\nfactor = 2.0\n', "node0/nic0")


class Outputs(CliTestCase):
    def test_unwritable(self):
        job = self.job()
        nowhere = self.tmp / "nowhere/trace.json"
        self.refused("simulate", job, "--trace", nowhere, says=["--trace", "nowhere does not exist"])
        self.refused("simulate", job, "--trace", self.tmp, says=["is a folder"])
        self.refused("compare", job, "--report", self.tmp / "out.pdf", says=["must end in .html"])
        self.refused("program", job, "-o", nowhere, says=["-o", "does not exist"])
        if os.geteuid() != 0:
            self.tmp.chmod(0o500)
            self.refused("simulate", job, "--trace", self.tmp / "t.json", says=["Permission denied"])
        self.refused("simulate", job, "--trace", "/proc/trace.json", says=["--trace", "cannot be written"])

    def test_no_python(self):
        env = {**os.environ, "REHEARSE_PYTHON": str(self.tmp / "python")}
        out = self.tmp / "out.html"
        self.refused("simulate", self.job(), "--report", out, env=env, says=["--report needs Python"])
        self.assertFalse(out.exists())

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            import subprocess
            from cli_test_case import REHEARSE

            done = subprocess.run(
                [REHEARSE, "program", self.job()], stdout=full, stderr=subprocess.PIPE, text=True
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output: cannot be written", done.stderr)


if __name__ == "__main__":
    unittest.main()
