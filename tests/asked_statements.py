"""What a store asks SQLite, and how SQLite carries it out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fieldray.store.database import open_database


class AskedStatements(list[str]):
    """Every statement on the connections made by `connect`, in order."""

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection as the program opens it."""
        connection = open_database(path)
        connection.set_trace_callback(self.append)
        return connection

    def plans(self, path: Path) -> list[list[str]]:
        """For each statement, the steps in which it goes through the tables."""
        with closing(sqlite3.connect(path)) as connection:
            return [[row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + asked)] for asked in self]
