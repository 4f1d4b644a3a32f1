"""Counts of what a power-cut run tried and what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from powercut.place import Lost

_MOST_EXAMPLES: Final = 12


@dataclass(eq=False, slots=True)
class Figures:
    """The outcome of one act that was interrupted at many moments.

    counts  numbers of interruptions and of reported reasons
    lost    failed checks with their number; `examples` names the moments at which to find them again
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @contextmanager
    def judging(self, where: object, *, under: str = "") -> Iterator[None]:
        """Catch and count a failed check in the block."""
        try:
            yield
        except Exception as error:
            what = str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}"
            self.lost[under + what] += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append(f"{where}: {what}")

    def require_none_lost(self) -> None:
        """Raise Lost with all failed checks, if there are any."""
        if self.lost:
            raise Lost("\n".join([*(f"{what}: {count} times" for what, count in self.lost.items()), *self.examples]))
