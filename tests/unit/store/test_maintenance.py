"""Maintenance of a store: check, compact, backup during a run, restore, and deletion of pictures."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import replace_durably
from fieldray.store.database import damage_mark_path, pictures_path
from fieldray.store.deletion import compact, delete_all_pictures, delete_runs
from fieldray.store.locks import SessionLock, has_viewing_session
from fieldray.store.maintenance import backup, check_database, delete_damaged_pictures, repair, restore
from fieldray.store.pictures import database_size_bytes
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.work_list import HistoryQuery
from outcomes import image_ref, screened
from raised import raises
from stores import AGREE, SPEC, change, image

COUNT = 16


def ignore_progress(_: float) -> None:
    """A progress handler that does nothing."""


def add(store: ResultStore, contents: str = "0123456789abcdef") -> int:
    """Save a finished run with pictures, and a verdict on its first image; returns the run's id."""
    run_id = store.open_run(SPEC, as_new_run=True)
    for content in contents:
        outcome = image(f"{content}.dcm", content, preview=b"JPEG of a patient " * 300)
        row_id = store.save_image(run_id, outcome, spec=SPEC).row_id
        if content == contents[0]:
            store.set_verdict(row_id, AGREE, judged=outcome)
    store.finish_run(run_id)
    return run_id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one run."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        add(store)
    return place


def stored_counts(path: Path) -> tuple[int, int, int]:
    """The number of runs, and of results with a thumbnail and verdicts in the newest run."""
    with HistoryQuery(path) as query:
        runs = query.runs()
        results = list(query.results(runs[0].run_id))
        pictured = sum(result.outcome.facts.thumbnail is not None for result in results)
        return len(runs), pictured, sum(result.verdict is not None for result in results)


# ---- check


def test_a_check_counts_results_verdicts_and_pictures(path: Path) -> None:
    shares: list[float] = []
    found = check_database(path, progress=shares.append)
    assert (found["answers"], found["verdicts"], found["pictures"]) == (COUNT, 1, COUNT)
    assert database_size_bytes(path) == sum(file.stat().st_size for file in path.parent.iterdir())
    assert shares and all(0 <= share <= 1 for share in shares)
    delete_all_pictures(path)
    assert check_database(path, progress=ignore_progress)["pictures"] == 0


def test_a_check_finds_an_index_that_does_not_match_its_table(path: Path) -> None:
    """Each page is valid, but they do not belong together, as after a backup of one file among several."""
    change(
        path,
        "PRAGMA writable_schema = ON;"
        " UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'run_packs_by_work')"
        " WHERE name = 'images_by_content'",
    )
    with raises(StorageProblem, "database_damaged"):
        check_database(path, progress=ignore_progress)
    repair(path)
    assert check_database(path, progress=ignore_progress)["answers"] == COUNT


def test_a_check_reports_damaged_pictures(path: Path) -> None:
    pictures_path(path).write_bytes(b"nonsense" * 2000)
    with raises(StorageProblem, "pictures_damaged"):
        check_database(path, progress=ignore_progress)
    assert delete_damaged_pictures(path) is not None
    assert check_database(path, progress=ignore_progress)["pictures"] == 0


# ---- compact


def test_compacting_frees_unused_space(path: Path) -> None:
    with ResultStore(path) as store:
        second = add(store, "00112233")
    before = sum(file.stat().st_size for file in path.parent.iterdir())
    change(
        path,
        f"DELETE FROM verdicts; DELETE FROM answers WHERE run_id = {second} OR id > 4;"
        f" DELETE FROM images WHERE run_id = {second} OR id > 4",
    )
    freed_bytes, is_whole = compact(path)
    assert is_whole
    assert freed_bytes == before - sum(file.stat().st_size for file in path.parent.iterdir()) > 50_000
    assert check_database(path, progress=ignore_progress)["pictures"] == 4


def test_compacting_during_a_read_reports_that_not_all_space_was_freed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldray.store.database._BUSY_TIMEOUT_S", 0.05)
    with ResultQuery(path) as query, query.snapshot():
        query.runs()
        assert not compact(path)[1]
    assert compact(path)[1]


# ---- pictures


def test_deleting_pictures_leaves_no_bytes_of_them_and_all_results(path: Path) -> None:
    with ResultStore(path) as window:
        window.result(1)
        deleted, is_overwritten, freed_bytes = delete_all_pictures(path)
        assert (deleted, is_overwritten) == (COUNT, True)
        assert freed_bytes > COUNT * 5000
        assert not any(b"of a patient" in file.read_bytes() for file in path.parent.iterdir())
        assert stored_counts(path) == (1, 0, 1)
        add(window, "01")  # images that are screened again get pictures again
    assert stored_counts(path) == (2, 2, 1)


# ---- backup and restore


