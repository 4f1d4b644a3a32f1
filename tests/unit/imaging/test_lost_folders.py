"""Drives that are pulled out and folders that are moved away while they are searched."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from PIL import Image

from fieldray.domain.image import ImageRef
from fieldray.imaging.discover import discover
from fieldray.imaging.source import NamesInAnyCase
from fieldray.imaging.synthetic import chest_phantom
from fieldray.reasons import Reason
from file_opens import FileOpens
from phantoms import write_dicom, write_index

IMAGE = chest_phantom(64, 64, 7, abnormal=False)


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Three folders of ten images each, and one image beside them."""
    image = write_dicom(tmp_path / "image.dcm", IMAGE)
    for number in range(3):
        folder = tmp_path / "drive" / f"study-{number}"
        folder.mkdir(parents=True)
        for name in range(10):
            shutil.copy(image, folder / f"{name}.dcm")
    shutil.copy(image, tmp_path / "drive" / "z.dcm")
    image.unlink()
    return tmp_path / "drive"


def _rows(refs: list[ImageRef], top: Path) -> Counter[tuple[str, str | None]]:
    """(path below the drive, reason) of what is no image."""
    return Counter((os.path.relpath(ref.path, top), ref.problem.code) for ref in refs if ref.problem)


def _found(drive: Path, *, at: str, happens: Callable[[], object], paths: list[Path] | None = None) -> list[ImageRef]:
    """The search, during which something happens when the file `at` is found."""
    refs = []
    for ref in discover(paths or [drive]):
        refs.append(ref)
        if ref.path == drive / at:
            happens()
    return refs


def test_a_drive_that_is_pulled_out_is_one_line(drive: Path) -> None:
    found = _found(drive, at="study-0/3.dcm", happens=lambda: drive.rename(drive.with_name("elsewhere")))
    assert len(found) == 5
    assert _rows(found, drive) == {(".", "folder_lost"): 1}
    assert "not known" in found[-1].problem.text
    assert "reconnect the drive" in found[-1].problem.text


def test_a_folder_that_is_moved_away_costs_that_folder_alone(drive: Path) -> None:
    found = _found(drive, at="study-0/3.dcm", happens=lambda: shutil.rmtree(drive / "study-0"))
    assert _rows(found, drive) == {("study-0", "folder_lost"): 1}
    assert len([ref for ref in found if not ref.problem]) == 4 + 10 + 10 + 1


def test_a_folder_that_is_gone_before_it_is_listed_is_one_line(drive: Path) -> None:
    found = _found(drive, at="study-0/3.dcm", happens=lambda: shutil.rmtree(drive / "study-2"))
    assert _rows(found, drive) == {("study-2", "folder_not_read"): 1}
    assert len([ref for ref in found if not ref.problem]) == 10 + 10 + 1


def test_a_file_that_is_gone_from_a_folder_that_is_there_is_missing(drive: Path) -> None:
    found = _found(drive, at="study-0/3.dcm", happens=(drive / "study-0" / "7.dcm").unlink)
    assert _rows(found, drive) == {("study-0/7.dcm", "missing"): 1}
    assert len(found) == 31


