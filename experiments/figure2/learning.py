"""The real half of Figure 2: what sparsification and its forms of error feedback do to the loss of a small GPT, trained by
four processes on real text, over seeds that fix initial weights and data order."""

import math
import os
import subprocess
import sys
import tempfile

import study

JOB = "experiments/figure2/learn.toml"
TOKENS = "out/figure2/tokens"
RANKS = 4
FORMS = ("conserving", "printed", "literal")
KEPT = (0.1, 0.01)


def prepare_text(folder=TOKENS):
    """The text of `make demo` in as many tokens as the model's vocabulary has."""
    command = [sys.executable, "data/prepare.py", "-o", folder, "--vocab-size", "512", "--quiet"]
    if subprocess.run(command, cwd=study.ROOT).returncode:
        sys.exit("figure2: the text could not be prepared")


def forms_of_feedback():
    """{name: settings}: uniform top-k with each form at each density, and dense."""
    variants = {"dense": {"method.name": "ddp"}}
    for kept in KEPT:
        for form in FORMS:
            variants[f"{form}, {kept:.0%} kept"] = {
                "method.name": "topk-sync",
                "method.density": kept,
                "method.feedback": form,
            }
    return variants


def train(settings, seed, options):
    """Validation loss and training losses of one run."""
    with tempfile.TemporaryDirectory() as out:
        settings = settings | {"train.seed": seed, "train.steps": options.steps, "train.out": out, "train.data": options.tokens}
        one = study.rehearse("train", JOB, "--nproc", RANKS, *study.sets(settings))
    return {"first": one["losses"][0], "last": one["losses"][-1], "validation": one["validation_loss"]}


def diverged(run):
    """It ended above where it began, or nowhere."""
    return not math.isfinite(run["validation"] or math.nan) or run["validation"] > run["first"]


def study_of(variants, options, against):
    """[row]: each variant over all seeds, with the paired test against one of them."""
    rows = []
    for name, settings in variants.items():
        if settings is None:
            continue
        runs = [train(settings, seed, options) for seed in range(1, options.seeds + 1)]
        losses = [run["validation"] for run in runs if not diverged(run)]
        rows.append({
            "variant": name,
            "settings": settings,
            "validation_loss": study.Sample(losses) if losses else None,
            "diverged": sum(map(diverged, runs)),
            "seeds": len(runs),
        })  # fmt: skip
        print(f"{name}: {losses}", file=sys.stderr, flush=True)
    base = next(row for row in rows if row["variant"] == against)
    for row in rows:
        whole = row["diverged"] == base["diverged"] == 0
        row["more_than"] = row["validation_loss"].mean - base["validation_loss"].mean if row["validation_loss"] else None
        row["p"] = study.paired(row["validation_loss"], base["validation_loss"]) if whole and row is not base else None
    return rows


def verdicts(rows):
    """[sentence]: at each density, the forms in the order of their losses and whether the seeds can tell two of them apart."""
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


def oversubscribed():
    return RANKS > len(os.sched_getaffinity(0))
