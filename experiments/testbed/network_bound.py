#!/usr/bin/env python3
"""Step times where the network decides, measured on a testbed (docs/testbed.md) and predicted: 2 and 4 nodes with cables of 200 Mb/s to
2 Gb/s, several methods and collectives, and two jobs that share the cables.

What is measured beforehand is the time of single segments and updates, with as many ranks as will train (`rehearse profile --no-network`).
The network is the platform's: bandwidth, latency and the headers of TCP. Nothing is fitted. All predictions are written, with their hashes,
before the first run. The measured time is the median step; the first five steps are not counted.

    tools/python experiments/testbed/network_bound.py                       # about ten minutes on two cores; needs what tools/testbed needs
    tools/python experiments/testbed/network_bound.py --only ddp-2x500m,zero3-2x500m --steps 12
"""

import argparse
import itertools
import os
import pathlib
import re
import resource
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import real_runs
import study
from real_runs import WARM_UP, checked_options, error, measured, median_text, run, steps_of, summary_text

HERE = pathlib.Path(__file__).resolve().parent.relative_to(study.ROOT)
BUSY = 0.05  # of the cores; with more other work, a run is marked as measured on a busy machine
RING = {"method.collective": "ring"}
# name -> settings; "-4x500m" is four nodes with cables of 500 Mb/s
RUNS = {
    "ddp-2x200m": RING,
    "ddp-2x500m": RING,
    "ddp-2x1g": RING,
    "ddp-2x2g": RING,
    "ddp-4x500m": RING,
    "ddp-tree-4x500m": {"method.collective": "double_tree"},
    "ddp-halving-4x500m": {"method.collective": "halving_doubling"},
    "zero3-2x500m": {"method.name": "zero3"} | RING,
    "zero3-4x500m": {"method.name": "zero3"} | RING,
    "1f1b-2x200m": {"method.name": "1f1b", "method.pp": 2, "method.micro_batches": 2},
    "1f1b-4x200m": {"method.name": "1f1b", "method.pp": 2, "method.micro_batches": 2} | RING,
    "topk-sync-2x200m": {"method.name": "topk-sync"},
    "topk-sync-4x200m": {"method.name": "topk-sync"},
    "two-jobs-2x500m": RING,
}
SHARED = "two-jobs"  # runs of this name are two equal jobs at a time


def shape_of(name):
    """(nodes, bandwidth as text) of a run."""
    nodes, rate, unit = re.search(r"-(\d+)x(\d+)([mg])$", name).groups()
    return int(nodes), f"{rate}{unit.upper()}b/s"


def jobs_of(name):
    return 2 if name.startswith(SHARED) else 1


def ranks_of(name):
    return jobs_of(name) * shape_of(name)[0]


def platform_of(name, out):
    """Writes the platform of a run; its path."""
    nodes, rate = shape_of(name)
    text = (study.ROOT / HERE / "nodes.toml").read_text()
    path = out / f"{nodes}-nodes-{rate.replace('/', '').lower()}.toml"
    path.write_text(re.sub(r'bandwidth = "[^"]*"', f'bandwidth = "{rate}"', re.sub(r"count = \d+", f"count = {nodes}", text)))
    return path


def settings_of(name, out, steps):
    return RUNS[name] | {
        "cluster.name": str(platform_of(name, out)),
        "cluster.profile": str(out / f"profile-{ranks_of(name)}.json"),
        "train.data": str(out / "tokens"),
        "train.steps": steps,
    }


def halved(name):
    """Of two jobs that send all the time, each gets half of every cable."""
    if jobs_of(name) == 1:
        return {}
    ends = [(f"node{n}/rank0", "fabric") for n in range(shape_of(name)[0])]
    links = [f"{a}>{b}" for one, other in ends for a, b in ((one, other), (other, one))]
    return {"disturb.slow_links": "[" + ",".join(f'{{link="{link}",factor=2.0}}' for link in links) + "]"}


def testbed(*arguments):
    """Ends the study with status 3 where this machine cannot build a network."""
    if run(study.ROOT / "tools/testbed", *arguments, status=(3,)):
        sys.exit(3)


