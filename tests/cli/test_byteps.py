"""BytePS through the command: machines whose gradients servers sum, simulated and really trained; the first layer's gradients overtake in
the traces of both; where servers are; refusals."""

import collections
import itertools
import json
import re

from cli_test_case import PATIENCE
from recovery_case import RecoveryCase, sets

# Two machines of two GPUs, each with a CPU that may serve, and a node with a CPU alone. NICs of 10 Gb/s.
PLATFORM = """summary = "GPU machines with a serving CPU each, and a CPU node"
[[nodes]]
count = 2
devices = ["GPU", "GPU", "CPU"]
parts = ["host"]
links = [
  { from = "gpu*", to = "host", bandwidth = "12GB/s", latency = "1us" },
  { from = "host", to = "fabric", bandwidth = "10Gb/s", latency = "5us" },
]
[[nodes]]
devices = ["CPU"]
links = [{ from = "gpu0", to = "fabric", bandwidth = "10Gb/s", latency = "5us" }]
[[device]]
name = "GPU"
memory = "16GB"
f32 = "10TFLOP/s"
memory_bandwidth = "900GB/s"
multiprocessors = 80
source = "test"
[[device]]
name = "CPU"
memory = "64GB"
f32 = "1TFLOP/s"
memory_bandwidth = "MEMORY"
source = "test"
"""


