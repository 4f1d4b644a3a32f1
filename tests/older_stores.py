"""Turns a store of today into one that an older version of the program left behind."""

from __future__ import annotations

import sqlite3

_UNDO = {
    4: (
        "DROP TABLE previews",
        "DROP INDEX results_by_rank",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score)",
    ),
    3: tuple(f"ALTER TABLE results DROP COLUMN {column}" for column in ("lungs", "lung_shares", "notes")),
}


def step_back(connection: sqlite3.Connection, *, version: int) -> None:
    """Make the schema that of this version, 2 to 4."""
    for before, statements in _UNDO.items():
        for statement in statements if before >= version else ():
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version}")
