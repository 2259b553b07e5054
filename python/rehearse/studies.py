"""The studies: simulate, compare, goodput, plan, sweep."""

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rehearse import arguments, results, toml, worker
from rehearse.jobs import JobLike, source_of

if TYPE_CHECKING:
    import pandas

Path = str | os.PathLike[str]


def simulate(
    job: JobLike,
    overrides: toml.Keys | None = None,
    *,
    fidelity: str = "fluid",
    seeds: int = 5,
    steps: int = 55,
    precision: float = 0.01,
) -> results.Result:
    """Predicts the step of a job, as `rehearse simulate` does.

    job: a dictionary, the path of a TOML file, or a Job. overrides: keys that replace some of it; None gives a key its default.
    fidelity: how the network is modelled: "analytic" (nothing contends), "fluid" or "chunk" (docs/simulator.md).
    seeds: runs with different draws of [disturb]; one run if nothing in it is random.
    steps: the most steps of a run, with 5 that warm up.
    precision: a run stops when its mean step time is known to this share of itself; 0: it runs all steps.

    Where the planner chooses the plan (method.name = "adaptive"), it chooses first. With faults.trace, the result has the run with the
    faults under `to_dict()["faults"]`. Raises InputError when the job is wrong or does not fit into memory, BackendError when the machine
    failed.
    """
    accuracy = arguments.accuracy(fidelity, seeds, steps, precision)
    return results.Result(json.loads(worker.ask("simulate", source_of(job, overrides), *accuracy)))


def compare(
    job: JobLike,
    methods: str | Sequence[str] = "all",
    overrides: toml.Keys | None = None,
    *,
    fit: bool = False,
    fidelity: str = "fluid",
    seeds: int = 5,
    steps: int = 55,
    precision: float = 0.01,
) -> "pandas.DataFrame":
    """Predicts a job under several methods, as `rehearse compare` does: a frame with a row for each method.

    methods: names with keys of their own, such as ["ddp", "1f1b@pp=2,micro_batches=8"], as text with commas, or "all". The rest is as for
    `simulate`. Columns: `method`, `mesh`, and the figures of a Result: seconds, bytes, joules, shares. A method that cannot run the job
    has the reason under `refused`, which is missing elsewhere. fit: a method that does not fit into memory gets the keys that make it fit,
    if they leave method and batch as they are; they stand in the column `method`. Raises InputError when the job or the list is wrong.
    """
    wanted, accuracy = ",".join(arguments.texts("methods", methods)), arguments.accuracy(fidelity, seeds, steps, precision)
    answer = worker.ask("compare", source_of(job, overrides), wanted, arguments.truth("fit", fit), *accuracy)
    return results.compared(json.loads(answer))


def goodput(
    job: JobLike,
    duration: str | float,
    recovery: str | Sequence[str] | None = None,
    checkpoint: str | Sequence[str] | None = None,
    overrides: toml.Keys | None = None,
    *,
    fidelity: str = "fluid",
    seeds: int = 5,
    steps: int = 55,
    precision: float = 0.01,
) -> "pandas.DataFrame":
    """Walks a job over weeks in which things break, as `rehearse compare --duration` does: a frame with a row for each recovery policy
    with each kind of checkpoint.

    duration: of the run, in seconds, or a text with a unit, such as "54d". The job says what fails: faults.model or faults.trace.
    recovery: policies, such as ["restart", "spare"], as text with commas too; None: the job's own. checkpoint: kinds, in the same way.
    seeds: draws of failures; a given trace is one. The rest is as for `simulate`, and for the step alone.

    Columns: `recovery`, `checkpoint`, `goodput` (productive share of the time, mean over the draws) with `goodput_ci95`, `step_s`, seconds
    that are lost by cause (`lost_rework_s`, ...), `interruptions`, `steps`, `lost_steps`, `every_s` (between checkpoints; not a number:
    none is written), `notes`, and `refused` with the reason why a row cannot run; such rows come last. Raises InputError when the job is
    wrong or no row can run.
    """
    given = {"recovery": recovery, "checkpoint": checkpoint}
    listed = ["" if one is None else ",".join(arguments.texts(name, one)) for name, one in given.items()]
    accuracy = arguments.accuracy(fidelity, seeds, steps, precision)
    answer = worker.ask("goodput", source_of(job, overrides), arguments.duration(duration), *listed, *accuracy)
    return results.walked(json.loads(answer))


