"""`rehearse collective`: its table in the columns of nccl-tests, its JSON, every way side by side, pictures, and refusals."""

import json

from cli_test_case import CliTestCase

ON = ("collective", "all_reduce", "--cluster", "dgx-a100")

# Two pairs of cards on each of two sockets, as `nvidia-smi topo -m` shows them: PIX, PHB, SYS.
SOCKETS = """summary = "eight cards on two sockets"
scale = "nodes"
[[nodes]]
devices = [{devices}]
parts = ["switch0", "switch1", "switch2", "switch3", "cpu0", "cpu1"]
links = [
{links}
  {{ from = "cpu0", to = "cpu1", bandwidth = "9GB/s", latency = "1us" }},
]
"""


def two_sockets():
    cables = [(f"gpu{i}", f"switch{i // 2}") for i in range(8)] + [(f"switch{i}", f"cpu{i // 2}") for i in range(4)]
    links = "\n".join(f'  {{ from = "{a}", to = "{b}", bandwidth = "12GB/s", latency = "0.5us" }},' for a, b in cables)
    return SOCKETS.format(devices=", ".join(['"V100 PCIe 32GB"'] * 8), links=links)


class Collective(CliTestCase):
    def sizes(self, *arguments):
        return self.json(*arguments)["sizes"]

    def test_json(self):
        whole = self.json(*ON, "--bytes", "1MiB:4MiB")
        keys = ["schema_version", "version", "command", "collective", "cluster", "ranks", "devices", "dtype"]
        keys += ["software", "library", "sizes"]
        self.assertEqual(list(whole), keys)
        self.assertEqual((whole["ranks"], whole["software"], whole["library"]), (8, "pytorch-2", "nccl-2.20"))
        self.assertEqual([s["bytes"] for s in whole["sizes"]], [1 << 20, 2 << 20, 4 << 20])
        for size in whole["sizes"]:
            self.assertAlmostEqual(size["algorithm_bandwidth"], size["bytes"] / size["seconds"])
            self.assertAlmostEqual(size["bus_bandwidth"] / size["algorithm_bandwidth"], 2 * 7 / 8)
            chosen = {k: size[k] for k in ("algorithm", "protocol", "seconds")}
            self.assertIn(chosen, size["ways"])
        self.assertEqual(whole, self.json(*ON, "--bytes", "1MiB:4MiB"))

    def test_table(self):
        out = self.rehearse(*ON, "--bytes", "1KiB:1GiB", "--factor", "1024").stdout
        self.assertIn("all_reduce of 8 ranks on dgx-a100, software pytorch-2, library nccl-2.20", out)
        lines = [line.split() for line in out.splitlines()[3:]]
        self.assertEqual([line[0] for line in lines], ["1024", str(1 << 20), str(1 << 30)])
        self.assertEqual(lines[2][1:3], [str(1 << 28), "f32"])
        # A large tensor takes Simple and nearly all of the 240 GB/s; a small one LL.
        self.assertEqual((lines[0][7], lines[2][7]), ("LL", "Simple"))
        self.assertGreater(float(lines[2][5]), 200)

    def test_devices_beyond_the_most_ranks(self):
        """A cluster of more devices than a collective has ranks: the first ones take part, and the answer says so."""
        large = ("collective", "all_reduce", "--cluster", "dgx-a100:513", "--bytes", "1MiB")
        note = "the first 4096 of 4104 devices: a collective has at most 4096 ranks here\n"
        self.assertIn(note, self.rehearse(*large).stdout)
        self.assertNotIn("the first", self.rehearse(*large, "--ranks", "8").stdout)
        whole = self.json(*large)
        self.assertEqual((whole["ranks"], whole["devices"]), (4096, 4104))

    def test_sizes_as_nccl_tests_takes_them(self):
        """A number without a unit is bytes, and -b is --bytes."""
        plain = self.sizes(*ON, "-b", "8:64")
        self.assertEqual([size["bytes"] for size in plain], [8, 16, 32, 64])
        self.assertEqual(self.sizes(*ON, "--bytes", "8B:64B"), plain)
        self.assertEqual([size["bytes"] for size in self.sizes(*ON, "-b", "8")], [8])
        self.assertEqual(self.sizes(*ON, "--bytes", "8:8GiB")[-1]["bytes"], 8 << 30)
        for wrong in ("0", "8:", "8x", "-8"):
            self.refused(*ON, f"--bytes={wrong}", says=["is not a size from 1 B"])

    def test_a_library_without_protocols_runs_in_rounds(self):
        (size,) = self.sizes(*ON, "--bytes", "1MiB", "--software", "rehearse")
        self.assertEqual(size["protocol"], "")
        self.assertEqual({way["algorithm"] for way in size["ways"]}, {"ring", "halving_doubling"})
        self.assertEqual(size["seconds"], min(way["seconds"] for way in size["ways"]))

    def test_all_to_all_sends_equal_parts_to_all_at_the_same_time(self):
        on = ("collective", "all_to_all", "--cluster", "dgx-a100")
        (size,) = self.sizes(*on, "--ranks", "3", "--bytes", "1MiB")
        self.assertEqual((size["elements"], size["bytes"]), (262143, 1048572))  # of 262144, the most that 3 divides
        self.assertEqual((size["algorithm"], size["protocol"]), ("direct", "LL"))
        self.assertAlmostEqual(size["bus_bandwidth"] / size["algorithm_bandwidth"], 2 / 3)
        (half,) = self.sizes(*on, "--ranks", "8", "--bytes", "64MiB")
        (whole,) = self.sizes(*on, "--ranks", "8", "--bytes", "128MiB")
        # Each GPU sends 7/8 of its tensor over its 240 GB/s; latency is the same for both sizes.
        bytes_take = 7 / 8 * (64 << 20) / 240e9
        self.assertEqual(half["protocol"], "Simple")
        self.assertAlmostEqual(whole["seconds"] - half["seconds"], bytes_take / 0.88, delta=1e-9)
        self.refused(*on, "--bytes", "1MiB", "--algorithm", "ring", says=['"ring" does not serve all_to_all of these ranks; direct does'])
        self.refused(*on, "--bytes", "1MiB", "--protocol", "LL128", says=["none of this name for all_to_all", "LL, Simple"])
        # In rounds, each waits for the one before.
        in_rounds = (*on, "--ranks", "8", "--software", "rehearse")
        (half,), (whole,) = (self.sizes(*in_rounds, "--bytes", size) for size in ("64MiB", "128MiB"))
        self.assertEqual(half["protocol"], "")
        self.assertAlmostEqual(whole["seconds"] - half["seconds"], bytes_take, delta=1e-9)
        self.refused(*in_rounds, "--bytes", "1MiB", "--protocol", "LL", says=["has no protocols for all_to_all"])

    def test_a_gather_and_a_scatter_are_bound_by_the_links_of_their_root(self):
        for move in ("gather", "scatter"):
            on = ("collective", move, "--cluster", "dgx-a100")
            (size,) = self.sizes(*on, "--ranks", "3", "--bytes", "1MiB")
            self.assertEqual((size["elements"], size["algorithm"]), (262143, "direct"))
            self.assertAlmostEqual(size["bus_bandwidth"] / size["algorithm_bandwidth"], 2 / 3)
            (half,) = self.sizes(*on, "--ranks", "8", "--bytes", "64MiB")
            (whole,) = self.sizes(*on, "--ranks", "8", "--bytes", "128MiB")
            # 7/8 of the tensor pass the root's 240 GB/s; latency is the same for both sizes.
            self.assertAlmostEqual(whole["seconds"] - half["seconds"], 7 / 8 * (64 << 20) / 240e9, delta=1e-9)
            self.refused(*on, "--bytes", "1MiB", "--algorithm", "ring", says=[f'"ring" does not serve {move}; direct does'])

    def test_the_order_in_which_ranks_are_named_makes_no_difference(self):
        path = self.tmp / "sockets.toml"
        path.write_text(two_sockets())
        seconds = {
            order: self.sizes("collective", "all_reduce", "--cluster", str(path), "--bytes", "256MiB", "--ranks", order)[0]["seconds"]
            for order in ("0-7", "0,2,4,6,1,3,5,7", "7,0,6,1,5,2,4,3")
        }
        # The link between the sockets carries the tensor once in each direction.
        self.assertAlmostEqual(seconds["0-7"], 2 * 7 / 8 * (256 << 20) / 9e9, delta=0.1 * seconds["0-7"])
        for order, one in seconds.items():
            self.assertAlmostEqual(one, seconds["0-7"], places=9, msg=order)

    def test_ranks_algorithm_protocol_and_keys(self):
        one = self.json(*ON, "--bytes", "64MiB", "--ranks", "0-1,4")
        self.assertEqual(one["ranks"], 3)
        self.assertEqual(self.json(*ON, "--ranks", "4", "--bytes", "1MiB")["ranks"], 4)
        (ll,) = self.sizes(*ON, "--bytes", "64MiB", "--protocol", "LL")
        (simple,) = self.sizes(*ON, "--bytes", "64MiB")
        self.assertEqual((ll["protocol"], simple["protocol"]), ("LL", "Simple"))
        self.assertGreater(ll["seconds"], 2 * simple["seconds"])
        old = self.json(*ON, "--bytes", "1MiB", "--set", "software.communication.library=nccl-2.10")
        self.assertEqual(old["library"], "nccl-2.10")
        (nvls,) = self.sizes("collective", "--cluster", "dgx-h100", "--bytes", "1GiB")
        self.assertEqual(nvls["algorithm"], "nvls")
        (ring,) = self.sizes("collective", "--cluster", "dgx-h100", "--bytes", "1GiB", "--algorithm", "ring")
        self.assertGreater(ring["seconds"], nvls["seconds"])

    def test_ways(self):
        out = self.rehearse("collective", "all_reduce", "--cluster", "dgx-a100:2", "--bytes", "1MiB", "--ways").stdout
        header = out.splitlines()[2]
        for way in ("ring LL", "ring LL128", "ring Simple", "double_tree Simple", "chosen"):
            self.assertIn(way, header)

    def test_output(self):
        path = self.tmp / "curve.json"
        self.rehearse(*ON, "--bytes", "1MiB:2MiB", "-o", path)
        written, printed = json.loads(path.read_text()), self.json(*ON, "--bytes", "1MiB:2MiB")
        self.assertEqual(written["sizes"], printed["sizes"])
        picture = self.tmp / "curve.svg"
        self.rehearse(*ON, "--bytes", "1KiB:64MiB", "-o", picture)
        self.assertIn("<svg", picture.read_text())
        self.assertGreater(picture.stat().st_size, 5000)

    def test_refusals(self):
        for arguments, words in (
            (("--bytes", "0"), ["--bytes 0", "1KiB:1GiB"]),
            (("--bytes", "2MiB:1MiB"), ["the first size is above the last"]),
            (("--bytes", "1B:1TB", "--factor", "1.001"), ["--factor", "more than 1000 sizes"]),
            (("--ranks", "9"), ["--ranks", "the cluster has 8 devices"]),
            (("--ranks", "0,0"), ["device 0 is named twice"]),
            (("--ranks", "0-8"), ["there is no device 8; the last is 7"]),
            (("--ranks", "1"), ['--ranks "1": ', "2 to 4096 ranks"]),
            (("--protocol", "LL12"), ["protocol", "LL, LL128, Simple"]),
            (("--algorithm", "nvls", "--software", "megatron-2021"), ["nvls is not in the library", "nccl-2.10"]),
            (("--algorithm", "double_tree"), ["double_tree", "ring"]),
            (("--software", "rehearse", "--protocol", "LL"), ["has no protocols"]),
            (("--set", "method.name=ddp"), ["only keys of [software] count"]),
        ):
            self.refused(*ON, *arguments, says=words)
        self.refused("collective", "all_reduce", "--cluster", "dgx-a10", says=["--cluster dgx-a10: ", "dgx-a100"])
