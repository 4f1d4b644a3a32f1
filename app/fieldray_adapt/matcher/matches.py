"""Matches whose truth is known, and all that they are made of: descriptions, warps, and the consensus of a pair.

What the encoder is measured against: the image as it is, normalised by its surroundings, or passed through a band.

Each takes images (n, rows, columns) uint8 and gives features (n, rows, columns, channels) float32.

Known warps and changes of exposure: what the truth of the evaluation is made of. The training reads none of it.

Point p of a warped image shows what the image has at p + d(p), so that a template cut from the warped image belongs at
its own place plus d, in the image as it was. Displacements are rows and columns in pixels.

Matches whose truth is known: where templates of an image belong in another, and where each description finds them.

There are four groups. In *near* and *far* both images of a pair are one image, and the truth is the warp alone: near
ones are warped little and exposed alike; far ones are warped by up to 8 % of the side and exposed as if by another
detector on another day. In *two images, near* and *far* they are a patient's images at two times. No warp is known
between them, so that their truth is a known warp of the prior image followed by a consensus (see `consensus`).

Where an earlier image belongs in the later one, as far as large templates agree: a truth for real pairs.

Nobody has marked points in these pairs. Templates of 128 pixels, more than four times the area of those that are
measured, are matched by grey levels and by the band-pass, never by the encoder; if the consensus favours anybody, it is
the baselines. What most of them agree on is a displacement that is a polynomial of the second degree. A pair on which
fewer than half agree has no truth and is left out, and that does not depend on the encoder either. A rib and a vessel
behind it move differently from one breath to the next, so that the polynomial is right to some pixels only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fieldray_adapt.matcher.recipe import locally_normalised

Grey = NDArray[np.uint8]
Planes = NDArray[np.float32]
Describe = Callable[[Grey], Planes]

FINE_PX: Final = (1.0, 2.0, 3.0)
COARSE_PX: Final = (8.0, 12.0, 20.0, 30.0)


def raw(images: Grey) -> Planes:
    """The grey levels."""
    return images.astype(np.float32)[..., None]


def band_pass(images: Grey, *, fine_px: float, coarse_px: float) -> Planes:
    """The difference of two Gaussians of these standard deviations, in pixels."""
    values = images.astype(np.float32)
    near, far = (ndimage.gaussian_filter(values, (0, sigma, sigma)) for sigma in (fine_px, coarse_px))
    passed: Planes = (near - far)[..., None]
    return passed


def normalised(images: Grey, *, radius_px: int) -> Planes:
    """What the encoder sees, without the encoder."""
    return np.stack([locally_normalised(image, radius_px=radius_px) for image in images]).astype(np.float32)[..., None]


def bands() -> dict[tuple[float, float], Describe]:
    """The band-passes among which the validation pairs choose, by their two standard deviations."""
    return {
        (fine, coarse): partial(band_pass, fine_px=fine, coarse_px=coarse) for fine in FINE_PX for coarse in COARSE_PX
    }


Field = NDArray[np.float32]
_KNOTS: Final = 4
_LEAST_JACOBIAN: Final = 0.5
_SMALLER: Final = 0.85


def draw_warp(side: int, *, largest_px: float, generator: np.random.Generator) -> Field:
    """A smooth random displacement (side, side, 2) whose longest vector has `largest_px`, without folds.

    Where the drawn one would press an area below 0.5 of itself, it is made smaller by steps.
    """
    knots = generator.standard_normal((2, _KNOTS, _KNOTS)).astype(np.float32)
    planes = [Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC) for one in knots]
    field = np.stack([np.asarray(plane) for plane in planes], axis=-1)
    field = field * np.float32(largest_px / np.hypot(field[..., 0], field[..., 1]).max())
    while jacobian(field).min() < _LEAST_JACOBIAN:
        field = field * np.float32(_SMALLER)
    return np.asarray(field, np.float32)


def jacobian(field: Field) -> Field:
    """The determinant at each pixel of p -> p + d(p): (rows, columns); below 0 the image folds over."""
    (row_by_row, row_by_column), (column_by_row, column_by_column) = (np.gradient(field[..., axis]) for axis in (0, 1))
    return np.asarray((1 + row_by_row) * (1 + column_by_column) - row_by_column * column_by_row, np.float32)


def warp(image: Grey, field: Field) -> Grey:
    """The warped image (rows, columns) uint8, interpolated linearly; beyond the border the border goes on."""
    places = np.moveaxis(field, -1, 0) + np.indices(image.shape, np.float32)
    return np.asarray(ndimage.map_coordinates(image, places, order=1, mode="nearest"), np.uint8)


def expose_mildly(image: Grey, generator: np.random.Generator) -> Grey:
    """Another exposure with the same detector: gamma, contrast, a little noise."""
    return _quantised(_noisy(_toned(image / 255, generator, most=0.15), generator, most=0.015))


def expose_strongly(image: Grey, generator: np.random.Generator) -> Grey:
    """Another exposure, detector and day: scatter, gamma, contrast, blur, noise, opacities, and tubes on top."""
    values = image / 255
    scatter = generator.uniform(0.2, 0.6)
    values = (1 - scatter) * values + scatter * ndimage.gaussian_filter(values, 0.08 * len(image))
    values = _toned(values, generator, most=0.4)
    for _ in range(int(generator.integers(1, 5))):
        values = _opacified(values, generator)
    for _ in range(int(generator.integers(0, 4))):
        values = _with_tube(values, generator)
    values = ndimage.gaussian_filter(values, generator.uniform(0.3, 1.6))
    values = _noisy(values, generator, most=0.03)
    low, high = np.percentile(values, (1, 99))  # as the program prepares every image
    return _quantised((values - low) / max(high - low, 0.01))


def _quantised(values: NDArray[Any]) -> Grey:
    return np.asarray(np.rint(values.clip(0, 1) * 255), np.uint8)


def _toned(values: NDArray[Any], generator: np.random.Generator, *, most: float) -> NDArray[Any]:
    gamma, contrast = np.exp(generator.uniform(-most, most, 2))
    toned: NDArray[Any] = (values.clip(0, 1) ** gamma - 0.5) * contrast + 0.5 + generator.uniform(-most, most) / 5
    return toned


def _noisy(values: NDArray[Any], generator: np.random.Generator, *, most: float) -> NDArray[Any]:
    """Noise of the photons, more where it is bright, over two pixels."""
    noise = ndimage.gaussian_filter(generator.standard_normal(values.shape), 0.6)
    noisy: NDArray[Any] = values + generator.uniform(0, most) * noise / noise.std() * np.sqrt(values.clip(0.05, 1))
    return noisy


def _opacified(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    side = values.shape[0]
    down, across = np.indices(values.shape)
    (row, column), reach = generator.uniform(0.15, 0.85, 2) * side, generator.uniform(0.03, 0.15) * side
    blob = np.exp(-((down - row) ** 2 + (across - column) ** 2) / (2 * reach**2))
    opacified: NDArray[Any] = values + generator.uniform(-0.1, 0.25) * blob
    return opacified


def _with_tube(values: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    """A bright line across the image, straight or bent, two to five pixels wide."""
    side = values.shape[0]
    share = np.linspace(0, 1, 4 * side)
    ends = generator.uniform(0, side, (3, 2))
    curve = (1 - share)[:, None] ** 2 * ends[0] + 2 * (share * (1 - share))[:, None] * ends[1]
    rows, columns = (curve + share[:, None] ** 2 * ends[2]).round().astype(int).clip(0, side - 1).T
    line = np.zeros(values.shape)
    line[rows, columns] = 1
    wide = ndimage.gaussian_filter(ndimage.grey_dilation(line, size=int(generator.integers(2, 6))), 0.7)
    tubed: NDArray[Any] = values + generator.uniform(0.1, 0.35) * wide
    return tubed


_BATCH: Final = 24
_LEAST_DEVIATION: Final = 4.0
"""Grey levels: a flatter template shows air, and nothing could say where it belongs."""
_ROUNDS: Final = 60
_SPARE: Final = 4


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TruePair:
    """Two images, and for each point of the prior where it belongs in the current: itself + `truth` (rows, columns, 2).

    The truth is NaN where it is not known. `tolerance_px`: farther than this from it a match is false.
    """

    prior: Grey
    current: Grey
    truth: Field
    group: str
    patient: str
    tolerance_px: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Matches:
    """What one description found for the same templates as all others.

    Attributes
    ----------
    error_px
        (n,) the larger of the distances along the axes between what was found and the truth.
    first, second
        (n,) P1 and P2.
    is_false
        (n,) whether the error is above the tolerance.
    groups, patients, templates
        (n,) of each match; `templates` the template's side.
    """

    error_px: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    is_false: NDArray[np.bool_]
    groups: NDArray[np.str_]
    patients: NDArray[np.str_]
    templates: NDArray[np.int64]

    @property
    def gap(self) -> NDArray[np.float32]:
        """P1 - P2, by which matches are rejected."""
        return self.first - self.second


def draw_places(
    pair: TruePair, *, template: int, reach: int, count: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """First pixels (n, 2) of templates: search windows inside the image, a truth within reach, not flat. n <= count."""
    side = len(pair.prior)
    found: list[NDArray[np.int64]] = []
    for _ in range(_ROUNDS * count):
        if len(found) == count:
            break
        corner = generator.integers(reach, side - template - reach + 1, 2)
        middle = corner + template // 2
        truth = pair.truth[middle[0], middle[1]]
        patch = pair.prior[corner[0] : corner[0] + template, corner[1] : corner[1] + template]
        is_near = bool(np.isfinite(truth).all() and np.abs(truth).max() <= reach - _SPARE)
        if is_near and patch.std() >= _LEAST_DEVIATION:
            found.append(corner)
    return np.array(found, np.int64).reshape(-1, 2)


def find_matches(
    pairs: Sequence[TruePair],
    descriptions: Mapping[str, Describe],
    *,
    templates: Sequence[int],
    reach: int,
    distance: int,
    count: int,
    seed: int,
    progress: Any = lambda _done, _of: None,
) -> dict[str, Matches]:
    """By description: the matches of identical templates in identical windows.

    Parameters
    ----------
    reach
        How far around its own place a template is searched, in pixels.
    distance
        Of the second peak from the first.
    count
        Templates of each size and pair.
    """
    rows: dict[str, list[list[NDArray[Any]]]] = {name: [] for name in descriptions}
    for number, pair in enumerate(pairs):
        places = {
            template: draw_places(
                pair,
                template=template,
                reach=reach,
                count=count,
                generator=np.random.default_rng((seed, number, template)),
            )
            for template in templates
        }
        for name, describe in descriptions.items():
            prior, current = describe(np.stack([pair.prior, pair.current]))
            for template, corners in places.items():
                if len(corners):
                    rows[name].append(_matched(pair, (prior, current), corners, seek=_Seek(template, reach, distance)))
        progress(number + 1, len(pairs))
    return {name: _joined(found) for name, found in rows.items()}


@dataclass(frozen=True, slots=True)
class _Seek:
    """Side of templates, how far they are searched, and how far the second peak is from the first, in pixels."""

    template: int
    reach: int
    distance: int


def _matched(
    pair: TruePair, features: tuple[Planes, Planes], corners: NDArray[np.int64], *, seek: _Seek
) -> list[NDArray[Any]]:
    offsets, first, second = search(
        *features, corners, template=seek.template, reach=seek.reach, distance=seek.distance
    )
    middles = corners + seek.template // 2
    errors = np.abs(offsets - pair.truth[middles[:, 0], middles[:, 1]]).max(axis=1)
    count = len(corners)
    return [
        errors.astype(np.float32),
        first,
        second,
        errors > pair.tolerance_px,
        np.full(count, pair.group),
        np.full(count, pair.patient),
        np.full(count, seek.template),
    ]


def search(
    prior: NDArray[np.float32],
    current: NDArray[np.float32],
    corners: NDArray[np.int64],
    *,
    template: int,
    reach: int,
    distance: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """For templates (first pixels `corners`) of one feature map, where the other is most like them.

    Returns offsets (n, 2) from their own place, P1 (n,) and P2 (n,).
    """
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import correlate, two_peaks

    wide = template + 2 * reach
    offsets, peaks = [], []
    for start in range(0, len(corners), _BATCH):
        some = corners[start : start + _BATCH]
        patches = np.stack([prior[row : row + template, column : column + template] for row, column in some])
        windows = np.stack([current[row - reach :, column - reach :][:wide, :wide] for row, column in some])
        values = correlate(tf.constant(windows), tf.constant(patches))
        best = np.asarray(tf.argmax(tf.reshape(values, (len(some), -1)), axis=1))
        offsets.append(np.stack(np.unravel_index(best, tuple(values.shape[1:])), axis=1) - reach)
        peaks.append(np.stack([np.asarray(peak) for peak in two_peaks(values, distance=distance)]))
    both = np.concatenate(peaks, axis=1)
    return np.concatenate(offsets), both[0], both[1]


def _joined(found: list[list[NDArray[Any]]]) -> Matches:
    error, first, second, is_false, groups, patients, templates = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    return Matches(
        error_px=error,
        first=first,
        second=second,
        is_false=is_false,
        groups=groups,
        patients=patients,
        templates=templates,
    )


_TEMPLATE: Final = 128
_REACH: Final = 64
_STEP: Final = 64
_AGREES_PX: Final = 12.0
_FIRST_PX: Final = 40.0
_CONSENSUS_ROUNDS: Final = 12
_LEAST_SHARE: Final = 0.5
_KNOWN_PX: Final = 70.0
"""So far from an agreeing template's middle the consensus is known."""


