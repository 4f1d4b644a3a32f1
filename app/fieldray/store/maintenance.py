"""Maintenance of the database files: check, backup, restore and repair.

A file is replaced only while this process holds the file's lock and no program has the file open. At every moment, the
database is complete, or the mark of a damaged file exists. If the mark exists, the next run repairs the file, or
continues an interrupted repair.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import (
    create_empty_file,
    make_folder,
    remove_unfinished_files,
    replace_durably,
    require_regular_file,
    sync_folder,
    temporary_path,
)
from fieldray.reasons import Reason, reason
from fieldray.store.bookkeeping import (
    RESULTS_JOINED_WITH_IMAGES,
    SELECT_WRONG_URGENCY_RANK,
    fill_work_list,
    valid_file_stamp_key,
)
from fieldray.store.database import (
    COMPANION_SUFFIXES,
    ProgressShareCallback,
    companion_files,
    convert_sqlite_errors,
    damage_mark_path,
    is_damage_problem,
    link_or_copy,
    mark_damaged_on_invalid_row,
    merge_write_ahead_log,
    numbered_files,
    open_read_only,
    pictures_path,
    quarantine_companions,
    remove_files,
    require_no_damage_mark,
    transaction,
    unused_path,
)
from fieldray.store.locks import EXCLUSIVE_WAIT_S, database_file_lock, has_viewing_session, require_exclusive_access
from fieldray.store.migrations import migrate
from fieldray.store.opening import is_older_version, open_database, version_problem
from fieldray.store.pictures import delete_pictures
from fieldray.store.rows import (
    RUNS_WITH_PACKS,
    category_of_rank,
    category_of_row,
    outcome_of,
    pack_spec_of,
    run_of,
    time_in_column_s,
    verdict_of,
    with_checked_types,
)
from fieldray.store.schema import (
    FIRST_RELEASED_SCHEMA_VERSION,
    PICTURES_TABLES,
    RESULTS_TABLES,
    SCHEMA_VERSION,
    TableStatements,
    has_table,
    header_of,
    schema_version_in_file,
    schema_version_of,
)

log = logging.getLogger(__name__)

_PAGES: Final = 2048  # pages copied at once: 16 MB
_LAST_ID: Final = 2**62  # highest valid row number; SQLite could assign none after its maximum
_MAX_GAP: Final = 10_000_000  # row numbers tried after damage; a damaged number may be huge
_LAST_VERSION: Final = 1000  # a higher number means a damaged file
# UnicodeDecodeError is raised if the message of SQLite's error quotes damaged bytes.
_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)


# ---- validity of rows: required by a check, and kept by a repair

RowValidator = Callable[[sqlite3.Row], object]


def _validate_image(row: sqlite3.Row) -> None:
    with_checked_types(row), category_of_rank(row["rank"]), header_of(row["header"])


def _validate_answer(row: sqlite3.Row) -> None:
    outcome_of(row, pack_spec_of(row["spec"]))
    if category_of_rank(row["rank"]) != row["category"] or not 0 <= (row["score"] or 0) <= 1:
        raise ValueError("this place in the list is not the outcome's")


def _validate_verdict(row: sqlite3.Row) -> None:
    category_of_row(row), time_in_column_s(row, "given_s")
    if row["choice"] is not None:  # without a choice the row records that the image was read
        verdict_of(row)


# Validators by table, in an order in which a row comes after the rows that it needs. The work list is not checked: it
# is built again from the other tables.
_VALIDATORS: Final[Mapping[str, RowValidator]] = {
    "run_packs": lambda row: pack_spec_of(with_checked_types(row)["spec"]),
    "runs": run_of,
    "secrets": lambda row: valid_file_stamp_key(row["value"]),
    "images": _validate_image,
    "answers": _validate_answer,
    "verdicts": _validate_verdict,
}
# The query from which the rows of a table are read.
_READ_FROM: Final = {"runs": RUNS_WITH_PACKS, "answers": RESULTS_JOINED_WITH_IMAGES}


# ---- check


def check_database(path: Path, *, progress: ProgressShareCallback) -> Mapping[str, int]:
    """Check the database files for damage, and every row of the results for validity.

    Returns the number of rows by kind: "images", "answers", "verdicts", "pictures" and others. Raises StorageProblem
    (database_damaged or pictures_damaged). The next run then repairs the results database, or starts a new picture
    database.

    progress  function called with the share of the work that is done, 0..1
    """
    counts, pictures = _check_file(path, RESULTS_TABLES, progress), pictures_path(path)
    return {"pictures": 0, **counts, **(_check_file(pictures, PICTURES_TABLES, progress) if pictures.exists() else {})}


def _check_file(path: Path, tables: TableStatements, progress: ProgressShareCallback) -> Mapping[str, int]:
    """Check a database file with these tables. Returns the number of rows by table. Raises StorageProblem.

    progress  function called with the share of the work that is done, 0..1
    """
    with closing(open_database(path, tables=tables)) as connection, convert_sqlite_errors(path):
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        with mark_damaged_on_invalid_row(path):
            _require_whole(connection)
            if tables is PICTURES_TABLES:  # an invalid picture is shown as missing
                return {"pictures": _number_of(connection, "pictures")}
            counts = {table: _check_rows(connection, table, progress) for table in _VALIDATORS}
            if connection.execute(SELECT_WRONG_URGENCY_RANK).fetchone():
                raise ValueError("an image has another place than its most urgent answer, or no answer")
            return counts


def _check_rows(connection: sqlite3.Connection, table: str, progress: ProgressShareCallback) -> int:
    """Check every row of a table. Returns the number of rows. Raises one of `INVALID_ROW_ERRORS` for an invalid row.

    progress  function called with the share of the rows that are checked, 0..1
    """
    if connection.execute(f"SELECT 1 FROM {table} WHERE id NOT BETWEEN 1 AND ?", (_LAST_ID,)).fetchone():
        raise ValueError("no row has this number")
    (total,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
    for done, row in enumerate(connection.execute(f"SELECT * FROM {_READ_FROM.get(table, table)}")):
        _VALIDATORS[table](row)
        if done % 1000 == 0:
            progress(done / total)
    return _number_of(connection, table)


def _number_of(connection: sqlite3.Connection, table: str) -> int:
    """Return the number of rows of a table.

    In the table of verdicts, rows that only record that an image was read are not counted.
    """
    counted = "choice" if table == "verdicts" else "*"
    return int(connection.execute(f"SELECT COUNT({counted}) FROM {table}").fetchone()[0])


def _require_whole(connection: sqlite3.Connection) -> None:
    """Raise ValueError if SQLite's integrity check of a file fails."""
    if [row[0] for row in connection.execute("PRAGMA integrity_check")] != ["ok"]:
        raise ValueError("the file is not whole")


