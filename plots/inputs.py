"""Reads the files that `rehearse` writes, and checks every field before anything is drawn.

Eleven kinds of file are recognised by their content: those of KINDS, a trace (`traceEvents`), and training metrics (JSON lines with `step`
and `loss`). The modules that draw state the fields as types, which msgspec checks; docs/report.md lists them.
"""

import json
import os
import re
from dataclasses import dataclass, field

import msgspec

from plots import accuracy, collective, difference, goodput, loss, methods, placement, prediction, sweep, timeline
from plots.fields import Object, Some, Version, record


class InputError(Exception):
    """A file whose content does not match its kind; the message names the file, the key and what is required."""


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
    origins: list = field(default_factory=list)  # of the results


Versioned = record("Versioned", schema_version=Version)


class Origin(Object):
    """What wrote a file."""

    command: str = ""
    version: str = ""


# Name, the keys that a file of the kind has, the key whose value is read (None: the whole), its type, and the list of Inputs.
KINDS = (
    ("a plan", ["placement"], "placement", placement.Placement, "placements"),
    ("a collective by size", ["collective"], None, collective.Curve, "collectives"),
    ("a sweep", ["sweep"], None, sweep.Sweep, "sweeps"),
    ("a difference", ["diff"], None, difference.Difference, "differences"),
    ("a validation", ["sets"], "sets", list[accuracy.Set], "validations"),
    ("long runs", ["long_runs"], "long_runs", Some[goodput.LongRun], "long_runs"),
    ("a long run", ["goodput"], None, goodput.LongRun, "long_runs"),
    ("a comparison", ["results"], "results", list[methods.Result], "results"),
    ("predictions", ["runs"], "runs", list[prediction.Run], "runs"),
    ("a simulation", ["method", "step_time_s"], None, methods.Result, "results"),
)


def convert(value, kind, path, at="$"):
    """The value as a `kind`; `at`: its place in the file."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        wrong, _, below = str(error).partition(" - at `$")
        raise InputError(f"{path}: {at}{below.rstrip('`')}: {wrong}") from None


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
    if isinstance(value, list):  # the trace format's older form: a bare array of events
        value = {"traceEvents": value}
    convert(value, dict, path)
    if "traceEvents" in value:
        inputs.traces.append(_trace(path, label or stem, value["traceEvents"]))
        return
    for _, keys, part, kind, place in KINDS:
        if all(key in value for key in keys):
            convert(value, Versioned, path)
            found = convert(value[part], kind, path, f"$.{part}") if part else convert(value, kind, path)
            found = found if isinstance(found, list) else [found]
            if place == "results":
                found = [msgspec.structs.replace(one, label=label) for one in found]
                inputs.origins.append(convert(value, Origin, path))
            getattr(inputs, place).extend(found)
            return
    if not {"step", "loss"} <= value.keys():
        known = "".join(f", {name} ({', '.join(keys)})" for name, keys, *_ in KINDS)
        raise InputError(f"{path}: neither a trace (traceEvents){known} nor training metrics (step, loss)")
    inputs.losses.append(_losses(path, label or stem, lines))


def _is_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _trace(path, label, items):
    trace = timeline.Trace(label, [], {}, {})
    for number, item in enumerate(convert(items, list, path, "$.traceEvents")):
        at = f"$.traceEvents[{number}]"
        phase = convert(item, timeline.Phase, path, at)
        if phase.ph == "X":
            trace.events.append(convert(item, timeline.Event, path, at))
        elif phase.ph == "M" and phase.name == "process_name":
            one = convert(item, timeline.RankName, path, at)
            trace.ranks[one.pid] = one.args.name
        elif phase.ph == "M" and phase.name == "thread_name":
            one = convert(item, timeline.LaneName, path, at)
            trace.lanes[one.pid, one.tid] = one.args.name
    if not trace.events:
        raise InputError(f"{path}: no complete events (ph X) in the trace")
    return trace


def _losses(path, label, lines):
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=lambda _: None)  # a loss that diverged is NaN or null
        except json.JSONDecodeError as error:
            if number == len(lines) and rows:
                break  # the run is still writing or was killed, so its last line may be incomplete
            raise InputError(f"{path}:{number}: not JSON ({error.msg})") from None
        convert(value, dict, f"{path}:{number}")
        if "step" in value and ("loss" in value or "validation_loss" in value):  # there may be other records between the steps
            rows.append(convert(value, loss.Row, f"{path}:{number}"))
    if not rows:
        raise InputError(f"{path}: no line with a step and a loss")
    return loss.Losses(label, rows)
