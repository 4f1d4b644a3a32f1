"""Conversion of untrusted JSON to values of a type. Every mistake in the JSON raises the same exception, ValueError.

Mistakes are invalid JSON, values of another type, and nesting that exceeds the stack. File names that are no valid
Unicode are allowed, although `msgspec` rejects them.

`msgspec` analyses a class at its first use, and stores the result on the class before the result is complete. If a
second thread uses the class at that moment, the process crashes. This module therefore uses each type first, in one
thread at a time. No other module may call msgspec's functions to decode or convert.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")
_meeting: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def parse_json(data: bytes | str, kind: type[T]) -> T:
    """Parse a JSON document to a value of type `kind`. Raises ValueError for any other content."""
    try:
        read: T = _decoder(kind).decode(data)
        return read
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except (msgspec.DecodeError, RecursionError):
        pass  # perhaps half a surrogate pair, NaN or an infinite number
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deep") from error
    return to_type(value, kind)


def format_json(value: Any) -> bytes:
    """Format a plain value, a dataclass or a struct as JSON in ASCII without blanks.

    Raises TypeError for any other object.

    `msgspec` takes a tenth of the time of `json`. But msgspec writes infinite numbers and NaN as null, and texts as
    UTF-8. It also rejects NumPy's numbers, and file names that are no valid Unicode. For all these values this function
    uses `json`.
    """
    try:
        data = msgspec.json.encode(value)
        if data.isascii() and b"null" not in data:
            return data
    except (ValueError, TypeError, OverflowError):
        pass
    return json.dumps(value, separators=(",", ":"), default=msgspec.to_builtins).encode()


def to_type(value: Any, kind: type[T], others: Callable[[type, Any], Any] | None = None) -> T:
    """Convert plain values, as a JSON parser returns them, to an object of type `kind`.

    others  makes an object of a type that `msgspec` does not know, from the type and a plain value

    Raises ValueError for values that do not fit the type.
    """
    _decoder(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=others)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    if decoder := _decoders.get(kind):
        return decoder
    with _meeting:
        return _decoders.setdefault(kind, msgspec.json.Decoder(kind))
