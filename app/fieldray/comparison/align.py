"""The prior brought over the current image: as a whole first, then by a mesh that matches of templates pull at.

Three rounds, each with smaller templates and a shorter reach than the one before. In each the prior is warped by what
is known so far, templates of the current image are sought in it, matches that nobody should believe are rejected, and
the mesh is relaxed again: places found are always places in the prior itself, so that errors do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.features import Features, Grey, band_pass, blurred
from fieldray.comparison.mesh import Affine, Displacement, Points, least_jacobian, points_in_prior, relaxed, warped
from fieldray.comparison.ncc import Peaks, correlate, find_peaks, joined, own_offset
from fieldray.comparison.outline import outline, outline_pull
from fieldray.comparison.overlay import Overlay, lay_over, structure
from fieldray.domain.comparison import FRAME_SIDE, Alignment, FramedImage, Match
from fieldray.domain.mask import Mask


class Cancelled(Exception):
    """Somebody does not want the result any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """Pixels of the frame: side of the templates, how far around they are sought, distance between them.

    outline  how hard each point of the lungs' outline pulls, where a perfect match pulls with 1; in the last round it
             has done its part, and what templates find is not to be bent by how the lungs were outlined
    """

    template_px: int
    reach_px: int
    step_px: int
    stiffness: float
    outline: float


_ROUNDS: Final = (
    _Round(template_px=96, reach_px=32, step_px=40, stiffness=4.0, outline=0.3),
    _Round(template_px=64, reach_px=20, step_px=32, stiffness=1.0, outline=0.3),
    _Round(template_px=48, reach_px=10, step_px=24, stiffness=0.3, outline=0.0),
)
_EXCLUSION_PX: Final = 6
_AT_ONCE: Final = 24  # templates: more than the CPU's cache holds would only be slower
_LEAST_PEAK: Final = 0.3
_LEAST_DIFFERENCE: Final = 0.02
_FARTHEST_PX: Final = 3.0  # from the relaxed mesh; more where the others lie no nearer
_DEVIATIONS: Final = 3.0
_REJECTIONS: Final = 4
_LEAST_MATCHES: Final = 6
_LEAST_TEXTURE: Final = 0.15  # of the deviation of the whole image
_SIMILARITY_PX: Final = 12.0


def align(
    prior: FramedImage,
    current: FramedImage,
    *,
    features: Features = band_pass,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Alignment, Overlay]:
    """How the prior lies over the current image; both have lungs. Raises Cancelled."""
    structures = structure(prior.pixels), structure(current.pixels)
    overlay = lay_over(*structures, prior_lungs=prior.lungs, current_lungs=current.lungs)
    compared = features(prior.pixels), features(current.pixels)
    outlines = outline(prior.lungs), outline(current.lungs)
    field, rest, matches = overlay.affine.displacement(), overlay.affine, list[Match]()
    for number, step in enumerate(_ROUNDS):
        if is_cancelled():
            raise Cancelled
        places, found = _matches(*compared, field, step)
        points = places + _shift(found, step)
        targets = points_in_prior(points, field)
        is_good = _believable(found)
        if number == 0:
            rest = _affine(places, targets, is_good, otherwise=rest)
        pull = _Pull(places, targets, found, *outline_pull(*outlines, field))
        field, is_good = _relaxed(pull, is_good, rest=rest, step=step)
        matches = _told(places, targets, found, is_good)
    before = similarity(*structures, current.lungs, displacement=None)
    after = similarity(*structures, current.lungs, displacement=field)
    done = Alignment(
        displacement=field,
        matches=tuple(matches),
        similarity_before=before,
        similarity_after=after,
        least_jacobian=least_jacobian(field),
    )
    return done, overlay


