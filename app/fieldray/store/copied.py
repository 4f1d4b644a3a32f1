"""What a database may bring along that was copied from somewhere else: orders to SQLite that this program never gave.

A trigger, a view or a computed column is run with the statements of whoever opens the file. A journal beside it may
name a super-journal, which SQLite deletes: any file of this user. Only a transaction over several databases has one,
and this program makes none.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from pathlib import Path
from typing import Final

JOURNAL: Final = "-journal"
# How a journal with a super-journal ends. Source: sqlite.org/src, pager.c, aJournalMagic and readSuperJournal.
_END: Final = bytes.fromhex("d9d505f920a163d7")

# The tables of SQLite itself: numbers given out, and what ANALYZE counts. Indexes of its own have no statement.
_OF_SQLITE: Final = (
    "CREATE TABLE sqlite_sequence(name,seq)",
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
)


def journal(path: Path) -> Path:
    """Where SQLite would look for a change that it has to undo."""
    return path.with_name(path.name + JOURNAL)


def names_another_file(place: Path) -> bool:
    """Whether this journal is there and names a super-journal. Raises OSError."""
    try:
        with place.open("rb") as stream:
            stream.seek(max(0, place.stat().st_size - len(_END)))
            return stream.read() == _END
    except FileNotFoundError:
        return False


def opened_to_read(path: Path, *, is_immutable: bool = False) -> sqlite3.Connection:
    """A connection that changes nothing. Raises sqlite3.Error.

    is_immutable  read the file by itself, without a lock and without its log of changes
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_immutable else ''}", uri=True)


def schema(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """All that a database holds beside rows: (type, name, the statement that made it).

    What SQLite itself has made is left out, and known by its statement: anything can be given a name like that.
    """
    found = set(connection.execute("SELECT type, name, sql FROM sqlite_master"))
    return {
        (kind, name, sql) for kind, name, sql in found if not (sql in _OF_SQLITE or (sql is None and kind == "index"))
    }


@functools.cache
def made_by(tables: tuple[str, ...]) -> frozenset[tuple[object, ...]]:
    """The schema that these statements make of an empty database."""
    with contextlib.closing(sqlite3.connect(":memory:")) as made:
        for statement in tables:
            made.execute(statement)
        return frozenset(schema(made))


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether this is a table of rows, and no view or virtual table, which may have any number of them."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND sql LIKE 'CREATE TABLE %'"
    return bool(connection.execute(query, (name,)).fetchone()[0])
