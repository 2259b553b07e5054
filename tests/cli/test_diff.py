"""diff: what two jobs state and plan differently, what that costs, and where in the step; as text, JSON and a picture."""

import json
import math

from cli_test_case import CliTestCase

JOB = (
    'model.name = "gpt-tiny"\ncluster.name = "workstation-4090"\nmethod = {{ name = "{method}", dp = 2 }}\n'
    "train = {{ global_batch = 8, lr = 1e-3 }}\n"
)


class Diff(CliTestCase):
    def job(self, method):
        path = self.tmp / f"{method}.toml"
        path.write_text(JOB.format(method=method))
        return path

    def test_figures_are_those_of_simulate_and_parts_sum_to_the_step(self):
        a, b = self.job("ddp"), self.job("zero3")
        found = self.json("diff", a, b)
        self.assertEqual(found["diff"]["job"], [{"key": "method.name", "a": '"ddp"', "b": '"zero3"'}])
        self.assertIn({"key": "zero", "a": "0", "b": "3"}, found["diff"]["plan"])
        for side, path in (("a", a), ("b", b)):
            alone = self.json("simulate", path, "--explain")
            self.assertEqual(found[side]["result"]["step_time_s"], alone["step_time_s"])
            self.assertEqual(found["predicted"]["step_time_s"][side], alone["step_time_s"]["mean"])
            self.assertEqual(found["predicted"]["peak_memory_bytes"][side], max(alone["peak_memory_bytes"].values()))
            explained = alone["explain"]["step_time_s"]
            self.assertEqual(found[side]["explained_step_time_s"], explained)
            self.assertTrue(math.isclose(sum(part[f"{side}_s"] for part in found["parts"]), explained, rel_tol=1e-9))
        by = [abs(part["b_s"] - part["a_s"]) for part in found["parts"]]
        self.assertEqual(by, sorted(by, reverse=True))
        text = self.rehearse("diff", a, b).stdout
        for line in ("method.name", "step time", "dp all-reduce", "dp all-gather", "backward", "sum"):
            self.assertIn(line, text)
        self.assertRegex(text, r"\nbubble .* [+-][\d.]+ points\n")

    def test_rounding_is_no_difference(self):
        """The update of some microseconds begins 0.6 ms into one step and 4.5 s into the other."""
        job = self.tmp / "nodes.toml"
        text = JOB.format(method="ddp").replace("workstation-4090", "server-4090:2")
        job.write_text(text.replace("dp = 2", "dp = 16").replace("global_batch = 8", "global_batch = 16"))
        slow = ("--set-b", "cluster.links.network.bandwidth=10kb/s")
        text = self.rehearse("diff", job, job, *slow, "--fidelity", "analytic").stdout
        self.assertRegex(text, r"\nupdate .*  =\n")

    def test_what_the_analytic_schedule_leaves_out(self):
        """The table of the critical path adds up to the predicted step times."""
        a, b = self.job("ddp"), self.job("zero3")
        jitter = ("--set", "disturb.compute_jitter=0.2", "--fidelity", "analytic")
        text = self.rehearse("diff", a, b, *jitter).stdout
        self.assertRegex(text, r"\nsum +\S+ \S+ +.*\nbeyond this schedule +\+\S+ \S+ +\+.*\nstep time +\S+ \S+ +")
        self.assertIn("as simulate --explain; beyond it is jitter\n", text)
        self.assertIn("on links that they share, and jitter\n", self.rehearse("diff", a, b, *jitter[:2]).stdout)
        self.assertNotIn("beyond", self.rehearse("diff", a, b, "--fidelity", "analytic").stdout)

    def test_one_job_with_other_keys(self):
        job = self.job("ddp")
        found = self.json(
            "diff", job, job, "--set", "train.lr=0.1", "--set-b", "train.global_batch=16", "--set-b", "method.micro_batches=2"
        )
        self.assertEqual([one["key"] for one in found["diff"]["job"]], ["method.micro_batches", "train.global_batch"])
        # The plan also says what the key is that A does not state; its global batch would say nothing new.
        self.assertEqual(found["diff"]["plan"], [{"key": "micro_batches", "a": "1", "b": "2"}])
        self.assertGreater(found["predicted"]["step_time_s"]["b"], found["predicted"]["step_time_s"]["a"])
        same = self.rehearse("diff", job, job).stdout
        self.assertIn("both jobs state the same", same)
        self.assertNotIn("so the plan", same)

    def test_long_values_are_shown_where_they_differ(self):
        job, lists = self.job("ddp"), {}
        for side, last in (("a", 31), ("b", 99)):
            lists[side] = (
                f"disturb.stragglers=[{', '.join(f'{{rank = {rank}, factor = 2}}' for rank in (0, 1))}, {{rank = 0, factor = {last}}}]"
            )
        text = self.rehearse("diff", job, job, "--set-a", lists["a"], "--set-b", lists["b"], "--fidelity", "analytic").stdout
        row = next(line for line in text.splitlines() if line.startswith("disturb.stragglers"))
        self.assertRegex(row, r" \.\.\.\S.*= 31.* \.\.\.\S.*= 99")

    def test_two_plans(self):
        job, plans = self.job("ddp"), {}
        for budget in (4, 0):
            plans[budget] = self.tmp / f"{budget}.toml"
            self.rehearse("plan", job, "-o", plans[budget], "--no-rescore", "--set", f"method.precision={'bf16' if budget else 'fp32'}")
        planned = self.tmp / "planned.toml"
        planned.write_text('model.name = "gpt-tiny"\ncluster.name = "workstation-4090"\ntrain.lr = 1e-3\n')
        found = self.json("diff", planned, planned, "--set-a", f"method.plan={plans[4]}", "--set-b", f"method.plan={plans[0]}")
        self.assertIn({"key": "precision", "a": '"bf16"', "b": '"f32"'}, found["diff"]["plan"])

    def test_a_picture_and_json_in_a_file(self):
        a, b = self.job("ddp"), self.job("zero3")
        drawn, written = self.tmp / "diff.svg", self.tmp / "diff.json"
        self.rehearse("diff", a, b, "-o", drawn, "--fidelity", "analytic")
        self.assertIn("<svg", drawn.read_text()[:500])
        printed = self.json("diff", a, b, "-o", written, "--fidelity", "analytic")
        self.assertEqual(json.loads(written.read_text())["predicted"], printed["predicted"])

    def test_refusals_say_which_job(self):
        a = self.job("ddp")
        self.refused("diff", a, self.tmp / "none.toml", says=["none.toml"])
        self.refused("diff", a, a, "--set-b", "method.nam=zero3", says=["method.nam", 'did you mean "name"?'])
        wrong = self.tmp / "large.toml"
        wrong.write_text('model.name = "gpt3-175b"\ncluster.name = "workstation-4090"\nmethod.name = "ddp"\ntrain.global_batch = 8\n')
        self.refused("diff", a, wrong, says=["large.toml", "memory"])
        self.refused("diff", a, a, "-o", self.tmp / "nowhere" / "diff.svg", says=["nowhere"])
