"""Migration of a results database of an earlier program version to the tables of this version.

There is one step from each version of the tables to the next. A step fills a new file from the previous file, in one
transaction. The last file replaces the database. The old file is kept under another name
(`results.version-11-1.sqlite`). So a complete database exists at every moment. After an interruption, the next start of
the program begins the migration again.

A step is never changed after its release. Each step contains the tables and rules of its version, and uses no code that
may change later. For a new version, copy the tables of this version to this module. Pictures are not migrated.

A new field with a default in stored JSON needs no step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from fieldray.persistence import remove_unfinished_files, replace_durably, temporary_path
from fieldray.store.bookkeeping import fill_work_list
from fieldray.store.database import (
    create_database,
    link_or_copy,
    mark_damaged,
    merge_write_ahead_log,
    numbered_files,
    open_read_only,
    remove_files,
    unused_path,
)
from fieldray.store.locks import require_exclusive_access
from fieldray.store.schema import (
    RESULTS_TABLES,
    SCHEMA_VERSION,
    TableStatements,
    expected_schema,
    schema_of,
    schema_version_of,
)

log = logging.getLogger(__name__)


def migrate(path: Path, *, keeps_old: bool = True) -> None:
    """Migrate a results database of an earlier version to this version.

    The caller holds the lock of the file (`database_file_lock`).

    keeps_old  whether the old file is kept under another name

    Raises StorageProblem (store_in_use if another program has the file open, database_damaged), sqlite3.Error, OSError.
    """
    remove_unfinished_files(path.parent)
    require_exclusive_access(path)
    with closing(open_read_only(path)) as found:
        first = schema_version_of(found)
    log.info("migrating the results database from version %d to %d", first, SCHEMA_VERSION)
    before = path
    try:
        for version in range(first, SCHEMA_VERSION):
            after = temporary_path(path)
            try:
                _take_step(version, before, after, of=path)
            except BaseException:
                remove_files(after)
                raise
            finally:
                if before != path:
                    remove_files(before)
            before = after
        if keeps_old:
            _keep(path, first)
        replace_durably(before, path)
    finally:
        if before != path:
            remove_files(before)


def _take_step(version: int, before: Path, after: Path, *, of: Path) -> None:
    """Make the database file of the next version from the file of one version.

    Raises StorageProblem (database_damaged), sqlite3.Error, OSError.

    version  version of the file `before`
    before   path of the present file
    after    path of the new file
    of       path of the database that is migrated, for error messages
    """
    tables, fill = MIGRATION_STEPS[version]
    with closing(open_read_only(before)) as found:
        if schema_of(found) != expected_schema(tables):  # a trigger or view in the file would run during the step
            raise mark_damaged(of)
    with closing(create_database(after, _tables_of(version + 1), version + 1)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("ATTACH ? AS old", (os.fsencode(before),))  # a path may be no valid Unicode
        connection.execute("PRAGMA foreign_keys = OFF")  # a verdict stays even if its result was lost
        connection.execute("BEGIN")
        fill(connection)
        if version + 1 == SCHEMA_VERSION:
            fill_work_list(connection)
        connection.execute("COMMIT")
        connection.execute("DETACH old")
        merge_write_ahead_log(connection)


def _tables_of(version: int) -> TableStatements:
    return RESULTS_TABLES if version == SCHEMA_VERSION else MIGRATION_STEPS[version][0]


def _keep(path: Path, version: int) -> None:
    """Keep the old database file under another name, unless an interrupted migration has already done so.

    version  version of the old file
    """
    word = f"version-{version}"
    copies = numbered_files(path, word)
    if not (copies and copies[max(copies)].samefile(path)):
        link_or_copy(path, unused_path(path, word))


# ---- from 11 to 12: runs of several packs over one pass of images become one run with a result of each pack

_TABLES_11: Final[TableStatements] = (
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        request_key TEXT NOT NULL,
        spec TEXT NOT NULL,
        model_sha256 TEXT NOT NULL,
        settings_hash TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        started_s REAL NOT NULL,
        ended_s REAL,
        pass_number INTEGER NOT NULL DEFAULT 1,
        together_id INTEGER
    )""",
    "CREATE INDEX runs_by_request ON runs (request_key, id)",
    "CREATE INDEX runs_by_work ON runs (model_sha256, settings_hash)",
    "CREATE TABLE secrets (id INTEGER PRIMARY KEY, purpose TEXT NOT NULL UNIQUE, value BLOB NOT NULL)",
    """CREATE TABLE results (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id INTEGER NOT NULL REFERENCES runs (id),
        image_key BLOB NOT NULL,
        pass_number INTEGER NOT NULL,
        is_resumed INTEGER NOT NULL,
        saved_s REAL NOT NULL,
        absent_s REAL,
        stamp BLOB,
        content_sha256 BLOB NOT NULL,
        frame INTEGER NOT NULL,
        result_hash BLOB NOT NULL,
        status TEXT NOT NULL,
        category TEXT NOT NULL,
        rank INTEGER NOT NULL,
        score REAL,
        stage TEXT,
        reason TEXT,
        backend TEXT,
        decode_ms REAL NOT NULL,
        inference_ms REAL,
        grey REAL,
        header TEXT NOT NULL,
        findings TEXT NOT NULL,
        notes TEXT NOT NULL,
        details TEXT NOT NULL,
        lungs TEXT,
        class_maps BLOB,
        lung_shares BLOB,
        UNIQUE (run_id, image_key)
    )""",
    "CREATE INDEX results_by_content ON results (content_sha256, frame)",
    "CREATE INDEX results_by_rank ON results (run_id, rank, score, absent_s, backend, saved_s)",
    "CREATE INDEX results_by_quality ON results (saved_s, notes, absent_s) WHERE instr(notes, '\"lungs_') > 0",
    """CREATE TABLE verdicts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        result_id INTEGER NOT NULL REFERENCES results (id),
        result_hash BLOB NOT NULL,
        choice TEXT,
        note TEXT NOT NULL,
        given_s REAL NOT NULL,
        content_sha256 BLOB NOT NULL,
        category TEXT NOT NULL,
        score REAL,
        UNIQUE (result_id, result_hash)
    )""",
    "CREATE TABLE work_list (run_id INTEGER, result_id INTEGER, rank INTEGER,"
    " score REAL, backend TEXT, patient BLOB, patient_id BLOB, study_date BLOB, file BLOB, view BLOB,"
    " inference_ms REAL, why TEXT, study INTEGER, person INTEGER, PRIMARY KEY (run_id, result_id)) WITHOUT ROWID",
    "CREATE INDEX work_list_by_class ON work_list (run_id, rank, score DESC, result_id, backend, person, study)",
    "CREATE INDEX work_list_by_patient ON work_list (run_id, patient, rank, score DESC, result_id, backend)",
    "CREATE INDEX work_list_by_patient_id ON work_list (patient_id, result_id) WHERE patient_id != x''",
    "CREATE TABLE work_counts (run_id INTEGER PRIMARY KEY,"
    " read_first INTEGER DEFAULT 0, abnormal INTEGER DEFAULT 0, unsure INTEGER DEFAULT 0,"
    " not_assessed INTEGER DEFAULT 0, normal INTEGER DEFAULT 0, refused INTEGER DEFAULT 0,"
    " failed INTEGER DEFAULT 0, not_an_image INTEGER DEFAULT 0) WITHOUT ROWID",
)

