"""Numbers as people read them."""

from __future__ import annotations

import pytest

from fieldray.formatting import count


@pytest.mark.parametrize(
    ("items", "text"),
    [(0, "0"), (999, "999"), (9999, "9999"), (10_000, "10\u202f000"), (1_234_567, "1\u202f234\u202f567")],
)
def test_many_items_are_counted_in_groups_of_three_digits(items: int, text: str) -> None:
    assert count(items) == text
