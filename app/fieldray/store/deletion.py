"""Deletion of runs, or of all images of one patient, and release of unused disk space.

Order of a deletion: first incomplete copies that killed programs left, then pictures that no result needs any more,
then results. SQLite overwrites deleted content with zeros (`secure_delete`). Then the file is rebuilt (VACUUM), and the
write-ahead log is merged and truncated. Databases that were renamed and kept (damaged, replaced or migrated ones) are
never deleted, only listed for the user.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from fieldray.domain.history import DeletionPlan, DeletionResult
from fieldray.errors import UsageProblem
from fieldray.persistence import remove_unfinished_files
from fieldray.reasons import reason
from fieldray.store.database import (
    StoreConnection,
    convert_sqlite_errors,
    enable_secure_delete,
    pictures_path,
    transaction,
    vacuum,
)
from fieldray.store.locks import RunLocks
from fieldray.store.opening import open_database
from fieldray.store.pictures import PictureKey, database_size_bytes, delete_pictures_except
from fieldray.store.schema import header_of

# Copies of a verdict on equal results in several runs count as one verdict.
_VERDICTS: Final = """
    SELECT COUNT(*) AS all_of_them, COALESCE(SUM(EXISTS (
        SELECT 1 FROM verdicts AS same JOIN answers AS other ON other.id = same.answer_id
        WHERE same.result_hash = found.result_hash AND same.given_s = found.given_s AND other.run_id NOT IN ({runs})
    )), 0) AS kept
    FROM (SELECT DISTINCT verdicts.result_hash, given_s FROM verdicts JOIN answers ON answers.id = answer_id
          WHERE run_id IN ({runs}) AND choice IS NOT NULL) AS found
"""


_VERDICTS_OF_IMAGES: Final = """
    SELECT COUNT(*) FROM (SELECT DISTINCT verdicts.result_hash, given_s FROM verdicts
                          JOIN answers ON answers.id = answer_id WHERE image_id IN ({images}) AND choice IS NOT NULL)
