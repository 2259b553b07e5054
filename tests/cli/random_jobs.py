"""Random jobs that are small enough to simulate in a fraction of a second: a platform, a model, a method and a mesh, drawn from a seed.
A job is kept as plain Python values until it is written, so a test can change one part of it (a faster link, a straggler) and write it
again.

Usage: tests/cli/random_jobs.py [SEEDS]     prints which of SEEDS jobs (120) have an `analytic` step time more than 0.1% above `chunk`,
with the program that $REHEARSE names, or build/bin/rehearse
"""

import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

METHODS = {
    "ddp": ("dp", "tp"),
    "zero1": ("dp", "tp"),
    "zero2": ("dp", "tp"),
    "zero3": ("dp", "tp"),
    "hsdp": ("dp", "tp"),
    "gpipe": ("pp", "dp", "tp"),
    "1f1b": ("pp", "dp", "tp"),
    "interleaved": ("pp", "dp"),
    "megatron": ("pp", "dp", "tp"),
    "pipedream-2bw": ("pp", "dp"),
    "zb-h1": ("pp", "dp", "tp"),
    "zb-h2": ("pp", "dp", "tp"),
    "topk-sync": ("dp",),
    "int8-sync": ("dp", "tp"),
    "ef-signsgd": ("dp",),
    "signsgd-majority": ("dp",),
    "powersgd": ("dp", "tp"),
    "onebit-adam": ("dp",),
    "local-sgd": ("dp", "tp"),
    "d-psgd": ("dp",),
    "fedavg": (),
    "ps-sync": (),
    "ps-ssp": (),
}
COLLECTIVES = ["automatic", "ring", "double_tree", "halving_doubling", "hierarchical"]


def link(a, b, rng):
    return {"from": a, "to": b, "bandwidth": 1e9 * rng.choice([1, 2, 5, 12.5, 25, 100, 300]), "latency": rng.choice([0.0, 0.5, 2, 10, 50])}


def node(rng, devices):
    """A node of one of three shapes: a host bus, a switch with a NIC, a mesh of cables beside a bus."""
    shape = rng.choice(["bus", "switch", "mesh"])
    links = [link("gpu*", "host", rng), link("host", "fabric", rng)]
    parts = ["host"]
    if shape == "switch":
        parts = ["sw", "nic"]
        links = [link("gpu*", "sw", rng), link("sw", "nic", rng), link("nic", "fabric", rng)]
    elif shape == "mesh":
        links += [link(f"gpu{a}", f"gpu{b}", rng) for a in range(devices) for b in range(a)]
    return {"parts": parts, "devices": devices, "links": links}


