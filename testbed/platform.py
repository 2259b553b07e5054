"""Reads from a platform file (docs/platforms.md) what a testbed can build: nodes with their number of devices, the bandwidth of each node's
cable to the fabric, and leaf switches. Raises Unfit for a platform that a testbed cannot stand for."""

import dataclasses
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# An Ethernet frame takes so many bytes on the wire beside its IP packet: preamble, header, checksum and the gap before the next frame.
AROUND_PACKET = 38
# An IP packet of a TCP connection has so many bytes of headers: IP 20, TCP 20 and its time stamps 12.
IN_PACKET = 52
USUAL_MTU = 1500


class Unfit(Exception):
    """The platform cannot be built, or the file cannot be read."""


@dataclasses.dataclass(frozen=True)
class Cable:
    """A node's cable to the fabric, or a leaf's to the spine."""

    bandwidth: float  # of the wire, in bytes per second and direction
    latency: float  # seconds
    mtu: int = USUAL_MTU


@dataclasses.dataclass(frozen=True)
class Node:
    name: str
    devices: int
    cable: Cable
    leaf: int = 0


@dataclasses.dataclass(frozen=True)
class Platform:
    nodes: list
    uplinks: list  # the cable of each leaf to the spine; empty: one switch for all nodes


def quantity(text, units):
    """The number of a text such as "100Gb/s"; `units`: unit -> what one of it is worth."""
    found = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(\S+)\s*", text)
    if not found or found[2] not in units:
        raise Unfit(f'"{text}": a number and one of {", ".join(units)} are expected')
    return float(found[1]) * units[found[2]]


def bandwidth_of(text):
    prefixes = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    units = {f"{p}B/s": n for p, n in prefixes.items()} | {f"{p}b/s": n / 8 for p, n in prefixes.items()}
    units |= {"KiB/s": 2**10, "MiB/s": 2**20, "GiB/s": 2**30}
    return quantity(text, units)


def seconds_of(text):
    return quantity(text, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600})


def cable_of(template, number):
    """The one cable of a node template to the fabric."""
    found = [link for link in template.get("links", []) if link["to"].split("/")[0] == "fabric"]
    if len(found) != 1 or (found[0]["from"].endswith("*") and len(template["devices"]) > 1) or "/" in found[0]["to"]:
        raise Unfit(f"nodes[{number}]: a node of a testbed has one cable to the fabric")
    link = found[0]
    mtu = link.get("tcp_mtu", 0)
    bandwidth, latency = bandwidth_of(link["bandwidth"]), seconds_of(link["latency"])
    if not mtu:  # the platform states the rate of the payload
        mtu = USUAL_MTU
        bandwidth *= (mtu + AROUND_PACKET) / (mtu - IN_PACKET)
    for inner in template["links"]:
        if inner is not link and bandwidth_of(inner["bandwidth"]) < bandwidth:
            raise Unfit(
                f"nodes[{number}]: the link from {inner['from']} is slower than the cable to the fabric; a testbed shapes that alone"
            )
    return Cable(bandwidth, latency, mtu)


def load(name):
    """The platform of a file ("rack.toml", "rack.toml:4") or of a name in platforms/ ("dgx-a100:2")."""
    plain, _, scale = name.partition(":")
    path = pathlib.Path(plain) if plain.endswith(".toml") else ROOT / f"platforms/{plain}.toml"
    try:
        file = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Unfit(f"{path}: {error}") from error
    if file.get("scale", "fixed") == "ranks":
        raise Unfit(f"{path}: the ranks of this platform share one node; there is no network between them")
    fabric = file.get("fabric", {})
    each = fabric.get("nodes_per_leaf", 0)
    if fabric.get("nodes_per_group", 0):
        raise Unfit(f"{path}: fabric.nodes_per_group: a testbed has no cables between groups of nodes")
    try:
        nodes = []
        for number, template in enumerate(file["nodes"]):
            cable = cable_of(template, number)
            for _ in range(int(scale or 1) if file.get("scale") == "nodes" else template.get("count", 1)):
                at = len(nodes)
                nodes.append(Node(f"node{at}", len(template["devices"]), cable, at // each if each else 0))
        leaves = [[node for node in nodes if node.leaf == leaf] for leaf in range(nodes[-1].leaf + 1)]
        uplinks = [
            Cable(
                sum(node.cable.bandwidth for node in leaf) / fabric.get("oversubscription", 1),
                seconds_of(fabric.get("latency", "0s")),
                max(node.cable.mtu for node in leaf),
            )
            for leaf in leaves
        ]
    except (KeyError, ValueError, IndexError) as error:
        raise Unfit(f"{path}: {error!r}; rehearse simulate says more about this file") from error
    if len(nodes) > 200:
        raise Unfit(f"{path}: {len(nodes)} nodes; a testbed has at most 200")
    return Platform(nodes, uplinks if len(leaves) > 1 else [])
