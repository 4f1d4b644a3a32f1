"""Comparison of two framed images: their alignment, its plausibility, and the change between the images.

1. Placement. The prior is placed over the current image as a whole: moved, turned and scaled. The lungs of both images
give the first guess. A coarse search tries 25 pairs of scale and angle by normalised cross-correlation, and the best
pair decides. A mirrored prior, and a prior with black and white swapped, are tried as well. If one of these two fits
better, the images are not compared and the reason is given. Images are never corrected silently.

2. Mesh. Three rounds of template matching refine the placement, each with smaller templates and a shorter search
distance. In each round the prior is warped by the displacement so far. Templates of the current image are searched in
the warped prior, doubtful matches are rejected, and the mesh is relaxed again. Positions of matches always refer to the
unwarped prior, so that the errors of rounds do not add up. Where templates find no structure, the outlines of the lungs
attract each other.

3. Plausibility. An alignment is plausible if the images seem to be X-rays of one patient, neither mirrored nor
inverted. The thresholds were chosen on one part of the image pairs in `benchmarks/comparison_pairs.py`, and measured on
the other part.

4. Change. The change is the part of the difference between current image and aligned prior that exceeds the difference
of any two X-rays. Both images are normalised inside the lungs (mean and deviation) and subtracted. The difference is
averaged over areas as large as opacities, and the average of the wider surroundings is subtracted. The noise of a pair
is estimated from the median absolute deviation of these averages, which a local change does not affect. The noise is
never set below the noise between an image and its warped copy. A region is reported if the change reaches five times
the noise. Two images of one patient with unchanged findings then have at most one false region on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.matching import (
    Affine,
    Displacement,
    GreyFloatImage,
    Peaks,
    Points,
    band_pass,
    blur,
    correlate,
    find_peaks,
    join_peaks,
    min_jacobian,
    normalise_locally,
    points_in_prior,
    relax_mesh,
    subpixel_bias,
    warp,
)
from fieldray.domain.comparison import (
    FRAME_SIDE,
    WEAKEST_SHOWN_CHANGE,
    AlignedPair,
    Alignment,
    ChangeRegion,
    ComparisonProblem,
    FramedImage,
    MatchedSquare,
    PairComparison,
    sample_at,
)
from fieldray.domain.image import Box
from fieldray.domain.mask import Mask, components
from fieldray.processes.child import ChildFunction, make_message_handler
from fieldray.reasons import Reason, reason

_COARSE: Final = 4  # side, in pixels of the frame, of one pixel of the coarse image
_REACH: Final = 20  # coarse pixels: how far the search goes around the guess
_SCALES: Final = (0.87, 0.93, 1.0, 1.07, 1.15)
_ANGLES: Final = (-9.0, -4.5, 0.0, 4.5, 9.0)  # degrees
_MARGIN: Final = 0.1  # margin around the lungs, as a share of their extent
_WIDE: Final = (3.0, 24.0)  # band-pass of the search, pixels of the frame


@dataclass(frozen=True, slots=True)
class PriorPlacement:
    """A placement of the prior over the current image, with its similarity (NCC: normalised cross-correlation, -1..1).

    affine               maps positions of the current image to the prior
    similarity           NCC around the lungs at this placement, between the two images after
                         `keep_anatomical_structures`
    mirrored_similarity  best NCC with the prior mirrored left to right
    inverted_similarity  best NCC with black and white of the prior swapped
    """

    affine: Affine
    similarity: float
    mirrored_similarity: float
    inverted_similarity: float


def find_placement(
    prior: GreyFloatImage, current: GreyFloatImage, *, prior_lungs: Mask, current_lungs: Mask
) -> PriorPlacement:
    """Find the best placement of the prior over the current image by a coarse search.

    prior, current              images as `keep_anatomical_structures` returns them
    prior_lungs, current_lungs  lung masks (rows, columns); each must contain a lung pixel
    """
    small, box = (_coarse(prior), _coarse(current)), _box(current_lungs)
    centre, scale = _centre(current_lungs), _extent(prior_lungs) / _extent(current_lungs)
    affine, best, worst = _search(*small, box, centre, _centre(prior_lungs), scale=scale)
    flipped, flipped_centre = small[0][:, ::-1], _centre(prior_lungs[:, ::-1])
    _, mirrored, _ = _search(flipped, small[1], box, centre, flipped_centre, scale=scale)
    return PriorPlacement(affine, similarity=best, mirrored_similarity=mirrored, inverted_similarity=-worst)


def keep_anatomical_structures(pixels: NDArray[np.uint8]) -> GreyFloatImage:
    """Reduce an image (rows, columns) uint8 to ribs, heart and diaphragm: float32, almost independent of exposure."""
    return normalise_locally(band_pass(pixels, fine_px=_WIDE[0], coarse_px=_WIDE[1])[:, :, 0])


def _search(
    prior: GreyFloatImage,
    current: GreyFloatImage,
    box: tuple[slice, slice],
    centre: NDArray[np.float64],
    prior_centre: NDArray[np.float64],
    *,
    scale: float,
) -> tuple[Affine, float, float]:
    """Search all scales and angles for the placement where a template of the current image fits the prior best.

    Returns the best mapping, the highest similarity, and the lowest similarity.

    prior, current        coarse images, see `_coarse`
    box                   the template: row and column slices of the current image
    centre, prior_centre  centres of the lungs in the current image and in the prior (pixels of the frame)
    scale                 how much larger the lungs are in the prior
    """
    template = current[box]
    matrices = [share * scale * _turn(angle) for share in _SCALES for angle in _ANGLES]
    rows = np.arange(box[0].start - _REACH, box[0].stop + _REACH, dtype=np.float64)
    columns = np.arange(box[1].start - _REACH, box[1].stop + _REACH, dtype=np.float64)
    across, down = np.meshgrid(columns - centre[1] / _COARSE, rows - centre[0] / _COARSE)
    views = []
    for matrix in matrices:
        positions = [
            matrix[axis, 0] * down + matrix[axis, 1] * across + prior_centre[axis] / _COARSE for axis in range(2)
        ]
        views.append(sample_at(prior, *positions))
    surfaces = correlate(np.stack(views), template[None])
    one, row, column = np.unravel_index(int(surfaces.argmax()), surfaces.shape)
    shift = np.array([row - _REACH, column - _REACH], float) * _COARSE
    matrix = matrices[int(one)]
    # prior = matrix @ (current + shift - centre) + prior_centre
    affine = Affine(matrix, prior_centre + matrix @ (shift - centre))
    return affine, float(surfaces.max()), float(surfaces.min())


def _turn(angle: float) -> NDArray[np.float64]:
    radians = np.deg2rad(angle)
    return np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])


def _coarse(image: GreyFloatImage) -> GreyFloatImage:
    side = FRAME_SIDE // _COARSE
    means: GreyFloatImage = image.reshape(side, _COARSE, side, _COARSE).mean(axis=(1, 3))
    return means


def _centre(lungs: Mask) -> NDArray[np.float64]:
    """Return the centre (row, column) of the box around the lungs. A large heart does not move this centre."""
    rows, columns = np.flatnonzero(lungs.any(axis=1)), np.flatnonzero(lungs.any(axis=0))
    return np.array([rows[0] + rows[-1], columns[0] + columns[-1]]) / 2


def _extent(lungs: Mask) -> float:
    """Return the width of the lungs in pixels. A deep breath changes the width less than the height."""
    columns = np.flatnonzero(lungs.any(axis=0))
    return float(columns[-1] - columns[0] + 1)


def _box(lungs: Mask) -> tuple[slice, slice]:
    """Return the box around the lungs with a margin, as row and column slices of the coarse image."""
    spans = []
    for axis in (1, 0):
        filled = np.flatnonzero(lungs.any(axis=axis))
        more = _MARGIN * (filled[-1] - filled[0])
        start, stop = max(0.0, filled[0] - more), min(float(FRAME_SIDE), filled[-1] + more)
        spans.append(slice(int(start) // _COARSE, max(int(stop) // _COARSE, int(start) // _COARSE + 8)))
    return spans[0], spans[1]


_EVERY: Final = 8  # points along an outline
_SLACK_PX: Final = 2.0  # tolerance: two outlines of one pair of lungs differ by this much without a reason
_REACH_PX: Final = 48.0


def outline_points(lungs: Mask) -> Points:
    """Return the outline of a mask as positions (n, 2): mask pixels that have a neighbour outside the mask."""
    padded = np.pad(lungs, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.argwhere(lungs & ~inner).astype(np.float64)


def outline_matches(prior: Points, current: Points, displacement: Displacement) -> tuple[Points, Points]:
    """Return points of the current image's lung outline, and the positions in the prior to which they should move.

    Parameters
    ----------
    prior, current
        Outlines of the lungs (n, 2) each, as `outline_points` returns them.
    displacement
        The displacement found so far, from the current frame to the prior's frame.

    Returns
    -------
    Points of the current frame (m, 2) and positions in the prior (m, 2). Each position lies on the way to the nearest
    outline point of the prior, 2 pixels before this point. Points with no outline point within 48 pixels are omitted.
    """
    if not len(prior) or not len(current):
        return np.zeros((0, 2)), np.zeros((0, 2))
    points = current[::_EVERY]
    positions = points_in_prior(points, displacement)
    away = prior[None] - positions[:, None]
    distances = np.sqrt(np.square(away).sum(axis=2))
    nearest, each = distances.argmin(axis=1), np.arange(len(points))
    distance = distances[each, nearest]
    share = (distance - _SLACK_PX).clip(0, None) / distance.clip(_SLACK_PX, None)
    targets = positions + share[:, None] * away[each, nearest]
    is_near = distance < _REACH_PX
    return points[is_near], targets[is_near]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchingRound:
    """One round of matching. Template side, search distance and grid spacing are in pixels of the frame.

    stiffness       stiffness of the mesh's springs, as in `relax_mesh`
    outline_weight  weight of each outline point, relative to 1 for a perfect match; 0 in the last round
    """

    template_px: int
    search_px: int
    step_px: int
    stiffness: float
    outline_weight: float


_ROUNDS: Final = (
    _MatchingRound(template_px=96, search_px=32, step_px=40, stiffness=4.0, outline_weight=0.3),
    _MatchingRound(template_px=64, search_px=20, step_px=32, stiffness=1.0, outline_weight=0.3),
    _MatchingRound(template_px=48, search_px=10, step_px=24, stiffness=0.3, outline_weight=0.0),
)
_EXCLUSION_PX: Final = 6
_TEMPLATES_PER_CALL: Final = 24  # templates per call: more would not fit the CPU's cache and be slower
_MIN_PEAK_NCC: Final = 0.3
_MIN_PEAK_LEAD: Final = 0.02
_MAX_MESH_DISTANCE_PX: Final = 3.0  # maximum distance of a match from the relaxed mesh, unless the median is large
_DEVIATIONS: Final = 3.0
_REJECTIONS: Final = 4
_MIN_MATCHES: Final = 6
_MIN_TEXTURE: Final = 0.15  # local deviation, as a share of the deviation of the whole image
_SIMILARITY_PX: Final = 12.0


def align(prior: FramedImage, current: FramedImage) -> tuple[Alignment, PriorPlacement]:
    """Align the prior to the current image; both must have lungs. Returns the alignment and the first placement."""
    structures = keep_anatomical_structures(prior.pixels), keep_anatomical_structures(current.pixels)
    placement = find_placement(*structures, prior_lungs=prior.lungs, current_lungs=current.lungs)
    compared = band_pass(prior.pixels), band_pass(current.pixels)
    outlines = outline_points(prior.lungs), outline_points(current.lungs)
    field, rest, matches = placement.affine.displacement(), placement.affine, tuple[MatchedSquare, ...]()
    for number, step in enumerate(_ROUNDS):
        positions, found = _matches(*compared, field, step)
        points = positions + np.stack([found.rows, found.columns], axis=1) - step.search_px
        targets = points_in_prior(points, field)
        is_good = credible_peak_mask(found)
        if number == 0:
            rest = _affine(positions, targets, is_good, otherwise=rest)
        pull = outline_matches(*outlines, field)
        field, is_good = _relaxed(positions, targets, found, is_good, pull, rest=rest, step=step)
        found_at = zip(positions.tolist(), is_good.tolist(), strict=True)
        matches = tuple(MatchedSquare(row, column, kept) for (row, column), kept in found_at)
    before = similarity(*structures, current.lungs, displacement=None)
    after = similarity(*structures, current.lungs, displacement=field)
    done = Alignment(
        displacement=field,
        matches=matches,
        similarity_before=before,
        similarity_after=after,
        min_jacobian=min_jacobian(field),
    )
    return done, placement


def _matches(
    prior: GreyFloatImage, current: GreyFloatImage, field: Displacement, step: _MatchingRound
) -> tuple[Points, Peaks]:
    """Search templates of the current image, taken on a grid, in the prior warped by `field`.

    Returns the positions of the templates (n, 2) and the peaks of their matches.
    """
    moved = warp(prior, field)
    half, around = step.template_px // 2, step.template_px // 2 + step.search_px
    starts = np.arange(half, FRAME_SIDE - half + 1, step.step_px)
    starts = starts + (FRAME_SIDE - half - starts[-1]) // 2
    positions = np.stack(np.meshgrid(starts, starts, indexing="ij"), axis=-1).reshape(-1, 2)
    positions = positions[_has_texture(current, positions, half)]
    padded = np.pad(moved, ((step.search_px, step.search_px), (step.search_px, step.search_px), (0, 0)))
    corners = positions - half
    found = [
        find_peaks(
            correlate(cut_squares(padded, part, 2 * around), cut_squares(current, part, 2 * half)),
            exclusion_px=_EXCLUSION_PX,
        )
        for part in np.array_split(corners, max(1, len(corners) // _TEMPLATES_PER_CALL))
    ]
    rows, columns = subpixel_bias(cut_squares(np.pad(current, ((1, 1), (1, 1), (0, 0))), corners, 2 * half + 2))
    peaks = join_peaks(found)
    return positions.astype(np.float64) - 0.5, replace(peaks, rows=peaks.rows - rows, columns=peaks.columns - columns)


def cut_squares(image: GreyFloatImage, corners: NDArray[np.intp], side: int) -> GreyFloatImage:
    """Cut squares (n, side, side, channels) out of an image at their upper left corners (n, 2), each (row, column)."""
    return np.stack([image[row : row + side, column : column + side] for row, column in corners])


def _has_texture(image: GreyFloatImage, positions: NDArray[np.intp], half: int) -> NDArray[np.bool_]:
    energy = np.square(image - image.mean(axis=(0, 1))).sum(axis=2)
    local = blur(energy, half / 2)[positions[:, 0].clip(0, FRAME_SIDE - 1), positions[:, 1].clip(0, FRAME_SIDE - 1)]
    return np.asarray(local > _MIN_TEXTURE**2 * energy.mean())


def credible_peak_mask(found: Peaks) -> NDArray[np.bool_]:
    """Return which peaks of a template search are credible: a mask (n,) bool.

    A credible peak is high, clearly above the second value, and not at the border of the search area.
    """
    alike = (found.highest >= _MIN_PEAK_NCC) & (found.highest - found.second_highest >= _MIN_PEAK_LEAD)
    return np.asarray(alike & ~found.is_at_border)


def _affine(positions: Points, targets: Points, is_good: NDArray[np.bool_], *, otherwise: Affine) -> Affine:
    """Fit the affine mapping from positions to targets on which most good matches agree.

    The method is iteratively reweighted least squares with Cauchy weights. Returns `otherwise` if there are too few
    matches, or if the mapping mirrors or stretches too much.
    """
    if is_good.sum() < _MIN_MATCHES:
        return otherwise
    known = np.column_stack([positions, np.ones(len(positions))])[is_good]
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


def _relaxed(
    positions: Points,
    targets: Points,
    found: Peaks,
    is_good: NDArray[np.bool_],
    pull: tuple[Points, Points],
    *,
    rest: Affine,
    step: _MatchingRound,
) -> tuple[Displacement, NDArray[np.bool_]]:
    """Relax the mesh, reject matches that the mesh contradicts, and repeat until no match is rejected.

    positions, targets  the matches (n, 2) in the current frame and in the prior's frame
    pull                outline points in both frames, as `outline_matches` returns them
    rest                the mapping to which the springs pull

    Returns the displacement, and a mask (n,) of the matches that were kept.
    """
    points, targets = np.concatenate([positions, pull[0]]), np.concatenate([targets, pull[1]])
    held = np.full(len(pull[0]), step.outline_weight)
    for _ in range(_REJECTIONS):
        weights = np.concatenate([np.where(is_good, found.highest.clip(0, None) ** 2, 0.0), held])
        field, moved = relax_mesh(points, targets, weights, rest=rest, stiffness=step.stiffness)
        errors = np.linalg.norm(points + moved - targets, axis=1)[: len(is_good)]
        if not is_good.any():
            break
        limit = max(_MAX_MESH_DISTANCE_PX, _DEVIATIONS * 1.48 * float(np.median(errors[is_good])))
        nearer = is_good & (errors <= limit)
        if (nearer == is_good).all():
            break
        is_good = nearer
    return field, is_good


def similarity(
    prior: GreyFloatImage, current: GreyFloatImage, inside: Mask, *, displacement: Displacement | None
) -> float:
    """Return the mean NCC of two images inside a mask, after `keep_anatomical_structures`: -1..1; 0 for an empty mask.

    displacement  the displacement by which the prior is warped first; None for no warping
    """
    moved = prior if displacement is None else warp(prior, displacement)
    local = local_similarity(moved, current)
    return float(local[inside].mean()) if inside.any() else 0.0


def local_similarity(first: GreyFloatImage, second: GreyFloatImage) -> GreyFloatImage:
    """Return the NCC (rows, columns) in -1..1 of two filtered images in a Gaussian window around each pixel."""
    one, other = (image - blur(image, _SIMILARITY_PX) for image in (first, second))
    energies = blur(np.square(one), _SIMILARITY_PX) * blur(np.square(other), _SIMILARITY_PX)
    local = blur(one * other, _SIMILARITY_PX) / np.sqrt(energies.clip(1e-12, None))
    similarity: GreyFloatImage = local.clip(-1, 1).astype(np.float32, copy=False)
    return similarity


# ---- whether the alignment can be believed, and the change

_MIN_LUNG_SHARE: Final = 0.04  # share of the frame


def compare(prior: FramedImage, current: FramedImage) -> PairComparison:
    """Align two framed images and find the change. If that is not possible, the result names the reason."""
    for name, image in (("prior", prior), ("current", current)):
        if image.lungs.mean() < _MIN_LUNG_SHARE:
            problem = ComparisonProblem(reason=reason("compare_cut"), image="prior" if name == "prior" else "current")
            return PairComparison(prior=prior, current=current, problem=problem)
    alignment, placement = align(prior, current)
    figure = reliability(alignment, placement, current.lungs)
    why = alignment_problem(alignment, placement, current.lungs)
    if why is not None:
        problem = ComparisonProblem(reason=why)
        return PairComparison(
            prior=prior, current=current, problem=problem, rejected_alignment=alignment, reliability=figure
        )
    moved = warp(prior.pixels, alignment.displacement)
    change = measure_change(prior, current, alignment.displacement)
    aligned = AlignedPair(
        alignment=alignment,
        warped_prior=np.rint(moved).astype(np.uint8),
        change=change,
        regions=change_regions(change),
    )
    return PairComparison(prior=prior, current=current, aligned_pair=aligned, reliability=figure)


_MIN_MATCHES_IN_LUNGS: Final = 12
# Weights of `reliability`, from logistic regression on 80 pairs of one patient and 80 pairs of two patients of the
# choosing part. The minimum rejects 93 % of the pairs of two patients.
_SIMILAR, _KEPT, _AFTER = 1.0, 0.67, 0.1
MIN_RELIABILITY: Final = 0.80
_MIRRORED_BY: Final = 0.03
_INVERTED_BY: Final = 0.03


def reliability(alignment: Alignment, placement: PriorPlacement, lungs: Mask) -> float:
    """Return a score, about 0..1.8; the higher, the more likely both images are X-rays of one patient.

    The score is a weighted sum of three figures: the similarity of the placement, the share of matches kept in the
    lungs, and the similarity after alignment.

    alignment  the alignment of the images
    placement  the placement from which the alignment started
    lungs      mask (rows, columns) of the current image's lungs
    """
    kept = kept_match_share(alignment, lungs)
    return _SIMILAR * placement.similarity + _KEPT * kept + _AFTER * alignment.similarity_after


def kept_match_share(alignment: Alignment, lungs: Mask) -> float:
    """Return the share of the matches in the lungs that was not rejected, 0..1; 0 for fewer than 12 matches."""
    inside = [match.is_kept for match in alignment.matches if lungs[round(match.row), round(match.column)]]
    return float(np.mean(inside)) if len(inside) >= _MIN_MATCHES_IN_LUNGS else 0.0


def alignment_problem(alignment: Alignment, placement: PriorPlacement, lungs: Mask) -> Reason | None:
    """Return the reason why an alignment is implausible, so that the images are not compared; None if plausible.

    alignment  the alignment of the images
    placement  the placement from which the alignment started
    lungs      mask (rows, columns) of the current image's lungs
    """
    if placement.mirrored_similarity > placement.similarity + _MIRRORED_BY:
        return reason("compare_mirrored")
    if placement.inverted_similarity > placement.similarity + _INVERTED_BY:
        return reason("compare_inverted")
    if kept_match_share(alignment, lungs) == 0:
        return reason("compare_no_matches")
    if not reliability(alignment, placement, lungs) >= MIN_RELIABILITY:
        return reason("compare_unlike")
    return None


# Sizes at which the difference is averaged: (standard deviation of the average, of its surroundings) in pixels of the
# frame, and the minimum noise of the average in units of the lungs' deviation. The minimum is several times the 0.004
# that warping alone leaves in copies of images (`python -m benchmarks comparison DATA --part choose`).
BAND_NOISE_FLOORS: Final = {(8.0, 20.0): 0.02, (14.0, 35.0): 0.02, (22.0, 55.0): 0.02}
# Multiple of the noise at which a region begins. On 15 stable pairs of the choosing part, a multiple of 4.5 gave 1.1
# regions per pair, and 5 gives 0.8.
MIN_REGION_STRENGTH: Final = 5.0
_MIN_REGION_PX: Final = 60
_MAX_REGIONS: Final = 20
_ERODED_PX: Final = 4.0
_STAYS: Final = 0.85
_GAUSSIAN: Final = 1.4826  # standard deviations in a median absolute deviation
_MIN_LUNG_PX: Final = 2000
_MIN_DEVIATION: Final = 1.0  # grey levels


def compared_area(prior: FramedImage, current: FramedImage, displacement: Displacement) -> Mask:
    """Return the mask of the compared area: the inside of the lungs of both images, without the edges.

    At an edge, a misalignment of one pixel would look like a change.
    """
    moved = warp(prior.lungs.astype(np.float32), displacement) > 0.5
    both = (moved & current.lungs).astype(np.float32)
    return np.asarray(blur(both, _ERODED_PX) > _STAYS) & current.lungs & moved


def averaged_differences(
    warped_prior: NDArray[np.float32], current: FramedImage, inside: Mask
) -> Mapping[tuple[float, float], GreyFloatImage]:
    """Return the difference of two images (rows, columns), averaged over areas of several sizes.

    Each key is (smaller size, larger size), as in `BAND_NOISE_FLOORS`. Each value is the average over the smaller size
    minus the average over the larger size, and 0 outside the mask `inside`.
    """
    difference = (_normalised(current.pixels, inside) - _normalised(warped_prior, inside)) * inside
    weights = inside.astype(np.float32)
    found = {}
    for fine, coarse in BAND_NOISE_FLOORS:
        near = blur(difference, fine) / blur(weights, fine).clip(0.05, None)
        far = blur(difference, coarse) / blur(weights, coarse).clip(0.05, None)
        found[fine, coarse] = np.where(inside, near - far, np.float32(0)).astype(np.float32)
    return found


def _normalised(image: NDArray[Any], inside: Mask) -> GreyFloatImage:
    """Normalise an image to zero mean and unit deviation inside the lungs."""
    grey = image.astype(np.float32)
    values = grey[inside]
    normal: GreyFloatImage = (grey - values.mean()) / max(float(values.std()), _MIN_DEVIATION)
    return normal


def robust_deviation(average: GreyFloatImage, inside: Mask) -> float:
    """Estimate the standard deviation of an image inside a mask from the median absolute deviation."""
    values = average[inside]
    return _GAUSSIAN * float(np.median(np.abs(values - np.median(values))))


def measure_change(prior: FramedImage, current: FramedImage, displacement: Displacement) -> GreyFloatImage:
    """Return the change of each pixel: (rows, columns) float32 in units of the noise.

    The change is positive where the current image is denser (whiter). Each pixel has the strongest change of all sizes
    in `BAND_NOISE_FLOORS`. Outside the compared area the change is 0.
    """
    inside = compared_area(prior, current, displacement)
    strongest = np.zeros(inside.shape, np.float32)
    if inside.sum() < _MIN_LUNG_PX:
        return strongest
    for band, average in averaged_differences(warp(prior.pixels, displacement), current, inside).items():
        strength = (average / max(BAND_NOISE_FLOORS[band], robust_deviation(average, inside))).astype(np.float32)
        strongest = np.where(np.abs(strength) > np.abs(strongest), strength, strongest)
    return strongest


def change_regions(change: GreyFloatImage) -> tuple[ChangeRegion, ...]:
    """Return the connected regions whose change reaches `MIN_REGION_STRENGTH`, the strongest first.

    A region extends as far as the change is at least `WEAKEST_SHOWN_CHANGE`.
    """
    found = [*_regions(change, sign=1), *_regions(change, sign=-1)]
    return tuple(sorted(found, key=lambda region: -abs(region.strength))[:_MAX_REGIONS])


def _regions(change: GreyFloatImage, *, sign: int) -> list[ChangeRegion]:
    signed = sign * change
    labels = components(signed >= WEAKEST_SHOWN_CHANGE)
    found = list[ChangeRegion]()
    for number in np.unique(labels[signed >= MIN_REGION_STRENGTH]):
        part = labels == number
        area = int(part.sum())
        if number == 0 or area < _MIN_REGION_PX:
            continue
        rows, columns = np.flatnonzero(part.any(axis=1)), np.flatnonzero(part.any(axis=0))
        box = Box(
            top=float(rows[0]),
            left=float(columns[0]),
            height=float(rows[-1] - rows[0] + 1),
            width=float(columns[-1] - columns[0] + 1),
        )
        found.append(ChangeRegion(box=box, area_px=area, strength=sign * float(signed[part].max())))
    return found


COMPARISON_SERVICE: Final = "fieldray.comparison.compare:handle"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CompareRequest:
    """A request to compare two images: a prior and a current image, each in its square frame."""

    prior: FramedImage
    current: FramedImage


COMPARE: Final = ChildFunction("compare", CompareRequest, PairComparison)
handle: Final = make_message_handler((COMPARE, lambda pair: compare(pair.prior, pair.current)))