def plan(job: JobLike, overrides: toml.Keys | None = None, *, budget: int = 0, rescore: bool = True) -> results.Plan:
    """Finds the fastest plan for a job's model on its cluster, as `rehearse plan` does. Keys of the job's method hold.

    budget: candidates to dry-run at most; 0: no limit. rescore: simulate the best candidates, with contention, before choosing.
    Raises InputError when the job is wrong or no plan fits.
    """
    options = (arguments.whole("budget", budget), arguments.truth("rescore", rescore))
    return results.Plan(json.loads(worker.ask("plan", source_of(job, overrides), *options)))


def sweep(
    job: JobLike,
    axes: toml.Keys | None = None,
    overrides: toml.Keys | None = None,
    *,
    vary: str | None = None,
    scaling: toml.Keys | None = None,
    where: str | Sequence[str] = (),
    what: str | None = None,
    duration: str | float | None = None,
    fidelity: str | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    precision: float | None = None,
    by: str | Sequence[str] = (),
    search: int = 0,
    folder: Path | None = None,
    jobs: int = 0,
    progress: Callable[[str], Any] | None = None,
) -> "pandas.DataFrame":
    """Predicts every combination of the values of some axes, as `rehearse sweep` does: a frame with a row for each.

    job: the job that varies; without `axes` and `scaling`, the path of a SWEEP.toml (docs/sweep.md), which has the options in it.
    axes: values by key of the job, as in [axes] of SWEEP.toml: {"method.pp": [1, 2, 4], "train.global_batch": {"from": 64, "to": 256,
        "factor": 2}}; "methods" is a list as for `compare`.
    vary: "together" (all combinations) or "alone": the job, and each value by itself.
    scaling: numbers of devices, as in [scaling] of SWEEP.toml: {"devices": [8, 16, 32], "kind": "weak"}.
    where: a condition that each point must satisfy, or several, such as "method.pp * method.tp <= 8".
    what: what is asked about each point: "simulate", "plan", or "goodput" over a `duration`, in seconds or as in "54d".
    fidelity, seeds, steps, precision: as for `simulate`, but one seed unless stated.
    by: a figure that decides which point is good, or several, such as ["step_s", "cost_per_billion_tokens"]; names are in docs/sweep.md.
        The column `frontier` then says of each point whether none is preferable to it. One figure: whether it is the best.
    search: points to compute at most, which an optimiser chooses to be good by `by`; 0: all. It needs the package optuna.
    folder: keeps the results. A sweep that was interrupted goes on with those in it. None: they are not kept.
    jobs: points computed at a time; 0: as many as the machine has cores.
    progress: called with a short text after each point.

    Columns: the axes, the figures, `refused` with the reason why a point's job cannot run, and `failed` where the machine failed. A search
    gives the points that are known. Raises InputError when the sweep is wrong, or when points are to be compared by costs in several
    currencies.
    """
    kinds = {"what": arguments.text, "vary": arguments.text, "fidelity": arguments.text, "seeds": arguments.whole, "steps": arguments.whole}
    kinds |= {"precision": arguments.number}
    given = {"what": what, "vary": vary, "fidelity": fidelity, "seeds": seeds, "steps": steps, "precision": precision}
    options = {name: None if one is None else kinds[name](name, one) for name, one in given.items()}
    options |= {"duration": None if duration is None else arguments.duration(duration), "where": arguments.texts("where", where) or None}
    jobs, search = arguments.whole("jobs", jobs), arguments.whole("search", search)
    from_file = axes is None and scaling is None
    if from_file and (not isinstance(job, str | os.PathLike) or any(value is not None for value in options.values())):
        raise TypeError("sweep without axes and scaling takes the path of a SWEEP.toml, which states its options")
    if search < 0:
        raise ValueError(f"search: {search}: must be at least 0")
    if search > 0 and importlib.util.find_spec("optuna") is None:
        raise ModuleNotFoundError("a search needs the package optuna: pip install 'rehearse[search]'", name="optuna")
    flags = {"jobs": jobs, "by": arguments.texts("by", by), "search": search}
    with tempfile.TemporaryDirectory() as unkept:
        flags["folder"] = os.fspath(folder) if folder is not None else unkept
        if from_file:
            answer = worker.ask("sweep_file", os.fspath(job), toml.settings(overrides), flags, progress=progress)
        else:
            text = toml.document({**options, "scaling": scaling, "axes": axes}, "<sweep>")
            answer = worker.ask("sweep_job", source_of(job, overrides), text, flags, progress=progress)
    return results.swept(json.loads(answer))
