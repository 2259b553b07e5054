"""simulate: what it prints, that equal input gives equal bytes, and that its figures are consistent."""

import json
import os
import shlex
import subprocess
import time

import pytest
from cli_test_case import REHEARSE, ROOT, TINY, CliTestCase

JITTER = TINY + "disturb.compute_jitter = 0.1\ndisturb.link_jitter = 0.1\n"
FIELDS = """schema_version version command method model cluster global_batch seq_len precision world_size mesh rank_to_device seeds
steps step_time_s interval_s samples_per_s tokens_per_s mfu bubble_fraction exposed_comm_s bytes_sent_per_rank
bytes_per_step_total collectives energy_j cost checkpoint peak_memory_bytes memory_parts_bytes host_memory_bytes robustness fidelity
calibrated program_hash cluster_hash warnings""".split()


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

    def test_it_says_of_what_it_is(self):
        job = self.job()
        more = ["--fidelity", "analytic", "--set", "train.seq_len=32"]
        one = self.json("simulate", job, *more)
        of = {"model": "gpt-tiny", "cluster": "paper", "global_batch": 16, "seq_len": 32, "precision": "fp32"}
        self.assertEqual({key: one[key] for key in of}, of)
        version = self.rehearse("--version").stdout.split()[1]
        self.assertEqual(one["version"], version)
        self.assertEqual(shlex.split(one["command"]), ["rehearse", "simulate", job, *more, "--json"])
        out = self.rehearse("simulate", job, *more).stdout
        self.assertRegex(out, r"\nmodel +gpt-tiny, 16 samples of 32 tokens a step, fp32\ncluster +paper\n")
        both = self.json("compare", job, "--methods", "ddp,zero1", *more)
        self.assertEqual(shlex.split(both["command"])[:2], ["rehearse", "compare"])
        self.assertEqual(both["version"], version)
        for row in both["results"]:
            self.assertEqual({key: row[key] for key in of}, of)
        out = self.rehearse("compare", job, "--methods", "ddp,zero1", *more).stdout
        self.assertIn("\ngpt-tiny, 16 samples of 32 tokens a step, fp32 on paper\n", out)
        plan = self.json("plan", job, "--budget", "20", "--no-rescore", "--set", "train.seq_len=32")
        self.assertEqual({key: plan[key] for key in of}, of)
        self.assertEqual(plan["version"], version)
        for flags in ([], ["--explain"]):
            out = self.rehearse("plan", job, "--budget", "20", "--no-rescore", *flags).stdout
            self.assertRegex(out, r"\Amodel +gpt-tiny, 16 samples of 64 tokens a step, fp32\ncluster +paper\n")

    def test_the_command_can_be_pasted(self):
        job = self.job(name="my job's.toml")
        one = self.json("simulate", job, "--fidelity", "analytic")
        self.assertEqual(shlex.split(one["command"])[2], job)

    def test_energy(self):
        """With equal devices: ranks x step x (idle + (busy - idle) x (1 - bubble)); the RTX 4090 of the table draws 450 W."""
        one = self.json("simulate", self.job(JITTER), "--seeds", "2")
        watts = 450 * (1 - one["bubble_fraction"])
        step = one["step_time_s"]["mean"]
        self.assertAlmostEqual(one["energy_j"]["per_step"] / (4 * step * watts), 1, places=2)
        self.assertAlmostEqual(one["energy_j"]["per_rank"], one["energy_j"]["per_step"] / 4)
        self.assertEqual(one["energy_j"]["idle_unknown"], ["RTX 4090"])
        out = self.rehearse("simulate", self.job()).stdout
        self.assertRegex(
            out, r"\nenergy +[\d.]+ m?J a step, [\d.]+ m?J a rank, [\d.]+ m?J a sample; idle power of RTX 4090 counts as 0, not known\n"
        )
        table = self.rehearse("compare", self.job(), "--methods", "ddp").stdout
        self.assertIn("J a step", table.splitlines()[0])
        here = self.json("simulate", self.job(), "--set", "cluster.name=this-machine", "--set", "cluster.world_size=")
        self.assertIsNone(here["energy_j"])

    def test_nothing_is_minus_nothing(self):
        for method in ("ddp", "1f1b", "zero3"):
            one = ["--set", "cluster.world_size=1", "--set", f"method.name={method}", "--fidelity", "analytic"]
            self.assertNotRegex(self.rehearse("simulate", self.job(), *one).stdout, r"-0[.%\s]")
            self.assertNotRegex(self.rehearse("simulate", self.job(), *one, "--json").stdout, r": -0\.0")
            self.rehearse("compare", self.job(), *one[:2], "--methods", method, "--fidelity", "analytic")
        explained = self.rehearse("plan", self.job(), "--explain", "--budget", "200").stdout
        self.assertNotRegex(explained, r"-0\.0+%")

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
                self.rehearse("simulate", self.job(JITTER), "--json", "--fidelity", fidelity, "--seeds", n).stdout for n in ("4", "4", "3")
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

    def test_a_calibrated_result_has_an_interval(self):
        """Device and software were measured with jobs like this one; outside of that range, or with jitter, the interval says so."""
        job = self.job(
            """model = { name = "bert-large" }
cluster = { name = "dgx1", world_size = 8 }
software.name = "nvidia-bert"
method = { name = "ddp", precision = "fp16" }
train = { seq_len = 128, global_batch = 128 }
"""
        )
        one = self.json("simulate", job, "--fidelity", "analytic")
        self.assertIs(one["calibrated"], True)
        self.assertEqual(one["warnings"], [])
        factor = (one["interval_s"]["high"] / one["interval_s"]["low"]) ** 0.5
        self.assertAlmostEqual(one["interval_s"]["high"] / one["step_time_s"]["mean"], factor)
        self.assertTrue(1.05 < factor < 1.5)
        self.assertEqual(one["interval_s"]["level"], 0.9)
        self.assertRegex(self.rehearse("simulate", job).stdout, r"\ninterval +\d+ ms to \d+ ms \(90%, with calibration error\)\n")
        jitter = self.json("simulate", job, "--set", "disturb.compute_jitter=0.3", "--fidelity", "analytic", "--precision", "0%")
        self.assertGreater(jitter["interval_s"]["high"] / jitter["step_time_s"]["mean"], factor)
        for key, words in (
            ("train.global_batch=8", "tokens in a micro-batch: 128 is outside of what was measured, 1024 to"),
            ("model.hidden=512", "hidden size 512 is outside"),
            ("method.name=zero1", "steps of zero1 were not measured, only ddp"),
            ("software.name=megatron-2021", "steps on V100 SXM2 16GB were not measured, only on A100"),
            ("software.name=rehearse", "software rehearse: no step times were measured with it"),
            (f"cluster.name={self.with_tcp('dgx1')}:2", "measured with RDMA between nodes, not with TCP"),
        ):
            more = ("--set", "cluster.world_size=16", "--set", "train.global_batch=256") if ":2" in key else ()
            other = self.json("simulate", job, "--set", key, *more, "--fidelity", "analytic")
            self.assertIs(other["calibrated"], False)
            self.assertIsNone(other["interval_s"])
            self.assertIn(words, " ".join(other["warnings"]))

    def with_tcp(self, platform):
        """A copy of the platform whose nodes talk TCP."""
        text = (ROOT / f"platforms/{platform}.toml").read_text()
        path = self.tmp / f"{platform}-tcp.toml"
        path.write_text(text.replace('to = "fabric"', 'to = "fabric", tcp_mtu = 1500'))
        return path

    def test_transfers_between_two_nodes_share_one_flow(self):
        """Two nodes see the rate of one TCP stream, however many devices send; analytic, fluid and chunk agree."""
        text = (ROOT / "platforms/dgx1.toml").read_text().split("[shared_disk]")[0]
        cable = 'to = "fabric", bandwidth = "100Gb/s"'
        self.assertIn(cable, text)
        for name, key in (("whole", ""), ("flow", ', flow_rate = "1Gb/s"'), ("slow", None)):
            new = 'to = "fabric", bandwidth = "1Gb/s"' if key is None else cable + key
            (self.tmp / f"{name}.toml").write_text(text.replace(cable, new))
        job = ("--set", "model.name=bert-base", "--set", "method.name=ddp", "--set", "train.global_batch=64", "--set", "train.seq_len=128")
        seconds = {}
        for name in ("whole", "flow", "slow"):
            for fidelity in ("analytic", "fluid", "chunk"):
                where = ("--set", f"cluster.name={self.tmp / name}.toml:2", "--set", "cluster.world_size=16", "--fidelity", fidelity)
                one = self.json("simulate", self.job(), *job, *where)
                seconds[name, fidelity] = one["step_time_s"]["mean"]
        for fidelity in ("analytic", "fluid", "chunk"):
            self.assertGreater(seconds["flow", fidelity], 3 * seconds["whole", fidelity])
            self.assertAlmostEqual(seconds["flow", fidelity] / seconds["slow", fidelity], 1, delta=0.02)

    def test_gradients_reduced_once_need_shards(self):
        self.refused("simulate", self.job(), "--set", "method.reduce_once=true", says=["method.reduce_once", "needs ZeRO 2 or 3"])

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
        # No value: the default, as if the file did not have the key, which is 16 samples per rank.
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

    def test_keys_without_effect_are_named(self):
        """One job may be asked about several methods, so such keys are no errors."""

        def idle(*keys):
            sets = [word for key in keys for word in ("--set", key)]
            found = self.json("simulate", self.job(TINY), "--fidelity", "analytic", *sets)["warnings"]
            return [words for words in found if "no effect" in words]

        for key, where in (
            ("method.density=0.01", "gradients are sent whole"),
            ("method.selector=random_k", "gradients are sent whole"),
            ("method.s_min=0.5", "no density is chosen"),
            ("method.recompute_layers=1", "recompute is false"),
            ("method.recompute_unit=layer", "recompute is false"),
            ("method.sequence_parallel=true", "tp is 1"),
            ("method.context=zigzag", "cp is 1"),
            ("method.partition=layers", "pp is 1"),
        ):
            name, value = key.split("=")
            with self.subTest(key):
                self.assertEqual(idle(key), [f"{name}: {value} has no effect where {where}"])
        self.assertEqual(idle("method.name=zero2", "method.keep_gathered=true")[0].split(" where ")[1], "weights are not sharded (ZeRO 3)")
        # With what they change, and at their defaults, they are not.
        self.assertEqual(idle(), [])
        self.assertEqual(idle("method.density=0.1", "method.recompute_unit=segment"), [])
        self.assertEqual(idle("method.name=topk-sync", "method.density=0.01", "method.selector=random_k"), [])
        self.assertEqual(idle("method.name=zero3", "method.keep_gathered=true"), [])
        self.assertEqual(idle("method.recompute=true", "method.recompute_unit=layer"), [])
        self.assertEqual(idle("method.name=megatron", "method.tp=2", "method.sequence_parallel=true"), [])
        self.assertEqual(idle("method.name=1f1b", "method.pp=2", "method.partition=layers"), [])
        self.assertEqual(idle("method.name=adaptive", "method.reduction=dense"), [])
        # The planner chooses densities.
        chosen = idle("method.name=adaptive", "method.density=0.01", "method.s_min=0.5")
        self.assertEqual(chosen, ["method.density: 0.01 has no effect where s_min and s_max bound the density that is chosen"])

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
        page = out.read_text()
        self.assertTrue("image/svg+xml" in page)
        self.assertIn("gpt-tiny, 16 samples of 64 tokens a step, fp32, on paper", page)
        self.assertIn("<code>rehearse simulate ", page)


class Progress(CliTestCase):
    ENDLESS = ("simulate", ROOT / "experiments/paper-1f1b.toml", "--seeds", "10000", "--steps", "2000", "--precision", "0%")

    def first_line(self, *flags):
        """The first line that a long command prints into a pipe, and when."""
        command = [REHEARSE, *map(str, self.ENDLESS), *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            begin = time.monotonic()
            os.set_blocking(child.stderr.fileno(), False)
            said = ""
            while not said and child.poll() is None and time.monotonic() < begin + 25:
                said = child.stderr.readline() or ""
                time.sleep(0.1)
            self.assertIsNone(child.poll())
            child.kill()
        return said

    @pytest.mark.soak
    def test_a_pipe_hears_every_ten_seconds(self):
        self.assertRegex(self.first_line(), r"\A\.\.\. 1f1b: \d+ of 10000 seeds done \(\d+ s so far\)\n\Z")

    @pytest.mark.soak
    def test_quiet_is_quiet(self):
        self.assertEqual(self.first_line("--quiet"), "")

    def test_a_short_command_says_nothing(self):
        self.assertEqual(self.rehearse("simulate", self.job(), "--fidelity", "analytic").stderr, "")


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
