"""How long something that should never wait did wait, and how much of it the machine itself is to blame for."""

from __future__ import annotations

import heapq
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

KEPT: Final = 20
_LOOKED_AT_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.01
_FRAMES: Final = 5


@dataclass(frozen=True, slots=True)
class Stall:
    """From `began_s` to `ended_s`, on the clock that all processes of a machine share (`time.monotonic`).

    where   the lines of code in which it was seen, innermost first, if anybody looked
    """

    began_s: float
    ended_s: float
    where: tuple[str, ...] = ()

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

    @property
    def last_s(self) -> float:
        """The last beat, on the clock of `Stall`."""
        return self._last_s

    def begin(self) -> None:
        """What was before does not count."""
        self._last_s = time.monotonic()

    def beat(self) -> None:
        """Alive."""
        now_s = time.monotonic()
        self.longest = heapq.nlargest(KEPT, [*self.longest, Stall(self._last_s, now_s)], key=lambda s: s.seconds)
        self._last_s = now_s


class Onlooker:
    """Sees where the thread that made it is while its beats stay away: by the beat before, the lines of code."""

    def __init__(self, beats: Beats) -> None:
        self._seen: dict[float, tuple[str, ...]] = {}
        self._beats = beats
        self._watched = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="onlooker")
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def completed(self, stall: Stall) -> Stall:
        """With what was seen during it."""
        return replace(stall, where=self._seen.get(stall.began_s, ()))

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            last_s = self._beats.last_s
            if time.monotonic() - last_s > _LOOKED_AT_S and last_s not in self._seen:
                frame = sys._current_frames().get(self._watched)
                found = traceback.extract_stack(frame)[-_FRAMES:] if frame else []
                lines = (f"{line.filename.rpartition('/')[2]}:{line.lineno}" for line in reversed(found))
                self._seen[last_s] = tuple(lines)