"""


def plan_deletion(path: Path, run_ids: Sequence[int]) -> DeletionPlan:
    """Return the plan to delete these runs: what a deletion would delete. Nothing is deleted.

    Raises UsageProblem (history_no_run), StorageProblem.
    """
    with _connection(path) as connection:
        return _plan(connection, run_ids)


def delete_runs(path: Path, run_ids: Sequence[int], *, confirmed_plan: DeletionPlan | None = None) -> DeletionResult:
    """Delete runs with their images, results and verdicts. Either all of the runs are deleted, or none.

    confirmed_plan  the plan that a person confirmed; None without a confirmed plan

    Raises StorageProblem, and UsageProblem: history_no_run; history_in_use if a program works on one of the runs;
    history_grown if there is more to delete than in the plan `confirmed_plan`.
    """

    def delete(connection: sqlite3.Connection, plan: DeletionPlan) -> None:
        _delete_rows(connection, plan.run_ids)

    return _delete(path, partial(_plan, run_ids=run_ids), delete, confirmed_plan=confirmed_plan, ends_runs=True)


def plan_patient_deletion(path: Path, patient_id: str) -> DeletionPlan:
    """Return the plan to delete all images with a Patient ID, in all runs. Nothing is deleted.

    Raises UsageProblem (history_no_patient), StorageProblem.
    """
    with _connection(path) as connection:
        plan, _ = _plan_of_patient(connection, patient_id)
        return plan


def delete_patient(path: Path, patient_id: str, *, confirmed_plan: DeletionPlan | None = None) -> DeletionResult:
    """Delete all images with a Patient ID in all runs, with their results, verdicts and pictures. The runs are kept.

    confirmed_plan  the plan that a person confirmed; None without a confirmed plan

    Raises StorageProblem, and UsageProblem: history_no_patient; history_in_use if a program works on one of the runs;
    history_grown if there is more to delete than in the plan `confirmed_plan`.
    """

    def plan(connection: sqlite3.Connection) -> DeletionPlan:
        return _plan_of_patient(connection, patient_id)[0]

    def delete(connection: sqlite3.Connection, _: DeletionPlan) -> None:
        _delete_images(connection, _plan_of_patient(connection, patient_id)[1])

    return _delete(path, plan, delete, confirmed_plan=confirmed_plan, ends_runs=False)


def _exceeds(plan: DeletionPlan, confirmed: DeletionPlan) -> bool:
    """Return whether a plan deletes more results or more verdicts than the plan that a person confirmed."""
    return plan.result_count > confirmed.result_count or plan.verdict_count > confirmed.verdict_count


def _delete(
    path: Path,
    plan_of: Callable[[sqlite3.Connection], DeletionPlan],
    delete: Callable[[sqlite3.Connection, DeletionPlan], None],
    *,
    confirmed_plan: DeletionPlan | None,
    ends_runs: bool,
) -> DeletionResult:
    """Plan and delete in one transaction, then release the disk space.

    plan_of         function that makes the plan from the present content of the database
    delete          function that deletes the rows of a plan
    confirmed_plan  the plan that a person confirmed, or None
    ends_runs       whether the runs of the plan are deleted, and not only images in them
    """
    before = database_size_bytes(path)
    remove_unfinished_files(path.parent)
    with _connection(path) as connection:
        enable_secure_delete(connection)
        connection.execute("PRAGMA synchronous = FULL")  # a deletion that was reported must survive a power cut
        locks = RunLocks(path)
        try:
            with transaction(connection):
                plan = plan_of(connection)
                if confirmed_plan and _exceeds(plan, confirmed_plan):
                    raise UsageProblem(reason("history_grown"))
                _hold(connection, locks, plan.run_ids)
                delete(connection, plan)
                _, are_wiped = delete_pictures_except(path, _needed(connection))
            for run_id in plan.run_ids if ends_runs else ():
                locks.release_finished_run(run_id)
        finally:
            locks.release_all()
        is_overwritten = vacuum(connection) and are_wiped
    return DeletionResult(
        plan=plan,
        freed_bytes=before - database_size_bytes(path),
        is_deleted_data_overwritten=is_overwritten,
        files_with_possible_copies=tuple(map(str, _set_aside(path))),
    )


def _plan_of_patient(connection: sqlite3.Connection, patient_id: str) -> tuple[DeletionPlan, list[int]]:
    """Return the plan to delete a patient's images, and the row ids of the images.

    Images whose files no longer exist are included.
    """
    number = patient_id.strip()
    rows = connection.execute("SELECT id, run_id, header FROM images WHERE header LIKE '%patient_id%'").fetchall()
    found = [row for row in rows if number and _names(row["header"], number)]
    if not found:
        raise UsageProblem(reason("history_no_patient", patient=number))
    images, run_ids = [row["id"] for row in found], tuple(dict.fromkeys(row["run_id"] for row in found))
    listed = _listed(images)
    (results,) = connection.execute(f"SELECT COUNT(*) FROM answers WHERE image_id IN ({listed})").fetchone()
    (verdicts,) = connection.execute(_VERDICTS_OF_IMAGES.format(images=listed)).fetchone()
    plan = DeletionPlan(
        run_ids=run_ids, result_count=int(results), verdict_count=int(verdicts), kept_verdict_count=0, patient_id=number
    )
    return plan, images


def _names(header: str, number: str) -> bool:
    """Return whether a header, as stored in JSON, has this Patient ID.

    A damaged header that contains `number` anywhere counts as well, so that its image is deleted.

    number  the Patient ID
    """
    try:
        return header_of(header).patient_id.strip() == number
    except ValueError:
        return number in header


def _delete_images(connection: sqlite3.Connection, images: Sequence[int]) -> None:
    listed = _listed(images)
    answers = f"SELECT id FROM answers WHERE image_id IN ({listed})"
    connection.execute(f"DELETE FROM verdicts WHERE answer_id IN ({answers})")
    for table in ("answers", "work_list"):
        connection.execute(f"DELETE FROM {table} WHERE image_id IN ({listed})")
    connection.execute(f"DELETE FROM images WHERE id IN ({listed})")


@contextlib.contextmanager
def _connection(path: Path) -> Iterator[StoreConnection]:
    with closing(open_database(path)) as connection, convert_sqlite_errors(path):
        connection.row_factory = sqlite3.Row
        yield connection


def _plan(connection: sqlite3.Connection, run_ids: Sequence[int]) -> DeletionPlan:
    wanted = tuple(dict.fromkeys(run_ids))
    runs = _listed(wanted)
    known = {row["id"] for row in connection.execute(f"SELECT id FROM runs WHERE id IN ({runs})")}
    for run_id in wanted:
        if run_id not in known:
            raise UsageProblem(reason("history_no_run", run=run_id))
    (results,) = connection.execute(f"SELECT COUNT(*) FROM answers WHERE run_id IN ({runs})").fetchone()
    found = connection.execute(_VERDICTS.format(runs=runs)).fetchone()
    kept = int(found["kept"])
    return DeletionPlan(
        run_ids=wanted,
        result_count=int(results),
        verdict_count=int(found["all_of_them"]) - kept,
        kept_verdict_count=kept,
    )


def _hold(connection: sqlite3.Connection, locks: RunLocks, run_ids: Sequence[int]) -> None:
    """Lock all unfinished runs among these runs. No program works on a finished run.

    Raises UsageProblem (history_in_use) if a program works on one of the runs.
    """
    query = f"SELECT id, state FROM runs WHERE id IN ({_listed(run_ids)})"
    for row in connection.execute(query).fetchall():
        if row["state"] != "finished" and not locks.hold(row["id"]):
            raise UsageProblem(reason("history_in_use", run=row["id"], process=locks.process_holding_run))


def _set_aside(path: Path) -> Iterator[Path]:
    """Yield the paths of database files that were renamed and kept: damaged, replaced or migrated ones.

    These files may still contain deleted runs. Only a person deletes them.
    """
    for store, word in itertools.product((path, pictures_path(path)), ("damaged", "lost", "replaced", "version")):
        yield from sorted(path.parent.glob(f"{store.stem}.{word}-*{store.suffix}*"))


def _delete_rows(connection: sqlite3.Connection, run_ids: Sequence[int]) -> None:
    """Delete runs with their images, results and verdicts."""
    runs = _listed(run_ids)
    connection.execute(f"DELETE FROM verdicts WHERE answer_id IN (SELECT id FROM answers WHERE run_id IN ({runs}))")
    for table in ("answers", "images", "work_list", "run_packs"):
        connection.execute(f"DELETE FROM {table} WHERE run_id IN ({runs})")
    connection.execute(f"DELETE FROM runs WHERE id IN ({runs})")
    if connection.execute("SELECT 1 FROM answers LIMIT 1").fetchone() is None:
        connection.execute("DELETE FROM verdicts")  # verdicts on results that were lost in a damaged database


def _listed(run_ids: Sequence[int]) -> str:
    """Return numbers as an SQL list, such as "1, 2, 3".

    Parameters are not used, because SQL statements limit their number.
    """
    return ", ".join(str(int(run_id)) for run_id in run_ids)


# ---- releasing disk space


def compact(path: Path) -> tuple[int, bool]:
    """Release unused disk space, and delete pictures that no result needs.

    Returns the number of bytes by which the files have shrunk, and whether all space was released. Space is not
    released while another program reads the files, or on a full disk. Raises StorageProblem.
    """
    before = database_size_bytes(path)
    with closing(open_database(path)) as connection, convert_sqlite_errors(path):
        _, are_wiped = delete_pictures_except(path, _needed(connection))
        is_small = vacuum(connection)
    return before - database_size_bytes(path), is_small and are_wiped


def delete_all_pictures(path: Path) -> tuple[int, bool, int]:
    """Delete all previews and thumbnails.

    Returns the number of deleted pictures, whether the file was rebuilt without them (see `vacuum`), and the number of
    bytes by which the files have shrunk. Raises StorageProblem.
    """
    before = database_size_bytes(path)
    return *delete_pictures_except(path, ()), before - database_size_bytes(path)


def _needed(connection: sqlite3.Connection) -> Iterator[PictureKey]:
    """Yield the keys of the pictures that must be kept: those of the images of all runs."""
    return map(tuple, connection.execute("SELECT DISTINCT content_sha256, frame FROM images"))
