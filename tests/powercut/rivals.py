"""Two programs that work on the same files at once, some of them killed at a random moment.

Each is a forked process with its own log of reports. A kill must not lose anything that was reported, because the
system keeps running and keeps what was written.
"""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from harness.machine import Forked
from powercut.acts import ACTS, Act, End
from powercut.exporting import check_export
from powercut.figures import Figures
from powercut.keeping import check_packs
from powercut.place import Log, Lost, Place, log_of, require, require_complete, require_whole
from powercut.stage import Stage
from powercut.storing import check_deleted, check_verdicts

_LIMIT_S: Final = 120.0
_LONGEST_LIFE_S: Final = 0.4
_SILENT: Final = {"crash": "one ended without a word, or not at all", "problem": None}
# Reason codes that one program may report because of the other; all others are faults.
_PERMITTED: Final = frozenset({"history_in_use", "history_no_run"})


def rival(stage: Stage, name: str, *, rounds: int, seed: int) -> Figures:
    """Perform two acts at once, `rounds` times."""
    place, (names, check) = stage.place, RIVALRIES[name]
    acts, figures = [ACTS[act] for act in names], Figures(Counter(rounds=rounds))
    chance = random.Random(f"{seed} {name}")
    for number in range(rounds):
        acts[0].prepare(place)
        lives = [chance.uniform(0, _LONGEST_LIFE_S) if chance.random() < 0.5 else _LIMIT_S for _ in acts]
        logs, ended = _perform(place, acts, lives)
        figures.counts["killed"] += sum(life < _LIMIT_S for life in lives)
        given = [event[1] for lines in logs for event in lines if event[0] == "problem"]
        given += [one["problem"][0] for one in ended if one["problem"]]
        figures.counts.update(given)
        with figures.judging(f"round {number}"):
            for one in ended:
                require(not one["crash"], one["crash"].strip().rpartition("\n")[2])
            if unexpected := set(given) - _PERMITTED:
                raise Lost(f"told: {', '.join(sorted(unexpected))}")
            check(place, logs[0] + logs[1], "kill")
    return figures


def _perform(place: Place, acts: Sequence[Act], lives_s: Sequence[float]) -> tuple[list[Log], list[dict[str, Any]]]:
    """Perform acts at once. Returns the log of each, and how those ended that were not killed."""
    files = [place.log_path.with_name(f"told-{number}") for number in range(len(acts))]
    for path in files:
        path.write_bytes(b"")
    began_s = time.monotonic()
    works = [functools.partial(act.performed, place, file) for act, file in zip(acts, files, strict=True)]
    processes = [Forked(work) for work in works]
    by_life = sorted(zip(lives_s, processes, strict=True), key=lambda one: one[0])
    ended = [process.result(began_s + life_s) or (life_s == _LIMIT_S and _SILENT) for life_s, process in by_life]
    return [log_of(path.read_bytes()) for path in files], [one for one in ended if one]


# ---- checks


def _check_runs(place: Place, log: Log, end: End) -> None:
    require_whole(place)
    for event in log:
        require(event[0] != "seen" or event[1] in place.results(event[2]), f"told, but not kept: {event[1]}")
    require_complete(place.results(place.screen().run_id))


def _check_deleted(place: Place, log: Log, end: End, *, further: bool = False) -> None:
    check_deleted(place, log, end, further=further)
    require_complete(place.results(place.screen().run_id))


# Two acts to perform at once after the first one's `prepare`, and the check with the reports of both.
RIVALRIES: Final[Mapping[str, tuple[tuple[str, str], Callable[[Place, Log, End], None]]]] = {
    "two runs": (("screen", "screen"), _check_runs),
    "verdicts and a run": (("verdicts", "screen"), check_verdicts),
    "a deletion and a run": (("delete", "screen"), functools.partial(_check_deleted, further=True)),
    "two deletions": (("delete", "delete"), _check_deleted),
    "one pack installed twice": (("install", "install"), check_packs),
    "two exports to one folder": (("export", "export"), check_export),
}
