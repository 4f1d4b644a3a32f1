"""DICOMDIR files: their files are listed once; an empty, cut or damaged DICOMDIR is reported once."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

import pytest

from fieldray.imaging.discover import discover
from fieldray.imaging.source import CaseInsensitiveNames, open_file
from fieldray.imaging.synthetic import chest_phantom
from fieldray.store.schema import image_key, path_and_member
from long_headers import dicom_file, element, index_file, record
from phantoms import write_dicom, write_index

IMAGE = chest_phantom(160, 128, 3, abnormal=False)
DICOMDIR_CLASS_UID = b"1.2.840.10008.1.3.10"
NAME, SEQUENCE, UNDEFINED = 0x00041500, 0x00041220, 0xFFFFFFFF
FILES = ("ONE", "TWO", "THREE")


@pytest.fixture
def medium(tmp_path: Path) -> Path:
    """A folder with three images, which a DICOMDIR may list."""
    (tmp_path / "IMAGES").mkdir()
    for name in FILES:
        write_dicom(tmp_path / "IMAGES" / name, IMAGE)
    return tmp_path


def _records(*names: str) -> bytes:
    return b"".join(record(element(NAME, b"IMAGES\\" + name.encode().ljust(6))) for name in names)


def _found(path: Path) -> list[tuple[str, str | None]]:
    return [(ref.path.name, ref.problem.code if ref.problem else None) for ref in discover([path])]


def _texts(path: Path) -> list[str]:
    return [ref.problem.text for ref in discover([path]) if ref.problem]


def test_an_index_is_followed_and_its_files_are_given_once(medium: Path) -> None:
    index = write_index(medium / "DICOMDIR", [("IMAGES", name) for name in ("TWO", "ONE", "TWO", "GONE")])
    # the files of the index first, in its order; then the others
    expected = [("TWO", None), ("ONE", None), ("GONE", "missing_listed"), ("THREE", None)]
    assert _found(medium) == expected
    assert _found(index) == expected[:3]


EMPTY = {
    "no-records": index_file(b""),
    "no-sequence": dicom_file(element(0x00041130, b"CD"), media_storage_sop_class_uid=DICOMDIR_CLASS_UID),
    "no-file-named": index_file(record(element(0x00041430, b"PATIENT "))),
    "only-itself": index_file(record(element(NAME, b"DICOMDIR"))),
    "undefined": dicom_file(
        struct.pack("<HHI", 4, 0x1220, UNDEFINED) + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0),
        media_storage_sop_class_uid=DICOMDIR_CLASS_UID,
    ),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_index_without_images_is_reported(kind: str, medium: Path) -> None:
    (medium / "DICOMDIR").write_bytes(EMPTY[kind])
    assert _found(medium / "DICOMDIR") == [("DICOMDIR", "index_empty")]
    assert _found(medium) == [("DICOMDIR", "index_empty"), ("ONE", None), ("THREE", None), ("TWO", None)]


def test_a_truncated_index_is_reported_and_its_folder_is_searched(medium: Path) -> None:
    whole = index_file(_records(*FILES))
    for size in range(len(index_file(b"")), len(whole)):
        (medium / "DICOMDIR").write_bytes(whole[:size])
        assert _found(medium / "DICOMDIR") == [("DICOMDIR", "index_damaged")], size
    assert _found(medium) == [("DICOMDIR", "index_damaged"), ("ONE", None), ("THREE", None), ("TWO", None)]
    (medium / "DICOMDIR").write_bytes(whole)
    assert _found(medium / "DICOMDIR") == [(name, None) for name in FILES]


@pytest.mark.parametrize(
    "data",
    [
        dicom_file(
            struct.pack("<HHI", 4, 0x1220, UNDEFINED) + _records("ONE", "TWO"),
            media_storage_sop_class_uid=DICOMDIR_CLASS_UID,
        ),
        index_file(_records("ONE") + record(element(0x00080005, b"ISO_IR 6\\" * 1_000)) + _records("TWO")),
        index_file(_records("ONE") + record(struct.pack("<HHI", 0x0088, 0x0200, UNDEFINED) + b"\x01\x02\x03\x04" * 6)),
    ],
    ids=["no end", "more character sets than there are", "a sequence without end whose items are none"],
)
def test_a_damaged_index_is_reported(data: bytes, medium: Path) -> None:
    (medium / "DICOMDIR").write_bytes(data)
    assert _found(medium / "DICOMDIR") == [("DICOMDIR", "index_damaged")]
    assert "open the folder of the DICOMDIR instead" in _texts(medium / "DICOMDIR")[0]


def test_an_index_without_its_files_is_one_row(tmp_path: Path) -> None:
    index = write_index(tmp_path / "DICOMDIR", [("IMAGES", name) for name in FILES])
    assert _found(index) == _found(tmp_path) == [("DICOMDIR", "index_alone")]
    assert _texts(index)[0].startswith("The DICOMDIR lists 3 files, and all of them are missing")
    write_index(index, [("IMAGES", "ONE")])
    assert _found(index) == [("ONE", "missing_listed")]


def test_each_missing_file_of_an_index_is_a_row(medium: Path) -> None:
    names = ("GONE", "LOST", "AWAY", "TWO", "OTHER")
    found = _found(write_index(medium / "DICOMDIR", [("IMAGES", name) for name in names]))
    assert found == [(name, None if name == "TWO" else "missing_listed") for name in names]


@pytest.mark.parametrize(
    "components", [("IMAGES/ONE",), ("", "IMAGES", "ONE"), (".", "IMAGES", "ONE"), ("/IMAGES/ONE",), ("images", "one")]
)
def test_a_file_id_in_another_notation_names_the_same_file(components: tuple[str, ...], medium: Path) -> None:
    assert _found(write_index(medium / "DICOMDIR", [components])) == [("ONE", None)]


def test_a_file_may_have_an_extension_that_its_index_leaves_out(medium: Path) -> None:
    for name in FILES:
        (medium / "IMAGES" / name).rename(medium / "IMAGES" / f"{name.lower()}.dcm")
    (medium / "IMAGES" / "._one.dcm").write_bytes(b"of a Mac")
    index = write_index(medium / "DICOMDIR", [("IMAGES", name) for name in FILES])
    assert _found(index) == [("one.dcm", None), ("two.dcm", None), ("three.dcm", None)]
    (medium / "IMAGES" / "one.txt").write_bytes(b"about it")  # ambiguous: one.dcm or one.txt
    assert _found(index)[0] == ("ONE", "missing_listed")


@pytest.mark.parametrize(
    ("listed", "there"), [("ONE", "ONE;1"), ("ONE;1", "ONE"), ("ONE.DCM", "one"), ("ONE.DCM;1", "one.ima;2")]
)
def test_a_version_or_extension_in_a_file_id_is_ignored(listed: str, there: str, medium: Path) -> None:
    (medium / "IMAGES" / "ONE").rename(medium / "IMAGES" / there)
    assert _found(write_index(medium / "DICOMDIR", [("IMAGES", listed)])) == [(there, None)]


def test_the_last_number_of_a_name_is_no_extension(medium: Path) -> None:
    (medium / "IMAGES" / "ONE").rename(medium / "IMAGES" / "1.2.3")
    assert _found(write_index(medium / "DICOMDIR", [("IMAGES", "1.2.4")])) == [("1.2.4", "missing_listed")]


def test_system_files_in_an_index_are_skipped(medium: Path) -> None:
    (medium / "IMAGES" / "Thumbs.db").write_bytes(b"x")
    index = write_index(medium / "DICOMDIR", [("IMAGES", "ONE"), ("IMAGES", "Thumbs.db"), ("__MACOSX", "ONE")])
    assert _found(index) == [("ONE", None)]


def test_a_repeated_file_id_outside_the_folder_is_one_row(medium: Path) -> None:
    index = write_index(medium / "DICOMDIR", [("..", "X"), ("..", "X"), ("..", "Y")])
    assert [ref.zip_member for ref in discover([index])] == ["..\\X", "..\\Y"]


def test_a_file_has_the_letter_case_that_its_folder_lists(medium: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Windows and macOS would list one file under two names, and its images would be judged twice."""
    folder = medium / "IMAGES"
    (folder / "ONE").rename(folder / "one")
    (folder / "Two").touch()  # next to TWO, as only some systems can
    names = CaseInsensitiveNames()
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    assert [names.find(folder, name).name for name in ("ONE", "one", "TWO", "Two", "GONE")] == [
        *("one", "one", "TWO", "Two", "GONE")
    ]