def _matches(prior: Grey, current: Grey, field: Displacement, step: _Round) -> tuple[Points, Peaks]:
    """Templates on a grid, and where each was found in the prior as warped so far."""
    moved = warped(prior, field)
    half, around = step.template_px // 2, step.template_px // 2 + step.reach_px
    starts = np.arange(half, FRAME_SIDE - half + 1, step.step_px)
    starts = starts + (FRAME_SIDE - half - starts[-1]) // 2
    places = np.stack(np.meshgrid(starts, starts, indexing="ij"), axis=-1).reshape(-1, 2)
    places = places[_has_texture(current, places, half)]
    padded = np.pad(moved, ((step.reach_px, step.reach_px), (step.reach_px, step.reach_px), (0, 0)))
    corners = places - half
    found = [
        find_peaks(
            correlate(squares(padded, part, 2 * around), squares(current, part, 2 * half)), exclusion_px=_EXCLUSION_PX
        )
        for part in np.array_split(corners, max(1, len(corners) // _AT_ONCE))
    ]
    rows, columns = own_offset(squares(np.pad(current, ((1, 1), (1, 1), (0, 0))), corners, 2 * half + 2))
    peaks = joined(found)
    return places.astype(np.float64) - 0.5, replace(peaks, rows=peaks.rows - rows, columns=peaks.columns - columns)


def squares(image: Grey, corners: NDArray[np.intp], side: int) -> Grey:
    """Squares (n, side, side, channels) by their upper left corners."""
    return np.stack([image[row : row + side, column : column + side] for row, column in corners])


def _has_texture(image: Grey, places: NDArray[np.intp], half: int) -> NDArray[np.bool_]:
    energy = np.square(image - image.mean(axis=(0, 1))).sum(axis=2)
    local = blurred(energy, half / 2)[places[:, 0].clip(0, FRAME_SIDE - 1), places[:, 1].clip(0, FRAME_SIDE - 1)]
    return np.asarray(local > _LEAST_TEXTURE**2 * energy.mean())


def _shift(found: Peaks, step: _Round) -> Points:
    return np.stack([found.rows, found.columns], axis=1) - step.reach_px


def _believable(found: Peaks) -> NDArray[np.bool_]:
    alike = (found.first >= _LEAST_PEAK) & (found.first - found.second >= _LEAST_DIFFERENCE)
    return np.asarray(alike & ~found.is_at_border)


def _weights(found: Peaks, is_good: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(is_good, found.first.clip(0, None) ** 2, 0.0)


def _affine(places: Points, targets: Points, is_good: NDArray[np.bool_], *, otherwise: Affine) -> Affine:
    """The affine mapping that most matches agree on (iteratively reweighted least squares, Cauchy)."""
    if is_good.sum() < _LEAST_MATCHES:
        return otherwise
    known = np.column_stack([places, np.ones(len(places))])[is_good]
    wanted, weights = targets[is_good], np.ones(int(is_good.sum()))
    for _ in range(10):
        root = np.sqrt(weights)[:, None]
        solution = np.linalg.lstsq(root * known, root * wanted, rcond=None)[0]
        errors = np.linalg.norm(known @ solution - wanted, axis=1)
        weights = 1 / (1 + np.square(errors / 6.0))
    matrix = solution[:2].T
    stretch = np.linalg.svd(matrix, compute_uv=False)
    if np.linalg.det(matrix) <= 0 or stretch[0] > 1.6 or stretch[1] < 0.6:
        return otherwise
    return Affine(matrix, solution[2])


@dataclass(frozen=True, eq=False, slots=True)
class _Pull:
    """Where matches lie in the current frame and in the prior's, (n, 2) each, how well they match; outlines alike."""

    places: Points
    targets: Points
    found: Peaks
    outline: Points
    outline_targets: Points


def _relaxed(
    pull: _Pull, is_good: NDArray[np.bool_], *, rest: Affine, step: _Round
) -> tuple[Displacement, NDArray[np.bool_]]:
    """The mesh by the matches that agree with it: what lies far from it is rejected, and it is relaxed again."""
    points = np.concatenate([pull.places, pull.outline])
    targets = np.concatenate([pull.targets, pull.outline_targets])
    held = np.full(len(pull.outline), step.outline)
    for _ in range(_REJECTIONS):
        weights = np.concatenate([_weights(pull.found, is_good), held])
        field, moved = relaxed(points, targets, weights, rest=rest, stiffness=step.stiffness)
        errors = np.linalg.norm(points + moved - targets, axis=1)[: len(is_good)]
        if not is_good.any():
            break
        limit = max(_FARTHEST_PX, _DEVIATIONS * 1.48 * float(np.median(errors[is_good])))
        nearer = is_good & (errors <= limit)
        if (nearer == is_good).all():
            break
        is_good = nearer
    return field, is_good


def _told(places: Points, targets: Points, found: Peaks, is_good: NDArray[np.bool_]) -> list[Match]:
    return [
        Match(
            row=float(place[0]),
            column=float(place[1]),
            prior_row=float(target[0]),
            prior_column=float(target[1]),
            first_peak=float(first),
            second_peak=float(second),
            is_kept=bool(kept),
        )
        for place, target, first, second, kept in zip(places, targets, found.first, found.second, is_good, strict=True)
    ]


def similarity(prior: Grey, current: Grey, inside: Mask, *, displacement: Displacement | None) -> float:
    """Mean over `inside` of the NCC of both structures around each pixel, -1..1."""
    moved = prior if displacement is None else warped(prior, displacement)
    local = local_similarity(moved, current)
    return float(local[inside].mean()) if inside.any() else 0.0


def local_similarity(first: Grey, second: Grey) -> Grey:
    """NCC of two structures (rows, columns) under a Gaussian window around each pixel, -1..1."""
    one, other = (image - blurred(image, _SIMILARITY_PX) for image in (first, second))
    energies = blurred(np.square(one), _SIMILARITY_PX) * blurred(np.square(other), _SIMILARITY_PX)
    local: Grey = blurred(one * other, _SIMILARITY_PX) / np.sqrt(energies.clip(1e-12, None))
    return local.clip(-1, 1)