def predict(name, out, steps):
    settings = settings_of(name, out, steps) | halved(name)
    kept, one = real_runs.predict(name, HERE / "job.toml", settings, out, ranks_of(name))
    return kept | {"predicted_exposed_share": one["exposed_comm_s"] / one["step_time_s"]["mean"]}


def core_seconds():
    """(of all processes in user mode, of ours that have ended): the difference is other work."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:3]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK"), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def together(jobs):
    """The steps of all jobs that count: after warm-up, and while no job has ended, because the last one has the network for itself."""
    end = min(sum(steps) for steps in jobs)
    return [
        step
        for steps in jobs
        for at, step in zip(itertools.accumulate(steps), steps, strict=True)
        if at <= end and at > sum(steps[:WARM_UP])
    ]


def measure(name, out, steps):
    """The steps of all jobs of the run, and how busy the machine was with other work."""
    commands = []
    for job in range(jobs_of(name)):
        folder = out / f"{name}-{job}"
        shutil.rmtree(folder, ignore_errors=True)
        settings = settings_of(name, out, steps) | {"train.out": str(folder)}
        commands += ["--", study.REHEARSE, "train", HERE / "job.toml", *study.sets(settings), "--quiet"]
    began, before = time.monotonic(), core_seconds()
    testbed(platform_of(name, out), "--quiet", *commands)
    wall, after = time.monotonic() - began, core_seconds()
    others = (after[0] - before[0] - (after[1] - before[1])) / (wall * os.cpu_count())
    times = together([steps_of(out / f"{name}-{job}") for job in range(jobs_of(name))])
    return measured(times), max(0.0, others)


def summary(runs):
    return real_runs.summary(runs) | {"busy": sum(one["other_work"] > BUSY for one in runs)}


def table(runs):
    rows = [
        [
            f"`{one['name']}`",
            f"{one['predicted_step_time_s']:.4f} s",
            f"{one['predicted_exposed_share']:.0%}",
            median_text(one),
            f"{100 * error(one):+.1f}%",
            f"{one['other_work']:.0%}" + (" (busy)" if one["other_work"] > BUSY else ""),
        ]
        for one in runs
    ]
    header = ["run", "predicted", "of it exposed communication", "measured: median, median deviation", "error", "other work on the cores"]
    return study.table(header, rows)


def text_of(runs):
    text = "# Measured on a testbed and predicted\n\n" + table(runs)
    text += "\n" + summary_text(summary(runs))
    if summary(runs)["busy"]:
        text += f"\n{summary(runs)['busy']} runs were measured on a busy machine: do not use their errors\n"
    return text


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default="out/testbed", metavar="FOLDER", help="where all files go (%(default)s)")
    parser.add_argument("--only", metavar="RUN,...", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--steps", type=int, default=30, help="of each run (%(default)s)")
    options = parser.parse_args(argv)
    names = checked_options(parser, options, RUNS)
    out = pathlib.Path(options.output)
    (study.ROOT / out).mkdir(parents=True, exist_ok=True)
    os.chdir(study.ROOT)
    testbed(HERE / "nodes.toml", "--quiet", "--", "true")  # fails here if this machine cannot build a network
    run(sys.executable, "data/prepare.py", "docs", "-o", out / "tokens", "--vocab-size", "2048", "--quiet")
    for ranks in sorted({ranks_of(name) for name in names}):
        print(f"profiling segments with {ranks} ranks", file=sys.stderr)
        given = ["--nproc", ranks, "--threads", 1, "--no-network", "--model", HERE / "model.toml", "--samples", "1,2", "--quiet"]
        run(study.REHEARSE, "profile", "-o", out / f"profile-{ranks}.json", *given)
    runs = [predict(name, out, options.steps) for name in names]
    study.write(out, {"predictions.json": study.to_json({"schema_version": 1, "runs": runs})})
    for number, one in enumerate(runs, 1):
        print(f"run {number} of {len(runs)}: {one['name']}", file=sys.stderr)
        one["measured_step_time_s"], one["other_work"] = measure(one["name"], out, options.steps)
    study.write(
        out, {"testbed.json": study.to_json({"schema_version": 1, "runs": runs, "summary": summary(runs)}), "testbed.md": text_of(runs)}
    )
    run(sys.executable, "plots/report.py", out / "testbed.json", "-o", out / "testbed.svg", "--quiet")
    print(text_of(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
