"""Looking after the files of a store: checked, made small, copied during a run, put back, pictures dropped."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import clear_abandoned, make_empty, replace_durably, require_plain, unfinished
from fieldray.reasons import reason
from fieldray.store.database import (
    Tell,
    companions,
    damage_mark,
    damage_noticed,
    files_of,
    is_damage,
    lose_companions,
    lose_journal,
    open_database,
    storage_problems,
)
from fieldray.store.deleting import pictured
from fieldray.store.exchanging import alone, free_name, keep_copy, only_one
from fieldray.store.locks import has_session
from fieldray.store.mending import mend_pictures, put_aside
from fieldray.store.pictures import PictureDeletion, adopt, keep_only, pictures_path, size_of, thumbnail_of
from fieldray.store.rows import category_in, category_of, moment_in, outcome_of, run_of, spec_of, verdict_of
from fieldray.store.schema import PICTURES, RESULTS, Tables, stated_version
from fieldray.store.stamps import KEY, checked_key
from fieldray.store.wiping import build_again

_LAST_ID: Final = 2**62
_PAGES: Final = 2048  # that are copied at once: 16 MB
_RESULTS: Final = "SELECT results.*, spec AS of_run FROM results LEFT JOIN runs ON runs.id = run_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found in files that are whole."""

    results: int
    verdicts: int
    pictures: int
    size_bytes: int


def check(path: Path, *, tell: Tell) -> Checked:
    """Look through all of a store: whether its files are whole, and whether each row makes sense.

    tell  hears which share of the work is done, 0..1

    Raises StorageProblem: database_damaged or pictures_damaged, and then the next run mends it.
    """
    with _checked(path, RESULTS) as connection:
        total, verdicts = _check_rows(connection, tell)
    pictures = _check_pictures(path)
    return Checked(results=total, verdicts=verdicts, pictures=pictures, size_bytes=size_of(path))


def _check_rows(connection: sqlite3.Connection, tell: Tell) -> tuple[int, int]:
    """How many results and verdicts there are. Raises ValueError and others for a row that makes no sense."""
    for table in ("runs", "results", "verdicts"):
        if connection.execute(f"SELECT 1 FROM {table} WHERE id NOT BETWEEN 1 AND ?", (_LAST_ID,)).fetchone():
            raise ValueError("no row has this number")  # behind the last one there is no room for another
    (total,) = connection.execute("SELECT COUNT(*) FROM results").fetchone()
    for done, row in enumerate(connection.execute(_RESULTS)):
        outcome_of(row, spec_of(row["of_run"]) if row["of_run"] else None)
        if category_of(row["rank"]) != row["category"] or not 0 <= (row["score"] or 0) <= 1:
            raise ValueError("this place in the list is not the outcome's")
        if done % 1000 == 0:
            tell(done / total)
    for row in connection.execute("SELECT * FROM runs"):
        run_of(row)
    for row in connection.execute(KEY):
        checked_key(row["value"])
    verdicts = connection.execute("SELECT * FROM verdicts").fetchall()
    for row in verdicts:
        verdict_of(row), category_in(row), moment_in(row, "given_s")
    return total, len(verdicts)


def _check_pictures(path: Path) -> int:
    if not pictures_path(path).exists():
        return 0
    with _named_as_pictures(path), _checked(pictures_path(path), PICTURES) as connection:
        count = 0
        for row in connection.execute("SELECT thumbnail, thumbnail_columns FROM pictures"):
            if row["thumbnail"] is not None and thumbnail_of(*row) is None:
                raise ValueError("no thumbnail")
            count += 1
        return count


@contextlib.contextmanager
def _named_as_pictures(path: Path) -> Iterator[None]:
    """Around work on the pictures beside the results at `path`: where they are damaged, no result is."""
    try:
        yield
    except StorageProblem as problem:
        about = problem.reason
        if about.code != "database_damaged" or dict(about.parameters).get("path") != str(pictures_path(path)):
            raise
        raise StorageProblem(reason("pictures_damaged", path=pictures_path(path))) from problem


@contextlib.contextmanager
def _checked(path: Path, tables: Tables) -> Iterator[sqlite3.Connection]:
    """A file that is whole, at one moment; what makes no sense in the block is damage. Raises StorageProblem."""
    with closing(open_database(path, tables=tables)) as connection, storage_problems(path, is_open=True):
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        with damage_noticed(path):
            _require_whole(connection)
            yield connection


def _require_whole(connection: sqlite3.Connection) -> None:
    """Raises ValueError."""
    if [row[0] for row in connection.execute("PRAGMA integrity_check")] != ["ok"]:
        raise ValueError("the file is not whole")


def compact(path: Path) -> tuple[int, bool]:
    """Give back the room that nothing needs, that of pictures no result needs included.

    By how many bytes the files have shrunk, and whether all of it came to its end: not while somebody reads them, or on
    a full disk. Raises StorageProblem.
    """
    before = size_of(path)
    with closing(open_database(path)) as connection, storage_problems(path, is_open=True):
        pictures = keep_only(path, pictured(connection))
        is_small = build_again(connection)
    return before - size_of(path), is_small and pictures.is_wiped


def drop_pictures(path: Path) -> tuple[PictureDeletion, int]:
    """Delete all pictures; what was done, and by how many bytes the files have shrunk. Raises StorageProblem."""
    before = size_of(path)
    return keep_only(path, ()), before - size_of(path)


# ---- copies


