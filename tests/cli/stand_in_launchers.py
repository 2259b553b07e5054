"""A replacement of torchrun without a store of its own, which no real one can be told to be here: starts the ranks of a command line,
all on this host, with only the variables that docs/multi-host.md lists."""

import argparse
import os
import pathlib
import subprocess
import sys


def arguments(**kinds):
    """(the options of this launcher, the command of a rank)."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, kind in kinds.items():
        dashes = "-" if len(name) <= 2 else "--"
        how = {"action": "store_true"} if kind is bool else {"type": kind}
        parser.add_argument(dashes + name.replace("_", "-"), dest=name, required=True, **how)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(sys.argv[1:])


def run(command, ranks):
    """Runs one process for each rank's variables; returns the first exit status that is not 0."""
    started = [subprocess.Popen(command, env=os.environ | v) for v in ranks]
    return next((child.returncode for child in started if child.wait()), 0)


def torchrun():
    """The agent of one host, without a store of its own, as with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Hosts get their numbers from mark
    files in the current folder."""
    given = arguments(no_python=bool, nnodes=int, nproc_per_node=int, rdzv_backend=str, rdzv_endpoint=str)
    address, port = given.rdzv_endpoint.split(":")
    with pathlib.Path("hosts-that-came").open("ab", buffering=0) as marks:
        marks.write(b"x")
        node = marks.tell() - 1
    each = given.nproc_per_node
    common = {
        "WORLD_SIZE": f"{given.nnodes * each}",
        "LOCAL_WORLD_SIZE": f"{each}",
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    return run(
        given.command,
        [common | {"RANK": f"{node * each + i}", "LOCAL_RANK": f"{i}"} for i in range(each)],
    )


if __name__ == "__main__":
    sys.exit(torchrun())
