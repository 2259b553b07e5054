"""Kills ranks at random instants while they save, for every kind of checkpoint. The run must go on from the newest checkpoint that was
complete, and its last weights must be those of a run that was never killed (docs/faults.md#kills-while-saving). Prints a table and writes
out/save_kills.json."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cli")]

JOB = """model.name = "gpt-tiny"
cluster.name = "this-machine"
method = {{ name = "ddp", dp = 2 }}
train = {{ global_batch = 8, steps = 100000, save_every = 1, warmup_steps = 1, lr = 1e-3, schedule = "constant", data = "{tokens}" }}
run = {{ threads = 1, timeout = "30s" }}
"""
NODES = """summary = "two nodes of one rank"
source = "a test"
[[nodes]]
count = 2
devices = ["CPU core"]
host_memory = "8GB"
host_link = "5GB/s"
parts = ["nic"]
links = [
  { from = "gpu*", to = "nic", bandwidth = "5GB/s", latency = "1us" },
  { from = "nic", to = "fabric", bandwidth = "10Gb/s", latency = "10us" },
]
"""
KINDS = {  # name -> keys; {memory}: a folder in memory, {disk}: one on the disk, {nodes}: the platform of two nodes
    "full": {"checkpoint.kind": "full"},
    "sharded": {"checkpoint.kind": "sharded"},
    "async": {"checkpoint.kind": "async"},
    "incremental": {"checkpoint.kind": "incremental", "checkpoint.full_every": 4},
    "incremental, 8 bits": {"checkpoint.kind": "incremental", "checkpoint.full_every": 4, "checkpoint.bits": 8},
    "peer": {"checkpoint.kind": "peer", "checkpoint.folder": "{memory}", "checkpoint.full_every": 5, "cluster.name": "{nodes}"},
    "async, memory": {
        "checkpoint.kind": "async",
        "checkpoint.place": "memory",
        "checkpoint.folder": "{memory}",
        "checkpoint.full_every": 5,
    },
    "sharded, local": {"checkpoint.place": "local", "checkpoint.folder": "{disk}", "checkpoint.full_every": 5},
}
LONGEST = 120  # seconds until a run must have gone on or saved, on a busy machine


def record(name, value):
    print(f"{name}: {value} kills", flush=True)
    if "REHEARSE_FIGURES" in os.environ:
        with open(os.environ["REHEARSE_FIGURES"], "a") as file:
            file.write(json.dumps({"name": name, "measured": value, "unit": "kills"}) + "\n")


def names_in(folder):
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # not yet, or no longer
        return []


def folders_in(folder):
    return [folder / name for name in names_in(folder)]


def steps_in(folder):
    names = [name.removeprefix("step-") for name in names_in(folder) if name.startswith("step-")]
    return {int(name) for name in names if name.isdecimal()}


class Kind:
    """Runs with one kind of checkpoint, in a folder of their own."""

    def __init__(self, name, folder, memory, job):
        self.name, self.folder, self.job = name, folder, job
        self.out = folder / "out"
        places = {"memory": memory, "disk": folder / "disk", "nodes": folder / "nodes.toml"}
        for place in ("memory", "disk"):
            places[place].mkdir(parents=True)
        places["nodes"].write_text(NODES)
        self.roots = [places["memory"], places["disk"]]
        self.keys = {key: value.format(**places) if isinstance(value, str) else value for key, value in KINDS[name].items()}
        self.result = {"kind": name, "kills": 0, "writing": 0, "loaded": 0, "problems": []}

    def command(self, out, *more, **keys):
        keys = {"train.out": out} | self.keys | {key.replace("__", "."): value for key, value in keys.items()}
        words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return [str(word) for word in (REHEARSE, "train", self.job, "--nproc", 2, *words, *more)]

    def saving(self):
        """Whether a checkpoint is half written, wherever this kind writes them."""
        return any(name.endswith(".part") for nodes in self.places() for folder in nodes for name in names_in(folder))

    def places(self):
        return [[self.out]] + [[node for run in names_in(root) for node in folders_in(root / run)] for root in self.roots]

    def newest(self):
        """The step of the newest checkpoint that is complete: in the run's folder, or with every node."""
        found = [set.intersection(*(steps_in(node) for node in nodes)) for nodes in self.places() if nodes]
        return max(set.union(*found), default=0)

    def kill(self, child, draw):
        """Waits until the run saves, and kills ranks. Returns the newest checkpoint that was complete then."""
        from endless_training import ranks_of

        before, saves, pause = self.newest(), draw.randrange(1, 6), draw.uniform(0, 0.02)
        # Half of the kills strike while files are written; the others also later: at a rename, or the removal of old ones.
        writing = draw.random() < 0.5
        self.wait_for(child, lambda: self.newest() >= before + saves)
        while True:
            self.wait_for(child, self.saving)
            time.sleep(pause)
            if not writing or self.saving():
                break
        victims = list(ranks_of(child.pid).values())
        if draw.random() < 0.7:  # else all at once
            victims = [draw.choice(victims)]
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        self.result["writing"] += self.saving()
        complete = self.newest()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        self.result["kills"] += 1
        return complete

    def wait_for(self, child, there):
        deadline = time.monotonic() + LONGEST
        while not there():
            if child.poll() is not None:
                raise RuntimeError(f"the run ended: {(self.folder / 'log').read_text().strip().splitlines()[-1:]}")
            if time.monotonic() > deadline:
                raise RuntimeError("nothing happened for too long")
            time.sleep(0.0005)

    def recoveries(self):
        path = self.out / "recoveries.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []

    def load(self, child, complete, known):
        """The run must go on from a state that is as new as the newest checkpoint that was complete."""
        self.wait_for(child, lambda: len(self.recoveries()) > known)
        first = self.recoveries()[known]["from_step"]
        if first < complete:
            raise RuntimeError(f"it went on from step {first}, and {complete} was complete")
        self.result["loaded"] += 1

    def last_weights(self):
        """Whether the run ends with the weights of one that was never killed; bits that are rounded cannot be equal."""
        steps = self.newest() + 2
        for out, more in ((self.out, ["--resume"]), (self.folder / "undisturbed", [])):
            subprocess.run(self.command(out, "--quiet", *more, train__steps=steps), check=True, stdout=subprocess.DEVNULL)
        states = [
            [file.read_bytes() for file in sorted((out / f"step-{steps:08}").glob("*.safetensors"))]
            for out in (self.out, self.folder / "undisturbed")
        ]
        return states[0] == states[1] and bool(states[0])

    def run(self, kills, draw):
        try:
            with (self.folder / "log").open("w") as log:
                command = self.command(self.out, recovery__restarts=10 * kills)
                with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as child:
                    try:
                        while self.result["kills"] < kills:
                            known = len(self.recoveries())
                            self.load(child, self.kill(child, draw), known)
                    finally:
                        child.terminate()  # it saves, and ends
        except RuntimeError as problem:
            self.result["problems"].append(f"kill {self.result['kills']}: {problem}")
        self.result["same_weights"] = None if "checkpoint.bits" in self.keys else self.last_weights()
        if self.result["same_weights"] is False:
            self.result["problems"].append("the last weights are not those of a run that was never killed")
        return self.result


