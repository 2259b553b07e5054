"""What work costs: rents of stated prices, their costs in `simulate`, long runs, sweeps and `diff`, and the frontier of a sweep."""

import json

import pytest
from cli_test_case import ROOT, TINY, CliTestCase

ANALYTIC = ("--fidelity", "analytic", "--seeds", 1)
WHOLE_PAPER = ("--set", "cluster.world_size=32", "--set", "train.global_batch=32")
PRICES = 'cluster.prices=["RTX 4090: 0.5 USD/h", "V100 PCIe 32GB: 0.2 USD/h (ours)"]'


class Costs(CliTestCase):
    def test_a_step_costs_the_rent_of_its_time(self):
        one = self.json("simulate", self.job(), *ANALYTIC, "--set", 'cluster.prices=["0.5 USD/h"]')
        cost, step = one["cost"], one["step_time_s"]["mean"]
        self.assertEqual((cost["currency"], cost["per_hour"]), ("USD", 4 * 0.5))
        self.assertAlmostEqual(cost["per_step"], 2 / 3600 * step, places=15)
        tokens = one["global_batch"] * one["seq_len"]
        self.assertAlmostEqual(cost["per_billion_tokens"] / (1e9 * cost["per_step"] / tokens), 1, places=9)
        self.assertEqual(cost["prices"], ["RTX 4090: 0.5 USD/h"])
        out = self.rehearse("simulate", self.job(), *ANALYTIC, "--set", 'cluster.prices=["0.5 USD/h"]').stdout
        self.assertRegex(out, r"\ncost +2\.00 USD an hour, [\d.e-]+ USD a step, [\d.e-]+ USD a billion tokens; RTX 4090: 0\.5 USD/h\n")
        table = self.json("simulate", self.job(), *ANALYTIC)["cost"]
        self.assertRegex(table["prices"][0], r"RTX 4090: 0\.69 USD/h \(RunPod, .*\)")

    def test_prices_by_kind(self):
        unknown = self.rehearse("simulate", self.job(), *ANALYTIC, *WHOLE_PAPER).stdout
        self.assertRegex(unknown, r"\ncost +not known: V100 PCIe 32GB has no price \(cluster\.prices\)\n")
        self.assertIsNone(self.json("simulate", self.job(), *ANALYTIC, *WHOLE_PAPER)["cost"])
        cost = self.json("simulate", self.job(), *ANALYTIC, *WHOLE_PAPER, "--set", PRICES)["cost"]
        self.assertAlmostEqual(cost["per_hour"], 24 * 0.5 + 8 * 0.2)
        self.assertEqual(cost["prices"], ["RTX 4090: 0.5 USD/h", "V100 PCIe 32GB: 0.2 USD/h (ours)"])
        here = self.json("simulate", self.job(), *ANALYTIC, "--set", "cluster.name=this-machine", "--set", "cluster.world_size=")
        self.assertIsNone(here["cost"])

    def test_devices_in_the_place_of_others_have_their_own_price(self):
        """A node that has a price of its own is another node with other devices."""
        rack = self.tmp / "rack.toml"
        text = (ROOT / "experiments/what-if/rack.toml").read_text()
        rack.write_text(text.replace('parts = ["host", "nic0"]', 'parts = ["host", "nic0"]\nprice = "4 USD/h"'))
        nodes = ("--set", f"cluster.name={rack}:1", "--set", "model.name=gpt2-124m", "--set", "method.precision=bf16", *ANALYTIC)
        whole = self.json("simulate", self.job(), *nodes)
        self.assertEqual(whole["cost"]["prices"], ["node with RTX 4090: 4 USD/h"])
        other = self.json("simulate", self.job(), *nodes, "--set", 'cluster.replace=["RTX 4090: H200"]')
        self.assertRegex(other["cost"]["prices"][0], r"^H200: ")
        self.assertGreater(other["cost"]["per_hour"], 4)
        self.assertLess(other["step_time_s"]["mean"], whole["step_time_s"]["mean"])
        self.assertEqual(list(other["peak_memory_bytes"]), ["H200"])
        wrong = ("--set", 'cluster.replace=["H100: H200"]')
        self.refused("simulate", self.job(), *nodes, *wrong, says=["cluster.replace", 'no device "H100"', "it has RTX 4090"])

    def test_wrong_prices_are_refused(self):
        def refused(prices, *says):
            self.refused("simulate", self.job(), "--set", f"cluster.prices={prices}", says=["cluster.prices", *says])

        refused('["free"]', '"free" is not a price', 'as in "3.99 USD/h"')
        refused('["RTX 5090: 1 USD/h"]', 'paper has no device "RTX 5090"', "its devices: RTX 4090")
        refused('"1 USD/h"', "must be a list of strings")
        mixed = 'cluster.prices=["RTX 4090: 0.5 USD/h", "V100 PCIe 32GB: 0.2 EUR/h"]'
        self.refused("simulate", self.job(), *WHOLE_PAPER, "--set", mixed, says=["USD and EUR cannot be added"])

    def test_a_long_run_pays_for_its_spare_nodes(self):
        keys = ("faults.model=llama3-h100", "faults.rate=1e3", "recovery.spares=1", 'cluster.prices=["0.5 USD/h"]')
        run = ("--duration", "10d", *ANALYTIC, *(word for key in keys for word in ("--set", key)))
        one = self.json("simulate", self.job(), *run)
        self.assertEqual((one["nodes"], one["spares"]), (2, 1))
        self.assertEqual(one["cost"]["per_hour"], 4 * 0.5 * 3 / 2)
        self.assertAlmostEqual(one["cost"]["whole"], 3 * 240)
        tokens = one["productive_s"] / one["step_time_s"] * one["global_batch"] * one["seq_len"]
        self.assertAlmostEqual(one["cost"]["per_billion_tokens"] / (1e9 * 720 / tokens), 1, places=6)
        self.assertIn("720.00 USD in all, ", self.rehearse("simulate", self.job(), *run).stdout)

    def test_diff_shows_both_costs(self):
        said = self.rehearse("diff", self.job(), self.job(TINY.replace("ddp", "zero3"), "b.toml")).stdout
        self.assertRegex(said, r"\ncost a step +[\d.e-]+ USD +[\d.e-]+ USD +[+-]")