def draw(seed):
    rng = random.Random(seed)
    world = rng.choice([2, 4, 6, 8])
    method = rng.choice(sorted(METHODS))
    mesh = {"pp": 1, "dp": 1, "tp": 1}
    if METHODS[method]:
        left = world
        for axis in METHODS[method][:-1]:
            mesh[axis] = rng.choice([n for n in (1, 2, 4) if left % n == 0])
            left //= mesh[axis]
        mesh[METHODS[method][-1]] = left if left in (1, 2, 4) or METHODS[method][-1] == "dp" else 1
        if mesh["pp"] * mesh["dp"] * mesh["tp"] < world:
            mesh["dp"] *= world // (mesh["pp"] * mesh["dp"] * mesh["tp"])
    micro_batches = rng.choice([1, 2, 4]) * max(1, mesh["pp"])
    per_node = rng.choice([n for n in (1, 2, 4) if world % n == 0])
    job = {
        "model": {
            "family": rng.choice(["gpt", "bert"]),
            "layers": 8,
            "hidden": rng.choice([96, 128, 192]),
            "heads": 8,
            "vocab": rng.choice([1000, 8192]),
            "seq_len": rng.choice([64, 256]),
        },
        "nodes": [node(rng, per_node) for _ in range(world // per_node)],
        "rate": rng.choice([1e12, 5e12, 5e13]),
        "memory_bandwidth": 1e11,
        "method": method,
        "mesh": mesh,
        "micro_batches": micro_batches,
        "batch": micro_batches * mesh["dp"] * rng.choice([1, 2]),
        "collective": rng.choice(COLLECTIVES),
        "bucket": rng.choice([50_000, 1_000_000, 25_000_000]),
        "world": world,
        "stragglers": [],
        "unit": 1.0,  # of time
    }
    if method in ("fedavg", "ps-sync", "ps-ssp"):
        job["mesh"] = None
        job["batch"] = micro_batches * (world - 1)
        job["collective"] = "automatic"
    return job


def changed(job, change):
    other = copy.deepcopy(job)
    change(other)
    return other


def write(job, folder):
    """Writes job.toml with its platform and model; returns its path."""
    model = job["model"] | {"max_positions": job["model"]["seq_len"]}
    (folder / "model.toml").write_text('family = "%s"\n' % model.pop("family") + "".join(f"{k} = {v}\n" for k, v in model.items()))
    unit = job["unit"]
    text = [
        '[[device]]\nname = "K"\nmemory = "1000GB"\nf32 = "%gFLOP/s"\nf16 = "%gFLOP/s"\nbf16 = "%gFLOP/s"\n' % ((job["rate"] / unit,) * 3),
        'memory_bandwidth = "%gB/s"\nefficiency = 0.7\nlaunch = "%gus"\nsource = "test"\n'
        % (job["memory_bandwidth"] / unit, 5e13 / job["rate"] * unit),  # a small kernel wastes a device of any speed
    ]
    for one in job["nodes"]:
        cables = ",\n".join(
            '  {{ from = "{}", to = "{}", bandwidth = "{:g}B/s", latency = "{:g}us" }}'.format(
                cable["from"], cable["to"], cable["bandwidth"] / unit, cable["latency"] * unit
            )
            for cable in one["links"]
        )
        text.append(
            "[[nodes]]\ncount = 1\ndevices = [%s]\nparts = [%s]\nlinks = [\n%s\n]\n"
            % (", ".join(['"K"'] * one["devices"]), ", ".join(f'"{p}"' for p in one["parts"]), cables)
        )
    (folder / "platform.toml").write_text('summary = "random"\n' + "".join(text))
    lines = [
        f'model.name = "{folder}/model.toml"',
        f'cluster.name = "{folder}/platform.toml"',
        f"cluster.world_size = {job['world']}",
        f'method.name = "{job["method"]}"',
        f"method.micro_batches = {job['micro_batches']}",
        f"train.global_batch = {job['batch']}",
        f'method.bucket = "{job["bucket"]}B"',
    ]
    if job["mesh"]:
        lines += [f"method.{axis} = {size}" for axis, size in job["mesh"].items() if size > 1]
    if job["collective"] != "automatic":
        lines.append(f'method.collective = "{job["collective"]}"')
    if job["stragglers"]:
        lines.append("disturb.stragglers = [%s]" % ", ".join("{ rank = %d, factor = %g }" % s for s in job["stragglers"]))
    path = folder / "job.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def step_time(path, fidelity):
    """The step time in seconds; None if the job is refused, for example because it does not fit into memory."""
    program = os.environ.get("REHEARSE", str(pathlib.Path(__file__).resolve().parents[2] / "build/bin/rehearse"))
    run = subprocess.run([program, "simulate", str(path), "--fidelity", fidelity, "--json"], capture_output=True, text=True)
    return json.loads(run.stdout)["step_time_s"]["mean"] if run.returncode == 0 else None


def main():
    seeds, compared, above = int(sys.argv[1]) if len(sys.argv) > 1 else 120, 0, 0
    for seed in range(seeds):
        job = draw(seed)
        with tempfile.TemporaryDirectory() as folder:
            path = write(job, pathlib.Path(folder))
            analytic, chunk = (step_time(path, fidelity) for fidelity in ("analytic", "chunk"))
        if analytic is None or chunk is None:
            continue
        compared += 1
        if analytic > 1.001 * chunk:
            above += 1
            print(f"seed {seed}: {job['method']}, {job['collective']}: {100 * (analytic / chunk - 1):.1f}% above")
    print(f"{above} of {compared} jobs above by more than 0.1%, {seeds - compared} refused")


if __name__ == "__main__":
    main()
