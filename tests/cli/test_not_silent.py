"""Input that would be ignored, or answered with something else than was asked, is refused or named: programs and methods that are not the
job's, keys without effect, misspelt sections of platforms, changed platforms, paths, axes of a mesh."""

import re

from cli_test_case import TINY, CliTestCase

QUICK = ("--fidelity", "analytic")
STAR = """summary = "eight nodes of one GPU"
source = "a test"
[[nodes]]
count = 8
devices = ["RTX 4090"]
parts = ["nic"]
links = [
  { from = "gpu*", to = "nic", bandwidth = "24GB/s", latency = "0.5us" },
  { from = "nic", to = "fabric", bandwidth = "100Gb/s", latency = "1us" },
]
"""


class NotSilent(CliTestCase):
    def simulate(self, *keys, says=None):
        sets = [word for key in keys for word in ("--set", key)]
        if says is None:
            return self.rehearse("simulate", self.job(), *QUICK, *sets).stdout
        return self.refused("simulate", self.job(), *QUICK, *sets, says=says)

    def test_a_method_that_the_planner_does_not_use(self):
        job = self.job()
        quick = ("plan", job, "--budget", "20", "--no-rescore")
        zero = ("--set", "method.zero=0", "--set", "method.pp=1")
        for flags in ((), ("--explain",)):
            said = self.rehearse(*quick, *zero, *flags, "--set", "method.name=topk-sync").stdout
            self.assertRegex(said, r'\nmethod +ddp; method\.name = "topk-sync" of the job is not used: the planner chooses the method\n')
            self.assertRegex(self.rehearse(*quick, *zero, *flags).stdout, r"\nmethod +ddp\n")
        self.assertEqual(self.json(*quick, *zero, "--set", "method.name=topk-sync")["method_not_used"], "topk-sync")
        self.assertIsNone(self.json(*quick, *zero)["method_not_used"])

    def test_devices_that_a_plan_is_faster_without(self):
        work = 'model.name = "gpt2-124m"\ncluster.name = "paper"\ntrain.global_batch = 192\n'
        job = self.job(work + 'method = { name = "ddp", pp = 1, tp = 1, zero = 0 }\n')
        command = ("plan", job, "--no-rescore", "--set", "adaptive.placement=false")
        (advice,) = (one for one in self.json(*command)["warnings"] if one.startswith("a plan without "))
        says = r"a plan without the 8 V100 PCIe 32GB is [\d.]+% faster, ([\d.]+) ms a step: --set '(cluster\.devices=\[\"RTX 4090\"\])'"
        milliseconds, key = re.fullmatch(says, advice).groups()
        without = self.json(*command, "--set", key)
        self.assertAlmostEqual(1000 * without["step_time_s"] / float(milliseconds), 1, places=2)
        self.assertEqual((without["plan"]["dp"], without["warnings"]), (24, []))
        # A job that says how many devices it uses has decided.
        self.assertEqual(self.json(*command, "--set", "cluster.world_size=32")["warnings"], [])

    def test_keys_of_methods_that_the_planner_does_not_use(self):
        quick = ("plan", self.job(), "--budget", "20", "--no-rescore", "--set", "method.pp=1")
        local = ("--set", "method.name=diloco", "--set", "method.local_steps=4", "--set", "method.outer_lr=0.5")
        said = self.rehearse(*quick, *local).stdout
        keys = 'method.name = "diloco", method.local_steps, method.outer_lr'
        self.assertRegex(said, rf"\nmethod +\w+; {re.escape(keys)} of the job are not used: the planner chooses the method\n")
        found = self.json(*quick, *local)
        self.assertEqual((found["method_not_used"], found["keys_not_used"]), ("diloco", ["local_steps", "outer_lr"]))
        self.assertEqual(found["plan"], self.json(*quick)["plan"])
        served = self.json(*quick, "--set", "method.name=ps-sync", "--set", "method.servers=1", "--set", "train.global_batch=16")
        self.assertEqual((served["keys_not_used"], served["plan"]["servers"]), (["servers"], 0))

    def test_a_stated_collective_is_that_of_all_axes(self):
        """Where the library or the group has no such algorithm, the output says that another one was chosen."""
        job = self.job(
            'model.name = "bert-large"\ncluster.name = "dgx-h100"\nsoftware.name = "pytorch-2"\n'
            'method = { name = "megatron", tp = 8, pp = 1, precision = "bf16" }\n'
        )
        used = {}
        for stated in ("automatic", "nvls", "double_tree", "direct"):
            found = self.json("simulate", job, *QUICK, "--set", f"method.collective={stated}")["collectives"]
            used[stated] = {(one["algorithm"], one["automatic"]) for one in found if one["group"] == "tp"}
        self.assertTrue(all(automatic for _, automatic in used["automatic"]))
        self.assertEqual(used["nvls"], {("nvls", False), ("ring", True)}, "NVLink SHARP does not gather")
        self.assertEqual(used["double_tree"], used["automatic"], "a tree needs several nodes")
        self.assertEqual(used["direct"], {("direct", False)})
        said = self.rehearse("simulate", job, *QUICK, "--set", "method.collective=nvls").stdout
        self.assertIn("tp all_reduce nvls", said)

    def test_hsdp_without_smaller_groups_is_zero3(self):
        job = self.job('model.name = "bert-large"\ncluster.name = "dgx-a100:2"\nmethod.name = "hsdp"\n')
        for keys, says in (
            ((), None),
            (("cluster.world_size=8",), "all 8 replicas, as zero3 does: they are one group"),
            (("method.tp=8",), "all 2 replicas, as zero3 does: no two of them share a node"),
        ):
            with self.subTest(keys):
                found = self.json("simulate", job, *QUICK, *(word for key in keys for word in ("--set", key)))["warnings"]
                self.assertEqual([says in one for one in found if "hsdp" in one], [True] if says else [])

    def test_keys_without_effect(self):
        fp8 = "software.kernels.fp8=delayed"
        warning = "warning: software.kernels.fp8: delayed has no effect where method.precision is bf16\n"
        self.assertIn(warning, self.simulate(fp8, "method.precision=bf16"))
        self.assertNotIn("fp8", self.simulate("software.name=megatron-core", "method.precision=bf16"))
        for method in ("ps-async", "byteps-async"):
            with self.subTest(method):
                served = (f"method.name={method}", "train.global_batch=15")
                warning = "warning: method.bucket: 5 MB has no effect where each server has one bucket of its own\n"
                self.assertIn(warning, self.simulate(*served, "method.bucket=5MB"))
                self.assertNotIn("no effect", self.simulate(*served))
        self.assertNotIn("no effect", self.simulate("method.name=ps-sync", "train.global_batch=15", "method.bucket=5MB"))

    def test_steps_of_free_workers_that_still_change(self):
        """Eight nodes push over one network card each, at first all at the same moment. `analytic` has no such waves."""
        star = self.tmp / "star.toml"
        star.write_text(STAR)
        keys = (
            "model.name=gpt2-124m",
            f"cluster.name={star}",
            "method.name=byteps-async",
            "method.servers=1",
            "train.global_batch=112",
            "cluster.world_size=8",
        )
        sets = [word for key in keys for word in ("--set", key)]
        said = self.rehearse("simulate", self.job(), *sets).stdout
        self.assertRegex(said, r"warning: steps still change: the second half .* took 0\.[89]\d* times as long .*--steps")
        self.assertIn("warning: without jitter, workers that begin together push together", said)
        jitter = self.rehearse("simulate", self.job(), *sets, "--set", "disturb.link_jitter=0.02").stdout
        for other in (jitter, self.simulate(*keys)):
            self.assertNotIn("push together", other)
        self.assertNotIn("still change", self.simulate(*keys))

    def test_what_would_help_unlike_devices(self):
        mixed = ("model.name=gpt-demo", "cluster.world_size=2", 'cluster.devices=["node8/gpu1", "node8/gpu2"]')
        piped = (*mixed, "method.name=1f1b", "method.pp=2", "method.dp=1", "method.micro_batches=4")
        self.assertIn("unlike devices get equal work: the slowest sets the pace; with method.shares=speed", self.simulate(*mixed))
        self.assertIn("unlike devices get equal work: the slowest sets the pace; with method.stage_layers", self.simulate(*piped))
        self.assertNotIn("unlike devices", self.simulate(*piped, "method.stage_layers=[3, 1]"))

    def test_a_run_that_ends_before_what_is_predicted(self):
        warning = "warning: train.steps: 50: the run ends before the phase that is predicted, which begins at step "
        self.assertIn(warning, self.simulate("method.name=powersgd", "train.steps=50"))
        self.assertNotIn("the run ends", self.simulate("method.name=powersgd", "train.steps=5000"))
        self.assertNotIn("the run ends", self.simulate("method.name=powersgd"))

    def test_more_recomputed_layers_than_there_are(self):
        says = ['"method.recompute_layers"', "3", "gpt-tiny has 2 layers; at most 2"]
        self.simulate("method.recompute=true", "method.recompute_layers=3", says=says)
        self.simulate("method.recompute=true", "method.recompute_layers=2")

    def test_sizes_of_models(self):
        self.simulate("model.layers=0", says=['"model.layers"', "must be from 1 to 10000"])
        self.simulate("model.layers=10000000", says=['"model.layers"', "must be from 1 to 10000"])
        self.simulate("train.seq_len=4096", says=['"train.seq_len"', "max_positions = 128", "at most 128"])

    def test_sections_of_platforms(self):
        nodes = '[[nodes]]\ndevices = ["H100"]\n'
        for text, says in (
            ('device = ["H100"]\n', ['key "device"', "must be an array of tables: [[device]]", "listed in [[nodes]]: devices = "]),
            ('[device]\nname = "mine"\n', ['key "device"', "must be an array of tables: [[device]]"]),
            ('devices = ["H100"]\n', ['key "devices": unknown', "a kind of device is a [[device]]", "listed in [[nodes]]"]),
            (nodes + '[[devices]]\nname = "mine"\n', ['key "devices": unknown', "a kind of device is a [[device]]"]),
            ('[[node]]\ndevices = ["H100"]\n', ['key "node": unknown; did you mean "nodes"?']),
            ('[[nodes]]\ndevice = ["H100"]\n', ['key "nodes[0].device": unknown; did you mean "devices"?']),
        ):
            with self.subTest(text):
                path = self.tmp / "mine.toml"
                path.write_text('summary = "mine"\n' + text)
                self.simulate(f"cluster.name={path}", says=[str(path), *says])

    def test_a_changed_platform_is_named(self):
        said = self.simulate("cluster.links.network.bandwidth=25Gb/s", "cluster.fabric.nodes_per_leaf=4", "cluster.fabric.latency=1us")
        self.assertRegex(said, r"\ncluster +paper\+links\.network\.bandwidth=3\.12 GB/s,fabric\.latency")
        self.simulate(
            "cluster.fabric.latency=1us", says=['--set cluster.fabric.latency=1us: key "cluster.fabric.latency": needs nodes_per_leaf']
        )
        self.simulate("cluster.fabric.oversubscription=8", says=['key "cluster.fabric.oversubscription": needs nodes_per_leaf'])
        self.assertRegex(self.simulate('cluster.replace=["RTX 4090: H200"]'), r"\ncluster +paper\+replace=RTX 4090: H200\n")
        self.assertRegex(self.simulate(), r"\ncluster +paper\n")

    def test_sharding_that_the_method_does_not_name(self):
        self.assertRegex(self.simulate("method.zero=3"), r"\nmethod +ddp, ZeRO-3\n")
        self.assertRegex(self.simulate("method.name=zero3"), r"\nmethod +zero3\n")

    def test_where_a_path_was_looked_for(self):
        folder = self.tmp / "jobs"
        folder.mkdir()
        for key, name in (("model.name", "m.toml"), ("cluster.name", "c.toml")):
            text = re.sub(rf"^{key} = .*$", f'{key} = "{name}"', TINY, flags=re.M)
            (folder / "job.toml").write_text(text)
            says = [f'"{name}" does not exist; paths are relative to the working directory, {self.tmp.resolve()}']
            said = self.refused("simulate", "jobs/job.toml", says=says, cwd=self.tmp)
            self.assertNotIn("beside the job", said)
            (folder / name).write_text("")
            self.refused("simulate", "jobs/job.toml", says=[*says, f'; beside the job is "jobs/{name}"'], cwd=self.tmp)

    def test_advice_keeps_the_axes_that_are_stated(self):
        nearest = "nearest mesh that fits: pp 1 x dp 2 x tp {}; or"
        self.simulate("method.dp=8", "method.tp=2", says=["= 16 ranks, but the world has 4", nearest.format(2)])
        self.simulate("method.cp=2", "method.dp=4", says=["x cp 2 = 8 ranks", nearest.format("1 x cp 2")])
        self.simulate(
            "method.name=ps-sync", "method.dp=4", "train.global_batch=12", says=["+ 1 server = 5", "fits: pp 1 x dp 3 x tp 1 + 1 server;"]
        )

    def test_servers_are_named_not_the_batch(self):
        self.simulate("method.servers=1", says=['"method.servers"', 'does not combine with method "ddp"', "leave it out"])
        self.simulate("method.servers=4", "method.name=ps-sync", says=["4 of 4 ranks leave no worker; at most 3"])

    def test_no_spread_of_one_seed(self):
        def table(*more):
            return self.rehearse("compare", self.job(), "--methods", "ddp,zero1", *QUICK, *more).stdout

        self.assertNotIn("+-", table())
        self.assertRegex(table(), r"\n1 seed of .* steps; GB sent")
        several = table("--set", "disturb.compute_jitter=0.1", "--seeds", "3")
        self.assertEqual(several.splitlines()[0].count("+-"), 2)
        self.assertIn("\n+-: 95% interval over 3 seeds of ", several)
