"""Leaving nothing of what was deleted in a database's files."""

from __future__ import annotations

import sqlite3
from typing import Final

_CHECKPOINT_TRIES: Final = 3


def wipe_from_now_on(connection: sqlite3.Connection) -> None:
    """Overwrite with zeros what is deleted."""
    connection.execute("PRAGMA secure_delete = ON")


def build_again(connection: sqlite3.Connection) -> bool:
    """Build the file again without what is not needed, and take the log of changes over; whether that came to its end.

    Another program that reads just now keeps the log from being cut; a full disk keeps the file from being built. What
    was deleted is gone all the same.
    """
    is_small = True
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError:
        is_small = False
    for _ in range(_CHECKPOINT_TRIES):
        try:
            (is_busy, *_rest) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        if not is_busy:
            return is_small
    return False
