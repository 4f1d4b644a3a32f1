"""The database file: how it is opened, its permissions, and the reasons if it cannot be used."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fieldray.domain.run import Verdict
from fieldray.errors import StorageProblem
from fieldray.imaging.discover import discover
from fieldray.store.database import convert_sqlite_errors, damage_mark_path
from fieldray.store.locks import database_file_lock
from fieldray.store.maintenance import repair, restore
from fieldray.store.opening import is_older_version, open_database
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.schema import SCHEMA_VERSION
from outcomes import image_ref, screened
from raised import raises
from stores import SPEC, change, rows_of, save_run

posix = pytest.mark.skipif(sys.platform == "win32", reason="links and permissions of POSIX; Windows holds open files")
# A trigger whose name looks like one of SQLite's own.
CALLED = (
    "PRAGMA writable_schema = ON;"
    " UPDATE sqlite_master SET name = replace(name, 't', 'sqlite_t'), sql = replace(sql, ' t ', ' sqlite_t ')"
)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS rowid FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one result, closed in order."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        save_run(store, screened(image_ref("a.dcm")))
    return place


def refusal(path: Path) -> str:
    """The code of the reason why the store is not opened."""
    with pytest.raises(StorageProblem) as problem:
        open_database(path).close()
    return problem.value.reason.code


def test_a_new_file_has_the_version_of_the_program_and_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.sqlite"
    with closing(open_database(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA temp_store").fetchone() == (2,)  # no patient data in temporary files
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["results.sqlite"]


def test_a_database_opened_twice_keeps_its_log_while_another_program_uses_it(path: Path) -> None:
    """Closing a file descriptor releases all locks of the process. The other program would then delete the log."""
    with closing(open_database(path)) as connection:
        open_database(path).close()
        is_older_version(path)
        assert list(discover([path.parent])) == []
        program = "import sys; from pathlib import Path; from fieldray.store.opening import open_database; "
        program += "open_database(Path(sys.argv[1])).close()"
        subprocess.run([sys.executable, "-c", program, path], check=True)
        connection.execute("INSERT INTO secrets (purpose, value) VALUES ('test', x'01')")
        assert rows_of(path, "SELECT value FROM secrets WHERE purpose = 'test'") == [(b"\x01",)]


@pytest.mark.parametrize(
    ("version", "said"), [(1, "database_too_old"), (SCHEMA_VERSION + 1, "database_newer"), (999, "database_newer")]
)
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_database_of_another_version_is_refused_and_unchanged(
    tmp_path: Path, version: int, said: str, is_empty: bool
) -> None:
    path = tmp_path / "results.sqlite"
    if not is_empty:
        open_database(path).close()
    change(path, f"PRAGMA user_version = {version}")
    is_silent = is_empty and said == "database_newer"  # nothing states which program made it
    assert refusal(path) == ("database_of_later" if is_silent else said)
    assert rows_of(path, "PRAGMA user_version") == [(version,)]
    assert not damage_mark_path(path).exists()


def test_a_file_that_is_no_database_differs_from_an_unwritable_folder(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(b"these are no results" * 100)
    assert refusal(path) == "database_damaged"
    assert refusal(path / "results.sqlite") == "not_writable"


@pytest.mark.parametrize("statement", ["SELECT * FROM nowhere", "INSERT INTO runs (id) VALUES (1)"])
def test_a_wrong_sql_statement_is_not_reported_as_disk_error_or_damage(path: Path, statement: str) -> None:
    with closing(open_database(path)) as connection, pytest.raises(sqlite3.Error), convert_sqlite_errors(path):
        connection.execute(statement)
    assert not damage_mark_path(path).exists()


def test_a_lock_of_another_program_is_reported_as_such(path: Path) -> None:
    with closing(open_database(path)) as first, closing(sqlite3.connect(path, timeout=0)) as second:
        first.execute("BEGIN IMMEDIATE")
        with raises(StorageProblem, "store_in_use"), convert_sqlite_errors(path):
            second.execute("BEGIN IMMEDIATE")


def test_a_store_that_is_being_replaced_cannot_be_opened_or_repaired(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldray.store.database._BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("fieldray.store.maintenance.EXCLUSIVE_WAIT_S", 0.05)
    (tmp_path / "copy").mkdir()
    shutil.copy(path, tmp_path / "copy")
    with database_file_lock(path, wait_s=0.0):
        assert refusal(path) == "store_in_use"
        damage_mark_path(path).touch()
        for act in (lambda: repair(path), lambda: restore(path, tmp_path / "copy")):
            with raises(StorageProblem, "store_in_use"):
                act()
    assert repair(path) is not None
    assert repair(path) is None


# ---- a missing file, or a link


@posix
@pytest.mark.parametrize("event", ["removed", "moved", "replaced", "replaced by a link"])
def test_a_store_that_was_removed_is_noticed_before_a_save_is_confirmed(path: Path, tmp_path: Path, event: str) -> None:
    backup = tmp_path / "backup"
    shutil.copy(path, backup)
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC, as_new_run=True)
        outcome = screened(image_ref("b.dcm"))
        row_id = store.save_image(run_id, outcome, spec=SPEC).row_id
        if event == "removed":
            path.unlink()
        elif event == "replaced":
            backup.replace(path)
        else:
            path.rename(tmp_path / "elsewhere")
            if event == "replaced by a link":
                path.symlink_to(tmp_path / "elsewhere")
        for act in (
            lambda: store.save_image(run_id, screened(image_ref("new.dcm")), spec=SPEC),
            lambda: store.set_verdict(row_id, Verdict(choice="agree"), judged=outcome),
            lambda: store.finish_run(run_id),
        ):
            with raises(StorageProblem, "store_gone"):
                act()
    if event == "replaced":  # the removed store's changes were not applied to the backup
        with ResultQuery(path) as query:
            assert len(query.runs()) == 1
            assert query._all("PRAGMA integrity_check")[0][0] == "ok"


@posix
def test_results_saved_in_a_replacing_store_stay_there(path: Path, tmp_path: Path) -> None:
    with ResultStore(path) as gone:
        path.rename(tmp_path / "elsewhere")
        with ResultStore(path) as store:
            run_id = store.open_run(SPEC)
            with pytest.raises(StorageProblem):
                gone.open_run(SPEC)
            with ResultQuery(path) as query:  # committed results lie in the log that is in use
                assert [run.run_id for run in query.runs()] == [run_id]


@posix
@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_store_that_is_a_link_is_refused(tmp_path: Path, ending: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "results.sqlite"
    victim.write_bytes(b"")
    path.with_name(path.name + ending).symlink_to(victim)
    assert refusal(path) == "not_plain"
    assert victim.read_bytes() == b""


BEGIN = """
import sys
from pathlib import Path
from fieldray.store.opening import is_older_version, open_database
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    open_database(Path(sys.argv[1]) / f"{number}.sqlite").close()
"""


def test_programs_that_start_at_the_same_time_share_one_store(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGIN, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(3)]  # type: ignore[call-overload]
        for program in programs:
            program.stdout.readline()
        for program in programs:
            program.stdin.write("\n")
            program.stdin.flush()
        assert [program.communicate()[1] for program in programs] == [""] * 3
    # Two programs that close at the same moment may each leave the journal to the other: one alone deletes it.
    for number in range(20):
        open_database(tmp_path / f"{number}.sqlite").close()
    assert sorted(place.suffix for place in tmp_path.iterdir()) == [".sqlite"] * 20


# ---- a store made by somebody else: opening it must not execute its triggers or views


@pytest.mark.parametrize(
    "order",
    [
        "CREATE TRIGGER t AFTER INSERT ON answers BEGIN UPDATE answers SET category = 'normal'; END",
        "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM answers; END",
        "CREATE TRIGGER sqlitex AFTER INSERT ON answers BEGIN UPDATE answers SET category = 'normal'; END",
        f"CREATE TRIGGER t AFTER INSERT ON answers BEGIN UPDATE answers SET rank = 3; END; {CALLED} WHERE name = 't'",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = -1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE INDEX i ON answers (abs(score))",
        "ALTER TABLE answers ADD COLUMN y AS (abs(-9223372036854775808))",
        "DROP TABLE verdicts",
        f"DROP TABLE verdicts; CREATE VIEW verdicts AS {ENDLESS}",  # a statement that is not read to its end
    ],
)
def test_a_store_with_foreign_triggers_or_views_is_replaced_and_its_rows_kept(path: Path, order: str) -> None:
    change(path, order)
    assert refusal(path) == "database_damaged"
    assert repair(path) is not None
    with ResultQuery(path) as query:
        assert len(list(query.results(query.runs()[0].run_id))) == 1
    assert not rows_of(path, "SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')")
