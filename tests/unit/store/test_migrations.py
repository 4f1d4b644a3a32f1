"""Stores written by earlier versions: all their content is migrated, even if the program is killed in between."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.domain.run import Event, StoredResult, StoreUpdating
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.paths import VERSION as PROGRAM
from fieldray.paths import results_database_path
from fieldray.pipeline.session import Session
from fieldray.settings import Settings
from fieldray.store import migrations
from fieldray.store.database import create_database, damage_mark_path
from fieldray.store.deletion import delete_runs
from fieldray.store.maintenance import backup, check_database, repair, restore
from fieldray.store.opening import open_database
from fieldray.store.pictures import Pictures
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.schema import RESULTS_TABLES, SCHEMA_VERSION
from fieldray.store.work_list import HistoryQuery
from outcomes import pack_spec, run_spec, screened
from program import Fieldray
from raised import raises
from stores import SPEC, change, rows_of, save_run

FOLDER = Path(__file__).parents[2] / "old_stores"
SAID: Mapping[str, Any] = json.loads((FOLDER / "version-11.json").read_text(encoding="utf-8"))


@pytest.fixture(params=SAID)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a stored example of version 11."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, name: str) -> Path:
    """A copy of the old store."""
    return old_store(tmp_path, name)


def old_store(folder: Path, name: str) -> Path:
    with zipfile.ZipFile(FOLDER / "version-11.zip") as archive:
        archive.extractall(folder, [one for one in archive.namelist() if one.startswith(f"{name}/")])
    return folder / name / "results.sqlite"


def runs_of(said: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """Each run id after the migration, with the runs of version 0.2.0 that were merged into this run."""
    for lead in dict.fromkeys(run["together"] or run["id"] for run in said):
        of_packs = [run for run in said if (run["together"] or run["id"]) == lead]
        yield lead, sorted(of_packs, key=lambda run: (run["id"] != lead, run["id"]))


def recorded_values(answer: StoredResult) -> dict[str, Any]:
    """The values of a result in the form that `write_version_11` recorded."""
    outcome = answer.outcome
    return {
        "id": answer.result_id,
        "image": os.fsencode(outcome.ref.key).hex(),
        "category": outcome.category,
        "scores": [one.score for one in getattr(outcome, "findings", ())],
        "content_sha256": outcome.facts.content_sha256,
        "has_thumbnail": outcome.facts.thumbnail is not None,
        "has_map": getattr(outcome, "class_maps", None) is not None,
        "has_lungs": getattr(outcome, "lungs", None) is not None,
        "patient": outcome.ref.header.patient_name,
        "verdict": answer.verdict and [answer.verdict.choice, answer.verdict.note],
        "is_read": answer.is_read,
        "is_resumed": answer.is_reused,
    }


def test_a_migration_keeps_all_content_and_merges_the_runs_of_one_pass(path: Path, name: str) -> None:
    with HistoryQuery(path) as query:
        said = dict(runs_of(SAID[name]["runs"]))
        assert sorted(run.run_id for run in query.runs()) == sorted(said)
        for run_id, of_packs in said.items():
            run, first = query.run(run_id), of_packs[0]
            assert [pack.pack_name for pack in run.spec.packs] == [one["pack"] for one in of_packs]
            assert (run.state, list(run.spec.paths)) == (first["state"], first["paths"])
            assert (run.started_s, run.spec.program_version) == (first["started_s"], "0.2.0")
            assert list(query.absent_images(run_id)) == first["not_present"]
            earlier = [
                [one.image_key, one.category, one.verdict.choice, one.verdict.note]
                for one in query.superseded_verdicts(run_id)
            ]
            assert earlier == first["earlier_verdicts"]
            for position, one in enumerate(of_packs):
                answers = [recorded_values(answer) for answer in query.results(run_id, pack_position=position)]
                assert sorted(answers, key=lambda answer: answer["id"]) == one["results"]
            images = {answer["image"] for one in of_packs for answer in one["results"]}
            listed = query.list_rows(run_id, ResultFilter(), ResultOrder())
            assert len(listed.row_ids) == len(images) == query.number_of_images(run_id)
        with closing(Pictures(path)) as pictures:
            assert pictures.preview(bytes.fromhex("b1" * 32), 0)
    found = check_database(path, progress=lambda _share: None)
    assert found["answers"] == sum(len(run["results"]) + len(run["not_present"]) for run in SAID[name]["runs"])


def test_a_migration_finds_the_results_of_an_image_by_an_index(tmp_path: Path) -> None:
    """A search through all results for each image would take days for a million of them."""
    path = old_store(tmp_path, "several_packs")
    with closing(create_database(tmp_path / "new.sqlite", RESULTS_TABLES, SCHEMA_VERSION)) as connection:
        connection.execute("ATTACH ? AS old", (os.fsencode(path),))
        for statement in migrations._MEMBERS:
            connection.execute(statement)
        for statement in (migrations._IMAGES, migrations._ANSWERS, migrations._OF_SEVERAL):
            lines = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            for _, _, _, said in lines[1:]:  # the first line reads the source rows of the statement
                assert not said.startswith(("SCAN same", "SCAN found", "SCAN images")), said


def test_the_store_before_the_migration_is_kept(path: Path) -> None:
    before = path.read_bytes()
    open_database(path).close()
    (copy,) = path.parent.glob("results.version-*")
    assert copy.name == "results.version-11-1.sqlite"
    assert copy.read_bytes()[100:] == before[100:]  # except the header, which states the journal mode
    open_database(path).close()
    assert len(list(path.parent.glob("results.version-*"))) == 1


def test_an_interrupted_run_of_an_old_store_can_be_resumed(tmp_path: Path) -> None:
    packs = tuple(
        pack_spec(pack_name=f"{name}-1.0.0", model_sha256=model * 32, settings_hash=settings * 32)
        for name, model, settings in (("adults", "aa", "01"), ("tuberculosis", "bb", "02"), ("children", "cc", "03"))
    )
    path = old_store(tmp_path, "several_packs")
    with ResultStore(path) as store:
        assert store.open_run(run_spec(paths=("/interrupted",), packs=packs)) == 4
        whole, half = store.image_file_stamps(4, b"", limit=9)[::-1]
        assert (sorted(whole.stamped_results), sorted(half.stamped_results)) == ([0, 1, 2], [2])
        assert {stamp for _, stamp in whole.stamped_results.values()} == {b"c1" * 16}
        for pack in packs:
            found = store.reusable_outcome(pack, content_sha256="c1" * 32, frame=0, up_to_result_id=99)
            assert found is not None and found.category in ("abnormal", "not_assessed")
        assert store.open_run(run_spec(paths=("/new",))) == 7  # given ids do not change


def test_a_verdict_of_an_old_store_is_kept_in_a_new_run(tmp_path: Path) -> None:
    path = old_store(tmp_path, "one_pack")
    with ResultStore(path) as store:
        judged = store.result(1)
        spec = store.run(judged.run_id).spec
        image = store.save_image(store.open_run(spec, as_new_run=True), judged.outcome, spec=spec, reused_positions=[0])
        assert image.most_urgent_result.verdict == judged.verdict is not None
        assert image.row_id > 20


def test_a_deleted_run_remains_only_in_the_named_copy_of_the_old_store(tmp_path: Path) -> None:
    path = old_store(tmp_path, "one_pack")
    done = delete_runs(path, [1, 2, 4, 5])
    assert [Path(copy).name for copy in done.files_with_possible_copies] == ["results.version-11-1.sqlite"]
    assert "Шевченко".encode() not in path.read_bytes()


# ---- killed, full, damaged, in use

KILLED = """
import os, sys
from fieldray.store import database, migrations, opening
count = int(sys.argv[2])
def counted(function):
    def call(*values, **named):
        global count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), 9)
        return function(*values, **named)
    return call
