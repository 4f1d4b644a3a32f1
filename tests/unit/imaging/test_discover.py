"""Discovery: no file is lost or listed twice, and nothing outside the folder is opened."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from PIL import Image

from fieldray.errors import UsageProblem
from fieldray.imaging.discover import count_files, discover
from fieldray.imaging.identify import sniff
from fieldray.imaging.source import Folder, open_file
from fieldray.imaging.synthetic import chest_phantom
from fieldray.reasons import Reason
from file_opens import FileOpens
from phantoms import write_collection, write_dicom
from raised import raises

IMAGE = chest_phantom(64, 64, 7, abnormal=False)


def _found(*paths: Path) -> list[tuple[str, str | None]]:
    return [(ref.path.name, ref.problem.code if ref.problem else None) for ref in discover(paths)]


# ---- folders and files


def test_every_file_of_the_collection_is_one_image(tmp_path: Path) -> None:
    written = write_collection(tmp_path / "images")
    refs = list(discover([tmp_path]))
    assert [ref.path for ref in refs] == sorted(written)
    assert not [ref for ref in refs if ref.problem]
    kinds = {ref.path.suffix: ref.kind for ref in refs}
    assert kinds == {".dcm": "dicom", "": "dicom", ".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
    turned = {"turned.jpg"}  # the header has the stored size, not the turned one
    assert {(ref.header.rows, ref.header.columns) for ref in refs if ref.path.name not in turned} == {(160, 128)}


def test_a_junction_to_its_own_folder_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Windows junction looks like any other folder. Two of them would double the search with each level."""
    write_dicom(tmp_path / "a.dcm", IMAGE)
    (tmp_path / "again").mkdir()
    listed, looks = Folder.from_path, []

    def through_junction(path: Path) -> Folder:
        looks.append(path)
        assert len(looks) < 20
        target = tmp_path / path.relative_to(tmp_path).name.replace("again", "")
        folder = listed(target)
        folder.path, folder.__dict__["real_path"] = path, os.path.realpath(target)
        return folder

    monkeypatch.setattr(Folder, "from_path", through_junction)
    assert _found(tmp_path) == [("a.dcm", None)]


def test_a_missing_path_is_a_usage_problem_at_once(tmp_path: Path) -> None:
    with raises(UsageProblem, "nothing_to_screen"):
        discover([tmp_path / "nothing"])


def test_files_are_sorted_and_listed_once(tmp_path: Path) -> None:
    for name in ("b/2.dcm", "b/1.dcm", "a.dcm", "c.dcm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_dicom(tmp_path / name, IMAGE)
    (tmp_path / "d.dcm").symlink_to(tmp_path / "a.dcm")
    names = [name for name, _ in _found(tmp_path, tmp_path / "b", tmp_path / "c.dcm")]
    assert names == ["a.dcm", "1.dcm", "2.dcm", "c.dcm"]


def test_odd_things_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.close(os.open(os.fsencode(tmp_path) + b"/bad-\xff-name", os.O_CREAT))
    assert sorted(code or "" for _, code in _found(tmp_path)) == ["empty", "missing"]


def test_very_long_and_non_latin_names(tmp_path: Path) -> None:
    folder = tmp_path
    for number in range(3):
        folder = folder / f"{number}-{'дуже довга назва теки ' * 5}"
    folder.mkdir(parents=True)
    path = write_dicom(folder / "знімок грудної клітки 胸部.dcm", IMAGE)
    assert len(str(path)) > 260
    [ref] = discover([tmp_path])
    assert ref.path == path
    assert ref.problem is None


def test_frames_are_images_of_one_file(tmp_path: Path) -> None:
    pixels = np.stack([IMAGE] * 3).astype("<u2").tobytes()
    write_dicom(tmp_path / "frames.dcm", IMAGE, changes={"NumberOfFrames": 3, "PixelData": pixels})
    refs = list(discover([tmp_path]))
    assert [ref.frame for ref in refs] == [0, 1, 2]
    assert len({ref.key for ref in refs}) == 3


def test_files_are_grouped_by_study_and_other_files_stay_single(tmp_path: Path) -> None:
    for name, number in (("a.dcm", 1), ("b.dcm", 2), ("c.dcm", 1)):
        write_dicom(tmp_path / name, IMAGE, number=number)
    (tmp_path / "d.txt").write_text("x")
    keys = {ref.path.name: ref.patient_study_key for ref in discover([tmp_path])}
    assert keys["a.dcm"] == keys["c.dcm"]
    assert len(set(keys.values())) == 3


def test_the_search_yields_images_before_it_ends(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}").write_bytes(b"x")
    opened: list[str] = []

    def opener(path: Path) -> BinaryIO:
        opened.append(path.name)
        return open_file(path)

    search = discover([tmp_path], opener=opener)
    assert next(search).path.name == "00"
    assert opened == ["00"]


# ---- what a file is, by its first bytes


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("group", [0x0002, 0x0008])
def test_dicom_without_a_preamble_begins_with_an_element_in_either_byte_order(order: str, group: int) -> None:
    for element in (0x0000, 0x0005, 0x0016):
        head = struct.pack(order + "HH", group, element) + b"CS" + struct.pack(order + "H", 10) + b"ISO_IR 192"
        assert sniff(head) == "dicom"


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">HH", 0x0002, 0x0005) + b"xx" + bytes(20),  # big-endian without a value representation
        struct.pack("<HHI", 0x0008, 0x0005, 63) + bytes(20),  # of odd length
        struct.pack("<HH", 0x0010, 0x0010) + b"PN" + bytes(20),  # a group that no file begins with
        struct.pack("<HH", 0x0008, 0x0005) + b"CS",
    ],
)
def test_a_head_that_only_resembles_an_element_is_no_dicom(head: bytes) -> None:
    assert sniff(head) == "unknown"


