"""How results are taken over for files that have not changed, as statements.

A file is known by a stamp that lies with its result. Here stamps are kept and compared; `imaging.source` makes them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Final

KEY_BYTES: Final = 32
SAMPLED: Final = 2  # the value of `is_resumed` where a file was known by its stamp alone
_GIVEN: Final = "id IN (SELECT value FROM json_each(:rows))"

NEW_KEY: Final = "INSERT OR IGNORE INTO secrets (purpose, value) VALUES ('stamps', ?)"
KEY: Final = "SELECT value FROM secrets WHERE purpose = 'stamps'"

# The files of a run in the order of their names. What failed is tried again: it is known, and has no stamp.
STAMPED: Final = """
    SELECT id, image_key, CASE status WHEN 'failed' THEN NULL ELSE stamp END AS stamp FROM results
    WHERE run_id = ? AND image_key >= ? ORDER BY image_key LIMIT ?
"""

TAKEN_OVER: Final = f"""
    SELECT COUNT(*) AS resumed, COALESCE(SUM(is_resumed = {SAMPLED}), 0) AS sampled FROM results
    WHERE run_id = ? AND absent_s IS NULL AND is_resumed > 0
"""

# What is counted of results, each kind once with its number.
KINDS: Final = f"SELECT category, reason, notes, COUNT(*) AS number FROM results WHERE {_GIVEN} GROUP BY 1, 2, 3"

# Rows of the run itself are seen by its present pass. Indices are left alone where nothing in them changes.
_SEEN: Final = f"""
    UPDATE results SET is_resumed = {SAMPLED}, pass_number = (SELECT pass_number FROM runs WHERE id = :run_id)
    WHERE run_id = :run_id AND {_GIVEN} RETURNING id, image_key, result_hash
"""
_PRESENT: Final = f"UPDATE results SET absent_s = NULL WHERE absent_s IS NOT NULL AND run_id = :run_id AND {_GIVEN}"
# Rows of other runs become new ones of this run.
_COPY: Final = f"""
    INSERT INTO results ({{names}}) SELECT {{values}} FROM results
    WHERE {_GIVEN} RETURNING id, image_key, result_hash
"""
_OF_COPY: Final = {
    "run_id": ":run_id",
    "pass_number": "(SELECT pass_number FROM runs WHERE id = :run_id)",
    "is_resumed": str(SAMPLED),
    "saved_s": ":now_s",
    "absent_s": "NULL",
}


def checked_key(value: object) -> bytes:
    """The key. Raises ValueError for what this program cannot have written."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise ValueError("no key")
    return value


def see(connection: sqlite3.Connection, run_id: int, row_ids: Sequence[int]) -> list[sqlite3.Row]:
    """Rows of a run itself are results of its present pass: their id, image_key, result_hash."""
    about = {"run_id": run_id, "rows": json.dumps(row_ids)}
    seen = connection.execute(_SEEN, about).fetchall()
    connection.execute(_PRESENT, about)
    return seen


def copy(connection: sqlite3.Connection, run_id: int, row_ids: Sequence[int]) -> list[sqlite3.Row]:
    """Make copies of rows of other runs, as `see` would tell of them."""
    names = [row["name"] for row in connection.execute("PRAGMA table_info (results)") if row["name"] != "id"]
    values = [_OF_COPY.get(name, name) for name in names]
    query = _COPY.format(names=", ".join(names), values=", ".join(values))
    return connection.execute(query, {"run_id": run_id, "rows": json.dumps(row_ids), "now_s": time.time()}).fetchall()
