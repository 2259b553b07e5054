"""Plans in files: a job that names one, its rehearsal, and what `train --rehearsed` refuses.

This file writes plans, with their hashes, according to docs/plans.md, independently of the engine's writer.
"""

import json
import re
import shlex
import tomllib

from cli_test_case import ROOT, CliTestCase
from cli_test_train_data import TOKENS

TINY = "gpt 2 64 4 256 512 64 128 512 4 0 true"  # family, layers, hidden ... of gpt-tiny
PLAN = {
    "method": "ddp",
    "pp": 1,
    "dp": 2,
    "tp": 1,
    "order": "pp,dp,tp",
    "servers": 0,
    "zero": 0,
    "sequence_parallel": False,
    "global_batch": 8,
    "micro_batches": 1,
    "shares": [],
    "virtual_stages": 1,
    "staleness": 0,
    "stages": ["embedding .. head"],
    "bucket_bytes": 25000000,
    "precision": "f32",
    "recompute": False,
    "keep_gathered": False,
    "clip": False,
    "density": 0.1,
    "s_min": 0.7,
    "s_max": 0.95,
    "selector": "top_k",
    "feedback": "conserving",
    "reduction": "automatic",
    "coding": "automatic",
    "observe": 0,
    "pipeline": "1f1b",
    "node_of": [],
    "collective": "automatic",
    "optimizer": "adamw",
    "rank_to_device": [],
}


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def table(name, values):
    return f"\n[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


def plan_text(cluster_hash, devices, model=TINY, **changes):
    made_for = {
        "model": "",
        "model_hash": fnv1a(model),
        "cluster": "",
        "cluster_hash": cluster_hash,
        "profile_hash": "0" * 16,
    }
    plan = table("plan", PLAN | {"rank_to_device": devices} | changes)
    why = {"candidates": 0, "pruned": 0, "dry_run": 0, "beyond_budget": 0}
    digest = fnv1a(table("made_for", made_for) + plan)
    named = made_for | {"model": "a model", "cluster": "a cluster"}
    return f'version = 1\nhash = "{digest}"\n' + table("made_for", named) + plan + table("why", why)


class Fields(CliTestCase):
    def test_the_object_and_the_file_have_the_same_keys(self):
        """The file leaves out keys at their default; the object has all of them."""
        path = self.tmp / "plan.toml"
        plan = self.json("plan", ROOT / "experiments/paper-ddp.toml", "--no-rescore", "-o", path)["plan"]
        stated = tomllib.loads(path.read_text())["plan"]
        stated["bucket"] = stated.pop("bucket_bytes")
        self.assertEqual(stated.keys() - plan.keys(), set())
        for key, value in plan.items():
            if key in stated and key not in ("stages", "reduction", "coding"):
                self.assertEqual(stated[key], value, key)


class MicroBatch(CliTestCase):
    def test_planner_keeps_to_the_samples_of_a_micro_batch(self):
        job = ROOT / "experiments/what-if/gpt2.toml"
        sets = [word for key in ("name=adaptive", "pp=1", "tp=1") for word in ("--set", f"method.{key}")]
        free = self.json("plan", job, "--no-rescore", *sets)
        stated = self.json("plan", job, "--no-rescore", *sets, "--set", "method.micro_batch=3")
        for one, micro_batches in ((free, 1), (stated, 4)):
            plan = one["plan"]
            self.assertEqual((plan["pp"], plan["dp"], plan["tp"], plan["micro_batches"]), (1, 16, 1, micro_batches))


MIXED = """model.name = "gpt2-124m"
cluster.name = "paper"
method.name = "ddp"
train.global_batch = 32
"""