@pytest.mark.skipif(sys.platform == "win32", reason="a mount point is a letter there, and goes with its drive")
def test_an_empty_mount_point_that_stays_behind_is_not_the_drive(drive: Path, tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system to stand for the mount point's own")

    def unmount() -> None:
        drive.rename(tmp_path / "elsewhere")
        drive.symlink_to(other)

    with tempfile.TemporaryDirectory(dir=memory) as other:
        found = _found(drive, at="study-0/3.dcm", happens=unmount)
    assert _rows(found, drive) == {(".", "folder_lost"): 1}


def test_a_path_that_vanishes_before_it_is_searched_is_one_line(drive: Path) -> None:
    second, third = drive / "study-1", drive / "study-2" / "1.dcm"
    paths = [drive / "study-0", second, third]
    found = _found(drive, at="study-0/9.dcm", happens=lambda: (shutil.rmtree(second), third.unlink()), paths=paths)
    assert _rows(found, drive) == {("study-1", "folder_not_read"): 1, ("study-2/1.dcm", "missing"): 1}


@pytest.mark.parametrize(("number", "codes"), [(errno.ENODEV, ["folder_lost"] * 4), (errno.EIO, ["drive_error"] * 31)])
def test_a_device_that_is_gone_is_not_a_bad_sector(number: int, codes: list[str], drive: Path) -> None:
    def opener(path: Path) -> BinaryIO:
        raise OSError(number, os.strerror(number))

    # the names are still known to the system: every folder is listed, and its first file tells
    assert [ref.problem.code for ref in discover([drive], opener=opener) if ref.problem] == codes


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything may be read")
def test_a_folder_that_may_not_be_read_is_one_line(drive: Path) -> None:
    (drive / "study-1").chmod(0)
    try:
        assert _rows(list(discover([drive])), drive) == {("study-1", "folder_not_read"): 1}
    finally:
        (drive / "study-1").chmod(0o700)


def test_an_index_whose_drive_is_pulled_out_is_one_line(drive: Path) -> None:
    references = [("study-0", f"{number}.dcm") for number in range(10)] + [("GONE", f"{n}") for n in range(50)]
    index = write_index(drive / "DICOMDIR", references)
    for paths in ([index], [drive]):
        found = _found(drive, at="study-0/3.dcm", happens=lambda: drive.rename(drive.with_name("x")), paths=paths)
        assert _rows(found, drive) == {(".", "folder_lost"): 1}
        assert len(found) == 5
        drive.with_name("x").rename(drive)


# ---- what a search tells beside images


@pytest.mark.parametrize("names", [(), (".hidden", "Thumbs.db"), ("ours.csv",)])
def test_a_path_without_images_is_told(names: tuple[str, ...], tmp_path: Path) -> None:
    notes: list[Reason] = []
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    write_dicom(full / "a.dcm", IMAGE)
    for name in names:
        (empty / name).write_text("written by us")
    found = list(discover([full, empty], is_own_report=lambda head: head == b"written by us", notify=notes.append))
    assert [ref.path.name for ref in found] == ["a.dcm"]
    assert [why.code for why in notes] == ["no_image_in"] + ["own_reports"] * ("ours.csv" in names)
    assert str(empty) in notes[0].text


def test_a_folder_given_twice_is_not_empty(tmp_path: Path) -> None:
    notes: list[Reason] = []
    write_dicom(tmp_path / "a.dcm", IMAGE)
    assert len(list(discover([tmp_path, tmp_path, tmp_path / "a.dcm"], notify=notes.append))) == 1
    assert notes == []


def test_only_a_kind_of_file_that_the_program_writes_can_be_an_own_report(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / "a.jpg")
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "c.txt").write_bytes(b"x")
    found = [ref.path.name for ref in discover([tmp_path], is_own_report=lambda head: True)]
    assert found == ["a.jpg", "b.zip"]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_what_cannot_be_opened_costs_no_look_at_every_folder_above(tmp_path: Path) -> None:
    folder = tmp_path / "drive" / "one" / "other"
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / name).symlink_to("nowhere")
    found = discover([tmp_path / "drive"])
    assert next(found).problem is not None
    opens = FileOpens(tmp_path / "drive")
    try:
        assert next(found).problem is not None
        assert not opens.any()
    finally:
        opens.close()


# ---- DICOMDIR


def test_an_index_lists_a_folder_once(tmp_path: Path) -> None:
    """Found by what was there at first: a file that comes later is not seen."""
    names = NamesInAnyCase()
    (tmp_path / "one").touch()
    assert names.find(tmp_path, "ONE") == tmp_path / "one"
    (tmp_path / "two").touch()
    assert names.find(tmp_path, "TWO") == tmp_path / "TWO"
    assert names.find(tmp_path, "two") == tmp_path / "two"


def test_an_index_with_more_records_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.imaging.dicom_identify.MAX_INDEX_RECORDS", 50)
    index = write_index(tmp_path / "DICOMDIR", [("A", f"{number}") for number in range(51)])
    (found,) = discover([index])
    assert found.problem is not None
    assert found.problem.code == "too_many_records"
