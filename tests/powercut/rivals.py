"""Two programs at work on one place at once, and some of them killed at any moment.

Each is a process of its own that is forked here; what it tells goes to a file of its own. Nothing that was told is lost
by a kill: the system stays up, and what was written stays.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fieldray.errors import FieldrayError
from powercut.exporting import QUICK, check_export, export, prepare_export
from powercut.figures import Figures
from powercut.keeping import check_packs, install, prepare_packs
from powercut.place import Emit, Log, Lost, Place, emitter, log_of, require, require_complete, require_whole
from powercut.screening import check_verdicts, give_verdicts, prepare_nothing, prepare_verdicts, screen
from powercut.storing import check_deleted, delete, prepare_runs

_LIMIT_S: Final = 120.0
_LONGEST_LIFE_S: Final = 0.4
# What one may be told because of the other; everything else is a fault.
_PERMITTED: Final = frozenset({"history_in_use", "history_no_run"})

Perform = Callable[[Place, Emit], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivalry:
    """Two acts at once on what `prepare` made; `check` sees what each has told."""

    prepare: Callable[[Place], None]
    acts: tuple[Perform, Perform]
    check: Callable[[Place, Log, Log], None]


def rival(place: Place, name: str, *, rounds: int, seed: int) -> Figures:
    """Let two programs at each other so often."""
    rivalry, figures = RIVALRIES[name], Figures({"name": name}, {"rounds": rounds, "killed": 0})
    chance = random.Random(f"{seed} {name}")
    for number in range(rounds):
        rivalry.prepare(place)
        lives = [chance.uniform(0, _LONGEST_LIFE_S) if chance.random() < 0.5 else None for _ in rivalry.acts]
        logs, crashes = _perform(place, rivalry.acts, lives)
        figures.counts["killed"] += sum(life is not None for life in lives)
        given = [event[1] for lines in logs for event in lines if event[0] == "problem"]
        figures.reasons.update(given)
        with figures.judging(f"round {number}"):
            if crashes:
                raise Lost(crashes[0].strip().splitlines()[-1])
            if unexpected := set(given) - _PERMITTED:
                raise Lost(f"told: {', '.join(sorted(unexpected))}")
            rivalry.check(place, *logs)
    return figures


def _perform(
    place: Place, acts: Sequence[Perform], lives_s: Sequence[float | None]
) -> tuple[tuple[Log, Log], list[str]]:
    """What each told, and the tracebacks of what nobody expected."""
    files = [place.log_path.with_name(f"told-{number}") for number in range(len(acts))]
    crashed = [place.root.with_name(f"crash-{number}") for number in range(len(acts))]
    for path in (*files, *crashed):
        path.write_bytes(b"")
    began_s, processes = time.monotonic(), []
    for act, file, crash in zip(acts, files, crashed, strict=True):
        process = os.fork()
        if not process:
            try:
                _act(place, act, emitter(file))
            except BaseException:
                crash.write_text(traceback.format_exc())
            os._exit(0)
        processes.append(process)
    for life_s, process in sorted(zip(lives_s, processes, strict=True), key=lambda one: one[0] or _LIMIT_S):
        _end(process, began_s + (_LIMIT_S if life_s is None else life_s))
    logs = log_of(files[0].read_bytes()), log_of(files[1].read_bytes())
    return logs, [path.read_text() for path in crashed if path.stat().st_size]


def _act(place: Place, act: Perform, emit: Emit) -> None:
    try:
        act(place, emit)
    except FieldrayError as problem:
        emit("problem", problem.reason.code)


def _end(process: int, until_s: float) -> None:
    """Wait until then for its end, and kill it."""
    while not os.waitpid(process, os.WNOHANG)[0]:
        if time.monotonic() > until_s:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.002)


# ---- what must hold


def _check_runs(place: Place, first: Log, second: Log) -> None:
    require_whole(place)
    for event in (*first, *second):
        require(event[0] != "seen" or event[1] in place.results(event[2]), f"told, but not kept: {event[1]}")
    require_complete(place.results(place.screen().run_id))


def _check_deleted(place: Place, first: Log, second: Log, *, further: bool = False) -> None:
    check_deleted(place, first + second, "kill", further=further)
    require_complete(place.results(place.screen().run_id))


RIVALRIES: Final[Mapping[str, Rivalry]] = {
    "two runs": Rivalry(prepare=prepare_nothing, acts=(screen, screen), check=_check_runs),
    "verdicts and a run": Rivalry(
        prepare=prepare_verdicts,
        acts=(give_verdicts, screen),
        check=lambda place, first, second: check_verdicts(place, first, "kill"),
    ),
    "a deletion and a run": Rivalry(
        prepare=prepare_runs, acts=(delete, screen), check=functools.partial(_check_deleted, further=True)
    ),
    "two deletions": Rivalry(prepare=prepare_runs, acts=(delete, delete), check=_check_deleted),
    "one pack installed twice": Rivalry(
        prepare=prepare_packs,
        acts=(install, install),
        check=lambda place, first, second: check_packs(place, first + second, "kill"),
    ),
    "two exports to one folder": Rivalry(
        prepare=prepare_export,
        acts=(lambda place, emit: export(place, emit, formats=QUICK),) * 2,
        check=lambda place, first, second: check_export(place, first + second, "kill"),
    ),
}
