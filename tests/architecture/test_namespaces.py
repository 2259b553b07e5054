"""Checks that a folder is a namespace: all declarations of a file are in the namespace of its folder, so that names of two folders never
collide. Inside a namespace, every type that a header declares has a unique name, because two classes with the same name in one program
would silently be merged."""

import collections
import re
import sys

from rooms import ROOMS, ROOT, namespace_of, room_of, sources

# Other namespaces that a file may open: for names always used with it, or for conversions that a library looks up there.
INSIDE = {"engine/base/numbers/limits.h": "rehearse::limits", "sim/run_seeds.cpp": "rehearse::execution"}
OPENED = re.compile(r"^namespace ((?:\w+::)*\w+) \{", re.M)
DEFINITION = re.compile(r"^(?:class|struct|union|enum class|enum) (\w+)(?: final)?(?: :[^:]| \{|$)", re.M)


def strangers(path, text):
    """Namespaces that the file opens and that are not its folder's. `std` and libraries' are left out: they hold only specialisations."""
    expected = {namespace_of(path), INSIDE.get(path)}
    return [name for name in OPENED.findall(text) if name.startswith("rehearse") and name not in expected]


def main():
    assert strangers("engine/link/link.h", "namespace rehearse::sim {\n") == ["rehearse::sim"]
    assert not strangers("engine/base/units.h", "namespace rehearse {\nnamespace {\n")
    found, declared, files = [], collections.defaultdict(set), 0
    for top in sorted({room.split("/")[0] for room in ROOMS}):
        for file in sources(top):
            path = str(file.relative_to(ROOT))
            if room_of(path) is None:
                found.append(f"{path}: lies in no room")
                continue
            files += 1
            text = file.read_text()
            found += [f"{path}: opens {name}, the folder's namespace is {namespace_of(path)}" for name in strangers(path, text)]
            if file.suffix in {".h", ".cuh"}:
                for name in DEFINITION.findall(text):
                    declared[namespace_of(path), name].add(path)
    found += [
        f"{space}::{name} is declared by {' and by '.join(sorted(where))}" for (space, name), where in declared.items() if len(where) > 1
    ]
    if len(declared) < 100:
        sys.exit(f"only {len(declared)} types were found: the pattern is wrong")
    print("\n".join(found) or f"{files} files, {len(declared)} types: each in its folder's namespace under a name of its own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
