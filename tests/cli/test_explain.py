"""`simulate --explain` and `validate --row`: sums, agreement with the metrics, parameter servers, traces, reports, equal bytes."""

import json
import math

from cli_test_case import ROOT, CliTestCase

PIPELINE = ROOT / "experiments/paper-1f1b.toml"
QUIET = ("--fidelity", "analytic", "--set", "disturb.compute_jitter=0", "--set", "disturb.link_jitter=0")
KEYS = ["step_time_s", "prediction_differs_by", "steps", "bubble_fraction", "exposed_comm_s"]
KEYS += ["parts", "critical_path", "devices", "links", "ten_percent_more"]


class Explain(CliTestCase):
    def check(self, explained):
        """What holds for every explanation."""
        self.assertEqual(list(explained), KEYS)
        step = explained["step_time_s"]
        for view in ("path_s", "mean_rank_s"):
            self.assertAlmostEqual(math.fsum(p[view] for p in explained["parts"]) / step, 1, places=9)
        at = 0
        for stretch in explained["critical_path"]:
            self.assertAlmostEqual(stretch["start_s"] / step, at / step, places=9)
            at = stretch["start_s"] + stretch["seconds"]
        self.assertAlmostEqual(at / step, 1, delta=0.2)
        gains = [g["saved"] for g in explained["ten_percent_more"]]
        self.assertEqual(gains, sorted(gains, reverse=True))
        self.assertLess(gains[0], 0.11)
        self.assertNotIn("waiting", [p["kind"] for p in explained["parts"] if p["path_s"] > 0])
        return explained

    def test_agrees_with_the_prediction(self):
        one = self.json("simulate", PIPELINE, *QUIET, "--explain")
        explained = self.check(one["explain"])
        self.assertAlmostEqual(explained["step_time_s"] / one["step_time_s"]["mean"], 1, places=9)
        self.assertAlmostEqual(explained["bubble_fraction"], one["bubble_fraction"], places=6)
        self.assertAlmostEqual(explained["exposed_comm_s"] / one["exposed_comm_s"], 1, places=6)
        communication = math.fsum(p["mean_rank_s"] for p in explained["parts"] if p["kind"] == "communication")
        self.assertAlmostEqual(communication, explained["exposed_comm_s"])
        self.assertEqual(sum(d["ranks"] for d in explained["devices"]), one["world_size"])

    def test_leaves_the_prediction_as_it_is_and_gives_the_same_bytes(self):
        plain = self.json("simulate", PIPELINE)
        first, second = (self.rehearse("simulate", PIPELINE, "--explain", "--json").stdout for _ in range(2))
        self.assertEqual(first, second)
        one = json.loads(first)
        differs = one["step_time_s"]["mean"] / one["explain"]["step_time_s"] - 1
        self.assertAlmostEqual(one["explain"]["prediction_differs_by"], differs)
        del one["explain"], one["command"], plain["command"]
        self.assertEqual(one, plain)

    def test_text(self):
        text = self.rehearse("simulate", PIPELINE, "--explain").stdout
        self.assertRegex(text, r"explained: the analytic schedule without jitter, .* a step; the prediction above is .* differs by [+-]")
        for title in ("where the step goes", "critical path", "device", "links", "10% more of"):
            self.assertRegex(text, rf"(?m)^{title}  ")
        self.assertRegex(text, r"(?m)^sum +\S+ \S+ +100\.0% +\S+ \S+ +100\.0%$")

    def test_links_that_stages_use_at_once(self):
        """The analytic schedule gives each stage's all-reduce the NIC alone, so together they use more than it has."""
        job = self.job(
            'model.name = "gpt2-124m"\ncluster.name = "server-4090:2"\ncluster.world_size = 12\n'
            'cluster.links.network.bandwidth = "10Gb/s"\ntrain.global_batch = 16\n'
            'method = { name = "1f1b", pp = 6, dp = 2, order = "dp,pp,tp" }\n'
        )
        says = "more than 100%: ops of different lanes use these links at once"
        text = self.rehearse("simulate", job, "--fidelity", "analytic", "--explain").stdout
        self.assertRegex(text, r"(?m)^node0/nic>fabric .* 1\d\d\.\d%$")
        self.assertIn(says, text)
        fast = self.rehearse(
            "simulate", job, "--fidelity", "analytic", "--explain", "--set", "cluster.links.network.bandwidth=400Gb/s"
        ).stdout
        self.assertNotIn(says, fast)

    def test_what_to_buy(self):
        """Slow links make a job want links, and slow devices make it want devices."""

        def best(*changes):
            job = self.job('model.name = "gpt-tiny"\ncluster.name = "paper-homogeneous"\nmethod.name = "ddp"\n')
            return self.json("simulate", job, "--fidelity", "analytic", "--explain", *changes)["explain"]["ten_percent_more"][0]

        slow = best("--set", 'disturb.slow_links=[{link="node0/nic0>fabric",factor=1000}]')
        self.assertIn("nic* - fabric", slow["resource"])
        self.assertAlmostEqual(slow["saved"], 1 - 1 / 1.1, places=2)
        late = best("--set", "disturb.stragglers=[{rank=3,factor=1000}]")
        self.assertIn("RTX 4090: ", late["resource"])
        host = best("--set", "software.host.forward=100ms", "--set", "software.host.backward=100ms")
        self.assertEqual(host["resource"], "host: issuing kernels")
        self.assertAlmostEqual(host["saved"], 1 - 1 / 1.1, places=2)

    def test_orders_of_arrival(self):
        for method, sends in (("ps-sync", "push.0 reduce"), ("ps-async", "server send"), ("ps-ssp", "push.0 reduce")):
            with self.subTest(method=method):
                one = self.json("simulate", ROOT / "experiments/paper-ddp.toml", *QUIET, "--set", f"method.name={method}", "--explain")
                explained = self.check(one["explain"])
                self.assertAlmostEqual(explained["step_time_s"] / one["step_time_s"]["mean"], 1, places=6)
                self.assertAlmostEqual(explained["bubble_fraction"], one["bubble_fraction"], delta=0.01)
                self.assertIn(sends, [p["name"] for p in explained["parts"]])

    def test_the_trace_marks_the_critical_path(self):
        trace = self.tmp / "trace.json"
        one = self.json("simulate", PIPELINE, *QUIET, "--explain", "--trace", trace)
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        marked = [e for e in events if e["args"].get("critical")]
        self.assertTrue(0 < len(marked) < len(events) / 4)
        first = min(e["args"]["step"] for e in marked)
        seconds = math.fsum(e["dur"] for e in marked if e["args"]["step"] == first) * 1e-6
        self.assertAlmostEqual(seconds / one["explain"]["step_time_s"], 1, places=3)
        self.rehearse("simulate", PIPELINE, *QUIET, "--trace", trace)
        self.assertNotIn("critical", trace.read_text())

    def test_the_report_has_a_picture(self):
        page = self.tmp / "page.html"
        self.rehearse("simulate", PIPELINE, *QUIET, "--explain", "--report", page)
        self.assertIn("Where the step goes", page.read_text())
        self.rehearse("simulate", PIPELINE, *QUIET, "--report", page)
        self.assertNotIn("<h2>Where the step goes", page.read_text())

    def test_a_row_of_validation(self):
        row = "h1024-l24-tp2-dp2-pp2-mb2-gb8"
        (one,) = self.json("validate", "megatron-node", "--row", row)["sets"][0]["rows"]
        explained = self.check(one["explain"])
        self.assertAlmostEqual(explained["step_time_s"] / one["predicted_s"], 1, delta=0.02)
        self.assertEqual({p["kind"] for p in explained["parts"]}, {"compute", "kernel", "optimizer", "host", "communication", "waiting"})
        self.assertRegex(self.rehearse("validate", "--row", row).stdout, r"(?m)^host: issuing kernels  ")

    def test_a_job_on_thousands_of_ranks(self):
        changes = ("--set", "cluster.name=dgx-a100:128", "--set", "method.dp=8", "--set", "train.global_batch=1024")
        one = self.json("simulate", ROOT / "experiments/gpt3-dgx-a100.toml", "--fidelity", "analytic", "--explain", *changes)
        self.assertEqual(one["world_size"], 1024)
        explained = self.check(one["explain"])
        self.assertEqual(sum(d["ranks"] for d in explained["devices"]), 1024)
