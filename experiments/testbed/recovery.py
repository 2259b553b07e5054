#!/usr/bin/env python3
"""What recoveries take, predicted and measured: each recovery policy of `rehearse train` on two ranks, and an elastic run on two nodes of a
testbed (docs/testbed.md), under several kinds of failure.

Measured beforehand: segments and updates (`rehearse profile`), and for each policy two kills, which say how long a recovery of that policy
takes, and how much longer than usual its first steps take: processes are cold, and under some policies a rank is still missing. From
these the long-run walk (`rehearse simulate --duration`) predicts failures of other kinds at other distances from a checkpoint. All
predictions are written, with their hashes, before those runs.

    tools/python experiments/testbed/recovery.py              # about 15 minutes on two cores; needs what tools/testbed needs
    tools/python experiments/testbed/recovery.py --only shrink,elastic --kinds kill -o out/short
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2])]
import study  # noqa: E402

from testbed import bed, platform, private  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent.relative_to(study.ROOT)
JOB = HERE / "recovery.toml"
RANKS = 2
SAVE_EVERY = 8
TIMEOUT, HEARTBEAT = 6.0, 0.5  # run.timeout and run.heartbeat of the job
POLICIES = ("restart", "spare", "shrink", "grow", "replica", "elastic")
# kind: (event of a fault trace, seconds until the run notices by its own rules)
KINDS = {
    "kill": ("rank_dies", 0.0),
    "hang": ("hangs", TIMEOUT + HEARTBEAT),
    "stop": ("freezes", TIMEOUT + HEARTBEAT),
}
CALIBRATIONS = ((24, 1), (24, 0))  # step and rank of the kills that calibrate a policy; as far from a checkpoint as a trial can be
# kind, step, rank. None in the step after a checkpoint, in which it is being written: whether it is complete then is a matter of luck.
TRIALS = (("kill", 23, 0), ("kill", 27, 1), ("hang", 20, 1), ("stop", 22, 1))
PATIENCE = 180  # seconds for a trial


def settings(policy, out):
    keys = {"cluster.profile": out / "profile.json", "train.data": out / "tokens", "train.save_every": SAVE_EVERY}
    if policy != "elastic":
        keys |= {"recovery.policy": policy, "method.dp": RANKS}
    return keys


def place_of(policy, out):
    """Settings: where the ranks of a run are, here or on a testbed, whose network is the platform's."""
    return {"cluster.name": HERE / "nodes.toml", "cluster.profile": out / "profile-nodes.json"} if policy == "elastic" else {}


def plan_after(policy, kind):
    """Settings: the plan after the failure. Only a rank that was killed is missed: one that hangs is ended by its launcher, which starts
    another one. An elastic run starts another one in any case."""
    return {"cluster.world_size": RANKS - 1, "method.dp": RANKS - 1} if (policy, kind) == ("shrink", "kill") else {}


def walk(events, settings, out):
    """The long run with these lines of a trace."""
    trace = out / "walk.toml"
    (study.ROOT / trace).write_text("version = 1\n" + events)
    keys = {"cluster.profile": out / "profile.json", "method.dp": RANKS, "faults.trace": trace, "train.save_every": SAVE_EVERY} | settings
    return study.rehearse("simulate", JOB, *study.sets(keys), "--duration", "10min", "--seeds", 1)


def slow_start(calibrations, steps, pace):
    """Seconds that the first steps after a recovery take longer than `pace` each: the mean of the recoveries that calibrate the policy."""
    return statistics.fmean(max(0.0, one["done_after_s"][steps - 1] - steps * pace) for one in calibrations)


def predict(policy, trial, calibrations, out):
    """What the walk predicts; real runs go on from their newest checkpoint under every policy, so it walks a restart. `calibrations`, kills
    under the same policy, say how long a recovery takes, the loading of the checkpoint included, and how slow its first steps are. With
    which plan steps are done again is known."""
    kind, at, rank = trial
    place = place_of(policy, out)
    whole = walk("", place, out)
    after = walk("", place | plan_after(policy, kind), out)["step_time_s"]
    seconds = (at - 0.99) * whole["step_time_s"] + (at - 1) // SAVE_EVERY * whole["checkpoint"]["stall_s"]
    keys = {"recovery.detection": f"{KINDS[kind][1]}s", "recovery.replacement": "0s"}
    one = walk(f'[[event]]\nkind = "rank_dies"\nrank = {rank}\nat = "{seconds:.6f}s"\n', place | keys, out)
    lost = one["lost_s"]
    calibrated = walk("", place | plan_after(policy, "kill"), out)["step_time_s"]
    rework = lost["rework"] * after / whole["step_time_s"] + slow_start(calibrations, round(one["lost_steps"]), calibrated)
    down = statistics.fmean(of["detection_s"] + of["restart_s"] for of in calibrations)
    return {
        "detection_s": lost["detection"],
        "restart_s": down,
        "rework_s": rework,
        "total_s": lost["detection"] + down + rework,
        "steady_step_s": after,
        "steps_again": one["lost_steps"],
        "hash": hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16],
    }


