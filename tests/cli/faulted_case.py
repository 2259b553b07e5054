"""Platforms, traces and jobs for tests of faults within simulated steps."""

import json

from cli_test_case import CliTestCase

LINKS = ("node{}/nic0>fabric", "fabric>node{}/nic0")
ACK_TIMEOUT = 4.096e-6 * 2**20
LATENCY = 100e-6  # of the network card's link
JOB = """model.name = "gpt-tiny"
cluster.name = "{cluster}"
method.name = "ddp"
method.bucket = "10GB"
method.collective = "ring"
train.global_batch = 8
"""


class Faulted(CliTestCase):
    def platform(self, nodes=2, mtu=0, slow=1.0, gpus=1, gigabits=10, name="cluster.toml"):
        """Nodes with a network card each; the bandwidth of node 0's is divided by `slow`."""

        def node(count, factor):
            wire = f", tcp_mtu = {mtu}" if mtu else ""
            return f"""[[nodes]]
count = {count}
devices = [{", ".join(['"RTX 4090"'] * gpus)}]
disk = {{ size = "2TB", read = "7GB/s", write = "5GB/s" }}
host_memory = "256GB"
parts = ["nic0"]
links = [
  {{ from = "gpu*", to = "nic0", bandwidth = "24GB/s", latency = "1us" }},
  {{ from = "nic0", to = "fabric", bandwidth = "{gigabits / factor:.17g}Gb/s", latency = "100us"{wire} }},
]
"""

        path = self.tmp / name
        path.write_text(
            'summary = "test"\n'
            + node(1, slow)
            + (node(nodes - 1, 1) if nodes > 1 else "")
            + '[shared_disk]\nsize = "1TB"\nread = "1GB/s"\nwrite = "1GB/s"\n'
        )
        return path

    def trace(self, *events, name="trace.toml"):
        lines = ["version = 1"]
        for event in events:
            lines.append("[[event]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in event.items()]
        path = self.tmp / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def simulate(self, *arguments, cluster=None, job=JOB):
        cluster = cluster or self.platform()
        return self.json("simulate", self.job(job.format(cluster=cluster)), "--quiet", *arguments)

    def faulted(self, *events, cluster=None, more=(), job=JOB):
        return self.simulate("--faults", self.trace(*events), *more, cluster=cluster, job=job)["faults"]

    def assert_close(self, value, expected, relative=1e-6, what=None):
        self.assertAlmostEqual(value, expected, delta=relative * abs(expected), msg=what)
