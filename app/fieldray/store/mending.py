"""Setting a damaged database aside and starting a new one with every row that can still be read.

This can be interrupted at any moment and started again: the new file gets its name only when it is complete, and until
then the damage mark keeps everybody else from opening one there.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.persistence import FileLock, HeldError
from fieldray.reasons import Reason, reason
from fieldray.store.copied import has_table, journal
from fieldray.store.database import (
    COMPANIONS,
    MIGRATIONS,
    companions,
    damage_mark,
    free_name,
    lose_journal,
    open_database,
    storage_problems,
    transaction,
)
from fieldray.store.rows import category_in, category_of, moment_in, outcome_of, run_of, verdict_of

log = logging.getLogger(__name__)

_MOST_GAP: Final = (
    1_000_000  # so many numbers between two rows that can be read are tried; a damaged number may be huge
)
# The second: where SQLite quotes damaged words in what it complains of.
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
# A page that is damaged may still give a row. Only one that makes sense is kept: another would be damage again.
Sense = Callable[[sqlite3.Row], object]
_SENSE: Final[Mapping[str, tuple[Sense, ...]]] = {
    "runs": (run_of,),
    "results": (outcome_of, lambda row: category_of(row["rank"])),
    "verdicts": (verdict_of, category_in, lambda row: moment_in(row, "given_s")),
}


def mend(path: Path) -> Reason | None:
    """Set the database at `path` aside if it is marked as damaged, and start a new one.

    Returns what to tell a person: where the old one is, and how many results and verdicts were kept. None if there was
    nothing to fix. Raises StorageProblem (database_damaged while another program fixes it, disk_full, not_writable).
    """
    mark = damage_mark(path)
    if not mark.exists():
        return None
    with storage_problems(path):
        try:
            lock = FileLock(mark, holder="mending")
        except HeldError as held:
            raise StorageProblem(reason("database_damaged", path=path)) from held
        try:
            aside = _set_aside(path)
            kept = _renew(path, aside)
        finally:
            lock.release()
        mark.unlink(missing_ok=True)
    return reason("database_mended", path=aside, results=kept["results"], verdicts=kept["verdicts"])


def _set_aside(path: Path) -> Path:
    """The database's new path. Companions move first: beside a new database they would be taken for its own."""
    aside = free_name(path, "damaged")
    if not path.exists() and (last := _last_aside(path)) is not None:
        return last  # it was interrupted after this step before
    for companion, ending in zip(companions(path), COMPANIONS, strict=True):
        if companion.exists():
            companion.rename(aside.with_name(aside.name + ending))
    lose_journal(path)
    if path.exists():
        path.rename(aside)
    return aside


def _last_aside(path: Path) -> Path | None:
    found = path.parent.glob(f"{path.stem}.damaged-*{path.suffix}")
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def _renew(path: Path, aside: Path) -> Counter[str]:
    """Build the new database from what can be read in the old one; the number of rows kept per table."""
    beside = path.with_name(f"{path.stem}.mending{path.suffix}")
    for leftover in (beside, *companions(beside), journal(beside), damage_mark(beside)):
        leftover.unlink(missing_ok=True)
    kept: Counter[str] = Counter()
    source = sqlite3.connect(f"{aside.absolute().as_uri()}?mode=ro", uri=True)
    with contextlib.closing(source):
        source.row_factory = sqlite3.Row
        version = _version(source)
        sense = _SENSE if version == len(MIGRATIONS) else {}
        with contextlib.closing(open_database(beside, migrations=MIGRATIONS[:version])) as target:
            target.execute("PRAGMA foreign_keys = OFF")  # a result whose run is lost is still worth keeping
            with transaction(target):
                for table in _tables(target):
                    kept[table] = _copy_table(source, target, table, sense.get(table, ()))
                _keep_numbers(target)
    open_database(beside).close()  # migrates an older one
    for leftover in (*companions(beside), *companions(path)):
        leftover.unlink(missing_ok=True)
    beside.replace(path)
    return kept


def _version(source: sqlite3.Connection) -> int:
    """How many migrations the old file has seen; all of them if it does not say."""
    try:
        (version,) = source.execute("PRAGMA user_version").fetchone()
    except _UNREADABLE:
        return len(MIGRATIONS)
    return int(version) if 0 < int(version) <= len(MIGRATIONS) else len(MIGRATIONS)


def _tables(connection: sqlite3.Connection) -> list[str]:
    """In the order of their creation, so that tables come before those that refer to them."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    return [str(name) for (name,) in connection.execute(query)]


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str, senses: Sequence[Sense]) -> int:
    """Copy row by row what can be read and makes sense; the number of rows copied."""
    columns = [row[1] for row in target.execute(f"PRAGMA table_info ({table})")]
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    copied = 0
    for row_id in _row_ids(source, table):
        row = _row(source, f"SELECT {names} FROM {table} WHERE rowid = {row_id}", senses)
        if row is not None:
            copied += target.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(row)).rowcount
    return copied


def _row(source: sqlite3.Connection, query: str, senses: Sequence[Sense]) -> sqlite3.Row | None:
    try:
        row: sqlite3.Row | None = source.execute(query).fetchone()
        if row is not None:
            for sense in senses:
                sense(row)
    except Exception as error:  # whatever reading a damaged row raises is the row's fault
        log.warning("a row is lost: %s", type(error).__name__)
        return None
    return row


def _row_ids(source: sqlite3.Connection, table: str) -> Iterator[int]:
    """From both ends up to the damage, then every number in between."""
    below, is_whole = _walk(source, table, "ASC")
    yield from below
    if is_whole:
        return
    low = max(below, default=0)
    above = [row_id for row_id in _walk(source, table, "DESC")[0] if row_id > low]
    yield from range(low + 1, min(min(above, default=low), low + _MOST_GAP))
    yield from sorted(above)


def _walk(source: sqlite3.Connection, table: str, order: str) -> tuple[list[int], bool]:
    """The numbers of the rows in this order as far as they can be read, and whether these are all."""
    found: list[int] = []
    try:
        if not has_table(source, table):
            return found, True
        for (row_id,) in source.execute(f"SELECT rowid FROM {table} NOT INDEXED ORDER BY rowid {order}"):
            found.append(row_id)
    except _UNREADABLE:
        return found, False
    return found, True


def _keep_numbers(target: sqlite3.Connection) -> None:
    """A future run must not get the number of a lost one whose results are still here."""
    (last,) = target.execute("SELECT COALESCE(MAX(run_id), 0) FROM results").fetchone()
    known = target.execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").fetchone()
    if known is None:
        target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', ?)", (last,))
    elif known[0] < last:
        target.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'runs'", (last,))
