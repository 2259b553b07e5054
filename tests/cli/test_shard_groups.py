"""ZeRO in groups of ranks through the commands: bytes, step time and memory in simulation, real runs that equal plain ZeRO,
checkpoints that go on with other groups, refusals."""

from cli_test_train_data import TrainingCase
from recovery_case import sets

CLUSTER = """model.name = "gpt2-124m"
cluster.name = "experiments/what-if/rack.toml:4"
method = { name = "zero3", precision = "bf16" }
train.global_batch = 64
train.seq_len = 128
"""
PLANNED = """model.name = "gpt2-1.5b"
cluster.name = "experiments/what-if/rack.toml:4"
method = { name = "zero3", precision = "bf16", pp = 1, tp = 1, zero = 3 }
train = { global_batch = 64, seq_len = 512 }
"""
PARAMETERS, N, S = 124475904, 16, 4  # with the padded vocabulary; ranks; ranks of a node
P = 2 * PARAMETERS  # bytes of the weights


class ShardGroups(TrainingCase):
    def simulated(self, **keys):
        job = self.tmp / "cluster.toml"
        job.write_text(CLUSTER)
        return self.json("simulate", job, *sets({f"method.{key}": value for key, value in keys.items()}))

    def test_groups_trade_memory_for_bytes_between_nodes(self):
        plain, hybrid = self.simulated(), self.simulated(name="hsdp")
        resharding = self.simulated(reshard_group=S)
        self.assertEqual(hybrid["mesh"], {"pp": 1, "replicate": N // S, "shard": S, "tp": 1})
        sent = [one["bytes_sent_per_rank"]["mean"] for one in (plain, hybrid, resharding)]
        expected = [3 * (N - 1) / N * P, 3 * (S - 1) / S * P + 2 * (N - S) / N * P / S, (2 * (N - 1) / N + (S - 1) / S) * P]
        for found, formula in zip(sent, expected, strict=True):
            self.assertAlmostEqual(found / formula, 1, delta=2e-3)
        times = [one["step_time_s"]["mean"] for one in (plain, hybrid, resharding)]
        self.assertLess(times[1], times[0])
        self.assertLess(times[2], times[0])
        memory = [max(one["peak_memory_bytes"].values()) for one in (plain, hybrid, resharding)]
        # A parameter takes 16 bytes: weight, gradient, fp32 copy, two moments. The kept copy is of weights alone.
        self.assertAlmostEqual((memory[1] - memory[0]) / (16 * (1 / S - 1 / N) * PARAMETERS), 1, delta=0.01)
        self.assertAlmostEqual((memory[2] - memory[0]) / (P / S), 1, delta=0.2)
        self.assertEqual(self.simulated(name="hsdp", shard_group=N)["bytes_sent_per_rank"], plain["bytes_sent_per_rank"])

    def test_comparisons_take_groups(self):
        job = self.tmp / "cluster.toml"
        job.write_text(CLUSTER)
        found = self.json("compare", job, "--methods", "zero3,zero3@shard_group=8,hsdp")["results"]
        times = {one["method"]: one["step_time_s"]["mean"] for one in found}
        self.assertEqual(len(times), 3, times)

    def test_the_planner_keeps_gathers_inside_nodes(self):
        job = self.tmp / "plan.toml"
        job.write_text(PLANNED)
        for keys, groups in (({}, S), ({"method.shard_group": 8}, 8)):
            self.json("plan", job, *sets(keys), "-o", self.tmp / "plan.out.toml")
            self.assertIn(f"shard_group = {groups}\n", (self.tmp / "plan.out.toml").read_text())
        text = self.rehearse("plan", job, "--explain").stdout
        self.assertIn(f"ZeRO-3, weights kept gathered, groups of {S}", text)
        self.assertRegex(text, rf"ZeRO groups: groups of {S}.*\n  one +[\d.]+ s +[\d.]+% slower")
        self.assertRegex(text, rf"\n  weights kept in groups of {S} +[\d.]+ s")

    def test_real_runs_equal_plain_zero(self):
        def run(out, steps=8, *more, **keys):
            keys = {f"method.{key}": value for key, value in keys.items()} | {"train.out": self.tmp / out, "train.schedule": "constant"}
            return self.json("train", self.job(steps=steps), "--nproc", 4, *sets({"method.dp": 4} | keys), *more)

        plain = run("plain", name="zero3")
        kept = run("kept", name="zero3", reshard_group=2)
        self.assertAlmostEqual(kept["last_loss"], plain["last_loss"], delta=1e-5)
        grouped = run("grouped", name="hsdp", shard_group=2)
        self.assertAlmostEqual(grouped["last_loss"], plain["last_loss"], delta=1e-4)
        self.assertLess(plain["last_loss"], plain["first_loss"] - 0.2)
        # Evaluation gathers weights too unless they are whole, so bytes are compared under ZeRO-2.
        whole = {"name": "zero2", "shard_group": 2}
        keys = {f"method.{key}": value for key, value in whole.items()}
        simulated = self.json("simulate", self.job(), *sets(keys | {"method.dp": 4, "cluster.world_size": 4}))
        self.assertEqual(run("whole", **whole)["bytes_sent_by_rank_0"], 8 * simulated["bytes_sent_per_rank"]["mean"])
        # A checkpoint of groups goes on without them.
        run("cut", 4, name="hsdp", shard_group=2)
        on = run("cut", 8, "--resume", name="zero1", shard_group=4)
        self.assertEqual((on["first_step"], on["end_step"]), (4, 8))
        self.assertAlmostEqual(on["last_loss"], plain["last_loss"], delta=1e-4)

    def test_more_ahead_saves_time_and_takes_memory(self):
        def cost(**keys):
            found = self.simulated(**keys)
            return found["step_time_s"]["mean"], max(found["peak_memory_bytes"].values())

        plain, far, none = cost(), cost(prefetch=3, pending_buckets=4), cost(prefetch=0, pending_buckets=1)
        self.assertEqual(cost(prefetch=1, pending_buckets=2), plain)
        self.assertLess(far[0], plain[0])
        self.assertGreater(far[1], plain[1])
        self.assertGreater(none[0], plain[0])
        job = self.tmp / "cluster.toml"
        path = self.tmp / "ahead.toml"
        self.rehearse("plan", job, *sets({"method.prefetch": 3, "method.pending_buckets": 4}), "-o", path)
        self.assertIn("prefetch = 3\npending_buckets = 4\n", path.read_text())
        job.write_text(CLUSTER.replace('{ name = "zero3", precision = "bf16" }', f'{{ plan = "{path}" }}'))
        self.assertIn("gathers 3 segments ahead, 4 pending buckets", self.rehearse("plan", job, "--explain").stdout)

    def test_what_runs_ahead_changes_no_bit(self):
        def losses(name, **keys):
            keys = {f"method.{key}": value for key, value in keys.items()} | {"train.out": self.tmp / name / "out"}
            self.rehearse("train", self.job(), "--nproc", 2, *sets({"method.name": "zero3", "method.dp": 2} | keys))
            return self.losses(self.tmp / name)

        plain = losses("plain")
        self.assertGreater(len(plain), 3)
        for prefetch, pending in ((0, 1), (5, 7)):
            self.assertEqual(losses(f"ahead-{prefetch}", prefetch=prefetch, pending_buckets=pending), plain)

    def test_refusals(self):
        for keys, words in (
            ({"shard_group": 5}, ["method.shard_group", "divide the 16", "nearest: 4"]),
            ({"shard_group": 1}, ["method.shard_group", "at least 2"]),
            ({"name": "ddp", "shard_group": 4}, ["method.shard_group", "needs ZeRO 1, 2 or 3"]),
            ({"name": "zero2", "reshard_group": 4}, ["method.reshard_group", "needs ZeRO 3"]),
            ({"shard_group": 4, "reshard_group": 4}, ["method.reshard_group", "shard_group"]),
            ({"keep_gathered": "true", "reshard_group": 4}, ["method.reshard_group", "keep_gathered"]),
            ({"name": "topk-sync", "zero": 1, "shard_group": 4}, ["method.shard_group", "packets"]),
            ({"name": "hsdp", "zero": 1}, ["method.zero", "level 3"]),
            ({"name": "zero2", "prefetch": 2}, ["method.prefetch", "needs ZeRO 3"]),
            ({"name": "zero1", "pending_buckets": 3}, ["method.pending_buckets", "needs ZeRO 2 or 3 without reduce_once"]),
            ({"reduce_once": "true", "pending_buckets": 3}, ["method.pending_buckets", "without reduce_once"]),
            ({"pending_buckets": 0}, ["method.pending_buckets", "1"]),
        ):
            with self.subTest(**keys):
                job = self.tmp / "cluster.toml"
                job.write_text(CLUSTER)
                self.refused("simulate", job, *sets({f"method.{key}": value for key, value in keys.items()}), says=words)