def test_a_backup_is_consistent_although_the_run_continues(path: Path, tmp_path: Path) -> None:
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC, as_new_run=True)

        def save_another(_: float) -> None:
            store.save_image(run_id, screened(image_ref(f"{len(shares)}.dcm")), spec=SPEC)
            shares.append(_)

        shares: list[float] = []
        written = backup(path, tmp_path / "out", includes_pictures=True, progress=save_another)
        assert written == (tmp_path / "out" / "results.sqlite", tmp_path / "out" / "results.pictures.sqlite")
        assert store.category_counts(run_id) == {"abnormal": len(shares)}
    assert shares[-1] == 1.0
    with HistoryQuery(tmp_path / "out" / "results.sqlite") as copy:
        assert [run.run_id for run in copy.runs()] == [run_id, 1]
        assert (len(list(copy.results(1))), copy.category_counts(run_id)) == (COUNT, {})
    assert check_database(tmp_path / "out" / "results.sqlite", progress=ignore_progress)["pictures"] == COUNT


def test_a_backup_overwrites_no_file(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "out" / "results.pictures.sqlite"
    place.parent.mkdir()
    place.write_bytes(b"mine")
    with pytest.raises(UsageProblem):
        backup(path, tmp_path / "out", includes_pictures=True, progress=ignore_progress)
    assert [file.name for file in place.parent.iterdir()] == [place.name]
    assert backup(path, tmp_path / "out", includes_pictures=False, progress=ignore_progress) == (
        place.with_name("results.sqlite"),
    )
    assert place.read_bytes() == b"mine"
    with pytest.raises(UsageProblem):
        backup(tmp_path / "nowhere.sqlite", tmp_path / "out", includes_pictures=False, progress=ignore_progress)


@pytest.fixture
def copied(path: Path, tmp_path: Path) -> Path:
    """A folder with a backup of the store."""
    backup(path, tmp_path / "backup", includes_pictures=True, progress=ignore_progress)
    return tmp_path / "backup"


def test_a_restore_brings_back_results_and_keeps_the_replaced_store(path: Path, copied: Path) -> None:
    delete_runs(path, [1])
    with ResultStore(path) as store:
        add(store, "77")
    replaced = restore(path, copied)
    assert replaced == path.with_name("results.replaced-1.sqlite")
    assert stored_counts(path) == (1, COUNT, 1)
    with HistoryQuery(replaced) as query:
        assert query.category_counts(2) == {"abnormal": 1}
    assert not list(path.parent.glob("*.new*"))
    assert restore(path, copied) == path.with_name("results.replaced-2.sqlite")


def test_a_restore_works_on_a_computer_without_results(copied: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.sqlite"
    assert restore(path, copied) is None
    assert stored_counts(path) == (1, COUNT, 1)
    if sys.platform != "win32":
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        assert copied.stat().st_mode & 0o777 == 0o700


def test_a_manual_copy_of_open_files_can_be_restored(path: Path, tmp_path: Path) -> None:
    by_hand = tmp_path / "by hand"
    with ResultStore(path) as store:
        add(store, "9")
        shutil.copytree(path.parent, by_hand)
    assert by_hand.joinpath("results.sqlite-wal").stat().st_size > 0
    restore(tmp_path / "new" / "results.sqlite", by_hand)
    assert stored_counts(tmp_path / "new" / "results.sqlite") == (2, 1, 1)


def mark_as_damaged(path: Path) -> None:
    """Make the store contain an invalid verdict, and read it, so that the store is marked as damaged."""
    change(path, "UPDATE verdicts SET choice = 'perhaps'")
    with pytest.raises(StorageProblem):
        check_database(path, progress=ignore_progress)


@pytest.mark.parametrize(
    "harm",
    [
        mark_as_damaged,
        lambda path: path.write_bytes(b"no header" * 2000),
        lambda path: (mark_as_damaged(path), path.unlink()),
    ],
    ids=["marked", "not marked yet", "marked and gone"],
)
def test_a_restore_replaces_a_damaged_store(path: Path, copied: Path, harm: Callable[[Path], object]) -> None:
    harm(path)
    before = path.read_bytes() if path.exists() else None
    replaced = restore(path, copied)
    assert replaced == (path.with_name("results.damaged-1.sqlite") if before else None)
    assert replaced is None or replaced.read_bytes() == before
    assert not damage_mark_path(path).exists()
    assert (check_database(path, progress=ignore_progress)["answers"], repair(path)) == (COUNT, None)
    assert stored_counts(path) == (1, COUNT, 1)


def test_a_restore_replaces_damaged_pictures(path: Path, copied: Path) -> None:
    pictures_path(path).write_bytes(b"no pictures" * 2000)
    restore(path, copied)
    assert (stored_counts(path), check_database(path, progress=ignore_progress)["pictures"]) == ((1, COUNT, 1), COUNT)


def test_the_log_of_a_deleted_store_is_not_applied_to_the_backup(path: Path, copied: Path) -> None:
    with ResultStore(path) as store:
        add(store, "77")
        log = path.with_name("results.sqlite-wal").read_bytes()
        assert log
    path.unlink()
    path.with_name("results.sqlite-wal").write_bytes(log)  # as a killed program leaves it
    assert restore(path, copied) is None
    assert path.with_name("results.lost-1.sqlite-wal").read_bytes() == log
    assert stored_counts(path) == (1, COUNT, 1)
    assert check_database(path, progress=ignore_progress)["answers"] == COUNT


@pytest.mark.parametrize(
    "harm",
    [
        lambda place: place.write_bytes(b"these are no results" * 100),
        lambda place: change(place, "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM verdicts; END"),
        lambda place: change(place, "PRAGMA user_version = 99"),
        lambda place: change(place, "PRAGMA user_version = 0"),
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(place.read_bytes()[:-9000]),
        lambda place: (place.rename(place.with_name("elsewhere")), place.symlink_to(place.with_name("elsewhere"))),
        lambda place: place.with_name("results.pictures.sqlite").write_bytes(b"no pictures" * 100),
    ],
    ids=["no database", "orders", "newer", "of no version", "empty", "cut", "a link", "no pictures"],
)
def test_a_backup_not_written_by_the_program_is_refused(
    path: Path, copied: Path, harm: Callable[[Path], object]
) -> None:
    harm(copied / "results.sqlite")
    before = path.read_bytes()
    with raises(UsageProblem, "store_not_ours"):
        restore(path, copied)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"results.sqlite", "results.pictures.sqlite"}
    assert not damage_mark_path(path).exists()


def test_an_open_store_is_not_replaced(path: Path, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.store.locks.EXCLUSIVE_WAIT_S", 0.05)
    with ResultStore(path) as store:
        run_id = add(store, "8")
        with raises(StorageProblem, "store_in_use"):
            restore(path, copied)
        assert store.category_counts(run_id) == {"abnormal": 1}
    with pytest.raises(UsageProblem):
        restore(path, copied / "nowhere")


def test_a_store_shown_by_a_window_is_not_replaced(path: Path, copied: Path) -> None:
    """A window refers to results by rows, but opens the file only for reading. A killed window prevents nothing."""
    before, lock, other = stored_counts(path), SessionLock(path), SessionLock(path)
    lock.release()
    with raises(StorageProblem, "store_in_use"):
        restore(path, copied)
    assert stored_counts(path) == before
    other.release()
    for _ in range(2):
        path.with_name(f"{path.name}.session-1-1.lock").write_text("1")
        SessionLock(path).release()
        assert not has_viewing_session(path)
    path.with_name(f"{path.name}.session-1-1.lock").write_text("1")
    restore(path, copied)
    assert not [file.name for file in path.parent.iterdir() if "session" in file.name]


def test_a_store_opened_during_a_restore_is_the_restored_one(
    path: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise results go into the old file, and its log is read as that of the backup."""
    opened, saved = threading.Event(), threading.Event()

    def screen() -> None:
        with ResultStore(path) as store:
            opened.set()
            add(store, "77")
        saved.set()

    def replace_slowly(temporary: Path, place: Path) -> None:
        if place == path:
            run.start()
            opened.wait(1.0)
        replace_durably(temporary, place)

    run = threading.Thread(target=screen)
    monkeypatch.setattr("fieldray.store.maintenance.replace_durably", replace_slowly)
    restore(path, copied)
    run.join(20)
    assert saved.is_set()
    assert check_database(path, progress=ignore_progress)["answers"] == COUNT + 1
    assert stored_counts(path) == (2, 1, 1)


def test_two_restores_at_once_do_not_mix(
    path: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new" / "results.sqlite"

    def again(source: Path, target: Path) -> object:
        monkeypatch.setattr("fieldray.store.maintenance.shutil.copyfile", copyfile)
        found = copyfile(source, target)
        assert restore(new, copied) is None
        return found

    copyfile = shutil.copyfile
    monkeypatch.setattr("fieldray.store.maintenance.shutil.copyfile", again)
    assert restore(new, copied) == new.with_name("results.replaced-1.sqlite")
    assert check_database(new, progress=ignore_progress)["answers"] == COUNT
    assert {file.name for file in new.parent.iterdir()} == {
        "results.sqlite", "results.replaced-1.sqlite", "results.pictures.sqlite"
    }  # fmt: skip


@pytest.mark.parametrize("is_of_pictures", [False, True])
def test_a_backup_of_a_damaged_store_fails_and_marks_the_damage(
    path: Path, tmp_path: Path, is_of_pictures: bool
) -> None:
    """SQLite copies pages unchecked, so the backup would be damaged as well."""
    place = pictures_path(path) if is_of_pictures else path
    with ResultStore(path) as store:
        add(store, "fedcba")
    data = bytearray(place.read_bytes())
    data[-8192:] = b"\xa5" * 8192
    place.write_bytes(data)
    with pytest.raises(StorageProblem) as problem:
        backup(path, tmp_path / "out", includes_pictures=True, progress=ignore_progress)
    code = "pictures_damaged" if is_of_pictures else "database_damaged"
    assert (problem.value.reason.code, dict(problem.value.reason.parameters)["path"]) == (code, str(place))
    assert damage_mark_path(place).exists()
    written = {path.name} if is_of_pictures else set()
    assert {file.name for file in (tmp_path / "out").iterdir()} == written
