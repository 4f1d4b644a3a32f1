"""Setting a damaged database aside and starting a new one with every row that can still be read.

The pictures beside the results are mended in the same way, and thrown away where even that fails.

This can be interrupted at any moment and started again: the new file gets its name only when it is complete, and until
then the damage mark keeps everybody else from opening one there.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.persistence import FileLock, HeldError, clear_abandoned, replace_durably, sync_folder, unfinished
from fieldray.reasons import Reason, reason
from fieldray.store import work_rows
from fieldray.store.copied import has_table, opened_to_read
from fieldray.store.database import (
    COMPANIONS,
    companions,
    complete,
    damage_mark,
    files_of,
    lose_journal,
    open_database,
    storage_problems,
    transaction,
    version_of,
)
from fieldray.store.exchanging import free_name, numbered
from fieldray.store.pictures import adopt, pictures_path
from fieldray.store.rows import category_in, category_of, moment_in, outcome_of, run_of, spec_of, verdict_of
from fieldray.store.schema import PICTURES, RESULTS, VERSION, Tables
from fieldray.store.stamps import checked_key

log = logging.getLogger(__name__)

# So many numbers between two rows that can be read are tried; a damaged number may be huge.
_MOST_GAP: Final = 1_000_000
_LAST_VERSION: Final = 1000  # a number beyond it is a damaged one
# The second: where the text of SQLite's error quotes damaged words.
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
# A page that is damaged may still give a row. Only one that makes sense is kept: another would be damage again.
Sense = Callable[[sqlite3.Row], object]
_SENSE: Final[Mapping[str, tuple[Sense, ...]]] = {
    "runs": (run_of,),
    "results": (lambda row: category_of(row["rank"]),),
    "verdicts": (verdict_of, category_in, lambda row: moment_in(row, "given_s")),
    "secrets": (lambda row: checked_key(row["value"]),),
}


def mend(path: Path) -> Reason | None:
    """Set the results at `path` aside if they are marked as damaged, and start a new file.

    Returns what to tell a person: where the old one is, and how many results and verdicts were kept. None if there was
    nothing to fix. Raises StorageProblem (database_damaged while another program fixes it, database_other_version,
    disk_full, not_writable).
    """
    found = _mended(path, RESULTS)
    if found is None:
        return None
    aside, kept = found
    return reason("database_mended", path=aside, results=kept["results"], verdicts=kept["verdicts"])


def mend_pictures(database: Path) -> Reason | None:
    """The same of the pictures beside the results at `database`."""
    found = _mended(pictures_path(database), PICTURES)
    if found is None:
        return None
    aside, kept = found
    return reason("pictures_mended", path=aside, pictures=kept["pictures"])


def _mended(path: Path, tables: Tables) -> tuple[Path, Mapping[str, int]] | None:
    """Where the old file is, and the number of rows kept per table."""
    if not damage_mark(path).exists():
        return None
    with storage_problems(path):
        _refuse_other_version(path)
        with put_aside(path) as aside:
            return aside, _renew(path, aside, tables)


@contextlib.contextmanager
def put_aside(path: Path) -> Iterator[Path]:
    """Move the damaged file at `path` away, to what is given; in the block another one gets its name.

    Only when that came to its end the mark goes: until then nobody else opens a file there, or begins an empty one.
    Raises StorageProblem (database_damaged while another program does it), OSError.
    """
    mark = damage_mark(path)
    try:
        lock = FileLock(mark, holder="mending", is_made=False)
    except (HeldError, FileNotFoundError) as error:  # held, or mended by now: what has the name is whole
        raise StorageProblem(reason("database_damaged", path=path)) from error
    try:
        aside = _set_aside(path)
        sync_folder(path.parent)
        yield aside
        sync_folder(path.parent)  # without the mark, where there is no store a new one is begun
        lock.remove()
    finally:
        lock.release()
    sync_folder(path.parent)


def _refuse_other_version(path: Path) -> None:
    """Leave what another version made to that one: this one would not take over what it does not know.

    Raises StorageProblem (database_other_version).
    """
    try:
        opened = opened_to_read(path)
    except sqlite3.OperationalError:
        if path.exists():
            raise
        return  # another program sets it aside
    with contextlib.closing(opened) as found:
        if _stated(found) != VERSION and 0 < _stated(found) <= _LAST_VERSION:
            raise StorageProblem(reason("database_other_version", path=path))


def _set_aside(path: Path) -> Path:
    """The database's new path. Companions move first: beside a new database they would be taken for its own."""
    aside, earlier = free_name(path, "damaged"), numbered(path, "damaged")
    if not path.exists() and earlier:
        return earlier[max(earlier)]  # it was interrupted after this step before
    for companion, ending in zip(companions(path), COMPANIONS, strict=True):
        if companion.exists():
            companion.rename(aside.with_name(aside.name + ending))
    lose_journal(path)
    if path.exists():
        path.rename(aside)
    return aside


