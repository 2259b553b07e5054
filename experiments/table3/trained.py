"""The trained part of Table 3: 20 processes train a small GPT; in some runs one of them is killed. Every number comes from real runs."""

import hashlib
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import study
from recovery import Faulted, back_at_level, back_on_course, sensitivity

JOB = "experiments/table3/job.toml"
RANKS = 20
TOKENS = pathlib.Path("out/table3")
VOCABULARY = 512
# A Debian package each: one to train on, two to evaluate on. Theirs are C4 with Wikipedia, PubMed and GitHub, which are not to be had here.
TRAINED_ON, ELSEWHERE = "anarchism", ("git-doc", "jargon-text")

METHODS = {
    "megatron": {"method.name": "megatron", "method.pp": 2, "method.dp": 5, "method.tp": 2, "method.micro_batches": 2},
    "topk-sync": {"method.name": "topk-sync", "method.dp": 20},
    "pipedream-2bw": {"method.name": "pipedream-2bw", "method.pp": 4, "method.dp": 5},
    "adaptive": {"method.name": "adaptive", "method.reduction": "sparse"},
}
UNDISTURBED = "undisturbed"
IN_MEMORY = {"checkpoint.place": "memory", "checkpoint.full_every": 1_000_000}


def recoveries(method, options):
    """{name: settings}: how a run of this method recovers. `checkpoint`: from one that was saved on disk some steps ago. `survivors`: at
    once, without the lost replica, or with a new plan where the method plans. Others show what a state that is not saved costs.

    The state that survivors go on with is that before the step of the fault, as with a checkpoint in memory after each step. To save hours,
    only that one is made (all_runs)."""
    disk = {"recovery.policy": "restart", "recovery.restarts": 1, "train.save_every": options.save_every}
    found = {"checkpoint": disk}
    left = {"megatron": ["moments"], "topk-sync": ["residuals"], "adaptive": ["residuals"], "pipedream-2bw": ["moments", "versions"]}
    for what in left[method]:
        found[f"checkpoint without {what}"] = disk | {"recovery.without": json.dumps([what])}
    policy = "shrink" if method == "adaptive" else "replica"
    found["survivors"] = IN_MEMORY | {"recovery.policy": policy, "recovery.restarts": 1}
    return found


def fault_of(seed, options):
    """(step, rank): the same for all methods."""
    draw = random.Random(seed)
    return draw.randrange(*options.fault), draw.randrange(RANKS)


def prepare_texts(folder=TOKENS):
    """Prepares the three texts with one tokenizer, that of the first."""
    for package in (TRAINED_ON, *ELSEWHERE):
        command = [sys.executable, "data/prepare.py", "--debian", package, "-o", folder / package, "--quiet"]
        if package == TRAINED_ON:
            command += ["--vocab-size", VOCABULARY]
        else:
            command += ["--tokenizer", folder / TRAINED_ON / "tokenizer.json", "--val-fraction", 0.5, "--max-document-chars", 20000]
        if subprocess.run(list(map(str, command)), cwd=study.ROOT).returncode:
            sys.exit(f"table3: the text of {package} could not be prepared")


def texts(folder):
    """What the manifests say of each text."""
    found = {}
    for package in (TRAINED_ON, *ELSEWHERE):
        manifest = json.loads((study.ROOT / folder / package / "manifest.json").read_text())
        source = manifest["inputs"][0]
        found[package] = {key: source.get(key) for key in ("version", "sha256")} | {
            "train_tokens": manifest["train"]["tokens"],
            "validation_tokens": manifest["val"]["tokens"],
        }
    return found


def losses_of(folder):
    """{step: training loss} of a run's metrics."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if row.get("loss") is not None}


def state_in(checkpoint):
    """The files of the last checkpoint: all weights, moments and residuals."""
    return (study.ROOT / checkpoint).glob("*.safetensors")


def train(method, settings, seed, options, fault=None):
    """One run: losses of all steps, losses at the end, and of a faulted run the step that it went on from."""
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "run"
        more = []
        if fault:
            step, rank = fault
            trace = pathlib.Path(scratch) / "fault.toml"
            trace.write_text(f'version = 1\n[[event]]\nkind = "rank_dies"\nrank = {rank}\nstep = {step}\nphase = "backward"\n')
            more = ["--faults", trace]
        keys = METHODS[method] | settings | {"train.seed": seed, "train.steps": options.steps, "train.out": out}
        keys |= {"train.data": options.tokens / TRAINED_ON}
        if not fault:
            keys["train.evaluate"] = json.dumps([str(options.tokens / package) for package in ELSEWHERE])
        one = study.rehearse("train", JOB, "--nproc", RANKS, *study.sets(keys), *more)
        found = {"curve": losses_of(out), "validation": one["validation_loss"]}
        found["elsewhere"] = {pathlib.Path(path).name: loss for path, loss in one["evaluated"].items()}
        found["state"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(state_in(one["checkpoint"]))}
        if fault:
            (line,) = map(json.loads, (out / "recoveries.jsonl").read_text().splitlines()[:1])
            found |= {"goes_on_from": line["from_step"], "ranks": line["ranks"], "down_s": line["down_s"]}
        return found


def cached(options, method, name, seed, make):
    """The run's record, kept in the output folder, so that a study that was interrupted goes on."""
    path = options.output / "runs" / f"{method} {name} {seed}.json"
    if path.exists():
        found = json.loads(path.read_text())
        return found | {"curve": {int(step): loss for step, loss in found["curve"].items()}}
    found = make()
    study.write(path.parent, {path.name: json.dumps(found)})
    return found