def backup(path: Path, folder: Path, *, has_pictures: bool, tell: Tell) -> tuple[Path, ...]:
    """Copy a store into a folder as it is at one moment, also during a run; the files.

    tell  hears which share of a file is copied, 0..1

    Raises UsageProblem (store_no_results, store_backup_exists), StorageProblem (database_damaged or pictures_damaged
    where the copy of that file could not be put back; there is none then).
    """
    if not path.exists():
        raise UsageProblem(reason("store_no_results", path=path))
    sources = [path, *([pictures_path(path)] if has_pictures and pictures_path(path).exists() else [])]
    targets = tuple(folder / source.name for source in sources)
    for target in targets:
        if os.path.lexists(target):
            raise UsageProblem(reason("store_backup_exists", path=target))
    for source, target, tables in zip(sources, targets, (RESULTS, PICTURES), strict=False):
        with (
            _named_as_pictures(path),
            closing(open_database(source, tables=tables)) as connection,
            storage_problems(target),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            _copy(connection, source, target, tell)
    return targets


def _copy(connection: sqlite3.Connection, source: Path, target: Path, tell: Tell) -> None:
    """One whole file, for this user alone; it has its name when it is on the disk.

    SQLite copies pages as they are, damaged or not. Raises StorageProblem (database_damaged) where they are.
    """
    beside = unfinished(target)
    try:
        make_empty(beside)
        with _as_damage_of(source), closing(sqlite3.connect(beside, isolation_level=None)) as copy:
            connection.execute("BEGIN")  # what is committed meanwhile is not of this moment
            connection.execute("SELECT COUNT(*) FROM sqlite_master")
            connection.backup(copy, pages=_PAGES, progress=lambda _, left, total: tell(1 - left / max(1, total)))
            connection.execute("ROLLBACK")
            copy.execute("PRAGMA journal_mode = DELETE")
            with damage_noticed(source):
                _require_whole(copy)
        replace_durably(beside, target)
    finally:
        for file in files_of(beside):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _as_damage_of(source: Path) -> Iterator[None]:
    """What is found damaged in a copy is damaged in what was copied. Raises StorageProblem, sqlite3.Error."""
    try:
        yield
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        with storage_problems(source):
            raise


def restore(path: Path, folder: Path) -> Path | None:
    """Put a copy that `backup` made in the place of a store; where the replaced one is now, None if there was none.

    One that is damaged is set aside as such. Pictures of the copy join those that are here.

    Raises UsageProblem (store_no_backup, store_not_ours), StorageProblem (store_in_use).
    """
    source = folder / path.name
    if not source.exists():
        raise UsageProblem(reason("store_no_backup", path=source))
    beside = unfinished(path)
    with storage_problems(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_abandoned(path.parent)
        try:
            _fetch(source, beside, RESULTS)
            if pictures_path(source).exists():
                _fetch(pictures_path(source), pictures_path(beside), PICTURES)
            return _swap(path, beside)
        finally:
            for file in (*files_of(beside), *files_of(pictures_path(beside))):
                file.unlink(missing_ok=True)


def _fetch(source: Path, beside: Path, tables: Tables) -> None:
    """Bring a file here, and require that it is whole and one of this program's. Raises UsageProblem."""
    try:
        for found, target in zip((source, *companions(source)[:1]), (beside, *companions(beside)[:1]), strict=True):
            require_plain(found)
            if found.exists():  # the log of changes too, where somebody copied the files of a store at work
                make_empty(target)
                shutil.copyfile(found, target)
        if stated_version(beside) == 0:  # an empty file would become an empty store
            raise UsageProblem(reason("store_not_ours", path=source))
        with _checked(beside, tables) as connection:
            if tables is RESULTS:
                _check_rows(connection, lambda _share: None)
    except StorageProblem as problem:
        if problem.reason.code not in ("database_damaged", "database_other_version", "not_plain"):
            raise
        raise UsageProblem(reason("store_not_ours", path=source)) from problem


def _swap(path: Path, beside: Path) -> Path | None:
    """The old file gets another name and the new one its own.

    At every moment a whole file has the name, or the mark of a damaged one is there and the next run mends it.
    """
    with only_one(path):
        if has_session(path):
            raise StorageProblem(reason("store_in_use", path=path))
        with _out_of_the_way(path) as replaced:
            alone(beside).close()  # with all that its log of changes holds
            replace_durably(beside, path)
    _mend_pictures(path)
    adopt(beside, path)  # pictures are those of the bytes, whoever kept them
    return replaced


@contextlib.contextmanager
def _out_of_the_way(path: Path) -> Iterator[Path | None]:
    """While inside, the file at `path` has another name too, or is set aside where it is damaged; that name.

    What is left of the log of one that is gone is set aside as well: it would be read as that of the next.
    """
    if not path.exists() and not damage_mark(path).exists():
        lose_journal(path)
        lose_companions(path)
        yield None
    elif _is_damaged(path):
        with put_aside(path) as aside:
            yield aside if aside.exists() else None
    else:
        keep_copy(path, replaced := free_name(path, "replaced"))
        yield replaced


def _is_damaged(path: Path) -> bool:
    """Whether a file is known to be damaged; one that is not has its log of changes taken over.

    Raises StorageProblem (store_in_use).
    """
    if damage_mark(path).exists():
        return True
    try:
        with storage_problems(path):
            alone(path).close()
    except StorageProblem as problem:
        if problem.reason.code != "database_damaged":
            raise
        return True
    return False


def _mend_pictures(path: Path) -> None:
    """Repair the pictures that are here if they are damaged: others are to join them."""
    with contextlib.suppress(StorageProblem):  # the results are in place all the same
        if pictures_path(path).exists():
            open_database(pictures_path(path), tables=PICTURES).close()
    with contextlib.suppress(StorageProblem):
        mend_pictures(path)
