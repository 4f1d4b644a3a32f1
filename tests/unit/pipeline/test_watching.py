from __future__ import annotations

import itertools
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fieldray.domain.finding import FailedOutcome, ImageFacts, Outcome, RefusedOutcome
from fieldray.domain.image import ImageRef
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import discover
from fieldray.pipeline.watching import FolderWatch
from fieldray.reasons import reason
from outcomes import screened
from program import write_images
from raised import raises

LOOKS_BEFORE_TRIED = 3  # with two seconds between looks, a file must stay unchanged for three looks
LOOKS_BEFORE_BELIEVED = 30  # and for a minute before it counts as cut


class Desk:
    """A watch whose clock the test advances, and the images that it gave."""

    def __init__(self, *folders: Path, known: Sequence[str] = ()) -> None:
        self.now_s = 0.0
        self.watch = FolderWatch(folders, clock=lambda: self.now_s)
        self._is_over = False
        self.rounds = self.watch.new_images(
            discover, has_results_of_file=lambda path, _stream: path.name in known, wait=self._rest
        )

    def _rest(self, pause_s: float) -> bool:
        self.now_s += pause_s
        return self._is_over

    def look(self, times: int = 1) -> list[ImageRef]:
        """The images that the next `times` looks give."""
        given: list[ImageRef] = []
        for _ in range(times):
            given += itertools.takewhile(bool, self.rounds)  # type: ignore[arg-type]
        return given

    def names(self, times: int = 1) -> list[str]:
        return [ref.path.name for ref in self.look(times)]

    def keep(self, refs: Sequence[ImageRef]) -> None:
        """Mark these images as screened."""
        assert all(self.watch.is_final(screened(ref), is_new=True) for ref in refs)

    def stop(self) -> None:
        self._is_over = True
        assert list(self.rounds)[-1:] in ([], [None])


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def desk(inbox: Path) -> Iterator[Desk]:
    made = Desk(inbox)
    yield made
    made.stop()


def cut(ref: ImageRef) -> Outcome:
    return FailedOutcome(ref=ref, stage="decode", reason=reason("truncated"), facts=ImageFacts())


def test_an_unchanged_file_is_given_once(desk: Desk, inbox: Path) -> None:
    write_images(inbox, 2)
    assert desk.names(LOOKS_BEFORE_TRIED - 1) == []
    assert desk.watch.waiting_file_count == 2
    found = desk.look()
    assert [ref.path.name for ref in found] == ["image-000.png", "image-001.png"]
    desk.keep(found)
    assert desk.watch.closing_message() == reason("watch_stopped", results=2, waiting=0)
    assert desk.names(100) == []


