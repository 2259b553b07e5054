"""`rehearse calibrate`: known parameters come back from step times, nccl-tests output and traces, the files that it writes load and
predict the measurements, and each wrong input is refused."""

import csv
import json
import pathlib
import tomllib

import pytest
from cli_test_case import ROOT, CliTestCase

JOB = """model = { name = "gpt2-124m", dropout = 0.1 }
cluster = { name = "workstation-4090", world_size = 1 }
software.name = "pytorch-2"
method = { name = "ddp", precision = "bf16", bucket = "1TB" }
"""
DEVICE = "RTX 4090"
ROWS = [(1, 128), (2, 256), (1, 1024), (4, 512), (8, 128), (8, 1024), (2, 64), (3, 384)]
NCCL = ("--cluster", "dgx-a100", "--software", "megatron-2021")


class Calibrate(CliTestCase):
    def steps(self, *keys, use=lambda row: "calibrate", noise=lambda row: 1.0, job=JOB):
        """A table of step times, predicted with `keys` changed. Returns the paths of the table and its job."""
        path = self.job(job)
        rows = []
        for i, (batch, length) in enumerate(ROWS):
            own = [f"train.global_batch={batch}", f"train.seq_len={length}"]
            sets = [word for key in (*own, *keys) for word in ("--set", key)]
            done = self.json("simulate", path, "--fidelity", "analytic", "--seeds", "1", *sets)
            seconds = done["step_time_s"]["mean"]
            rows.append([f"b{batch}-s{length}", use(i), repr(seconds * noise(i)), batch, length])
        table = self.tmp / "steps.csv"
        with open(table, "w", newline="") as file:
            csv.writer(file).writerows([["row", "use", "seconds", "train.global_batch", "train.seq_len"], *rows])
        return str(table), path

    def platform(self, device_file, name="changed.toml"):
        """The platform of the job with another device table."""
        path = self.tmp / name
        path.write_text((ROOT / "platforms/workstation-4090.toml").read_text() + "\n" + device_file)
        return str(path)

    def changed_device(self, **changes):
        """The device's table of the shipped file with other values."""
        tables = (ROOT / "platforms/devices.toml").read_text().split("[[device]]\n")
        lines = next(t for t in tables if t.startswith(f'name = "{DEVICE}"')).splitlines()
        kept = [line for line in lines if line.split(" =")[0] not in changes]
        return "\n".join(["[[device]]", *kept, *(f"{key} = {value}" for key, value in changes.items())])

    def key(self, result, name):
        return next(key for key in result["keys"] if key["key"] == name)

    def test_a_log_of_steps(self):
        job = self.job(JOB + "train = { global_batch = 8, seq_len = 1024 }\n")
        truth = self.platform(self.changed_device(efficiency=0.5))
        given = ("simulate", job, "--fidelity", "analytic", "--seeds", "1", "--set", f"cluster.name={truth}")
        seconds = self.json(*given)["step_time_s"]["mean"]
        log, out = self.tmp / "metrics.jsonl", self.tmp / "device.toml"
        rows = [{"step": step, "step_time_s": seconds * (3 if step <= 2 else 1)} for step in range(1, 21)]
        log.write_text("".join(json.dumps(row) + "\n" for row in ({"note": "no time"}, *rows)))
        command = ("calibrate", log, "--job", job, "--device", DEVICE, "--fit", "efficiency")
        result = self.json(*command, "--rows", "-o", out)
        self.assertEqual(
            [row["row"] for row in result["rows"]],
            [f"step times {begin} to {end}" for begin, end in ((3, 5), (6, 9), (10, 12), (13, 16), (17, 20))],
        )
        self.assertAlmostEqual(self.key(result, "efficiency")["after"], 0.5, delta=0.002)
        self.assertAlmostEqual(tomllib.loads(out.read_text())["device"][0]["efficiency"], 0.5, delta=0.002)
        log.write_text("".join(json.dumps({"iteration_time_ms": 1000 * seconds}) + "\n" for _ in range(3)))
        self.assertAlmostEqual(self.key(self.json(*command), "efficiency")["after"], 0.5, delta=0.002)
        for text, says in (
            ('{"step_time": 1, "tokens_per_s": 8000}\n' * 5, ["8000 tokens a step", "its job has 8192: 8 x 1024"]),
            ('{"step_time": 1}\n12\n', ["metrics.jsonl:2", "no JSON object"]),
            ('{"step_time": "1 s"}\n', ["metrics.jsonl:1", 'step_time = "1 s"', "positive number"]),
        ):
            log.write_text(text)
            self.refused(*command, says=says)
        self.refused("calibrate", log, "--device", DEVICE, says=["metrics.jsonl", "--job"])

    @pytest.mark.long
    def test_a_device_comes_back_and_its_file_predicts_the_rows(self):
        truth = self.platform(self.changed_device(efficiency=0.7, memory_efficiency=0.6))
        table, job = self.steps(f"cluster.name={truth}", use=lambda row: "check" if row == 3 else "calibrate")
        out = self.tmp / "device.toml"
        arguments = ("calibrate", table, "--job", job, "--device", DEVICE, "--fit", "efficiency,memory_efficiency", "-o", out)
        result = self.json(*arguments)
        keys = ["schema_version", "version", "command", "measurements", "kind", "facts", "keys", "errors", "notes", "rows"]
        self.assertEqual(list(result), keys)
        self.assertEqual(result["kind"], "steps")
        for name, value in (("efficiency", 0.7), ("memory_efficiency", 0.6)):
            key = self.key(result, name)
            self.assertTrue(key["fitted"])
            self.assertAlmostEqual(key["after"] / value, 1, delta=0.01)
            self.assertLess(key["standard_error"], 0.02)
        errors = result["errors"]
        self.assertGreater(errors["before"], 0.05)
        self.assertLess(errors["fitted"], 0.003)
        self.assertLess(errors["cross_validated"], 0.005)
        self.assertEqual(errors["folds"], 7)
        self.assertLess(errors["check_after"], 0.005)
        self.assertEqual([row["use"] for row in result["rows"]].count("check"), 1)
        text = out.read_text()
        self.assertIn("calibrated = true", text)
        self.assertIn("7 rows of steps.csv", text)
        self.assertIn("hidden size 768, micro-batches of 1 to 8, GPUs 1", text)
        # The written file in a platform predicts what was measured.
        mine = self.platform(text, "mine.toml")
        last = result["rows"][-1]
        again = self.json("calibrate", table, "--job", job, "--device", DEVICE, "--set", f"cluster.name={mine}")
        self.assertAlmostEqual(again["rows"][-1]["before_s"], last["after_s"], delta=1e-9 + 1e-6 * last["after_s"])
        self.assertEqual(result, self.json(*arguments))
        table_text = self.rehearse(*arguments, "--rows").stdout
        for words in ("efficiency", "cross-validated", "7 folds", "b4-s512", "check rows"):
            self.assertIn(words, table_text)

    def test_software_comes_back_and_sums_are_named(self):
        table, job = self.steps("software.host.forward=90us", "software.host.backward=50us")
        out = self.tmp / "mine.toml"
        fit = ("calibrate", table, "--job", job, "--software", "pytorch-2", "--fit")
        result = self.json(*fit, "host.forward")
        self.assertLess(result["errors"]["fitted"], result["errors"]["before"])
        # Every row has one layer count, so forward and backward only show together.
        both = self.json(*fit, "host.forward,host.backward", "-o", out)
        self.assertLess(both["errors"]["fitted"], 0.02)
        self.assertTrue(
            any(note.startswith("host.forward and host.backward: these rows only show a weighted sum") for note in both["notes"])
        )
        self.assertEqual(sorted(key["fitted"] for key in both["keys"]), [False, True])
        self.assertIn('base = "pytorch-2"', out.read_text())
        # What it says of itself are the rows: jobs unlike them are uncalibrated.
        measured = tomllib.loads(out.read_text())["measured"]
        self.assertEqual(measured.pop("tokens"), [min(b * n for b, n in ROWS), max(b * n for b, n in ROWS)])
        self.assertEqual(measured, {"hidden": [768, 768], "ranks": 1, "methods": ["ddp"], "precisions": ["bf16"], "devices": ["RTX 4090"]})
        seconds = self.json("simulate", job, "--fidelity", "analytic", "--seeds", "1", "--set", f"software.name={out}")
        self.assertTrue(seconds)

    def test_noise_is_in_the_cross_validated_error(self):
        table, job = self.steps(noise=lambda row: (1.06, 0.95, 1.04, 0.97)[row % 4])
        result = self.json("calibrate", table, "--job", job, "--device", DEVICE)
        errors = result["errors"]
        self.assertGreater(errors["cross_validated"], errors["fitted"])
        self.assertLess(errors["cross_validated"], 0.15)

    def test_device_and_software_together_need_two_files(self):
        table, job = self.steps("software.host.forward=90us")
        fit = ("calibrate", table, "--job", job, "--device", DEVICE, "--software", "pytorch-2", "--fit", "efficiency,host.forward")
        one, two = self.tmp / "one.toml", self.tmp / "two.toml"
        self.refused(*fit, "-o", one, says=["--software-output", "give both"])
        self.assertFalse(one.exists())
        self.rehearse(*fit, "-o", one, "--software-output", two)
        self.assertIn("[[device]]", one.read_text())
        self.assertIn("[host]", two.read_text())

    def collective(self, *arguments):
        return self.json("collective", "all_reduce", *NCCL, "--bytes", "64B:1GiB", "--factor", "4", *arguments)["sizes"]

    def nccl_output(self, sizes, name="all_reduce.txt"):
        header = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        text = "# nThread 1 nGpus 8\n" + "".join(f"#  Rank {i:2} Group  0 Pid  1 on node device {i}\n" for i in range(8)) + header
        for size in sizes:
            us = f"{size['seconds'] * 1e6:.4f}  0.00  0.00  0"
            text += f"{size['bytes']} {size['elements']} float sum -1 {us} {us}\n"
        path = self.tmp / name
        path.write_text(text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 59.1\n")
        return str(path)

    def test_a_library_comes_back_from_nccl_tests(self):
        shipped = (ROOT / "software/libraries/nccl-2.10.toml").read_text()
        truth = self.tmp / "truth.toml"
        truth.write_text(shipped.replace('nvlink = "1.2us"', 'nvlink = "2us"', 1).replace("efficiency = 0.73 ", "efficiency = 0.6 ", 1))
        self.assertNotEqual(truth.read_text(), shipped)
        measured = self.collective("--set", f"software.communication.library={truth}")
        out = self.tmp / "mine.toml"
        result = self.json("calibrate", self.nccl_output(measured), *NCCL, "-o", out)
        self.assertEqual((result["kind"], result["facts"]["ranks"]), ("nccl-tests", "8"))
        self.assertLess(result["errors"]["fitted"], 0.01)
        self.assertTrue(any("ring.LL.base and ring.LL.nvlink: these sizes only show a weighted sum" in note for note in result["notes"]))
        mine = self.collective("--set", f"software.communication.library={out}")
        for size, wanted in zip(mine, measured, strict=True):
            self.assertAlmostEqual(size["seconds"] / wanted["seconds"], 1, delta=0.03)
        self.assertIn("100%", result["facts"]["links"])

    def test_labels_of_a_launcher_before_each_piece_of_a_line(self):
        """nccl-tests writes a line of a size in three pieces, and `mpirun --tag-output` labels each of them."""
        measured = self.collective()[:6]
        plain = self.nccl_output(measured)
        lines = []
        for line in pathlib.Path(plain).read_text().splitlines(keepends=True):
            words = line.split()
            pieces = [line] if line.startswith("#") else [" ".join(words[:5]), *(f"     {' '.join(words[i : i + 4])}" for i in (5, 9))]
            lines.append([*pieces[:-1], pieces[-1].rstrip("\n") + "\n"])
        wanted = self.json("calibrate", plain, *NCCL)["rows"]
        for label in ("[0] ", "[1,0]<stdout>:"):
            with self.subTest(label):
                tagged = self.tmp / "tagged.txt"
                rest = label.rstrip()
                tagged.write_text("".join(label + rest.join(pieces) for pieces in lines))
                self.assertEqual(self.json("calibrate", tagged, *NCCL)["rows"], wanted)

    def test_slower_links_are_said(self):
        slow = [size | {"seconds": size["seconds"] * (1.6 if size["bytes"] > 1e7 else 1)} for size in self.collective()]
        notes = self.json("calibrate", self.nccl_output(slow), *NCCL)["notes"]
        self.assertTrue(any(note.startswith("links:") and "platform file" in note for note in notes), notes)

    def test_a_table_of_collectives(self):
        found = self.json("calibrate", ROOT / "validation/nccl-v100.csv", "--job", ROOT / "validation/nccl-v100.toml")
        self.assertEqual(found["kind"], "nccl-tests")
        self.assertLess(found["errors"]["fitted"], found["errors"]["before"] + 1e-9)

    def trace(self, efficiency=0.6, shapes=True, name="trace.json"):
        """A trace of two steps with 12 us between two launches of forward, 8 us of backward, and products at a known efficiency."""
        events, correlation = [], 0

        def add(category, name, start, seconds, thread, **args):
            events.append(
                {"ph": "X", "cat": category, "name": name, "ts": start, "dur": seconds, "pid": 1, "tid": thread, "args": args},
            )

        device = 0.0
        for step in range(2):
            begin = 20000 * step
            for thread, gap in ((1, 12), (2, 8)):
                for i in range(20):
                    at = begin + 5000 * (thread - 1) + gap * i
                    size = 16384 * (1 + i % 3)
                    took = 2 * size * 4096 * 4096 / (312e12 * efficiency) * 1e6
                    correlation += 1
                    dims = [[size, 4096], [4096, 4096]]
                    if shapes:
                        types = ["c10::BFloat16", "c10::BFloat16"]
                        add("cpu_op", "aten::mm", at, 5, thread, **{"External id": correlation, "Input Dims": dims, "Input type": types})
                    add("cuda_runtime", "cudaLaunchKernel", at, 4, thread, correlation=correlation)
                    device = max(device + 1.5, at + 5)
                    where = {"device": 0, "stream": 7, "correlation": correlation, "External id": correlation}
                    add("kernel", "ampere_bf16_gemm", device, took, 7, **where)
                    device += took
            add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", begin + 5000, 200, 2)
            add("user_annotation", f"ProfilerStep#{step}", begin, 19000, 1)
        path = self.tmp / name
        path.write_text(json.dumps({"deviceProperties": [{"name": "NVIDIA A100-SXM4-80GB"}], "traceEvents": events}))
        return str(path)

    def test_a_trace_gives_the_host_and_the_device(self):
        one, two = self.tmp / "a100.toml", self.tmp / "mine.toml"
        arguments = ("--device", "A100 80GB", "--software", "pytorch-2", "-o", one, "--software-output", two)
        result = self.json("calibrate", self.trace(), *arguments)
        self.assertEqual(result["kind"], "trace")
        self.assertEqual(result["facts"]["recorded on"], "NVIDIA A100-SXM4-80GB")
        self.assertIn("40.0 kernels", result["facts"]["steps"])
        self.assertAlmostEqual(self.key(result, "host.forward")["after"], 12e-6)
        self.assertAlmostEqual(self.key(result, "host.backward")["after"], 8e-6)
        self.assertAlmostEqual(self.key(result, "launch")["after"], 1.5e-6, delta=1e-9)
        self.assertAlmostEqual(self.key(result, "efficiency")["after"], 0.6, delta=0.03)
        self.assertLess(result["errors"]["cross_validated"], 0.15)
        self.assertIn('launch = "1.5us"', one.read_text())
        self.assertIn('forward = "12us"\nbackward = "8us"', two.read_text())
        slow = self.json("calibrate", self.trace(efficiency=0.3), "--device", "A100 80GB", "--fit", "efficiency")
        self.assertAlmostEqual(self.key(slow, "efficiency")["after"], 0.3, delta=0.03)

    def test_a_trace_without_shapes_says_so(self):
        result = self.json("calibrate", self.trace(shapes=False), "--device", "A100 80GB")
        self.assertEqual([key["key"] for key in result["keys"]], ["launch"])
        self.assertTrue(any("record_shapes=True" in note for note in result["notes"]))

    def write(self, text, name):
        path = self.tmp / name
        path.write_text(text)
        return str(path)

    def test_refusals_of_step_times(self):
        job = self.job(JOB)
        table = self.write("row,seconds,train.global_batch\na,0.1,1\nb,0.2,2\nc,0.3,4\n", "t.csv")
        fit = ("calibrate", table, "--job", job)
        self.refused(*fit, says=["--device NAME", "--software NAME"])
        self.refused(*fit, "--device", "RTX 4091", says=['"RTX 4091"', "t.csv", 'mean "RTX 4090"?'])
        self.refused(*fit, "--software", "rehearse", says=["--software", "the rows use pytorch-2"])
        self.refused(*fit, "--device", DEVICE, "--fit", "eficiency", says=['"eficiency"', 'mean "efficiency"?'])
        self.refused(*fit, "--device", DEVICE, "--fit", "host.forward", says=["--fit host.forward", "--software NAME"])
        keys = "efficiency,memory_efficiency,attention_efficiency"
        self.refused(*fit, "--device", DEVICE, "--fit", keys, says=["names 3 parameters", "3 rows", "at most 2"])
        self.refused(*fit, "--device", DEVICE, "--cluster", "dgx1", says=["--cluster dgx1", "nccl-tests", "t.csv holds steps"])
        for text, says in (
            ("row,use,train.global_batch\na,check,1\n", ["looks like no measurements"]),
            ("name,seconds\na,1\n", ['t.csv:1: no column "row"']),
            ("row,seconds\na,fast\n", ['seconds = "fast" must be a positive number']),
            ("row,use,seconds\na,maybe,1\n", ['use = "maybe" must be calibrate or check']),
            ("row,use,seconds\na,check,1\nb,check,1\n", ["no row to fit to"]),
            ("row,seconds,model.hiden\na,1,3\n", ['t.csv: row "a" cannot be predicted', "hiden"]),
            ("row,seconds,train.global_batch\na,1,1\nbig,1,4096\n", ['row "big" cannot be predicted', "memory"]),
            ("\n", ["is empty"]),
        ):
            with self.subTest(table=text):
                wrong = self.write(text, "t.csv")
                self.refused("calibrate", wrong, "--job", job, "--device", DEVICE, says=says)
        self.refused("calibrate", self.tmp / "none.csv", says=["none.csv: cannot be read"])

    def test_refusals_of_collectives(self):
        measured = self.nccl_output(self.collective()[:4])
        self.refused("calibrate", measured, "--software", "megatron-2021", says=["collective.cluster"])
        self.refused("calibrate", measured, *NCCL, "--ranks", "9", says=["the cluster has 8 devices"])
        self.refused("calibrate", measured, "--cluster", "dgx-a100", says=["rounds", "--software pytorch-2"])
        self.refused("calibrate", measured, *NCCL, "--device", "H100", says=["--device H100", "only counts with steps and traces"])
        self.refused("calibrate", measured, *NCCL, "--fit", "ring.LL.bse", says=['mean "ring.LL.base"?'])
        named = self.write("# Collective test starting: all_gather_perf\n" + (self.tmp / "all_reduce.txt").read_text(), "g.txt")
        self.refused("calibrate", named, *NCCL, "--move", "all_reduce", says=["--move all_reduce", "the times of all_gather"])
        empty = self.write("# size count type redop root time\n", "e.txt")
        self.refused("calibrate", empty, *NCCL, says=["no line of a size follows"])

    def test_refusals_of_traces(self):
        trace = self.trace()
        self.refused("calibrate", trace, says=["--device NAME"])
        self.refused("calibrate", trace, "--device", "A100 80 GB", says=['mean "A100 80GB"?'])
        self.refused("calibrate", trace, "--device", "V100 SXM2 16GB", says=["bf16", "cannot compute"])
        self.refused("calibrate", trace, "--device", "H100", "--fit", "host.forward", says=['"host.forward"', "launch"])
        self.refused("calibrate", trace, "--device", "H100", "--set", "train.steps=3", says=["a trace has no job"])
        self.refused(
            "calibrate", self.write('{"traceEvents": []}', "x.json"), "--device", "H100", says=["no event of category", "ProfilerActivity"]
        )
        self.refused(
            "calibrate", self.write("{", "x.json"), "--device", "H100", says=["x.json: is no trace of PyTorch's profiler", "cut off"]
        )
        (self.tmp / "x.gz").write_bytes(b"\x1f\x8b\x08\x00")
        self.refused("calibrate", self.tmp / "x.gz", "--device", "H100", says=["gzip"])
