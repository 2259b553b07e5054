"""Tests the adaptive method through the command: every command plans such a job, a real run plans it again after warm-up, and the second
plan can be made again from the files that the run writes."""

import base64
import json
import re

from cli_test_case import TINY, CliTestCase
from cli_test_train_data import TOKENS

ADAPTIVE = TINY.replace('"ddp"', '"adaptive"')
TRAIN = """model.name = "gpt-tiny"
cluster.name = "this-machine"
method = {{ name = "adaptive", reduction = "sparse" }}
train = {{ global_batch = 8, steps = 12, data = "{tokens}", out = "{out}" }}
"""


class Predicted(CliTestCase):
    def test_every_command_plans(self):
        job = self.job(ADAPTIVE)
        plan = self.json("plan", job)
        simulated = self.json("simulate", job, "--seeds", 1)
        self.assertEqual(simulated["migration"]["after_step"], 25)
        self.assertEqual([simulated["mesh"][axis] for axis in ("pp", "dp", "tp")], [plan["plan"][axis] for axis in ("pp", "dp", "tp")])
        compared = self.json("compare", job, "--methods", "ddp,adaptive", "--seeds", 1)
        by_method = {r["method"]: r for r in compared["results"]}
        self.assertEqual(by_method["adaptive"]["step_time_s"], simulated["step_time_s"])
        self.assertLessEqual(by_method["adaptive"]["step_time_s"]["mean"], by_method["ddp"]["step_time_s"]["mean"])
        self.assertEqual(self.json("program", job)["program_hash"], simulated["program_hash"])

    def test_what_the_job_states_is_kept(self):
        one = self.json("simulate", self.job(ADAPTIVE), "--seeds", 1, "--set", "method.pp=2", "--set", "method.micro_batches=4")
        self.assertEqual(one["mesh"]["pp"], 2)

    def test_what_to_beware_of_is_said_by_every_command(self):
        job = self.job(ADAPTIVE + "method.tp = 2\n")
        slow = [w for w in self.json("plan", job)["warnings"] if "tensor parallelism over a slow link" in w]
        self.assertEqual(len(slow), 1)
        self.assertIn(slow[0], self.json("simulate", job, "--seeds", 1)["warnings"])
        self.assertIn(slow[0], self.rehearse("compare", job, "--methods", "adaptive", "--seeds", 1).stdout)

    def test_trace_of_the_migration(self):
        """The migration from dense to sparse gradients is traced on the lanes of the first plan, in a separate file."""
        trace = self.tmp / "step.json"
        job = self.job(ADAPTIVE + 'method.reduction = "sparse"\nmethod.pp = 1\nmethod.tp = 1\n')
        self.rehearse("simulate", job, "--seeds", 1, "--trace", trace)
        events = json.loads((self.tmp / "step.migration.json").read_text())["traceEvents"]
        self.assertEqual({e["pid"] for e in events if e["ph"] == "X"}, {0, 1, 2, 3})
        self.assertTrue(trace.exists())

    def test_reports_draw_the_plan(self):
        """Reports show layers on the cluster, sparsity by layer, and a step before and after the change of plan."""
        job = self.job(ADAPTIVE + 'method.reduction = "sparse"\nmethod.pp = 1\nmethod.tp = 1\n')
        for command in (["plan"], ["simulate", "--seeds", 1]):
            report = self.tmp / f"{command[0]}.html"
            self.rehearse(*command, job, "--report", report)
            pictures = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", report.read_text())
            text = "".join(base64.b64decode(one).decode() for one in pictures)
            # The SVG has text in comments, beside the glyphs that draw it.
            for words in ("<!-- node0 -->", "Sparsity: part of the gradient", "<!-- Before (", "<!-- After (the plan)"):
                self.assertTrue(words in text, (command, words))
        self.refused("plan", job, "--report", self.tmp / "plan.txt", says=["--report", ".html"])

    def test_weights_are_not_sparse(self):
        says = ['--set method.zero=3: key "method.zero": 3: ranks of ZeRO-3 exchange whole weights', "at most 2"]
        given = ("--set", "method.zero=3", "--set", "method.reduction=sparse")
        self.refused("plan", "experiments/demo-adaptive.toml", *given, says=says)

    def test_nothing_fits(self):
        text = 'model.name = "gpt3-175b"\ncluster.name = "paper"\nmethod.name = "adaptive"\n'
        for command in ("plan", "simulate", "program"):
            self.refused(command, self.job(text), says=["no feasible plan", "memory binds", "nearest:"])

    def test_optimizer_on_the_host_where_nothing_else_fits(self):
        base = 'model.name = "llama-7b"\ncluster.name = "workstation-4090"\ntrain = { global_batch = 16, seq_len = 2048 }\n'
        job = self.job(base + 'method = { name = "adaptive", reduction = "dense", precision = "bf16" }\n')
        plan = self.tmp / "plan.toml"
        text = self.rehearse("plan", job, "-o", plan).stdout
        self.assertIn("optimizer on the host", text)
        self.assertIn('offload = "optimizer"', plan.read_text())
        from_file = json.loads(
            self.rehearse("simulate", self.job(base + f'method.plan = "{plan}"\n', "planned.toml"), "--seeds", 1, "--json").stdout
        )
        self.assertLess(max(from_file["peak_memory_bytes"].values()), 25.8e9 - 1.5e9)
        self.refused("plan", job, "--set", "method.offload=none", says=["leave out method.offload: "])
        # With dense gradients nothing changes after warm-up. Otherwise the states of two plans are on the host at once.
        self.assertNotIn("migration", self.json("simulate", job, "--seeds", 1))
        self.refused(
            "simulate", job, "--set", "method.reduction=sparse", "--seeds", 1,
            says=["the migration from ", "in the memory of node 0's host, which has 128 GB", "adaptive.warmup_plan"],
        )  # fmt: skip

    def test_states_on_the_host_migrate_on_the_host(self):
        job = self.job(ADAPTIVE + 'method.pp = 1\nmethod.tp = 1\nmethod.reduction = "sparse"\n')
        on_host = self.json("simulate", job, "--seeds", 1, "--set", "method.offload=optimizer", "--set", "method.zero=0")["migration"]
        on_device = self.json("simulate", job, "--seeds", 1, "--set", "method.zero=0")["migration"]
        (host,), (device,) = on_host["peak_memory_bytes"].values(), on_device["peak_memory_bytes"].values()
        self.assertLess(host, 0.6 * device)

    def test_profile_of_another_cluster(self):
        profile = self.tmp / "p.json"
        self.rehearse("profile", "--cluster", "dgx1", "-o", profile)
        for command in ("plan", "simulate"):
            self.refused(command, self.job(ADAPTIVE + f'cluster.profile = "{profile}"\n'), says=["p.json", "dgx1", "paper"])


