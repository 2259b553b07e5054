"""Every type that a header declares at namespace scope has a name of its own: sim and runtime may lie in one program, where
two classes of one name are silently one."""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITION = re.compile(r"^(?:class|struct|union|enum class|enum) (\w+)(?: final)?(?: :[^:]| \{|$)", re.M)


def main():
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cuh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    where = collections.defaultdict(set)
    for name in tracked.stdout.split():
        path = ROOT / name
        if name.split("/")[0] in ("tests", "bench") or not path.exists():
            continue
        for match in DEFINITION.finditer(path.read_text()):
            where[match.group(1)].add(name)
    twice = {name: files for name, files in where.items() if len(files) > 1}
    for name, files in sorted(twice.items()):
        print(f"{name} is declared by {' and by '.join(sorted(files))}")
    if len(where) < 100:
        sys.exit(f"only {len(where)} types were found: the pattern is wrong")
    if twice:
        sys.exit(1)
    print(f"{len(where)} types, each with a name of its own")


if __name__ == "__main__":
    main()
