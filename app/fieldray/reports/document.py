"""What a report says to a person, in their language. The writers only lay it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """A line: what it is, and its value."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A score on its scale; every position is a share of the length, 0 left to 1 right.

    low, middle, high  from where the pack is not sure, the threshold, to where; None without an operating point
    """

    mark: float
    low: float | None = None
    middle: float | None = None
    high: float | None = None
    threshold: str = ""
    ends: tuple[str, str] = ("0", "1")
    unsure: str = ""
    spoken: str = ""
