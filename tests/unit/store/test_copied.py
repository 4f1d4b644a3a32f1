"""A store that somebody else made: opening it carries out no order of theirs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.store.database import open_database
from fieldray.store.mending import mend
from fieldray.store.results import ResultQuery, ResultStore
from foreign_stores import journal_naming
from outcomes import image_ref, run_spec, screened

# An order that is called as what belongs to SQLite itself.
CALLED = (
    "PRAGMA writable_schema = ON;"
    " UPDATE sqlite_master SET name = replace(name, 't', 'sqlite_t'), sql = replace(sql, ' t ', ' sqlite_t ')"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one result, closed in order."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        store.save(store.open_run(run_spec()), screened(image_ref("a.dcm")), spec=run_spec())
    return place


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    place = tmp_path / "film.png"
    place.write_bytes(b"an X-ray" * 100)
    return place


def test_sqlite_itself_deletes_what_a_journal_names(path: Path, victim: Path) -> None:
    """If it does so no more, `copied.names_another_file` can go."""
    path.with_name("results.sqlite-journal").write_bytes(journal_naming(victim, path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT * FROM runs").fetchall()
    assert not victim.exists()


def test_a_journal_deletes_no_other_file(path: Path, victim: Path) -> None:
    path.with_name("results.sqlite-journal").write_bytes(journal_naming(victim, path))
    with pytest.raises(StorageProblem):
        open_database(path).close()
    mend(path)
    assert victim.exists()
    with ResultQuery(path) as query:
        assert len(query.runs()) == 1
    assert not path.with_name("results.sqlite-journal").exists()


@pytest.mark.parametrize(
    "order",
    [
        "CREATE TRIGGER t AFTER INSERT ON results BEGIN UPDATE results SET category = 'normal'; END",
        "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM results; END",
        "CREATE TRIGGER sqlitex AFTER INSERT ON results BEGIN UPDATE results SET category = 'normal'; END",
        f"CREATE TRIGGER t AFTER INSERT ON results BEGIN UPDATE results SET rank = 3; END; {CALLED} WHERE name = 't'",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = -1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE INDEX i ON results (abs(score))",
        "ALTER TABLE results ADD COLUMN y AS (abs(-9223372036854775808))",
    ],
)
def test_a_store_with_orders_in_it_is_set_aside_and_its_rows_are_kept(path: Path, order: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(order)
    with pytest.raises(StorageProblem) as problem:
        open_database(path).close()
    assert problem.value.reason.code == "database_damaged"
    told = mend(path)
    assert told is not None
    with ResultQuery(path) as query:
        assert len(list(query.rows(query.runs()[0].run_id))) == 1
    with closing(open_database(path)) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall()


def test_a_view_without_end_in_place_of_a_table_is_not_read_to_its_end(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS rowid FROM n"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE verdicts")
        connection.execute(f"CREATE VIEW verdicts AS {endless}")
        connection.commit()
    with pytest.raises(StorageProblem):
        open_database(path).close()
    assert mend(path) is not None
    with ResultQuery(path) as query:
        assert len(query.runs()) == 1