class Killed(database.StoreConnection):
    execute = counted(database.StoreConnection.execute)
database.StoreConnection = Killed
for module, name in ((migrations, "replace_durably"), (migrations, "link_or_copy"), (migrations, "remove_files")):
    setattr(module, name, counted(getattr(module, name)))
from pathlib import Path
opening.open_database(Path(sys.argv[1])).close()
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_migration_killed_at_any_moment_continues_at_the_next_start(tmp_path: Path) -> None:
    path, deaths = old_store(tmp_path, "several_packs"), 0
    for count in (1, 5, 10, 20, 30, 40, 50, 60, 65, *range(70, 200, 2)):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, path, str(count)], capture_output=True, text=True, check=False
        )
        with closing(sqlite3.connect(path)) as found:
            (version,) = found.execute("PRAGMA user_version").fetchone()
        assert version in (11, SCHEMA_VERSION)
        if version == SCHEMA_VERSION:
            break
        assert done.returncode == -9, done.stderr
        deaths += 1
    assert deaths > 5
    assert check_database(path, progress=lambda _share: None)["answers"] == 13
    assert len(list(path.parent.glob("results.version-11-*.sqlite"))) == 1
    with ResultQuery(path) as query:
        assert len(query.runs()) == 3
    assert not list(path.parent.glob(".*.new*"))


