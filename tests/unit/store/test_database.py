from __future__ import annotations

import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.store.database import MIGRATIONS, open_database, storage_problems


def test_a_new_file_has_the_newest_version_and_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.sqlite"
    with closing(open_database(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "database_newer"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (999,)


def test_an_older_file_is_copied_before_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    first, second = ("CREATE TABLE one (value TEXT)",), ("ALTER TABLE one ADD COLUMN more TEXT",)
    with closing(open_database(path, migrations=(first,))) as connection:
        connection.execute("INSERT INTO one VALUES ('kept')")
    with closing(open_database(path, migrations=(first, second))) as connection:
        assert connection.execute("SELECT value, more FROM one").fetchall() == [("kept", None)]
    with closing(sqlite3.connect(tmp_path / "results.sqlite.v1.bak")) as copy:
        assert copy.execute("SELECT * FROM one").fetchall() == [("kept",)]
        assert copy.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_migration_that_fails_leaves_the_file_at_its_version(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    first, broken = ("CREATE TABLE one (value TEXT)",), ("CREATE TABLE two (value TEXT)", "CREATE NONSENSE")
    open_database(path, migrations=(first,)).close()
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):  # a fault of the program, and told as one
        open_database(path, migrations=(first, broken))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'two'").fetchall() == []


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(b"these are no results" * 100)
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "database_damaged"


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageProblem) as problem:
        open_database(tmp_path / "file" / "results.sqlite")
    assert problem.value.reason.code == "not_writable"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_copy_made_before_a_change_is_for_this_user_only_and_follows_no_link(tmp_path: Path) -> None:
    path, victim = tmp_path / "results.sqlite", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "results.sqlite.v1.bak").symlink_to(victim)
    first, second = ("CREATE TABLE one (value TEXT)",), ("ALTER TABLE one ADD COLUMN more TEXT",)
    open_database(path, migrations=(first,)).close()
    path.chmod(0o644)
    open_database(path, migrations=(first, second)).close()
    assert victim.read_text() == "precious"
    for name in ("results.sqlite", "results.sqlite.v1.bak"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("statement", "is_ours"),
    [("SELECT * FROM nowhere", True), ("INSERT INTO runs (id) VALUES (1)", True), ("PRAGMA journal_mode", False)],
)
def test_a_fault_of_the_program_is_not_called_one_of_the_disk(tmp_path: Path, statement: str, is_ours: bool) -> None:
    path = tmp_path / "results.sqlite"
    with closing(open_database(path)) as connection:
        if is_ours:
            with pytest.raises(sqlite3.Error), storage_problems(path):
                connection.execute(statement)
        else:
            with storage_problems(path):
                connection.execute(statement)


def test_what_the_machine_does_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with (
        closing(open_database(path)) as first,
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as second,
    ):
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageProblem) as problem, storage_problems(path):
            second.execute("BEGIN IMMEDIATE")
        assert problem.value.reason.code == "store_in_use"
        first.execute("ROLLBACK")