class Frontier(CliTestCase):
    def sweep(self, axes, head=""):
        self.job()
        path = self.tmp / "sweep.toml"
        path.write_text(f'job = "job.toml"\nfidelity = "analytic"\n{head}[axes]\n{axes}')
        return path

    def test_fast_and_cheap_points(self):
        """More devices are faster and dearer, and a second price for the same devices is never preferable."""
        path = self.sweep('cluster.world_size = [1, 2, 4]\ncluster.prices = [["1 USD/h"], ["2 USD/h"]]')
        by = ("--by", "step_s,cost_per_billion_tokens")
        answer = self.json("sweep", path, "-o", self.tmp / "out", *by)
        self.assertEqual(
            answer["frontier"]["by"], [{"metric": "step_s", "most": False}, {"metric": "cost_per_billion_tokens", "most": False}]
        )
        points = {point["key"]: point for point in answer["points"]}
        best = [points[key]["point"] for key in answer["frontier"]["keys"]]
        self.assertEqual([point["cluster.prices"] for point in best], [["1 USD/h"]] * len(best))
        figures = [(points[key]["metrics"]["step_s"], points[key]["metrics"]["cost_per_billion_tokens"]) for key in points]
        for key in points:
            mine = points[key]["metrics"]["step_s"], points[key]["metrics"]["cost_per_billion_tokens"]
            beaten = any(other[0] <= mine[0] and other[1] <= mine[1] and other != mine for other in figures)
            self.assertEqual(key in answer["frontier"]["keys"], not beaten)
        said = self.rehearse("sweep", path, "-o", self.tmp / "out", *by).stdout
        self.assertRegex(said, rf"the frontier by step_s, cost_per_billion_tokens: {len(best)} of 6 points that can run\n")
        self.assertIn("a billion tokens", said.splitlines()[0])
        self.assertRegex((self.tmp / "out/sweep.svg").read_text(), r"of 6 points are on the frontier")
        one = self.json("simulate", self.job(), *ANALYTIC, "--set", "cluster.world_size=2", "--set", 'cluster.prices=["2 USD/h"]')
        (same,) = (p["metrics"] for p in answer["points"] if list(p["point"].values()) == [2, ["2 USD/h"]])
        self.assertEqual((same["cost_per_step"], same["currency"]), (one["cost"]["per_step"], "USD"))
        alone = self.json("sweep", path, "-o", self.tmp / "out")
        self.assertIsNone(alone["frontier"])

    def test_wrong_metrics_are_refused(self):
        path = self.sweep("cluster.world_size = [1, 2]")
        out = ("-o", self.tmp / "out")
        self.refused("sweep", path, *out, "--by", "step_s,goodput", says=["--by goodput", "step_s, samples_per_s", "cost_per_step"])
        self.refused("sweep", path, *out, "--by", "step_s,mfu,step_s", says=["--by step_s stands there twice"])

    def test_points_without_a_price_have_no_frontier(self):
        path = self.sweep('cluster.name = ["this-machine"]\ncluster.world_size = [1, 2]')
        said = self.rehearse("sweep", path, "-o", self.tmp / "out", "--by", "step_s,cost_per_step").stdout
        self.assertRegex(said, r"^no point has step_s, cost_per_step: a device has no price \(docs/platforms.md\)\n2 points\n")
        self.assertNotIn("a billion tokens", self.rehearse("sweep", path, "-o", self.tmp / "out").stdout)

    def test_costs_in_two_currencies_are_not_compared(self):
        path = self.sweep('cluster.world_size = [1, 2]\ncluster.prices = [["1 USD/h"], ["2 EUR/h"]]')
        out = ("-o", self.tmp / "out")
        for by in (("cost_per_step",), ("step_s,cost_per_step",), ("cost_per_step", "--search", 4)):
            self.refused("sweep", path, *out, "--by", *by, says=["a cost_per_step in EUR and in USD", "cluster.prices"])
        self.assertEqual(len((self.tmp / "out/results.jsonl").read_text().splitlines()), 4, "the results are kept")
        self.assertIn("the best 4 of 4 points", self.rehearse("sweep", path, *out).stdout)

    def test_plans_and_long_runs_have_costs(self):
        path = self.sweep("cluster.world_size = [2]", 'what = "plan"\n')
        (point,) = self.json("sweep", path, "-o", self.tmp / "plans")["points"]
        self.assertAlmostEqual(point["metrics"]["cost_per_step"], 2 * 0.69 / 3600 * point["metrics"]["step_s"])
        axes = 'faults.model = ["llama3-h100"]\nfaults.rate = [1e3]\nrecovery.spares = [0, 2]\n'
        path = self.sweep(axes, 'what = "goodput"\nduration = "10d"\nseeds = 1\n')
        answer = self.json("sweep", path, "-o", self.tmp / "runs", "--by", "goodput,cost")
        self.assertEqual([point["metrics"]["cost"] / (240 * 4 * 0.69) for point in answer["points"]], [1, 2])
        self.assertEqual([point["metrics"]["cost_spares"] / (240 * 4 * 0.69) for point in answer["points"]], [0, 1])
        rows = json.loads((self.tmp / "runs/results.jsonl").read_text().splitlines()[0])
        self.assertGreater(rows["metrics"]["cost_per_billion_tokens"], 0)


