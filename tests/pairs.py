"""Pairs of drawn chest images in their frames, for the tests of what compares them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.features import blurred
from fieldray.comparison.mesh import warped
from fieldray.domain.comparison import FRAME_SIDE, FramedImage
from fieldray.domain.image import PixelMap
from fieldray.imaging.synthetic import chest_phantom, lung_mask

WHOLE = PixelMap(1.0, 0.0, 1.0, 0.0)


@lru_cache(maxsize=8)
def chest(seed: int = 1) -> FramedImage:
    """A drawn chest in its frame, with its lungs."""
    drawn = chest_phantom(FRAME_SIDE, FRAME_SIDE, seed, abnormal=False) >> 4
    return framed(drawn, lung_mask(FRAME_SIDE, FRAME_SIDE, seed) > 0)


def framed(grey: NDArray, lungs: NDArray) -> FramedImage:
    """Grey levels and a mask as an image of the frame."""
    pixels = np.rint(np.clip(grey, 0, 255)).astype(np.uint8)
    return FramedImage(pixels=pixels, lungs=np.array(lungs, bool), pixel_map=WHOLE)


def smooth_warp(seed: int, *, largest_px: float = 20.0, sigma_px: float = 80.0) -> NDArray[np.float32]:
    """A smooth random displacement (FRAME_SIDE, FRAME_SIDE, 2)."""
    random = np.random.default_rng(seed)
    shape = (FRAME_SIDE, FRAME_SIDE)
    field = np.stack([blurred(random.normal(size=shape).astype(np.float32), sigma_px) for _ in range(2)], axis=-1)
    return np.asarray(field * (largest_px / np.hypot(field[..., 0], field[..., 1]).max()), np.float32)


def moved(image: FramedImage, displacement: NDArray[np.float32]) -> FramedImage:
    """What lies at a place in it lies at place + displacement in `image`."""
    return framed(warped(image.pixels, displacement), warped(image.lungs.astype(np.float32), displacement) > 0.5)
