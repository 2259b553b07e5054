"""librehearse.so from C++ programs (examples/): it gives the numbers and the error texts of the command."""

import csv
import pathlib
import subprocess

from cli_test_case import PATIENCE, REHEARSE, ROOT, TINY, CliTestCase

# A software that was measured with jobs like this one, so the result has an interval.
MEASURED = """model.name = "gpt2-1.5b"
cluster.name = "dgx-a100:1"
software.name = "megatron-2021"
method.name = "ddp"
method.precision = "fp16"
train.global_batch = 16
"""
JITTER = ["disturb.compute_jitter=0.1", "disturb.link_jitter=0.1"]


def rows_of(text):
    """{label: (step time, interval, tokens/s, MFU, peak memory)} as the example prints them."""
    return {
        row["method"]: (
            float(row["step_s"]),
            tuple(map(float, filter(None, row["interval_s"].split("..")))),
            float(row["tokens_per_s"]),
            float(row["mfu"]),
            int(row["peak_bytes"]),
        )
        for row in csv.DictReader(text.splitlines())
    }


def row_of(study):
    interval = study["interval_s"] or {}
    return (
        study["step_time_s"]["mean"],
        tuple(interval[key] for key in ("low", "high") if key in interval),
        study["tokens_per_s"],
        study["mfu"] or 0,
        max(study["peak_memory_bytes"].values()),
    )


class CppLibrary(CliTestCase):
    def example(self, *arguments, expect=0, name="compare_methods"):
        program = pathlib.Path(REHEARSE).with_name(name)
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done

    def compare(self, job, methods, *keys):
        done = self.example(job, methods, *keys)
        sets = [word for key in keys for word in ("--set", key)]
        own = self.json("simulate", job, *sets, cwd=ROOT)
        all_rows = self.json("compare", job, "--methods", methods, *sets, cwd=ROOT)
        expected = {"the job": row_of(own)} | {one["method"]: row_of(one) for one in all_rows["results"]}
        self.assertEqual(rows_of(done.stdout), expected)
        self.assertEqual(done.stderr, "".join(f"{one['method']} cannot run: {one['reason']}\n" for one in all_rows["cannot_run"]))
        return own

    def test_the_numbers_of_the_command(self):
        self.compare(self.job(TINY), "ddp,zero3,1f1b@pp=2,1f1b@pp=3", *JITTER)

    def test_a_calibrated_job(self):
        own = self.compare(self.job(MEASURED), "ddp")
        self.assertIsNotNone(own["interval_s"])

    def test_a_plan_that_the_planner_chooses(self):
        self.compare(self.job(TINY), "adaptive", "method.name=adaptive")

    def test_recoveries(self):
        job, policies = self.job(TINY + 'faults = { model = "rsc1-a100", rate = 1000 }\n'), "restart,spare,replica"
        done = self.example(job, 2, policies, "method.name=zero2", name="compare_recoveries")
        own = self.json("compare", job, "--duration", "2d", "--recovery", policies, "--set", "method.name=zero2", cwd=ROOT)
        rows = [tuple(row.values()) for row in csv.DictReader(done.stdout.splitlines())]
        expected = [(one["label"], one["goodput"]["mean"], one["interruptions"], one["lost_s"]["rework"]) for one in own["long_runs"]]
        self.assertEqual([(row[0], *map(float, row[1:])) for row in rows], expected)
        self.assertEqual(len(rows), 2)
        self.assertIn("replica, sharded cannot run: ", done.stderr)

    def test_errors_of_the_command(self):
        wrong = self.job(TINY.replace("ddp", "dpp"))
        said = self.refused("simulate", wrong)
        self.assertEqual("rehearse: " + self.example(wrong, "ddp", expect=1).stderr, said)
        said = self.refused("compare", self.job(TINY), "--methods", "dpp")
        self.assertEqual("rehearse: " + self.example(self.job(TINY), "dpp", expect=1).stderr, said)
