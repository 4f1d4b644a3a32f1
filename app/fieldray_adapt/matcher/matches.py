"""Matches whose truth is known: where templates of an image belong in another, and where each description finds them.

There are four groups. In *near* and *far* both images of a pair are one image, and the truth is the warp alone: near
ones are warped little and exposed alike; far ones are warped by up to 8 % of the side and exposed as if by another
detector on another day. In *two images, near* and *far* they are a patient's images at two times. No warp is known
between them, so that their truth is a known warp of the prior image followed by a consensus (see `consensus`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.matcher.baselines import Describe, Planes
from fieldray_adapt.matcher.warps import Field

Grey = NDArray[np.uint8]
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

    @property
    def ratio(self) -> NDArray[np.float32]:
        """P1 / P2, infinite where P2 is not above 0; for diagnosis alone."""
        safe = np.where(self.second > 0, self.second, np.float32(np.nan))
        return np.asarray(np.nan_to_num(self.first / safe, nan=np.inf), np.float32)


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

    from fieldray_adapt.matcher.correlation import correlate, two_peaks

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
