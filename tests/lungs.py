"""Drawn lung fields, for the tests of what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import PixelMap
from fieldray.domain.lungs import LungFields, find_lungs
from fieldray.domain.model import LUNG_CHECKS, LungRules

RULES = LungRules(mask_threshold=0.5, thresholds=dict.fromkeys(LUNG_CHECKS, 0.5))
CHEST = {"frontal_chest": 0.9, **dict.fromkeys(LUNG_CHECKS[1:], 0.1)}
SIDE = 40
ROWS, COLUMNS = 800, 400  # of the image: a cell of the mask is 20 x 10 pixels
WHOLE = PixelMap(20.0, 0.0, 10.0, 0.0)


def drawn(*parts: tuple[slice, slice]) -> NDArray[np.float32]:
    """(40, 40): shares of 1 in these cells, else 0."""
    shares = np.zeros((SIDE, SIDE), np.float32)
    for part in parts:
        shares[part] = 1
    return shares


def two_lungs() -> NDArray[np.float32]:
    """20 x 10 cells on the left, 20 x 8 on the right."""
    return drawn(np.s_[10:30, 5:15], np.s_[10:30, 25:33])


def lungs(shares: NDArray[np.float32] | None = None, **changes: Any) -> LungFields:
    """What `find_lungs` makes of drawn shares; `changes` are scores of checks, or its other arguments."""
    options = {
        name: changes.pop(name)
        for name in ("pixel_map", "rows", "columns", "rules", "says_chest", "grey", "region")
        if name in changes
    }
    given = {"pixel_map": WHOLE, "rows": ROWS, "columns": COLUMNS, **options}
    rules = given.pop("rules", RULES)
    return find_lungs(two_lungs() if shares is None else shares, {**CHEST, **changes}, rules, **given)
