"""One SHA-256 of whatever decides a result, so that nothing is taken up again that something else has made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np


def digest(*parts: object) -> str:
    """SHA-256, as hexadecimal text, of values, arrays, dataclasses and collections of them.

    Equal parts have equal digests in every process; the order of a mapping or a set does not count. Raises TypeError
    for anything else: an object that is told apart by its address alone would change its digest with every run.
    """
    found = hashlib.sha256()
    for part in parts:
        _add(found, part)
    return found.hexdigest()


def _add(found: Any, part: object) -> None:
    if isinstance(part, np.ndarray):
        _add_text(found, f"array {part.dtype.str} {part.shape}")
        found.update(np.ascontiguousarray(part))
    elif is_dataclass(part) and not isinstance(part, type):
        _add_mapping(found, {field.name: getattr(part, field.name) for field in fields(part)}, type(part).__name__)
    elif isinstance(part, Mapping):
        _add_mapping(found, part, "mapping")
    elif isinstance(part, set | frozenset):
        _add_text(found, f"set {sorted(digest(item) for item in part)}")
    elif isinstance(part, tuple | list):
        _add_text(found, f"list {len(part)}")
        for item in part:
            _add(found, item)
    elif part is None or isinstance(part, bool | int | float | str | Path):
        value = float(part) if isinstance(part, float) else part  # numpy's floats print in another way
        _add_text(found, f"{'path' if isinstance(part, Path) else type(value).__name__} {value}")
    else:
        raise TypeError(f"no digest of a {type(part).__name__}")


def _add_mapping(found: Any, part: Mapping[Any, object], name: str) -> None:
    _add_text(found, f"{name} {len(part)}")
    for key in sorted(part):
        _add(found, key)
        _add(found, part[key])


def _add_text(found: Any, text: str) -> None:
    data = text.encode()
    found.update(f"{len(data)}:".encode() + data)
