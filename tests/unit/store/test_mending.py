"""A store that is damaged, moved or begun twice: nothing is called kept that is not."""

from __future__ import annotations

import contextlib
import os
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
from fieldray.store import mending
from fieldray.store.database import damage_mark, open_database
from fieldray.store.deleting import RunDeleter
from fieldray.store.maintenance import check
from fieldray.store.mending import mend
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.schema import VERSION
from outcomes import image_ref, run_spec, screened

SPEC = run_spec()
COUNT = 60
PAGE_BYTES = 4096
TABLE_LEAF = 13  # the first byte of a page with rows of a table
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows holds open files fast")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one run, results and a verdict, closed in order."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        run_id = store.open_run(SPEC)
        for number in range(COUNT):
            outcome = screened(image_ref(f"{number:03}.dcm"))
            row_id = store.save(run_id, outcome, spec=SPEC)
        store.set_verdict(row_id, Verdict(choice="agree", note="seen"), judged=outcome)
        store.set_state(run_id, "finished")
    return place


def damage(path: Path) -> None:
    """Write nonsense over every other page of results, or of anything where there are none."""
    data = bytearray(path.read_bytes())
    places = [place for place in range(0, len(data), PAGE_BYTES) if data[place] == TABLE_LEAF]
    results = [place for place in places if b'{"kind":' in data[place : place + PAGE_BYTES]]
    for place in (results or places)[::2]:
        data[place : place + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    path.write_bytes(data)


def names(path: Path) -> set[str]:
    with ResultQuery(path) as decoder:
        return {row.outcome.ref.path.name for run in decoder.runs() for row in decoder.rows(run.run_id)}


def find_damage(path: Path) -> str | None:
    """The code of the reason that opening and reading it all gives."""
    try:
        names(path)
    except StorageProblem as problem:
        return problem.reason.code
    return None


def mend_if_damaged(path: Path) -> None:
    if find_damage(path) == "database_damaged":
        assert mend(path) is not None


def test_a_damaged_store_is_set_aside_and_what_can_be_read_is_kept(path: Path) -> None:
    damage(path)
    before = path.read_bytes()
    assert find_damage(path) == "database_damaged"
    with pytest.raises(StorageProblem):  # marked: not opened again before it is fixed
        open_database(path)
    told = mend(path)
    assert told is not None
    parameters = dict(told.parameters)
    assert Path(parameters["path"]).read_bytes() == before
    kept = names(path)
    assert 0 < len(kept) < COUNT
    assert int(parameters["results"]) == len(kept)
    assert not damage_mark(path).exists()
    assert mend(path) is None
    with ResultStore(path) as store:
        store.save(store.open_run(SPEC), screened(image_ref("new.dcm")), spec=SPEC)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_another_program_sets_aside_just_now_is_called_damaged_not_read_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    assert find_damage(path) == "database_damaged"

    def fixed_meanwhile(place: Path) -> sqlite3.Connection:
        place.rename(place.with_name("aside"))
        damage_mark(place).unlink()
        return sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True)

    monkeypatch.setattr(mending, "opened_to_read", fixed_meanwhile)
    with pytest.raises(StorageProblem) as problem:
        mend(path)
    assert problem.value.reason.code == "database_damaged"


def test_a_second_damage_gets_a_place_of_its_own(path: Path) -> None:
    for _ in range(2):
        path.write_bytes(b"these are no results" * 100)
        assert find_damage(path) == "database_damaged"
        assert mend(path) is not None
    assert len(list(path.parent.glob("results.damaged-*.sqlite"))) == 2


def test_companions_go_with_the_store_and_give_what_they_hold(path: Path, tmp_path: Path) -> None:
    """A copy of a store at work has its last results in the companion alone."""
    with ResultStore(path) as store:
        store.save(store.open_run(SPEC, fresh=True), screened(image_ref("last.dcm")), spec=SPEC)
        copy = tmp_path / "copy"
        shutil.copytree(path.parent, copy)
    place = copy / path.name
    assert place.with_name(place.name + "-wal").stat().st_size > 0
    damage_mark(place).touch()
    assert mend(place) is not None
    assert place.with_name("results.damaged-1.sqlite-wal").exists()
    assert not place.with_name(place.name + "-wal").exists()
    assert "last.dcm" in names(place)