# For each old run: its new run, and its pack's position there. The new run has the number of the first pack's old run.
_MEMBERS: Final = (
    "CREATE TEMP TABLE members (old_id INTEGER PRIMARY KEY, lead INTEGER, pass_number, position, size)",
    """INSERT INTO members
       SELECT id, lead, pass_number, ROW_NUMBER() OVER (PARTITION BY lead ORDER BY id != lead, id) - 1,
              COUNT(*) OVER (PARTITION BY lead)
       FROM (SELECT id, pass_number, CASE WHEN together_id IS NULL THEN id
                    ELSE FIRST_VALUE(id) OVER (PARTITION BY together_id ORDER BY id != together_id, id) END AS lead
             FROM old.runs)""",
    "CREATE INDEX temp.members_by_lead ON members (lead)",
)
# An image of several old runs gets the row of the first run that has the image. CROSS JOIN sets the order of the
# search. Otherwise SQLite would look through all results for each image.
_IMAGES: Final = """
    INSERT INTO images SELECT found.id, lead, image_key, first.pass_number - members.pass_number + found.pass_number,
        saved_s, absent_s, stamp, content_sha256, frame, rank, grey, header
    FROM old.results AS found CROSS JOIN temp.members ON old_id = run_id JOIN old.runs AS first ON first.id = lead
    WHERE position = 0 OR NOT EXISTS (
        SELECT 1 FROM temp.members AS earlier CROSS JOIN old.results AS same
        ON same.run_id = earlier.old_id AND same.image_key = found.image_key
        WHERE earlier.lead = members.lead AND earlier.position < members.position)
    ORDER BY found.id
"""
_ANSWERS: Final = """
    INSERT INTO answers SELECT found.id, images.id, lead, position, found.is_resumed, found.saved_s, result_hash,
        status, category, found.rank, score, stage, reason, backend, decode_ms, inference_ms, findings, notes, details,
        lungs, class_maps, lung_shares
    FROM old.results AS found CROSS JOIN temp.members ON old_id = found.run_id
    JOIN images ON images.run_id = lead AND images.image_key = found.image_key
    ORDER BY found.id
"""
# An image of several packs is present if one pack saw it, and has a stamp if all packs have that stamp.
_OF_SEVERAL: Final = """
    UPDATE images SET (rank, absent_s, stamp) = (
        SELECT MIN(found.rank), CASE WHEN COUNT(*) = COUNT(found.absent_s) THEN MIN(found.absent_s) END,
               CASE WHEN MIN(found.stamp) = MAX(found.stamp) AND COUNT(found.stamp) = COUNT(*) THEN MIN(found.stamp) END
        FROM temp.members CROSS JOIN old.results AS found ON found.run_id = old_id
        WHERE lead = images.run_id AND found.image_key = images.image_key)
    WHERE run_id IN (SELECT lead FROM temp.members WHERE size > 1)
"""
_LISTED: Final = """
    INSERT INTO work_list SELECT listed.* FROM old.work_list AS listed
    WHERE run_id IN (SELECT old_id FROM temp.members WHERE size = 1)
"""
_VERDICTS: Final = """
    INSERT INTO verdicts SELECT id, result_id, result_hash, choice, note, given_s, content_sha256, category, score
    FROM old.verdicts
"""
_NUMBERS: Final = {"runs": "runs", "images": "results", "answers": "results", "verdicts": "verdicts"}
_ENDS: Final = ("running", "paused", "failed", "cancelled", "finished")  # of states that differ, the first counts