class Search(CliTestCase):
    AXES = """cluster.world_size = [1, 2, 4, 8]
methods = ["ddp", "zero1", "zero3", "1f1b@pp=2", "1f1b@pp=4", "megatron@tp=2"]
method.micro_batches = [1, 2, 4, 8]
method.recompute = [false, true]
"""
    HEAD = 'job = "job.toml"\nfidelity = "analytic"\n'

    def sweep(self, head="", axes=AXES):
        self.job()
        path = self.tmp / "sweep.toml"
        path.write_text(f"{self.HEAD}{head}[axes]\n{axes}")
        return path

    @pytest.mark.long
    def test_a_search_comes_near_the_frontier_and_goes_on(self):
        path, by = self.sweep(), ("--by", "step_s,cost_per_billion_tokens")
        whole = self.json("sweep", path, "-o", self.tmp / "whole", *by)
        found = self.json("sweep", path, "-o", self.tmp / "some", *by, "--search", 40)
        self.assertEqual((whole["searched"], len(whole["points"])), (None, 192))
        self.assertEqual((found["searched"], len({point["key"] for point in found["points"]})), (192, 40))
        self.assertEqual(len((self.tmp / "some/results.csv").read_text().splitlines()), 1 + len(found["points"]))
        figures = [
            [(p["metrics"]["step_s"], p["metrics"]["cost_per_billion_tokens"]) for p in answer["points"] if p["key"] in keys]
            for answer in (whole, found)
            for keys in [answer["frontier"]["keys"]]
        ]
        for step, cost in figures[0]:
            self.assertTrue(any(s <= 1.3 * step and c <= 1.3 * cost for s, c in figures[1]), figures)
        again = self.rehearse("sweep", path, "-o", self.tmp / "some", *by, "--search", 40).stdout
        self.assertRegex(again, r"\n\d+ of 192 points known")
        lines = (self.tmp / "some/results.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), 40, "nothing was computed again")
        more = self.json("sweep", path, "-o", self.tmp / "some", *by, "--search", 60)
        self.assertEqual(len({point["key"] for point in more["points"]}), 60)
        self.assertEqual((self.tmp / "some/results.jsonl").read_text().splitlines()[:40], lines)

    def test_a_search_tries_failures_once_more(self):
        path, out = self.sweep(axes='methods = ["ddp", "zero1", "zero3"]\n'), self.tmp / "out"
        self.rehearse("sweep", path, "-o", out, "--search", 3)
        rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        del rows[1]["metrics"]
        (out / "results.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in [rows[0], {**rows[1], "failed": "no memory"}, rows[2]])
        )
        again = self.json("sweep", path, "-o", out, "--search", 3)
        self.assertEqual([("metrics" in point, "failed" in point) for point in again["points"]], [(True, False)] * 3)
        self.assertEqual(len((out / "results.jsonl").read_text().splitlines()), 4)

    def test_what_excludes_a_search(self):
        out = ("-o", self.tmp / "out", "--search", 5)
        self.refused("sweep", self.sweep('vary = "alone"\n'), *out, says=["search", 'vary = "alone"'])
        self.refused("sweep", self.sweep("[scaling]\ndevices = [1, 2]\n", 'methods = ["ddp"]'), *out, says=["search", "[scaling]"])
        self.refused("sweep", self.sweep(), *out, "--shard", "1/2", says=["--search", "--shard"])
        self.refused("sweep", self.sweep(), "-o", self.tmp / "out", "--search", 0, says=["--search"])
