"""Folders that change and drives that are pulled out during a search.

Every file that exists at the end was listed under its own name, and each loss is one row.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from fieldray.domain.image import ImageRef
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom
from fieldray.reasons import Reason
from phantoms import write_dicom, write_index

Row = tuple[str, str | None]
LATER = "study-0/3.dcm"  # a file of the drive: some images were found before it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three folders with an image each, and one below them."""
    top = tmp_path / "images"
    for name in ("a", "b", "c"):
        write(top / name / "1.png", name)
    (top / "b" / "below").mkdir()
    return top


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Three folders of ten images each, and one image next to them."""
    image = write_dicom(tmp_path / "image.dcm", chest_phantom(64, 64, 7, abnormal=False))
    for folder in range(3):
        (tmp_path / "drive" / f"study-{folder}").mkdir(parents=True)
        for name in range(10):
            shutil.copy(image, tmp_path / "drive" / f"study-{folder}" / f"{name}.dcm")
    image.rename(tmp_path / "drive" / "z.dcm")
    return tmp_path / "drive"


def write(path: Path, text: str = "") -> Path:
    """Write a file that is no image; the search lists it all the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"no image {text}")
    return path


def found(refs: Iterable[ImageRef], top: Path) -> list[Row]:
    """The rows of a search; files made by `write` have no problem here, although they are `not_an_image`."""
    rows = [(os.path.relpath(ref.path, top), ref.problem.code if ref.problem else None) for ref in refs]
    return [(name, None if code == "not_an_image" and not name.endswith(".dcm") else code) for name, code in rows]


def rows_while(
    top: Path, act: Callable[[], object], *, after: str = "a/1.png", paths: Sequence[Path] = ()
) -> list[Row]:
    """All rows of a search of `top`, or of these paths; `act` is called after the file `after` was listed."""
    refs = []
    for ref in discover(paths or [top]):
        refs.append(ref)
        if ref.path == top / after:
            act()
    assert any(ref.path == top / after for ref in refs)  # otherwise `act` was never called
    return found(refs, top)


# ---- moved, added and replaced files


def test_a_file_moved_into_an_already_listed_folder_is_found(folder: Path) -> None:
    rows = rows_while(folder, lambda: (folder / "c" / "1.png").rename(folder / "a" / "moved.png"))
    assert rows == [("a/1.png", None), ("b/1.png", None), ("a/moved.png", None)]


def test_added_files_are_found_with_their_new_folders(folder: Path) -> None:
    def act() -> None:
        write(folder / "0" / "new" / "2.png")
        write(folder / "0.png")
        write(folder / ".hidden")

    rows = rows_while(folder, act, after="c/1.png")
    assert sorted(rows[3:]) == [("0.png", None), ("0/new/2.png", None)]


def test_a_file_added_during_the_second_listing_is_found(folder: Path) -> None:
    search = discover([folder])
    assert len([next(search) for _ in range(3)]) == 3
    write(folder / "0.png")
    assert next(search).path.name == "0.png"
    write(folder / "a" / "2.png")
    assert found(search, folder) == [("a/2.png", None)]


def test_a_search_ends_although_files_are_added_all_the_time(tmp_path: Path) -> None:
    write(tmp_path / "0.png")
    for number, ref in enumerate(discover([tmp_path]), start=1):
        assert number < 100
        write(ref.path.with_name(f"{number}.png"))


def test_a_folder_that_was_renamed_is_found_under_its_new_name(folder: Path) -> None:
    rows = rows_while(folder, lambda: (folder / "b").rename(folder / "z"))
    assert rows == [("a/1.png", None), ("b", "folder_not_read"), ("c/1.png", None), ("z/1.png", None)]


def test_a_folder_that_replaces_a_file_is_searched(folder: Path) -> None:
    for name, after in (("c/1.png", "a/1.png"), ("a/1.png", "c/1.png/inner.png")):
        place = folder / name

        def act(place: Path = place) -> None:
            place.unlink()
            place.mkdir()
            write(place / "inner.png")

        rows = rows_while(folder, act, after=after)
        assert (f"{name}/inner.png", None) in rows


def test_a_file_that_replaces_a_folder_is_listed_once(folder: Path) -> None:
    def act() -> None:
        (folder / "c" / "1.png").unlink()
        (folder / "c").rmdir()
        write(folder / "c")

    assert rows_while(folder, act) == [("a/1.png", None), ("b/1.png", None), ("c", None)]


