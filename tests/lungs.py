"""Drawn lung fields for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import CoordinateMap
from fieldray.domain.lungs import LungFields, LungNetworkOutput, evaluate_lung_output
from fieldray.domain.model import LUNG_NETWORK_CHECKS, LungRules

RULES = LungRules(mask_threshold=0.5, thresholds=dict.fromkeys(LUNG_NETWORK_CHECKS, 0.5))
CHEST = {"frontal_chest": 0.9, **dict.fromkeys(LUNG_NETWORK_CHECKS[1:], 0.1)}
SIDE = 40
ROWS, COLUMNS = 800, 400  # size of the image: a cell of the mask has 20 x 10 pixels
WHOLE = CoordinateMap(20.0, 0.0, 10.0, 0.0)


def drawn(*parts: tuple[slice, slice]) -> NDArray[np.float32]:
    """Return a mask (40, 40) with shares of 1 in these cells, else 0."""
    shares = np.zeros((SIDE, SIDE), np.float32)
    for part in parts:
        shares[part] = 1
    return shares


def two_lungs() -> NDArray[np.float32]:
    """Return a mask with a lung of 20 x 10 cells on the left, and one of 20 x 8 on the right."""
    return drawn(np.s_[10:30, 5:15], np.s_[10:30, 25:33])


def lungs(shares: NDArray[np.float32] | None = None, **changes: Any) -> LungFields:
    """Return the lung fields that `evaluate_lung_output` finds in a mask. `changes` are scores of checks or other
    arguments.
    """
    given = {name: changes.pop(name) for name in ("rules", "header_says_chest", "grey") if name in changes}
    return evaluate_lung_output(answered(shares, **changes), **{"rules": RULES, **given})


def answered(shares: NDArray[np.float32] | None = None, **changes: Any) -> LungNetworkOutput:
    """Return the lung network's answer for a mask. `changes` are scores of checks, or other facts."""
    given: dict[str, Any] = {"cells_to_image": WHOLE, "image_rows": ROWS, "image_columns": COLUMNS}
    given |= {name: changes.pop(name) for name in (*given, "region_shares") if name in changes}
    return LungNetworkOutput(
        lung_shares=two_lungs() if shares is None else shares, scores={**CHEST, **changes}, **given
    )
