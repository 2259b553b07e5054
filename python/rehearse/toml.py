"""Python values as TOML, which librehearse.so reads. Keys may be nested, dotted, or both: {"method": {"pp": 2}, "method.tp": 4}."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rehearse.errors import InputError

Keys = Mapping[str, Any]


def leaves(keys: Keys, name: str, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values with their paths. `name`: what messages call the dictionary."""
    for key, value in keys.items():
        if not isinstance(key, str):
            raise InputError(f'{name}: key "{".".join(path)}": {key!r}: a key must be a text')
        at = (*path, *key.split("."))
        if isinstance(value, Mapping):
            yield from leaves(value, name, at)
        else:
            yield at, value


def text_of(value: Any, where: str) -> str:
    """The value as TOML. `where`: the beginning of a message. Raises InputError for what TOML cannot express."""
    if hasattr(value, "tolist"):  # numpy and pandas
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, Mapping):
        inside = ", ".join(f"{dotted(path)} = {text_of(one, where)}" for path, one in leaves(value, where))
        return f"{{ {inside} }}"
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return f"[{', '.join(text_of(one, where) for one in value)}]"
    raise InputError(f"{where}: {value!r}: must be a number, a text, a truth value, or a list or dictionary of these")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def dotted(path: tuple[str, ...]) -> str:
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else quoted(part) for part in path)


def document(keys: Keys, name: str) -> str:
    """A whole TOML text. A key whose value is None is left out. Raises InputError when two spellings of a key are both there."""
    lines: dict[tuple[str, ...], str] = {}
    for path, value in leaves(keys, name):
        where = f'{name}: key "{".".join(path)}"'
        if path in lines:
            raise InputError(f"{where}: is there twice")
        if value is not None:
            lines[path] = text_of(value, where)
    for path in lines:
        for end in range(1, len(path)):
            if path[:end] in lines:
                raise InputError(f'{name}: key "{".".join(path[:end])}": is there both as a value and as a table')
    return "".join(f"{dotted(path)} = {text}\n" for path, text in lines.items())


def settings(keys: Keys | None) -> list[str]:
    """The same as after --set. None removes a key, so that its default holds."""
    out = []
    for path, value in leaves(keys or {}, "overrides"):
        key = ".".join(path)
        out.append(f"{key}=" + ("" if value is None else text_of(value, f'overrides: key "{key}"')))
    return out
