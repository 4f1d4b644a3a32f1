"""Previews: small, like the image, and nothing else is unpacked."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest

from fieldray.domain.finding import PREVIEW_SIDE
from fieldray.domain.image import Image
from fieldray.errors import Unreadable
from fieldray.imaging.preprocess import shrunk, thumbnail
from fieldray.imaging.reading import packed, unpacked
from fieldray.imaging.synthetic import chest_phantom
from fieldray.workers.pool import Workers
from phantoms import saved


@pytest.mark.parametrize("shape", [(1000, 700), (300, 512), (40, 30), (30, 9000), (20_000, 3)])
def test_a_preview_is_small_and_shows_the_image(shape: tuple[int, int]) -> None:
    image = Image(pixels=chest_phantom(*shape, 3, abnormal=True))
    small = shrunk(image, PREVIEW_SIDE)
    assert max(small.shape) <= PREVIEW_SIDE and small.dtype == np.uint8
    back = unpacked(packed(small))
    assert back.shape == small.shape
    if min(shape) >= 300:
        assert np.abs(back.astype(int) - small).mean() < 4
        exact = thumbnail(image, max(small.shape))
        assert np.abs(exact.astype(int)[: small.shape[0], : small.shape[1]].mean() - small.mean()) < 2
        assert len(packed(small)) < 16_384


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff\xe0 cut short",
        packed(np.zeros((64, 64), np.uint8))[:100],
        saved(PIL.Image.new("L", (PREVIEW_SIDE + 1, 10)), "JPEG"),
        saved(PIL.Image.new("RGB", (10, 10)), "JPEG"),
    ],
)
def test_anything_else_is_damaged(data: bytes) -> None:
    with pytest.raises(Unreadable):
        unpacked(data)


def test_a_preview_is_unpacked_by_another_process() -> None:
    grey = np.tile(np.arange(0, 200, 2, dtype=np.uint8), (50, 1))
    with Workers(1, timeout_s=60, memory_limit_mb=2048) as pool:
        back = pool.read_preview(packed(grey))
        assert back.shape == grey.shape and np.abs(back.astype(int) - grey).max() < 12
        with pytest.raises(Unreadable):
            pool.read_preview(b"damaged")
