"""Wrong words on the command line: commands, options and their values, and outputs that would replace an input."""

import pathlib

from cli_test_case import ROOT, TINY, CliTestCase


class CommandLine(CliTestCase):
    def test_unknown_command(self):
        self.refused("simulat", self.job(), says=["unknown command simulat; did you mean simulate? Commands: "])
        self.refused("quux", self.job(), says=["unknown command quux. Commands: simulate, "])
        self.refused("help", "quux", says=["unknown command quux. Commands: simulate, "])
        self.refused("simulate", self.job(), "--qqqqqqqq", says=["unknown option --qqqqqqqq. See "])

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

    def test_no_output_replaces_an_input(self):
        job = self.job('model.name = "m.toml"\n' + TINY.split("\n", 1)[1])
        model = self.tmp / "m.toml"
        model.write_text((ROOT / "models/gpt-tiny.toml").read_text())
        table = self.tmp / "data.csv"
        table.write_text("row,use,seconds\na,calibrate,1\nb,check,2\n")
        inputs = {path: pathlib.Path(path).read_bytes() for path in (job, model, table)}
        quick = ("--fidelity", "analytic")
        for words in (
            ("simulate", job, "-o", job, *quick),
            ("simulate", job, "--trace", job, *quick),
            ("simulate", job, "-o", model, *quick),
            ("compare", job, "-o", self.tmp / "." / "job.toml", *quick),
            ("plan", job, "-o", job),
            ("program", job, "-o", job),
            ("calibrate", table, "--job", job, "--software", "rehearse", "-o", table),
        ):
            with self.subTest(words[0]):
                self.refused(*words, says=["this command reads that file, and would replace it"], cwd=self.tmp)
                self.assertEqual({path: pathlib.Path(path).read_bytes() for path in inputs}, inputs)

    def test_errors_say_where_the_value_stands(self):
        for words, says in (
            (("simulate", "--set", "model.dropout=-0.1"), '--set model.dropout=-0.1: key "model.dropout": -0.1 is out of range'),
            (("simulate", "--set", "faults.trace=none.toml"), '--set faults.trace=none.toml: key "faults.trace": none.toml: '),
        ):
            self.refused(words[0], self.job(), *words[1:], says=[says])
        program = self.tmp / "ddp.program"
        self.rehearse("program", self.job(), "-o", program)
        self.refused("program", "--from", program, "--set", "method.name=zero3", says=["--set method.name=zero3", "JOB.toml"])
        done = self.rehearse("compare", self.job(), "--methods", "ddp@foo=2", "--fidelity", "analytic", expect=2)
        self.assertIn('ddp@foo=2: --set method.foo=2: key "method.foo": unknown', done.stderr)

    def test_no_output_replaces_another(self):
        same = self.tmp / "same.json"
        self.refused("simulate", self.job(), "--fidelity", "analytic", "--trace", same, "-o", same, says=["-o writes that file, too"])
        plan = self.tmp / "plan.toml"
        self.rehearse("plan", self.job(), "-o", plan)
        rehearsed = ("--set", "method=", "--set", f"method.plan={plan}", "-o", self.tmp / "plan.rehearsal.json")
        self.refused("simulate", self.job(), "--fidelity", "analytic", *rehearsed, says=["plan.rehearsal.json: -o writes that file, too"])

    def test_numbers_of_options(self):
        for factor in ("nan", "1", "inf"):
            self.refused("collective", "all_reduce", "--cluster", "dgx1", "-b", "1MiB:4MiB", "--factor", factor, says=["--factor"])

    def test_methods(self):
        job = self.job()
        self.refused("compare", job, "--methods", "dpp", says=['method "dpp"', 'mean "ddp"?'])
        self.refused("compare", job, "--methods", "ddp@pp", says=["ddp@pp", "KEY=VALUE"])
        self.refused("compare", job, "--methods", ",ddp", says=["a name is missing"])
        self.refused("compare", job, "--methods", "ddp@shares=[1,2", says=["bracket is not closed"])

    def test_program_source(self):
        self.refused("program", says=["JOB.toml or --from"])
        self.refused("program", "--from", self.tmp / "none.program", says=["none.program", "cannot be read"])
