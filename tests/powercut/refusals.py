"""Failing writes at every change of an act: full disk, exhausted quota, or disk error.

Whichever change fails, the program ends in order and reports why. No incomplete file has a final name. Once the disk
works again, the same act comes to its complete result.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fieldray.store.database import damage_mark_path
from powercut.acts import ACTS
from powercut.figures import Figures
from powercut.place import Log, Lost, Place
from powercut.stage import Fault, How, Performed, Stage

# Reason codes that the program may report. After a single ENOSPC both are right; a disk that stays full must be
# reported as full.
_FULL: Final = frozenset({"disk_full"})
_FAILING: Final = frozenset({"disk_failing", "not_writable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of disk failure; `reasons` are the codes that the program may report for it."""

    name: str
    how: How
    error: int
    reasons: frozenset[str]


KINDS: Final[Sequence[Kind]] = (
    Kind(name="disk full", how="disk full", error=errno.ENOSPC, reasons=_FULL),
    Kind(name="disk full once", how="once", error=errno.ENOSPC, reasons=_FULL | _FAILING),
    Kind(name="quota used up", how="from then on", error=errno.EDQUOT, reasons=_FULL),
    Kind(name="disk error once", how="once", error=errno.EIO, reasons=_FAILING),
    Kind(name="disk errors from then on", how="from then on", error=errno.EIO, reasons=_FAILING),
    # Linux remounts a file system with errors read-only while files are open.
    Kind(name="read-only from then on", how="from then on", error=errno.EROFS, reasons=_FAILING),
)


def refuse(stage: Stage, name: str, kind: Kind, *, seed: int, most: int | None = None) -> Figures:
    """Perform an act repeatedly, each time with a failure at another change, at most `most` times."""
    act, place, figures = ACTS[name], stage.place, Figures()
    act.prepare(place)
    before, chance = place.read(), random.Random(f"{seed} {name} {kind.name}")
    changes = stage.perform(name).changes
    numbers: Sequence[int] = range(1, changes + 1)
    if most is not None and most < len(numbers):
        numbers = sorted(chance.sample(numbers, most))
    figures.counts.update({"changes": changes, "tried": len(numbers)})
    for number in numbers:
        fault = Fault(first=number, how=kind.how, error=kind.error, room=chance.randrange(0, 8192))
        place.write(before)
        done = stage.perform(name, fault=fault)
        log = place.log
        figures.counts.update(given := _reasons(done, log))
        with figures.judging(fault):
            if done.crash:
                raise Lost(done.crash.strip().splitlines()[-1])
            marked = (
                {"database_damaged"} if damage_mark_path(place.store).exists() else set()
            )  # the damage is real until it is repaired
            if wrong := set(given) - kind.reasons - marked:
                raise Lost(f"the reason given is {', '.join(sorted(wrong))}")
            _require_ended(place, kind)
            act.check(place, log, "fault")
    return figures


def _reasons(done: Performed, log: Log) -> list[str]:
    """Return all reported reason codes, else the one with which the act ended."""
    said = [event for event in log if isinstance(event, list)]
    given = [event[1] for event in said if event[0] == "problem"]
    given += [event[2] for event in said if event[0] == "ended" and event[2]]
    return given or ([done.problem[0]] if done.problem else [])


def _require_ended(place: Place, kind: Kind) -> None:
    """Require that no run is left as running, unless the disk or a damaged database prevents noting its end."""
    if kind.how == "from then on" or not place.store.exists() or damage_mark_path(place.store).exists():
        return
    if states := [run.state for run in place.runs() if run.state in ("running", "paused")]:
        raise Lost(f"a run is left {states[0]}")
