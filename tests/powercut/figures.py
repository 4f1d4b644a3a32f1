"""What a power-cut run found, counted while it is tried."""

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
    """What came of one thing that was tried at many moments.

    counts  what was tried how often, and what was given as the reason
    lost    what did not hold, each with how often; `examples` says where it is found again
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @contextmanager
    def judging(self, where: object, *, under: str = "") -> Iterator[None]:
        """Note what does not hold inside."""
        try:
            yield
        except Exception as error:
            what = str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}"
            self.lost[under + what] += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append(f"{where}: {what}")

    def require_none_lost(self) -> None:
        """Raise Lost with all that did not hold."""
        if self.lost:
            raise Lost("\n".join([*(f"{what}: {count} times" for what, count in self.lost.items()), *self.examples]))
