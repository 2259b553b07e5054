"""Networks between nodes (experiments/topologies, docs/platforms.md): what transfers that share their cables take, by the closed form."""

import csv
import re

from cli_test_case import ROOT, CliTestCase

MIB = 1 << 20
TENSOR = 256 * MIB  # bytes


class Topologies(CliTestCase):
    def seconds(self, move, topology, ranks=""):
        """The seconds that a collective of a tensor takes, in plain rounds."""
        on = ("--cluster", ROOT / f"experiments/topologies/{topology}", "--bytes", f"{TENSOR}B", "--software", "rehearse")
        ring = ("--algorithm", "ring") if move == "all_reduce" else ()
        (size,) = self.json("collective", move, *on, *ring, *(("--ranks", ranks) if ranks else ()))["sizes"]
        return size["seconds"]

    def near(self, seconds, closed_form):
        self.assertAlmostEqual(seconds, closed_form, delta=0.002 * closed_form)

    def test_a_ring_over_two_sites_crosses_the_line_once_in_each_direction(self):
        rounds = 2 * 31
        self.near(self.seconds("all_reduce", "two-sites.toml"), rounds * (TENSOR / 32 / 1.25e9 + 5e-3))

    def test_an_all_to_all_over_two_sites_shares_the_line(self):
        across = 16 * 16 * TENSOR / 32
        self.near(self.seconds("all_to_all", "two-sites.toml"), across / 1.25e9 + 31 * 5e-3)

    def test_groups_of_a_dragonfly_that_send_to_one_group_share_a_cable(self):
        # Kim et al. 2008: minimal routing to one other group is the worst case; to different groups it is the best.
        self.near(self.seconds("rotate", "dragonfly.toml:8", "0,16,4,20,8,24,12,28"), 4 * TENSOR / 12.5e9)
        self.near(self.seconds("rotate", "dragonfly.toml:32", "0,16,32,48,64,80,96,112"), TENSOR / 12.5e9)

    def test_leaves_that_send_to_each_other_share_their_cables_to_the_spine(self):
        across = ",".join(f"{node * 4},{32 + node * 4}" for node in range(8))
        self.near(self.seconds("rotate", "fat-tree.toml:16", across), 8 * TENSOR / (8 * 25e9 / 2))
        self.near(self.seconds("rotate", "fat-tree.toml:8", "0,4,8,12,16,20,24,28"), TENSOR / 24e9)

    def test_rails_and_racks_do_not_share(self):
        self.near(self.seconds("rotate", "rails.toml:2", "0,4"), TENSOR / 24e9)
        self.near(self.seconds("rotate", "rails.toml:2", "0,4,1,5"), TENSOR / 24e9)
        self.near(self.seconds("all_to_all", "nvl72.toml:1"), 71 / 72 * TENSOR / 722e9 + 71 * 1.4e-6)

    def test_which_links_of_a_rack_are_worth_money(self):
        """The table of docs/platforms.md, to its last digit: each kind of link alone, half and twice as fast."""
        self.rehearse("sweep", ROOT / "experiments/what-if/links.toml", "-o", self.tmp / "sweep", cwd=ROOT)
        keys = ("network.bandwidth_factor", "network.latency", "pcie.bandwidth_factor")
        with (self.tmp / "sweep/results.csv").open() as file:
            step = {tuple(row[f"cluster.links.{key}"] for key in keys): float(row["step_s"]) for row in csv.DictReader(file)}
        self.assertEqual(len(step), 7)
        changes = [("2", "", ""), ("", "", "2"), ("", "2.5us", ""), ("", "", ""), ("", "", "0.5"), ("0.5", "", "")]
        times = [step[change] for change in changes]
        self.assertEqual(times, sorted(times))
        section = (ROOT / "docs/platforms.md").read_text().split("### Other devices, other links")[1].split("\n## ")[0]
        said = sorted(float(seconds) for seconds in re.findall(r"\| ([\d.]+) s \|", section))
        self.assertEqual(said, [round(seconds, 3) for seconds in times])
        # A factor and the rate that it makes are one change.
        job = ROOT / "experiments/what-if/gpt2.toml"
        of_two = [
            self.json("simulate", job, "--fidelity", "analytic", "--seeds", "1", "--set", f"cluster.links.network.{key}", cwd=ROOT)
            for key in ("bandwidth_factor=2", "bandwidth=50Gb/s")
        ]
        self.assertEqual(of_two[0]["step_time_s"], of_two[1]["step_time_s"])
        self.refused(
            "simulate",
            job,
            "--set",
            "cluster.links.torus.latency=1us",
            says=['1us: key "cluster.links.torus": ', "it has network, pcie"],
            cwd=ROOT,
        )
        self.refused("simulate", job, "--set", "cluster.links.nic.latency=1us", says=["cluster.links.nic", "unknown"], cwd=ROOT)

    def test_the_line_that_a_method_needs(self):
        """With a tenth of the rate, the exchange of a step takes ten times as long; averaging every 500 steps hardly notices."""
        self.rehearse("sweep", ROOT / "experiments/topologies/two-sites-sweep.toml", "-o", self.tmp / "sweep", cwd=ROOT)
        with (self.tmp / "sweep/results.csv").open() as file:
            rows = list(csv.DictReader(file))
        step = {(row["cluster.fabric.group_bandwidth"], row["methods"].split("@")[0]): float(row["step_s"]) for row in rows}
        self.assertEqual(len(step), 6)
        # Gradients in bf16 on rings over the eight nodes: twice 7/8 of them cross the line.
        more = 2 * 7 / 8 * 2 * 124.4e6 * (1 / 0.125e9 - 1 / 1.25e9)
        self.assertAlmostEqual(step["1Gb/s", "ddp"] - step["10Gb/s", "ddp"], more, delta=0.03 * more)
        self.assertGreater(step["100Gb/s", "ddp"], 4 * step["1Gb/s", "local-sgd"])
