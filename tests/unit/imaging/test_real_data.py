"""Every real file in the data folder ends in an image or a plain reason. Skipped without the data folder."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from fieldray.domain.image import ImageRef
from fieldray.errors import Unreadable, UnsuitableImage
from fieldray.imaging.discover import discover
from fieldray.imaging.quality import check_pixels
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.whole_file import read_bytes

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not (DATA / "dicom").is_dir(), reason="no data folder here")

REASONS = {
    "unsupported_compression",
    "damaged",
    "size_mismatch",
    "truncated",
    "no_pixel_data",
    "colour",
    "unsupported_pixels",
}


@cache
def _ended(path: Path, *, needed: TargetSize | None = None) -> str:
    ref = ImageRef(path=path)
    try:
        decode_image_bytes(read_bytes(ref), ref, needed_size=needed)
    except (Unreadable, UnsuitableImage) as error:
        return error.reason.code
    return "ok"


def test_every_dicom_file_decodes_or_says_why() -> None:
    with (DATA / "dicom" / "dicom_index.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 200
    for row in rows:
        ended = _ended(DATA / "dicom" / row["path"])
        is_readable = row["decode"].startswith("ok")
        assert ended in ({"ok", "colour"} if is_readable else {"ok", *REASONS}), row["path"]


def test_every_file_has_the_same_result_at_lower_resolution() -> None:
    for path in sorted((DATA / "dicom").rglob("*.dcm")):
        if path.stat().st_size < 5 * 2**20:
            assert _ended(path, needed=TargetSize(40, 40)) == _ended(path), path.name


def test_the_index_of_a_disc_is_followed() -> None:
    refs = list(discover([DATA / "dicom" / "dicomdir" / "pydicom" / "TINY_ALPHA" / "DICOMDIR"]))
    assert len(refs) == 50
    # these files have no pixels
    assert {ref.problem.code if ref.problem else None for ref in refs} == {"truncated"}


def test_published_images_pass() -> None:
    paths = sorted((DATA / "nih_full").iterdir())
    for path in paths:
        ref = ImageRef(path=path)
        assert check_pixels(decode_image_bytes(read_bytes(ref), ref)) is None, path.name
    assert len(paths) == 24
