"""What studies of real training runs share: each run is predicted before the first one begins, and its median step is compared."""

import hashlib
import json
import os
import statistics
import subprocess
import sys

import study

WARM_UP = 5  # first steps of a run that are not counted, while caches and allocators fill


def run(*command, status=()):
    """The exit status: 0, or one of `status`. With any other one, the study ends with what the command printed."""
    command = [str(word) for word in command]
    done = subprocess.run(command, cwd=study.ROOT, capture_output=True, text=True)
    if done.returncode in status:
        print(done.stderr.strip(), file=sys.stderr)
    elif done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.returncode


def predict(name, job, settings, out, ranks):
    """(what is kept of a prediction, the prediction). `ranks`: that compute on this machine at a time."""
    path = out / f"prediction-{name}.json"
    run(study.REHEARSE, "simulate", job, *study.sets(settings), "-o", path, "--quiet")
    text = path.read_bytes()
    one = json.loads(text)
    return {
        "name": name,
        "world_size": one["world_size"],
        "predicted_step_time_s": one["step_time_s"]["mean"],
        "prediction_hash": hashlib.sha256(text).hexdigest(),
        "oversubscribed": ranks > len(os.sched_getaffinity(0)),
    }, one


def steps_of(folder):
    """The seconds of all steps that a run has written down."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["step_time_s"] for line in lines if line.get("step_time_s")]


def measured(times):
    median = statistics.median(times)
    return {"median": median, "deviation": statistics.median(abs(t - median) for t in times), "values": times}


def error(one):
    return one["predicted_step_time_s"] / one["measured_step_time_s"]["median"] - 1


def summary(runs):
    sizes = sorted(abs(error(one)) for one in runs)
    return {"runs": len(sizes), "median_abs_error": statistics.median(sizes), "mean_abs_error": statistics.fmean(sizes), "worst": sizes[-1]}


def median_text(one):
    was = one["measured_step_time_s"]
    return f"{was['median']:.4f} s, {was['deviation']:.4f} s"


def summary_text(summary):
    return "median error {median_abs_error:.1%}, mean {mean_abs_error:.1%}, worst {worst:.1%} of {runs} runs\n".format(**summary)


def checked_options(parser, options, known):
    """The names after --only, or all."""
    names = options.only.split(",") if options.only else list(known)
    for name in names:
        if name not in known:
            parser.error(f"--only {name}: known are {', '.join(known)}")
    if options.steps <= WARM_UP + 2:
        parser.error(f"--steps {options.steps}: must be at least {WARM_UP + 3}, of which the first {WARM_UP} are not counted")
    return names
