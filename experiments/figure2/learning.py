"""The trained part of Figure 2: the effect of layer-wise sparsity and error feedback on the loss of a small GPT. Four processes train it
on real text. A seed fixes initial weights and data order."""

import hashlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import printed
import study
import timing

JOB = "experiments/figure2/learn.toml"
TOKENS = "out/figure2/tokens"
RANKS = 4
DENSE = "dense"
AS_MUCH = "uniform, as much kept"
TOTAL = "full, eq. 2 as printed"
FORMS = ("conserving", "printed", "literal")
KEPT = (0.1, 0.01)


def prepare_text(folder=TOKENS):
    """Prepares the text of `make demo` with the vocabulary size of the model."""
    command = [sys.executable, "data/prepare.py", "-o", folder, "--vocab-size", "512", "--quiet"]
    if subprocess.run(command, cwd=study.ROOT).returncode:
        sys.exit("figure2: the text could not be prepared")


def forms_of_feedback():
    """{name: settings}: uniform top-k with each form at each density."""
    variants = {}
    for kept in KEPT:
        for form in FORMS:
            variants[f"{form}, {kept:.0%} kept"] = {
                "method.name": "topk-sync",
                "method.density": kept,
                "method.feedback": form,
            }
    return variants


def kept_in(folder):
    """The fraction of all gradients that a run sent after warm-up; None if it was not planned again."""
    plan = folder / "plan.toml"
    if not plan.exists():
        return None
    layers = tomllib.loads(plan.read_text())["plan"]["layers"]
    observed = json.loads((folder / "warm-up.profile.json").read_text())["variances"]
    sizes = [one["elements"] for one in observed]  # in the order of the model's segments, like layers
    return sum(n * one["density"] for n, one in zip(sizes, layers, strict=True)) / sum(sizes)


def train(settings, seed, options):
    """First, last and validation loss of one run, and the fraction of its gradients that it kept."""
    with tempfile.TemporaryDirectory() as out:
        settings = settings | {"train.seed": seed, "train.steps": options.steps, "train.out": out, "train.data": options.tokens}
        one = study.rehearse("train", JOB, "--nproc", RANKS, *study.sets(settings))
        kept = kept_in(pathlib.Path(out))
    return {"first": one["losses"][0], "last": one["losses"][-1], "validation": one["validation_loss"], "kept": kept}


def diverged(run):
    """Whether the loss ended above its start, or is not finite."""
    return not math.isfinite(run["validation"] or math.nan) or run["validation"] > run["first"]


def row_of(name, settings, options):
    """A variant over all seeds."""
    runs = [train(settings, seed, options) for seed in range(1, options.seeds + 1)]
    losses = [run["validation"] for run in runs if not diverged(run)]
    kept = [run["kept"] for run in runs if run["kept"] is not None]
    print(f"{name}: {losses}", file=sys.stderr, flush=True)
    return {
        "variant": name,
        "settings": settings,
        "validation_loss": study.Sample(losses) if losses else None,
        "kept": study.Sample(kept) if kept else None,
        "diverged": sum(map(diverged, runs)),
        "seeds": len(runs),
    }


def tested(rows):
    """The rows with their difference from the first row. If no run of either diverged, also the ratio of losses for equal seeds and p of
    the paired test, because seeds differ more than variants."""
    base = rows[0]
    out = []
    for row in rows:
        loss, whole = row["validation_loss"], row["diverged"] == base["diverged"] == 0
        comparable = loss and base["validation_loss"]
        out.append(row | {
            "more_than": loss.mean - base["validation_loss"].mean if comparable else None,
            "relative": study.Sample([a / b for a, b in zip(loss.values, base["validation_loss"].values, strict=True)]) if whole else None,
            "p": study.paired(loss, base["validation_loss"]) if whole and row is not base else None,
        })  # fmt: skip
    return out


def dense(options):
    return row_of(DENSE, {"method.name": "ddp"}, options)


def forms(options, dense_row):
    """[row]: dense, and each form of feedback against it."""
    return tested([dense_row, *(row_of(name, settings, options) for name, settings in forms_of_feedback().items())])


def ablation(options, dense_row):
    """[row]: the full adaptive method, the method without one component at a time, and dense, each compared with the first. Placement
    moves work and does not change numbers, so it has no row. Eq. 3 decides how much is kept in total, so a second uniform run keeps the
    same amount. Eq. 2 as printed sums over a layer's entries, so that eq. 3 keeps more of large layers; the full method takes the mean."""
    whole = {"method.name": "adaptive", "method.reduction": "sparse", "method.feedback": "conserving"}
    full = row_of(printed.FULL, whole, options)
    as_much = timing.everywhere(round(1 - full["kept"].mean, 4))
    return tested([
        full,
        row_of(TOTAL, whole | {"method.variance": "total"}, options),
        row_of(printed.LAYERS, whole | timing.everywhere(timing.MIDDLE), options),
        row_of(AS_MUCH, whole | as_much, options),
        row_of(printed.FEEDBACK, whole | {"method.feedback": "literal"}, options),
        dense_row,
    ])  # fmt: skip


def form_against_form(rows):
    """[sentence]: for each density, the forms in the order of their losses, and whether two of them differ significantly over the seeds."""
    of = {row["variant"]: row for row in rows}
    lines = []
    for kept in (f"{part:.0%} kept" for part in KEPT):
        there = {form: of[f"{form}, {kept}"] for form in FORMS if f"{form}, {kept}" in of}
        if "conserving" not in there or any(row["diverged"] for row in there.values()):
            diverged = ", ".join(f"{form} {row['diverged']} of {row['seeds']}" for form, row in there.items())
            lines.append(f"{kept}: diverged: {diverged}.")
            continue
        base = there["conserving"]["validation_loss"]
        for form in FORMS[1:]:
            other = there[form]["validation_loss"]
            p = study.paired(other, base)
            told = p is not None and p < 0.05
            how = "above" if other.mean > base.mean else "below"
            lines.append(
                f"{kept}: {form} ends {abs(other.mean - base.mean):.3f} {how} conserving (p = {study.probability(p) or 'none'}"
                f"{'' if told else ': these seeds cannot tell them apart'}); none diverged."
            )
    return lines


def inputs():
    """What the losses depend on besides the text, so that a test can detect changes: hashes of files, and of the program of each variant
    whose plan does not depend on measurements."""
    variants = {DENSE: {"method.name": "ddp"}} | forms_of_feedback()
    programs = {
        name: study.rehearse("simulate", JOB, *study.sets(settings), "--fidelity", "analytic", "--seeds", 1)["program_hash"]
        for name, settings in variants.items()
    }
    files = (JOB, "models/gpt-tiny.toml")
    return {
        "files": {name: hashlib.sha256((study.ROOT / name).read_bytes()).hexdigest() for name in files},
        "programs": programs,
    }


def oversubscribed():
    return RANKS > len(os.sched_getaffinity(0))
