"""Switches that add, and TPUs on a torus: `collective`, `simulate`, `compare` and real ranks, and refusals."""

from cli_test_case import CliTestCase
from cli_test_train_data import TrainingCase

SHARP = ("collective", "all_reduce", "--cluster", "dgx-a100-sharp:16", "--bytes", "1GiB")
# Four nodes of one core below two leaves, all of whose switches add.
CORES = """
summary = "four cores on four nodes"
[[nodes]]
count = 4
devices = ["CPU core"]
links = [{ from = "gpu0", to = "fabric", bandwidth = "1GB/s", latency = "10us" }]
[fabric]
nodes_per_leaf = 2
sums = ["leaf", "spine"]
"""


class InNetwork(CliTestCase):
    def ways(self, *arguments):
        (size,) = self.json(*arguments)["sizes"]
        return size, {(way["algorithm"], way["protocol"]): way["seconds"] for way in size["ways"]}

    def test_collective_sends_each_nics_share_once(self):
        size, ways = self.ways(*SHARP)
        self.assertEqual((size["algorithm"], size["protocol"]), ("in_network", "Simple"))
        # Each NIC carries an eighth of the tensor, half as much as on a ring: 5.6 ms at the 24 GB/s of the GPU's PCIe. So NVLink is busy
        # for longer, with 2 * 7/8 of the tensor at 240 GB/s.
        share = 2 * 7 / 8 * (1 << 30) / 240e9
        self.assertAlmostEqual(size["seconds"], share, delta=0.02 * share)
        self.assertGreater(ways["ring", "Simple"], 1.6 * size["seconds"])
        rounds, ways = self.ways(*SHARP, "--software", "rehearse")
        self.assertIn("in_network", {algorithm for algorithm, _ in ways})
        self.assertNotEqual(rounds["algorithm"], "in_network")  # automatic asks no switch of its own accord
        asked, _ = self.ways(*SHARP, "--software", "rehearse", "--algorithm", "in_network")
        self.assertAlmostEqual(asked["seconds"], share, delta=0.02 * share)

    def test_collective_refusals(self):
        on = ("collective", "all_reduce", "--bytes", "1MiB", "--algorithm", "in_network")
        without = (*on, "--cluster", "dgx-a100:2")
        self.refused(*without, says=["in_network", "switch fabric does not add", "fabric.sums", "ring"])
        self.refused(*without, "--software", "rehearse", says=["switch fabric does not add", "hierarchical or ring"])
        self.refused(*without, "--software", "megatron-2021", says=["in_network is not in the library", "nccl-2.10"])
        self.refused(*SHARP[:-2], "--bytes", "1MiB", "--ranks", "8", "--algorithm", "in_network", says=["on one node"])
        scatter = ("collective", "reduce_scatter", *SHARP[2:], "--algorithm", "in_network", "--software", "rehearse")
        self.refused(*scatter, says=['"in_network" does not serve reduce_scatter'])

    def simulated(self, cluster, dp, **method):
        keys = "".join(f"method.{key} = '{value}'\n" for key, value in method.items())
        name = f"model.name = 'gpt2-124m'\ncluster.name = '{cluster}'\nmethod.name = 'ddp'\nmethod.dp = {dp}\n"
        return self.job(f"{name}{keys}train.global_batch = {dp}\n")

    def test_all_fidelities_agree_and_halve_the_bytes(self):
        job = self.simulated("dgx-a100-sharp:4", 32)
        seconds = {}
        for algorithm in ("in_network", "hierarchical"):
            for fidelity in ("analytic", "fluid", "chunk"):
                out = self.json("simulate", job, "--fidelity", fidelity, "--set", f"method.collective={algorithm}")
                seconds[algorithm, fidelity] = out["step_time_s"]["mean"]
                self.assertEqual({c["algorithm"] for c in out["collectives"]}, {algorithm})
        for fidelity in ("fluid", "chunk"):
            self.assertAlmostEqual(seconds["in_network", fidelity] / seconds["in_network", "analytic"], 1, delta=1e-6)
        for fidelity in ("analytic", "fluid", "chunk"):
            self.assertLess(seconds["in_network", fidelity], seconds["hierarchical", fidelity])

    def test_a_job_is_refused_where_a_switch_does_not_add(self):
        job = self.simulated("dgx-a100:2", 16, collective="in_network")
        for command in ("simulate", "program"):
            self.refused(command, job, says=["method.collective", "switch fabric does not add", "hierarchical or ring"])
        library = ("--set", "software.name=megatron-2021")
        self.refused("simulate", job, *library, says=["method.collective", "in_network needs a communication library"])

    def test_inside_a_node_another_algorithm_is_taken(self):
        job = self.simulated("dgx-a100", 8, collective="in_network")
        out = self.json("simulate", job, "--fidelity", "analytic")
        self.assertNotIn("in_network", {c["algorithm"] for c in out["collectives"]})


class Emulated(TrainingCase):
    def test_real_ranks_emulate_the_switches_at_a_root(self):
        platform = self.tmp / "cores.toml"
        platform.write_text(CORES)
        runs = {}
        for algorithm in ("in_network", "ring"):
            keys = {"cluster.name": platform, "method.dp": 4, "method.collective": algorithm, "train.out": self.tmp / algorithm}
            sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
            job = self.job(steps=6)
            simulated = self.json("simulate", job, *sets, "--fidelity", "analytic")
            self.assertIn(algorithm, {c["algorithm"] for c in simulated["collectives"]})
            runs[algorithm] = self.json("train", job, "--nproc", 4, *sets)
        for key in ("first_loss", "last_loss"):
            self.assertAlmostEqual(runs["in_network"][key], runs["ring"][key], delta=1e-4)
        # The root, rank 0, sends the sum to the three others; on a ring it sends 2 * 3/4 of a tensor.
        sent = {algorithm: run["bytes_sent_by_rank_0"] for algorithm, run in runs.items()}
        self.assertAlmostEqual(sent["in_network"] / sent["ring"], 2, delta=0.01)


class Torus(CliTestCase):
    def test_an_all_reduce_uses_all_six_links(self):
        on = ("collective", "all_reduce", "--cluster", "tpu-v4:8x8x8", "--bytes", "1GiB", "--software", "rehearse")
        (size,) = self.json(*on)["sizes"]
        self.assertEqual(size["algorithm"], "ring")
        self.assertAlmostEqual(size["bus_bandwidth"] / 300e9, 1, delta=0.02)
        self.refused("collective", "all_reduce", "--cluster", "tpu-v4:8x8", "--bytes", "1MiB", says=["3 dimensions"])

    def test_simulations_agree_and_f16_is_refused(self):
        job = self.tmp / "job.toml"
        job.write_text(
            "model.name = 'gpt2-124m'\ncluster.name = 'tpu-v4:4x2x2'\nmethod.name = 'zero3'\nmethod.dp = 16\n"
            "train.global_batch = 64\nmethod.precision = 'bf16'\n"
        )
        seconds = {}
        for fidelity in ("analytic", "fluid", "chunk"):
            out = self.json("simulate", job, "--fidelity", fidelity)
            seconds[fidelity] = out["step_time_s"]["mean"]
        self.assertAlmostEqual(seconds["fluid"] / seconds["chunk"], 1, delta=0.03)
        self.refused("simulate", job, "--set", "method.precision=fp16", says=["TPU v4"])
