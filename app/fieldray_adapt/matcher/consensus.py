"""Where an earlier image belongs in the later one, as far as large templates agree: a truth for real pairs.

Nobody has marked points in these pairs. Templates of 128 pixels, more than four times the area of those that are
measured, are matched by grey levels and by the band-pass, never by the encoder; if the consensus favours anybody, it is
the baselines. What most of them agree on is a displacement that is a polynomial of the second degree. A pair on which
fewer than half agree has no truth and is left out, and that does not depend on the encoder either. A rib and a vessel
behind it move differently from one breath to the next, so that the polynomial is right to some pixels only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.matcher.baselines import Describe
from fieldray_adapt.matcher.matches import search
from fieldray_adapt.matcher.warps import Field

Grey = NDArray[np.uint8]
_TEMPLATE: Final = 128
_REACH: Final = 64
_STEP: Final = 64
_AGREES_PX: Final = 12.0
_FIRST_PX: Final = 40.0
_ROUNDS: Final = 12
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
    limits = np.geomspace(_FIRST_PX, _AGREES_PX, _ROUNDS) * scale
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
