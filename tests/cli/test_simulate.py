"""simulate and compare: what they print, that equal input gives equal bytes, and that what they say
holds together."""

import json
import os
import unittest

from cli_test_case import ROOT, TINY, CliTestCase

JITTER = TINY + "disturb.compute_jitter = 0.1\ndisturb.link_jitter = 0.1\n"
FIELDS = """schema_version method world_size mesh rank_to_device seeds step_time_s samples_per_s
tokens_per_s mfu bubble_fraction exposed_comm_s bytes_sent_per_rank bytes_per_step_total
collectives peak_memory_bytes robustness fidelity calibrated program_hash cluster_hash warnings""".split()


class Simulate(CliTestCase):
    def test_fields(self):
        for fidelity in ("analytic", "fluid", "chunk"):
            one = self.json("simulate", self.job(JITTER), "--fidelity", fidelity, "--seeds", "3")
            self.assertEqual(list(one), FIELDS)
            self.assertEqual(one["schema_version"], 1)
            self.assertEqual(one["mesh"], {"pp": 1, "dp": 4, "tp": 1})
            self.assertEqual(one["seeds"], [1, 2, 3])
            self.assertEqual(one["fidelity"], fidelity)
            self.assertEqual(one["rank_to_device"], [f"node{n}/gpu{g}" for n in (0, 1) for g in (0, 1)])
            step = one["step_time_s"]
            self.assertEqual(list(step), ["mean", "std", "ci95", "values"])
            self.assertEqual(len(set(step["values"])), 3)
            self.assertAlmostEqual(step["mean"], sum(step["values"]) / 3)
            # Student's t with two degrees of freedom, 95%: 4.3027.
            self.assertAlmostEqual(step["ci95"] / step["std"], 4.3027 / 3**0.5, places=4)
            self.assertAlmostEqual(one["samples_per_s"] * step["mean"] / 16, 1, places=2)
            self.assertIs(one["calibrated"], False)
            self.assertTrue(0 < one["robustness"] < 1)

    def test_ring_bytes(self):
        """A ring sends 2 (n - 1) / n of the gradient from each rank."""
        one = self.json("simulate", self.job(TINY + 'method.collective = "ring"\n'))
        program = self.json("program", self.job(), "--check")
        [dp] = [c for c in program["channels"] if c["name"] == "dp"]
        mean = one["bytes_sent_per_rank"]["mean"]
        self.assertAlmostEqual(mean / (2 * 3 / 4 * dp["payload_bytes"]), 1, places=6)
        self.assertEqual(one["bytes_per_step_total"], 4 * mean)

    def test_equal_job_and_seed_equal_bytes(self):
        for fidelity in ("analytic", "fluid"):
            runs = [
                self.rehearse("simulate", self.job(JITTER), "--json", "--fidelity", fidelity, "--seeds", n).stdout
                for n in ("4", "4", "3")
            ]
            self.assertEqual(runs[0], runs[1])
            values = [json.loads(text)["step_time_s"]["values"] for text in runs]
            self.assertEqual(values[0][:3], values[2])
        other = self.json("simulate", self.job(JITTER + "disturb.seed = 2\n"), "--seeds", "3")
        self.assertEqual(other["step_time_s"]["values"], values[0][1:])

    def test_text(self):
        out = self.rehearse("simulate", self.job(JITTER)).stdout
        self.assertRegex(out, r"\Astep time = 0\.\d+ s \+- 0\.\d+ \(95%, 5 seeds\)  uncalibrated\n")
        self.assertRegex(out, r"\nMFU +[\d.]+%  uncalibrated\n")
        self.assertRegex(out, r"\npeak memory +\S+ \S+ of 25.8 GB less 1.5 GB reserve on RTX 4090\n")
        out = self.rehearse("simulate", self.job()).stdout
        self.assertRegex(out, r"\Astep time = 0\.\d+ s \(1 seed\)")

    def test_timings_are_apart(self):
        job = self.job()
        self.assertNotIn("timings", self.json("simulate", job))
        self.assertIn("run_s", self.json("simulate", job, "--timings")["timings"])
        self.assertIn("wall clock", self.rehearse("simulate", job, "--timings").stdout)

    def test_set(self):
        job = self.job()
        one = self.json("simulate", job, "--set", "method.name=zero3", "--set", "train.seq_len=32")
        self.assertEqual(one["method"], "zero3")
        self.assertEqual(self.json("--set", "method.name=zero3", "simulate", job)["method"], "zero3")
        # No value: as if the file did not say, which is 16 samples a rank.
        one = self.json("simulate", job, "--set", "train.global_batch=")
        self.assertAlmostEqual(one["samples_per_s"] * one["step_time_s"]["mean"] / 64, 1, places=6)

    def test_trace(self):
        path = self.tmp / "trace.json"
        for fidelity in ("analytic", "fluid"):
            self.rehearse("simulate", self.job(), "--trace", path, "--fidelity", fidelity)
            events = json.loads(path.read_text())
            events = events["traceEvents"] if isinstance(events, dict) else events
            spans = [e for e in events if e["ph"] == "X"]
            self.assertEqual({e["pid"] for e in spans}, {0, 1, 2, 3})
            self.assertEqual({e["args"]["step"] for e in spans}, {5, 6})

    def test_unlike_devices(self):
        text = TINY.replace("cluster.world_size = 4", 'cluster.devices = ["node8"]')
        one = self.json("simulate", self.job(text))
        self.assertEqual(set(one["peak_memory_bytes"]), {"RTX 4090", "V100 PCIe 32GB"})
        self.assertTrue(any("unlike devices" in w for w in one["warnings"]))

    def test_slow_link_and_straggler_slow_it(self):
        job = self.job()
        plain = self.json("simulate", job)["step_time_s"]["mean"]
        slow = self.json("simulate", self.job(TINY + '[[disturb.slow_links]]\nlink = "node0/nic0>fabric"\nfactor = 10.0\n', "slow.toml"))
        self.assertGreater(slow["step_time_s"]["mean"], plain)
        late = self.json("simulate", self.job(TINY + "[[disturb.stragglers]]\nrank = 2\nfactor = 3.0\n", "late.toml"))
        self.assertGreater(late["step_time_s"]["mean"], plain)

    def test_report(self):
        out = self.tmp / "report.html"
        self.rehearse("simulate", self.job(), "--report", out)
        self.assertTrue("image/svg+xml" in out.read_text())


