"""Checks the includes between folders: a file includes only its own folder and those below it (rooms.py).

The engine includes neither SimGrid nor torch. sim and runtime do not include each other, nor does runtime include study. Executors see
only programs, so no executor names a training method. No other code compares the name of a method either: properties of a method are
fields of Strategy, in the method's file.
"""

import pathlib
import re
import sys

from rooms import ROOMS, ROOT, room_of, sources

SIMGRID = r"(simgrid|xbt)/"
TORCH = r"(torch|ATen|c10|c10d|gloo|cuda[a-z_]*)[/.]|nccl\.h"
# folder: what its files must not include, in addition to the rooms above their own
FORBIDDEN_INCLUDES = {
    "engine": rf"{SIMGRID}|{TORCH}",
    "sim": rf"{TORCH}",
    "study": rf"{SIMGRID}|{TORCH}",
    "python": rf"{SIMGRID}|{TORCH}",
    "models": rf"{SIMGRID}|(sim|study|python)/",
    "runtime": rf"{SIMGRID}|(sim|study|python)/",
    "cli": rf"{SIMGRID}|{TORCH}",
}
# The names under which methods are registered.
REGISTERED = re.compile(r'\bRegister\s+\w+\(\s*"([^"]+)"')
# A plan's method compared with a name or set to one. The only exception: a default plan is plain data parallelism.
BRANCH = r'\bmethod\s*[=!]?=\s*"({})"|\bstrategy_named\("|\bmethod\.starts_with\('
DEFAULT_METHOD = pathlib.Path("engine/plan/plan.h")


def code_of(line):
    """The line without its comment; comments may name methods and papers."""
    return line.split("//", 1)[0]


def registered_methods():
    names = [name for path in sources("engine/methods/strategies") for name in REGISTERED.findall(path.read_text())]
    if len(names) < 10:
        sys.exit(f"only {len(names)} methods were found: the pattern is wrong")
    return names


def pattern_of(methods):
    """A pattern for the name of a method in any spelling of C++ names and texts."""
    return "|".join(re.escape(name).replace(r"\-", "[-_]?") for name in methods)


def is_above(room, other):
    return room is not None and (other is None or ROOMS.index(room) > ROOMS.index(other))


def violations(folder_files, includes, executors, methods):
    for folder, files in folder_files.items():
        for path, text in files:
            for number, line in enumerate(text.splitlines(), 1):
                found = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                if found and re.match(includes[folder], found[1]):
                    yield f"{path}:{number}: {folder}/ must not include {found[1]}"
                elif found and is_above(room_of(found[1]), room_of(path)):
                    yield f"{path}:{number}: {room_of(path)} must not include {found[1]}: {room_of(found[1])} stands above it"
                if found:
                    continue
                if folder in executors:
                    named = re.search(rf"(?<![a-z0-9.])({methods})(?![a-z0-9])", code_of(line).lower())
                    if named:
                        yield f"{path}:{number}: an executor names a method: {named[0]}"
                if re.search(BRANCH.format(methods), code_of(line)) and "strategies" not in path.parts and path != DEFAULT_METHOD:
                    yield f"{path}:{number}: a method is asked for by its name"


def self_check():
    """Checks that the patterns find what they should find."""
    path = pathlib.Path
    bad = {
        "engine": [
            (path("engine/link/e.cpp"), '#include "engine/planner/planner.h"\n#include "engine/program/program.h"\n'),
            (path("engine/link/e.cpp"), "#include <torch/torch.h>\n#include <simgrid/s4u.hpp>\n#include <ATen/ATen.h>\n"),
            (path("engine/methods/strategies/s.cpp"), 'plan.method = "zero1";\n'),
            (path("engine/f.cpp"), 'if (plan.method != "ddp") return;\n'),
        ],
        "sim": [(path("sim/s.cpp"), '#include "runtime/training/rank.h"\nif (name == "ddp") return;\n// as in DDP\n')],
        "runtime": [(path("runtime/data/r.cpp"), '#include "sim/run.h"\n#include "models/gpt.h"\nbool is_gpipe_like;\n')],
    }
    found = list(violations(bad, FORBIDDEN_INCLUDES, {"sim", "runtime"}, pattern_of(["ddp", "gpipe"])))
    assert len(found) == 9, found


def main():
    self_check()
    files = {f: [(p.relative_to(ROOT), p.read_text()) for p in sources(f)] for f in FORBIDDEN_INCLUDES}
    found = list(violations(files, FORBIDDEN_INCLUDES, {"sim", "runtime"}, pattern_of(registered_methods())))
    print("\n".join(found) or f"{sum(map(len, files.values()))} files keep to the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