def _renew(path: Path, aside: Path, tables: Tables) -> Mapping[str, int]:
    """Build the new database from what can be read in the old one; the number of rows kept per table."""
    beside = unfinished(path)
    kept_tables = ("runs", "secrets", "results", "verdicts") if tables is RESULTS else ("pictures",)
    clear_abandoned(path.parent)
    try:
        with (
            contextlib.closing(opened_to_read(aside)) as source,
            contextlib.closing(open_database(beside, tables=tables)) as target,
        ):
            source.row_factory = target.row_factory = sqlite3.Row
            target.execute("PRAGMA foreign_keys = OFF")  # a result whose run is lost is still worth keeping
            with transaction(target):
                for table in kept_tables:
                    _copy_table(source, target, table, _senses(target, table))
                if tables is RESULTS:
                    _keep_numbers(target)
                    _list_results(target)
            kept = {table: target.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in kept_tables}
            complete(target)
        adopt(beside, path)
        for leftover in companions(path):
            leftover.unlink(missing_ok=True)
        replace_durably(beside, path)
    finally:
        for leftover in files_of(beside):
            leftover.unlink(missing_ok=True)
    return kept


def _senses(target: sqlite3.Connection, table: str) -> Sequence[Sense]:
    """What is asked of each row of a table. A result is read with its run, which is in the new file by then."""

    def has_sense(row: sqlite3.Row) -> object:
        run = target.execute("SELECT spec FROM runs WHERE id = ?", (row["run_id"],)).fetchone()
        return outcome_of(row, spec_of(run[0]) if run else None)

    return (*_SENSE.get(table, ()), *([has_sense] if table == "results" else []))


def _stated(source: sqlite3.Connection) -> int:
    """The version that a file states, which may be damaged; 0 if none can be read."""
    try:
        return version_of(source)
    except _UNREADABLE:
        return 0


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str, senses: Sequence[Sense]) -> None:
    """Copy row by row what can be read and makes sense."""
    columns = [row["name"] for row in target.execute(f"PRAGMA table_info ({table})")]
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    for row_id in _row_ids(source, table):
        row = _row(source, f"SELECT {names} FROM {table} WHERE rowid = {row_id}", senses)
        if row is not None:
            target.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(row))


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
    """From both ends up to the damage, then every number in between. A number at the damage may be nonsense."""
    below, is_whole = _walk(source, table, "ASC")
    yield from below
    if is_whole:
        return
    above, _ = _walk(source, table, "DESC")
    high = min(above, default=0)
    low = max((row_id for row_id in below if row_id < high), default=0)
    yield from range(low + 1, min(high, low + _MOST_GAP))
    yield from sorted(row_id for row_id in above if row_id > low)


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


def _list_results(target: sqlite3.Connection) -> None:
    """Make the work list and its counts of the results that were kept."""

    def execute(query: str, *values: object) -> Sequence[sqlite3.Row]:
        return target.execute(query, values).fetchall()

    query = "SELECT results.*, spec AS of_run FROM results LEFT JOIN runs ON runs.id = run_id WHERE absent_s IS NULL"
    for row in target.execute(query):
        outcome = outcome_of(row, spec_of(row["of_run"]) if row["of_run"] else None, looks_inside=False)
        work_rows.note(execute, row["run_id"], row["id"], outcome)


def _keep_numbers(target: sqlite3.Connection) -> None:
    """A future run must not get the number of a lost one whose results are still here, nor a result that of a lost one
    with a verdict."""
    for table, named in (("runs", "MAX(run_id) FROM results"), ("results", "MAX(result_id) FROM verdicts")):
        last = target.execute(f"SELECT {named}").fetchone()[0] or 0
        known = target.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        if known is None:
            target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))
        elif known[0] < last:
            target.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (last, table))