class Compare(CliTestCase):
    SERVERS = "ps-async@servers=2,dp=2"

    def test_rows(self):
        job = self.job(TINY + "method.micro_batches = 2\n")
        given = "zero1,ddp,1f1b@pp=2,micro_batches=4,megatron@tp=3,ps-async@servers=2,dp=2"
        both = self.json("compare", job, "--methods", given, "--fidelity", "analytic")
        self.assertEqual(both["schema_version"], 1)
        labels = [r["method"] for r in both["results"]]
        self.assertEqual(labels, ["zero1", "ddp", "1f1b@pp=2,micro_batches=4", self.SERVERS])
        self.assertEqual(both["results"][2]["mesh"], {"pp": 2, "dp": 2, "tp": 1})
        self.assertEqual(both["results"][3]["mesh"]["servers"], 2)
        [refused] = both["cannot_run"]
        self.assertEqual(refused["method"], "megatron@tp=3")
        self.assertIn("method.tp", refused["reason"])
        # The job's own method keeps its micro-batches; a row equals simulate of the same.
        alone = self.json("simulate", job, "--fidelity", "analytic")
        self.assertEqual(both["results"][1], alone)
        table = self.rehearse("compare", job, "--methods", given, "--fidelity", "analytic").stdout
        lines = [line.split()[0] for line in table.splitlines()[1:6]]
        self.assertEqual(lines, ["zero1", "ddp", "1f1b@pp=2,micro_batches=4", "megatron@tp=3", self.SERVERS])
        self.assertIn("cannot run: ", table)

    def test_all_methods(self):
        both = self.json("compare", self.job(), "--fidelity", "analytic")
        names = {r["method"] for r in both["results"]} | {r["method"] for r in both["cannot_run"]}
        self.assertLessEqual({"ddp", "gpipe", "1f1b", "zero3", "megatron", "topk-sync"}, names)

    def test_none_can_run(self):
        done = self.rehearse("compare", self.job(), "--methods", "megatron@tp=3", expect=2)
        self.assertIn("none of the methods", done.stderr)

    def test_report(self):
        out = self.tmp / "report.html"
        arguments = ["--methods", "ddp,zero1", "--report", out, "--fidelity", "analytic"]
        self.rehearse("compare", self.job(), *arguments)
        self.assertTrue("zero1" in out.read_text())


class Doctor(CliTestCase):
    def test_doctor(self):
        out = self.rehearse("doctor").stdout
        for what in ("cores", "memory", "SimGrid", "LibTorch", "Python", "GPUs", "nvcc"):
            self.assertIn(what, out)
        found = self.json("doctor")
        self.assertEqual(found["schema_version"], 1)
        for one in found["findings"]:
            self.assertEqual(bool(one["disables"]), not one["found"], one)

    def test_missing_data(self):
        env = {**os.environ, "REHEARSE_DATA_DIR": str(self.tmp)}
        found = self.json("doctor", env=env)["findings"]
        [files] = [f for f in found if f["what"] == "models and platforms"]
        self.assertIs(files["found"], False)
        self.refused("simulate", self.job(), env=env, says=["REHEARSE_DATA_DIR"])


if __name__ == "__main__":
    unittest.main()
