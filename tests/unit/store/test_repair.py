"""A damaged store: the damage is noticed, the file set aside, and all readable valid rows are kept."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.store.database import damage_mark_path
from fieldray.store.deletion import delete_runs
from fieldray.store.maintenance import check_database, repair, restore
from fieldray.store.opening import open_database
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.schema import SCHEMA_VERSION
from fieldray.store.work_list import HistoryQuery
from lungs import lungs
from outcomes import image_ref, screened
from raised import raises
from stores import AGREE, SPEC, change, save_run

COUNT = 60
PAGE_BYTES = 8192
TABLE_LEAF = 13  # the first byte of a page with table rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one run, results and a verdict, closed in order."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        outcomes = [screened(image_ref(f"{number:03}.dcm")) for number in range(COUNT)]
        run_id = save_run(store, *outcomes)
        store.set_verdict(COUNT, AGREE, judged=outcomes[-1])
        store.set_run_state(run_id, "finished")
    return place


def damage(path: Path) -> None:
    """Overwrite every other page with results; if there are none, every other page."""
    data = bytearray(path.read_bytes())
    places = [place for place in range(0, len(data), PAGE_BYTES) if data[place] == TABLE_LEAF]
    results = [place for place in places if b'{"kind":' in data[place : place + PAGE_BYTES]]
    for place in (results or places)[::2]:
        data[place : place + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    path.write_bytes(data)


def names(path: Path) -> set[str]:
    with ResultQuery(path) as query:
        return {row.outcome.ref.path.name for run in query.runs() for row in query.results(run.run_id)}


def read_all(path: Path) -> None:
    with ResultStore(path) as store:
        store.file_stamp_key()
    with HistoryQuery(path) as query:
        query.run_summaries()
        for run in query.runs():
            list(query.images_in_work_list_order(run.run_id))
            list(query.result_briefs(run.run_id))
            query.absent_images(run.run_id)
            query.superseded_verdicts(run.run_id)


def found_damaged(path: Path) -> str | None:
    """The code of the reason that opening and reading the whole store gives, None if there is none."""
    try:
        read_all(path)
    except StorageProblem as problem:
        return problem.reason.code
    return None


def test_a_damaged_store_is_set_aside_and_readable_rows_are_kept(path: Path) -> None:
    damage(path)
    assert found_damaged(path) == "database_damaged"
    before = path.read_bytes()
    with pytest.raises(StorageProblem):  # marked as damaged: not opened before a repair
        open_database(path)
    said = repair(path)
    assert said is not None
    parameters = dict(said.parameters)
    assert Path(parameters["path"]).read_bytes() == before
    kept = names(path)
    assert 0 < len(kept) < COUNT
    assert int(parameters["results"]) == len(kept)
    assert not damage_mark_path(path).exists()
    assert repair(path) is None
    with ResultStore(path) as store:
        store.save_image(store.open_run(SPEC), screened(image_ref("new.dcm")), spec=SPEC)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rows_after_and_between_damaged_pages_are_kept(path: Path) -> None:
    with ResultStore(path) as store:
        save_run(store, *(screened(image_ref(f"{number}.png")) for number in range(4 * COUNT)), as_new_run=True)
    data = bytearray(path.read_bytes())
    leaves = [
        place
        for place in range(0, len(data), PAGE_BYTES)
        if data[place] == TABLE_LEAF and b'{"kind":' in data[place : place + PAGE_BYTES]
    ]
    lost = (leaves[2], leaves[-1], leaves[len(leaves) // 2])
    for place in lost:
        data[place : place + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    path.write_bytes(data)
    assert found_damaged(path) == "database_damaged"
    repair(path)
    assert len(names(path)) >= 5 * COUNT - len(lost) * 20


def test_the_log_is_set_aside_with_the_store_and_its_rows_are_kept(path: Path, tmp_path: Path) -> None:
    """A copy of an open store has its last results only in the log."""
    with ResultStore(path) as store:
        store.save_image(store.open_run(SPEC, as_new_run=True), screened(image_ref("last.dcm")), spec=SPEC)
        copy = tmp_path / "copy"
        shutil.copytree(path.parent, copy)
    place = copy / path.name
    assert place.with_name(place.name + "-wal").stat().st_size > 0
    damage_mark_path(place).touch()
    assert repair(place) is not None
    assert place.with_name("results.damaged-1.sqlite-wal").exists()
    assert not place.with_name(place.name + "-wal").exists()
    assert "last.dcm" in names(place)


def test_a_stopped_repair_continues_with_the_last_file_set_aside(path: Path) -> None:
    """No empty store may be created meanwhile, and no older file taken that a wrong clock calls newer."""
    damage_mark_path(path).touch()
    for number in (1, 9):
        older = path.with_name(f"results.damaged-{number}.sqlite")
        older.write_bytes(b"an older file")
        os.utime(older, (4e9, 4e9))
    path.rename(path.with_name("results.damaged-10.sqlite"))
    with pytest.raises(StorageProblem):
        open_database(path)
    assert not path.exists()
    assert repair(path) is not None
    assert len(names(path)) == COUNT
    damage_mark_path(path).touch()
    assert repair(path) is not None
    assert path.with_name("results.damaged-11.sqlite").exists()


@pytest.mark.parametrize(
    ("version", "said"),
    [(10, "database_too_old"), (SCHEMA_VERSION - 1, "database_older_damaged"), (SCHEMA_VERSION + 1, "database_newer")],
)
def test_a_damaged_store_of_another_version_is_not_repaired(path: Path, version: int, said: str) -> None:
    change(path, f"PRAGMA user_version = {version}")
    damage_mark_path(path).touch()
    before = path.read_bytes()
    with raises(StorageProblem, said):
        repair(path)
    assert path.read_bytes() == before
    assert damage_mark_path(path).exists()


def test_a_schema_that_is_no_valid_text_counts_as_damage(path: Path) -> None:
    """If the schema's text is cut, SQLite quotes it in its error message, which Python cannot decode."""
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE runs")
    path.write_bytes(data[:at] + b"CREATE TABLE \xff\xfe\xff" + data[at + 16 :])
    assert found_damaged(path) == "database_damaged"
    assert repair(path) is not None
    assert found_damaged(path) is None


