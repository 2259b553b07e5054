"""The folders of the C++ code ("rooms"), lowest first. A file may include headers of its own folder and of earlier folders in this list.

docs/architecture.md describes them. Each folder has a README.md that says what enters, what leaves and where to begin.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

ENGINE = [
    "engine/base",
    "engine/secure",
    "engine/program",
    "engine/software",
    "engine/model",
    "engine/plan",
    "engine/cluster",
    "engine/faults",
    "engine/collectives",
    "engine/link",
    "engine/tensors",
    "engine/costs",
    "engine/calibration",
    "engine/methods",
    "engine/job",
    "engine/execution",
    "engine/migration",
    "engine/planner",
    "engine/goodput",
]
RUNTIME = [
    "models",
    "runtime/kernels",
    "runtime/control",
    "runtime/device",
    "runtime/communication",
    "runtime/cuda",
    "runtime/data",
    "runtime/executor",
    "runtime/checkpoints",
    "runtime/profiling",
    "runtime/training",
]
CLI = ["cli/console", "cli/batch", "cli/chaos", "cli/commands", "cli/train", "cli"]
ROOMS = [*ENGINE, "sim", "study", "python", *RUNTIME, *CLI]

SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def room_of(path):
    """The innermost room of a file or of an include, relative to the top folder; None outside of all rooms."""
    path = pathlib.PurePath(path)
    return next((str(p) for p in path.parents if str(p) in ROOMS), None)


def sources(folder):
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES)


def namespace_of(path):
    """The namespace of a file. Each room of the engine is a namespace, and so are sim, study, models, runtime and cli. engine/base declares
    the common vocabulary, which is in `rehearse` itself."""
    room = room_of(path)
    name = room.split("/")[-1 if room in ENGINE else 0]
    return "rehearse" if name == "base" else f"rehearse::{name}"
