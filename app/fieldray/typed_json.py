"""JSON that somebody else may have written, as values of a type: one error, whatever is wrong with it.

Text that is no JSON, JSON of another type, and lists within lists until no stack holds them. Names of files may hold
bytes that are no text, which `msgspec` alone would refuse.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def decoded(data: bytes | str, kind: type[T]) -> T:
    """What a JSON document says. Raises ValueError unless it is of this type."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deep") from error
    return converted(value, kind)


def converted(value: Any, kind: type[T]) -> T:
    """The same of plain values, as a reader of JSON gives them. Raises ValueError."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
