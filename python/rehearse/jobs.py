"""Jobs: what to train, where and how."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias, Union

from rehearse import _core, toml, worker

JobLike: TypeAlias = Union["Job", Mapping[str, Any], str, os.PathLike[str]]


def source_of(job: JobLike, overrides: toml.Keys | None = None) -> _core.Source:
    """What librehearse.so reads. The job is not checked."""
    more = toml.settings(overrides)
    if isinstance(job, Job):
        own = job._source
        return _core.Source(own.name, own.toml, [*own.set, *more])
    if isinstance(job, Mapping):
        return _core.Source("<job>", toml.document(job, "<job>"), more)
    if isinstance(job, str | os.PathLike):
        return _core.Source(os.fspath(job), None, more)
    raise TypeError(f"a job is a dictionary, the path of a TOML file or a Job, not a {type(job).__name__}")


class Job:
    """A job that was checked. Every function takes a dictionary or a path as well; a Job keeps what its file said when it was read.

    job: a dictionary of the keys in docs/job.md, nested or dotted; the path of a TOML file; or another Job. Quantities are numbers in
        basic units, or texts with a unit ("100Gb/s"). Relative paths in it start from the working directory.
    overrides: keys that replace some of it, nested or dotted; None gives a key its default.

    Raises InputError when the job is wrong. In the message, a dictionary is called <job>, and an override is written as after --set.
    """

    def __init__(self, job: JobLike, overrides: toml.Keys | None = None) -> None:
        self._source = source_of(job, overrides)
        worker.ask("check", self._source)

    @classmethod
    def from_toml(cls, text: str, overrides: toml.Keys | None = None, *, name: str = "job") -> "Job":
        """A job from TOML text; messages call it `name`."""
        return cls._made(name, text, toml.settings(overrides))

    @classmethod
    def _made(cls, name: str, text: str, keys: list[str]) -> "Job":
        job = cls.__new__(cls)
        job._source = _core.Source(name, text, keys)
        worker.ask("check", job._source)
        return job

    def replace(self, overrides: toml.Keys) -> "Job":
        """This job with other keys."""
        return Job(self, overrides)

    def __reduce__(self) -> tuple[Any, ...]:
        return Job._made, (self._source.name, self._source.toml, self._source.set)

    def __repr__(self) -> str:
        source = self._source
        words = [source.name if source.name != "<job>" else ", ".join(source.toml.splitlines()), *source.set]
        return f"<Job {', '.join(words)}>"
