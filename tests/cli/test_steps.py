"""How many steps simulate and compare run: until the steps repeat, or until the mean is as precise as asked."""

import pytest
from cli_test_case import ROOT, TINY, CliTestCase

PAPER = str(ROOT / "experiments/paper-ddp.toml")
METHODS = (
    "1f1b,ddp,ef-signsgd,gpipe,interleaved,megatron,onebit-adam,pipedream-2bw,powersgd,ps-async,ps-ssp,ps-sync,topk-sync,zero1,zero2,zero3"
)
QUIET = ("--set", "disturb.compute_jitter=0", "--set", "disturb.link_jitter=0")
ALL = ("--precision", "0%")
JITTER = TINY + "disturb.compute_jitter = 0.3\ndisturb.link_jitter = 0.3\n"


class Repeating(CliTestCase):
    def check_equal(self, found, full):
        for key in ("samples_per_s", "tokens_per_s", "mfu", "bubble_fraction", "exposed_comm_s", "robustness"):
            self.assertAlmostEqual(found[key], full[key], delta=1e-9 * max(1, abs(full[key])), msg=f"{found['method']}: {key}")
        for a, b in (
            (found["step_time_s"]["mean"], full["step_time_s"]["mean"]),
            (found["energy_j"]["per_step"], full["energy_j"]["per_step"]),
        ):
            self.assertAlmostEqual(a / b, 1, delta=1e-9, msg=found["method"])

    @pytest.mark.long
    def test_equals_the_full_run(self):
        for fidelity, methods in (("analytic", METHODS), ("fluid", METHODS), ("chunk", "1f1b,pipedream-2bw,zero1,ps-ssp")):
            what = ("compare", PAPER, "--methods", methods, "--fidelity", fidelity, *QUIET)
            rows = {row["method"]: row for row in self.json(*what, *ALL)["results"]}
            for found in self.json(*what)["results"]:
                with self.subTest(fidelity=fidelity, method=found["method"]):
                    full = rows[found["method"]]
                    self.assertEqual(full["steps"], {"by_seed": [55], "most": 55, "period": None, "precision": None})
                    self.check_equal(found, full)
                    steps = found["steps"]
                    if found["method"] == "ps-async":  # its roles run freely
                        self.assertEqual((steps["by_seed"], steps["period"]), ([55], None))
                    else:
                        self.assertLessEqual(steps["by_seed"][0], 10)
                        self.assertGreaterEqual(steps["period"], 1)
            self.assertEqual(len(rows), len(methods.split(",")))

    def test_equals_the_full_run_with_hosts_and_stragglers(self):
        more = (
            ("--set", "software.name=megatron-2022"),
            ("--set", "disturb.stragglers=[{rank=1,factor=1.4}]"),
            ("--set", "disturb.straggler_probability=0.2", "--seeds", "3"),
        )
        for settings in more:
            for fidelity in ("analytic", "fluid"):
                with self.subTest(settings=settings, fidelity=fidelity):
                    what = ("simulate", PAPER, "--set", "method.name=1f1b", "--fidelity", fidelity, *QUIET, *settings)
                    found = self.json(*what)
                    self.assertLess(max(found["steps"]["by_seed"]), 15)
                    self.check_equal(found, self.json(*what, *ALL))

    def test_a_trace_shows_the_same_steps(self):
        traces = []
        for name, more in (("short.json", ()), ("long.json", ALL)):
            one = self.json("simulate", self.job(), "--fidelity", "analytic", "--trace", self.tmp / name, *more)
            traces.append((self.tmp / name).read_text())
            self.assertEqual(one["steps"]["by_seed"], [55] if more else [7])
        self.assertEqual(*traces)

    def test_text(self):
        text = self.rehearse("simulate", self.job(), "--fidelity", "analytic").stdout
        self.assertRegex(text, r"\nsteps +[2-9] run, all later ones are equal\n")
        text = self.rehearse("simulate", self.job(), "--fidelity", "analytic", *ALL).stdout
        self.assertRegex(text, r"\nsteps +55 run\n")


class Precise(CliTestCase):
    def run_with(self, precision, *more):
        return self.json("simulate", self.job(JITTER), "--fidelity", "fluid", "--precision", precision, *more)

    def test_a_looser_precision_takes_fewer_steps(self):
        runs = [self.run_with(p) for p in ("0%", "0.1%", "1%", "30%")]
        steps = [sum(run["steps"]["by_seed"]) for run in runs]
        self.assertEqual(steps[0], 5 * 55)
        self.assertEqual(steps, sorted(steps, reverse=True))
        self.assertLess(steps[3], steps[1])
        self.assertEqual(runs[3]["steps"], {"by_seed": [11] * 5, "most": 55, "period": None, "precision": 0.3})
        full = runs[0]["step_time_s"]["mean"]
        for run, share in zip(runs[1:], (0.001, 0.01, 0.3), strict=True):
            self.assertLessEqual(abs(run["step_time_s"]["mean"] - full), max(share * full, run["step_time_s"]["ci95"]))

    def test_equal_bytes(self):
        outputs = {self.rehearse("simulate", self.job(JITTER), "--json").stdout for _ in range(2)}
        self.assertEqual(len(outputs), 1)

    def test_text(self):
        text = self.rehearse("simulate", self.job(JITTER), "--precision", "30%").stdout
        self.assertRegex(text, r"\nsteps +11 of 55 run by each seed, for a mean within 30%\n")
        text = self.rehearse("compare", self.job(JITTER), "--methods", "ddp,zero1", "--precision", "30%").stdout
        self.assertIn("interval over 5 seeds of 11 steps;", text)

    def test_bad_values(self):
        for value, says in (
            ("0.01", "must be a percentage; nearest: 1%"),
            ("2", "must be a percentage; nearest: 2%"),
            ("1 %", "must be a percentage; nearest: 1%"),
            ("-1%", "must be at least 0%, which runs all steps; nearest: 0%"),
            ("250%", "must be at most 100%; nearest: 100%"),
            ("exact", "not a percentage such as 1%"),
            ("nan%", "not a percentage such as 1%"),
        ):
            for command in ("simulate", "compare"):
                with self.subTest(value=value, command=command):
                    self.refused(command, self.job(), f"--precision={value}", says=["--precision", says])
