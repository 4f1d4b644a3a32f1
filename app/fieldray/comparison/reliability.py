"""Whether an alignment may be believed: of two X-rays of one patient, and none mirrored or inverted.

The thresholds are from the choosing part of the pairs alone (`benchmarks/comparison_pairs.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fieldray.comparison.overlay import Overlay
from fieldray.domain.comparison import Alignment
from fieldray.domain.mask import Mask
from fieldray.reasons import Reason, reason

_LEAST_IN_LUNGS: Final = 12
# Weights of the figure (logistic regression on 80 pairs of one patient and 80 of two, of the choosing part), and what
# it must reach: 93 % of those of two patients stay below.
_SIMILAR, _KEPT, _AFTER = 1.0, 0.67, 0.1
LEAST_RELIABILITY: Final = 0.80
_MIRRORED_BY: Final = 0.03
_INVERTED_BY: Final = 0.03


def reliability(alignment: Alignment, overlay: Overlay, lungs: Mask) -> float:
    """How much speaks for one patient seen twice, about 0..1.8.

    Likeness of the images laid over each other as a whole, matches in the lungs that were kept, likeness at the end.
    """
    return _SIMILAR * overlay.similarity + _KEPT * kept_share(alignment, lungs) + _AFTER * alignment.similarity_after


def kept_share(alignment: Alignment, lungs: Mask) -> float:
    """Share of the matches in the lungs that were kept, 0..1."""
    inside = [match.is_kept for match in alignment.matches if lungs[round(match.row), round(match.column)]]
    return float(np.mean(inside)) if len(inside) >= _LEAST_IN_LUNGS else 0.0


def doubt(alignment: Alignment, overlay: Overlay, lungs: Mask) -> Reason | None:
    """Why the pair is not comparable, None where it is."""
    if overlay.mirrored_similarity > overlay.similarity + _MIRRORED_BY:
        return reason("compare_mirrored")
    if overlay.inverted_similarity > overlay.similarity + _INVERTED_BY:
        return reason("compare_inverted")
    if kept_share(alignment, lungs) == 0:
        return reason("compare_no_matches")
    if not reliability(alignment, overlay, lungs) >= LEAST_RELIABILITY:
        return reason("compare_unlike")
    return None
