"""What studies return: a Result, a Plan, and frames."""

import copy
import os
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas

# Columns of the frames of compare and sweep that are not text.
COUNTS = ("world_size", "peak_memory_bytes")
FIGURES = (
    "step_s",
    "step_ci95_s",
    "interval_low_s",
    "interval_high_s",
    "samples_per_s",
    "tokens_per_s",
    "mfu",
    "bubble_fraction",
    "exposed_comm_s",
    "bytes_sent_mean",
    "joules_per_step",
    "cost_per_step",
    "cost_per_billion_tokens",
    "robustness",
)
COMPARED = ("method", "mesh", *FIGURES[:1], *COUNTS, *FIGURES[1:], "calibrated", "warnings", "refused")


class Interval(NamedTuple):
    """A measured step lies between `low` and `high` seconds with the probability `level`."""

    low: float
    high: float
    level: float


class Result:
    """The prediction of one job. Means are over steady steps and all seeds."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def to_dict(self) -> dict[str, Any]:
        """What `rehearse simulate --json` prints (docs/cli.md), but for the version and the command line. The dictionary is a copy."""
        return copy.deepcopy(self._answer)

    @property
    def method(self) -> str:
        return self._answer["method"]

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self._answer["world_size"]

    @property
    def mesh(self) -> dict[str, int]:
        """Size of each axis of the mesh."""
        return dict(self._answer["mesh"])

    @property
    def step_s(self) -> float:
        """Mean step time, seconds."""
        return self._answer["step_time_s"]["mean"]

    @property
    def step_ci95_s(self) -> float:
        """Half-width of the 95% interval of the mean over seeds, seconds."""
        return self._answer["step_time_s"]["ci95"]

    @property
    def step_by_seed_s(self) -> list[float]:
        """Mean step time of each seed, seconds."""
        return list(self._answer["step_time_s"]["values"])

    @property
    def interval_s(self) -> Interval | None:
        """Where a measured step lies, seeds and calibration error together; None: not known, since the result is not calibrated or rests
        on a profile."""
        interval = self._answer["interval_s"]
        return None if interval is None else Interval(interval["low"], interval["high"], interval["level"])

    @property
    def samples_per_s(self) -> float:
        return self._answer["samples_per_s"]

    @property
    def tokens_per_s(self) -> float:
        return self._answer["tokens_per_s"]

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, 0 to 1; None: the peak rate of a device is not known."""
        return self._answer["mfu"]

    @property
    def bubble_fraction(self) -> float:
        """Idle share of the compute lanes' time, 0 to 1."""
        return self._answer["bubble_fraction"]

    @property
    def exposed_comm_s(self) -> float:
        """Communication that compute does not hide, seconds a step."""
        return self._answer["exposed_comm_s"]

    @property
    def bytes_sent_mean(self) -> float:
        """Bytes that a rank sends in a step, mean over ranks."""
        return self._answer["bytes_sent_per_rank"]["mean"]

    @property
    def joules_per_step(self) -> float | None:
        """Energy of all devices; None: the power of a device is not known."""
        energy = self._answer["energy_j"]
        return None if energy is None else energy["per_step"]

    @property
    def cost_per_step(self) -> float | None:
        """In the currency of the devices' prices; None: a device has no price."""
        return self._cost("per_step")

    @property
    def cost_per_billion_tokens(self) -> float | None:
        """In the currency of the devices' prices; None: a device has no price."""
        return self._cost("per_billion_tokens")

    def _cost(self, of: str) -> float | None:
        cost = self._answer["cost"]
        return None if cost is None else cost[of]

    @property
    def peak_memory_bytes(self) -> int:
        """What the ranks on the fullest device need."""
        return max(self._answer["peak_memory_bytes"].values())

    @property
    def host_memory_bytes(self) -> int | None:
        """What the ranks of a node keep in the memory of its host, on the node with the most; None: nothing."""
        return self._answer["host_memory_bytes"]

    @property
    def memory(self) -> "pandas.DataFrame":
        """The fullest device of each kind, in bytes: `peak`, `capacity`, `reserve`, and the peak by what the bytes are for."""
        import pandas

        peaks = self._answer["peak_memory_bytes"]
        rows = {}
        for device, parts in self._answer["memory_parts_bytes"].items():
            purposes = {part: size for part, size in parts.items() if part not in ("capacity", "reserve")}
            rows[device] = {"peak": peaks[device], "capacity": parts["capacity"], "reserve": parts["reserve"], **purposes}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("device")

    @property
    def calibrated(self) -> bool:
        """Whether local times rest on measurements, not on assumed efficiencies."""
        return self._answer["calibrated"]

    @property
    def warnings(self) -> list[str]:
        return list(self._answer["warnings"])

    def _row(self) -> dict[str, Any]:
        interval = self.interval_s
        return {
            "mesh": " x ".join(f"{axis} {size}" for axis, size in self.mesh.items() if size > 1) or "1 rank",
            "world_size": self.world_size,
            "step_s": self.step_s,
            "step_ci95_s": self.step_ci95_s,
            "interval_low_s": interval.low if interval else None,
            "interval_high_s": interval.high if interval else None,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "bubble_fraction": self.bubble_fraction,
            "exposed_comm_s": self.exposed_comm_s,
            "bytes_sent_mean": self.bytes_sent_mean,
            "peak_memory_bytes": self.peak_memory_bytes,
            "joules_per_step": self.joules_per_step,
            "cost_per_step": self.cost_per_step,
            "cost_per_billion_tokens": self.cost_per_billion_tokens,
            "robustness": self._answer["robustness"],
            "calibrated": self.calibrated,
            "warnings": "; ".join(self.warnings) or None,
        }

    def to_series(self) -> "pandas.Series":
        """The figures under the names that the columns of `compare` have."""
        import pandas

        return pandas.Series({"method": self.method, **self._row()}, name=self.method, dtype=object)

    def __repr__(self) -> str:
        doubt = "" if self.calibrated else ", uncalibrated"
        return (
            f"<Result {self.method} on {self.world_size} ranks: {self.step_s:.4g} s a step, {self.tokens_per_s:.4g} tokens/s, "
            f"peak memory {self.peak_memory_bytes / 1e9:.3g} GB{doubt}>"
        )

    def _repr_html_(self) -> str:
        return self.to_series().to_frame().to_html()


