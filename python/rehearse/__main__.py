"""`python -m rehearse`, and the script `rehearse` of the package: the command."""

import importlib.util
import os
import pathlib
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the command, which stands in the package, or in P of P/lib/python/rehearse. Its reports are drawn by this interpreter if it
    can, unless REHEARSE_PYTHON names another one."""
    here = pathlib.Path(__file__).parent
    program = next((p for p in (here / "bin/rehearse", here.parents[2] / "bin/rehearse") if p.is_file()), None)
    if program is None:
        sys.exit(f"rehearse: the command is not in {here / 'bin'}; install the package again")
    if "REHEARSE_PYTHON" not in os.environ and all(map(importlib.util.find_spec, ("jinja2", "matplotlib", "msgspec"))):
        os.environ["REHEARSE_PYTHON"] = sys.executable
    os.execv(program, ["rehearse", *sys.argv[1:]])


if __name__ == "__main__":
    main()
