"""A network on this machine: nodes are network namespaces with a host name, joined by bridges. A veth pair is a node's cable, and tc shapes
the traffic at both of its ends.

    node0: eth0 ===cable=== port0 of the bridge "leaf0" ... port1 ===cable=== eth0: node1

Use it inside private.inside(). Raises private.Missing if the machine lacks something."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

from testbed import platform, private

FRAME_HEADER = 14  # the bytes of a frame beside its packet that tc counts
BURST = 1e-3  # seconds at full rate that may pass at once after a pause. With less, late timers of a busy machine waste bandwidth
QUEUE = 3e-3  # seconds at full rate that a switch port holds before it drops, about a port's part of the buffer of a switch chip

# How long TCP waits at least before it sends a packet again, as hosts of a cluster are set. Linux's 200 ms are for the Internet.
RETRY = "5ms"


class Bed:
    """The network of a platform.Platform. A context manager: at its end it kills what it started on the nodes, and removes
    the network."""

    def __init__(self, plan):
        self.nodes = {node.name: node for node in plan.nodes}
        self.address = {name: f"10.77.{i // 250}.{i % 250 + 1}" for i, name in enumerate(self.nodes)}
        self.lost, self.parts = {}, {}
        self._holders, self._started, self._undo = {}, [], []
        self._build(plan)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self._started, *self._holders.values()]:
            process.kill()
        for process in [*self._started, *self._holders.values()]:
            process.wait()
        for undo in reversed(self._undo):
            subprocess.run(undo, capture_output=True)

    def _build(self, plan):
        for leaf in range(max(1, len(plan.uplinks))):
            self._bridge(f"leaf{leaf}")
        if plan.uplinks:
            self._bridge("spine")
        for leaf, cable in enumerate(plan.uplinks):
            self._link(f"up{leaf}", "type", "veth", "peer", "name", f"down{leaf}")
            for port, bridge in ((f"up{leaf}", f"leaf{leaf}"), (f"down{leaf}", "spine")):
                private.run(["ip", "link", "set", port, "mtu", cable.mtu, "master", bridge, "up"])
                shape(port, cable)
        for number, node in enumerate(plan.nodes):
            self._add(number, node)
        with tempfile.NamedTemporaryFile("w", prefix="testbed-hosts-") as hosts:
            names = {"localhost": "127.0.0.1"} | self.address
            hosts.write("".join(f"{address} {name}\n" for name, address in names.items()))
            hosts.flush()
            os.chmod(hosts.name, 0o644)
            private.run(["mount", "--bind", hosts.name, "/etc/hosts"])
            self._undo.append(["umount", "/etc/hosts"])

    def _link(self, name, *what):
        private.run(["ip", "link", "add", name, *what])
        self._undo.append(["ip", "link", "delete", name])

    def _bridge(self, name):
        self._link(name, "type", "bridge")
        private.run(["ip", "link", "set", name, "up"])

    def _add(self, number, node):
        # The process that holds the node's namespaces. It writes a line when it has them.
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", 'hostname "$0" && ip link set lo up && echo && exec sleep infinity', node.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._holders[node.name] = holder
        with holder.stdout, holder.stderr:
            if not holder.stdout.readline():
                raise private.Missing(f"a network namespace: {holder.stderr.read().strip()}")
        port = f"port{number}"
        mtu = ["mtu", node.cable.mtu]
        self._link(port, *mtu, "type", "veth", "peer", "name", "eth0", *mtu, "netns", holder.pid)
        private.run(["ip", "link", "set", port, "master", f"leaf{node.leaf}", "up"])
        self.run(node.name, "ip", "address", "add", f"{self.address[node.name]}/16", "dev", "eth0")
        self.run(node.name, "ip", "link", "set", "eth0", "up")
        for name, value in (("slow_start_after_idle", "0"), ("congestion_control", self._congestion_control(node.name))):
            self.run(node.name, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/tcp_{name}")
        self.run(node.name, "ip", "route", "change", "10.77.0.0/16", "dev", "eth0", "rto_min", RETRY)
        shape(port, node.cable)
        shape("eth0", node.cable, self.enter(node.name))

    def _congestion_control(self, name):
        """One that fills the link until it loses packets, as most hosts have it, whatever this host uses. One that paces by itself would be
        measured in the place of the network. A namespace may not take one that the host keeps to itself; reno is allowed everywhere."""
        allowed = self.run(name, "cat", "/proc/sys/net/ipv4/tcp_allowed_congestion_control").split()
        return "cubic" if "cubic" in allowed else "reno"

    def enter(self, name):
        """The beginning of a command line that runs the rest of it on a node."""
        return ["nsenter", "--net", "--uts", "--target", str(self._holders[name].pid), "--"]

    def run(self, name, *command, **options):
        """Runs a command of set-up on a node; returns its output."""
        return private.run([*self.enter(name), *command], **options)

    def start(self, name, command, **options):
        """Starts a command on a node in a process group of its own. The process is that of the command itself."""
        process = subprocess.Popen([*self.enter(name), *map(str, command)], process_group=0, **options)
        self._started.append(process)
        return process

    # Faults -----------------------------------------------------------------------------------------------------------------------------

    def down(self, name):
        """Unplugs a node's cable. Connections stay open and silent, as with a real cable."""
        private.run(["ip", "link", "set", f"port{list(self.nodes).index(name)}", "down"])

    def up(self, name):
        private.run(["ip", "link", "set", f"port{list(self.nodes).index(name)}", "up"])

    def lose(self, name, share):
        """Loses this share of the packets that reach a node (0: none). They are dropped where they arrive: a sender that drops its own
        packets would know, and TCP would see a full queue and no loss."""
        self.lost[name] = share
        self._filter(name)

    def part(self, group):
        """Cuts the nodes of the group off from all others; an empty group ends that."""
        inside = {self.address[name] for name in group}
        for name, address in self.address.items():
            mine = inside if address in inside else set(self.address.values()) - inside
            self.parts[name] = mine if group else None
            self._filter(name)

    def _filter(self, name):
        rules = []
        if self.parts.get(name):
            rules.append(f"iifname eth0 ip saddr != {{ {', '.join(sorted(self.parts[name]))} }} drop")
        if self.lost.get(name):
            rules.append(f"iifname eth0 numgen random mod 100000 < {round(self.lost[name] * 100000)} drop")
        text = ["table inet testbed", "delete table inet testbed", "table inet testbed {", "chain arriving {"]
        text += ["type filter hook input priority 0", *rules, "}", "}"]
        self.run(name, "nft", "-f", "-", input="\n".join(text) + "\n")

    def latency(self, here, there, turns=50):
        """Seconds of a packet's way between two nodes: half the median round trip of a small message over TCP."""
        server = "import socket;s=socket.create_server(('',7));print(flush=True);c=s.accept()[0]\nwhile d:=c.recv(9):c.send(d)"
        client = (
            "import socket,statistics,time\nc=socket.create_connection((%r,7));c.setsockopt(6,1,1);t=[]\n"
            "for _ in range(%d):b=time.perf_counter();c.send(b'x');c.recv(9);t.append(time.perf_counter()-b)\nprint(statistics.median(t)/2)"
        ) % (self.address[there], turns)
        with self.start(there, [sys.executable, "-c", server], stdout=subprocess.PIPE) as far:
            far.stdout.readline()
            seconds = float(self.run(here, sys.executable, "-c", client))
        self._started.remove(far)
        return seconds


def shape(port, cable, enter=()):
    """Limits what leaves a port to the cable's bandwidth. tc counts a frame without what surrounds it on the wire, so its rate is less."""
    rate = cable.bandwidth * (cable.mtu + FRAME_HEADER) / (cable.mtu + platform.AROUND_PACKET)
    frame = cable.mtu + FRAME_HEADER
    burst = max(2 * frame, round(rate * BURST))
    # Packets that the kernel joins must fit into a burst, with the headers that each of them will have: tc takes larger ones apart again.
    joined = min(65536, max(cable.mtu, int(burst * (cable.mtu - platform.IN_PACKET) / frame) - frame))
    private.run([*enter, "ip", "link", "set", port, "gso_max_size", joined])
    limit = max(64 * frame, round(rate * QUEUE))
    shaper = ["tbf", "rate", f"{round(8 * rate)}bit", "burst", f"{burst}b", "limit", limit]
    private.run([*enter, "tc", "qdisc", "replace", "dev", port, "root", *shaper])


def stop(processes, grace):
    """Asks the processes to end, and kills those that still run after `grace` seconds."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0, deadline - time.monotonic()))
        process.kill()
