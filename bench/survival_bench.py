"""What survival costs a real run on this machine: checkpoints behind training, being able to recover while nothing fails, and the time from
a failure until the next step. Ratios are medians over rounds in which both runs take turns; they need an otherwise idle machine."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cli")]

JOB = """model.name = "{model}"
cluster.name = "this-machine"
method.name = "ddp"
train = {{ global_batch = {batch}, seq_len = {seq_len}, steps = {steps}, lr = 1e-4, data = "{tokens}" }}
run = {{ threads = 1, timeout = "10min", connect_timeout = "10min" }}
"""


def record(name, value, unit, goal):
    print(f"{name}: {value:.4g} {unit} (goal {goal})", flush=True)
    if "REHEARSE_FIGURES" not in os.environ:
        return
    row = {
        "name": name,
        "measured": value,
        "unit": unit,
        "against": "goal",
        "reference": goal,
        "ratio": value / goal,
        "more_is_better": False,
    }
    with open(os.environ["REHEARSE_FIGURES"], "a") as file:
        file.write(json.dumps(row) + "\n")


class Runs:
    """Runs of one job below a folder."""

    def __init__(self, folder, **values):
        from cli_test_train_data import TOKENS

        self.folder = folder
        folder.mkdir()
        self.job = folder / "job.toml"
        self.job.write_text(JOB.format(tokens=TOKENS, **values))

    def start(self, ranks, out, **keys):
        keys = {"train.out": self.folder / out} | {key.replace("__", "."): value for key, value in keys.items()}
        words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        command = [REHEARSE, "train", self.job, "--nproc", ranks, "--overwrite", "--json", *words]
        return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)

    def step(self, ranks, out, **keys):
        """Mean seconds of a step after the first ten, with the steps that a checkpoint lies in."""
        with self.start(ranks, out, **keys) as process:
            text, _ = process.communicate()
        if process.returncode:
            sys.exit(f"rehearse train failed with status {process.returncode}")
        return statistics.mean(json.loads(text)["step_times_s"][10:])


def ratio(runs, rounds, one, other):
    """Median of (seconds with `other`) / (seconds with `one`)."""
    found = []
    for number in range(rounds):
        pair = [(one, "one"), (other, "other")]
        seconds = {name: runs.step(2, name, **keys) for keys, name in (pair if number % 2 == 0 else reversed(pair))}
        found.append(seconds["other"] / seconds["one"])
    return statistics.median(found)


def down_time(runs):
    """Seconds from the death of one of four ranks until the other three run the next step."""
    from endless_training import ranks_of

    keys = {"recovery__policy": "shrink", "recovery__restarts": 1, "checkpoint__kind": "async", "checkpoint__place": "memory"}
    keys |= {"checkpoint__full_every": 1000, "train__save_every": 1, "method__dp": 4}
    with runs.start(4, "shrink", **keys) as process:
        metrics, notes = runs.folder / "shrink/metrics.jsonl", runs.folder / "shrink/recoveries.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
            if process.poll() is not None:
                sys.exit(f"rehearse train failed with status {process.returncode}")
            time.sleep(0.1)
        os.kill(ranks_of(process.pid)[2], 9)
        while not notes.exists() and process.poll() is None:
            time.sleep(0.1)
        process.terminate()
        process.communicate()
    return json.loads(notes.read_text().splitlines()[0])["down_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, and a tiny model instead of GPT-2 124M")
    args = parser.parse_args()
    rounds = 1 if args.quick else 7
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folder = pathlib.Path(folder)
        steps = 30 if args.quick else 60
        small = Runs(folder / "small", model="gpt-tiny" if args.quick else "gpt-demo", batch=8, seq_len=64, steps=steps)
        saving = ratio(small, rounds, {}, {"checkpoint__kind": "async", "train__save_every": 10})
        record("checkpoint behind training each 10 steps: step time", 100 * (saving - 1), "% longer", 3)
        ready = ratio(small, rounds, {}, {"recovery__restarts": 3, "recovery__policy": "grow"})
        record("being able to recover, nothing fails: step time", 100 * (ready - 1), "% longer", 1)
        model = "gpt-tiny" if args.quick else "gpt2-124m"
        large = Runs(folder / "large", model=model, batch=12, seq_len=32, steps=1000)
        record(f"4 to 3 ranks after a death, {model}: until the next step", down_time(large), "s", 5)


if __name__ == "__main__":
    main()
