"""CPU seconds and peak memory of whole commands, as a user types them: `simulate` of GPT-3 175B on thousands of ranks, `compare` of all
methods on the paper's cluster, and weeks with failures. CPU seconds (user and system, with child processes) hardly depend on what else
the machine does."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))


def gpt3(dp):
    """The job with `dp` replicas of 16 DGX A100 each."""
    sets = {"cluster.name": f"dgx-a100:{16 * dp}", "method.dp": dp, "train.global_batch": 64 * dp}
    return ["simulate", "experiments/gpt3-dgx-a100.toml", *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]


LONG_RUN = ["simulate", "experiments/goodput/gpt3-16384.toml", "--duration", "54d", "--seeds", "100", "--fidelity", "analytic"]

# name, command, goal in CPU seconds, goal in MB (None: no goal)
COMMANDS = [
    ("compare, all methods, paper's cluster, 5 seeds", ["compare", "experiments/paper-ddp.toml"], 5, None),
    ("simulate, GPT-3 175B, 16384 ranks, analytic", [*gpt3(128), "--fidelity", "analytic"], 5, None),
    ("simulate, GPT-3 175B, 131072 ranks, analytic", [*gpt3(1024), "--fidelity", "analytic"], 40, 2000),
    ("simulate, GPT-3 175B, 16384 ranks, fluid", gpt3(128), 60, None),
    ("simulate 54 days, GPT-3 175B, 16384 ranks, failures, 100 seeds", LONG_RUN, 60, None),
]


def measured(command):
    """(CPU seconds, MB of the largest process)"""
    with subprocess.Popen([REHEARSE, *command, "--quiet"], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"rehearse {' '.join(command)} failed with status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def record(name, value, unit, goal):
    """Prints the figure and writes a row for the table of tools/bench; see bench/figure.h."""
    print(f"{name}: {value:.4g} {unit}" + (f" (goal {goal})" if goal else ""), flush=True)
    if "REHEARSE_FIGURES" not in os.environ:
        return
    row = {"name": name, "measured": value, "unit": unit}
    if goal:
        row |= {"against": "goal", "reference": goal, "ratio": value / goal, "more_is_better": False}
    with open(os.environ["REHEARSE_FIGURES"], "a") as file:
        file.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the first command")
    args = parser.parse_args()
    for name, command, seconds, megabytes in COMMANDS[:1] if args.quick else COMMANDS:
        cpu, memory = measured(command)
        record(name, cpu, "s", seconds)
        record(f"{name}: memory", memory, "MB", megabytes)


if __name__ == "__main__":
    main()