def test_a_file_id_with_a_zero_byte_is_shown_as_it_is_stored(medium: Path) -> None:
    """The key of a row in the store ends a name at a zero byte."""
    (medium / "DICOMDIR").write_bytes(index_file(record(element(NAME, b"\0IMAGES\0ONE "))))
    (ref,) = discover([medium / "DICOMDIR"])
    assert ref.problem is not None and ref.problem.code == "outside_folder"
    assert ref.zip_member is not None and path_and_member(image_key(ref)) == (ref.path, ref.zip_member)


def test_overlong_names_in_an_index_are_reported_as_missing(tmp_path: Path) -> None:
    assert _found(write_index(tmp_path / "DICOMDIR", [("A" * 300,), ("B", "C" * 300)])) == [
        ("A" * 300, "missing_listed"),
        ("C" * 300, "missing_listed"),
    ]


def test_an_index_opens_nothing_outside_its_folder(tmp_path: Path) -> None:
    inside, secret = tmp_path / "drive", tmp_path / "secret.dcm"
    inside.mkdir()
    write_dicom(secret, IMAGE)
    (inside / "LINK").symlink_to(secret)
    references = [("..", "secret.dcm"), ("LINK",), (str(secret),), ("A/../../secret.dcm",), ("C:", "x"), (".", "LINK")]
    index = write_index(inside / "DICOMDIR", references)
    opened: list[Path] = []

    def opener(path: Path) -> BinaryIO:
        opened.append(path)
        return open_file(path)

    refs = list(discover([index], opener=opener))
    assert [ref.problem.code for ref in refs if ref.problem] == ["outside_folder"] * len(references)
    assert len({ref.key for ref in refs}) == len(references)
    assert opened == [index]


