"""A pixel that is not square becomes square where a file is read, so that everything behind that is in true shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray.domain.image import Image, ImageRef
from fieldray.domain.model import InputSpec
from fieldray.imaging.preprocess import to_tensor
from fieldray.imaging.reading import decode
from fieldray.imaging.reduction import target_size
from fieldray.imaging.synthetic import chest_phantom
from phantoms import LOSSLESS, write_dicom

IMAGE = chest_phantom(160, 128, 3, abnormal=False)
SPEC = InputSpec(height=64, width=64, fit="pad")
WIDE, TALL = np.repeat(IMAGE, 2, axis=1), np.repeat(IMAGE, 3, axis=0)


def _read(folder: Path, pixels: np.ndarray[Any, Any], *, reduced: bool = False, **options: Any) -> Image:
    changes = {"ImagerPixelSpacing": None} | options.pop("changes")
    path = write_dicom(folder / "a.dcm", pixels, changes=changes, **options)
    return decode(path.read_bytes(), ImageRef(path=path), needed=target_size(SPEC) if reduced else None)


@pytest.mark.parametrize(
    ("pixels", "changes", "spacing_mm"),
    [
        (WIDE, {"PixelSpacing": [0.2, 0.1]}, (0.2, 0.2)),
        (WIDE, {"ImagerPixelSpacing": [0.2, 0.1]}, (0.2, 0.2)),
        (WIDE, {"PixelAspectRatio": [2, 1]}, None),
        (TALL, {"PixelAspectRatio": [1, 3]}, None),
        (TALL, {"PixelSpacing": [0.1, 0.3], "PixelAspectRatio": [1, 1]}, (0.3, 0.3)),
    ],
)
def test_the_image_is_the_one_with_square_pixels(
    pixels: np.ndarray[Any, Any], changes: dict[str, Any], spacing_mm: tuple[float, float] | None, tmp_path: Path
) -> None:
    for reduced in (False, True):
        image = _read(tmp_path, pixels, changes=changes, reduced=reduced)
        np.testing.assert_array_equal(image.pixels, IMAGE)
        assert (image.full_rows, image.full_columns, image.step) == (160, 128, 1)
        assert image.spacing_mm == (None if spacing_mm is None else pytest.approx(spacing_mm))
        assert "pixels_not_square" in image.notes


@pytest.mark.parametrize("changes", [{"PixelSpacing": [0.1, 100]}, {"PixelAspectRatio": [1000, 1]}])
def test_pixels_longer_than_any_are_taken_as_square(changes: dict[str, Any], tmp_path: Path) -> None:
    np.testing.assert_array_equal(_read(tmp_path, IMAGE, changes=changes).pixels, IMAGE)


@pytest.mark.parametrize("name", ["jpeg2000-lossless", "rle", "deflated"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "RGB"])
def test_so_it_is_in_every_kind_of_file(name: str, photometric: str, tmp_path: Path) -> None:
    if photometric == "RGB" and name == "jpeg2000-lossless":
        pytest.skip("the phantoms are grey there")
    options: dict[str, Any] = {"transfer_syntax": LOSSLESS[name], "photometric": photometric}
    square = to_tensor(_read(tmp_path, IMAGE, changes={}, **options), SPEC)
    wide = _read(tmp_path, WIDE, changes={"PixelAspectRatio": [2, 1]}, reduced=True, **options)
    np.testing.assert_array_equal(to_tensor(wide, SPEC).values, square.values)
    assert to_tensor(wide, SPEC).pixel_map == square.pixel_map


@pytest.mark.parametrize(
    "changes", [{}, {"PixelAspectRatio": [1, 1]}, {"PixelSpacing": [0.1, 0.1005]}, {"PixelAspectRatio": [0, 1]}]
)
def test_square_ones_stay_as_they_are(changes: dict[str, Any], tmp_path: Path) -> None:
    image = _read(tmp_path, WIDE, changes=changes)
    np.testing.assert_array_equal(image.pixels, WIDE)
    assert "pixels_not_square" not in image.notes


def test_no_data_stays_no_data(tmp_path: Path) -> None:
    framed = IMAGE.copy()
    framed[:, :20] = 0
    square = _read(tmp_path, framed, changes={"PixelPaddingValue": 0})
    wide = _read(tmp_path, np.repeat(framed, 2, axis=1), changes={"PixelPaddingValue": 0, "PixelAspectRatio": [2, 1]})
    np.testing.assert_array_equal(wide.pixels, square.pixels)
    assert wide.padding == square.padding == 0
