"""How much of a class map's evidence lies inside the lungs, by the rule that screening shows it by."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import Calibration

_LOW: Final = 0.05
_TINY: Final = 1e-9


def evidence_shares(
    maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, threshold_logit: float
) -> NDArray[np.float64]:
    """Share (n,) of each image's evidence above the threshold that lies inside the lungs; nan where there is none.

    Parameters
    ----------
    maps
        (n, rows, columns) logits of one label.
    lungs
        (n, cells, cells) share of lung, 255 being all, in cells of the same region.
    """
    evidence = (maps.astype(np.float64) - threshold_logit).clip(0, None)
    inside = np.stack([_cells(own, evidence.shape[1:]) for own in lungs]) / 255
    total = evidence.sum((1, 2))
    shares = np.full(len(maps), np.nan)
    np.divide((evidence * inside).sum((1, 2)), total, out=shares, where=total > 0)
    return shares


def evidence_figures(
    maps: NDArray[np.float32], lungs: NDArray[np.uint8], *, threshold: float, calibration: Calibration
) -> dict[str, Any]:
    """Mean share inside the lungs, what chance would give, and the share that only one image in twenty is below.

    Parameters
    ----------
    threshold
        On the calibrated score, of the operating point that the map is shown for.
    """
    kept = min(max(threshold, _TINY), 1 - _TINY)
    raw = (math.log(kept / (1 - kept)) - calibration.intercept) / calibration.slope
    shares = evidence_shares(maps, lungs, threshold_logit=raw)
    known = shares[~np.isnan(shares)]
    return {
        "images": len(known),
        "mean": float(known.mean()) if len(known) else None,
        "chance": float(lungs.mean() / 255),
        "limit": float(np.quantile(known, _LOW)) if len(known) else None,
    }


def _cells(shares: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Means over blocks that are as equal as whole cells allow."""
    starts = [
        np.linspace(0, size, count, endpoint=False).astype(int) for size, count in zip(shares.shape, shape, strict=True)
    ]
    sums = np.add.reduceat(np.add.reduceat(shares.astype(np.float64), starts[0], axis=0), starts[1], axis=1)
    heights, widths = (np.diff([*first, size]) for first, size in zip(starts, shares.shape, strict=True))
    return np.asarray(sums / np.outer(heights, widths))
