"""The arrows between folders, checked on the text: cli -> {sim, runtime} -> engine, runtime -> models -> engine.

The engine includes neither SimGrid nor torch, sim and runtime do not include each other, and no executor names a training
method: executors see programs only.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMGRID = r"(simgrid|xbt)/"
TORCH = r"(torch|ATen|c10|c10d|gloo|cuda[a-z_]*)[/.]|nccl\.h"
# folder: what its files must not include
FORBIDDEN_INCLUDES = {
    "engine": rf"{SIMGRID}|{TORCH}|(sim|runtime|models|cli)/",
    "sim": rf"{TORCH}|(runtime|models|cli)/",
    "models": rf"{SIMGRID}|(sim|runtime|cli)/",
    "runtime": rf"{SIMGRID}|(sim|cli)/",
    "cli": rf"{SIMGRID}|{TORCH}",
}
METHODS = (
    r"ddp|zero[_-]?[123]|fsdp|gpipe|1f1b|one_f_one_b|interleaved|pipedream|2bw|two_bw|megatron|top_?k_sync|"
    r"parameter_server|local_sgd|byteps"
)


def sources(folder):
    root = ROOT / folder
    return sorted(p for p in root.rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"})


def code_of(line):
    """The line without its comment: words in comments name papers, not behaviour."""
    return line.split("//", 1)[0]


def violations(folder_files, includes, executors):
    for folder, files in folder_files.items():
        for path, text in files:
            for number, line in enumerate(text.splitlines(), 1):
                found = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                if found and re.match(includes[folder], found[1]):
                    yield f"{path}:{number}: {folder}/ must not include {found[1]}"
                if folder in executors and not found:
                    named = re.search(rf"(?<![a-z0-9])({METHODS})(?![a-z0-9])", code_of(line).lower())
                    if named:
                        yield f"{path}:{number}: an executor names a method: {named[0]}"


def self_check():
    """The patterns find what they are for."""
    bad = {
        "engine": [("e.cpp", "#include <torch/torch.h>\n#include <simgrid/s4u.hpp>\n#include <ATen/ATen.h>\n")],
        "sim": [("s.cpp", '#include "runtime/rank.h"\nif (name == "ddp") return;\n// as in DDP\n')],
        "runtime": [("r.cpp", '#include "sim/run.h"\n#include "models/gpt.h"\nbool is_gpipe_like;\n')],
    }
    found = list(violations(bad, FORBIDDEN_INCLUDES, {"sim", "runtime"}))
    assert len(found) == 7, found


def main():
    self_check()
    files = {f: [(p.relative_to(ROOT), p.read_text()) for p in sources(f)] for f in FORBIDDEN_INCLUDES}
    found = list(violations(files, FORBIDDEN_INCLUDES, {"sim", "runtime"}))
    print("\n".join(found) or f"{sum(map(len, files.values()))} files keep to the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