@pytest.mark.parametrize("components", [33, 5_000])
def test_a_file_id_of_too_many_parts_is_refused(components: int, tmp_path: Path) -> None:
    (tmp_path / "DICOMDIR").write_bytes(index_file(record(element(0x00041500, b"A\\" * components))))
    assert [code for _, code in _found(tmp_path)] == ["outside_folder"]


def test_an_index_with_too_many_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray.imaging.dicom_identify.MAX_DICOMDIR_RECORDS", 50)
    index = write_index(tmp_path / "DICOMDIR", [("A", f"{number}") for number in range(51)])
    assert [code for _, code in _found(index)] == ["too_many_records"]


# ---- names in any letter case


def test_an_index_lists_a_folder_once(tmp_path: Path) -> None:
    """A file that is added after the first listing is not found by another letter case."""
    names = CaseInsensitiveNames()
    (tmp_path / "one").touch()
    assert names.find(tmp_path, "ONE") == tmp_path / "one"
    (tmp_path / "two").touch()
    assert names.find(tmp_path, "TWO") == tmp_path / "TWO"
    assert names.find(tmp_path, "two") == tmp_path / "two"


def test_missing_folders_are_listed_again(tmp_path: Path) -> None:
    names = CaseInsensitiveNames()
    assert names.find(tmp_path / "absent", "A") == tmp_path / "absent" / "A"
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "a").touch()
    assert names.find(tmp_path / "absent", "A") == tmp_path / "absent" / "a"
