"""Errors that can be found before the first step give exit status 2 and one line that names the place,
the value, the constraint and the nearest choice."""

import json
import os

from cli_test_case import ROOT, TINY, CliTestCase


class Jobs(CliTestCase):
    def simulate(self, text, *says, more=()):
        self.refused("simulate", self.job(text), "--fidelity", "analytic", *more, says=says)

    def with_line(self, line):
        """The tiny job with this line in the place of the line with the same key."""
        key = line.split(" = ")[0]
        return "".join(kept + "\n" for kept in TINY.splitlines() if not kept.startswith(key + " ")) + line + "\n"

    def test_no_file(self):
        self.refused("simulate", self.tmp / "none.toml", says=["none.toml", "No such file"])
        self.refused("simulate", self.tmp, says=["cannot be read"])

    def test_not_toml(self):
        self.simulate("model.name = \n", "job.toml:1:14: not TOML")

    def test_not_toml_but_something_else(self):
        for name, content, says in (
            ("a.json", b' {"model": {"name": "gpt-tiny"}}', "a.json: is JSON; write it as TOML"),
            ("a.yaml", b"# a job\nmodel:\n  name: gpt-tiny\n", "a.yaml: is YAML; write it as TOML"),
            ("b.yaml", b"---\nlr: 0.1\n", "b.yaml: is YAML; write it as TOML"),
            ("u.toml", TINY.encode("utf-16"), "u.toml: is text in UTF-16; save it as UTF-8"),
            ("z.toml", b"\x1f\x8b\x08\x00" + TINY.encode(), "z.toml: is an archive; unpack it first"),
            ("t.toml", b"model: name\n= 3", "t.toml: is YAML; write it as TOML"),
            ("e.toml", b"model.name : 3\n", "e.toml:1:12: not TOML: "),
        ):
            (self.tmp / name).write_bytes(content)
            self.refused("simulate", name, says=[f"rehearse: {says}"], cwd=self.tmp)

    def test_unknown_key(self):
        self.simulate(TINY + "train.global_bach = 8\n", "job.toml:6", '"train.global_bach"', "global_batch")
        self.simulate(TINY, "--set metod.pp=2", 'mean "method"?', more=["--set", "metod.pp=2"])

    def test_wrong_unit(self):
        self.simulate(TINY + 'method.bucket = "25Gb/s"\n', "job.toml:6", '"method.bucket"', "25Gb/s", "MB")
        self.simulate(TINY + 'run.timeout = "3 parsecs"\n', "job.toml:6", '"run.timeout"', "parsecs")
        self.simulate(TINY + "method.bucket = 25\n", '"method.bucket"', "unit")

    def test_wrong_type(self):
        self.simulate(TINY + 'train.steps = "ten"\n', '"train.steps"', "integer")

    def test_missing_key(self):
        """The file is named once, even with dots in its name, and a misspelt section is named."""
        two = 'model.name = "gpt-tiny"\ncluster.name = "paper"\n'
        elsewhere = '[model]\nname = "gpt-tiny"\n[cluster]\nplatform = "paper"\nranks = 2\n'
        for name, text, says in (
            ("d2.toml", two, 'd2.toml: key "method.name": is required and missing'),
            ("run.toml", two, 'run.toml: key "method.name": is required and missing'),
            ("d2.toml", two + '[methods]\nname = "ddp"\n', 'd2.toml:3: key "methods": unknown; did you mean "method"?'),
            ("d2.toml", '[methods]\nname = "ddp"\n', 'd2.toml:1: key "methods": unknown; did you mean "method"?'),
            ("d2.toml", elsewhere, 'd2.toml:3: key "cluster.name": is required and missing; the section has platform, ranks'),
        ):
            self.job(text, name)
            said = self.refused("simulate", name, cwd=self.tmp)
            self.assertEqual(said, f"rehearse: {says}\n")

    def test_unknown_names(self):
        self.simulate(self.with_line('method.name = "zero4"'), '"zero4"', "zero3")
        self.simulate(self.with_line('model.name = "gpt2-124"'), "gpt2-124m")
        self.simulate(self.with_line('cluster.name = "papr"'), 'mean "paper"?')
        self.simulate(self.with_line('model.name = "gpt2"'), '"gpt2" is not known: it comes as gpt2-1.5b, gpt2-124m; known:')
        self.simulate(self.with_line('model.name = "Llama3"'), "it comes as llama3-405b, llama3-70b, llama3-8b; known:")
        self.simulate(self.with_line('model.name = "mistralai/Mistral-7B-v0.3"'), "does not exist; of a model of the Hugging Face hub")
        self.assertNotIn("hub", self.refused("simulate", self.job(self.with_line('model.name = "models/none.toml"'))))

    def test_files_of_other_programs(self):
        """They are named, with the way to use them or that there is none."""
        simgrid = "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version='4.1'/>\n"
        matrix = "        GPU0    GPU1    CPU Affinity\nGPU0     X      PIX     0-13\nGPU1    PIX      X      0-13\n"
        chakra = '{"schema":"1.1.1-chakra.0.0.4","nodes":[{"id":1,"name":"aten::mm","type":"COMP_NODE"}]}'
        torch = '{"schemaVersion": 1, "traceEvents": []}'
        files = {}
        for name, text in (("grid.xml", simgrid), ("topo.txt", matrix), ("chakra.json", chakra), ("torch.json", torch)):
            files[name] = self.tmp / name
            files[name].write_text(text)
        for key, name, says in (
            ("cluster.name", "grid.xml", "is a platform of SimGrid"),
            ("cluster.name", "topo.txt", "is the matrix of `nvidia-smi topo -m`"),
            ("cluster.name", "chakra.json", "is an execution trace of Chakra"),
            ("cluster.profile", "chakra.json", "is an execution trace of Chakra"),
            ("cluster.profile", "torch.json", "is a trace of PyTorch's profiler: `rehearse calibrate` reads it"),
            ("faults.trace", "chakra.json", "is an execution trace of Chakra"),
            ("faults.trace", "grid.xml", "is a platform of SimGrid"),
        ):
            with self.subTest(key=key, name=name):
                self.simulate(TINY, f"{files[name]}: {says}", more=["--set", f"{key}={files[name]}"])
        for name, says in (("chakra.json", "Chakra"), ("topo.txt", "platform file (docs/platforms.md)"), ("grid.xml", "SimGrid")):
            self.refused("calibrate", files[name], "--device", "H100", says=[f"{files[name]}: is ", says])
        # In the working directory a file has no slash in its name.
        self.refused(
            "simulate", self.job(TINY), "--set", "cluster.name=grid.xml", cwd=self.tmp, says=["grid.xml: is a platform of SimGrid"]
        )

    def test_files_of_another_kind(self):
        """Each file is named as what it is, whatever it lacks as something else."""
        trace = self.tmp / "trace.toml"
        trace.write_text('version = 1\n[[event]]\nkind = "rank_dies"\nrank = 0\nstep = 0\n')
        kinds = {
            "a job": (self.job(), "job", "rehearse simulate"),
            "a sweep": (ROOT / "experiments/sweep/methods.toml", None, "rehearse sweep"),
            "a platform": (ROOT / "platforms/dgx1.toml", "cluster.name", "cluster.name"),
            "a model": (ROOT / "models/gpt-tiny.toml", "model.name", "model.name"),
            "a software": (ROOT / "software/pytorch-2.toml", "software.name", "software.name"),
            "a failure model": (ROOT / "faults/opt-175b.toml", "faults.model", "faults.model"),
            "a fault trace": (trace, "faults.trace", "faults.trace"),
            "a plan": (ROOT / "experiments/table2/expected/plan-110m.toml", "method.plan", "method.plan"),
        }
        for kind, (file, _, use) in kinds.items():
            for wanted, (_, key, _) in kinds.items():
                if kind == wanted:
                    continue
                words = [f"is {kind} and not {wanted}", use]
                with self.subTest(f"{kind} as {wanted}"):
                    if wanted == "a job":
                        self.refused("simulate", file, says=words)
                    elif wanted == "a sweep":
                        self.refused("sweep", file, "-o", self.tmp / "sweep", says=words)
                    else:
                        text = TINY.replace('method.name = "ddp"\n', "") if wanted == "a plan" else TINY
                        self.refused("simulate", self.job(text), "--set", f"{key}={file}", says=words)

    def test_a_reserve_that_leaves_no_memory(self):
        says = ["cluster.memory_reserve", "966 GB leaves nothing of the 25.8 GB of RTX 4090"]
        for command in ("simulate", "plan"):
            self.refused(command, self.job(), "--set", "cluster.name=paper", "--set", "cluster.memory_reserve=900GiB", says=says)

    def test_a_failure_model_that_nothing_asks_for(self):
        self.refused("simulate", self.job(), "--set", "faults.model=opt-175", says=['key "faults.model"', "opt-175b"])

    def test_sizes_of_the_model(self):
        """The key that states the wrong size is named; the length of a sequence counts with the rows of the position table."""
        for change, key in (("layers = 10001", "layers"), ("hidden = 100000000", "hidden"), ("max_positions = 16", "max_positions")):
            self.simulate(TINY + f"model.{change}\n", "job.toml:6", f'key "model.{key}"')
        self.simulate(TINY + "model.hidden = 63\n", "job.toml:6", 'key "model.hidden"', "does not divide hidden = 63")
        self.simulate(TINY + "train.seq_len = 128\nmodel.max_positions = 100\n", "job.toml:6", 'key "train.seq_len"', "max_positions = 100")
        fits = self.job(
            'model.name = "gpt2-124m"\nmodel.max_positions = 512\ntrain.seq_len = 512\ncluster.name = "paper"\nmethod.name = "ddp"\n'
        )
        self.assertEqual(self.json("simulate", fits, "--fidelity", "analytic", "--set", "train.global_batch=32")["seq_len"], 512)

    def test_zero_needs_no_unit(self):
        for text in ("0", "0B"):
            self.rehearse("simulate", self.job(TINY), "--fidelity", "analytic", "--set", f"cluster.memory_reserve={text}")
        self.rehearse("simulate", self.job(TINY), "--fidelity", "analytic", "--set", "software.host.staging=0B/s")
        self.simulate(TINY + "method.bucket = 0\n", '"method.bucket"', "at least 1 B")

    def test_no_hint_leads_to_another_thing(self):
        """What is known to be missing, or to have another name here, is said in the place of a hint."""
        for line, says in (
            ('model.name = "mixtral-7b"', "it comes as mixtral-8x22b, mixtral-8x7b; its config.json is read"),
            ('model.name = "dbrx"', "mixture of experts"),
            ('model.name = "roberta-base"', "positions that begin at 2"),
            ('model.name = "gemma-2-9b"', "gemma2"),
            ('model.name = "deepseek-v3"', "mixture of experts with latent attention"),
            ('model.name = "llama-13b"', "is not known; known: "),
            ('cluster.name = "dgx-gb300"', "is not known; known: "),
            ('model.name = "qwen3-14b"', "it comes as qwen3-0.6b, qwen3-235b-a22b"),
            ('model.name = "qwen2.5-7b"', "it comes as qwen2-0.5b, qwen2-1.5b, qwen2-72b, qwen2-7b; Qwen 2.5"),
            ('model.name = "qwen-7b"', "read from Qwen 2 on"),
            ('model.name = "phi-3-mini"', "it comes as phi3-medium, phi3-mini; config.json is read"),
            ('model.name = "phi-2"', "beside each other"),
            ('method.name = "fsdp"', 'PyTorch\'s FSDP is "zero3" here'),
            ('method.name = "tp"', "method.tp divides tensors"),
            ("method.fp8 = true", "it is method.precision here"),
            ("method.micro_batch_size = 4", "are method.micro_batch here"),
            ("train.batch_size = 4", "are train.global_batch here"),
            ("train.learning_rate = 4", "it is train.lr here"),
            ("cluster.nodes = 2", '"dgx-a100:16" has 16'),
            ('cluster.nic = "200Gb/s"', "it is cluster.links.network.bandwidth here"),
            ('cluster.gpu = "H200"', "cluster.replace puts others in their places"),
            ("method.ep = 2", "expert parallelism is not modelled"),
            ("model.num_experts = 8", "it is model.experts here"),
            ("model.num_experts_per_tok = 2", "it is model.experts_per_token here"),
            ("method.context_parallel = 2", "it is method.cp here"),
        ):
            with self.subTest(line):
                said = self.refused("simulate", self.job(self.with_line(line)), says=[says])
                self.assertNotIn("did you mean", said)
        for kind, says in (
            ("olmoe", "mixture of experts"),
            ("roberta", "positions that begin at 2"),
            ("gemma3n", "gemma3_text"),
        ):
            config = self.tmp / "config.json"
            config.write_text(json.dumps({"model_type": kind}))
            said = self.refused("simulate", self.job(self.with_line(f'model.name = "{config}"')), says=["model_type", says])
            self.assertNotIn("did you mean", said)

    def test_a_folder_of_hugging_face(self):
        folder = self.tmp / "gpt2"
        folder.mkdir()
        said = self.refused("simulate", self.job(self.with_line(f'model.name = "{folder}"')), says=["gpt2"])
        self.assertIn("does not exist", said)
        sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 100}
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
        job = self.job(self.with_line(f'model.name = "{folder}"'))
        self.assertEqual(self.json("simulate", job, "--fidelity", "analytic")["seq_len"], 64)

    def test_a_plan_that_does_not_exist(self):
        self.simulate(self.with_line('method.plan = "none.toml"').replace('method.name = "ddp"\n', ""), '"none.toml" does not exist')

    def test_advice_on_a_batch_can_be_followed(self):
        text = self.with_line("train.global_batch = 18") + "method.micro_batch = 3\n"
        said = self.refused("simulate", self.job(text), says=["job.toml:5", '"train.global_batch"', "3 x 4 replicas"])
        nearest = said.rsplit("nearest: ", 1)[1].strip()
        self.json("simulate", self.job(text), "--fidelity", "analytic", "--set", f"train.global_batch={nearest}")

    def test_mesh(self):
        self.simulate(TINY + "method.dp = 3\n", "job.toml:6", "3", "the world has 4", "nearest mesh")
        self.simulate(self.with_line("cluster.world_size = 99"), '"cluster.world_size"', "at most 32")

    def test_layers_and_heads(self):
        mesh = "method.dp = 1\nmethod.tp = 3\n"
        text = TINY.replace('"ddp"', '"megatron"').replace("world_size = 4", "world_size = 3") + mesh
        self.simulate(text, '"method.tp"', "heads", "no mesh of 3 ranks fits this model and batch")
        self.simulate(text, '"method.tp"', "heads", "nearest mesh that fits: pp 1 x dp 3 x tp 1", more=["--set", "train.global_batch=15"])
        text = TINY.replace('"ddp"', '"1f1b"').replace("world_size = 4", "world_size = 32")
        self.simulate(text + "method.pp = 32\nmethod.dp = 1\n", '"method.pp"', "layers")

    def test_batch(self):
        self.simulate(self.with_line("train.global_batch = 15"), '"train.global_batch"', "15", "nearest: 16")

    def test_method_does_not_combine(self):
        self.simulate(TINY + "method.pp = 2\nmethod.dp = 2\n", '"method.pp"', '"ddp"')

    def test_memory(self):
        job = self.job('model.name = "gpt2-1.5b"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        said = self.refused("simulate", job, "--fidelity", "analytic", says=["node0/gpu0", "RTX 4090", "needs"])
        self.assertRegex(said, r": weights 6\.\d+ GB, gradients 6\.\d+ GB, moments 12\.\d+ GB, activations [\d.]+ GB, .*; this")
        # The proposed change does fit.
        self.assertIn("this would fit, with", said)
        proposed = said[said.index(": --set") + 2 :].split()
        self.rehearse("simulate", job, "--fidelity", "analytic", *proposed)

    def test_memory_hopeless(self):
        job = self.job('model.name = "gpt3-175b"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        self.refused("simulate", job, "--set", "cluster.world_size=1", says=["needs", "no number of micro-batches"])

    def test_profile(self):
        self.simulate(TINY + 'cluster.profile = "none.json"\n', '"cluster.profile"', "does not exist")
        bad = self.tmp / "profile.json"
        bad.write_text('{"profile_version": 99}')
        self.simulate(TINY + f'cluster.profile = "{bad}"\n', "profile.json", "99")

    def test_not_json(self):
        """All readers of JSON give file, line and column in our own words."""
        job = self.job()
        said = self.refused("plan", job, "--profile", job, says=["job.toml:1:1: not JSON: ", "writes a profile"])
        self.assertNotIn("exception", said)
        bad = self.tmp / "profile.json"
        for text, where in (
            ('{\n "profile_version": 2,\n "host": nope\n}\n', ":3:"),
            ("", ":1:1:"),
            ('{"a": 1e999}', ": not JSON: number overflow"),
        ):
            bad.write_text(text)
            said = self.refused("simulate", job, "--set", f"cluster.profile={bad}", says=[f"profile.json{where}"])
            self.assertNotIn("exception", said)
        self.assertNotIn('key "', said)  # an error in the profile, not in a key of the job
        plan = self.tmp / "plan.toml"
        self.rehearse("plan", job, "-o", plan, "--budget", "20", "--no-rescore")
        self.refused("simulate", job, "--set", "method.name=", "--set", f"method.plan={job}", says=["job.toml", "is a job and not a plan"])
        planned = ["--set", "method.name=", "--set", f"method.plan={plan}"]
        self.rehearse("simulate", job, *planned, "--fidelity", "analytic")
        (self.tmp / "plan.rehearsal.json").write_text('{"schema_version": 1,\n\n oops}')
        if "\n  train " in self.rehearse("--help").stdout:  # only in a build with the runtime
            said = self.refused("train", job, "--nproc", "4", "--rehearsed", *planned, says=["plan.rehearsal.json:3:2: not JSON: "])
            self.assertNotIn("exception", said)

    def test_disturbance(self):
        self.simulate(TINY + '[[disturb.slow_links]]\nlink = "node0/nic>fabric"\nfactor = 2.0\n', "node0/nic0")


PLATFORM = """summary = "mine"
[[nodes]]
count = 4
devices = ["mine"]
parts = ["nic"]
links = [
  {{ from = "gpu0", to = "nic", bandwidth = "{bandwidth}", latency = "{latency}" }},
  {{ from = "nic", to = "fabric", bandwidth = "1GB/s", latency = "1us" }},
]
[[device]]
name = "mine"
memory = "{memory}"
f32 = "{f32}"
memory_bandwidth = "{memory_bandwidth}"
efficiency = {efficiency}
memory_efficiency = {memory_efficiency}
f32_efficiency = {f32_efficiency}
attention_efficiency = {attention_efficiency}
flash_efficiency = {flash_efficiency}
collective_share = {collective_share}
multiprocessors = {multiprocessors}
tf32 = "{tf32}"
fp8 = "{fp8}"
launch = "{launch}"
idle = "{idle}"
busy = "{busy}"
source = "a test"
[fabric]
nodes_per_leaf = 2
oversubscription = {oversubscription}
"""
GOOD = dict(
    bandwidth="1GB/s", latency="1us", memory="16GB", f32="1TFLOP/s", memory_bandwidth="100GB/s", efficiency="1",
    memory_efficiency="1", f32_efficiency="1", attention_efficiency="1", multiprocessors="0", tf32="0FLOP/s", launch="0s", idle="0W",
    fp8="0FLOP/s", flash_efficiency="1", collective_share="0",
    busy="0W", oversubscription="1",
)  # fmt: skip
WRONG = dict(
    bandwidth=("0B/s", "1e300B/s", "-1GB/s"), latency=("-1us", "1e300s"), memory=("0B", "1e300B", "-1B"),
    f32=("0FLOP/s", "1e300FLOP/s", "1e-300FLOP/s"), memory_bandwidth=("0B/s", "1e300B/s", "1e-300B/s"),
    efficiency=("0", "1e-300", "2", "nan", "inf"), memory_efficiency=("0", "1e-300", "2"),
    f32_efficiency=("0", "1e-300", "2"), attention_efficiency=("0", "1e-300", "2"), multiprocessors=("-1", "1e9", "2147483648", "1.5"),
    flash_efficiency=("0", "1e-300", "2"), collective_share=("-1", "2", "nan"), tf32=("-1FLOP/s", "1FLOP/s", "1e300FLOP/s"),
    fp8=("-1FLOP/s", "1FLOP/s", "1e300FLOP/s"),
    launch=("-1s", "1e300s"), idle=("-1W", "1e300W", "9W"), busy=("-1W", "1e300W"), oversubscription=("0", "1e300"),
)  # fmt: skip


class Platforms(CliTestCase):
    def simulate(self, **changes):
        path = self.tmp / "mine.toml"
        path.write_text(PLATFORM.format(**GOOD | changes))
        return "simulate", self.job(), "--json", "--fidelity", "analytic", "--set", f"cluster.name={path}"

    def test_every_quantity_has_a_range(self):
        self.rehearse(*self.simulate())
        for key, values in WRONG.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    said = self.refused(*self.simulate(**{key: value}), says=["mine.toml:"])
                    self.assertRegex(said, rf'mine\.toml:\d+: key "[\w.\[\]]*\b{key}": ')

    def test_the_extremes_of_the_ranges_give_numbers(self):
        slow = dict(bandwidth="1kB/s", latency="1h", f32="1kFLOP/s", memory_bandwidth="1kB/s", efficiency="1e-6",
                    memory_efficiency="1e-6", f32_efficiency="1e-6", attention_efficiency="1e-6", multiprocessors="1048576",
                    tf32="1kFLOP/s", launch="1h", oversubscription="1e6")  # fmt: skip
        fast = dict(bandwidth="10PB/s", latency="0s", f32="1e21FLOP/s", memory_bandwidth="10PB/s", memory="1EB")
        rough = ["--set", "disturb.straggler_factor=1e6", "--set", "disturb.straggler_probability=1"]
        for changes in (slow, fast, {"busy": "1MW", "idle": "1MW"}):
            for more in ([], rough):
                one = json.loads(self.rehearse(*self.simulate(**changes), *more).stdout, parse_constant=self.fail)
                self.assertGreater(one["step_time_s"]["mean"], 0)
                self.assertGreater(one["samples_per_s"], 0)


class Outputs(CliTestCase):
    def test_unwritable(self):
        job = self.job()
        nowhere = self.tmp / "nowhere/trace.json"
        self.refused("simulate", job, "--trace", nowhere, says=["--trace", "nowhere does not exist"])
        self.refused("simulate", job, "--trace", self.tmp, says=["is a folder"])
        self.refused("compare", job, "--report", self.tmp / "out.pdf", says=["must end in .html"])
        self.refused("validate", "sc21", "-o", self.tmp / "out.txt", says=["out.txt: the name must end in .json, .html, .svg"])
        self.refused("program", job, "-o", nowhere, says=["-o", "does not exist"])
        if os.geteuid() != 0:
            self.tmp.chmod(0o500)
            self.refused("simulate", job, "--trace", self.tmp / "t.json", says=["Permission denied"])
        self.refused("simulate", job, "--trace", "/proc/trace.json", says=["--trace", "cannot be written"])

    def test_no_python(self):
        env = {**os.environ, "REHEARSE_PYTHON": str(self.tmp / "python")}
        out = self.tmp / "out.html"
        self.refused("simulate", self.job(), "--report", out, env=env, says=["--report needs Python"])
        self.assertFalse(out.exists())

    def test_python_does_not_end(self):
        stub, out = self.tmp / "python", self.tmp / "out.html"
        stub.write_text("#!/bin/sh\nexec sleep 3600\n")
        stub.chmod(0o755)
        command = ("simulate", self.job(), "--report", out)
        env = os.environ | {"REHEARSE_PYTHON": str(stub), "REHEARSE_PROGRAM_TIMEOUT": "200ms"}
        said = self.rehearse(*command, env=env, expect=1).stderr
        self.assertIn(
            "plots/report.py ... had not ended after 0.2 s and was stopped; the environment variable REHEARSE_PROGRAM_TIMEOUT", said
        )
        stub.write_text("#!/bin/sh\nexec sleep 3600 >&- 2>&-\n")  # it closes its output, and goes on
        self.assertIn("... had not ended after 0.2 s", self.rehearse(*command, env=env, expect=1).stderr)
        env["REHEARSE_PROGRAM_TIMEOUT"] = "soon"
        self.refused(*command, env=env, says=["REHEARSE_PROGRAM_TIMEOUT", "soon"])

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            import subprocess

            from cli_test_case import REHEARSE

            done = subprocess.run([REHEARSE, "program", self.job()], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output: cannot be written", done.stderr)