class Plan:
    """What the planner chose, and why. To simulate it, save it, and set `method.plan` to the file and `method.name` to None."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def to_dict(self) -> dict[str, Any]:
        """What `rehearse plan --json` prints (docs/cli.md), but for the version and the command line. The dictionary is a copy."""
        return copy.deepcopy({key: value for key, value in self._answer.items() if key != "toml"})

    @property
    def summary(self) -> str:
        """The plan in one line."""
        return self._answer["summary"]

    @property
    def step_s(self) -> float:
        """Predicted step time, seconds."""
        return self._answer["step_time_s"]

    @property
    def toml(self) -> str:
        """The text of the plan file."""
        return self._answer["toml"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan file."""
        pathlib.Path(path).write_text(self.toml)

    @property
    def choices(self) -> "pandas.DataFrame":
        """A row for each value of each choice: `choice`, `value`, `chosen`, `step_s` of the fastest plan with the value, by dry run
        (not a number: no plan with it was tried), and `why` it lost."""
        import pandas

        rows = []
        for one in self._answer["choices"]:
            rows.append((one["choice"], one["value"], True, one["step_time_s"], None))
            rows += [(one["choice"], other["value"], False, other["step_time_s"], other["why"] or None) for other in one["runners_up"]]
        return pandas.DataFrame(rows, columns=["choice", "value", "chosen", "step_s", "why"]).astype({"step_s": float})

    @property
    def runners_up(self) -> "pandas.DataFrame":
        """The next best plans: `plan`, `step_s`, `why` it lost."""
        import pandas

        rows = [(one["plan"], one["step_time_s"], one["why"] or None) for one in self._answer["runners_up"]]
        return pandas.DataFrame(rows, columns=["plan", "step_s", "why"]).astype({"step_s": float})

    @property
    def warnings(self) -> list[str]:
        return list(self._answer["warnings"])

    def __repr__(self) -> str:
        return f"<Plan {self.summary}: {self.step_s:.4g} s a step>"

    def _repr_html_(self) -> str:
        return self.choices.to_html()


def typed(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Gives columns of figures their types, also where no row has one."""
    types = dict.fromkeys(COUNTS, "Int64") | dict.fromkeys(FIGURES, "float64")
    return frame.astype({name: kind for name, kind in types.items() if name in frame.columns})


def compared(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    """The frame of compare."""
    import pandas

    table = [{**(Result(row["result"])._row() if "result" in row else {}), **row} for row in rows]
    return typed(pandas.DataFrame(table, columns=list(COMPARED)).astype({"calibrated": "boolean"}))


def walked(answer: dict[str, Any]) -> "pandas.DataFrame":
    """The frame of goodput."""
    import pandas

    rows = []
    for run in answer["long_runs"]:
        recovery, checkpoint = run["label"].split(", ")
        often, of = run["checkpoint"], run["goodput"]
        rows.append({
            "recovery": recovery,
            "checkpoint": checkpoint,
            "goodput": of["mean"],
            "goodput_ci95": of["ci95"],
            "step_s": run["step_time_s"],
            **{f"lost_{cause}_s": seconds for cause, seconds in run["lost_s"].items()},
            **{name: run[name] for name in ("interruptions", "steps", "lost_steps")},
            "every_s": often["every_steps"] * run["step_time_s"] if often["every_steps"] else None,
            "notes": "; ".join(run["notes"]) or None,
        })  # fmt: skip
    columns = list(rows[0])
    for one in answer["cannot_run"]:
        recovery, checkpoint = one["label"].split(", ")
        rows.append({"recovery": recovery, "checkpoint": checkpoint, "refused": one["reason"]})
    return pandas.DataFrame(rows, columns=[*columns, "refused"]).astype({"every_s": "float64"})


def swept(answer: dict[str, Any]) -> "pandas.DataFrame":
    """The frame of sweep."""
    import pandas

    rows, figures, frontier = [], {}, answer["frontier"]
    for at, point in enumerate(answer["points"]):
        metrics = point.get("metrics", {})
        figures |= dict.fromkeys(metrics)
        best = None if frontier is None else at in frontier
        rows.append({**metrics, "frontier": best, **{name: point.get(name) for name in ("refused", "failed")}, **point["point"]})
    axes, marked = list(answer["axes"]), [] if frontier is None else ["frontier"]
    columns = axes + [name for name in (*(figures or FIGURES[:1]), *marked, "refused", "failed") if name not in axes]
    return typed(pandas.DataFrame(rows, columns=columns))