def consensus(prior: Grey, current: Grey, descriptions: list[Describe]) -> tuple[Field | None, float]:
    """The displacement (rows, columns, 2) from prior to current, NaN where it is not known, and the share that agrees.

    None where fewer than half of the templates agree.
    """
    side, scale = len(prior), len(prior) / 512
    template, reach, step = (round(size * scale) for size in (_TEMPLATE, _REACH, _STEP))
    ticks = range(reach, side - template - reach + 1, step)
    corners = np.array([(row, column) for row in ticks for column in ticks])
    found = []
    for describe in descriptions:
        first, second = describe(np.stack([prior, current]))
        found.append(search(first, second, corners, template=template, reach=reach, distance=reach // 6)[0])
    middles = np.tile(corners + template // 2, (len(descriptions), 1)).astype(np.float64)
    offsets = np.concatenate(found).astype(np.float64)
    terms, agrees = _terms(middles, side), np.ones(len(offsets), np.bool_)
    limits = np.geomspace(_FIRST_PX, _AGREES_PX, _CONSENSUS_ROUNDS) * scale
    fitted = np.tile(np.median(offsets, axis=0), (len(offsets), 1))
    coefficients = np.zeros((terms.shape[1], 2))
    for limit in limits:
        agrees = np.abs(offsets - fitted).max(axis=1) <= limit
        if agrees.sum() <= 2 * terms.shape[1]:
            return None, float(agrees.mean())
        coefficients = np.linalg.lstsq(terms[agrees], offsets[agrees], rcond=None)[0]
        fitted = terms @ coefficients
    agrees = np.abs(offsets - fitted).max(axis=1) <= limits[-1]
    share = float(agrees.mean())
    if share < _LEAST_SHARE:
        return None, share
    return _field(coefficients, middles[agrees], side, scale), share


def _terms(places: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    down, across = (places.T / side) - 0.5
    return np.stack([np.ones_like(down), down, across, down * down, down * across, across * across], axis=-1)


def _field(coefficients: NDArray[np.float64], known: NDArray[np.float64], side: int, scale: float) -> Field:
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).reshape(-1, 2)
    field = (_terms(places.astype(np.float64), side) @ coefficients).reshape(side, side, 2).astype(np.float32)
    coarse = places.reshape(side, side, 2)[::8, ::8].reshape(-1, 2)
    unknown = np.array([np.hypot(*(known - place).T).min() > _KNOWN_PX * scale for place in coarse])
    cells = unknown.reshape(-(-side // 8), -1).repeat(8, axis=0).repeat(8, axis=1)[:side, :side]
    field[cells] = np.nan
    return field


def followed_by(warp: Field, truth: Field) -> Field:
    """The truth of a warped prior: p -> p + warp(p) -> that + truth there. NaN where the truth is not known."""
    side = len(warp)
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1) + warp
    nearest = np.rint(places).astype(np.int64).clip(0, side - 1)
    composed: Field = (warp + truth[nearest[..., 0], nearest[..., 1]]).astype(np.float32)
    return composed