def test_a_link_is_listed_only_if_its_file_is_outside_the_folder(folder: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere.png")
    (folder / "0-first.png").symlink_to(folder / "c" / "1.png")
    (folder / "0-other.png").symlink_to(elsewhere)
    rows = found(discover([folder]), folder)
    assert rows == [("a/1.png", None), ("b/1.png", None), ("c/1.png", None), ("0-other.png", None)]


def test_a_link_to_an_outside_folder_is_reported_once(folder: Path, tmp_path: Path) -> None:
    """As when a folder was moved to a larger disk and a link was left in its place."""
    (folder / "c").rename(tmp_path / "larger disk")
    for name in ("c", "d"):
        (folder / name).symlink_to(tmp_path / "larger disk")
    (folder / "b" / "below" / "again").symlink_to(folder / "a")
    (folder / "circle").symlink_to(folder)
    assert found(discover([folder]), folder) == [("a/1.png", None), ("b/1.png", None), ("c", "linked_folder")]
    both = found(discover([folder, tmp_path / "larger disk"]), folder)
    assert sorted(both)[:3] == [("../larger disk/1.png", None), ("a/1.png", None), ("b/1.png", None)]
    assert len(both) == 3


def test_a_zip_file_replaced_during_its_listing_is_reported(folder: Path, tmp_path: Path) -> None:
    zipped(folder / "b" / "2.zip", range(100))
    replacement = zipped(tmp_path / "other.zip", range(-20, 100))
    search = discover([folder])
    rows = found(iter([next(search) for _ in range(5)]), folder)
    replacement.replace(folder / "b" / "2.zip")
    rows += found(search, folder)
    assert rows[-1] == ("b/2.zip", "changed")
    assert len(rows) >= 3 + 100 + 1


def zipped(path: Path, numbers: range) -> Path:
    """A ZIP file with a member for each number."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in numbers:
            archive.writestr(f"{number:+04}", f"no image {number}")
    return path


def test_a_replaced_index_is_reported_and_a_deleted_one_is_not(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (folder / name / "1.png").rename(folder / name / "ONE")
    index = write_index(folder / "DICOMDIR", [("A", "ONE")])
    other = write_index(tmp_path / "DICOMDIR", [("A", "ONE"), ("B", "ONE")])
    changed = rows_while(folder, lambda: other.replace(index), after="a/ONE", paths=[index])
    assert changed[-1] == ("DICOMDIR", "changed")
    gone = rows_while(folder, index.unlink, after="a/ONE", paths=[index])
    assert gone == [("a/ONE", None), ("b/ONE", None)]


def test_a_path_whose_images_are_added_late_is_not_reported_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "b" / "1.png")
    notes: list[Reason] = []
    search = discover([tmp_path / "a", tmp_path / "b"], notify=notes.append)
    assert next(search).path.name == "1.png"
    write(tmp_path / "a" / "2.png")
    assert [ref.path.name for ref in search] == ["2.png"]
    assert notes == []


# ---- lost files, folders and drives


def test_a_pulled_out_drive_is_one_row(drive: Path) -> None:
    for ref in discover([drive]):
        if ref.path == drive / LATER:
            drive.rename(drive.with_name("elsewhere"))
        last = ref
    assert found([last], drive) == [(".", "folder_lost")]
    assert "may not have been screened" in last.problem.text
    assert "reconnect the drive" in last.problem.text


@pytest.mark.parametrize(
    ("lost", "line", "images"),
    [
        ("study-0", ("study-0", "folder_lost"), 4 + 10 + 10 + 1),  # during its search
        ("study-2", ("study-2", "folder_not_read"), 10 + 10 + 1),  # before it is listed
        ("study-0/7.dcm", ("study-0/7.dcm", "missing"), 9 + 10 + 10 + 1),
        (".", (".", "folder_lost"), 4),
    ],
)
def test_a_lost_file_or_folder_is_one_row_and_costs_no_other_image(
    lost: str, line: Row, images: int, drive: Path
) -> None:
    rows = rows_while(drive, lambda: (drive / lost).rename(drive.with_name("elsewhere")), after=LATER)
    assert [row for row in rows if row[1]] == [line]
    assert len(rows) == images + 1


@pytest.mark.skipif(sys.platform == "win32", reason="a mount point is a letter there, and goes with its drive")
def test_an_empty_mount_point_counts_as_a_lost_drive(drive: Path, tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system to stand for the mount point's own")

    def unmount() -> None:
        drive.rename(tmp_path / "elsewhere")
        drive.symlink_to(other)

    with tempfile.TemporaryDirectory(dir=memory) as other:
        assert rows_while(drive, unmount, after=LATER)[4:] == [(".", "folder_lost")]


def test_a_path_that_vanishes_before_its_search_is_one_row(drive: Path) -> None:
    second, third = drive / "study-1", drive / "study-2" / "1.dcm"
    rows = rows_while(
        drive,
        lambda: (shutil.rmtree(second), third.unlink()),
        after="study-0/9.dcm",
        paths=[drive / "study-0", second, third],
    )
    assert rows[10:] == [("study-1", "folder_not_read"), ("study-2/1.dcm", "missing")]


@pytest.mark.parametrize(("number", "codes"), [(errno.ENODEV, ["folder_lost"] * 4), (errno.EIO, ["drive_error"] * 31)])
def test_a_removed_device_is_told_apart_from_a_read_error(number: int, codes: list[str], drive: Path) -> None:
    def opener(path: Path) -> BinaryIO:
        raise OSError(number, os.strerror(number))

    # the system still knows the names: every folder is listed, and its first file gives the error
    assert [ref.problem.code for ref in discover([drive], opener=opener) if ref.problem] == codes


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything may be read")
def test_a_folder_without_read_permission_is_one_row(drive: Path) -> None:
    (drive / "study-1").chmod(0)
    try:
        assert [row for row in found(discover([drive]), drive) if row[1]] == [("study-1", "folder_not_read")]
    finally:
        (drive / "study-1").chmod(0o700)


def test_an_index_whose_drive_is_pulled_out_is_one_row(drive: Path) -> None:
    references = [("study-0", f"{number}.dcm") for number in range(10)] + [("GONE", f"{n}") for n in range(50)]
    index, away = write_index(drive / "DICOMDIR", references), drive.with_name("x")
    for paths in ([index], [drive]):
        assert rows_while(drive, lambda: drive.rename(away), after=LATER, paths=paths)[4:] == [(".", "folder_lost")]
        away.rename(drive)
