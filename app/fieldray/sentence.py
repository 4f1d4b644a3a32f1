"""What a sentence of the program is: a text with fields, or one that changes with a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plural:
    """A sentence with a number: `one` for exactly 1, `many` for others; `by` is the parameter that counts."""

    one: str
    many: str
    by: str

    def number(self, parameters: Sequence[tuple[str, str]]) -> int:
        """The number that the parameters state; 0 where it is none (an older version may have stored another text)."""
        value = dict(parameters)[self.by]
        return int(value) if value.isdecimal() else 0


Template = str | Plural
