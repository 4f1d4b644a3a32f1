"""Bringing a store of an older version up to date where its rows are kept in another form now (`schema.COMPACT`).

A new file is written beside the old one and takes its place when it is complete and on the disk; the old one stays as
`<name>.v<version>.bak`. Whatever happens before, a kill or a full disk, the old file is as it was, and the next start
begins again. One program does it at a time, and only while no other one has the store open.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from fieldray.persistence import make_empty, replace_durably
from fieldray.store import old_rows
from fieldray.store.database import (
    NONSENSE,
    PAGE_BYTES,
    Tell,
    apply,
    damage_noticed,
    files_of,
    open_database,
    version_of,
)
from fieldray.store.exchanging import alone, keep_copy, only_one
from fieldray.store.pictures import Pictures
from fieldray.store.rows import spec_of
from fieldray.store.schema import COMPACT, Migration

log = logging.getLogger(__name__)

T = TypeVar("T")


class Made(Protocol):
    """What rows become, each by a function."""

    def __call__(self, make: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row], /) -> list[T]: ...


_AT_ONCE: Final = 500
_RESULTS: Final = """
    SELECT results.*, runs.spec, previews.jpeg FROM results LEFT JOIN runs ON runs.id = run_id
    LEFT JOIN previews ON previews.content_sha256 = results.content_sha256 AND previews.frame = results.frame
    WHERE results.id > ? ORDER BY results.id LIMIT ?
"""


def bring_up_to_date(path: Path, *, tell: Tell) -> None:
    """Bring a store that is there, and older than this program, up to date. Raises StorageProblem.

    tell  hears which share of the work is done, 0..1, and nothing where there is no work
    """
    if path.exists():
        open_database(path, tell=tell).close()


def rebuild(path: Path, migrations: Sequence[Migration], *, tell: Tell, salvages: bool) -> None:
    """Put a new file in the place of the one at `path`, which is of a version before `COMPACT`.

    salvages  whether rows that make no sense are left out; otherwise they are damage, and a person is told

    Raises StorageProblem (store_in_use, database_damaged), OSError, sqlite3.Error.
    """
    beside = path.with_name(f"{path.stem}.upgrading{path.suffix}")
    with only_one(path):
        try:
            with closing(alone(path)) as old:
                version, count = version_of(old), migrations.index(COMPACT)
                if version > count:
                    return  # another program did it while this one waited
                _remove(beside)
                old.execute("BEGIN EXCLUSIVE")
                apply(old, migrations[version:count])
                with closing(_new(beside)) as new:
                    apply(new, migrations[: count + 1])
                    with damage_noticed(path):
                        _copy(old, new, Pictures(path), tell, _sensible if salvages else _all)
                    apply(new, migrations[count + 1 :])
                    new.execute(f"PRAGMA user_version = {len(migrations)}")
                old.execute("ROLLBACK")
            keep_copy(path, path.with_name(f"{path.name}.v{version}.bak"))
            replace_durably(beside, path)
        finally:
            _remove(beside)


def _new(path: Path) -> sqlite3.Connection:
    """An empty file that is worth nothing until it is complete."""
    make_empty(path)
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in (f"page_size = {PAGE_BYTES}", "journal_mode = OFF", "synchronous = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, pictures: Pictures, tell: Tell, made: Made) -> None:
    (total,) = old.execute("SELECT COUNT(*) FROM results").fetchone()
    new.execute("BEGIN")
    _insert(new, "runs", list(map(_run_columns, old.execute("SELECT * FROM runs"))))
    with closing(pictures):
        done, last = 0, -1
        while page := old.execute(_RESULTS, (last, _AT_ONCE)).fetchall():
            _insert(new, "results", made(old_rows.columns_of, page))
            pictures.add([picture for picture in made(old_rows.picture_of, page) if picture])
            done, last = done + len(page), page[-1]["id"]
            tell(min(1.0, done / total))
    _insert(new, "verdicts", made(old_rows.verdict_of, old.execute("SELECT * FROM verdicts")))
    new.execute("DELETE FROM sqlite_sequence")
    numbers = map(tuple, old.execute("SELECT name, seq FROM sqlite_sequence"))
    new.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", numbers)
    new.execute("COMMIT")


def _run_columns(row: sqlite3.Row) -> dict[str, Any]:
    columns = dict(row)
    try:
        spec = spec_of(row["spec"])
    except NONSENSE:  # the run is shown as damage wherever it is read
        return columns
    return {**columns, "model_sha256": spec.model_sha256, "settings_hash": spec.settings_hash}


def _all(make: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
    """What these rows become. Raises ValueError and others where one makes no sense."""
    return list(map(make, rows))


def _sensible(make: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
    """What those of these rows become that make sense; the others stay in the old file."""
    made = []
    for row in rows:
        try:
            made.append(make(row))
        except NONSENSE as error:
            log.warning("a row of the older store is left out: %s", type(error).__name__)
    return made


def _insert(new: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        new.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))


def _remove(path: Path) -> None:
    for file in files_of(path):
        file.unlink(missing_ok=True)
