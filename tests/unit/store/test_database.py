from __future__ import annotations

import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.store.database import damage_mark, open_database, storage_problems
from fieldray.store.schema import VERSION


def test_a_new_file_has_the_newest_version_and_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.sqlite"
    with closing(open_database(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1, 999])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_of_another_version_is_refused_and_left_alone(tmp_path: Path, version: int, is_empty: bool) -> None:
    path = tmp_path / "results.sqlite"
    if not is_empty:
        open_database(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "database_other_version"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    assert not damage_mark(path).exists()


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
