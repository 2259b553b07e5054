"""Every command predicts the program that `simulate` runs, also where a method's program takes something from predicted times: the ends of
Horovod's cycles, the order in which BytePS pushes, an adaptive plan."""

import csv
import json

from cli_test_case import ROOT, CliTestCase

SET, ROW = "megatron-node", "h1024-l24-tp1-dp8-pp1-mb4-gb64"
JOB = f"{ROOT}/validation/{SET}.toml"
METHODS = {
    "horovod": {"method.cycle_time": "20ms", "method.bucket": "64MiB"},
    "byteps": {"method.credit": 1, "method.servers": 2, "method.bucket": "64MiB", "cluster.name": "a100-4nic:2", "cluster.world_size": 10},
    "adaptive": {},
}


class OneProgram(CliTestCase):
    def test_validate_and_calibrate_predict_what_simulate_predicts(self):
        with open(ROOT / f"validation/{SET}.csv", newline="") as file:
            row = next(row for row in csv.DictReader(file) if row["row"] == ROW)
        stated = {key: value for key, value in row.items() if "." in key}
        for method, keys in METHODS.items():
            with self.subTest(method):
                keys = {"method.name": method, "method.precision": "fp32", "train.clip": 0, **keys}
                sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
                own = [word for key, value in stated.items() for word in ("--set", f"{key}={value}")]
                simulated = self.json("simulate", JOB, "--fidelity", "analytic", "--seeds", "1", *own, *sets)["step_time_s"]["mean"]
                (one,) = self.json("validate", "--row", ROW, *sets)["sets"]
                self.assertAlmostEqual(one["rows"][0]["predicted_s"] / simulated, 1, delta=1e-6)
                table = self.tmp / "steps.csv"
                with open(table, "w", newline="") as file:
                    csv.writer(file).writerows(
                        [["row", "seconds", *stated], *([f"r{i}", row["seconds"], *stated.values()] for i in range(3))]
                    )
                found = self.json("calibrate", table, "--job", JOB, "--software", "megatron-2021", "--fit", "host.update", *sets)
                self.assertAlmostEqual(found["rows"][0]["before_s"] / simulated, 1, delta=1e-6, msg=json.dumps(found["rows"]))
