"""Reads the files that `rehearse` writes, and checks every field before anything is drawn.

Eleven kinds of file are recognised by their content: a comparison (`results`), one simulation
(`method` and `step_time_s`), long runs (`long_runs`, or `goodput`), a plan's placement (`placement`), a trace (`traceEvents`), predictions
(`runs`), a collective by size (`collective`), a validation (`sets`), a sweep (`sweep`), two jobs (`diff`), and training metrics (JSON lines
with `step` and `loss`). docs/report.md lists their fields.
"""

import json
import math
import os
import re
from dataclasses import dataclass, field

from plots import accuracy, collective, difference, explain, faulted, goodput, placement, sweep

SCHEMA_VERSION = 1


class InputError(Exception):
    """A file whose content does not match its kind; the message names the file, the key and what
    was expected."""


@dataclass
class Inputs:
    """All inputs by kind, in the given order."""

    results: list = field(default_factory=list)  # simulate's JSON objects
    traces: list = field(default_factory=list)
    runs: list = field(default_factory=list)  # predictions
    losses: list = field(default_factory=list)
    placements: list = field(default_factory=list)
    collectives: list = field(default_factory=list)  # by size
    validations: list = field(default_factory=list)  # sets of published measurements
    long_runs: list = field(default_factory=list)
    sweeps: list = field(default_factory=list)
    differences: list = field(default_factory=list)
    commands: list = field(default_factory=list)  # that wrote the results
    versions: list = field(default_factory=list)  # of `rehearse`, of the results


@dataclass
class Event:
    rank: int
    lane: int
    name: str
    kind: str
    start: float  # seconds
    end: float
    step: int | None = None
    micro_batch: int | None = None
    critical: bool = False


@dataclass
class Trace:
    label: str
    events: list
    ranks: dict  # rank -> name
    lanes: dict  # (rank, lane) -> name


@dataclass
class Losses:
    label: str
    rows: list  # one dict per step


