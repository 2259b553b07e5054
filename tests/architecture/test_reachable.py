"""Checks that no function is used only by tests: the product or a benchmark must use what a header of the product declares. Names are
searched as words, so a function that shares its name with another one may be missed."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("engine", "runtime", "models", "sim", "study", "python", "cli")
USERS = (*PRODUCT, "examples", "bench")
FOR_TESTS = {
    "from_text": "the C++ interface, for programs of users",
    "exchanges_of": "the choice between exchanges, of which the product takes the first",
    "lower_large_product": "tests take the way of large products with small ones",
    "known_libraries": "the shipped library files, each of which a test loads",
    "library_keys": "docs/software.md is held to it",
    "model_file_keys": "docs/faults.md is held to it",
    "model_keys": "docs/model.md is held to it",
    "platform_keys": "docs/platforms.md is held to it",
    "software_keys": "docs/software.md is held to it",
    "trace_keys": "docs/faults.md is held to it",
}
DECLARED = re.compile(r"(?<![\w.:>(~])([a-z_]\w*)\s*\(")
KEYWORDS = {"alignas", "catch", "decltype", "defined", "explicit", "for", "if", "noexcept", "operator", "requires", "return"}
KEYWORDS |= {"sizeof", "static_assert", "switch", "while", "bool", "double", "float", "int"}


def code_of(path):
    """The code without comments, string literals and includes."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"|^#\s*include[^\n]*', "", text, flags=re.M)


def unreachable(files):
    """{name: header} of {path: code}: names that are declared once, in a header, and found nowhere else except at their definition."""
    found = {}
    words = {}
    for path, code in files.items():
        for line in code.splitlines():
            outermost = not line[:1].isspace() and not path.endswith(".h")
            for word, bracket in re.findall(r"([A-Za-z_]\w*)(\s*\()?", line):
                words.setdefault(word, []).append((path, outermost and bool(bracket)))
    for path, code in files.items():
        if not path.endswith(".h") or not path.startswith(PRODUCT):
            continue
        for name in DECLARED.findall(code):
            if name not in KEYWORDS and [where for where, defines in words[name] if not defines] == [path]:
                found[name] = path
    return found


class Reachable(unittest.TestCase):
    def test_no_function_is_for_tests_alone(self):
        files = {}
        for folder in USERS:
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in (".h", ".cpp", ".cu"):
                    files[str(path.relative_to(ROOT))] = code_of(path)
        self.assertGreater(len(files), 250)
        found = unreachable(files)
        self.assertEqual({name: path for name, path in found.items() if name not in FOR_TESTS}, {})
        self.assertEqual(sorted(FOR_TESTS), sorted(FOR_TESTS.keys() & found.keys()), "the product uses it: it needs no excuse")

    def test_one_is_found(self):
        header = "int used();\nint idle(int x);\nstruct S {\n  int left() const { return 1; }\n  int taken() const { return 2; }\n};\n"
        source = "int used() { return 1; }\nint idle(int x) { return x; }\nint also(S s) {\n  return used() + s.taken();\n}\n"
        self.assertEqual(unreachable({"engine/a.h": header, "engine/a.cpp": source}), {"idle": "engine/a.h", "left": "engine/a.h"})


if __name__ == "__main__":
    unittest.main()