def test_a_growing_file_is_not_given(desk: Desk, inbox: Path) -> None:
    whole = write_images(inbox.parent / "whole", 1)[0].read_bytes()
    growing = inbox / "growing.png"
    for number in range(1, 11):
        growing.write_bytes(whole[: number * len(whole) // 10])
        assert desk.names(LOOKS_BEFORE_TRIED - 1) == []
    assert desk.names() == ["growing.png"]


def test_a_truncated_file_counts_as_failed_only_after_a_minute(desk: Desk, inbox: Path) -> None:
    """A writer may pause for longer than a file has to stay unchanged."""
    half = write_images(inbox, 1)[0]
    whole = half.read_bytes()
    half.write_bytes(whole[:500])
    (ref,) = desk.look(LOOKS_BEFORE_TRIED)
    assert not desk.watch.is_final(cut(ref), is_new=True)
    assert desk.watch.closing_message() == reason("watch_stopped", results=0, waiting=1)
    assert desk.names(LOOKS_BEFORE_BELIEVED - 1) == []
    (again,) = desk.look()
    assert desk.watch.is_final(cut(again), is_new=True)
    assert desk.names(100) == []
    half.write_bytes(whole)
    (at_last,) = desk.look(LOOKS_BEFORE_TRIED)
    desk.keep([at_last])
    assert desk.watch.closing_message() == reason("watch_stopped", results=1, waiting=0)


def test_a_file_that_grew_after_a_failed_try_is_tried_again_soon(desk: Desk, inbox: Path) -> None:
    half = write_images(inbox, 1)[0]
    whole = half.read_bytes()
    half.write_bytes(whole[:500])
    (ref,) = desk.look(LOOKS_BEFORE_TRIED)
    half.write_bytes(whole)
    assert desk.names(10) == [], "two of one file are never under way"
    assert not desk.watch.is_final(cut(ref), is_new=True)
    assert desk.names() == ["image-000.png"]


def test_the_failure_of_a_deleted_file_is_not_final(desk: Desk, inbox: Path) -> None:
    path = write_images(inbox, 1)[0]
    data = path.read_bytes()
    (ref,) = desk.look(LOOKS_BEFORE_TRIED)
    assert not desk.watch.is_final(cut(ref), is_new=True)
    (ref,) = desk.look(LOOKS_BEFORE_BELIEVED)
    path.unlink()
    assert not desk.watch.is_final(cut(ref), is_new=True)
    desk.look()
    assert desk.watch.waiting_file_count == 0
    path.write_bytes(data)
    assert desk.names(LOOKS_BEFORE_TRIED) == ["image-000.png"]


def test_refusals_of_images_are_final_at_once(desk: Desk, inbox: Path) -> None:
    write_images(inbox, 1)
    (ref,) = desk.look(LOOKS_BEFORE_TRIED)
    assert desk.watch.is_final(RefusedOutcome(ref=ref, reason=reason("blank"), facts=ImageFacts()), is_new=True)
    (inbox / "readme.txt").write_text("no image, or the first bytes of one", encoding="utf-8")
    (ref,) = desk.look(LOOKS_BEFORE_TRIED)
    assert ref.problem and ref.problem.code == "not_an_image"
    assert not desk.watch.is_final(RefusedOutcome(ref=ref, reason=ref.problem, facts=ImageFacts()), is_new=True)


def test_a_replaced_file_is_given_again(desk: Desk, inbox: Path) -> None:
    first, second = write_images(inbox, 1)[0], write_images(inbox.parent / "other", 2)[1]
    desk.keep(desk.look(LOOKS_BEFORE_TRIED))
    os.utime(second, ns=(10**18, 10**18))
    second.replace(first)
    assert desk.names(LOOKS_BEFORE_TRIED) == ["image-000.png"]


def test_a_file_is_given_after_its_temporary_name_is_changed(desk: Desk, inbox: Path) -> None:
    hidden = write_images(inbox.parent / "other", 1)[0].rename(inbox / ".image.png.part")
    assert desk.names(10) == []
    hidden.rename(inbox / "image.png")
    assert desk.names(LOOKS_BEFORE_TRIED) == ["image.png"]


def test_a_vanished_folder_is_waited_for_and_no_file_is_given_twice(desk: Desk, inbox: Path) -> None:
    write_images(inbox / "study", 2)
    desk.keep(desk.look(LOOKS_BEFORE_TRIED))
    inbox.rename(inbox.parent / "pulled")
    assert desk.names(50) == []
    assert (
        desk.watch.folder_access_message() == reason("watch_waits", path=str(inbox))
        and desk.watch.folder_access_message() is None
    )
    write_images(inbox.parent / "pulled", 1)
    (inbox.parent / "pulled").rename(inbox)
    assert desk.names(LOOKS_BEFORE_TRIED) == ["image-000.png"]
    assert desk.watch.folder_access_message() == reason("watch_goes_on", path=str(inbox))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="another file system is needed")
def test_an_empty_mount_point_counts_as_a_removed_drive(tmp_path: Path) -> None:
    drive, other = tmp_path / "drive", Path("/dev/shm") / f"fieldray-{os.getpid()}"
    write_images(drive, 1)
    other.mkdir()
    try:
        if other.stat().st_dev == drive.stat().st_dev:
            pytest.skip("another file system is needed")
        place = tmp_path / "place"
        place.symlink_to(drive)
        desk = Desk(place)
        desk.keep(desk.look(LOOKS_BEFORE_TRIED))
        place.unlink()
        place.symlink_to(other)
        assert desk.names(5) == [] and desk.watch.folder_access_message() == reason("watch_waits", path=str(place))
        place.unlink()
        place.symlink_to(drive)
        assert desk.names(5) == [] and desk.watch.folder_access_message() == reason("watch_goes_on", path=str(place))
        desk.stop()
    finally:
        shutil.rmtree(other)


def test_new_files_come_before_a_long_backlog(desk: Desk, inbox: Path) -> None:
    write_images(inbox, 8)
    desk.now_s = 1.0
    desk.look(LOOKS_BEFORE_TRIED - 1)
    given: list[str] = []
    while len(given) < 9:
        for ref in desk.rounds:
            if ref is None:
                break
            given.append(ref.path.name)
            desk.keep([ref])
            desk.now_s += 8  # the time for each image: after three of them there is a look
            if len(given) == 1:
                write_images(inbox.parent / "other", 9)[8].rename(inbox / "today.png")
    assert given[:6] + given[7:] == [f"image-{number:03}.png" for number in range(8)]
    assert given[6] == "today.png", "seen in the second look, as it was in the third"


def test_each_image_of_a_zip_file_has_its_outcome_before_the_file_is_done(desk: Desk, inbox: Path) -> None:
    with zipfile.ZipFile(inbox / "images.zip", "w") as packed:
        for path in write_images(inbox.parent / "other", 2):
            packed.write(path, path.name)
    first, second = desk.look(LOOKS_BEFORE_TRIED)
    assert (first.zip_member, second.zip_member) == ("image-000.png", "image-001.png")
    desk.keep([first])
    assert desk.watch.waiting_file_count == 1
    desk.keep([second])
    assert desk.watch.waiting_file_count == 0


def test_files_known_to_the_store_are_not_given(inbox: Path) -> None:
    write_images(inbox, 2)
    desk = Desk(inbox, known=["image-000.png"])
    found = desk.look(LOOKS_BEFORE_TRIED)
    assert [ref.path.name for ref in found] == ["image-001.png"]
    assert desk.watch.waiting_file_count == 1
    (inbox / "image-000.png").rename(inbox.parent / "away.png")
    desk.look()
    (inbox.parent / "away.png").rename(inbox / "image-000.png")  # its result now is of this run: given again
    assert desk.names(LOOKS_BEFORE_TRIED) == ["image-000.png"]
    desk.stop()


def test_links_to_files_are_followed_and_links_to_folders_are_not(desk: Desk, inbox: Path) -> None:
    outside = write_images(inbox.parent / "outside", 1)[0]
    (inbox / "file.png").symlink_to(outside)
    (inbox / "folder").symlink_to(outside.parent)
    (inbox / "nothing").symlink_to(inbox.parent / "gone")
    for name, target in (("twin.png", outside), ("latest.png", inbox / "a" / "image-000.png"), ("all", inbox / "a")):
        (inbox / name).symlink_to(target)
    write_images(inbox / "a", 1)
    os.mkfifo(inbox / "pipe")
    found = {ref.path.name: ref.problem and ref.problem.code for ref in desk.look(LOOKS_BEFORE_TRIED)}
    assert found == {"file.png": None, "folder": "linked_folder", "image-000.png": None}, "nothing twice"


@pytest.mark.parametrize(("listing_s", "pause_s"), [(0.0, 2.0), (1.0, 20.0), (100.0, 60.0)])
def test_a_folder_that_takes_long_to_list_is_listed_less_often(inbox: Path, listing_s: float, pause_s: float) -> None:
    now_s, pauses = 0.0, list[float]()

    def clock() -> float:  # called before, during and after a look
        nonlocal now_s
        now_s += listing_s
        return now_s

    def rest(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 2

    assert list(
        FolderWatch([inbox], clock=clock).new_images(discover, has_results_of_file=lambda *_: False, wait=rest)
    ) == [
        None,
        None,
    ]
    assert pauses[1] == pause_s


def test_only_a_folder_is_watched(inbox: Path) -> None:
    with raises(UsageProblem, "watch_no_folder"):
        FolderWatch(write_images(inbox, 1))