# ---- hostile headers


@pytest.mark.parametrize(
    ("rest", "codes"),
    [
        (b"\x29\x00\x01\x10UN\0\0\0\0\0\0" * 450_000, {"damaged"}),
        # pydicom raises one of two errors, depending on the depth of the caller's stack
        (
            (b"\x29\x00\x10\x10SQ\0\0\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff") * 20_000,
            {"damaged", "truncated"},
        ),
        (b"\x29\x00\x10\x10SQ\0\0\xff\xff\xff\xff", {"truncated"}),
    ],
    ids=["elements without end", "nested sequences without end", "a sequence that breaks off"],
)
def test_a_header_without_an_end_is_damaged_or_truncated(rest: bytes, codes: set[str], tmp_path: Path) -> None:
    good = write_dicom(tmp_path / "a.dcm", IMAGE).read_bytes()
    (tmp_path / "a.dcm").write_bytes(good[: good.index(b"\xe0\x7f\x10\x00OW")] + rest)
    ((_, code),) = _found(tmp_path)
    assert code in codes


# ---- notes of a search


@pytest.mark.parametrize("names", [(), (".hidden", "Thumbs.db"), ("ours.csv",)])
def test_a_path_without_images_is_reported(names: tuple[str, ...], tmp_path: Path) -> None:
    notes: list[Reason] = []
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    write_dicom(full / "a.dcm", IMAGE)
    for name in names:
        (empty / name).write_text("written by us")
    found = list(discover([full, empty], is_own_report=lambda head: head == b"written by us", notify=notes.append))
    assert [ref.path.name for ref in found] == ["a.dcm"]
    more = {".hidden": "only_hidden", "ours.csv": "own_reports"}
    assert [why.code for why in notes] == ["no_image_in", *(more[name] for name in names if name in more)]
    assert str(empty) in notes[0].text


_BINS = [
    *("$RECYCLE.BIN", "RECYCLER", "FOUND.000", "lost+found", ".Trash-1000", ".Trashes", "Network Trash Folder"),
    *("#recycle", "@Recycle", "@Recycled", "Network Recycle Bin 1", "Recycle Bin", "trashbox", ".recycle"),
    *("@eaDir", "SYNOPHOTO_THUMB_XL.jpg", "a.dcm@SynoEAStream", ".@__thumb", ".thumbnails"),
    *("#snapshot", "@Recently-Snapshot", "~snapshot", ".snapshots", "@GMT-2026.01.02-03.04.05", ".zfs"),
]


def _put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dicom(path, IMAGE)


def test_recycle_bins_thumbnails_and_snapshots_are_left_out_and_counted(tmp_path: Path) -> None:
    notes: list[Reason] = []
    _put(tmp_path / "study/a.dcm")
    _put(tmp_path / "#1 recycled at night, snapshot/b.dcm")
    (tmp_path / "study/.DS_Store").write_bytes(b"x")
    for number, name in enumerate(_BINS):
        _put(tmp_path / ("study" if number % 2 else "") / name / "deleted/c.dcm")
    found = list(discover([tmp_path], notify=notes.append))
    assert [ref.path.name for ref in found] == ["b.dcm", "a.dcm"]
    (note,) = notes
    assert (note.code, dict(note.parameters)["count"]) == ("bins_left_out", str(len(_BINS)))
    assert count_files([tmp_path], is_cancelled=lambda: False) == 2
    assert [ref.path.name for ref in discover([tmp_path / "study/#recycle"])] == ["c.dcm"]


def test_a_folder_of_hidden_files_says_that_they_are_hidden(tmp_path: Path) -> None:
    notes: list[Reason] = []
    _put(tmp_path / ".study/a.dcm")
    _put(tmp_path / ".b.dcm")
    (tmp_path / "._b.dcm").write_bytes(b"x")
    assert list(discover([tmp_path], notify=notes.append)) == []
    assert [why.code for why in notes] == ["no_image_in", "only_hidden"]
    assert notes[1].text.startswith(f"2 files or folders in {tmp_path} are hidden")


def test_a_folder_given_twice_is_not_reported_as_empty(tmp_path: Path) -> None:
    notes: list[Reason] = []
    write_dicom(tmp_path / "a.dcm", IMAGE)
    assert len(list(discover([tmp_path, tmp_path, tmp_path / "a.dcm"], notify=notes.append))) == 1
    assert notes == []


def test_only_report_file_types_are_checked_for_own_reports(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / "a.jpg")
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "c.txt").write_bytes(b"x")
    found = [ref.path.name for ref in discover([tmp_path], is_own_report=lambda head: True)]
    assert found == ["a.jpg", "b.zip"]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_an_unreadable_file_does_not_cause_checks_of_all_parent_folders(tmp_path: Path) -> None:
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
