"""How long something that should never wait did wait, and how much of it the machine itself is to blame for."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class Stall:
    """From `began_s` to `ended_s`, on the clock that all processes of a machine share (`time.monotonic`)."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended_s - self.began_s

    def beyond(self, others: Sequence[Stall]) -> float:
        """Seconds of it in which none of `others`, which do not overlap each other, went on."""
        shared = (min(self.ended_s, other.ended_s) - max(self.began_s, other.began_s) for other in others)
        return self.seconds - sum(max(0.0, overlap) for overlap in shared)


class Beats:
    """Told `beat` again and again, it keeps the longest times in between, longest first."""

    def __init__(self) -> None:
        self.longest: list[Stall] = []
        self._last_s = time.monotonic()

    def begin(self) -> None:
        """What was before does not count."""
        self._last_s = time.monotonic()

    def beat(self) -> None:
        """Alive."""
        now_s = time.monotonic()
        self.longest = heapq.nlargest(KEPT, [*self.longest, Stall(self._last_s, now_s)], key=lambda s: s.seconds)
        self._last_s = now_s
