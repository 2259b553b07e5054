"""`rehearse validate` on the smallest set: its JSON and tables, one row alone, changed keys, and refusals."""

import csv
import json
import math
import unittest

from cli_test_case import ROOT, CliTestCase

SET = "bert-pretrain"
with open(ROOT / "validation" / f"{SET}.csv", newline="") as file:
    ROWS = list(csv.DictReader(file))
SUMMARY = {"rows", "refused", "mean_abs_error", "median", "worst", "bias"}


class Validate(CliTestCase):
    def validate(self, *arguments):
        whole = self.json("validate", *arguments)
        self.assertEqual(len(whole["sets"]), 1)
        return whole["sets"][0]

    def errors(self, one, use):
        return [row["error"] for row in one["rows"] if row["use"] == use]

    def test_json(self):
        done = self.rehearse("validate", SET, "--json")
        self.assertEqual(done.stderr, "")
        whole = json.loads(done.stdout, parse_constant=self.fail)
        self.assertEqual(list(whole), ["schema_version", "version", "command", "fidelity", "sets"])
        self.assertEqual((whole["schema_version"], whole["fidelity"]), (1, "analytic"))
        (one,) = whole["sets"]
        self.assertEqual(list(one), ["set", "summary", "source", "peers", "goal_percent", "check", "calibrate", "rows"])
        self.assertEqual(one["set"], SET)
        self.assertTrue(one["summary"] and one["source"])
        self.assertEqual(whole, self.json("validate", SET))

    def test_every_row_is_predicted_and_summed_up(self):
        one = self.validate(SET)
        self.assertEqual([row["row"] for row in one["rows"]], [row["row"] for row in ROWS])
        for row, published in zip(one["rows"], ROWS, strict=True):
            self.assertEqual(list(row), ["row", "use", "measured_s", "predicted_s", "error", "bubble_fraction", "exposed_comm_s"])
            self.assertEqual(row["use"], published["use"])
            self.assertEqual(row["measured_s"], float(published["seconds"]))
            self.assertAlmostEqual(row["error"], row["predicted_s"] / row["measured_s"] - 1)
            self.assertLess(abs(row["error"]), 0.5)
            self.assertGreaterEqual(row["exposed_comm_s"], 0)
        for use in ("check", "calibrate"):
            self.assertEqual(set(one[use]), SUMMARY)
            errors = self.errors(one, use)
            sizes = sorted(map(abs, errors))
            self.assertEqual((one[use]["rows"], one[use]["refused"]), (len(errors), 0))
            self.assertGreater(len(errors), 3)
            self.assertAlmostEqual(one[use]["mean_abs_error"], math.fsum(sizes) / len(sizes))
            self.assertAlmostEqual(one[use]["bias"], math.fsum(errors) / len(errors))
            self.assertAlmostEqual(one[use]["worst"], sizes[-1])
            middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
            self.assertAlmostEqual(one[use]["median"], middle)

    def test_one_row(self):
        name = next(row["row"] for row in ROWS if row["use"] == "check")
        one = self.validate("--row", name)
        self.assertEqual([row["row"] for row in one["rows"]], [name])
        self.assertEqual((one["check"]["rows"], one["calibrate"]["rows"]), (1, 0))
        whole = self.validate(SET)
        self.assertEqual(one["rows"][0].pop("explain")["steps"], 50)
        self.assertIn(one["rows"][0], whole["rows"])
        text = self.rehearse("validate", SET, "--row", name)
        self.assertEqual(text.stderr, "")
        self.assertIn(name, text.stdout)
        self.assertEqual(text.stdout.count("V100-"), 1)

    def test_tables(self):
        text = self.rehearse("validate", SET).stdout
        self.assertEqual([line.split()[:2] for line in text.splitlines() if line.startswith(SET)], [[SET, "check"], [SET, "calibrate"]])
        self.assertNotIn("V100-", text)
        rows = self.rehearse("validate", SET, "--rows").stdout
        for row in ROWS:
            self.assertIn(row["row"], rows)
        self.assertTrue(rows.endswith(text))

    def test_a_changed_key_changes_every_prediction(self):
        plain = self.validate(SET)
        slow = self.validate(SET, "--set", "software.host.forward=5ms")
        for before, after in zip(plain["rows"], slow["rows"], strict=True):
            self.assertGreater(after["predicted_s"], 1.2 * before["predicted_s"], before["row"])
            self.assertEqual(after["measured_s"], before["measured_s"])

    def test_fidelity(self):
        name = ROWS[-1]["row"]
        (quick,) = self.validate("--row", name)["rows"]
        (fluid,) = self.validate("--row", name, "--fidelity", "fluid")["rows"]
        self.assertAlmostEqual(fluid["predicted_s"] / quick["predicted_s"], 1, delta=0.2)
        self.refused("validate", SET, "--fidelity", "exact", says=["--fidelity", "analytic"])

    def test_names_that_are_not_known(self):
        self.refused("validate", "bert-pretrian", says=['validation set "bert-pretrian" is not known', f'mean "{SET}"?', "sc21"])
        near = ROWS[0]["row"]
        self.refused("validate", SET, "--row", near + "x", says=[f'no set has a row "{near}x"', f'mean "{near}"?', "--rows"])
        self.refused("validate", "--rowz", says=["unknown option --rowz", "mean --rows?"])

    def test_a_wrong_key_is_refused(self):
        self.refused("validate", SET, "--set", "software.host.forwards=1us", says=["software.host.forwards", 'mean "forward"?'])

    def test_rows_that_cannot_be_predicted_are_counted(self):
        """With less memory the large batches do not fit; the other rows are predicted as before."""
        plain = self.validate(SET)
        small = self.validate(SET, "--set", "cluster.memory_reserve=5GB")
        refused = [row for row in small["rows"] if "refused" in row]
        self.assertEqual(len(refused), small["check"]["refused"] + small["calibrate"]["refused"])
        self.assertTrue(0 < len(refused) < len(ROWS))
        for row in refused:
            self.assertEqual(list(row), ["row", "use", "measured_s", "refused"])
            self.assertIn("needs", row["refused"])
        for before, after in zip(plain["rows"], small["rows"], strict=True):
            if "refused" not in after:
                self.assertEqual(after, before)
        rows = self.rehearse("validate", SET, "--rows", "--set", "cluster.memory_reserve=5GB").stdout
        self.assertEqual(rows.count("refused: "), len(refused))


if __name__ == "__main__":
    unittest.main()