# ---- rows that the program did not write

LUNGS = "lungs = replace(lungs, '[40,40,', '{}')"
READ = [
    *(f"images SET {column} = 'zzz'" for column in ("image_key", "content_sha256")),
    *(f"answers SET {column} = 'zzz'" for column in ("rank", "category", "details")),
    "answers SET category = x'00'",
    "answers SET backend = x'00'",
    "images SET header = CAST(x'7bff' AS TEXT)",  # no UTF-8: Python's own error
    "answers SET details = '{\"rows\": 1'",  # no JSON
    "answers SET details = '[]'",
    f"""answers SET details = replace(details, '"kind":', '"rows":{10**30},"kind":')""",
    "answers SET findings = '[[7]]'",
    'answers SET findings = \'[["no such label",0.5,"above",1]]\'',
    "answers SET status = 'refused', reason = NULL",
    "images SET image_key = id, absent_s = 1",
    "answers SET lung_shares = x'00'",
    "answers SET lung_shares = NULL",
    "answers SET lungs = '[]'",
    f"answers SET {LUNGS.format('[40,41,')}",
    f"answers SET {LUNGS.format('[40000,400000,')}",
    "answers SET notes = 'x'",
    "runs SET spec = '{}'",
    "run_packs SET spec = '{}'",
    'run_packs SET spec = replace(spec, \'"label": "\', \'"label": "x\')',
    "run_packs SET position = 1",
    *(f"runs SET state = {value}" for value in ("'zzz'", "CAST('running' AS BLOB)")),
    *(f"runs SET {column} = {value}" for column, value in (("started_s", "'zzz'"), ("started_s", 1e300))),
    "runs SET ended_s = -4611686018427387904.0",
    *(f"verdicts SET choice = {value}" for value in ("'zzz'", "CAST('agree' AS BLOB)")),
    "verdicts SET note = x'00'",
    *(f"verdicts SET given_s = {value}" for value in ("'zzz'", 1e300)),
    *(f"verdicts SET {column} = 'zzz'" for column in ("category", "content_sha256")),
    "secrets SET value = x'00'",
]
# Found only by a check of the whole file.
CHECKED = [
    "images SET rank = 'zzz'",
    *(f"answers SET rank = {rank}" for rank in (99, -1)),
    "answers SET id = 9223372036854775807",
    "answers SET rank = 5 - rank",
    "images SET rank = 5 - rank",
    "answers SET score = 9e999",
]


