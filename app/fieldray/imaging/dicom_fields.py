"""Single values out of a data set that may hold anything: wrong types, several values, damaged numbers."""

from __future__ import annotations

import math
from typing import Any

from pydicom.dataset import Dataset

_TEXT_LIMIT = 200


def text(dataset: Dataset, keyword: str) -> str:
    """The value as one line of text, empty where there is none or it cannot be read."""
    value = first_value(dataset, keyword)
    plain = "" if value is None else str(value)
    return "".join(letter if letter.isprintable() else " " for letter in plain).strip()[:_TEXT_LIMIT]


def texts(dataset: Dataset, keyword: str) -> list[str]:
    """All values as text."""
    value = _value(dataset, keyword)
    return [value] if isinstance(value, str) else [str(entry) for entry in _as_list(value)]


def whole_number(dataset: Dataset, keyword: str, default: int = 0) -> int:
    """The value as a whole number, `default` where there is none."""
    value = number(dataset, keyword)
    return default if value is None else int(value)


def number(dataset: Dataset, keyword: str) -> float | None:
    """The first value as a finite number, or None."""
    return _as_number(first_value(dataset, keyword))


def numbers(dataset: Dataset, keyword: str) -> list[float]:
    """All values that are finite numbers."""
    values = _value(dataset, keyword)
    listed = [values] if values is None or isinstance(values, str | bytes | int | float) else _as_list(values)
    return [value for value in map(_as_number, listed) if value is not None]


def items(dataset: Dataset, keyword: str) -> list[Dataset]:
    """The items of a sequence, none where it is absent or damaged."""
    value = _value(dataset, keyword)
    return [item for item in _as_list(value) if isinstance(item, Dataset)]


def first_value(dataset: Dataset, keyword: str) -> Any:
    """The value, or the first of several; None where there is none or it cannot be converted."""
    value = _value(dataset, keyword)
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__") or hasattr(value, "components"):
        return value
    return value[0] if len(value) else None


def _value(dataset: Dataset, keyword: str) -> Any:
    try:
        return dataset.get(keyword)
    except Exception:  # pydicom converts on access, and raises whatever the damaged bytes lead it to
        return None


def _as_list(value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        return [] if value is None else [value]


def _as_number(value: Any) -> float | None:
    try:
        converted = float(value)
    except (TypeError, ValueError):
        return None
    return converted if math.isfinite(converted) else None
