"""Opening of a database file: create a missing file, migrate an earlier version, or refuse the file."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.paths import VERSION as PROGRAM_VERSION
from fieldray.persistence import (
    make_private_folder,
    remove_unfinished_files,
    replace_durably,
    require_regular_file,
    temporary_path,
)
from fieldray.reasons import reason
from fieldray.store.database import (
    _BUSY_TIMEOUT_S,
    OPENING_LOCK,
    StoreConnection,
    _connect,
    _make_tables,
    convert_sqlite_errors,
    create_database,
    database_files,
    is_open_here,
    mark_damaged,
    merge_write_ahead_log,
    quarantine_companions,
    remove_files,
    require_no_damage_mark,
)
from fieldray.store.locks import database_file_lock
from fieldray.store.schema import (
    FIRST_RELEASED_SCHEMA_VERSION,
    RESULTS_TABLES,
    TableStatements,
    expected_schema,
    program_version_of,
    schema_of,
    schema_version_in_file,
    schema_version_of,
    supported_schema_version,
)

_MIGRATION_S: Final = 3600.0  # time that a migration by another program may take


def open_database(path: Path, *, tables: TableStatements = RESULTS_TABLES) -> StoreConnection:
    """Open a database file, or create the file. Every statement commits by itself (autocommit).

    A file of an earlier version is migrated first (`migrations`).

    tables  `RESULTS_TABLES` for a results database, `PICTURES_TABLES` for a picture database

    Raises StorageProblem: database_newer, database_too_old, database_damaged (pictures_damaged for pictures),
    store_in_use, disk_full, disk_failing, not_plain or not_writable. Later, `transaction` raises store_gone if the file
    was deleted.
    """
    with convert_sqlite_errors(path):
        for file in database_files(path):
            require_regular_file(file)
        make_private_folder(path.parent)
        with database_file_lock(path, wait_s=_MIGRATION_S if is_older_version(path, tables) else _BUSY_TIMEOUT_S):
            require_no_damage_mark(path)
            if not path.exists():
                quarantine_companions(path)  # SQLite would use them for the new file
                _make(path, tables)
            elif is_older_version(path, tables):
                from fieldray.store.migrations import migrate  # imported only here, because a migration is rare

                migrate(path)
            connection = _connect(path)
        try:
            _require_ours(connection, path, tables)
        except BaseException:
            connection.close()
            raise
        return connection


def is_older_version(path: Path, tables: TableStatements = RESULTS_TABLES) -> bool:
    """Return whether a database file has tables of an earlier version, which can be migrated. Raises OSError.

    False for a file that this process has open, because such a file was migrated on opening.
    """
    with OPENING_LOCK:
        if not path.exists() or is_open_here(path):
            return False
        return FIRST_RELEASED_SCHEMA_VERSION <= schema_version_in_file(path) < supported_schema_version(tables)


def _make(path: Path, tables: TableStatements) -> None:
    """Create a database file with these tables under a temporary name, and rename the file to `path`."""
    remove_unfinished_files(path.parent)
    temporary = temporary_path(path)
    try:
        with contextlib.closing(create_database(temporary, tables, supported_schema_version(tables))) as connection:
            merge_write_ahead_log(connection)
        replace_durably(temporary, path)
    finally:
        remove_files(temporary)


def _require_ours(connection: StoreConnection, path: Path, tables: TableStatements) -> None:
    """Raise StorageProblem for a file of another version, or with other tables than this program makes.

    The file may come from elsewhere, and a trigger in the file could change results. Codes: database_newer,
    database_too_old, or database_damaged, after which a repair keeps the rows.
    """
    version, found, ours = schema_version_of(connection), schema_of(connection), supported_schema_version(tables)
    if version == 0 and not found:  # an empty file, as a full disk may leave
        _make_tables(connection, tables, ours)
        version, found = schema_version_of(connection), schema_of(connection)
    if version > 0 and version != ours:
        raise version_problem(path, connection)
    if version != ours or found != expected_schema(tables):
        raise mark_damaged(path)


def version_problem(path: Path, connection: sqlite3.Connection) -> StorageProblem:
    """Return the exception for a file of a later version, or of a version too old to be migrated."""
    if schema_version_of(connection) < FIRST_RELEASED_SCHEMA_VERSION:
        return StorageProblem(reason("database_too_old", path=path))
    made_by_program = program_version_of(connection)
    if not made_by_program:
        return StorageProblem(reason("database_of_later", path=path, program=PROGRAM_VERSION))
    return StorageProblem(reason("database_newer", path=path, made_by=made_by_program, program=PROGRAM_VERSION))
