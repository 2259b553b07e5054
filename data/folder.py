"""The output folder: written under another name, recognised if nothing changed, replaced as a whole."""

import hashlib
import json
import os
import pathlib
import shutil

from data.errors import InputError


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def existing(output):
    """The manifest of an earlier result, or None if there is nothing; InputError if the folder has other content."""
    if not os.path.lexists(output):
        return None
    if not output.is_dir():
        raise InputError(f"-o {output}: exists and is not a folder")
    try:
        manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
        if manifest.get("format") == "rehearse-data":
            return manifest
    except (OSError, ValueError, AttributeError):
        pass
    if any(output.iterdir()):
        raise InputError(f"-o {output}: holds files that this program did not write; choose another folder")
    return None


def intact(output, manifest):
    """Whether every file of an earlier result is there with its checksum."""
    try:
        files = [manifest["tokenizer"], *manifest["train"]["shards"], *manifest["val"]["shards"]]
        return all(sha256(output / entry["file"]) == entry["sha256"] for entry in files)
    except (OSError, KeyError, TypeError):
        return False


def check_replaceable(output, manifest):
    """InputError if the folder holds more than an earlier result, which `publish` would remove with it."""
    try:
        files = [manifest["tokenizer"], *manifest["train"]["shards"], *manifest["val"]["shards"]]
        made = {"manifest.json", *(entry["file"] for entry in files)}
    except (KeyError, TypeError):
        return  # of an older version: it does not say what it wrote
    others = sorted(path.name for path in output.iterdir() if path.name not in made)
    if others:
        raise InputError(
            f"-o {output}: holds {', '.join(others)}, which this program did not write; move that away or choose another folder"
        )


def beside(output):
    return output.with_name(f".{output.name}.partial-{os.getpid()}")


def recover(output):
    """Removes what a killed run left beside `output`, and restores a result that it had moved away."""
    prefix = f".{output.name}.partial-"
    try:
        left = [path for path in output.parent.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return
    for path in sorted(left, reverse=True):  # the moved result NAME.old comes before the unfinished NAME
        number = path.name.removeprefix(prefix).removesuffix(".old")
        if not number.isdigit() or pathlib.Path("/proc", number).exists():
            continue
        if path.suffix == ".old" and not os.path.lexists(output):
            path.rename(output)
        else:
            shutil.rmtree(path, ignore_errors=True)


def publish(made, output):
    """Moves the finished folder into place; an earlier result is moved away first and then removed."""
    old = made.with_name(made.name + ".old")
    if os.path.lexists(output):
        output.rename(old)
    try:
        made.rename(output)
    finally:
        if old.exists() and not os.path.lexists(output):
            old.rename(output)  # interrupted between the two renames
    shutil.rmtree(old, ignore_errors=True)
