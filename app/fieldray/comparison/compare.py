"""Two framed images compared from end to end: alignment, whether it may be believed, and the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fieldray.comparison.align import align
from fieldray.comparison.change import find_change, regions
from fieldray.comparison.features import Features, band_pass
from fieldray.comparison.mesh import warped
from fieldray.comparison.reliability import doubt, reliability
from fieldray.domain.comparison import Aligned, FramedImage, Incomparable, PairComparison
from fieldray.reasons import reason

_LEAST_LUNGS: Final = 0.04  # of the frame


def compare(
    prior: FramedImage,
    current: FramedImage,
    *,
    features: Features = band_pass,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> PairComparison:
    """Compare two images.

    Parameters
    ----------
    prior, current
        In their frames, with their lungs.
    features
        What templates are matched by: image (rows, columns) to (rows, columns, channels) float32.
    is_cancelled
        Asked between the rounds.

    Raises
    ------
    Cancelled
        From `comparison.align`.
    """
    for name, image in (("prior", prior), ("current", current)):
        if image.lungs.mean() < _LEAST_LUNGS:
            problem = Incomparable(reason=reason("compare_cut"), image="prior" if name == "prior" else "current")
            return PairComparison(prior=prior, current=current, problem=problem)
    alignment, overlay = align(prior, current, features=features, is_cancelled=is_cancelled)
    figure = reliability(alignment, overlay, current.lungs)
    why = doubt(alignment, overlay, current.lungs)
    if why is not None:
        problem = Incomparable(reason=why)
        return PairComparison(prior=prior, current=current, problem=problem, tried=alignment, reliability=figure)
    moved = warped(prior.pixels, alignment.displacement)
    change = find_change(prior, current, alignment.displacement)
    aligned = Aligned(
        alignment=alignment,
        warped_prior=np.rint(moved).astype(np.uint8),
        change=change,
        regions=regions(change),
    )
    return PairComparison(prior=prior, current=current, aligned=aligned, reliability=figure)
