"""The simulated part of Figure 2: step times on the paper's cluster of the adaptive method, and of the method without one component at a
time. Each row is planned once and simulated with the same seeds of jitter."""

import pathlib
import tempfile
import tomllib

import printed
import study

S_MIN, S_MAX = 0.7, 0.95  # the paper's range, section 3.3; the job's defaults
MIDDLE = (S_MIN + S_MAX) / 2


def everywhere(sparsity):
    """Settings that give every layer this sparsity."""
    return {"method.s_min": sparsity, "method.s_max": sparsity}


ROWS = {
    printed.FULL: {},
    printed.PLACEMENT: {"adaptive.placement": "false"},
    printed.LAYERS: everywhere(MIDDLE),
    printed.FEEDBACK: {"method.feedback": "literal"},
}
# For any variances, eq. 3 gives every layer a sparsity between these.
BOUNDS = {"s_max everywhere": everywhere(S_MAX), "s_min everywhere": everywhere(S_MIN)}

# name: (job, the sparse reductions of which the fastest is taken; empty: the planner may also choose dense)
READINGS = {
    "110m": ("experiments/table2/110m.toml", ()),
    "110m, every layer sparse": ("experiments/table2/110m.toml", ("two_level", "sparse")),
    "110m-fp16": ("experiments/table2/110m-fp16.toml", ()),
    "110m-fp16, every layer sparse": ("experiments/table2/110m-fp16.toml", ("two_level", "sparse")),
}


def planned_and_simulated(job, settings, options):
    """A row without its comparison with other rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.toml"
        run = study.planned(job, path, settings)
        plan = tomllib.loads(path.read_text())["plan"]
        seeds = ("--seeds", options.seeds, "--fidelity", options.fidelity)
        found = study.rehearse("simulate", job, *study.sets(run), *seeds, *study.ALL_STEPS)
    return {
        "settings": settings,
        "mesh": {axis: n for axis, n in found["mesh"].items() if n > 1},
        "samples": sorted(set(plan["shares"]), reverse=True),
        "sparse_layers": sum(layer["reduction"] != "dense" for layer in plan.get("layers", ())),
        "step_time_s": study.Sample(found["step_time_s"]["values"]),
        "gb_per_step": found["bytes_sent_per_rank"]["mean"] / 1e9,
    }


def tested(rows):
    """The rows with their difference from the first row, and p. Rows with exactly equal values do the same work and need no test."""
    full = rows[0]["step_time_s"]
    for row in rows:
        time = row["step_time_s"]
        row["same"] = row is not rows[0] and time.values == full.values
        row["more_than_full"] = time.mean / full.mean - 1
        row["p"] = None if row is rows[0] or row["same"] else study.welch(time, full)
    return rows


def reading(job, reductions, options):
    """{"job", "reduction", "tried", "rows", "bounds"}; bounds only if layers are sparse."""
    ways = [{"method.reduction": reduction} for reduction in reductions] or [{}]
    tried = study.in_parallel(lambda way: planned_and_simulated(job, way, options), ways)
    full = min(tried, key=lambda row: row["step_time_s"].mean)
    fixed = full["settings"]
    others = {name: fixed | extra for name, extra in (ROWS | (BOUNDS if fixed else {})).items() if extra}
    found = study.in_parallel(lambda settings: planned_and_simulated(job, settings, options), others.values())
    rows = tested([{"variant": name} | row for name, row in zip([printed.FULL, *others], [full, *found], strict=True)])
    return {
        "job": job,
        "reduction": fixed.get("method.reduction"),
        "tried": {row["settings"]["method.reduction"]: row["step_time_s"].mean for row in tried} if fixed else {},
        "rows": rows[: len(ROWS)],
        "bounds": rows[len(ROWS) :],
    }
