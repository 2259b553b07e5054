#!/usr/bin/env python3
"""Twelve real training runs on this machine, each predicted before it begins: three models, ten methods, one to four micro-batches.

The machine is profiled first, with as many ranks as will train (`rehearse profile`: segments and collectives, never a whole step). All
predictions are written, with their hashes, before the first run. The measured time is the median step; the first five steps are not
counted. The median error over the runs says how exact predictions are where nothing has to be assumed: a lower bound on the error
of predictions for other machines.

    tools/python experiments/own-runs/own_runs.py                 # about ten minutes on two cores
    tools/python experiments/own-runs/own_runs.py --only ddp-demo,1f1b-demo --steps 12
"""

import argparse
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import study
from real_runs import WARM_UP, checked_options, error, measured, median_text, run, steps_of, summary, summary_text
from real_runs import predict as predicted

HERE = pathlib.Path(__file__).resolve().parent.relative_to(study.ROOT)
RANKS = 2
MODELS = {"demo": "gpt-demo", "wide": f"{HERE}/gpt-wide.toml", "deep": f"{HERE}/gpt-deep.toml"}
RUNS = {
    "ddp-demo": {"method.name": "ddp"},
    "zero2-demo": {"method.name": "zero2", "method.micro_batches": 2},
    "1f1b-demo": {"method.name": "1f1b", "method.pp": 2, "method.micro_batches": 4},
    "megatron-demo": {"method.name": "megatron", "method.tp": 2},
    "ddp-wide": {"method.name": "ddp", "method.micro_batches": 2},
    "zero3-wide": {"method.name": "zero3"},
    "1f1b-wide": {"method.name": "1f1b", "method.pp": 2, "method.micro_batches": 2},
    "topk-sync-wide": {"method.name": "topk-sync"},
    "ddp-deep": {"method.name": "ddp", "method.micro_batches": 4},
    "zero1-deep": {"method.name": "zero1"},
    "gpipe-deep": {"method.name": "gpipe", "method.pp": 2, "method.micro_batches": 4},
    "pipedream-2bw-deep": {"method.name": "pipedream-2bw", "method.pp": 2, "method.micro_batches": 4},
}


def model_of(name):
    return name.rsplit("-", 1)[1]


def settings_of(name, out, steps):
    model = model_of(name)
    return RUNS[name] | {
        "model.name": MODELS[model],
        "cluster.profile": str(out / f"profile-{model}.json"),
        "train.data": str(out / "tokens"),
        "train.out": str(out / name),
        "train.steps": steps,
    }


def predict(name, out, steps):
    return predicted(name, HERE / "job.toml", settings_of(name, out, steps), out, RANKS)[0]


def measure(name, out, steps):
    shutil.rmtree(out / name, ignore_errors=True)
    run(study.REHEARSE, "train", HERE / "job.toml", *study.sets(settings_of(name, out, steps)), "--nproc", RANKS, "--quiet")
    return measured(steps_of(out / name)[WARM_UP:])


def table(runs):
    rows = [[f"`{one['name']}`", f"{one['predicted_step_time_s']:.4f} s", median_text(one), f"{100 * error(one):+.1f}%"] for one in runs]
    return study.table(["run", "predicted", "measured: median, median deviation", "error"], rows)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", default="out/own-runs", metavar="FOLDER", help="where profiles, predictions and runs go (%(default)s)"
    )
    parser.add_argument("--only", metavar="RUN,...", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--steps", type=int, default=35, help="of each run (%(default)s)")
    options = parser.parse_args(argv)
    names = checked_options(parser, options, RUNS)
    out = pathlib.Path(options.output)
    (study.ROOT / out).mkdir(parents=True, exist_ok=True)
    os.chdir(study.ROOT)
    run(sys.executable, "data/prepare.py", "-o", out / "tokens")
    for model in dict.fromkeys(map(model_of, names)):
        print(f"profiling the segments of {model}", file=sys.stderr)
        path = out / f"profile-{model}.json"
        run(
            study.REHEARSE,
            "profile",
            "-o",
            path,
            "--nproc",
            RANKS,
            "--model",
            MODELS[model],
            "--samples",
            "1,2,4,8,16",
            "--tp",
            "1,2",
            "--quiet",
        )
    runs = [predict(name, out, options.steps) for name in names]
    (out / "predictions.json").write_text(json.dumps({"schema_version": 1, "runs": runs}, indent=1) + "\n")
    for number, one in enumerate(runs, 1):
        print(f"run {number} of {len(runs)}: {one['name']}", file=sys.stderr)
        one["measured_step_time_s"] = measure(one["name"], out, options.steps)
        (out / "predictions.json").write_text(
            json.dumps({"schema_version": 1, "runs": runs, "summary": summary(runs[:number])}, indent=1) + "\n"
        )
    print(table(runs))
    print(summary_text(summary(runs)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