class Watch:
    """The times at which lines of a run's files appeared."""

    def __init__(self, folder):
        self.folder = folder

    def lines(self, name):
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, what, alive):
        """The time when what() became true."""
        end = time.monotonic() + PATIENCE
        while not what():
            if not alive():
                raise RuntimeError(f"{self.folder}: the run ended before what was waited for")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.folder}: nothing happened for {PATIENCE} s")
            time.sleep(0.002)
        return time.monotonic()

    def last_step(self):
        steps = [line["step"] for line in self.lines("metrics.jsonl") if "loss" in line]
        return steps[-1] if steps else 0


def launch(policy, folder, trace, network, out):
    """The launchers of a run: one here, or for an elastic run one on each node."""
    keys = settings(policy, out) | {"train.out": folder}
    command = [study.REHEARSE, "train", JOB, *study.sets(keys), "--quiet", "--faults", trace]
    log = (study.ROOT / out / f"{folder.name}.log").open("w")
    if policy != "elastic":
        yield subprocess.Popen([*map(str, command), "--nproc", str(RANKS)], cwd=study.ROOT, stdout=log, stderr=log)
        return
    for node in network.nodes:
        yield network.start(node, [*map(str, command), "--nproc", "1", "--nnodes", f"1:{RANKS}"], stdout=log, stderr=log)


def measure(policy, trial, network, name, out):
    """One run with a failure: when it noticed, went on, and was where it had been."""
    kind, at, rank = trial
    folder = out / name
    shutil.rmtree(study.ROOT / folder, ignore_errors=True)
    trace = out / f"{name}.toml"
    event = f'kind = "{KINDS[kind][0]}"\nrank = {rank}\nstep = {at}\nphase = "begin"'
    if kind != "kill":
        event += '\nduration = "1h"'
    (study.ROOT / trace).write_text(f"version = 1\n[[event]]\n{event}\n")
    watch = Watch(study.ROOT / folder)
    started = list(launch(policy, folder, trace, network, out))

    def alive():
        return any(child.poll() is None for child in started)

    try:
        struck = watch.until(lambda: watch.lines("faults.jsonl"), alive)
        again = watch.until(lambda: watch.lines("recoveries.jsonl"), alive)
        (note,) = watch.lines("recoveries.jsonl")[:1]
        from_step = note["from_step"]
        done = [watch.until(lambda step=step: watch.last_step() >= step, alive) for step in range(from_step + 1, at)]
        there = done[-1] if done else again
        after = watch.until(lambda: watch.last_step() >= at + 3, alive)
        for child in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
    finally:
        for child in started:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
                child.wait()
    steps = [line["step_time_s"] for line in watch.lines("metrics.jsonl") if line.get("step_time_s") and line["step"] > at + 1]
    return {
        "detection_s": again - struck - note["down_s"],
        "restart_s": note["down_s"],
        "rework_s": there - again,
        "total_s": there - struck,
        "steps_again": at - 1 - from_step,
        "done_after_s": [at_time - again for at_time in done],
        "ranks": note["ranks"],
        "steady_step_s": statistics.median(steps) if steps else None,
        "after_s": after - there,
    }


