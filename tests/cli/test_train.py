"""train: trains with real processes on real text, and refuses errors before the first step."""

import json
import pathlib
import signal
import subprocess
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE, ROOT, CliTestCase, has_device
from cli_test_train_data import TOKENS, TrainingCase


class Profile(CliTestCase):
    @pytest.mark.long
    def test_profile_predicts(self):
        """Measurements replace assumptions, so no result is uncalibrated."""
        path = self.tmp / "profile.json"
        given = ["--nproc", "2", "--model", "gpt-tiny", "--samples", "1,4", "--threads", "1"]
        self.rehearse("profile", "-o", path, *given)
        found = json.loads(path.read_text())
        self.assertEqual(found["ranks"], 2)
        self.assertEqual({s["samples"] for s in found["segments"]}, {1, 4})
        job = self.tmp / "job.toml"
        job.write_text(
            'model.name = "gpt-tiny"\ncluster.name = "this-machine"\nmethod = { name = "ddp", dp = 2 }\ntrain.global_batch = 8\n'
        )
        one = self.json("simulate", job, "--set", f"cluster.profile={path}")
        self.assertIs(one["calibrated"], True)
        self.assertIsNone(one["mfu"])  # the peak rate of these cores is not known
        self.assertTrue(1e-4 < one["step_time_s"]["mean"] < 60)
        # Each measured time of as many samples as a rank has is shorter than the predicted step.
        self.assertLess(max(s["seconds"] for s in found["segments"] if s["samples"] == 4), one["step_time_s"]["mean"])

    def test_refusals(self):
        self.refused("profile", says=["--output"])
        self.refused("profile", "-o", self.tmp / "none/p.json", says=["-o", "does not exist"])
        given = ["-o", self.tmp / "p.json", "--model"]
        self.refused("profile", *given, "gpt-tinny", says=['mean "gpt-tiny"?'])
        answers = self.tmp / "answers.toml"
        answers.write_text((ROOT / "models/bert-tiny.toml").read_text() + "outputs = 2\n")
        self.refused("profile", *given, answers, says=["answers", "simulated only"])