class Printed(CliTestCase):
    def test_the_command_that_rehearses_a_plan_is_printed(self):
        job = self.job(name="my job's.toml")
        plan = self.tmp / "the plan.toml"
        said = self.rehearse(
            "plan", job, "-o", plan, "--budget", "20", "--no-rescore", "--set", "train.global_batch=8", "--set", "method.tp=1"
        )
        command = shlex.split(said.stdout.rsplit("rehearse it: ", 1)[1])
        self.assertEqual((command[0], command[2]), ("rehearse", str(job)))
        self.assertIn(" samples of ", self.rehearse(*command[1:], "--fidelity", "analytic").stdout)
        for flags in (("--json", "-o", plan), ()):
            self.assertNotIn("rehearse it", self.rehearse("plan", job, "--budget", "20", "--no-rescore", *flags).stdout)

    def test_who_does_what_is_printed_where_devices_differ(self):
        """The table counts the devices and samples of the plan file."""
        job, path = self.job(MIXED, "mixed.toml"), self.tmp / "mixed-plan.toml"
        said = self.rehearse("plan", job, "-o", path, "--budget", "20", "--no-rescore").stdout
        head, *rows = said.split("\n\n")[1].splitlines()
        self.assertEqual(head.split(), ["stage", "segments", "devices", "kind", "samples", "of", "a", "micro-batch"])
        plan = tomllib.loads(path.read_text())["plan"]
        found = [re.search(r"(\d+)  (RTX 4090|V100 PCIe 32GB) +(\d+)$", row) for row in rows]
        self.assertEqual(sum(int(row[1]) for row in found), plan["pp"] * plan["dp"] * plan["tp"])
        self.assertEqual({row[2] for row in found}, {"RTX 4090", "V100 PCIe 32GB"})
        taken = sum(int(row[1]) * int(row[3]) for row in found) / (plan["pp"] * plan["tp"])
        self.assertEqual(taken * plan["micro_batches"], plan["global_batch"])
        for segments in plan["stages"] if plan["pp"] > 1 else ():
            self.assertIn(segments, said)
        self.refused("plan", job, "--set", "faults.model=none", says=["faults.model", "none"])
        alike = self.rehearse("plan", self.job(), "--budget", "20", "--no-rescore", "--set", "method.pp=1").stdout
        self.assertNotIn("segments", alike)

    def test_what_the_placement_costs_by_equation_1(self):
        job = self.job(MIXED + "method.pp = 2\nmethod.tp = 1\nmethod.zero = 0\n", "mixed.toml")
        placed = self.rehearse("plan", job, "--no-rescore").stdout
        self.assertRegex(placed, r"(?m)^placement +eq\. 1: greedy \S+ \S+, local search .*, taken .*, by the paper's co-location ")
        in_order = self.rehearse("plan", job, "--no-rescore", "--set", "adaptive.placement=false").stdout
        self.assertNotIn("placement ", in_order)


