"""Pairs of drawn, framed chest images for tests of the comparison."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.matching import blur, warp
from fieldray.domain.comparison import (
    FRAME_SIDE,
    AlignedPair,
    Alignment,
    ChangeRegion,
    ComparisonProblem,
    FramedImage,
    MatchedSquare,
    PairComparison,
)
from fieldray.domain.finding import Outcome
from fieldray.domain.image import Box, CoordinateMap
from fieldray.domain.prior_image import ComparisonRecord
from fieldray.imaging.synthetic import chest_phantom, lung_mask
from fieldray.reasons import Reason

WHOLE = CoordinateMap(1.0, 0.0, 1.0, 0.0)


@lru_cache(maxsize=8)
def chest(seed: int = 1) -> FramedImage:
    """Return a drawn chest in its frame, with its lungs."""
    drawn = chest_phantom(FRAME_SIDE, FRAME_SIDE, seed, abnormal=False) >> 4
    return framed(drawn, lung_mask(FRAME_SIDE, FRAME_SIDE, seed) > 0)


def framed(grey: NDArray, lungs: NDArray) -> FramedImage:
    """Return grey levels and a mask as a framed image."""
    pixels = np.rint(np.clip(grey, 0, 255)).astype(np.uint8)
    return FramedImage(pixels=pixels, lungs=np.array(lungs, bool), frame_to_image=WHOLE)


def smooth_warp(seed: int, *, largest_px: float = 20.0, sigma_px: float = 80.0) -> NDArray[np.float32]:
    """Return a smooth random displacement (FRAME_SIDE, FRAME_SIDE, 2)."""
    random = np.random.default_rng(seed)
    shape = (FRAME_SIDE, FRAME_SIDE)
    field = np.stack([blur(random.normal(size=shape).astype(np.float32), sigma_px) for _ in range(2)], axis=-1)
    return np.asarray(field * (largest_px / np.hypot(field[..., 0], field[..., 1]).max()), np.float32)


def moved(image: FramedImage, displacement: NDArray[np.float32]) -> FramedImage:
    """Return an image warped by a displacement. A point at position p is at p + displacement in `image`."""
    return framed(warp(image.pixels, displacement), warp(image.lungs.astype(np.float32), displacement) > 0.5)


MIDDLE = CoordinateMap(600 / FRAME_SIDE, 0.0, 600 / FRAME_SIDE, -44.0)  # 600 x 512 pixels in the middle of a square


def pair_comparison(
    *, shift: tuple[float, float] = (0.0, 0.0), regions: int = 2, why: Reason | None = None
) -> PairComparison:
    """Return a comparison whose prior is `shift` pixels further down and right,
    with these regions, or with a reason.
    """
    pixels, lungs = np.full((FRAME_SIDE, FRAME_SIDE), 90, np.uint8), np.zeros((FRAME_SIDE, FRAME_SIDE), bool)
    lungs[100:400, 150:360] = True
    image = FramedImage(pixels=pixels, lungs=lungs, frame_to_image=MIDDLE)
    if why is not None:
        return PairComparison(prior=image, current=image, problem=ComparisonProblem(reason=why))
    change = np.zeros((FRAME_SIDE, FRAME_SIDE), np.float32)
    found = []
    for number in range(regions):
        top, strength = 120 + 60 * number, 5.0 - 9 * (number % 2)
        change[top : top + 40, 180:220] = strength
        found.append(ChangeRegion(box=Box(top=top, left=180, height=40, width=40), area_px=1600, strength=strength))
    match = MatchedSquare(row=200, column=200, is_kept=True)
    alignment = Alignment(
        displacement=np.full((FRAME_SIDE, FRAME_SIDE, 2), shift, np.float32),
        matches=(match, replace(match, row=300.0, is_kept=False)),
        similarity_before=0.41,
        similarity_after=0.83,
        min_jacobian=1.0,
    )
    aligned = AlignedPair(alignment=alignment, warped_prior=pixels.copy(), change=change, regions=tuple(found))
    return PairComparison(prior=image, current=image, aligned_pair=aligned)


def compared_with(outcome: Outcome, **changes: object) -> ComparisonRecord:
    """Return the record of an image and its prior for reports, with two regions of difference."""
    prior = replace(
        outcome.ref.header,
        patient_name="",
        study_date="20210205",
        study_instance_uid="1.2.840.7.1",
        series_instance_uid="1.2.840.7.2",
        sop_instance_uid="1.2.840.7.3",
    )
    box = Box(top=10, left=20, height=30, width=40)
    values = {
        "current_sha256": outcome.facts.content_sha256,
        "current_frame": outcome.ref.frame,
        "prior_header": prior,
        "has_dicom_prior": True,
        "prior_frame": 0,
        "time_order": "earlier",
        "patient_match": "same",
        "similarity": 0.83,
        "regions": (
            ChangeRegion(box=box, area_px=1200, strength=5.0),
            ChangeRegion(box=box, area_px=900, strength=-4.0),
        ),
    }
    return ComparisonRecord(**{**values, **changes})  # type: ignore[arg-type]
