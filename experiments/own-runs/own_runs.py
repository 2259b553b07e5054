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
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import study

HERE = pathlib.Path(__file__).resolve().parent.relative_to(study.ROOT)
RANKS = 2
WARM_UP = 5  # first steps of a run that are not counted, while caches and allocators fill
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


def run(*command):
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=study.ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}\n{done.stderr[-2000:]}")


def predict(name, out, steps):
    path = out / f"prediction-{name}.json"
    run(study.REHEARSE, "simulate", HERE / "job.toml", *study.sets(settings_of(name, out, steps)), "-o", path, "--quiet")
    text = path.read_bytes()
    one = json.loads(text)
    return {
        "name": name,
        "world_size": one["world_size"],
        "predicted_step_time_s": one["step_time_s"]["mean"],
        "prediction_hash": hashlib.sha256(text).hexdigest(),
        "oversubscribed": one["world_size"] > len(os.sched_getaffinity(0)),
    }


def measure(name, out, steps):
    shutil.rmtree(out / name, ignore_errors=True)
    run(study.REHEARSE, "train", HERE / "job.toml", *study.sets(settings_of(name, out, steps)), "--nproc", RANKS, "--quiet")
    lines = map(json.loads, (out / name / "metrics.jsonl").read_text().splitlines())
    times = [line["step_time_s"] for line in lines if line.get("step_time_s")][WARM_UP:]
    median = statistics.median(times)
    return {"median": median, "deviation": statistics.median(abs(t - median) for t in times), "values": times}


def error(one):
    return one["predicted_step_time_s"] / one["measured_step_time_s"]["median"] - 1


def summary(runs):
    sizes = sorted(abs(error(one)) for one in runs)
    return {"runs": len(sizes), "median_abs_error": statistics.median(sizes), "mean_abs_error": statistics.fmean(sizes), "worst": sizes[-1]}


def table(runs):
    rows = []
    for one in runs:
        was = one["measured_step_time_s"]
        numbers = f"{was['median']:.4f} s, {was['deviation']:.4f} s"
        rows.append([f"`{one['name']}`", f"{one['predicted_step_time_s']:.4f} s", numbers, f"{100 * error(one):+.1f}%"])
    return study.table(["run", "predicted", "measured: median, median deviation", "error"], rows)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", default="out/own-runs", metavar="FOLDER", help="where profiles, predictions and runs go (%(default)s)"
    )
    parser.add_argument("--only", metavar="RUN,...", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--steps", type=int, default=35, help="of each run (%(default)s)")
    options = parser.parse_args(argv)
    names = options.only.split(",") if options.only else list(RUNS)
    for name in names:
        if name not in RUNS:
            parser.error(f"--only {name}: known are {', '.join(RUNS)}")
    if options.steps <= WARM_UP + 2:
        parser.error(f"--steps {options.steps}: must be at least {WARM_UP + 3}, of which the first {WARM_UP} are not counted")
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
    print("median error {median_abs_error:.1%}, mean {mean_abs_error:.1%}, worst {worst:.1%} of {runs} runs".format(**summary(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
