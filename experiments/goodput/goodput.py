#!/usr/bin/env python3
"""Goodput over weeks (docs/faults.md): the interval between checkpoints x recovery policy x failure rate for GPT-3 on 1,024 and 16,384
GPUs over 54 days, and torchft against restart against a spare node as in TorchPass's published comparison.

    tools/python experiments/goodput/goodput.py -o out/goodput

writes goodput.md and goodput.json. Steps are predicted by the analytic schedule: what is compared here is what happens between them.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import study  # noqa: E402

JOBS = {"1,024 GPUs": "gpt3-1024.toml", "16,384 GPUs": "gpt3-16384.toml"}
POLICIES = ("restart", "shrink", "replica", "spare")
RATES = (1, 4)
INTERVALS = (60, 300, 1200)  # seconds, rounded to whole steps; and the best
# TorchPass's comparison (clockwork.io/blog/keeping-distributed-training-running-through-failures): Llama-4 Scout on 8 x 8 H200, 3,000
# steps, a checkpoint every 100 steps, a failure every 2,700 to 4,500 s. Minutes that it prints.
PRINTED = {"spare": 405, "restart": 818, "replica": 930}
FAILURE_EVERY = 3600  # seconds, the middle of its range
STEPS = 3000
UNSTATED = [
    "The time of a step. It is taken so that the run with spare nodes takes the printed 405 minutes; the other two are predictions.",
    "What a restart takes. Two values are shown: 5 minutes, and the 948 s from fault to recovery of torchft's issue 329.",
    "torchft's overhead on each step while nothing fails: 10% is what its users report; and how much is lost with a replica group:"
    " here one node of eight, so an eighth of the samples, until it is back.",
    "Whether torchft's run ends after 3,000 steps or after the samples of 3,000 full steps: here the samples, because steps without"
    " a replica train less.",
    "How failures are noticed: 30 s for all three.",
    "Mixture-of-experts routing, the sharding within a node, and how long a checkpoint takes: here a dense model of about the same time"
    " per step, one whole replica a node, and steps that wait less than 0.1 s for a checkpoint.",
]


def run(job, settings, seeds, duration="54d"):
    how = ("--duration", duration, "--seeds", seeds, "--fidelity", "analytic")
    return study.rehearse("simulate", (HERE / job).relative_to(study.ROOT), *study.sets(settings), *how)


def row(job, policy, rate, every, step, seeds):
    """`every`: seconds; None: the best."""
    settings = {"recovery.policy": policy, "faults.rate": rate}
    if every is not None:
        settings["train.save_every"] = max(1, round(every / step))
    one = run(job, settings, seeds)
    return {
        "policy": policy,
        "rate": rate,
        "interval_s": one["checkpoint"]["every_s"],
        "searched": every is None,
        "goodput": one["goodput"]["mean"],
        "ci95": one["goodput"]["ci95"],
        "interruptions": one["interruptions"],
        "young_s": one["intervals"]["young_s"],
        "lost": {name: s / one["duration_s"] for name, s in one["lost_s"].items()},
    }


def grid(job, options):
    step = run(job, {}, 1, "1d")["step_time_s"]
    work = [(p, r, t) for p in POLICIES for r in RATES for t in (None, *INTERVALS)]
    if options.reduced:
        work = [(p, r, t) for p, r, t in work if p in ("restart", "spare") and r in (1, 4) and t in (None, 1200)]
    return study.in_parallel(lambda one: row(job, one[0], one[1], one[2], step, options.seeds), work)


def torchpass(options):
    """Minutes until the work of 3,000 steps is done. One long run of each kind gives its goodput, and work / goodput is the time."""
    found = []
    common = {
        "faults.model": str((HERE / "one-node-an-hour.toml").relative_to(study.ROOT)),
        "train.save_every": 100,
        "recovery.detection": "30s",
    }
    days = "60d"
    spare = run("torchpass.toml", common | {"recovery.policy": "spare", "recovery.spares": 8}, options.seeds, days)
    step = spare["step_time_s"]
    for label, policy, more in (
        ("spare", "spare", {"recovery.spares": 8}),
        ("restart, 5 min", "restart", {"recovery.spares": 8, "recovery.restart": "5min", "recovery.replacement": "0s"}),
        ("restart, 948 s", "restart", {"recovery.spares": 8, "recovery.restart": "948s", "recovery.replacement": "0s"}),
        ("replica, no overhead", "replica", {"recovery.spares": 8, "recovery.restart": "948s"}),
        ("replica, 10% a step", "replica", {"recovery.spares": 8, "recovery.restart": "948s", "recovery.overhead": 0.1}),
    ):
        one = run("torchpass.toml", common | {"recovery.policy": policy} | more, options.seeds, days)
        # The step is unknown: it is scaled so that the run with spare nodes takes what is printed.
        minutes = PRINTED["spare"] * spare["goodput"]["mean"] / one["goodput"]["mean"]
        # What a failure cost there, if the rest is as here: time beyond the work, over the failures in that time.
        work = PRINTED["spare"] * spare["goodput"]["mean"]
        each = (PRINTED[policy] - work) / (PRINTED[policy] * 60 / FAILURE_EVERY)
        of_run = {"run": label, "goodput": one["goodput"]["mean"], "minutes": minutes}
        found.append({**of_run, "printed": PRINTED[policy], "printed_each_min": each})
    return {"step_time_s": step, "implied_step_s": PRINTED["spare"] * 60 * spare["goodput"]["mean"] / STEPS, "rows": found}


def grid_table(rows):
    cells = []
    for one in rows:
        lost = sorted(one["lost"].items(), key=lambda part: -part[1])[:3]
        cells.append(
            [
                one["policy"],
                f"{one['rate']:g}",
                f"{one['interval_s'] / 60:.3g}" + (" (best)" if one["searched"] else ""),
                f"{one['goodput']:.2%} ± {one['ci95']:.2%}",
                f"{one['interruptions']:.4g}",
                ", ".join(f"{name} {share:.2%}" for name, share in lost if share > 0),
            ]
        )
    return study.table(["policy", "failure rate", "interval min", "goodput", "failures", "most lost to"], cells)


def markdown(result):
    text = "# Goodput over 54 days\n\nBy `tools/python experiments/goodput/goodput.py`. "
    text += f"GPT-3, failures of Llama 3's cluster (`llama3-h100`) times the rate, {result['seeds']} seeds, sharded checkpoints.\n"
    for name, rows in result["grids"].items():
        text += f"\n## {name}\n\n" + grid_table(rows)
    passed = result["torchpass"]
    text += "\n## TorchPass's comparison\nMinutes for 3,000 steps of Llama-4 Scout on 64 H200, a failure every 45 to 75 minutes.\n\n"
    text += study.table(
        ["run", "goodput", "minutes", "printed", "so a failure cost there, min"],
        [
            [r["run"], f"{r['goodput']:.1%}", f"{r['minutes']:.0f}", str(r["printed"]), f"{r['printed_each_min']:.0f}"]
            for r in passed["rows"]
        ],
    )
    text += f"\nThe step that makes the first row 405 minutes takes {passed['implied_step_s']:.2f} s."
    text += " What the comparison does not state:\n\n"
    return text + "".join(f"- {line}\n" for line in UNSTATED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/goodput"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", nargs="+", choices=tuple(JOBS), default=tuple(JOBS))
    parser.add_argument("--reduced", action="store_true", help="two policies, two rates, two intervals")
    options = parser.parse_args()
    result = {
        "schema_version": 1,
        "seeds": options.seeds,
        "grids": {name: grid(JOBS[name], options) for name in options.jobs},
        "torchpass": torchpass(options),
    }
    study.write(options.output, {"goodput.md": markdown(result), "goodput.json": study.to_json(result)})


if __name__ == "__main__":
    main()
