"""Headers whose values are short in the file and vast as objects: the program itself reads them, not a child."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest

from fieldray.domain.image import ImageRef
from fieldray.imaging.discover import discover
from fieldray.imaging.source import NamesInAnyCase, content_hash
from long_headers import HOSTILE, PIXELS, dicom_file, element, index_file, record

_MOST_MB = 64.0


def _peak_mb(path: Path) -> float:
    tracemalloc.start()
    try:
        assert len(list(discover([path]))) == 1, "a file gives a row, whatever is wrong with it"
        return (tracemalloc.get_traced_memory()[1] - path.stat().st_size) / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_takes_no_more_memory_than_headers_do(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    import fieldray.imaging.dicom_identify  # noqa: F401 - what is imported for it does not count

    assert _peak_mb(path) < _MOST_MB


def test_a_value_longer_than_its_kind_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(
        dicom_file(element(0x00100020, b"A\\" * 5_000), element(0x00280008, b"2\\" * 5_000), PIXELS)
    )
    (found,) = discover([tmp_path])
    assert (found.header.patient_id, found.header.number_of_frames) == ("", 1)


@pytest.mark.parametrize("components", [33, 5_000])
def test_a_name_of_too_many_parts_in_an_index_is_no_name(components: int, tmp_path: Path) -> None:
    (tmp_path / "DICOMDIR").write_bytes(index_file(record(element(0x00041500, b"A\\" * components))))
    (found,) = discover([tmp_path])
    assert found.problem is not None
    assert found.problem.code == "outside_folder"


def test_folders_that_are_not_there_are_not_remembered(tmp_path: Path) -> None:
    names = NamesInAnyCase()
    assert names.find(tmp_path / "absent", "A") == tmp_path / "absent" / "A"
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "a").touch()
    assert names.find(tmp_path / "absent", "A") == tmp_path / "absent" / "a"


def test_the_transfer_syntax_is_short_in_every_row(tmp_path: Path) -> None:
    meta = bytes(128) + b"DICM" + element(0x00020010, b"1.2.840.10008.1.2" + b".1" * 50_000)
    (tmp_path / "a").write_bytes(meta + PIXELS)
    (found,) = discover([tmp_path])
    assert len(found.header.transfer_syntax_uid) <= 200


def test_a_file_that_grows_is_hashed_as_far_as_it_was(tmp_path: Path) -> None:
    class Growing(io.BytesIO):
        def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
            return 5 if whence == io.SEEK_END else super().seek(offset, whence)

    ref = ImageRef(path=Path("growing.png"))
    assert content_hash(ref, opener=lambda path: Growing(b"image and more")) == content_hash(
        ref, opener=lambda path: io.BytesIO(b"image")
    )
