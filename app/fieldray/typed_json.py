"""JSON that somebody else may have written, as values of a type: one error, whatever is wrong with it.

Text that is no JSON, JSON of another type, and lists within lists until no stack holds them. Names of files may hold
bytes that are no text, which `msgspec` alone would refuse.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")
_decoder: Final[Callable[[Any], msgspec.json.Decoder[Any]]] = functools.cache(msgspec.json.Decoder)


def decoded(data: bytes | str, kind: type[T]) -> T:
    """What a JSON document says. Raises ValueError unless it is of this type."""
    try:
        read: T = _decoder(kind).decode(data)
        return read
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except (msgspec.DecodeError, RecursionError):
        pass  # perhaps half a surrogate pair, or what is not a number
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