def _give_runs_packs(connection: sqlite3.Connection) -> None:
    for statement in _MEMBERS:
        connection.execute(statement)
    runs = defaultdict[int, list[sqlite3.Row]](list)
    query = "SELECT runs.*, lead FROM old.runs AS runs JOIN temp.members ON old_id = runs.id ORDER BY lead, position"
    for row in connection.execute(query):
        runs[row["lead"]].append(row)
    for run_id, of_packs in runs.items():
        _put_run(connection, run_id, of_packs)
    connection.execute("INSERT INTO secrets SELECT * FROM old.secrets")
    for statement in (_IMAGES, _ANSWERS, _OF_SEVERAL, _VERDICTS, _LISTED):
        connection.execute(statement)
    for table, before in _NUMBERS.items():  # numbers are never assigned twice
        (last,) = connection.execute("SELECT MAX(seq) FROM old.sqlite_sequence WHERE name = ?", (before,)).fetchone()
        connection.execute("DELETE FROM main.sqlite_sequence WHERE name = ?", (table,))
        connection.execute("INSERT INTO main.sqlite_sequence (name, seq) VALUES (?, ?)", (table, last or 0))
    connection.execute("DROP TABLE temp.members")


def _put_run(connection: sqlite3.Connection, run_id: int, of_packs: list[sqlite3.Row]) -> None:
    """Write one migrated run. Version 11 had one run for each pack.

    run_id    id of the migrated run
    of_packs  rows of the runs in version 11, one for each pack
    """
    specs: list[dict[str, Any]] = [json.loads(row["spec"]) for row in of_packs]
    first = {name: specs[0].pop(name, default) for name, default in (("paths", []), ("program_version", ""))}
    packs = [{name: value for name, value in spec.items() if name not in first} for spec in specs]
    work = [[pack["pack_name"], pack["model_sha256"], pack["settings_hash"]] for pack in packs]
    key = hashlib.sha256(json.dumps([sorted(first["paths"]), work]).encode()).hexdigest()
    state = min((row["state"] for row in of_packs), key=_ENDS.index)
    why = next((row["reason"] for row in of_packs if row["state"] == state), None)
    ends = [row["ended_s"] for row in of_packs]
    ended_s = None if None in ends or state in ("running", "paused") else max(ends)
    begun_s, passes = of_packs[0]["started_s"], of_packs[0]["pass_number"]
    run = (run_id, key, json.dumps(first), state, why, begun_s, ended_s, passes)
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", run)
    for position, pack in enumerate(packs):
        values = (run_id, position, json.dumps(pack), pack["model_sha256"], pack["settings_hash"])
        connection.execute(
            "INSERT INTO run_packs (run_id, position, spec, model_sha256, settings_hash) VALUES (?, ?, ?, ?, ?)", values
        )


# By old version: its tables, and the function that fills the tables of the next version from the old file (`old`).
MIGRATION_STEPS: Final[dict[int, tuple[TableStatements, Callable[[sqlite3.Connection], None]]]] = {
    11: (_TABLES_11, _give_runs_packs),
}
