"""Checks the types of options, and takes numpy's numbers too: a wrong one is the caller's error, not the machine's."""

import numbers
import operator
from collections.abc import Iterable
from typing import Any


def whole(name: str, value: Any) -> int:
    """A whole number, such as an int or numpy's int64. Raises TypeError."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name}: {value!r}: must be a whole number")


def number(name: str, value: Any) -> float:
    """A number, such as a float or numpy's float32. Raises TypeError."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"{name}: {value!r}: must be a number")


def text(name: str, value: Any) -> str:
    """Raises TypeError if it is none."""
    if isinstance(value, str):
        return value
    raise TypeError(f"{name}: {value!r}: must be a text")


def truth(name: str, value: Any) -> bool:
    """True or False, or numpy's. Raises TypeError."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}: {value!r}: must be True or False")


def texts(name: str, value: Any) -> list[str]:
    """A list of texts; one text is a list of one. Raises TypeError."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable):
        return [text(name, one) for one in value]
    raise TypeError(f"{name}: {value!r}: must be a text or a list of texts")


def duration(value: Any) -> str:
    """A text with a unit, "54d"; a number counts seconds. Raises TypeError."""
    return value if isinstance(value, str) else f"{number('duration', value):.17g}s"


def accuracy(fidelity: Any, seeds: Any, steps: Any, precision: Any) -> tuple[str, int, int, float]:
    """What all predictions take."""
    return text("fidelity", fidelity), whole("seeds", seeds), whole("steps", steps), number("precision", precision)