@pytest.mark.parametrize("what", [*READ, *CHECKED])
def test_invalid_values_are_damage_cannot_be_restored_and_are_repaired(tmp_path: Path, what: str) -> None:
    """Otherwise each start of a run would set the store aside again, and no image would ever be screened."""
    path = tmp_path / "home" / "results.sqlite"
    outcome = replace(screened(), lungs=lungs())
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        for found in (outcome, replace(outcome, findings=(replace(outcome.findings[0], score=0.7),))):
            row_id = store.save_image(run_id, found, spec=SPEC).row_id
            store.set_verdict(row_id, AGREE, judged=found)  # the first verdict becomes superseded
        store.finish_run(run_id)
        store.file_stamp_key()
    assert (found_damaged(path), check_database(path, progress=lambda _share: None)["verdicts"]) == (None, 2)
    change(path, f"UPDATE {what}")
    (tmp_path / "copy").mkdir()
    shutil.copy(path, tmp_path / "copy")
    with raises(UsageProblem, "store_not_ours"):
        restore(path, tmp_path / "copy")
    assert not damage_mark_path(path).exists()
    if what in READ:
        assert found_damaged(path) == "database_damaged"
        damage_mark_path(path).unlink()
    with raises(StorageProblem, "database_damaged"):
        check_database(path, progress=lambda _share: None)
    assert repair(path) is not None
    check_database(path, progress=lambda _share: None)
    assert found_damaged(path) is None


# ---- verdicts on lost results


def lose_the_last_result(path: Path) -> None:
    change(path, "UPDATE answers SET details = '[]' WHERE id = ?", COUNT)
    assert found_damaged(path) == "database_damaged"
    said = repair(path)
    assert said is not None and dict(said.parameters)["verdicts"] == "1"


@pytest.mark.parametrize("state", ["finished", "cancelled"])
def test_a_verdict_on_a_lost_result_comes_back_with_the_result(path: Path, state: str) -> None:
    change(path, "UPDATE runs SET state = ?", state)
    lose_the_last_result(path)
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        other = store.save_image(run_id, screened(image_ref("another.dcm"), score=0.2), spec=SPEC).most_urgent_result
        assert (other.row_id > COUNT, other.verdict) == (True, None)  # the id of the lost result is not used again
        assert store.superseded_verdicts(run_id) == ()
        again = store.save_image(run_id, screened(image_ref(f"{COUNT - 1:03}.dcm")), spec=SPEC).most_urgent_result
        assert again.verdict == AGREE
        twin = store.save_image(run_id, screened(image_ref("twin.dcm")), spec=SPEC).most_urgent_result
        assert twin.verdict in (None, again.verdict)


def test_a_verdict_survives_a_lost_run_and_is_deleted_with_the_last_one(path: Path) -> None:
    change(path, "UPDATE runs SET state = 'asleep'")
    damage_mark_path(path).touch()
    said = repair(path)
    assert said is not None and dict(said.parameters)["results"] == "0"  # no result could be shown
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        again = store.save_image(run_id, screened(image_ref(f"{COUNT - 1:03}.dcm")), spec=SPEC).most_urgent_result
        assert (again.row_id, again.verdict) == (COUNT + 1, AGREE)
        store.finish_run(run_id)
    delete_runs(path, [run_id])
    with ResultQuery(path) as query:
        assert query._all("SELECT * FROM verdicts") == []


@pytest.mark.parametrize(
    "orders",
    [
        "UPDATE runs SET state = 'asleep'",
        "DELETE FROM runs; DELETE FROM sqlite_sequence WHERE name = 'runs'",
        "DELETE FROM answers; DELETE FROM images; DELETE FROM runs",
    ],
)
def test_the_id_of_a_lost_run_is_not_used_again(path: Path, orders: str) -> None:
    change(path, orders)
    damage_mark_path(path).touch()
    assert repair(path) is not None
    with ResultStore(path) as store:
        assert store.open_run(SPEC) == 2
        assert store.category_counts(2) == {}