class Trained(CliTestCase):
    def setUp(self):
        super().setUp()
        self.out = self.tmp / "out"
        self.text = TRAIN.format(tokens=TOKENS, out=self.out)

    def train(self, *arguments, **options):
        return self.rehearse("train", self.job(self.text), "--nproc", 2, *arguments, **options)

    def test_plans_again_after_warm_up(self):
        done = json.loads(self.train("--json").stdout)
        self.assertEqual([change["step"] for change in done["plan_changes"]], [3])
        self.assertEqual(len(done["losses"]), 12)
        profile = json.loads((self.out / "warm-up.profile.json").read_text())
        self.assertEqual({v["steps"] for v in profile["variances"]}, {3})
        # The plan can be made again from these files.
        again = self.tmp / "again.toml"
        self.rehearse(
            "plan", self.job(self.text), "--set", "cluster.world_size=2", "--profile", self.out / "warm-up.profile.json", "-o", again
        )  # fmt: skip
        self.assertEqual(again.read_text(), (self.out / "plan.toml").read_text())
        layers = self.json("plan", self.job(self.text), "--set", "cluster.world_size=2", "--profile", self.out / "warm-up.profile.json")
        densities = [layer["density"] for layer in layers["plan"]["layers"]]
        self.assertTrue(all(0.05 <= d <= 0.3 + 1e-9 for d in densities))
        self.assertGreater(len(set(densities)), 2)  # layers differ, by their measured variances
        # By the total variance, as it is printed, the layers have another order.
        by_total = self.json(
            "plan",
            self.job(self.text),
            "--set",
            "cluster.world_size=2",
            "--set",
            "method.variance=total",
            "--profile",
            self.out / "warm-up.profile.json",
        )  # fmt: skip
        found = [layer["density"] for layer in by_total["plan"]["layers"]]
        self.assertEqual(found.index(max(found)), max(range(len(found)), key=lambda s: profile["variances"][s]["total"]))
        self.assertNotEqual(found, densities)

    def test_states_on_the_host_are_the_same_after_the_change(self):
        def losses(*keys):
            done = json.loads(self.train("--json", "--set", "method.zero=2", *keys, "--set", f"train.out={self.tmp}/{len(keys)}").stdout)
            self.assertEqual([change["step"] for change in done["plan_changes"]], [3])
            self.assertEqual("optimizer on the host" in done["plan_changes"][0]["plan"], bool(keys))
            return done["losses"]

        self.assertEqual(losses("--set", "method.offload=optimizer"), losses())

    def test_resume_goes_on_under_the_second_plan(self):
        same = ["--set", "train.schedule=constant", "--set", "train.warmup_steps=1", "--set", "adaptive.warmup_steps=3", "--json"]
        whole = json.loads(self.train(*same, "--set", f"train.out={self.tmp}/whole").stdout)
        self.train(*same, "--set", "train.steps=8")
        resumed = json.loads(self.train(*same, "--resume").stdout)
        self.assertEqual((resumed["first_step"], resumed["end_step"], resumed["plan_changes"]), (8, 12, []))
        self.assertEqual(resumed["losses"], whole["losses"][8:])

    def test_fewer_ranks_go_on_with_a_plan_of_their_own(self):
        """A rank dies after the run has planned again. The others plan for their number, with the variances of the warm-up."""
        trace = self.tmp / "fault.toml"
        trace.write_text('version = 1\n[[event]]\nkind = "rank_dies"\nrank = 2\nstep = 8\n')
        keys = ["recovery.policy=shrink", "recovery.restarts=1", "train.save_every=3", "adaptive.warmup_steps=4", "train.global_batch=6"]
        sets = [word for key in keys for word in ("--set", key)]
        one = self.json("train", self.job(self.text), "--nproc", 3, *sets, "--faults", trace)
        self.assertEqual((one["world_size"], one["first_step"], one["end_step"], one["starts"]), (2, 0, 12, 2))
        self.assertEqual([change["step"] for change in one["plan_changes"]], [6])
        self.assertRegex(one["plan_changes"][0]["plan"], "dp 2 .*gradients sparse")
        observed = json.loads((self.tmp / "out/warm-up.profile.json").read_text())["variances"]
        self.assertEqual({layer["steps"] for layer in observed}, {4})

    def test_gradients_that_are_not_numbers(self):
        """Exit status 1, because the run failed; it is not a refused plan."""
        done = self.train("--set", "train.lr=1e25", "--set", "train.optimizer=sgd", expect=1)
        for words in ("the gradient of layer", "was not finite at step", "train.lr"):
            self.assertIn(words, done.stderr)

    def test_planning_takes_too_long(self):
        done = self.train("--set", "adaptive.plan_timeout=1ms", expect=1)
        self.assertIn("adaptive.plan_timeout", done.stderr)
