"""Breaks real runs on purpose: each kind of mishap once with each of ten methods (docs/faults-measured.md#chaos), on a tiny model.
The figures are the counts of what survived, what was refused with the right name, and what was wrong. The whole result goes to
out/chaos.json."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cli")]

METHODS = [
    "ddp",
    "zero2",
    "zero3",
    "1f1b",
    "pipedream-2bw",
    "topk-sync",
    "adaptive",
    "megatron@tp=2,dp=2,cluster.world_size=4",
    "ps-sync@cluster.world_size=3",
    "ps-async@cluster.world_size=3",
]
JOB = """model.name = "gpt-tiny"
cluster.name = "this-machine"
method.name = "ddp"
train = {{ global_batch = 8, steps = 30, save_every = 5, lr = 1e-3, data = "{tokens}" }}
run.threads = 1
"""


def record(name, value):
    print(f"{name}: {value} trials", flush=True)
    if "REHEARSE_FIGURES" in os.environ:
        with open(os.environ["REHEARSE_FIGURES"], "a") as file:
            file.write(json.dumps({"name": name, "measured": value, "unit": "trials"}) + "\n")


def main():
    from cli_test_train_data import TOKENS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two kinds with the first method")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder) / "job.toml"
        job.write_text(JOB.format(tokens=TOKENS))
        methods, kinds = (METHODS[:1], "kill,wrong-numbers") if args.quick else (METHODS, "all")
        command = [REHEARSE, "chaos", job, "--nproc", "2", "--methods", ",".join(methods), "--kinds", kinds, "--seed", args.seed, "--json"]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        return done.returncode or 1
    result = json.loads(done.stdout)
    out = ROOT / "out/chaos.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(done.stdout)
    for verdict in ("survived", "refused", "wrong"):
        record(f"chaos: {verdict}", result[verdict])
    for one in result["not_run"]:
        print(f"not run: {one['kind']}: {one['why']}")
    for trial in result["trials"]:
        if trial["verdict"] == "wrong":
            print(f"wrong: {trial['kind']} of {trial['method']}, {trial['what']}: {trial['why']}\n  {trial['command']}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