def test_mending_that_was_stopped_is_begun_again(path: Path) -> None:
    """Stopped after the old file got its new name: a new one must not be begun empty meanwhile."""
    damage_mark(path).touch()
    path.rename(path.with_name("results.damaged-1.sqlite"))
    with pytest.raises(StorageProblem):
        open_database(path)
    assert not path.exists()
    assert mend(path) is not None
    assert len(names(path)) == COUNT


def test_mending_resumes_with_the_last_file_that_was_set_aside_whatever_the_clock_said(path: Path) -> None:
    """Not with an older one, which a clock that jumped calls newer."""
    damage_mark(path).touch()
    for number in (1, 9):
        older = path.with_name(f"results.damaged-{number}.sqlite")
        older.write_bytes(b"an older file")
        os.utime(older, (4e9, 4e9))
    path.rename(path.with_name("results.damaged-10.sqlite"))
    assert mend(path) is not None
    assert len(names(path)) == COUNT
    damage_mark(path).touch()
    assert mend(path) is not None
    assert path.with_name("results.damaged-11.sqlite").exists()


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_what_another_version_made_is_left_to_that_one(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    damage_mark(path).touch()
    before = path.read_bytes()
    with pytest.raises(StorageProblem) as problem:
        mend(path)
    assert problem.value.reason.code == "database_other_version"
    assert path.read_bytes() == before
    assert damage_mark(path).exists()


def test_a_run_that_is_lost_leaves_its_number_to_nobody(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM runs")
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'runs'")
        connection.commit()
    damage_mark(path).touch()
    mend(path)
    with ResultStore(path) as store:
        assert store.open_run(SPEC) == 2
        assert store.counts(2) == {}


def test_forty_four_torn_copies_are_all_opened_or_mended(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for number in range(44):
        place = tmp_path / str(number) / path.name
        place.parent.mkdir()
        place.write_bytes(data[: len(data) * number // 44])
        mend_if_damaged(place)
        with ResultStore(place) as store:
            run_id = store.open_run(SPEC, fresh=True)
            store.save(run_id, screened(image_ref("new.dcm")), spec=SPEC)
            assert store.counts(run_id) == {"abnormal": 1}


@posix
@pytest.mark.parametrize("accident", ["removed", "moved", "replaced", "replaced by a link"])
def test_a_store_that_is_no_longer_there_is_noticed(path: Path, tmp_path: Path, accident: str) -> None:
    backup = tmp_path / "backup"
    shutil.copy(path, backup)
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC, fresh=True)
        if accident == "removed":
            path.unlink()
        elif accident == "replaced":
            backup.replace(path)
        else:
            path.rename(tmp_path / "elsewhere")
            if accident == "replaced by a link":
                path.symlink_to(tmp_path / "elsewhere")
        for act in (
            lambda: store.save(run_id, screened(image_ref("new.dcm")), spec=SPEC),
            lambda: store.set_state(run_id, "finished"),
            lambda: store.counts(run_id),
        ):
            with pytest.raises(StorageProblem) as problem:
                act()
            assert problem.value.reason.code == "store_gone"
    if accident == "replaced":  # its changes were not taken for those of the backup
        assert len(names(path)) == COUNT
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@posix
@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_store_that_is_a_link_is_refused(tmp_path: Path, ending: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    path = tmp_path / "results.sqlite"
    path.with_name(path.name + ending).symlink_to(victim)
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "not_plain"
    assert victim.read_bytes() == b""


BEGIN = """
import sys
from pathlib import Path
from fieldray.store.database import open_database
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    open_database(Path(sys.argv[1]) / f"{number}.sqlite").close()
"""


def test_programs_that_begin_at_once_share_one_store(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", BEGIN, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        for program in programs:
            assert program.stdout
            program.stdout.readline()
        for program in programs:
            assert program.stdin
            program.stdin.write("\n")
            program.stdin.flush()
        assert [program.communicate()[1] for program in programs] == [""] * 3
    # Two that close at the same moment may each leave the journal to the other: one alone clears it.
    for number in range(20):
        open_database(tmp_path / f"{number}.sqlite").close()
    assert sorted(place.suffix for place in tmp_path.iterdir()) == [".sqlite"] * 20


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE results SET header = CAST(x'7bff' AS TEXT)",  # no UTF-8: Python's own error
        "UPDATE results SET details = '{\"rows\": 1'",  # no JSON
        "UPDATE results SET details = '[]'",
        "UPDATE results SET findings = '[[7]]'",
        "UPDATE results SET status = 'refused', reason = NULL",
        "UPDATE results SET image_key = id, absent_s = 1",
        "UPDATE runs SET spec = '{}'",
        "DROP TABLE verdicts",
    ],
)
def test_what_no_program_of_ours_wrote_is_damage_and_mended(path: Path, change: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(change)
        connection.commit()
    with pytest.raises(StorageProblem) as problem, ResultQuery(path) as query:
        for run in query.runs():
            list(query.rows(run.run_id))
            query.not_present(run.run_id)
            query.earlier_verdicts(run.run_id)
    assert problem.value.reason.code == "database_damaged"
    assert damage_mark(path).exists()
    told = mend(path)
    assert told is not None and told.code == "database_mended"
    assert find_damage(path) is None


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE secrets SET value = x'00'",
        'UPDATE results SET findings = \'[["no such label",0.5,"above",1]]\' WHERE id = 7',
        'UPDATE runs SET spec = replace(spec, \'"label": "\', \'"label": "x\')',
    ],
    ids=["key", "point of no label", "label of a run"],
)
def test_what_is_damage_is_none_any_more_once_it_was_mended(path: Path, change: str) -> None:
    """Or each start of a run would set the store aside again, and none would ever screen."""
    with ResultStore(path) as store:
        store.stamp_key()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    for expected in ("database_damaged", None):
        code = None
        try:
            check(path, tell=lambda _share: None)
            with ResultStore(path) as store:
                store.stamp_key()
        except StorageProblem as problem:
            code = problem.reason.code
        assert code == expected
        mend(path)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_verdict_on_a_result_that_was_lost_comes_back_with_it(path: Path, is_finished: bool) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE results SET details = '[]' WHERE id = ?", (COUNT,))
        connection.execute("UPDATE runs SET state = ?", ("finished" if is_finished else "cancelled",))
    find_damage(path)
    told = mend(path)
    assert told is not None and dict(told.parameters)["verdicts"] == "1"
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        other = store.row(store.save(run_id, screened(image_ref("another.dcm"), score=0.2), spec=SPEC))
        assert (other.row_id > COUNT, other.verdict) == (True, None)  # the number of the lost one is nobody else's
        assert store.earlier_verdicts(run_id) == ()
        again = store.row(store.save(run_id, screened(image_ref(f"{COUNT - 1:03}.dcm")), spec=SPEC))
        assert again.verdict == Verdict(choice="agree", note="seen")
        twin = store.row(store.save(run_id, screened(image_ref("twin.dcm")), spec=SPEC))
        assert twin.verdict in (None, again.verdict)


def test_a_verdict_on_a_result_that_was_lost_goes_with_the_last_run(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE results SET details = '[]' WHERE id = ?", (COUNT,))
    find_damage(path)
    mend(path)
    RunDeleter(path).delete([1])
    with ResultQuery(path) as query:
        assert query._all("SELECT * FROM verdicts") == []


def test_a_store_that_another_program_has_just_mended_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    find_damage(path)
    refuse = mending._refuse_other_version

    def and_another(place: Path) -> None:
        monkeypatch.setattr(mending, "_refuse_other_version", refuse)
        assert mend(place) is not None
        refuse(place)

    monkeypatch.setattr(mending, "_refuse_other_version", and_another)
    with pytest.raises(StorageProblem):
        mend(path)
    assert not path.with_name("results.damaged-2.sqlite").exists()
    assert not damage_mark(path).exists()
    assert names(path)


def test_a_statement_of_ours_that_is_wrong_is_no_damage(path: Path) -> None:
    with ResultQuery(path) as query, pytest.raises(sqlite3.OperationalError, match="no such column"):
        query._all("SELECT absent_column FROM results")
    assert not damage_mark(path).exists()


def test_a_schema_that_is_no_text_is_damage(path: Path) -> None:
    """Cut into the words of the schema: SQLite quotes them in its complaint, and Python cannot read that."""
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE runs")
    path.write_bytes(data[:at] + b"CREATE TABLE \xff\xfe\xff" + data[at + 16 :])
    assert find_damage(path) == "database_damaged"
    assert mend(path) is not None
    assert find_damage(path) is None