class Planned(CliTestCase):
    cluster, model = "paper", "gpt-tiny"

    def planned(self, spec=TINY, more="", **changes):
        """Writes a job that names a plan in a file beside it."""
        bare = f'model.name = "{self.model}"\ncluster.name = "{self.cluster}"\n'
        stated = bare + 'cluster.world_size = 2\nmethod.name = "ddp"\ntrain.global_batch = 8\n'
        tiny = ["--fidelity", "analytic", "--set", "model.name=gpt-tiny"]
        one = self.json("simulate", self.job(stated, "tiny.toml"), *tiny)
        self.plan = self.tmp / "plan.toml"
        self.rehearsal = self.tmp / "plan.rehearsal.json"
        text = plan_text(one["cluster_hash"], one["rank_to_device"], spec, **changes)
        self.plan.write_text(text)
        return self.job(bare + f'method.plan = "{self.plan}"\n' + more)

    def test_simulate_rehearses(self):
        job = self.planned(more="disturb.compute_jitter = 0.1\n")
        one = self.json("simulate", job, "--seeds", "3")
        self.assertEqual((one["method"], one["world_size"]), ("ddp", 2))
        found = json.loads(self.rehearsal.read_text())
        self.assertEqual(
            list(found),
            "schema_version model_hash cluster_hash profile_hash plan_hash fidelity seeds"
            " predicted_step_time_s peak_memory_bytes over_memory_bytes baselines runs".split(),
        )
        self.assertEqual(found["model_hash"], fnv1a(TINY))
        self.assertEqual(found["cluster_hash"], one["cluster_hash"])
        self.assertIn(found["plan_hash"], self.plan.read_text())
        step = one["step_time_s"]
        self.assertEqual(found["predicted_step_time_s"], {"mean": step["mean"], "ci95": step["ci95"]})
        self.assertEqual(found["seeds"], [1, 2, 3])
        self.assertEqual(list(found["peak_memory_bytes"]), one["rank_to_device"])
        self.assertEqual(set(found["peak_memory_bytes"].values()), set(one["peak_memory_bytes"].values()))
        self.assertEqual([b["method"] for b in found["baselines"]], ["ddp", "zero2", "1f1b"])
        # The plan is DDP, so the DDP baseline is the same run.
        self.assertEqual(found["baselines"][0]["step_time_s"], found["predicted_step_time_s"])
        text = self.rehearse("simulate", job, "--seeds", "3").stdout
        self.assertIn("zero2 instead", text)
        self.assertIn(f"rehearsed in           {self.rehearsal}", text)
        self.assertEqual(json.loads(self.rehearsal.read_text()), found)  # equal bytes each time

    def test_compare_and_program(self):
        job = self.planned(dp=1, pp=2, method="1f1b", micro_batches=4, order="dp,pp,tp",
                           stages=["embedding .. L0.attention", "L0.mlp .. head"])  # fmt: skip
        self.assertIn("pp=2", self.rehearse("program", job).stdout)
        rows = self.json("compare", job, "--methods", "plan,ddp,zero2", "--fidelity", "analytic")
        rows = {row["method"]: row for row in rows["results"]}
        self.assertEqual(list(rows), ["plan", "ddp", "zero2"])
        self.assertEqual(rows["plan"]["mesh"], {"dp": 1, "pp": 2, "tp": 1})
        self.assertEqual(rows["ddp"]["rank_to_device"], rows["plan"]["rank_to_device"])
        batch = {round(r["samples_per_s"] * r["step_time_s"]["mean"]) for r in rows.values()}
        self.assertEqual(batch, {8})
        stated = self.job()
        self.refused("compare", stated, "--methods", "plan", says=["names no plan"])

    def test_a_plan_stands_alone(self):
        job = self.planned()
        self.refused("simulate", job, "--set", "method.name=ddp", says=["name one of the two"])
        self.refused("simulate", job, "--set", "method.tp=1", says=["method.tp", "says this"])
        more = ["--set", "model.name=bert-tiny"]
        self.refused("simulate", job, *more, says=["plan.toml:5", "made_for.model", "bert-tiny"])
        more = ["--set", "cluster.name=dgx1"]
        self.refused("simulate", job, *more, says=["plan.toml:7", "made_for.cluster", "dgx1"])
        self.plan.write_text(self.plan.read_text().replace("zero = 0", "zero = 1"))
        self.refused("simulate", job, says=["plan.toml:2", '"hash"', "edited"])

    def test_a_plan_for_a_communication_library_is_used_again(self):
        bare = 'model.name = "gpt2-124m"\ncluster.name = "dgx-a100:1"\nsoftware.name = "megatron-core"\n'
        stated = self.job(bare + 'method = { name = "ddp", precision = "bf16" }\ntrain.global_batch = 64\n', "stated.toml")
        self.rehearse("plan", stated, "-o", self.tmp / "library.toml")
        planned = self.json("simulate", self.job(bare + f'method.plan = "{self.tmp}/library.toml"\n'), "--fidelity", "analytic")
        self.assertEqual(planned["cluster_hash"], self.json("simulate", stated, "--fidelity", "analytic")["cluster_hash"])
        more = ["--set", "software.name=megatron-2022"]  # it states no library
        self.refused("simulate", self.job(bare + f'method.plan = "{self.tmp}/library.toml"\n'), *more, says=["made_for"])

    def refuses(self, job, *says, **options):
        self.refused("train", job, "--nproc", "2", "--rehearsed", says=["--rehearsed", *says],
                     **options)  # fmt: skip

    def test_missing_and_stale(self):
        job = self.planned()
        self.refuses(job, str(self.rehearsal), "missing", f"rehearse simulate {job}")
        self.refuses(self.job(name="unplanned.toml"), "names no plan")
        self.rehearse("simulate", job, "--fidelity", "analytic")
        good = self.rehearsal.read_text()
        for what in ("model", "cluster", "profile", "plan"):
            was = json.loads(good)[f"{what}_hash"]
            self.rehearsal.write_text(good.replace(f'{what}_hash": "{was}', f'{what}_hash": "{1:016}'))
            self.refuses(job, f"stale: the {what} is {was} and was {1:016}")
        self.rehearsal.write_text(good)
        self.planned(bucket_bytes=1000000)  # replaces the plan by another one
        self.refuses(job, "stale: the plan is")
        for text, says in (
            (good.replace('"runs": []', '"runs": [], "more": 1'), "edited"),
            (good.replace('"schema_version": 1', '"schema_version": 2'), "reads 1"),
            (good[: len(good) // 2], "not JSON"),
        ):
            self.rehearsal.write_text(text)
            said = self.refused("train", job, "--nproc", "2", "--rehearsed", says=[says])
            self.assertIn(str(self.rehearsal), said)

    def test_slower_than_what_is_there(self):
        job = self.planned(bucket_bytes=64, recompute=True)
        self.rehearse("simulate", job)
        self.refuses(job, "slower: the plan takes", "takes")
        # Intervals that overlap do not cause a refusal.
        found = json.loads(self.rehearsal.read_text())
        found["predicted_step_time_s"]["ci95"] = found["predicted_step_time_s"]["mean"]
        self.rehearsal.write_text(json.dumps(found, indent=2) + "\n")
        said = self.rehearse("train", job, "--nproc", "2", "--rehearsed", expect=2).stderr
        self.assertNotIn("--rehearsed", said)  # now the missing data stops it

    def test_over_memory(self):
        self.model = "gpt3-175b"
        big = "gpt 96 12288 96 49152 51200 2048 2048 51200 96 0 true"
        job = self.planned(big)
        self.refused("simulate", job, says=["memory:"])
        found = json.loads(self.rehearsal.read_text())
        self.assertIsNone(found["predicted_step_time_s"])
        self.assertEqual(list(found["over_memory_bytes"]), ["node0/gpu0", "node0/gpu1"])
        self.refuses(job, "over memory: node0/gpu0 would need")


class Trained(Planned):
    cluster = "this-machine"
    test_simulate_rehearses = test_compare_and_program = test_a_plan_stands_alone = None
    test_missing_and_stale = test_slower_than_what_is_there = test_over_memory = None

    def test_adds_what_was_measured(self):
        train = f'train = {{ steps = 6, data = "{TOKENS}", out = "{self.tmp}/out" }}\n'
        jitter = "disturb = { compute_jitter = 0.5, link_jitter = 0.5 }\n"
        job = self.planned(more=train + jitter + 'run = { threads = 1, timeout = "10min" }\n')
        self.rehearse("simulate", job, "--seeds", "2")
        self.rehearse("train", job, "--nproc", "2", "--rehearsed")
        [run] = json.loads(self.rehearsal.read_text())["runs"]
        self.assertEqual(run["steps"], 5)  # the first step warms up
        predicted = json.loads(self.rehearsal.read_text())["predicted_step_time_s"]["mean"]
        measured = run["measured_step_time_s"]["mean"]
        self.assertAlmostEqual(run["measured_by_predicted"], measured / predicted)
        self.rehearse("train", job, "--nproc", "2", "--rehearsed", "--resume",
                      "--set", "train.steps=10")  # fmt: skip
        self.assertEqual(len(json.loads(self.rehearsal.read_text())["runs"]), 2)
        self.assertEqual(list(self.tmp.glob("*.part")), [])