def all_runs(method, options):
    """({seed: undisturbed}, {recovery: {seed: run}})"""

    def run(name, settings, seed):
        fault = None if name == UNDISTURBED else fault_of(seed, options)
        if name == "survivors":
            settings = settings | {"train.save_every": fault[0] - 1}
        say = f"{method}, {name}, seed {seed}"
        return cached(
            options, method, name, seed, lambda: print(say, file=sys.stderr, flush=True) or train(method, settings, seed, options, fault)
        )

    twins = {seed: run(UNDISTURBED, {}, seed) for seed in range(1, options.seeds + 1)}
    chosen = recoveries(method, options)
    return twins, {name: {seed: run(name, keys, seed) for seed in seeds_of(name, options)} for name, keys in chosen.items()}


def seeds_of(recovery, options):
    """Runs that lose state are shown for the size of the effect, with fewer seeds."""
    return range(1, 1 + (min(options.seeds, options.lossy_seeds) if "without" in recovery else options.seeds))


def of_steps(steps):
    """Recovery steps over seeds; None: not recovered within the limit."""
    there = [one for one in steps if one is not None]
    return {"steps": study.Sample(there) if there else None, "failed": len(steps) - len(there), "values": steps}


def row(method, name, twins, runs, options):
    faulted = {
        seed: Faulted(fault_of(seed, options)[0], run["goes_on_from"], run["curve"], twins[seed]["curve"]) for seed, run in runs.items()
    }
    ends = {seed: run["validation"] for seed, run in runs.items()}
    ratio = study.Sample([ends[seed] / twins[seed]["validation"] for seed in ends])
    return {
        "method": method,
        "recovery": name,
        "again": study.Sample([run.again for run in faulted.values()]),
        "on_course": of_steps([back_on_course(run) for run in faulted.values()]),
        "level": of_steps([back_at_level(run) for run in faulted.values()]),
        "ranks": sorted({run["ranks"] for run in runs.values()}),
        "down_s": [run["down_s"] for run in runs.values()],
        "same_state": sum(run["state"] == twins[seed]["state"] for seed, run in runs.items()),
        "loss_ratio": ratio,
        "p": study.paired(study.Sample(list(ends.values())), study.Sample([twins[seed]["validation"] for seed in ends])),
        "sensitivity": sensitivity(list(faulted.values())),
        "excess": excess(faulted),
    }


def excess(faulted, width=10):
    """[by seed: [relative loss above that of the twin, mean of `width` steps, by executed steps / width]]: for the picture."""
    curves = []
    for run in faulted.values():
        points = []
        for first in range(run.goes_on_from + 1, max(run.curve) - width + 2, width):
            window = range(first, first + width)
            points.append(sum(run.curve[s] for s in window) / sum(run.twin[s] for s in window) - 1)
        curves.append(points)
    return curves


def perplexities(twins_by_method, options):
    """[{"method", text: Sample of perplexities, "p": {text: against the first method}}] of the undisturbed runs."""
    rows, base = [], None
    for method, twins in twins_by_method.items():
        of_text = {TRAINED_ON: study.Sample([math.exp(twins[seed]["validation"]) for seed in twins])}
        for text in ELSEWHERE:
            of_text[text] = study.Sample([math.exp(twins[seed]["elsewhere"][text]) for seed in twins])
        base = base or of_text
        p = {text: None if of_text is base else study.paired(of_text[text], base[text]) for text in of_text}
        rows.append({"method": method, "texts": of_text, "p": p})
    return rows


def study_of(options):
    """{"rows", "perplexity", "faults"}"""
    twins_by_method, rows = {}, []
    for method in options.methods:
        twins, runs = all_runs(method, options)
        twins_by_method[method] = twins
        rows += [row(method, name, twins, of_seed, options) for name, of_seed in runs.items()]
    return {
        "rows": rows,
        "perplexity": perplexities(twins_by_method, options),
        "faults": {seed: fault_of(seed, options) for seed in range(1, options.seeds + 1)},
        "texts": texts(options.tokens),
    }
