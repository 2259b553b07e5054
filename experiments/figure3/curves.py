"""What Figure 3 is drawn from: losses of real training, steps of the paper's cluster that are simulated, and both joined: after k steps of
a method, a curve is at its loss after k steps, and at k times the simulated seconds of its step."""

import hashlib
import itertools
import json
import math
import pathlib
import statistics
import sys
import tempfile

import study

sys.path.append(str(study.ROOT / "experiments/figure2"))
import learning

MEGATRON, TOPK = "megatron", "topk-sync"
DENSE_SUMS, SPARSE = "adaptive, whole gradients", "adaptive, every layer sparse"
SUMS = {DENSE_SUMS: ("dense",), SPARSE: ("sparse", "two_level")}  # of the planner, the fastest of which is taken
ADAPTIVE = {"method.name": "adaptive", "method.feedback": "conserving"}
# variant: what four processes train. The planner chooses sums for the cluster; every sum of sparse layers is the same mathematics.
TRAINED = {
    MEGATRON: {"method.name": "megatron", "method.pp": 2, "method.tp": 2, "method.dp": 1},
    "zero2": {"method.name": "zero2"},
    "pipedream-2bw": {"method.name": "pipedream-2bw", "method.pp": 2, "method.dp": 2},
    TOPK: {"method.name": "topk-sync"},
    DENSE_SUMS: ADAPTIVE | {"method.reduction": "dense"},
    SPARSE: ADAPTIVE | {"method.reduction": "sparse"},
}
ROUNDING = 1e-3  # losses that are closer are those of the same mathematics
CLOCKS = {"110m": "experiments/table2/110m.toml", "110m-fp16": "experiments/table2/110m-fp16.toml"}


def validation_losses(metrics):
    """[(steps, validation loss)] of a metrics.jsonl."""
    lines = map(json.loads, metrics.read_text().splitlines())
    return [(line["step"], line["validation_loss"]) for line in lines if line.get("validation_loss") is not None]


def train(settings, seed, options):
    """[(steps, validation loss)] of one run."""
    with tempfile.TemporaryDirectory() as out:
        fixed = {"train.seed": seed, "train.steps": options.steps, "train.eval_every": options.every, "train.data": options.tokens}
        study.rehearse("train", learning.JOB, "--nproc", learning.RANKS, *study.sets(settings | fixed | {"train.out": out}))
        return validation_losses(pathlib.Path(out) / "metrics.jsonl")


def width(values):
    """Width of the 95% interval of the mean over the seeds."""
    return 2 * (study.Sample(values).ci95 or 0)


def curve_of(variant, options):
    """Losses of a variant over all seeds. band: mean width of the interval in the second half of the run. rises: the part of all
    evaluations whose loss is above that of the evaluation before."""
    runs = [train(TRAINED[variant], seed, options) for seed in range(1, options.seeds + 1)]
    steps = [step for step, _ in runs[0]]
    losses = [[loss for _, loss in run] for run in runs]
    print(f"{variant}: {[run[-1] for run in losses]}", file=sys.stderr, flush=True)
    late = list(zip(*losses, strict=True))[len(steps) // 2 :]
    return {
        "variant": variant,
        "steps": steps,
        "losses": losses,
        "final": study.Sample([run[-1] for run in losses]),
        "band": statistics.fmean(width(list(values)) for values in late),
        "rises": statistics.fmean(b > a for run in losses for a, b in itertools.pairwise(run)),
    }


def compared(curves):
    """The curves with the difference of their final losses from Megatron-LM's, seed by seed, and p."""
    base = next(curve["final"] for curve in curves if curve["variant"] == MEGATRON)
    for curve in curves:
        final = curve["final"]
        curve["more"] = study.Sample([a - b for a, b in zip(final.values, base.values, strict=True)])
        curve["same"] = all(abs(more) < ROUNDING for more in curve["more"].values)
        curve["p"] = None if curve["same"] else study.paired(final, base)
    return curves


def target_of(curves):
    """The lowest loss that every run reaches."""
    return max(min(run) for curve in curves for run in curve["losses"])


def steps_to(target, steps, losses):
    """Steps until a run is first at the target, on the line between two evaluations; inf: never. A run that is there at its first
    evaluation counts its steps."""
    for place, (step, loss) in enumerate(zip(steps, losses, strict=True)):
        if loss > target or not math.isfinite(loss):
            continue
        if place == 0:
            return float(step)
        before, high = steps[place - 1], losses[place - 1]
        return before + (step - before) * (high - target) / (high - loss)
    return math.inf


def settings_of(variant, job, folder):
    """[settings]: the ways to run a variant on the cluster, one of which is the fastest."""
    if variant not in SUMS:
        return [{"method.name": variant}]
    name = f"{pathlib.Path(job).stem}-{variant}".replace(" ", "-").replace(",", "")
    return [study.planned(job, folder / f"plan-{name}-{way}.toml", ADAPTIVE | {"method.reduction": way}) for way in SUMS[variant]]


def clock_of(job, curves, target, options):
    """[row]: seconds of a step on the simulated cluster, and to the target, with p against Megatron-LM."""

    def simulated(variant):
        ways = settings_of(variant, job, options.output)
        seeds = ("--seeds", options.seeds, "--fidelity", options.fidelity)
        found = [study.rehearse("simulate", job, *study.sets(way), *seeds, *study.ALL_STEPS) for way in ways]
        return min(found, key=lambda one: one["step_time_s"]["mean"])

    found = study.in_parallel(simulated, [curve["variant"] for curve in curves])
    rows = []
    for curve, one in zip(curves, found, strict=True):
        seconds = study.Sample(one["step_time_s"]["values"])
        steps = [steps_to(target, curve["steps"], run) for run in curve["losses"]]
        rows.append({
            "variant": curve["variant"],
            "mesh": {axis: n for axis, n in one["mesh"].items() if n > 1},
            "step_time_s": seconds,
            "steps_to_target": study.Sample(steps),
            "seconds_to_target": study.Sample([k * s for k, s in zip(steps, seconds.values, strict=True)]),
        })  # fmt: skip
    base = next(row["seconds_to_target"] for row in rows if row["variant"] == MEGATRON)
    for row in rows:
        row["of_megatron"] = row["seconds_to_target"].mean / base.mean
        row["p"] = None if row["variant"] == MEGATRON else study.paired(row["seconds_to_target"], base)
    return rows


def inputs():
    """What the losses depend on besides the text: hashes of files, and of the programs whose plans no measurement decides."""
    files = (learning.JOB, "models/gpt-tiny.toml")
    return {
        "files": {name: hashlib.sha256((study.ROOT / name).read_bytes()).hexdigest() for name in files},
        "programs": {
            name: study.rehearse("simulate", learning.JOB, *study.sets(settings), "--fidelity", "analytic", "--seeds", 1)["program_hash"]
            for name, settings in TRAINED.items()
            if settings["method.name"] != "adaptive"
        },
    }
