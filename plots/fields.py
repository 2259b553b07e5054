"""Types of fields that several kinds of file have. msgspec checks them when inputs.py reads a file."""

import sys
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, defstruct

T = TypeVar("T")
LARGEST = sys.float_info.max  # so that numbers are finite
Version = Annotated[int, Meta(ge=1, le=1)]  # the schema_version that is read
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
Some = Annotated[list[T], Meta(min_length=1)]


class Object(Struct, frozen=True):
    """A JSON object with these keys; it may have other keys, which nothing reads."""


def record(name, /, **keys):
    """The type of an Object that needs all of these keys."""
    return defstruct(name, keys.items(), bases=(Object,))


def one_of(words):
    return Annotated[str, Meta(pattern=rf"^({'|'.join(words)})\Z")]
