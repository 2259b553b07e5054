"""experiments/table1 at reduced size: clients with short texts, and some methods on the simulated clusters. Also checks that the expected
output of the full study is consistent with its own numbers."""

import argparse
import json
import os
import random
import subprocess
import sys
import unittest

import pytest
from cli_test_case import REHEARSE, ROOT, CliTestCase
from test_experiments import differences

FOLDER = ROOT / "experiments/table1"
os.environ["REHEARSE"] = str(REHEARSE)
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(FOLDER)]
import claims  # noqa: E402
import paper  # noqa: E402
import privacy  # noqa: E402
import simulated  # noqa: E402
import study  # noqa: E402
import table1  # noqa: E402

VOCABULARY = 1024


class Agreement(unittest.TestCase):
    def test_pairs_are_those_that_the_words_order(self):
        values = {"megatron": 3, "deepspeed": 3, "byteps": 2, "fedavg": 1}
        # None, None, Limited, Strong: all but the first pair.
        self.assertEqual(paper.agreement(paper.PRIVACY, values, more_is_better=False), (5, 5))
        self.assertEqual(paper.agreement(paper.PRIVACY, values, more_is_better=True), (0, 5))
        self.assertEqual(paper.agreement(paper.PRIVACY, values | {"byteps": 1}, more_is_better=False), (4, 5))  # equal numbers: no order


class Seen(unittest.TestCase):
    def test_what_leaves_a_node(self):
        self.assertEqual(privacy.seen({"pp": 2, "dp": 8, "tp": 2}, 0), ("its text", 1))
        self.assertEqual(privacy.seen({"pp": 1, "dp": 32, "tp": 1}, 0), ("its gradient", 1))
        self.assertEqual(privacy.seen({"pp": 1, "replicate": 15, "shard": 2, "tp": 1, "servers": 2}, 0)[1], 2)
        self.assertEqual(privacy.seen({"pp": 1, "dp": 31, "tp": 1, "servers": 1}, 31)[1], 31)


@pytest.mark.long
class Study(CliTestCase):
    def test_an_observer_names_the_words_of_clients(self):
        folders = [self.tmp / f"client{client}" for client in range(privacy.CLIENTS)]
        for client, folder in enumerate(folders):
            draw = random.Random(client)
            folder.mkdir()
            # Half of the syllables are the client's own.
            syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "xyzw"[client] + "v"]
            for page in "ab":  # one of all pages is for validation
                (folder / f"{page}.txt").write_text(" ".join("".join(draw.choices(syllables, k=2)) for _ in range(4000)))
        command = [sys.executable, "data/prepare.py", *folders, "--by-input", "--val-fraction", "1e-6", "--vocab-size", str(VOCABULARY)]
        subprocess.run([*command, "-o", self.tmp / "tokens", "--quiet"], cwd=ROOT, check=True)
        options = argparse.Namespace(tokens=self.tmp / "tokens", output=self.tmp, vocabulary=VOCABULARY)
        one, two, four = privacy.attacked(options)
        for row in (one, two, four):
            self.assertEqual((row["in_its_text"], row["missed"]), (1, 0))
        self.assertEqual(one["read_by_it"], 1)
        self.assertTrue(1 > two["read_by_it"] > four["read_by_it"] > 1 / 4)
        self.assertTrue(one["named"] < two["named"] < four["named"] < VOCABULARY)

    def test_a_secure_sum_of_the_papers_clients_goes_on_without_two(self):
        self.assertEqual(simulated.left_clients(), {"clients": 31, "left": 2, "in_the_sum": 30, "exact": True})

    def test_communication_and_failures_are_simulated(self):
        options = argparse.Namespace(seeds=1, fidelity="analytic", output=self.tmp)
        fedavg, pipedream = (simulated.row(method, options) for method in ("fedavg", "pipedream"))
        for row in (fedavg, pipedream):
            self.assertEqual(list(row["clusters"]), ["ideal", "paper"])
            self.assertEqual(list(row["goodput"]), list(simulated.POLICIES))
            self.assertTrue(all(0.5 < one.mean < 1 for one in row["goodput"].values()))
            self.assertGreater(row["slowdown"]["slow rank"], 1.2)
        # A client sends the model twice in a round, up and down.
        size = 4 * 110650880
        sent = 2 * size * 31 / simulated.ROUND / fedavg["clusters"]["paper"]["global_batch"]
        self.assertAlmostEqual(fedavg["clusters"]["paper"]["bytes_per_sample"] / sent, 1, delta=1e-4)
        # Twenty-two masks more before a client sends, at 1.7 GB/s.
        seconds = simulated.secrecy(options)
        masks = (seconds["all neighbours"] - seconds["8 neighbours"]) / (22 * size / 1.7e9 / simulated.ROUND)
        self.assertTrue(1 < masks < 1.15)  # jitter: the slowest client
        self.assertLess(seconds["in the clear"], seconds["8 neighbours"])


class Expected(unittest.TestCase):
    def setUp(self):
        self.found = json.loads((FOLDER / "expected/table1.json").read_text())

    def test_all_methods_stand_there(self):
        self.assertEqual((self.found["seeds"], self.found["fidelity"]), (5, "fluid"))
        self.assertEqual([row["method"] for row in self.found["rows"]], list(paper.ROWS))

    def test_inputs_have_not_changed(self):
        """The training runs need texts that are downloaded, and are not repeated; only their inputs are compared."""
        files = self.found["inputs"]["files"]
        self.assertEqual(files, table1.hashes())
        self.assertEqual(len(self.found["inputs"]["texts"]["train_sha256"]), privacy.CLIENTS)

    def test_simulated_numbers_are_not_stale(self):
        row = claims.named(self.found["rows"])["pipedream"]
        options = argparse.Namespace(seeds=1, fidelity="fluid")
        for name, then in row["clusters"].items():
            now = study.plain(simulated.step(then["settings"], options))
            self.assertEqual(list(differences(now["step_time_s"]["values"], then["step_time_s"]["values"][:1])), [])
            self.assertEqual(list(differences(now["bytes_per_sample"], then["bytes_per_sample"])), [], name)

    def test_the_report_is_made_of_the_numbers(self):
        options = argparse.Namespace(**{key: self.found[key] for key in ("seeds", "fidelity", "vocabulary")})
        found = self.found | {"rows": study.sampled(self.found["rows"])}
        self.assertEqual(table1.markdown(found, options), (FOLDER / "expected/table1.md").read_text())
