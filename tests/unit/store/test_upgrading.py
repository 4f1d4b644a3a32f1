"""Stores of older versions: all that was in them is there, and an interrupted update leaves them whole."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.older_stores import step_back
from fieldray.domain.finding import Outcome, ReadFacts, Refused
from fieldray.domain.lungs import LungFields
from fieldray.domain.run import StoredResult, Verdict
from fieldray.domain.study import ImageHeader
from fieldray.domain.work_list import ResultFilter, ResultOrder
from fieldray.errors import StorageProblem
from fieldray.reasons import reason
from fieldray.store import database
from fieldray.store.database import damage_mark, open_database
from fieldray.store.history import HistoryQuery
from fieldray.store.maintenance import check
from fieldray.store.mending import mend
from fieldray.store.pictures import pictures_path
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.schema import MIGRATIONS, is_older
from fieldray.store.upgrading import bring_up_to_date
from fieldray.store.work_list import WorkListQuery
from lungs import lungs
from outcomes import POINT, failed, image_ref, operating_point, read_facts, refused, run_spec, screened

SPEC = run_spec(operating_points=(POINT, operating_point(label="other")))
AGREE = Verdict(choice="agree", note="seen")


def facts(content: str) -> ReadFacts:
    return replace(read_facts(content * 64), preview=f"JPEG of {content}".encode())


def soft() -> LungFields:
    down, across = np.mgrid[0:40, 0:40]
    shares = 1 / (1 + np.exp(((down - 20) ** 2 / 15**2 + (across - 20) ** 2 / 10**2 - 1) * 8))
    return replace(lungs(shares.astype(np.float32)), evidence_inside=0.25)


OUTCOMES: list[Outcome] = [
    replace(screened(image_ref("a.dcm")), facts=facts("a"), lungs=soft(), notes=(reason("perhaps_mirrored"),)),
    replace(screened(image_ref("b.dcm"), score=0.1, decision="below"), facts=facts("b"), class_maps=None, extra={}),
    replace(refused(image_ref("c.dcm", header=ImageHeader(patient_name="Іваненко", modality="DX"))), facts=facts("c")),
    failed(image_ref("not-unicode-\udcff.dcm")),
    Refused(ref=image_ref("readme.txt", kind="unknown"), reason=reason("not_an_image")),
    refused(image_ref("d.zip", member="знімок.dcm", frame=2, header=ImageHeader(number_of_frames=3))),
    failed(image_ref("empty", problem=reason("empty"), kind="unknown")),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two runs, all kinds of outcomes, pictures, and a verdict."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        for spec in (SPEC, run_spec(settings_hash="t" * 64)):
            run_id = store.open_run(spec)
            for outcome in OUTCOMES:
                row_id = store.save(run_id, outcome, spec=spec)
                if outcome is OUTCOMES[0]:
                    store.set_verdict(row_id, AGREE, judged=outcome)
            store.finish(run_id)
    return place


def age(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as old, old:
        step_back(old, version=version)


def plain(value: object) -> object:
    """A value that can be compared with another."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def all_of(path: Path) -> list[object]:
    """All runs, results with their thumbnails, verdicts and previews."""
    with HistoryQuery(path) as query:
        results: list[StoredResult] = [result for run in query.runs() for result in query.rows(run.run_id)]
        previews = [query.preview(content * 64, frame=0) for content in "abc"]
        return [plain(query.runs()), *map(plain, results), previews]


def test_all_of_the_last_version_is_there_and_it_says_how_far_it_is(path: Path) -> None:
    before, shares = all_of(path), []
    assert not is_older(path)
    age(path, 5)
    assert is_older(path) and not pictures_path(path).exists()
    old = path.read_bytes()
    bring_up_to_date(path, tell=shares.append)
    assert shares == [1.0]
    assert all_of(path) == before
    check(path, tell=lambda _: None)  # the order of the classes is another one today
    assert path.with_name("results.sqlite.v5.bak").read_bytes()[100:] == old[100:]
    assert {file.name for file in path.parent.iterdir()} == {
        "results.sqlite", "results.pictures.sqlite", "results.sqlite.v5.bak"
    }  # fmt: skip
    bring_up_to_date(path, tell=shares.append)
    assert shares == [1.0]
    assert not is_older(path)


def test_files_that_are_no_images_are_no_refused_images_any_more(path: Path) -> None:
    with WorkListQuery(path) as query:
        before = [query.listed(run_id, ResultFilter(), ResultOrder()) for run_id in (1, 2)]
    with closing(sqlite3.connect(path)) as old, old:  # as version 7 counted them
        old.execute("UPDATE results SET category = 'refused', rank = 5 WHERE category = 'not_an_image'")
        old.execute("UPDATE work_list SET rank = 5 WHERE rank = 7")
        old.execute("UPDATE work_counts SET refused = refused + not_an_image")
        old.execute("ALTER TABLE work_counts DROP COLUMN not_an_image")
        old.execute("PRAGMA user_version = 7")
    bring_up_to_date(path, tell=print)
    with WorkListQuery(path) as query:
        after = [query.listed(run_id, ResultFilter(), ResultOrder()) for run_id in (1, 2)]
    assert [found.counts for found in after] == [found.counts for found in before]
    assert after[0].counts["not_an_image"] == 1 and after[0].counts["refused"] == 2
    assert [found.row_ids.tolist() for found in after] == [found.row_ids.tolist() for found in before]
    check(path, tell=lambda _: None)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_what_an_older_version_knew_is_there(path: Path, version: int) -> None:
    age(path, version)
    with HistoryQuery(path) as query:
        assert [run.spec for run in query.runs()] == [run_spec(settings_hash="t" * 64), SPEC]
        found = [(result.outcome.ref, result.outcome.category, result.verdict) for result in query.rows(1)]
        assert found == [(each.ref, each.category, AGREE if each is OUTCOMES[0] else None) for each in OUTCOMES]
        (first, *_) = query.rows(1)
        assert (plain(first.outcome.facts), first.outcome.findings) == (
            plain(replace(OUTCOMES[0].facts, preview=b"")), OUTCOMES[0].findings
        )  # fmt: skip
        assert query._all("PRAGMA user_version")[0][0] == len(MIGRATIONS)
        assert query._all("PRAGMA integrity_check")[0][0] == "ok"
    with ResultStore(path) as store:  # numbers go on where they were
        assert store.open_run(SPEC) == 3


