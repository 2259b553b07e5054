"""Table 2 of Sun 2026 as printed, and what its numbers imply together and for the hardware of the paper's section 4.1. No simulation uses
these numbers. As a script, this file prints the implications."""

import math
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

N = 5  # runs of each method
SAMPLES, TOKENS = 512, 512  # samples per step (16 on each of 32 GPUs), tokens per sample
RANKS, NODES = 32, 12
NIC = 100e9 / 8  # bytes/s
STATED, SHAPE = 1.3e9, 0.11e9  # parameters: the size that the text states; that of 12 layers of 768

TARGET = 2.85  # validation loss, section 4.1: the hours are those until a run is below it
LOSS = {"topk-sync": 2.91, "adaptive": 2.82}  # at the end, sections 4.3 and 4.4
PUBMED = {"topk-sync": 15.8, "adaptive": 14.2}  # perplexity, Table 3

# method: (its name in the paper, samples/s, hours to the target loss, GB per step, robustness), each as mean and "±"
ROWS = {
    "megatron": ("Megatron-LM", (1842, 32), (14.7, 0.3), (4.82, 0.05), (0.81, 0.02)),
    "zero2": ("DeepSpeed ZeRO-2", (1598, 28), (17.1, 0.4), (5.10, 0.06), (0.76, 0.03)),
    "pipedream-2bw": ("PipeDream-2BW", (1420, 41), (19.3, 0.6), (4.95, 0.07), (0.68, 0.04)),
    "topk-sync": ("TopK-Sync", (2010, 35), (16.2, 0.3), (2.15, 0.03), (0.79, 0.02)),
    "adaptive": ("Ours", (2268, 29), (12.8, 0.2), (2.03, 0.02), (0.92, 0.01)),
}


def peak(cluster, precision="f16"):
    """FLOP/s of all devices of a platform, from the makers' data sheets."""
    devices = {d["name"]: d for d in tomllib.loads((ROOT / "platforms/devices.toml").read_text())["device"]}
    nodes = tomllib.loads((ROOT / f"platforms/{cluster}.toml").read_text())["nodes"]
    kinds = [kind for node in nodes for kind in node.get("count", 1) * node["devices"]]
    return sum(float(re.fullmatch(r"([\d.]+)TFLOP/s", devices[kind][precision])[1]) * 1e12 for kind in kinds)


def training_flops(parameters, tokens):
    """6 FLOPs per parameter and token (Kaplan et al. 2020). A lower bound, because it leaves out the products of attention."""
    return 6 * parameters * tokens


def ring(n, size):
    """Bytes that each of n ranks sends in a ring all-reduce of `size` bytes."""
    return 2 * (n - 1) / n * size


def gathered(n, parameters, density, value_bytes):
    """Bytes that each of n ranks sends in an all-gather of (value, 32-bit index) pairs."""
    return (n - 1) * density * parameters * (value_bytes + 4)


def impossibilities():
    """[(contradiction, derivation)]; every number is computed here."""
    rates = {name: row[1][0] for name, row in ROWS.items()}
    best, least = max(rates.values()), min(rates.values())
    mixed, alike = peak("paper"), peak("paper-homogeneous")
    need = {p: {r: training_flops(p, r * TOKENS) for r in (best, least)} for p in (STATED, SHAPE)}
    dense, nodes = ring(RANKS, 2 * STATED), ring(NODES, 2 * STATED)
    zero2_step = SAMPLES / rates["zero2"]
    packets = {p: gathered(RANKS, p, 0.1, 2) for p in (STATED, SHAPE)}
    read = {name: row[2][0] * 3600 * row[1][0] for name, row in ROWS.items()}
    return [
        (
            "Its throughput at 1.3 B parameters is beyond the GPUs' peak.",
            f"{best:,} samples/s x {TOKENS} tokens x 6 x 1.3e9 = {need[STATED][best] / 1e12:,.0f} TFLOP/s; all 32 GPUs together"
            f" have a dense fp16 peak of {mixed / 1e12:,.0f} TFLOP/s (24 RTX 4090, 8 V100; {alike / 1e12:,.0f} with 32 RTX 4090):"
            f" {need[STATED][best] / mixed:.2f} times the peak. Even its slowest method ({least:,} samples/s) needs"
            f" {need[STATED][least] / mixed:.2f} times.",
        ),
        (
            "At 110 M parameters, which is what 12 layers of 768 have, the throughput fits.",
            f"{best:,} x {TOKENS} x 6 x 0.11e9 = {need[SHAPE][best] / 1e12:,.0f} TFLOP/s, {need[SHAPE][best] / mixed:.0%} of the peak.",
        ),
        (
            "Its GB a step of the dense methods (4.82, 5.10, 4.95) are those of a dense fp16 ring at 1.3 B parameters.",
            f"2 (n - 1) / n x 2 bytes x P with n = {RANKS}: {dense / 1e9:.2f} GB at 1.3 B, {ring(RANKS, 2 * SHAPE) / 1e9:.2f} GB at"
            " 110 M. So Table 2 counts samples of the small model and bytes of the large one. Megatron-LM and PipeDream-2BW split"
            " the layers among ranks, so each of theirs would sum only a part of the gradient.",
        ),
        (
            "Its bytes do not fit through its network in its step.",
            f"Each of {NODES} nodes has to pass 2 ({NODES} - 1) / {NODES} x 2.6 GB = {nodes / 1e9:.2f} GB through a NIC of"
            f" {NIC / 1e9:.1f} GB/s each way: {nodes / NIC:.3f} s, where ZeRO-2's step takes {SAMPLES} / {rates['zero2']:,} ="
            f" {zero2_step:.3f} s.",
        ),
        (
            "Its TopK-Sync sends 2.15 GB, which is not 10% of 1.3 B either.",
            f"Gathering 10% from {RANKS} ranks, (n - 1) x 0.1 P x (2 + 4 bytes), is {packets[STATED] / 1e9:.1f} GB a rank at 1.3 B,"
            f" five times a dense ring; at 110 M it is {packets[SHAPE] / 1e9:.2f} GB, which is close to the printed number.",
        ),
        (
            "Its sparse methods learn less from a sample, by its own numbers.",
            "Hours x samples/s is what a method read before it reached the target loss: "
            + ", ".join(f"{ROWS[m][0]} {read[m] / 1e6:.0f} M" for m in ROWS)
            + f". Its own method needs {read['adaptive'] / read['megatron'] - 1:.0%} more samples than Megatron-LM, TopK-Sync"
            f" {read['topk-sync'] / read['megatron'] - 1:.0%}.",
        ),
        (
            "Its TopK-Sync never reaches the target that it has hours for.",
            f"Table 2 prints {ROWS['topk-sync'][2][0]} hours to a validation loss below {TARGET}; section 4.4 says that TopK-Sync ends at"
            f" {LOSS['topk-sync']}. So does its own method without layer-wise sparsity (section 4.3), with 14.4 hours in Figure 2.",
        ),
        (
            "It finds foreign texts easier than its own.",
            f"A validation loss of {LOSS['adaptive']} is a perplexity of e^{LOSS['adaptive']} = {math.exp(LOSS['adaptive']):.1f}; Table 3"
            f" prints {PUBMED['adaptive']} on PubMed, which it was not trained on (TopK-Sync: {math.exp(LOSS['topk-sync']):.1f} and"
            f" {PUBMED['topk-sync']}). Unless the two count tokens differently, both cannot be.",
        ),
    ]


if __name__ == "__main__":
    for what, how in impossibilities():
        print(f"- {what} {how}")
