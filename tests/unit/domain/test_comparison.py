"""What a comparison promises from birth."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.comparison import (
    CHANGE_SHOWN,
    DENSER,
    FRAME_SIDE,
    LESS_DENSE,
    Alignment,
    Incomparable,
    Match,
    PairComparison,
    change_colours,
    comparison_json,
)
from fieldray.reasons import reason

WHOLE = (FRAME_SIDE, FRAME_SIDE, 2)


def match(*, kept: bool = True, second: float = 0.4) -> Match:
    return Match(row=1, column=2, prior_row=3, prior_column=4, first_peak=0.8, second_peak=second, is_kept=kept)


def alignment(**changes: object) -> Alignment:
    values = {
        "displacement": np.zeros(WHOLE, np.float32),
        "matches": (match(), match(kept=False), match()),
        "similarity_before": 0.1,
        "similarity_after": 0.5,
        "least_jacobian": 0.9,
    }
    return Alignment(**{**values, **changes})  # type: ignore[arg-type]


def test_a_match_tells_difference_and_ratio() -> None:
    assert match().difference == pytest.approx(0.4)
    assert match().ratio == pytest.approx(2.0)
    assert match(second=0.0).ratio is None
    assert match(second=-0.2).ratio is None


def test_matches_are_counted_and_lengths_measured() -> None:
    field = np.zeros(WHOLE, np.float32)
    field[:256] = (3, 4)
    found = alignment(displacement=field)
    assert (found.kept, found.rejected) == (2, 1)
    inside = np.zeros(WHOLE[:2], bool)
    inside[:100] = True
    assert found.length_px(50, inside=inside) == 5.0
    assert found.length_px(50, inside=np.zeros(WHOLE[:2], bool)) == pytest.approx(2.5)  # half 0, half 5


@pytest.mark.parametrize(
    "changes", [{"displacement": np.zeros((4, 4, 2), np.float32)}, {"least_jacobian": 0.0}, {"least_jacobian": -1.0}]
)
def test_an_alignment_that_folds_or_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        alignment(**changes)


def test_a_pair_has_a_result_or_a_problem() -> None:
    with pytest.raises(ValueError, match="comparable or has a problem"):
        PairComparison(prior=None, current=None)
    done = PairComparison(prior=None, current=None, problem=Incomparable(reason=reason("blank"), image="prior"))
    assert not done.is_comparable
    assert comparison_json(done) == {
        "comparable": False,
        "reason_code": "blank",
        "similarity_before": None,
        "similarity_after": None,
        "displacement_median_px": None,
        "displacement_p95_px": None,
        "matches": 0,
        "rejected": 0,
        "regions": [],
    }


def test_colours_tell_the_sign_and_begin_at_the_noise() -> None:
    change = np.array([[0.0, CHANGE_SHOWN - 0.1, CHANGE_SHOWN + 0.1, 99.0, -99.0]], np.float32)
    colours = change_colours(change)[0]
    assert colours[:, 3].tolist()[:2] == [0, 0]
    assert 0 < colours[2, 3] < colours[3, 3] == 255
    assert tuple(colours[3, :3]) == DENSER
    assert tuple(colours[4, :3]) == LESS_DENSE
