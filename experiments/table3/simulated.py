"""The simulated part of Table 3: one of 32 processes dies on the paper's cluster. The long-run walk predicts what a recovery takes; divided
by the step time, that is how many steps pass meanwhile."""

import pathlib
import random
import tempfile

import study

JOB = "experiments/table2/110m-fp16.toml"
METHODS = ("megatron", "topk-sync", "pipedream-2bw", "adaptive")
POLICIES = ("restart", "spare", "shrink", "replica")
EVERY = 70  # steps between checkpoints: half of them are lost on average, the 35 that the paper prints for Megatron-LM
DETECTION = "300ms"  # a closed connection (docs/multi-host.md)
# cold: all processes start again, a new plan or quorum takes the defaults of [recovery]. warm: processes stay, and go on as fast as real
# ranks of `rehearse train` did here (docs/performance.md: 2.5 s from four to three ranks of GPT-2 124M).
SPEEDS = {"cold": {}, "warm": {"recovery.restart": "2.5s", "recovery.takeover": "2.5s", "recovery.replan": "2.5s"}}
DURATION = "30min"
PARTS = ("detection", "restart", "rework", "replanning", "degraded", "waiting")


def fault_of(seed, ranks):
    """(step, rank): somewhere between two checkpoints, long after the start."""
    draw = random.Random(seed)
    return 10 * EVERY + draw.randrange(1, EVERY + 1), draw.randrange(ranks)


def walk(trace, keys):
    """The long run with this trace."""
    keys = {"faults.trace": trace, "recovery.detection": DETECTION, "recovery.replacement": "0s", "train.save_every": EVERY} | keys
    return study.rehearse("simulate", JOB, *study.sets(keys), "--duration", DURATION, "--fidelity", "analytic")


def undisturbed(settings, folder):
    """(step time, how long steps wait for a checkpoint)"""
    trace = pathlib.Path(folder) / "none.toml"
    trace.write_text("version = 1\n")
    one = walk(trace, settings)
    return one["step_time_s"], one["checkpoint"]["stall_s"]


def recovery(settings, pace, policy, speed, seed, folder):
    """{"steps", "rework", "seconds"} of one fault; None: the method cannot recover so. `pace`: of the undisturbed run."""
    step, rank = fault_of(seed, 32)
    seconds = (step - 0.5) * pace[0] + (step - 1) // EVERY * pace[1]
    trace = pathlib.Path(folder) / f"{policy}-{speed}-{seed}.toml"
    trace.write_text(f'version = 1\n[[event]]\nkind = "rank_dies"\nrank = {rank}\nat = "{seconds:.9f}s"\n')
    try:
        one = walk(trace, settings | SPEEDS[speed] | {"recovery.policy": policy})
    except study.Refused:
        return None
    lost = sum(one["lost_s"][part] for part in PARTS)
    return {"steps": lost / one["step_time_s"], "rework": one["lost_steps"], "seconds": lost, "step_time_s": one["step_time_s"]}


def rows(options):
    """[{"method", "policy", "speed", "steps": Sample, "rework": Sample, "seconds": Sample}]"""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for method in options.methods:
            settings = {"method.name": method}
            if method == "adaptive":
                settings = study.planned(JOB, pathlib.Path(folder) / "plan.toml")
            pace = undisturbed(settings, folder)
            work = [(policy, speed, seed) for policy in POLICIES for speed in SPEEDS for seed in range(1, options.seeds + 1)]
            results = study.in_parallel(lambda one, s=settings, p=pace: recovery(s, p, *one, folder), work)
            of = {}
            for (policy, speed, _), result in zip(work, results, strict=True):
                of.setdefault((policy, speed), []).append(result)
            for (policy, speed), several in of.items():
                if None in several:
                    continue
                one = {"method": method, "policy": policy, "speed": speed, "step_time_s": several[0]["step_time_s"]}
                found.append(one | {key: study.Sample([r[key] for r in several]) for key in ("steps", "rework", "seconds")})
    return found
