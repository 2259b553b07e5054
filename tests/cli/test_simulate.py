"""simulate and compare: what they print, that equal input gives equal bytes, and that their figures are
consistent."""

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
bytes_per_step_total collectives energy_j cost checkpoint peak_memory_bytes memory_parts_bytes robustness fidelity calibrated
program_hash cluster_hash warnings""".split()


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
        # The row of the job's own method keeps its micro-batches and equals simulate of the same job.
        alone = self.json("simulate", job, "--fidelity", "analytic")
        self.assertEqual(both["results"][1], {k: v for k, v in alone.items() if k not in ("version", "command")})
        table = self.rehearse("compare", job, "--methods", given, "--fidelity", "analytic").stdout
        lines = [line.split()[0] for line in table.splitlines()[1:5]]
        self.assertEqual(lines, ["zero1", "ddp", "1f1b@pp=2,micro_batches=4", self.SERVERS])
        self.assertRegex(table, r"\ncannot run:\n  megatron@tp=3: .*method\.tp.*\n")

    def test_methods_that_do_not_fit(self):
        """In brief below the table; with --fit they run with what makes them fit, as they would with these keys in the list."""
        text = 'model.name = "gpt2-1.5b"\ncluster = { name = "paper", world_size = 4 }\nmethod.name = "ddp"\ntrain.global_batch = 4\n'
        given = ("compare", self.job(text), "--methods", "ddp,local-sgd,zero1,zero3", "--fidelity", "analytic", "--seeds", 1)
        said = self.rehearse(*given).stdout
        needs = r"needs 3\d\.\d GB on RTX 4090, which has 24\.3 GB to use; "
        self.assertRegex(said, rf"\ncannot run:\n  ddp: {needs}fits with --set method\.\S+")
        self.assertRegex(said, rf"\n  local-sgd: {needs}no change was found that fits\n")
        self.assertIn("\n--fit predicts methods with the keys that make them fit\n", said)
        both = self.json(*given, "--fit")
        self.assertEqual([row["method"] for row in both["cannot_run"]], ["local-sgd"])
        labels = [row["method"] for row in both["results"]]
        self.assertEqual([label.split("@")[0] for label in labels], ["ddp", "zero1", "zero3"])
        self.assertIn("@", labels[0])
        again = self.json("compare", self.job(text), "--methods", ",".join(labels), "--fidelity", "analytic", "--seeds", 1)
        self.assertEqual(again["results"], both["results"])
        self.assertNotIn("--fit", self.rehearse(*given, "--fit").stdout)

    def test_keys_of_the_jobs_method_alone_leave_the_other_rows(self):
        """Each key is refused by a method of another row, which could then not run."""
        for keys in (
            {"name": '"qsgd"', "bits": 4},
            {"name": '"zero3"', "prefetch": 2, "pending_buckets": 3, "keep_gathered": "true"},
            {"name": '"1f1b"', "pp": 2, "stage_layers": "[1, 1]"},
        ):
            with self.subTest(keys):
                job = self.job(
                    'model.name = "gpt-tiny"\ncluster.name = "paper"\n'
                    + "".join(f"method.{key} = {value}\n" for key, value in keys.items())
                )
                both = self.json("compare", job, "--methods", "qsgd,int8-sync,zero3,ddp,1f1b", "--fidelity", "analytic")
                self.assertEqual(both["cannot_run"], [])

    def test_values_with_commas(self):
        given = 'megatron@order=dp,pp,tp,tp=2,ddp@shares=[5,3,4,4],megatron@order="tp,pp,dp",tp=2'
        both = self.json("compare", self.job(), "--methods", given, "--fidelity", "analytic")
        self.assertEqual(both["cannot_run"], [])
        labels = ["megatron@order=dp,pp,tp,tp=2", "ddp@shares=[5,3,4,4]", 'megatron@order="tp,pp,dp",tp=2']
        self.assertEqual([r["method"] for r in both["results"]], labels)
        self.assertEqual([next(iter(r["mesh"])) for r in both["results"]], ["dp", "pp", "tp"])

    def test_all_methods(self):
        both = self.json("compare", self.job(), "--fidelity", "analytic")
        names = {r["method"] for r in both["results"]} | {r["method"] for r in both["cannot_run"]}
        self.assertLessEqual({"ddp", "gpipe", "1f1b", "zero3", "megatron", "topk-sync"}, names)

    def test_faster_replicas_take_more_samples(self):
        """On the paper's cluster, adaptive's plan is data parallelism whose replicas take samples by speed: as fast as ddp so."""
        rows = ("compare", ROOT / "experiments/paper-ddp.toml", "--fidelity", "analytic", "--set", "disturb.compute_jitter=0", "--methods")
        both = self.json(*rows, "ddp,ddp@shares=speed,adaptive,adaptive@shares=equal", cwd=ROOT)
        equal, by_speed, adaptive, kept_equal = both["results"]
        self.assertNotIn("shares", equal)
        self.assertEqual(sum(by_speed["shares"]), by_speed["global_batch"])
        slow = [share for share, device in zip(by_speed["shares"], by_speed["rank_to_device"], strict=True) if device[-1] in "23"]
        self.assertEqual((len(slow), len(set(slow))), (8, 1))
        self.assertLess(slow[0], min(set(by_speed["shares"]) - set(slow)))
        seconds = [row["step_time_s"]["mean"] for row in both["results"]]
        self.assertLess(seconds[1], 0.4 * seconds[0])
        self.assertAlmostEqual(seconds[2] / seconds[1], 1, delta=0.03)
        self.assertGreater(seconds[3], 1.5 * seconds[2])
        self.assertEqual(adaptive["shares"], by_speed["shares"])
        self.assertNotIn("shares", kept_equal)
        choice = {c["choice"]: c for c in adaptive["choices"]}["samples a replica"]
        self.assertRegex({other["value"]: other["why"] for other in choice["runners_up"]}["equal"], r"at least 5\d\d ms: not tried")
        said = self.rehearse(*rows, "zero2@bucket=5MB,adaptive", cwd=ROOT).stdout
        self.assertRegex(said, r"adaptive chose pp 1 x dp 32 x tp 1, .*samples by speed")
        self.assertRegex(said, r"  samples a replica +by speed +equal: at least 5\d\d ms: not tried")
        self.assertIn("note: only adaptive gives faster devices more samples; zero2@bucket=5MB,shares=speed does so too", said)
        self.assertNotIn("note: only", self.rehearse(*rows, "ddp@shares=speed,adaptive", cwd=ROOT).stdout)

    def test_all_methods_with_samples_by_speed(self):
        """A row with them for each method that takes shares, where devices are unlike; none where they are alike."""
        devices = '["node8/gpu0", "node8/gpu1", "node8/gpu2", "node8/gpu3"]'
        text = TINY.replace("gpt-tiny", "gpt2-124m").replace("world_size = 4", f"devices = {devices}")
        unlike = self.job(text)
        labels = [row["method"] for row in self.json("compare", unlike, "--fidelity", "analytic")["results"]]
        for method in ("ddp", "zero1", "zero2", "zero3", "topk-sync", "horovod", "powersgd", "hsdp"):
            self.assertEqual(labels[labels.index(method) + 1], f"{method}@shares=speed")
        self.assertNotIn("ps-sync@shares=speed", labels)
        alike = self.json("compare", self.job(), "--fidelity", "analytic")
        self.assertEqual([row["method"] for row in alike["results"] + alike["cannot_run"] if "@" in row["method"]], [])
        # A job that states shares by speed has them in all rows that can.
        stated = self.job(text + 'method.shares = "speed"\n')
        both = self.json("compare", stated, "--fidelity", "analytic", "--methods", "zero1,diloco")
        self.assertEqual(["shares" in row for row in both["results"]], [True, False])

    def test_parts_of_memory(self):
        one = self.json("simulate", self.job(), "--fidelity", "analytic")
        ((kind, parts),) = one["memory_parts_bytes"].items()
        total = one["peak_memory_bytes"][kind]
        self.assertEqual(sum(parts.values()) - parts["reserve"] - parts["capacity"], total)
        self.assertEqual(parts["moments"], 2 * parts["weights"])
        said = self.rehearse("simulate", self.job(), "--fidelity", "analytic").stdout
        self.assertRegex(said, r"\n {23}weights [\d.]+ [kM]B, gradients [\d.]+ [kM]B, moments [\d.]+ [kM]B, activations ")

    def test_none_can_run(self):
        done = self.rehearse("compare", self.job(), "--methods", "megatron@tp=3", expect=2)
        self.assertIn("none of the methods", done.stderr)

    def test_report(self):
        out = self.tmp / "report.html"
        arguments = ["--methods", "ddp,zero1", "--report", out, "--fidelity", "analytic"]
        self.rehearse("compare", self.job(), *arguments)
        page = out.read_text()
        self.assertTrue("zero1" in page)
        self.assertIn("gpt-tiny, 16 samples of 64 tokens a step, fp32, on paper", page)
        self.assertIn("<code>rehearse compare ", page)


class Progress(CliTestCase):
    LONG = """model.name = "gpt3-175b"
cluster.name = "dgx-a100:256"
method = { name = "1f1b", precision = "bf16" }
train.global_batch = 1536
"""

    def first_line(self, *flags):
        """The first line that a long command prints into a pipe, and when."""
        command = [REHEARSE, "plan", self.job(self.LONG), *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            begin = time.monotonic()
            os.set_blocking(child.stderr.fileno(), False)
            said = ""
            while not said and child.poll() is None and time.monotonic() < begin + 25:
                said = child.stderr.readline() or ""
                time.sleep(0.1)
            ended = child.poll() is not None
            child.kill()
        self.assertFalse(ended, "the job is not long enough for this test")
        return said

    @pytest.mark.soak
    def test_a_pipe_hears_every_ten_seconds(self):
        self.assertRegex(self.first_line(), r"\A\.\.\. planning: .* \(\d+(\.\d+)? s so far\)\n\Z")

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
