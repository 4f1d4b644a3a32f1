"""Numbers as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fieldray.domain.run import Run
from fieldray.formatting import count, moment
from fieldray.reports.wording import Wording
from fieldray.translation import Translator
from report_runs import run_with


@pytest.mark.parametrize(
    ("items", "text"),
    [(0, "0"), (999, "999"), (9999, "9999"), (10_000, "10\u202f000"), (1_234_567, "1\u202f234\u202f567")],
)
def test_many_items_are_counted_in_groups_of_three_digits(items: int, text: str) -> None:
    assert count(items) == text


@pytest.fixture
def kyiv(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of a computer in Kyiv, as the C library takes it from the environment."""
    monkeypatch.setenv("TZ", "EET-2EEST,M3.5.0/3,M10.5.0/4")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has one time zone for all programs")
@pytest.mark.usefixtures("kyiv")
def test_a_moment_is_local_and_says_how_far_from_utc() -> None:
    winter, summer = 1_767_304_800.0, 1_782_943_200.0  # 2026-01-01 22:00 and 2026-07-01 22:00 UTC
    english = Translator("en")
    assert moment(english, winter) == "2026-01-02 00:00 +02:00"
    assert moment(english, summer) == "2026-07-02 01:00 +03:00"
    stored = run_with([])
    run: Run = replace(stored.run, started_s=winter, ended_s=summer)
    fields = Wording(replace(stored, run=run)).run_fields()
    assert [field.text for field in fields[1:]] == ["2026-01-02 00:00 +02:00", "2026-07-02 01:00 +03:00"]
