"""Checks house rules that a compiler does not check, on the text of every C++ file.

A file (or the header of the same name) starts with a paragraph that says what it is. The only exceptions thrown are InputError (and
Refused, which is derived from it), ProgramError and BackendError. There are no marks of unfinished work. No file has more than 600
lines; files of more than 400 lines are listed, because the house rule asks to split them. Bodies of ops (runtime/executor) read no
number of a tensor: the host may be ahead of the device, so only kernels read what decides within a step.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["engine", "sim", "study", "python", "models", "runtime", "cli", "examples", "tests", "bench"]
PRODUCT = {"engine", "sim", "study", "python", "models", "runtime", "cli"}
LONG, LONGEST = 400, 600
EXCEPTIONS = {"InputError", "Refused", "DoesNotFit", "ProgramError", "BackendError"}  # the second and third are InputErrors
BODIES = pathlib.Path("runtime/executor")
HOST_READ = r"\.item\b|data_ptr(<\w+>)?\(\)\s*\[|\*\s*[\w.()]+data_ptr"
UNFINISHED = r"\b(TODO|FIXME|XXX|HACK)\b"


def complaints(path, text, has_header):
    """What is wrong with one file; `path` is relative to the top folder."""
    lines = text.splitlines()
    if len(lines) > LONGEST:
        yield f"{path}: {len(lines)} lines, more than {LONGEST}"
    if not text.startswith("//") and not has_header:
        yield f"{path}:1: starts without the paragraph that says what the file is"
    for number, line in enumerate(lines, 1):
        if re.search(UNFINISHED, line):
            yield f"{path}:{number}: unfinished: {line.strip()}"
        if path.parent == BODIES and re.search(HOST_READ, line.split("//", 1)[0]):
            yield f"{path}:{number}: reads a tensor's number on the host, which may be ahead of the device: {line.strip()}"
        thrown = re.search(r"\bthrow\s+((?:\w+::)*)(\w+)\s*[({]", line.split("//", 1)[0])
        a_type = thrown and (thrown[1] == "std::" or thrown[2][0].isupper())  # otherwise a function that makes one of our exceptions
        if a_type and path.parts[0] in PRODUCT and thrown[2] not in EXCEPTIONS:
            yield f"{path}:{number}: throws {thrown[1]}{thrown[2]}, which is none of {', '.join(sorted(EXCEPTIONS))}"


def self_check():
    """Checks that the rules find bad files and accept a good one."""
    good = '// A file.\nvoid f() { throw InputError("x"); }  // throw std::bad()\n'
    bad = '#include <x>\nvoid f() { throw std::runtime_error("x"); }\n// ' + "TO" + "DO: more\n" + "\n" * LONGEST
    engine = pathlib.Path("engine/x.cpp")
    assert not list(complaints(engine, good, False))
    assert len(list(complaints(engine, bad, False))) == 4
    assert len(list(complaints(engine, bad, True))) == 3
    reads = "// A file.\nfloat a = t.data_ptr<float>()[0], b;\nb = t.item<float>();\nb = *x.t.data_ptr<float>();\nf(t.data_ptr<float>());\n"
    assert len(list(complaints(BODIES / "x.cpp", reads, False))) == 3


def main():
    self_check()
    found, long = [], []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                has_header = path.suffix != ".h" and path.with_suffix(".h").exists()
                text = path.read_text()
                found += complaints(path.relative_to(ROOT), text, has_header)
                if text.count("\n") > LONG:
                    long.append(f"{path.relative_to(ROOT)} ({text.count(chr(10))} lines)")
    if long:
        print(f"past {LONG} lines, worth a split: {', '.join(long)}")
    print("\n".join(found) or "every file keeps to the house rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
