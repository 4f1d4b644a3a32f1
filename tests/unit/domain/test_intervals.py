"""Intervals against published and other programs' values, at the edges, and with many images of one patient."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest

from fieldray.domain import intervals
from fieldray.domain.intervals import area, area_difference, drawn_interval, share, told
from fieldray.domain.metrics import auc


def _people(count: int, *, images_each: int = 1) -> list[str]:
    return [f"p{number // images_each}" for number in range(count)]


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (0, 11), (63, 63), (62, 63), (48, 63), (5, 400), (200, 400)])
def test_a_share_has_wilsons_interval(hits: int, of: int) -> None:
    found = share(np.arange(of) < hits, patients=_people(of))
    theirs = binomtest(hits, of).proportion_ci(method="wilson")
    assert (found.count, found.of, found.value) == (hits, of, hits / of)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert found.low <= found.value <= found.high and found.low < found.high


def test_all_of_63_are_not_all_there_could_be() -> None:
    # 63 / (63 + 1.96^2) = 0.943: the lowest share of which 63 of 63 is no surprise
    assert told({"count": 63, "of": 63, "value": 1.0, "low": 63 / (63 + 1.96**2), "high": 1.0}) == (
        "63 of 63: 1.000 (0.943 to 1.000)"
    )
    assert share(np.ones(63, bool), patients=_people(63)).low == pytest.approx(0.943, abs=5e-4)


def test_many_images_of_a_patient_tell_no_more_than_one() -> None:
    one, many = np.arange(40) < 30, np.repeat(np.arange(40) < 30, 4)
    single, fourfold = share(one, patients=_people(40)), share(many, patients=_people(160, images_each=4))
    assert (single.low, single.high) == pytest.approx((fourfold.low, fourfold.high)) and fourfold.of == 160
    # one patient with 97 of 100 images weighs nearly as one alone: 100^2 / (97^2 + 3)
    assert intervals.effective_number(["a"] * 97 + ["b", "c", "d"]) == pytest.approx(1.0625, abs=1e-3)
    scores, truth = np.linspace(0, 1, 40), one[::-1]
    once = area(scores, truth, patients=_people(40))
    again = area(np.repeat(scores, 4), np.repeat(truth, 4), patients=_people(160, images_each=4))
    assert (once.value, once.low, once.high) == pytest.approx((again.value, again.low, again.high))


def test_an_area_of_one_has_an_interval() -> None:
    truth = np.arange(40) < 20
    found = area(truth.astype(float), truth, patients=_people(40))
    assert found.value == found.high == 1.0 and 0.85 < found.low < 0.95
    upside_down = area((~truth).astype(float), truth, patients=_people(40))
    assert upside_down.value == upside_down.low == 0.0 and upside_down.high == pytest.approx(1 - found.low)
    with pytest.raises(ValueError, match="a class has no images"):
        area(np.ones(4), np.ones(4, bool), patients=_people(4))
    with pytest.raises(ValueError, match="needs images"):
        share(np.zeros(0, bool), patients=[])


@pytest.mark.parametrize("true_area", [0.75, 0.97, 0.99])
def test_intervals_of_areas_hold_the_truth_as_often_as_they_say(true_area: float) -> None:
    generator, truth = np.random.default_rng(7), np.arange(40) < 20
    apart, held = NormalDist().inv_cdf(true_area) * 2**0.5, 0
    for _ in range(200):
        found = area(generator.normal(apart * truth, 1.0), truth, patients=_people(40))
        held += found.low <= true_area <= found.high
    # of 200 at 95 %: 190, four standard deviations of 3 less; drawing patients again held 140 at 0.99
    assert held >= 178


def test_a_difference_of_two_perfect_networks_is_not_known_to_be_nothing() -> None:
    truth = np.arange(40) < 20
    value, low, high = area_difference(np.column_stack([truth, truth * 2.0]), truth, patients=_people(40))
    assert value == 0 and low == pytest.approx(-high) and 0.05 < high < 0.15
    generator = np.random.default_rng(1)
    scores = generator.normal(truth[:, None] * [1.5, 1.0], 1.0)
    value, low, high = area_difference(scores, truth, patients=_people(40))
    assert low < value < high and value == pytest.approx(auc(scores[:, 1], truth) - auc(scores[:, 0], truth))


def test_draws_are_of_patients_and_not_of_images() -> None:
    generator = np.random.default_rng(1)
    truth = np.arange(400) % 2 == 0
    scores = np.clip(0.5 + 0.2 * (truth - 0.5) + 0.2 * generator.standard_normal(400), 0, 1)
    value, low, high = drawn_interval(auc, scores, truth, patients=_people(400))
    assert low < value < high < low + 0.15
    # The same images, each four times: four times as many images tell no more when drawn by patient.
    _, lower, higher = drawn_interval(auc, np.tile(scores, 4), np.tile(truth, 4), patients=_people(400) * 4)
    assert higher - lower == pytest.approx(high - low, rel=0.25)
    with pytest.raises(ValueError, match="no value"):
        drawn_interval(auc, scores, truth | True, patients=_people(400))


def test_a_specificity_at_a_sensitivity_is_never_surer_than_at_a_fixed_threshold() -> None:
    truth = np.arange(30) < 20
    perfect = intervals.specificity_at_sensitivity(truth * 1.0, truth, wanted=0.95, patients=_people(30))
    # 10 of 10 negatives: 10 / (10 + 1.96^2)
    assert (perfect.count, perfect.of, perfect.value, perfect.high) == (10, 10, 1.0, 1.0)
    assert perfect.low == pytest.approx(10 / (10 + 1.96**2), abs=1e-3)
    scores = np.random.default_rng(3).normal(truth * 1.0, 1.0)
    found = intervals.specificity_at_sensitivity(scores, truth, wanted=0.9, patients=_people(30))
    assert found.low <= found.value <= found.high and found.high - found.low > 0.4