def test_a_store_open_in_another_program_is_not_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.store.locks.EXCLUSIVE_WAIT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN")
        other.execute("SELECT * FROM runs").fetchone()
        with raises(StorageProblem, "store_in_use"):
            open_database(path)
        other.execute("ROLLBACK")
    assert rows_of(path, "PRAGMA user_version") == [(11,)]
    open_database(path).close()


def test_a_migration_does_not_execute_foreign_triggers(path: Path) -> None:
    change(path, "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM results; END")
    with raises(StorageProblem, "database_damaged"):
        open_database(path)
    with raises(StorageProblem, "database_older_damaged"):  # the version that made it repairs it
        repair(path)
    assert damage_mark_path(path).exists()


def test_an_invalid_row_of_an_old_store_is_found_and_repaired(tmp_path: Path) -> None:
    path = old_store(tmp_path, "one_pack")
    change(path, "UPDATE results SET details = '[]' WHERE id = 3")
    with raises(StorageProblem, "database_damaged"), HistoryQuery(path) as query:
        list(query.results(1))
    assert repair(path) is not None
    with HistoryQuery(path) as query:
        assert len(list(query.results(1))) == 7


def test_a_restored_backup_of_an_earlier_version_is_migrated(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        save_run(store, screened(), is_over=True)
    restore(place, path.parent)
    assert rows_of(place, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows_of(path, "PRAGMA user_version") == [(11,)]  # the backup itself is unchanged
    assert not list(place.parent.glob("*version*"))
    with ResultQuery(place) as query:
        assert len(query.runs()) > 1
    (saved, *_) = backup(place, tmp_path / "again", includes_pictures=True, progress=lambda _share: None)
    assert rows_of(saved, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


# ---- later versions, and changes that need no migration


@pytest.mark.parametrize(
    ("number", "said"),
    [(4_000, "made by Fieldray 0.4.0 or a later version"), (0, "made by a later version")],
)
def test_a_newer_store_is_unchanged_and_its_program_version_is_named(tmp_path: Path, number: int, said: str) -> None:
    path = tmp_path / "results.sqlite"
    open_database(path).close()
    assert rows_of(path, "PRAGMA application_id") == [(int(PROGRAM.replace(".", "00")),)]
    change(path, f"PRAGMA application_id = {number}; PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StorageProblem, match=said) as problem:
        open_database(path)
    assert f"Fieldray {PROGRAM} cannot read this database" in problem.value.reason.text
    assert path.read_bytes() == before
    with raises(UsageProblem, "store_not_ours"):
        restore(tmp_path / "home" / "results.sqlite", tmp_path)


def test_an_optional_field_of_another_version_needs_no_migration(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with ResultStore(path) as store:
        run_id = save_run(store, screened())
    change(path, "UPDATE runs SET spec = json_insert(spec, '$.of_the_future', 1)")
    change(path, "UPDATE run_packs SET spec = json_remove(spec, '$.lungs_pack', '$.operating_points')")
    change(path, "UPDATE images SET header = json_insert(header, '$.of_the_future', 'x')")
    change(path, "UPDATE answers SET details = json_insert(json_remove(details, '$.notes'), '$.of_the_future', 'x')")
    change(path, "UPDATE answers SET findings = '[]'")  # their operating point was stated with the pack
    with HistoryQuery(path) as query:
        assert query.run(run_id).spec.packs[0].lungs_pack == ""
        assert query.run(run_id).spec.paths == SPEC.paths
        (answer,) = query.results(run_id)
        assert answer.outcome.facts.notes == ()


def test_every_version_has_a_migration() -> None:
    assert sorted(migrations.MIGRATION_STEPS) == list(range(11, SCHEMA_VERSION))


def test_a_message_precedes_the_migration_of_a_store(tmp_path: Path, fieldray: Fieldray) -> None:
    said = "Updating the results database"
    old = old_store(tmp_path, "one_pack")
    heard = list[Event]()
    with Session(Settings(), heard.append, database=old):
        assert [type(event) for event in heard] == [StoreUpdating] and said in heard[0].reason.text
    shutil.copy(old, results_database_path())
    first, second = fieldray("history", "list"), fieldray("history", "list")
    assert first.code == second.code == 0
    assert said in first.err and said not in second.err
