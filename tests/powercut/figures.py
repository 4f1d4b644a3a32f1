"""What a power-cut run found, counted while it is tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from powercut.place import Lost

_MOST_EXAMPLES: Final = 12


@dataclass(eq=False, slots=True)
class Figures:
    """What came of one thing that was tried at many moments.

    name    what it is called, and what was tried: an act or two programs at once
    counts  what was tried how often, and what was given as the reason
    lost    what did not hold, each with how often; `examples` says where it is found again
    """

    name: Mapping[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
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

    def add(self, other: Figures) -> None:
        """Those of the same act, tried otherwise."""
        self.counts = {name: max(count, self.counts.get(name, 0)) for name, count in other.counts.items()}
        self.states += other.states
        self.lost += other.lost
        self.examples = [*self.examples, *other.examples][:_MOST_EXAMPLES]

    def facts(self) -> dict[str, Any]:
        """As JSON has them."""
        counted = {"states": dict(self.states), "reasons": dict(self.reasons), "lost": dict(self.lost)}
        return {**self.name, **self.counts, **counted, "examples": self.examples}


def lost_in(facts: Mapping[str, Any]) -> int:
    """How much did not hold, over all parts."""
    return sum(sum(row["lost"].values()) for part in facts.values() if isinstance(part, list) for row in part)
