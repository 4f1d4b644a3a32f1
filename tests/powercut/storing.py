"""Acts on the results' file itself: runs are deleted, a damaged file is mended."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path
from typing import Final

from fieldray.domain.run import Verdict
from fieldray.store.database import damage_mark
from fieldray.store.deleting import RunDeleter
from fieldray.store.results import ResultStore
from powercut.place import NAMES, Lost, Place, Tell, Told, require_complete, require_whole

_VERDICT: Final = Verdict(choice="agree", note="before")
_PAGE: Final = 4096
_LEAF: Final = 13  # the first byte of a page with rows of a table
_OF_A_RESULT: Final = b'{"kind":'


def prepare_runs(place: Place) -> None:
    """Three finished runs, with a verdict on the third."""
    place.clear()
    for _ in range(3):
        place.screen(fresh=True)
    _judge(place, 3)


def delete(place: Place, tell: Tell) -> None:
    """The first two runs."""
    done = RunDeleter(place.store).delete([1, 2])
    tell("deleted", *done.plan.run_ids)


def check_deleted(place: Place, told: Told, end: str) -> None:
    """The two went together or not at all, and stay away once that was told; the third is as it was."""
    require_whole(place)
    left = sorted(run.run_id for run in place.runs())
    if left not in ([1, 2, 3], [3]):
        raise Lost(f"runs {left} are left")
    if left != [3] and any(words[0] == "deleted" for words in told):
        raise Lost("told as deleted, but there again")
    for run_id in left:
        require_complete(place.results(run_id))
    if place.results(3)[NAMES[0]].verdict != _VERDICT:
        raise Lost("the verdict on the run that was kept")
    if left != [3]:
        RunDeleter(place.store).delete([1, 2])
    require_complete(place.results(3))


# ---- mending


def prepare_damage(place: Place) -> None:
    """A run with a verdict on every image; a page of the file in the middle is nonsense, and that was noticed."""
    place.clear()
    place.screen()
    _judge(place, 1, *NAMES)
    with place.store.open("r+b") as stream:
        stream.seek(_results_leaf(place.store) * _PAGE)
        stream.write(b"\xa5" * _PAGE)
    damage_mark(place.store).touch(0o600)
    (place.root.with_name("damaged.sha256")).write_text(_digest(place.store))


def mend(place: Place, tell: Tell) -> None:
    """As the next run does."""
    tell("mended", place.mended())


def check_mended(place: Place, told: Told, end: str) -> None:
    """Every verdict and every result that can be read is there, and the damaged file is kept as it was."""
    before = place.root.with_name("damaged.sha256").read_text()
    place.mended()
    kept = [path for path in place.home.glob("results.damaged-*.sqlite") if _digest(path) == before]
    if not kept:
        raise Lost("the damaged file is not kept as it was")
    (run,) = place.runs()
    rows = place.results(run.run_id)
    readable = _readable(kept[0])
    if not readable or set(rows) != readable:
        raise Lost(f"{len(readable)} results could be read, {len(rows)} are there")
    if lost := [name for name, row in rows.items() if row.verdict != _VERDICT]:
        raise Lost(f"the verdicts on {lost}")
    if said := place.mended():
        raise Lost(f"mended twice: {said}")
    batch = place.screen(fresh=True)
    require_complete(place.results(batch.run_id))


def _results_leaf(store: Path) -> int:
    """The number of a page with rows of results, from 0: the one with the second image."""
    data = store.read_bytes()
    pages = [data[place : place + _PAGE] for place in range(0, len(data), _PAGE)]
    (number,) = (
        number
        for number, page in enumerate(pages)
        if page[0] == _LEAF and NAMES[1].encode() in page and _OF_A_RESULT in page
    )
    return number


def _readable(store: Path) -> set[str]:
    """The images whose rows can be read one by one in a damaged file."""
    found = set()
    with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro&immutable=1", uri=True)) as source:
        for row_id in range(1, 2 * len(NAMES)):
            with contextlib.suppress(sqlite3.Error, TypeError):
                (key, _details) = source.execute(
                    "SELECT image_key, details || findings || header FROM results WHERE rowid = ?", (row_id,)
                ).fetchone()
                found.add(Path(bytes(key).decode()).name)
    return found


def _judge(place: Place, run_id: int, *names: str) -> None:
    for name, row in place.results(run_id).items():
        if name in (names or NAMES[:1]):
            with ResultStore(place.store) as store:
                store.set_verdict(row.row_id, _VERDICT, judged=row.outcome)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
