"""Predicts distributed Transformer training: step time, throughput, memory, energy, and the best plan.

A job says what is trained, where and how. It is a dictionary of the keys in docs/job.md, nested or dotted, or the path of a TOML file:

    >>> import rehearse
    >>> result = rehearse.simulate({"model.name": "gpt2-124m", "cluster.name": "dgx-a100:1", "method.name": "zero2"})
    >>> result.step_s, result.tokens_per_s
    >>> rehearse.compare("job.toml", ["ddp", "zero3", "1f1b@pp=2"])
    >>> rehearse.sweep("job.toml", {"method.name": ["ddp", "zero3"], "train.global_batch": [64, 256]})
    >>> rehearse.plan("job.toml").choices
    >>> rehearse.goodput("job.toml", "54d", recovery=["restart", "spare"])

`compare`, `sweep` and `goodput` give pandas frames. Times are in seconds, sizes in bytes, energy in joules, shares from 0 to 1. The
numbers are those of the command `rehearse`, which the package installs too. A wrong job raises InputError with the command's text.
"""

from rehearse import _core
from rehearse.errors import BackendError, InputError, ProgramError
from rehearse.jobs import Job, JobLike
from rehearse.results import Interval, Plan, Result
from rehearse.studies import compare, goodput, plan, simulate, sweep

__all__ = [
    "BackendError",
    "InputError",
    "Interval",
    "Job",
    "JobLike",
    "Plan",
    "ProgramError",
    "Result",
    "compare",
    "goodput",
    "plan",
    "simulate",
    "sweep",
]
__version__: str = _core.version