# ---- backup and restore


def backup(path: Path, folder: Path, *, includes_pictures: bool, progress: ProgressShareCallback) -> tuple[Path, ...]:
    """Copy the results database, as it is at one moment, into a folder. A backup is possible during a run.

    Returns the paths of the files written.

    includes_pictures  whether the picture database is copied as well
    progress           function called with the share of a file that is copied, 0..1

    Raises UsageProblem (store_no_results, store_backup_exists). Raises StorageProblem, for example database_damaged or
    pictures_damaged if the copy of a file is damaged. The damaged copy is then deleted.
    """
    if not path.exists():
        raise UsageProblem(reason("store_no_results", path=path))
    sources = [path, *([pictures_path(path)] if includes_pictures and pictures_path(path).exists() else [])]
    targets = tuple(folder / source.name for source in sources)
    for target in targets:
        if os.path.lexists(target):
            raise UsageProblem(reason("store_backup_exists", path=target))
    for source, target, tables in zip(sources, targets, (RESULTS_TABLES, PICTURES_TABLES), strict=False):
        with closing(open_database(source, tables=tables)) as connection, convert_sqlite_errors(target):
            make_folder(folder, is_private=True)
            _copy(connection, source, target, progress)
    return targets


def _copy(connection: sqlite3.Connection, source: Path, target: Path, progress: ProgressShareCallback) -> None:
    """Copy one database file, readable only by this user. The copy gets the name `target` when it is complete.

    SQLite copies damaged pages without an error, so the copy is checked. Raises StorageProblem (database_damaged).
    """
    temporary = temporary_path(target)
    try:
        create_empty_file(temporary)
        with _as_damage_of(source), closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
            connection.execute("BEGIN")  # keeps later commits out of the copy
            connection.execute("SELECT COUNT(*) FROM sqlite_master")
            connection.backup(copy, pages=_PAGES, progress=lambda _, left, total: progress(1 - left / max(1, total)))
            connection.execute("ROLLBACK")
            copy.execute("PRAGMA journal_mode = DELETE")
            with mark_damaged_on_invalid_row(source):
                _require_whole(copy)
        replace_durably(temporary, target)
    finally:
        remove_files(temporary)


