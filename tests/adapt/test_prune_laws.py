"""The four laws, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from fieldray_adapt.prune.loop import Constant, Context, ContextDependent, Linear, Multiplicative, Range

HALVED = Context(size=0.5, loss=2.0, time=0.25, batch=4.0)


def test_constant_linear_and_multiplicative_do_not_look_at_the_context() -> None:
    assert Constant(start=3.0).next(9.0, HALVED) == 3.0
    assert Linear(start=1.0, step=0.5).next(2.0, HALVED) == 2.5
    assert Multiplicative(start=1.0, factor=1.5).next(2.0, HALVED) == 3.0


def test_a_product_answers_by_powers_of_the_ratios() -> None:
    # time fell to a quarter: 10 * 0.25 ** -1 = 40; size 0.5 ** 1 = 0.5; loss 2 ** 1 = 2; batch 4 ** 0.5 = 2
    assert ContextDependent(start=10, time=-1).next(10, HALVED) == pytest.approx(40)
    assert ContextDependent(start=10, size=1, loss=1, batch=0.5).next(10, HALVED) == pytest.approx(10 * 0.5 * 2 * 2)


def test_a_sum_moves_by_doublings_and_may_cross_zero() -> None:
    # log2(0.5) = -1 and log2(2) = 1: -0.1 + 0.3 * -1 + 0.5 * 1 = 0.1
    law = ContextDependent(start=-0.1, size=0.3, loss=0.5, form="sum")
    assert law.next(-0.1, HALVED) == pytest.approx(0.1)


def test_values_stay_within_their_bounds() -> None:
    assert Linear(start=16, step=-6, bounds=Range(lowest=8)).next(10, Context()) == 8
    assert Multiplicative(start=1, factor=3, bounds=Range(highest=2)).next(1, Context()) == 2
    assert ContextDependent(start=1, time=-1, bounds=Range(highest=3)).next(1, HALVED) == 3


def test_bounds_and_factors_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="lowest"):
        Range(lowest=2, highest=1)
    with pytest.raises(ValueError, match="factor"):
        Multiplicative(start=1, factor=0)