def main():
    from cli_test_train_data import TOKENS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kill of each kind")
    parser.add_argument("--kills", type=int, default=200, help="in all, shared among the kinds (%(default)s)")
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons (all)")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=ROOT / "out/save_kills.json", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the instants (%(default)s)")
    args = parser.parse_args()
    kinds = args.kinds.split(";")
    draw = random.Random(args.seed)
    results = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        memory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        job = folder / "job.toml"
        job.write_text(JOB.format(tokens=TOKENS))
        print(f"{'kind':<22}{'kills':>8}{'writing':>9}{'loaded':>8}  last weights", flush=True)
        for number, name in enumerate(kinds):
            kills = 1 if args.quick else args.kills // len(kinds) + (number < args.kills % len(kinds))
            one = Kind(name, folder / str(number), memory / str(number), job).run(kills, draw)
            weights = {None: "rounded", True: "the same", False: "others"}[one["same_weights"]]
            print(f"{name:<22}{one['kills']:>8}{one['writing']:>9}{one['loaded']:>8}  {weights}", flush=True)
            for problem in one["problems"]:
                print(f"  {problem}", flush=True)
            results.append(one)
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"schema_version": 1, "seed": args.seed, "kinds": results}, indent=1) + "\n")
    record("kills while saving", sum(one["kills"] for one in results))
    record("kills while saving: the newest checkpoint loaded", sum(one["loaded"] for one in results))
    return 1 if any(one["problems"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
