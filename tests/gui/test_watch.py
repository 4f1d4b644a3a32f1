"""A watched folder in the window, from start to stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from desk import Desk, press
from fake_rooms import save, screened
from PySide6.QtWidgets import QFileDialog, QLineEdit

from fieldray.domain.run import Progress, RunChanged
from fieldray.reasons import reason
from fieldray.store.results import ResultStore


def watch(desk: Desk, folder: Path) -> None:
    """Start watching a folder by the window's command."""
    desk.window.actions_by_name["watch"].trigger()
    dialog = desk.dialog(QFileDialog)
    dialog.findChild(QLineEdit).setText(str(folder))
    dialog.accept()
    desk.until(lambda: desk.bench.screening.state == "running")


def stop(desk: Desk) -> None:
    """Press Stop once the run can be stopped; the batch then ends as a watched one does."""
    note = reason("watch_stopped", results=1, waiting=2)
    batch = desk.rooms.session.batches[-1]
    batch.publish = lambda event: desk.rooms.publish(RunChanged(run_id=batch.run_id, state="cancelled", notes=(note,)))
    desk.until(lambda: desk.window.toolbar.stop_button.click() or not desk.bench.screening.can_stop)


def test_an_empty_folder_is_watched_until_stop_is_pressed(desk: Desk, tmp_path: Path) -> None:
    desk.rooms.session.outcomes = []
    watch(desk, tmp_path)
    assert desk.rooms.session.watched == [True]
    desk.until_shown(f"Watching {tmp_path} since ")
    desk.rooms.publish(Progress(done=3, total=5, total_is_final=False, images_per_s=0.1, remaining_s=20.0))
    desk.until(lambda: desk.window.toolbar.progress_text.text() == "Watching: 3 images done, 2 waiting")
    stop(desk)
    desk.until_shown("Watching the folder has stopped. New results: 1. Files that are not screened yet: 2.")
    assert f"Watching {tmp_path}" not in desk.notices


def test_a_vanished_folder_is_reported_until_it_is_back(desk: Desk, tmp_path: Path) -> None:
    desk.rooms.session.outcomes = []
    watch(desk, tmp_path)
    for code, words in (("watch_waits", "cannot be read now"), ("watch_goes_on", "can be read again")):
        desk.rooms.publish(RunChanged(run_id=1, state="running", notes=(reason(code, path=str(tmp_path)),)))
        desk.until_shown(f"{tmp_path} {words}", f"Watching {tmp_path} since ")
    assert "cannot be read now" not in desk.notices
    stop(desk)
    desk.until_shown("Watching the folder has stopped.")
    assert "can be read again" not in desk.notices


def test_a_failed_watch_is_not_shown_as_running(desk: Desk, tmp_path: Path) -> None:
    desk.rooms.session.outcomes = []
    watch(desk, tmp_path)
    desk.until_shown(f"Watching {tmp_path} since ")
    desk.rooms.publish(RunChanged(run_id=1, state="failed", reason=reason("disk_full", path=tmp_path)))
    desk.until_shown("The run of ")
    assert "Watching" not in desk.notices


@pytest.mark.parametrize("is_watch_first", [False, True])
def test_of_the_folders_chosen_meanwhile_only_the_one_to_watch_is_watched(
    desk: Desk, tmp_path: Path, is_watch_first: bool
) -> None:
    """A watch never ends by itself, so a folder to be screened once comes before a watched one."""
    folders = [tmp_path / name for name in ("first", "watched", "once")]
    for folder in folders:
        folder.mkdir()
        (folder / "image.png").touch()
    watch(desk, folders[0])
    for path in folders[1:] if is_watch_first else folders[:0:-1]:
        desk.bench.screening.screen_paths([path], watches=path.name == "watched")
    desk.until_shown("2 files or folders will be screened after this run")
    stop(desk)
    desk.until(lambda: len(desk.rooms.session.started_with) == 2)
    desk.until_shown("1 file or folder will be screened after this run")
    desk.rooms.publish(RunChanged(run_id=desk.rooms.session.batches[-1].run_id, state="finished"))
    desk.until(lambda: len(desk.rooms.session.started_with) == 3)
    assert [paths[0].name for paths, *_ in desk.rooms.session.started_with] == ["first", "once", "watched"]
    assert desk.rooms.session.watched == [True, False, True]


def test_a_folder_waiting_behind_a_stopped_run_is_offered_and_then_watched(desk: Desk, tmp_path: Path) -> None:
    desk.screen()
    desk.bench.screening.screen_paths([tmp_path], watches=True)
    stop(desk)
    desk.until_shown(f"Chosen, but not screened: {tmp_path}")
    assert "after this run" not in desk.notices and len(desk.rooms.session.started_with) == 1
    press(desk.window.banners, "Screen now")
    desk.until(lambda: desk.rooms.session.watched == [False, True])
    desk.until(lambda: "not screened" not in desk.notices)


def test_a_waiting_folder_starts_when_the_one_before_is_empty(desk: Desk, tmp_path: Path) -> None:
    watch(desk, tmp_path)
    (tmp_path / "empty").mkdir()
    desk.bench.screening.screen_paths([tmp_path / "empty"])
    desk.bench.screening.screen_paths([tmp_path], watches=True)
    stop(desk)
    desk.until(lambda: desk.rooms.session.watched == [True, True])
    assert "after this run" not in desk.notices


def test_start_after_a_watch_screens_the_folder_to_its_end(desk: Desk, tmp_path: Path) -> None:
    watch(desk, tmp_path)
    stop(desk)
    desk.until(lambda: desk.bench.screening.can_start)
    (tmp_path / "image.png").touch()
    desk.window.toolbar.start_button.click()
    desk.until(lambda: desk.rooms.session.watched == [True, False])
    assert "Watching" not in desk.notices


def test_new_images_do_not_move_the_open_image(desk: Desk, tmp_path: Path) -> None:
    """An image to be read first comes to the top of the list, and the open image stays open."""
    desk.rooms.session.outcomes = [screened(1, 0.6), screened(2, 0.5)]
    watch(desk, tmp_path)
    desk.until_listed(2)
    desk.open_row(2)
    with ResultStore(desk.rooms.database) as store:
        save(store, 1, [screened(3, 0.99)], desk.rooms.publish)
    desk.until_listed(3)
    assert desk.listed == [3, 1, 2]
    assert desk.bench.image.row is not None and desk.bench.image.row.row_id == 2
    assert desk.bench.rows.row_id_at(desk.window.work_list.table.currentIndex()) == 2
