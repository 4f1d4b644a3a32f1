"""Which server and how many workers to take, or whether one machine is better: the largest of all speed-ups.

The source has no closed form for the best number of workers either: the speed-up is evaluated for each number, and
training on one machine, whose speed-up is 1, is among the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fieldray.reasons import Reason, reason
from fieldray_adapt.speedup.estimate import SERVERS, Estimate, Measured, Mode, Server, estimates

# Of the best speed-up: whoever buys machines wants to know with how few of them most of it is reached.
_MOST: Final = 0.9
# Speed-ups that differ by less are equal, but for rounding.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer for one mode.

    Attributes
    ----------
    best
        The fastest, with the fewest workers where several are equal; None where one machine is as fast.
    fewest
        The one with the fewest workers that reaches nine tenths of the best speed-up; None as `best`.
    second
        The faster of the two servers with two workers; None where at most one worker was asked about.
    """

    mode: Mode
    most_workers: int
    best: Estimate | None
    fewest: Estimate | None
    second: Estimate | None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The answer in sentences."""
        said = [
            _told("estimate_best", self.best)
            if self.best
            else reason("estimate_one_machine", mode=self.mode, workers=self.most_workers)
        ]
        if self.best and self.fewest and self.fewest.workers < self.best.workers:
            said.append(_told("estimate_fewest", self.fewest))
        if self.second:
            pays = self.second.speed_up > 1 + _ROUNDING
            said.append(_told("estimate_second" if pays else "estimate_second_not", self.second))
        return tuple(said)


def advise(measured: Measured, *, mode: Mode, most_workers: int, servers: Sequence[Server] = SERVERS) -> Advice:
    """Compare all servers and numbers of workers from 1 to `most_workers`, and training on one machine."""
    known = [
        one for server in servers for one in estimates(measured, mode=mode, server=server, most_workers=most_workers)
    ]
    best = _fastest(known)
    if best is None or best.speed_up <= 1 + _ROUNDING:
        best = fewest = None
    else:
        enough = [one for one in known if one.speed_up >= _MOST * best.speed_up]
        least = min(one.workers for one in enough)
        fewest = _fastest([one for one in enough if one.workers == least])
    second = _fastest([one for one in known if one.workers == 2])
    return Advice(mode=mode, most_workers=most_workers, best=best, fewest=fewest, second=second)


def _fastest(known: Sequence[Estimate]) -> Estimate | None:
    """The largest speed-up; of equal ones that with the fewest workers."""
    return min(known, key=lambda one: (-round(one.speed_up, 9), one.workers), default=None)


def _told(code: str, one: Estimate) -> Reason:
    return reason(
        code,
        mode=one.mode,
        workers=one.workers,
        server="a central server" if one.server == "central" else "distributed servers",
        speed_up=f"{one.speed_up:.2f}",
    )
