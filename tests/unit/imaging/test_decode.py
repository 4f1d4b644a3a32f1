"""The same image in every kind of file shows the same picture; what is wrong says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.image import Image, ImageRef
from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.preprocess import to_display
from fieldray.imaging.reading import decode
from fieldray.imaging.synthetic import chest_phantom
from phantoms import LOSSLESS, write_collection, write_dicom
from raised import raises

IMAGE = chest_phantom(160, 128, 7, abnormal=False)


def _read(path: Path, *, frame: int = 0) -> Image:
    return decode(path.read_bytes(), ImageRef(path=path, frame=frame))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_collection(tmp_path_factory.mktemp("collection"))


def test_every_kind_shows_the_same_picture(collection: list[Path]) -> None:
    expected = IMAGE / 4095 * 255
    assert len(collection) == 51
    for path in collection:
        image = _read(path)
        if path.name == "grey-16.png":
            # nothing says how 16 bits are to be shown, so percentiles are
            assert image.window is None
            np.testing.assert_array_equal(image.pixels, IMAGE << 4)
            continue
        # JPEG at quality 95 is 1.1 levels off on average, rounding to 8 bits 0.3
        difference = np.abs(to_display(image) - expected).mean()
        assert difference < (1.5 if "jp" in path.suffix or "baseline" in path.name else 0.9), path.name


def test_frames_are_read_one_by_one(tmp_path: Path) -> None:
    images = np.stack([IMAGE, IMAGE[::-1], IMAGE // 2])
    changes = {"NumberOfFrames": 3, "PixelData": images.astype("<u2").tobytes()}
    path = write_dicom(tmp_path / "frames.dcm", IMAGE, changes=changes)
    for frame in range(3):
        np.testing.assert_array_equal(_read(path, frame=frame).pixels, images[frame])
    with raises(Unreadable, "truncated"):
        _read(path, frame=3)
    path = write_dicom(tmp_path / "frames.dcm", IMAGE, changes={"NumberOfFrames": 2})  # the second is not there
    np.testing.assert_array_equal(_read(path, frame=0).pixels, IMAGE)
    with pytest.raises(Unreadable):
        _read(path, frame=1)


def test_a_codestream_of_another_size_is_not_decoded(tmp_path: Path) -> None:
    for name in ("jpeg2000-lossless", "jpegls-lossless", "jpeg-lossless-sv1"):
        path = write_dicom(tmp_path / f"{name}.dcm", IMAGE, transfer_syntax=LOSSLESS[name])
        data = path.read_bytes().replace(b"\x28\x00\x10\x00US\x02\x00\xa0\x00", b"\x28\x00\x10\x00US\x02\x00\xa2\x00")
        with raises(Unreadable, "size_mismatch"):
            decode(data, ImageRef(path=path))


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", "empty"), (b"MZ" + bytes(300), "executable"), (b"\xfe\xed\xfa\xcf" + bytes(300), "executable")],
)
def test_what_is_no_image_file_at_all(data: bytes, code: str) -> None:
    with raises(Unreadable, code):
        decode(data, ImageRef(path=Path("x")))


@pytest.mark.parametrize("data", [b"hello, world" * 30, b"PK\x03\x04" + bytes(100), bytes(1000)])
def test_other_files_are_refused(data: bytes) -> None:
    with raises(Unusable, "not_an_image"):
        decode(data, ImageRef(path=Path("x")))