class Stopped(BaseException):
    """As Ctrl-C."""


def test_an_update_that_is_stopped_leaves_the_old_file_and_is_begun_again(path: Path) -> None:
    before = all_of(path)
    age(path, 5)

    def stop(_: float) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        bring_up_to_date(path, tell=stop)
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (5,)
        assert old.execute("SELECT COUNT(*) FROM results").fetchone() == (2 * len(OUTCOMES),)
    assert not list(path.parent.glob("*upgrading*"))
    assert all_of(path) == before


_KILL = """
import os, signal, sys
from pathlib import Path
from fieldray.store import upgrading
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
moment, path = sys.argv[1], Path(sys.argv[2])
if moment == "rows":
    upgrading.bring_up_to_date(path, tell=die)
else:
    setattr(upgrading, moment, die)
    upgrading.bring_up_to_date(path, tell=lambda _: None)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("moment", ["rows", "keep_copy", "replace_durably"])
def test_a_program_killed_at_any_moment_leaves_a_whole_file(path: Path, moment: str) -> None:
    before = all_of(path)
    age(path, 5)
    done = subprocess.run([sys.executable, "-c", _KILL, moment, str(path)], check=False)
    assert done.returncode < 0
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (5,)
        assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert all_of(path) == before


def test_while_somebody_else_has_it_open_nothing_is_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.store.exchanging._WAIT_S", 0.05)
    age(path, 5)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT COUNT(*) FROM results").fetchone()
        with pytest.raises(StorageProblem) as problem:
            open_database(path)
        assert problem.value.reason.code == "store_in_use"
        assert other.execute("PRAGMA user_version").fetchone() == (5,)
    with ResultQuery(path) as query:
        assert len(query.runs()) == 2


def test_a_disk_that_refuses_is_not_another_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(sqlite3.Connection):
        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if "DELETE" in statement:
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(statement, *values)

    age(path, 5)
    connect = sqlite3.connect
    monkeypatch.setattr(
        "fieldray.store.exchanging.sqlite3.connect",
        lambda *place, **options: connect(*place, **{"factory": Refused, **options}),
    )
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "disk_full"


def test_a_file_that_another_program_exchanges_while_it_is_opened_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite calls the old one read-only then: it was moved."""
    connect, refusals = database._connect, []

    def exchanged_first(place: Path) -> database.WatchedConnection:
        if not refusals:
            refusals.append(place)
            shutil.copyfile(place, place.with_name("new")).replace(place)
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return connect(place)

    monkeypatch.setattr("fieldray.store.database._connect", exchanged_first)
    with ResultQuery(path) as query:
        assert len(query.runs()) == 2
    assert refusals == [path]


def test_a_row_that_makes_no_sense_is_damage_that_a_person_is_told_of_and_costs_no_other(path: Path) -> None:
    age(path, 5)
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("UPDATE results SET details = '[' WHERE id = 2")
        old.execute("UPDATE runs SET spec = '{}' WHERE id = 2")
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "database_damaged"
    told = mend(path)
    assert told is not None and dict(told.parameters)["results"] == str(2 * len(OUTCOMES) - 1)
    with closing(sqlite3.connect(dict(told.parameters)["path"])) as aside:
        assert aside.execute("SELECT COUNT(*) FROM results").fetchone() == (2 * len(OUTCOMES),)
    with ResultQuery(path) as query:
        assert [result.row_id for result in query.rows(1)] == [1, 3, 4, 5, 6, 7]
        assert query.row(1).verdict == AGREE


@pytest.mark.parametrize(
    "change",
    [
        """ref = replace(ref, '"frame": 0', '"frame": {}')""",
        """details = replace(details, '"thumbnail_shape": [', '"thumbnail_shape": [1, {}], "other": [')""",
    ],
)
def test_a_number_that_no_file_of_results_holds_is_damage(path: Path, change: str) -> None:
    """Or each start would end with an error of SQLite, and none would repair it."""
    age(path, 5)
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(f"UPDATE results SET {change.format(10**30)} WHERE id = 1")
    with pytest.raises(StorageProblem) as problem:
        open_database(path)
    assert problem.value.reason.code == "database_damaged"
    told = mend(path)
    assert told is not None and dict(told.parameters)["results"] == str(2 * len(OUTCOMES) - 1)


def test_a_damaged_store_of_the_version_before_is_mended_and_keeps_its_pictures(path: Path) -> None:
    before = all_of(path)
    age(path, 5)
    damage_mark(path).touch()
    told = mend(path)
    assert told is not None and dict(told.parameters)["results"] == str(2 * len(OUTCOMES))
    assert all_of(path) == before
    assert not [file for word in ("mending", "upgrading") for file in path.parent.glob(f"*{word}*")]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_what_is_written_is_for_this_user_alone(path: Path) -> None:
    age(path, 5)
    open_database(path).close()
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