def trials(policies, kinds, network, runs, out):
    """Calibrates each policy by kills, predicts other failures, writes the predictions, and then runs them."""
    for policy in policies:
        first = []
        for i, where in enumerate(CALIBRATIONS):
            print(f"{policy}: calibration {i + 1}", file=sys.stderr, flush=True)
            first.append(measure(policy, ("kill", *where), network, f"{policy}-calibration-{i + 1}", out))
        for trial in (trial for trial in TRIALS if trial[0] in kinds):
            one = {"policy": policy, "kind": trial[0], "step": trial[1], "rank": trial[2], "calibrations": first}
            one["predicted"] = predict(policy, trial, first, out)
            runs.append(one)
    study.write(study.ROOT / out, {"predictions.json": study.to_json({"schema_version": 1, "runs": runs})})
    for one in runs:
        print(f"{one['policy']}: {one['kind']} in step {one['step']}", file=sys.stderr, flush=True)
        name = f"{one['policy']}-{one['kind']}-{one['step']}"
        try:
            one["measured"] = measure(one["policy"], (one["kind"], one["step"], one["rank"]), network, name, out)
        except RuntimeError as error:
            one["failed"] = str(error)


def error(one):
    return one["predicted"]["total_s"] / one["measured"]["total_s"] - 1


def summary(runs):
    """Errors of the totals of the runs that recovered."""
    sizes = sorted(abs(error(one)) for one in runs if "measured" in one)
    if not sizes:
        return {}
    return {
        "median_abs_error": statistics.median(sizes),
        "worst": sizes[-1],
        "recoveries": len(sizes),
        "within_15_percent": sum(size <= 0.15 for size in sizes),
    }


def table(runs):
    header = [
        "policy",
        "failure",
        "in step",
        "steps again",
        *(f"{part}: predicted, measured" for part in ("detection", "restart", "rework")),
    ]
    rows = []
    for one in runs:
        was, said = one.get("measured"), one["predicted"]
        line = [one["policy"], one["kind"], str(one["step"])]
        if was is None:
            rows.append([*line, *[""] * 6, one["failed"]])
            continue
        line.append(f"{said['steps_again']:.0f}, {was['steps_again']}")
        line += [f"{said[part]:.2f} s, {was[part]:.2f} s" for part in ("detection_s", "restart_s", "rework_s", "steady_step_s", "total_s")]
        rows.append([*line, f"{100 * error(one):+.1f}%"])
    return study.table([*header, "step after", "total", "error of the total"], rows)


SENTENCE = "a median error of {median_abs_error:.1%} and a worst of {worst:.1%}; {within_15_percent} of {recoveries} are within 15%"


def text_of(runs):
    of = summary(runs)
    return "# Recoveries, predicted and measured\n\n" + table(runs) + (f"\nThe predictions have {SENTENCE.format(**of)}.\n" if of else "")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/testbed-recovery"), metavar="FOLDER")
    parser.add_argument("--only", metavar="POLICY,...", default=",".join(POLICIES), help="(%(default)s)")
    parser.add_argument("--kinds", metavar="KIND,...", default=",".join(KINDS), help="(%(default)s)")
    options = parser.parse_args(argv)
    policies, kinds = options.only.split(","), options.kinds.split(",")
    for flag, names, known in (("--only", policies, POLICIES), ("--kinds", kinds, KINDS)):
        for name in names:
            if name not in known:
                parser.error(f"{flag} {name}: known are {', '.join(known)}")
    os.chdir(study.ROOT)
    out = options.output
    out.mkdir(parents=True, exist_ok=True)
    prepare = [sys.executable, "data/prepare.py", "-o", out / "tokens", "--quiet"]
    profile = [study.REHEARSE, "profile", "-o", out / "profile.json", "--nproc", RANKS, "--threads", 1]
    segments = ["--model", "gpt-demo", "--samples", "8,16", "--quiet"]
    alone = [study.REHEARSE, "profile", "-o", out / "profile-nodes.json", "--nproc", RANKS, "--threads", 1, "--no-network"]
    for command in (prepare, [*profile, *segments], [*alone, *segments]):
        if subprocess.run(list(map(str, command))).returncode:
            sys.exit(f"{command[0]} failed")
    runs = []

    def on_testbed():
        with bed.Bed(platform.load(str(HERE / "nodes.toml"))) as network:
            trials(policies, kinds, network, runs, out)
        result = {"schema_version": 1, "summary": summary(runs), "runs": runs}
        study.write(out, {"recovery.json": study.to_json(result), "recovery.md": text_of(runs)})
        print(text_of(runs))
        return 0

    try:
        return private.inside(on_testbed)
    except private.Missing as missing:
        print(f"recovery.py: {missing}", file=sys.stderr)
        return private.CANNOT


if __name__ == "__main__":
    sys.exit(main())