@contextlib.contextmanager
def _as_damage_of(source: Path) -> Iterator[None]:
    """Report damage that is found in a copy, within a `with` block, as damage of the file that was copied.

    source  path of the file that was copied

    Raises StorageProblem, sqlite3.Error.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # an error of the computer, not damage
            raise
        with convert_sqlite_errors(source):
            raise


def restore(path: Path, folder: Path) -> Path | None:
    """Replace the results database by a copy that `backup` made.

    If the copy has a picture database, the present picture database is replaced as well. The replaced results database
    is renamed and kept.

    Returns the new path of the replaced results database, or None if there was none. Raises UsageProblem
    (store_no_backup, store_not_ours), and StorageProblem (store_in_use if any program has the database open).
    """
    source, temporary = folder / path.name, temporary_path(path)
    if not source.exists():
        raise UsageProblem(reason("store_no_backup", path=source))
    with convert_sqlite_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished_files(path.parent)
        try:
            _fetch(source, temporary, RESULTS_TABLES)
            if pictures_path(source).exists():
                _fetch(pictures_path(source), pictures_path(temporary), PICTURES_TABLES)
            with database_file_lock(path, wait_s=EXCLUSIVE_WAIT_S):
                replaced = _swap(path, temporary)
                if pictures_path(temporary).exists():
                    delete_pictures(path)
                    replace_durably(pictures_path(temporary), pictures_path(path))
            return replaced
        finally:
            remove_files(temporary)
            remove_files(pictures_path(temporary))


_NOT_OURS: Final = ("database_newer", "database_of_later", "database_too_old", "not_plain")


def _fetch(source: Path, temporary: Path, tables: TableStatements) -> None:
    """Copy a file of a backup to the path `temporary`. Requires that the copy is a complete database of this program.

    A backup by an earlier version is migrated to this version. Raises UsageProblem.
    """
    try:
        for found, target in zip(
            (source, *companion_files(source)[:1]), (temporary, *companion_files(temporary)[:1]), strict=True
        ):
            require_regular_file(found)
            if found.exists():  # with its write-ahead log, if a person copied the files of a database in use
                create_empty_file(target)
                shutil.copyfile(found, target)
        if schema_version_in_file(temporary) == 0:  # an empty file would become an empty store
            raise UsageProblem(reason("store_not_ours", path=source))
        if is_older_version(temporary, tables):
            migrate(temporary, keeps_old=False)
        _check_file(temporary, tables, lambda _share: None)
        require_exclusive_access(temporary)  # merges the write-ahead log
    except StorageProblem as problem:
        if not is_damage_problem(problem) and problem.reason.code not in _NOT_OURS:
            raise
        raise UsageProblem(reason("store_not_ours", path=source)) from problem


def _swap(path: Path, temporary: Path) -> Path | None:
    """Rename the present database file, and rename the file `temporary` to its path.

    Returns the new path of the replaced file, or None if there was none.
    """
    if has_viewing_session(path):
        raise StorageProblem(reason("store_in_use", path=path))
    if not path.exists() and not damage_mark_path(path).exists():
        quarantine_companions(path)  # SQLite would use them for the new file
        replace_durably(temporary, path)
        return None
    try:
        require_no_damage_mark(path)
        with convert_sqlite_errors(path):
            require_exclusive_access(path)
    except StorageProblem as problem:
        if not is_damage_problem(problem):
            raise
        with _put_aside(path) as aside:
            replace_durably(temporary, path)
        return aside if aside.exists() else None
    link_or_copy(path, replaced := unused_path(path, "replaced"))
    replace_durably(temporary, path)
    return replaced


# ---- repair


def repair(path: Path) -> Reason | None:
    """Replace a damaged results database by a new one with all rows that can be read.

    The damaged file is renamed and kept.

    Returns the message for a person, or None if the database is not marked as damaged. Raises StorageProblem:
    store_in_use while another program repairs the database, database_older_damaged, database_newer, database_of_later,
    database_too_old, disk_full, not_writable.
    """
    if not damage_mark_path(path).exists():
        return None
    with convert_sqlite_errors(path), database_file_lock(path, wait_s=EXCLUSIVE_WAIT_S):
        if not damage_mark_path(path).exists():
            return None  # another program repaired the database meanwhile
        _refuse_other_version(path)
        with _put_aside(path) as aside:
            kept = _build_from(aside, path)
    return reason("database_repaired", path=aside, results=kept["answers"], verdicts=kept["verdicts"])


def delete_damaged_pictures(database: Path) -> Reason | None:
    """Delete the picture database of a results database if the picture database is marked as damaged.

    Returns the message for a person; None if nothing was deleted.
    """
    path = pictures_path(database)
    if not damage_mark_path(path).exists():
        return None
    with convert_sqlite_errors(path), database_file_lock(path, wait_s=EXCLUSIVE_WAIT_S):
        remove_files(path)
    return reason("pictures_renewed", path=path)


def _refuse_other_version(path: Path) -> None:
    """Raise StorageProblem for a damaged file of another program version.

    A repair by this version would lose content that this version cannot read. Codes: database_older_damaged,
    database_newer, database_of_later, database_too_old.
    """
    if path.exists():
        with closing(open_read_only(path)) as found, contextlib.suppress(*_UNREADABLE):
            if FIRST_RELEASED_SCHEMA_VERSION <= schema_version_of(found) < SCHEMA_VERSION:
                raise StorageProblem(reason("database_older_damaged", path=path))
            if schema_version_of(found) != SCHEMA_VERSION and 0 < schema_version_of(found) <= _LAST_VERSION:
                raise version_problem(path, found)


@contextlib.contextmanager
def _put_aside(path: Path) -> Iterator[Path]:
    """Rename a damaged file, and yield its new path. In the `with` block the caller writes a new file at `path`.

    The mark of the damaged file is deleted only if the block succeeds. Until then no program opens a database at
    `path`. Raises OSError.
    """
    aside, older_copies = unused_path(path, "damaged"), numbered_files(path, "damaged")
    if not path.exists() and older_copies:
        aside = older_copies[max(older_copies)]  # an earlier repair was interrupted after this step
    else:
        for companion, ending in zip(companion_files(path), COMPANION_SUFFIXES, strict=True):
            if companion.exists():  # moved first, because SQLite would use them for a new database
                companion.rename(aside.with_name(aside.name + ending))
        if path.exists():
            path.rename(aside)
    sync_folder(path.parent)
    yield aside
    damage_mark_path(path).unlink(missing_ok=True)
    sync_folder(path.parent)


def _build_from(aside: Path, path: Path) -> Mapping[str, int]:
    """Build a new database from all rows that can be read in a damaged database.

    aside  path of the damaged database
    path   path of the new database

    Returns the number of rows copied, by table.
    """
    temporary = temporary_path(path)
    remove_unfinished_files(path.parent)
    try:
        with closing(open_read_only(aside)) as source, closing(open_database(temporary)) as target:
            source.row_factory = target.row_factory = sqlite3.Row
            target.execute("PRAGMA foreign_keys = OFF")  # a verdict stays even if its result is lost
            with transaction(target):
                kept = {table: _copy_table(source, target, table) for table in _VALIDATORS}
                _drop_incomplete(target)
                _keep_numbers(source, target)
                fill_work_list(target)
            merge_write_ahead_log(target)
        quarantine_companions(path)
        replace_durably(temporary, path)
    finally:
        remove_files(temporary)
    return kept


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> int:
    """Copy those rows of a table that can be read and are valid. Returns the number of copied rows.

    All row numbers are tried, because even a damaged page may contain readable rows.
    """
    columns = [row["name"] for row in target.execute(f"PRAGMA table_info ({table})")]
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    lost: Counter[str] = Counter()
    for row_id in _row_ids(source, table):
        try:
            row = source.execute(f"SELECT {names} FROM {table} WHERE rowid = ?", (row_id,)).fetchone()
            if row is not None:
                target.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(row))
                kept = target.execute(
                    f"SELECT * FROM {_READ_FROM.get(table, table)} WHERE id = ?", (row_id,)
                ).fetchone()
                _VALIDATORS[table](kept)
        except Exception as error:  # any error of reading means that the row is damaged
            lost[type(error).__name__] += 1
            target.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))
    if lost:
        log.warning("lost rows of the table %s, by error: %s", table, dict(lost))
    return _number_of(target, table)


def _row_ids(source: sqlite3.Connection, table: str) -> Iterator[int]:
    """Yield the row numbers of a table, as far as they can be read.

    After the first damage, yield every number up to the last.
    """
    last = 0
    try:
        if not has_table(source, table):
            return
        found = source.execute(f"SELECT rowid FROM {table} NOT INDEXED WHERE rowid BETWEEN 1 AND {_LAST_ID}")
        for (row_id,) in found:
            yield (last := row_id)
    except _UNREADABLE:
        yield from range(last + 1, min(_last_id(source, table), last + _MAX_GAP) + 1)


def _last_id(source: sqlite3.Connection, table: str) -> int:
    """Return the highest row number of a table.

    If the table cannot be read, return the highest number ever assigned, or 0.
    """
    highest = f"SELECT MAX(rowid) FROM {table} NOT INDEXED"
    for query in (highest, f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):
        with contextlib.suppress(*_UNREADABLE, TypeError):  # no row, or no number in it
            return int(source.execute(query).fetchone()[0])
    return 0


def _drop_incomplete(target: sqlite3.Connection) -> None:
    """Delete rows that are useless because other rows are lost, such as an image without a result.

    Verdicts are kept, because other runs may need them.
    """
    for statement in (
        "DELETE FROM run_packs WHERE run_id NOT IN (SELECT id FROM runs)",
        "DELETE FROM images WHERE run_id NOT IN (SELECT id FROM runs) OR id NOT IN (SELECT image_id FROM answers)",
        "UPDATE images SET rank = (SELECT MIN(rank) FROM answers WHERE image_id = images.id)",
    ):
        target.execute(statement)


def _keep_numbers(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Reserve the row numbers of lost runs, images and results, so that they are never assigned again.

    Verdicts, archives and reports refer to these numbers.
    """
    named = (("runs", "run_id", "images"), ("images", "image_id", "answers"), ("answers", "answer_id", "verdicts"))
    for table, name, others in named:
        last = target.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0]
        most = last + _MAX_GAP
        given_out = f"SELECT MAX(seq) FROM sqlite_sequence WHERE name = '{table}' AND seq <= ?"
        for query in (given_out, f"SELECT MAX({name}) FROM {others} WHERE {name} <= ?"):
            for known in (source, target):
                with contextlib.suppress(*_UNREADABLE, TypeError, ValueError):  # as in `_last_id`
                    last = max(last, int(known.execute(query, (most,)).fetchone()[0]))
        target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))