class BytePs(RecoveryCase):
    # Two machines of two ranks and two servers, all on this machine, whose network is slow beside so little work.
    KEYS = {
        "method.name": "byteps",
        "method.dp": 4,
        "method.local_ranks": 2,
        "method.servers": 2,
        "method.bucket": "20kB",
        "train.seq_len": 8,
    }

    def test_an_event_that_strikes_nobody_is_said(self):
        """A server updates no weights, and the run ends before the second event."""
        trace = self.trace({"kind": "rank_dies", "rank": 4, "step": 2, "phase": "update"}, {"kind": "rank_dies", "rank": 1, "step": 90})
        keys = self.KEYS | {"train.out": str(self.tmp / "run"), "train.steps": 3}
        done = self.rehearse("train", self.job(), "--nproc", "6", "--quiet", *sets(keys), "--faults", trace)
        self.assertIn(
            f"warning: {trace}: event 1 (rank_dies) did not strike: its target has no op of the phase update in step 2\n", done.stderr
        )
        self.assertIn(f"warning: {trace}: event 2 (rank_dies) did not strike: the run ended after step 3\n", done.stderr)

    def run_of(self, command, *more, **keys):
        keys = self.KEYS | {"train.out": str(self.tmp / "run")} | keys
        more += ("--overwrite",) if command == "train" else ()
        ranks = ("--nproc", keys["method.dp"] + keys.get("method.servers", 0)) if command == "train" else ()
        return self.json(command, self.job(), *ranks, *sets(keys), *more)

    def platform(self, memory="100GB/s"):
        path = self.tmp / "machines.toml"
        path.write_text(PLATFORM.replace("MEMORY", memory))
        return str(path)

    def on_machines(self, memory="100GB/s", **keys):
        keys = {"method.name": "byteps", "cluster.name": self.platform(memory), "train.global_batch": 8} | keys
        path = self.tmp / "machines-job.toml"
        path.write_text('model.name = "gpt2-124m"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        return self.json("simulate", path, *sets(keys))

    def exchanges(self, command, **keys):
        """By step, of rank 0: the buckets of the partitions that it pushes, in order of time, also by server; when its first forward
        begins; when its last pull ends."""
        path = self.tmp / f"{command}.json"
        self.run_of(command, "--trace", path, **keys)
        events = json.loads(path.read_text())["traceEvents"]
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        out = collections.defaultdict(lambda: {"pushed": [], "push.0": [], "push.1": [], "forward": None, "pulled": 0.0})
        for e in sorted((e for e in events if e["ph"] == "X" and e["pid"] == 0), key=lambda e: e["ts"]):
            lane, step = lanes[e["pid"], e["tid"]], out[e["args"]["step"]]
            if lane.startswith("push."):
                step["pushed"].append(int(re.search(r"source<G\.b(\d+)", json.dumps(e["args"]))[1]))
                step[lane].append(step["pushed"][-1])
            if lane.startswith("pull."):
                step["pulled"] = max(step["pulled"], e["ts"] + e["dur"])
            if lane == "compute" and e["name"].startswith("forward") and step["forward"] is None:
                step["forward"] = e["ts"]
        return [out[step] for step in sorted(out)]

    def test_real_and_simulated_runs_send_the_same_bytes_and_learn_as_ddp(self):
        keys = {"train.seq_len": 8, "train.out": str(self.tmp / "ddp")}
        ddp = self.json("train", self.job(), "--nproc", 2, *sets(keys))
        mixed = {"method.dp": 2, "method.local_ranks": 1, "method.servers": 3, "method.server_placement": "mixed"}
        # Of P bytes of gradients, each of two machines of two ranks sends 2 P inside and P to servers, which send 2 P: 8 P in all.
        for keys, part_of_rank_0 in (({}, 1.5 / 8), ({"method.credit": 2}, 1.5 / 8), (mixed, 1 / 4)):
            with self.subTest(keys):
                done = self.run_of("train", **keys)
                self.assertAlmostEqual(done["last_loss"] / ddp["last_loss"], 1, delta=1e-5)
                sent = self.run_of("simulate", **keys)["bytes_per_step_total"]
                self.assertEqual(done["bytes_sent_by_rank_0"], 12 * sent * part_of_rank_0)

    def test_the_first_layer_overtakes_in_the_traces_of_both_executors(self):
        """Buckets are numbered in the order of backward. With a credit, late ones (near the input) are pushed before earlier ones that
        wait; the next step begins before the last pull of this one has ended."""
        for command in ("simulate", "train"):
            with self.subTest(command):
                by_readiness, by_priority = self.exchanges(command), self.exchanges(command, **{"method.credit": 1})
                for step in by_readiness:
                    self.assertGreater(len(step["pushed"]), 10)
                    for lane in ("push.0", "push.1"):
                        self.assertEqual(step[lane], sorted(step[lane]))
                for step in by_priority:
                    pushed = step["pushed"]
                    self.assertEqual(sorted(pushed), sorted(by_readiness[0]["pushed"]))
                    first_layer = max(pushed) - 1  # the word table; the last bucket has the other weights of the embedding
                    before = pushed[: pushed.index(first_layer)]
                    overtaken = [bucket for bucket in pushed[len(before) :] if bucket < first_layer]
                    self.assertGreater(len(overtaken), len(pushed) // 3)
                for this, after in itertools.pairwise(by_priority if command == "simulate" else ()):  # real ranks may be slow to begin
                    self.assertLess(after["forward"], this["pulled"])

    def test_priorities_shorten_steps_where_the_network_is_slow(self):
        keys = {"method.servers": 1, "cluster.devices": '["GPU", "node2"]', "method.bucket": "4MB"}
        plain = self.on_machines(**keys)["step_time_s"]["mean"]
        by_priority = self.on_machines(**keys, **{"method.credit": 4})["step_time_s"]["mean"]
        self.assertLess(by_priority, 0.99 * plain)

    def test_asynchronous_workers_wait_for_nobody(self):
        slow = {"disturb.stragglers": "[{rank = 0, factor = 8}]", "method.servers": 2, "train.global_batch": 32}
        slow |= {"cluster.devices": '["GPU", "CPU"]', "cluster.world_size": 6}
        waiting = self.on_machines(**slow, **{"method.local_ranks": 1})
        free = self.on_machines(**slow, **{"method.name": "byteps-async"})
        # In the time of a step of the slow one of four workers, the others take eight each.
        self.assertGreater(free["samples_per_s"], 3 * waiting["samples_per_s"])

    def test_asynchronous_workers_really_run_and_go_on(self):
        keys = {"method.name": "byteps-async", "train.save_every": 6, "method.precision": "bf16", "train.global_batch": 12}
        keys |= {"train.lr": 3e-4, "train.schedule": "constant", "train.warmup_steps": 0, "method.local_ranks": "", "method.bucket": ""}

        def resumed(workers, **more):
            more = self.KEYS | keys | {"method.dp": workers} | more
            return self.json("train", self.job(), "--nproc", workers + 2, *sets(more), "--resume")

        alone = {"method.dp": 1, "train.out": str(self.tmp / "alone")}
        done = self.run_of("train", **keys | alone)
        # A message of 4 bytes a parameter to the servers and one back, so rank 0 sends half of all bytes.
        parameters = {one["name"]: one["parameters"] for one in self.json("list", "models")["models"]}["gpt-tiny"]
        self.assertEqual(self.run_of("simulate", **keys | alone)["bytes_per_step_total"], 2 * 4 * parameters)
        self.assertEqual(done["bytes_sent_by_rank_0"], 12 * 4 * parameters)
        # The servers have fp32 weights, which a worker rounds when it goes on.
        cut = {"train.out": str(self.tmp / "cut")}
        self.run_of("train", **keys | alone | cut | {"train.steps": 6})
        self.assertEqual(resumed(1, **cut, **{"train.steps": 12})["last_loss"], done["last_loss"])
        # Three workers, then two: a checkpoint has the servers' weights once and the moments of each worker.
        self.run_of("train", **keys | {"method.dp": 3})
        manifest = json.loads((self.tmp / "run/step-00000012/manifest.json").read_text())
        parts = {f"{part['kind']}/copy{part['copy']}" for shard in manifest["shards"] for part in shard["parts"]}
        self.assertEqual(parts, {"param/copy0", *(f"moment{m}/copy{worker}" for m in (1, 2) for worker in range(3))})
        fewer = resumed(2, **{"train.steps": 14, "train.out": str(self.tmp / "run")})
        self.assertEqual(fewer["end_step"], 14)
        self.assertLess(fewer["last_loss"], done["first_loss"])

    def test_servers_are_where_the_job_says(self):
        own = self.on_machines(**{"method.servers": 1, "cluster.devices": '["GPU", "node2"]'})
        self.assertEqual(own["rank_to_device"][-1], "node2/gpu0")
        self.assertEqual(own["mesh"], {"replicate": 2, "shard": 2, "pp": 1, "tp": 1, "servers": 1} | own["mesh"])
        beside = self.on_machines(**{"method.server_placement": "colocated", "cluster.world_size": 6})
        self.assertEqual(beside["rank_to_device"], ["node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1", "node0/gpu2", "node1/gpu2"])
        mixed = {"method.server_placement": "mixed", "method.servers": 3, "cluster.devices": '["GPU", "CPU"]'}
        both = self.on_machines(**mixed)
        self.assertEqual(both["rank_to_device"][-3:], ["node0/gpu2", "node1/gpu2", "node2/gpu0"])
        # One NIC takes the gradients of both machines, or each takes a part of them.
        for other in (beside, both):
            self.assertGreater(own["step_time_s"]["mean"], other["step_time_s"]["mean"])

    def test_colocated_servers_need_nodes_of_one_size(self):
        unlike = {"method.name": "byteps", "cluster.name": self.platform("100GB/s"), "method.server_placement": "colocated"}
        self.refused("simulate", self.job(), *sets(unlike), says=["method.server_placement", "the nodes have 1 and 3 devices", '"own"'])

    def test_one_machine_has_no_server(self):
        alone = self.json("simulate", self.job(), *sets({"method.name": "byteps", "method.dp": 2}))
        self.assertNotIn("servers", alone["mesh"])
        ddp = self.json("simulate", self.job(), *sets({"method.collective": "ring"}))
        self.assertEqual(alone["bytes_per_step_total"], ddp["bytes_per_step_total"])

    def test_a_server_adds_at_the_rate_of_its_memory(self):
        keys = {"method.servers": 1, "cluster.devices": '["GPU", "node2"]'}
        fast, slow = (self.on_machines(memory, **keys)["step_time_s"]["mean"] for memory in ("100GB/s", "1GB/s"))
        whole = 4 * 124.4e6  # bytes of gradients
        # Two machines push all of them, and each is read with the sum, which is written.
        self.assertGreater(slow, 2 * 3 * whole / 1e9)
        self.assertLess(fast, 0.6 * slow)

    def test_a_run_restarts_when_a_worker_or_a_server_dies(self):
        keys = {"method.name": "byteps", "method.dp": 2, "method.local_ranks": 1, "method.servers": 1, "method.bucket": "100kB"}
        keys |= {"checkpoint.kind": "sharded", "train.save_every": 20, "train.steps": 60, "recovery.restarts": 1}
        self.whole("whole", 3, keys)
        for rank in (1, 2):
            with self.subTest(rank=rank):
                out = f"cut-{rank}"
                trace = self.trace({"kind": "rank_dies", "rank": rank, "step": 31, "phase": "exchange"})
                with self.start(out, 3, keys, "--faults", trace) as child:
                    _, said = child.communicate(timeout=PATIENCE)
                self.assertEqual(child.returncode, 0, said)
                self.assertEqual([(note["policy"], note["died"]) for note in self.recoveries(out)], [("restart", [rank])])
                self.assertTrue(self.state_of(out, 60))
                self.assertEqual(self.state_of(out, 60), self.state_of("whole", 60))

    def test_refusals(self):
        behind = {"method.name": "byteps", "checkpoint.kind": "async", "train.save_every": 5}
        self.refused("simulate", self.job(), *sets(behind), says=["checkpoint.kind", "servers have no state to save"])
        for method, key, value, words in (
            ("ddp", "credit", "2", ["method.credit", "byteps"]),
            ("ps-sync", "local_ranks", "2", ["method.local_ranks", "byteps"]),
            ("byteps", "zero", "1", ["method.zero", "at most 0"]),
            ("byteps", "credit", "2", ["method.credit", "there are none"]),
            ("byteps", "local_ranks", "3", ["method.local_ranks", "must divide the 2 workers", "nearest: 2"]),
            ("byteps", "server_placement", "mixed", ["method.server_placement", "state method.servers"]),
            ("byteps", "server_placement", "beside", ["method.server_placement", "colocated"]),
        ):
            with self.subTest(method=method, key=key):
                self.refused("simulate", self.job(), *sets({"method.name": method, "method.dp": 2, f"method.{key}": value}), says=words)
