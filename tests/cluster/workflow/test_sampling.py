from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray_cluster.workflow.recipe import Parameter, combinations, samples

LISTS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(lambda items: Parameter(values=tuple(items))),
    max_size=3,
)
RANGES = st.dictionaries(
    st.sampled_from(["x", "y"]),
    st.tuples(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3), st.sampled_from(["linear", "log"])).map(
        lambda made: Parameter(low=made[0], high=made[0] + made[1], scale=made[2])  # type: ignore[arg-type]
    ),
    max_size=2,
)


@given(lists=LISTS, ranges=RANGES, count=st.integers(0, 90), seed=st.integers(0, 9))
def test_samples_follow_the_rule(
    lists: dict[str, Parameter], ranges: dict[str, Parameter], count: int, seed: int
) -> None:
    found = samples({**lists, **ranges}, count=count, seed=seed)
    assert len(found) == count and all(list(row) == [*lists, *ranges] for row in found)
    product = set(itertools.product(*(known.values for known in lists.values())))
    seen = Counter(tuple(row[name] for name in lists) for row in found)
    assert set(seen) <= product and len(product) == combinations({**lists, **ranges})
    times = [seen[combination] for combination in product]
    assert max(times) - min(times) <= 1  # the fewest repetitions
    assert all(known.low <= row[name] <= known.high for name, known in ranges.items() for row in found)
    assert samples({**lists, **ranges}, count=count, seed=seed) == found


def test_as_many_samples_as_combinations_are_the_product() -> None:
    parameters = {"a": Parameter(values=(1, 2, 3)), "b": Parameter(values=("x", "y")), "c": Parameter(values=(True,))}
    found = samples(parameters, count=6, seed=1)
    assert sorted(map(repr, map(tuple, (row.values() for row in found)))) == sorted(
        map(repr, itertools.product((1, 2, 3), ("x", "y"), (True,)))
    )


def test_another_seed_draws_other_numbers() -> None:
    parameters = {"x": Parameter(low=0, high=1)}
    assert samples(parameters, count=3, seed=1) != samples(parameters, count=3, seed=2)
    assert len({row["x"] for row in samples(parameters, count=50, seed=1)}) == 50


def test_a_logarithmic_range_has_as_many_samples_in_each_power_of_ten() -> None:
    found = samples({"x": Parameter(low=1e-4, high=1e-1, scale="log")}, count=3000, seed=0)
    powers = Counter(math.floor(math.log10(float(row["x"]))) for row in found)
    assert set(powers) == {-4, -3, -2} and all(900 < times < 1100 for times in powers.values())


def test_a_product_too_large_to_be_written_down_is_sampled() -> None:
    parameters = {f"p{number}": Parameter(values=tuple(range(10))) for number in range(15)}
    assert combinations(parameters) == 10**15
    assert len({tuple(row.values()) for row in samples(parameters, count=100, seed=0)}) == 100


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "not empty"),
        ([1, [2]], "list of numbers"),
        ([1, 1], "twice"),
        ({"low": 1}, "must have low and high"),
        ({"low": 1, "high": 2, "step": 1}, "no other key"),
        ({"low": 2, "high": 1}, "a low below its high"),
        ({"low": 0, "high": 1, "scale": "log"}, "above 0"),
        ({"low": 1, "high": 2, "scale": "cubic"}, "linear, log"),
        ({"low": "a", "high": 2}, "numbers as low"),
        (None, "must be a value"),
    ],
)
def test_a_parameter_says_what_is_wrong_with_it(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Parameter.from_document(value)


def test_true_and_one_are_two_values() -> None:
    assert Parameter.from_document([True, 1, 1.0]).values == (True, 1, 1.0)