class Checked:
    """A JSON value with its position in the file, for error messages."""

    def __init__(self, value, where):
        self.value, self.where = value, where

    def fail(self, expected):
        found = json.dumps(self.value, default=str)
        raise InputError(f"{self.where}: expected {expected}, found {found[:60]}{'...' if len(found) > 60 else ''}")

    def get(self, key, default=...):
        """The value of a key; an absent key is an error unless it has a default."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        if key not in self.value:
            if default is ...:
                raise InputError(f"{self.where}: the key '{key}' is missing")
            return Checked(default, f"{self.where}.{key}")
        return Checked(self.value[key], f"{self.where}.{key}")

    def number(self, least=None):
        number = self.value
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            self.fail("a number")
        if least is not None and number < least:
            self.fail(f"a number of at least {least}")
        return float(number)

    def optional_number(self, least=None):
        return None if self.value is None else self.number(least)

    def integer(self):
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.fail("a whole number")
        return self.value

    def text(self):
        if not isinstance(self.value, str):
            self.fail("a string")
        return self.value

    def boolean(self):
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return self.value

    def items(self):
        if not isinstance(self.value, list):
            self.fail("a list")
        return [Checked(v, f"{self.where}[{i}]") for i, v in enumerate(self.value)]

    def members(self):
        if not isinstance(self.value, dict):
            self.fail("an object")
        return {k: Checked(v, f"{self.where}.{k}") for k, v in self.value.items()}

    def version(self):
        version = self.get("schema_version").integer()
        if version != SCHEMA_VERSION:
            raise InputError(f"{self.where}: schema_version {version} is unknown, only {SCHEMA_VERSION} is read")


def load(arguments):
    """Reads inputs from paths; each may be LABEL=PATH, where LABEL names a trace or a training run
    in the figures."""
    inputs = Inputs()
    for argument in arguments:
        label, path = "", argument
        if not os.path.exists(argument) and re.match(r"[^/=]+=.", argument):
            label, path = argument.split("=", 1)
        _load_one(path, label, inputs)
    return inputs


def _load_one(path, label, inputs):
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text") from None
    if not content.strip():
        raise InputError(f"{path}: empty file")
    stem = os.path.splitext(os.path.basename(path))[0]
    lines = content.strip().splitlines()
    if path.endswith((".jsonl", ".ndjson")) or (len(lines) > 1 and _is_object(lines[0])):
        inputs.losses.append(_losses(path, label or stem, lines))
        return
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg})") from None
    top = Checked(value, path)
    if isinstance(value, list):  # the trace format's older form: a bare array of events
        inputs.traces.append(_trace(Checked({"traceEvents": value}, path), label or stem))
    elif not isinstance(value, dict):
        top.fail("an object")
    elif "traceEvents" in value:
        inputs.traces.append(_trace(top, label or stem))
    elif "placement" in value:
        inputs.placements.append(placement.read(top))
    elif "collective" in value:
        inputs.collectives.append(collective.read(top))
    elif "sweep" in value:
        inputs.sweeps.append(sweep.read(top))
    elif "diff" in value:
        inputs.differences.append(difference.read(top))
    elif "sets" in value:
        inputs.validations += accuracy.read(top)
    elif "long_runs" in value or "goodput" in value:
        inputs.long_runs += goodput.read(top)
    elif "results" in value:
        top.version()
        inputs.results += [_result(item, label) for item in top.get("results").items()]
        _origin(top, inputs)
    elif "runs" in value:
        top.version()
        inputs.runs += [_run(item) for item in top.get("runs").items()]
    elif "method" in value and "step_time_s" in value:
        inputs.results.append(_result(top, label))
        _origin(top, inputs)
    elif "step" in value and "loss" in value:
        inputs.losses.append(_losses(path, label or stem, lines))
    else:
        raise InputError(
            f"{path}: neither a comparison (results), a simulation (method, step_time_s), a plan"
            " (placement), a trace (traceEvents), predictions (runs), a collective by size (collective), a"
            " validation (sets), a sweep (sweep), a difference (diff), long runs (long_runs, goodput) nor training metrics (step, loss)"
        )


def _origin(top, inputs):
    """Notes the command and version that wrote the file, if the file has them."""
    for key, found in (("command", inputs.commands), ("version", inputs.versions)):
        if text := top.get(key, "").text():
            found.append(text)


def _is_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def mesh_text(mesh):
    """ "pp 4 x dp 8" from {"pp": 4, "dp": 8}; ones are left out."""
    sizes = [(name, size.integer()) for name, size in mesh.members().items()]
    return " × ".join(f"{name} {size}" for name, size in sizes if size > 1)


def _result(item, label):
    item.version()
    step = item.get("step_time_s")
    sent = item.get("bytes_sent_per_rank")
    return {
        "method": item.get("method").text(),
        "label": label,
        "model": item.get("model", "").text(),
        "cluster": item.get("cluster", "").text(),
        "global_batch": item.get("global_batch", 0).integer(),
        "seq_len": item.get("seq_len", 0).integer(),
        "precision": item.get("precision", "").text(),
        "energy": _energy(item.get("energy_j", None)),
        "cost": _cost(item.get("cost", None)),
        "explain": explain.read(item.get("explain", None)),
        "faults": faulted.read(item.get("faults", None)),
        "world_size": item.get("world_size").integer(),
        "mesh": mesh_text(item.get("mesh", {})),
        "seeds": item.get("seeds", None).value,
        "step_time": step.get("mean").number(0),
        "ci95": step.get("ci95", None).optional_number(0),
        "std": step.get("std", None).optional_number(0),
        "values": [v.number(0) for v in step.get("values", []).items()],
        "samples_per_s": item.get("samples_per_s").number(0),
        "tokens_per_s": item.get("tokens_per_s").number(0),
        "mfu": item.get("mfu", None).optional_number(0),
        "bubble_fraction": item.get("bubble_fraction").number(0),
        "exposed_comm_s": item.get("exposed_comm_s").number(0),
        "sent_mean": sent.get("mean").number(0),
        "sent_max": sent.get("max").number(0),
        "bytes_per_step_total": item.get("bytes_per_step_total").number(0),
        "peak_memory": {k: v.number(0) for k, v in item.get("peak_memory_bytes").members().items()},
        "robustness": item.get("robustness", None).optional_number(),
        "fidelity": item.get("fidelity", "").text(),
        "calibrated": item.get("calibrated", True).boolean(),
        "program_hash": str(item.get("program_hash", "").value),
        "cluster_hash": str(item.get("cluster_hash", "").value),
        "warnings": [w.text() for w in item.get("warnings", []).items()],
    }


def _energy(item):
    return None if item.value is None else item.get("per_step").number(0)


def _cost(item):
    """(amount, currency) of a billion tokens."""
    return None if item.value is None else (item.get("per_billion_tokens").number(0), item.get("currency").text())


def _run(item):
    measured = item.get("measured_step_time_s", None)
    run = {
        "name": item.get("name").text(),
        "world_size": item.get("world_size").integer(),
        "predicted": item.get("predicted_step_time_s").number(0),
        "ci95": item.get("predicted_ci95", None).optional_number(0),
        "oversubscribed": item.get("oversubscribed", False).boolean(),
        "hash": str(item.get("prediction_hash", "").value),
        "measured": None,
        "values": [],
    }
    if measured.value is not None:
        run["measured"] = measured.get("median").number(0)
        run["deviation"] = measured.get("deviation", None).optional_number(0)
        run["values"] = [v.number(0) for v in measured.get("values", []).items()]
        if run["measured"] == 0:
            measured.get("median").fail("a time above 0")
    return run


def _trace(top, label):
    events, ranks, lanes = [], {}, {}
    for item in top.get("traceEvents").items():
        phase = item.get("ph").text()
        if phase == "M":
            name = item.get("name").text()
            if name == "process_name":
                ranks[item.get("pid").integer()] = item.get("args").get("name").text()
            elif name == "thread_name":
                key = (item.get("pid").integer(), item.get("tid").integer())
                lanes[key] = item.get("args").get("name").text()
        elif phase == "X":
            start = item.get("ts").number() * 1e-6
            more = item.get("args", {})
            events.append(
                Event(
                    item.get("pid").integer(),
                    item.get("tid").integer(),
                    item.get("name").text(),
                    item.get("cat", "").text(),
                    start,
                    start + item.get("dur").number(0) * 1e-6,
                    more.get("step", None).value,
                    more.get("micro_batch", None).value,
                    more.get("critical", False).boolean(),
                )
            )
    if not events:
        raise InputError(f"{top.where}: no complete events (ph X) in the trace")
    return Trace(label, events, ranks, lanes)


def _losses(path, label, lines):
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) and rows:
                break  # the run is still writing or was killed, so its last line may be incomplete
            raise InputError(f"{path}:{number}: not JSON ({error.msg})") from None
        item = Checked(value, f"{path}:{number}")
        if not isinstance(value, dict):
            item.fail("an object")
        if "step" not in value or ("loss" not in value and "validation_loss" not in value):
            continue  # there may be other records (the start, a checkpoint) between the steps
        row = {"step": item.get("step").integer()}
        for key in ("loss", "validation_loss", "tokens_per_s"):
            # If the loss diverged, it is null or NaN, and there is no point to draw.
            value = item.get(key, None)
            not_finite = isinstance(value.value, float) and not math.isfinite(value.value)
            row[key] = None if not_finite else value.optional_number()
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no line with a step and a loss")
    return Losses(label, rows)