class Train(TrainingCase):
    @pytest.mark.long
    def test_shares_by_speed(self):
        """Rank 1 computes three times as long, so of eight samples it takes two. The weights of both runs are the same, to the bit."""
        slow = ("--set", "disturb.stragglers=[{rank = 1, factor = 3}]")
        self.assertEqual(self.json("simulate", self.job(), *slow, "--set", "method.shares=speed")["shares"], [6, 2])
        for method in ("ddp", "zero3", "horovod", "topk-sync"):
            with self.subTest(method):
                losses = {}
                for shares in ("speed", "[6, 2]", "equal"):
                    sets = ("--set", f"method.name={method}", "--set", f"method.shares={shares}")
                    losses[shares] = self.json("train", self.job(4), "--nproc", "2", "--overwrite", *slow, *sets)["losses"]
                self.assertEqual(losses["speed"], losses["[6, 2]"])
                self.assertNotEqual(losses["speed"], losses["equal"])  # the order of a sum differs: the comparison can fail

    def test_the_norm_of_the_gradient_is_told(self):
        """Wherever the update runs, metrics.jsonl has the norm that it clips by in each step."""
        norms = {}
        for method, *more in (("ddp",), ("zero3",), ("zero-offload",), ("1f1b", "method.pp=2", "method.dp=1")):
            sets = [word for key in (f"method.name={method}", "train.clip=0.1", *more) for word in ("--set", key)]
            self.json("train", self.job(6), "--nproc", "2", "--overwrite", *sets)
            rows = map(json.loads, (self.tmp / "out/metrics.jsonl").read_text().splitlines())
            norms[method] = [row["grad_norm"] for row in rows if "loss" in row]
            self.assertEqual(len(norms[method]), 6)
        for norm, one in zip(norms["ddp"], zip(*norms.values(), strict=True), strict=True):
            self.assertTrue(all(0.999 < other / norm < 1.001 for other in one), norms)
        self.json("train", self.job(3), "--nproc", "2", "--overwrite")
        self.assertNotIn("grad_norm", (self.tmp / "out/metrics.jsonl").read_text())

    def test_two_processes_learn_and_go_on(self):
        job = self.job()
        trace = self.tmp / "trace.json"
        done = self.rehearse("train", job, "--nproc", "2", "--json", "--trace", trace)
        one = json.loads(done.stdout)
        self.assertEqual((one["first_step"], one["end_step"], one["signal"]), (0, 12, 0))
        self.assertEqual(len(one["losses"]), 12)
        self.assertIsNone(one["mfu"])
        self.assertLess(one["last_loss"], one["first_loss"] - 0.3)
        self.assertTrue(pathlib.Path(one["checkpoint"]).is_dir())
        lines = (self.tmp / "out/metrics.jsonl").read_text().splitlines()
        steps = [row["step"] for row in map(json.loads, lines) if "loss" in row]
        self.assertEqual(len(steps), 12)
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual({e["pid"] for e in events if e["ph"] == "X"}, {0, 1})
        more = json.loads(self.rehearse("train", job, "--nproc", "2", "--json", "--resume", "--set", "train.steps=16").stdout)
        self.assertEqual((more["first_step"], more["end_step"]), (12, 16))
        of = ("model", "cluster", "global_batch", "seq_len", "precision", "version", "command")
        self.assertEqual([key for key in of if key not in more], [])
        half = ("--set", f"train.global_batch={more['global_batch'] // 2}")
        self.rehearse("train", job, "--nproc", "2", "--resume", "--set", "train.steps=18", *half)
        rows = map(json.loads, (self.tmp / "out/metrics.jsonl").read_text().splitlines())
        tokens = {row["step"]: row["tokens"] for row in rows if "tokens" in row}
        self.assertEqual(tokens[18] - tokens[16], tokens[16] // 16, "two steps of half the batch")

    def test_a_loss_that_is_not_finite_is_said(self):
        done = self.rehearse("train", self.job(4), "--nproc", 2, "-q", "--set", "train.lr=1e30")
        self.assertNotIn("-nan", self.rehearse("train", self.job(4), "--nproc", 2, "--overwrite", "--set", "train.lr=1e30").stdout)
        self.assertRegex(done.stderr, r"warning: the loss is not finite in step [234]: .*train\.lr")

    def test_a_file_in_the_place_of_the_folder(self):
        out = self.tmp / "file"
        out.touch()
        self.refused("train", self.job(), "--nproc", 2, "--set", f"train.out={out}", says=["train.out", "Not a directory"])

    def test_more_threads_than_a_machine_can_use(self):
        self.refused("train", self.job(), "--nproc", 2, "--set", "run.threads=100000", says=["run.threads: 100000", "at most"])

    def test_one_run_at_a_time_writes_in_a_folder(self):
        """The second run is refused while the first trains, and goes on from it once that has ended."""
        keys = [word for key in ("train.steps=100000", "train.save_every=5", "run.log_every=1") for word in ("--set", key)]
        with subprocess.Popen([REHEARSE, "train", self.job(), "--nproc", "2", *keys], stdout=subprocess.PIPE, text=True) as first:
            for _ in first.stdout:
                if list((self.tmp / "out").glob("step-????????")):
                    break
            self.refused("train", self.job(), "--nproc", 2, "--overwrite", says=["train.out", "another run is writing there"])
            self.refused("train", self.job(), "--set", "method.dp=1", "--resume", says=["train.out", "another run is writing there"])
            self.assertIsNone(first.poll())
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=PATIENCE)
        done = json.loads((self.tmp / "out/metrics.jsonl").read_text().splitlines()[-1])["step"]
        more = self.json("train", self.job(), "--nproc", 2, "--resume", "--set", f"train.steps={done + 1}")
        self.assertEqual((more["first_step"], more["end_step"]), (done, done + 1))

    def test_nothing_left_to_train(self):
        """--resume of a finished run says so and reports no losses."""
        job = self.job(3)
        first = self.json("train", job, "--nproc", "2")
        said = self.rehearse("train", job, "--nproc", "2", "--resume").stdout
        self.assertIn("nothing to do: the run is at its last step 3", said)
        self.assertNotIn("0.0000", said)
        again = self.json("train", job, "--nproc", "2", "--resume", "--export", self.tmp / "model.safetensors")
        self.assertEqual((again["first_step"], again["end_step"], again["losses"]), (3, 3, []))
        self.assertEqual((again["first_loss"], again["last_loss"]), (None, None))
        self.assertEqual(again["checkpoint"], first["checkpoint"])
        self.assertTrue((self.tmp / "model.safetensors").exists())

    def test_heartbeat_and_timeout(self):
        """The control plane accepts the longest heartbeat that the reader of jobs accepts, and nothing of a run waits for one."""
        job = self.job(2)
        self.rehearse("train", job, "--nproc", "2", "--set", "run.timeout=1h", "--set", "run.heartbeat=15min")
        says = ['key "run.heartbeat"', "at most a quarter of run.timeout", "at most 750 ms"]
        self.refused("train", job, "--nproc", "2", "--set", "run.timeout=3s", "--set", "run.heartbeat=1s", says=says)

    def test_mfu_is_told_with_its_doubts_or_not_at_all(self):
        job = self.job(4)
        said = self.rehearse("train", job, "--nproc", "2").stdout
        self.assertIn("MFU not known (the peak rate of its cores is not)", said)
        paper = ["--set", "cluster.name=paper", "--set", "cluster.world_size=2"]
        said = self.rehearse("train", job, "--nproc", "2", "--overwrite", *paper).stdout
        self.assertRegex(said, r"tok/s.*  MFU [\d.]+%  uncalibrated\n")
        self.assertRegex(said, r"trained 4 steps: .*, MFU [\d.]+%  uncalibrated")

    def test_weights_out_and_in(self):
        job, path = self.job(), self.tmp / "model.safetensors"
        one = self.json("train", job, "--nproc", "2", "--export", path)
        header = path.read_bytes()
        names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
        self.assertTrue(any(name.endswith("h.1.attn.c_attn.weight") for name in names))
        more = ["--set", f"train.out={self.tmp}/more", "--set", "train.steps=2"]
        two = self.json("train", job, "--nproc", "2", "--import", path, *more)
        self.assertLess(two["first_loss"], one["first_loss"] - 0.3)
        self.refused("train", job, "--nproc", "2", "--import", "none", says=["--import none"])
        both = ["--import", path, "--resume"]
        self.refused("train", job, "--nproc", "2", *both, says=["exclude each other"])
        bert = ["--set", "model.name=bert-tiny", "--overwrite", "--import", path]
        self.refused("train", job, "--nproc", "2", *bert, says=["model bert-tiny has no tensor"])

    def test_llama_learns(self):
        """Grouped queries over tensor-parallel ranks, stages and shards, in fp32 and bf16."""
        job = self.job(8)
        for keys in (
            ("method.name=zero2", "method.precision=bf16"),
            ("method.name=megatron", "method.dp=1", "method.tp=2", "method.sequence_parallel=true", "method.recompute=true"),
            ("method.name=1f1b", "method.dp=1", "method.pp=2", "method.micro_batches=2"),
        ):
            with self.subTest(keys=keys):
                sets = [f"--set={key}" for key in ("model.name=llama-tiny", *keys)]
                one = self.json("train", job, "--nproc", "2", "--overwrite", *sets)
                self.assertLess(one["last_loss"], one["first_loss"] - 0.2)

    def test_weights_of_an_impossible_shape_are_refused(self):
        job, path = self.job(), self.tmp / "model.safetensors"
        for shape, says in {
            "[2, -92233720368547758083]": "must be a whole number >= 0",
            "[2.5]": "must be a whole number >= 0",
            "[-1]": "must be a whole number >= 0",
            "3": "must be a list",
            f"[{2**40}, {2**40}]": "its shape needs more than a file can have",
            f"[{2**32}, {2**32}, 2]": "its shape needs more than a file can have",
        }.items():
            header = f'{{"wte.weight": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 8]}}}}'.encode()
            path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
            with self.subTest(shape=shape):
                self.refused("train", job, "--set", "method.dp=1", "--import", path, says=[str(path), "tensor wte.weight", says])

    def test_one_process(self):
        one = self.json("train", self.job(3), "--set", "method.dp=1")
        self.assertEqual(one["end_step"], 3)

    def test_a_method_by_flag(self):
        arguments = ["--set", "method.name=1f1b", "--set", "method.dp=1", "--set", "method.pp=2"]
        one = self.json("train", self.job(3), "--nproc=2", *arguments)
        self.assertEqual((one["method"], one["end_step"]), ("1f1b", 3))

    def test_interrupt_saves(self):
        job = self.job(100000)
        command = [REHEARSE, "train", job, "--nproc", "2", "--quiet"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            metrics = self.tmp / "out/metrics.jsonl"
            deadline = time.monotonic() + PATIENCE
            while not (metrics.exists() and metrics.read_text().count("\n") > 3):
                self.assertIsNone(child.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 130, said)
        self.assertEqual(len(list((self.tmp / "out").glob("step-????????"))), 1)

    @pytest.mark.skipif(not has_device("queues"), reason="a build without tests has no device queues")
    def test_an_asynchronous_device_trains_to_the_same_bits(self):
        devices = ["cpu", "queues", "emulated"]
        for device in devices:
            folder = self.tmp / device
            folder.mkdir()
            done = self.rehearse("train", self.job(folder=folder), "--nproc", "2", "--set", f"run.device={device}")
            named = {"queues": "trains on the device queues", "emulated": "trains on the device cuda:0 (emulated)"}
            self.assertTrue(named.get(device, "step") in done.stdout, done.stdout)
        memory = self.json("train", self.job(2), "--nproc", "2", "--set", "run.device=emulated")["peak_device_bytes_of_rank_0"]
        self.assertGreater(memory, 4 * 4 * 100_000)  # weights, gradients and two moments of gpt-tiny, in fp32
        shards = {device: sorted((self.tmp / device / "out").glob("step-*/*.safetensors")) for device in devices}
        self.assertGreater(len(shards["cpu"]), 1)
        for device in devices[1:]:
            self.assertEqual(self.losses(self.tmp / device), self.losses(self.tmp / "cpu"))
            self.assertEqual([path.name for path in shards[device]], [path.name for path in shards["cpu"]])
            for one, cpu in zip(shards[device], shards["cpu"], strict=True):
                self.assertEqual(one.read_bytes(), cpu.read_bytes(), one)

    @pytest.mark.skipif(not has_device("emulated"), reason="a build without tests has no device emulated")
    def test_what_an_accelerator_has_no_kernel_for_is_named(self):
        lacks = {"top_k": None, "threshold": "messages, scatter_add, select", "random_k": "select"}
        for selector, names in lacks.items():
            sets = ["run.device=emulated", "train.steps=2", "method.name=topk-sync", f"method.selector={selector}", "method.coding=index32"]
            done = self.rehearse("train", self.job(), "--nproc", "2", "--overwrite", *(word for key in sets for word in ("--set", key)))
            says = f"the device has no kernel for {names}: the host computes that"
            self.assertEqual(says in done.stdout, names is not None, done.stdout)
            self.assertEqual("has no kernel" in done.stdout, names is not None, done.stdout)

    def test_doctor_says_on_which_device_a_job_trains(self):
        for kind, says in [("queues", 'run.device = "queues": queues'), ("cuda", "leave run.device out to train on the CPU")]:
            findings = self.json("doctor", self.job(), "--set", f"run.device={kind}")["findings"]
            self.assertIn(says, next(f["detail"] for f in findings if f["what"] == "device of train"))

    def test_refusals(self):
        job = self.job()
        for device, says in [
            ("cuda", "leave run.device out to train on the CPU"),
            ("cpuu", "did you mean cpu?"),
            ("tpu", "no device: auto, cpu or cuda"),
        ]:
            self.refused("train", job, "--nproc", "2", "--set", f"run.device={device}", says=["run.device", says])
        self.refused("train", job, "--nproc", "3", says=["--nproc 3", "the job has 2 ranks"])
        self.refused("train", job, says=["2 ranks", "1 were started"])
        gone = ["--set", f"train.data={self.tmp}/none"]
        self.refused("train", job, "--nproc", "2", *gone, says=[f"{self.tmp}/none"])
        self.refused("train", job, "--nproc", "2", "--set", "train.data=", says=["train.data"])
        self.refused("train", job, "--nproc", "2", "--set", "train.out=/proc/out", says=["/proc/out"])
        self.refused("train", job, "--nproc", "2", "--resume", says=["checkpoint"])
        self.refused("train", job, "--nproc", "0", says=["--nproc"])
        huge = ["--set", "model.name=gpt3-175b", "--set", "train.global_batch=2"]
        said = self.refused("train", job, "--nproc", "2", *huge, says=["memory: ", "CPU core"])
        self.assertIn(": weights ", said)
        nowhere = ["--trace", self.tmp / "none/trace.json"]
        self.refused("train", job, "--nproc", "2", *nowhere, says=["--trace"])

    def test_truncated_shard(self):
        folder = self.tmp / "short"
        folder.mkdir()
        for path in TOKENS.iterdir():
            data = path.read_bytes()
            short = path.name.startswith("train")
            (folder / path.name).write_bytes(data[: len(data) // 2 // 2 * 2] if short else data)
        short = ["--set", f"train.data={folder}"]
        self.refused("train", self.job(), "--nproc", "2", *short, says=["train_000000.bin"])
