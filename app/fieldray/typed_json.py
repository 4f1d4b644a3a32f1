"""JSON that somebody else may have written, as values of a type: one error, whatever is wrong with it.

Text that is no JSON, JSON of another type, and lists within lists until no stack holds them. Names of files may hold
bytes that are no text, which `msgspec` alone would refuse.

`msgspec` reads what a class says the first time that it meets it, and keeps that on the class before it is whole: a
second thread that meets the class just then ends the process. So each type is met here first, by one thread at a time,
and nowhere else is `msgspec` asked to decode or convert.
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


def encoded(value: Any) -> bytes:
    """A plain value, a dataclass or a struct as JSON in ASCII without blanks. Raises TypeError for any other object.

    `msgspec` takes a tenth of the time of `json`. But it writes numbers that are not finite as null and texts as UTF-8,
    and refuses file names that are no text, and NumPy's numbers.
    """
    try:
        data = msgspec.json.encode(value)
        if data.isascii() and b"null" not in data:
            return data
    except (ValueError, TypeError, OverflowError):
        pass
    return json.dumps(value, separators=(",", ":"), default=msgspec.to_builtins).encode()


def converted(value: Any, kind: type[T], others: Callable[[type, Any], Any] | None = None) -> T:
    """Plain values, as a JSON parser returns them, as an object of type `kind`. Raises ValueError.

    others  makes what `msgspec` does not know, of a type and a plain value
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
