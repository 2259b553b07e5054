"""A replacement of Slurm's commands for tests that need no cluster. `sbatch` runs the tasks of an array before it returns, unless a file
in its folder says otherwise; what each command was called with is kept in `calls`."""

import json
import os
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
NAMES = ("sinfo", "sbatch", "squeue", "scancel")


def install(folder):
    """Puts the commands into `folder`; returns an environment in which only they are Slurm's."""
    folder.mkdir()
    for name in NAMES:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{pathlib.Path(__file__).read_text()}")
        path.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:/usr/bin:/bin"}


def calls(folder, name):
    path = folder / "calls"
    every = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [words for called, *words in every if called == name]


def numbers(text):
    """The numbers of an array such as 1-3,7."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def sbatch(words):
    """`lose`: tasks that the next array loses, as with their node. `pending`: tasks never begin. `refuse`: what sbatch says instead."""
    if (FOLDER / "refuse").exists():
        print((FOLDER / "refuse").read_text(), file=sys.stderr)
        return 1
    given = dict(re.match(r"--([a-z-]+)(?:=(.*))?$", word, re.S).groups() for word in words)
    lose = FOLDER / "lose"
    lost = set(numbers(lose.read_text())) if lose.exists() else set()
    lose.unlink(missing_ok=True)
    if not (FOLDER / "pending").exists():
        for task in numbers(given["array"]):
            if task in lost:
                continue
            with open(given["output"].replace("%a", str(task)), "a") as log:
                env = os.environ | {"SLURM_ARRAY_TASK_ID": str(task)}
                subprocess.run(["sh", "-c", given["wrap"]], env=env, cwd=given["chdir"], stdout=log, stderr=log, check=False)
    print(len(calls(FOLDER, "sbatch")))
    return 0


def main():
    name = pathlib.Path(sys.argv[0]).name
    with (FOLDER / "calls").open("a") as out:
        out.write(json.dumps([name, *sys.argv[1:]]) + "\n")
    if name == "sbatch":
        return sbatch(sys.argv[1:])
    if name == "squeue" and (FOLDER / "pending").exists():
        print("PENDING")
    return 0


if __name__ == "__main__" and pathlib.Path(sys.argv[0]).name in NAMES:
    sys.exit(main())
