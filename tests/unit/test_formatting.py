"""Scores, limits, counts and times as texts for people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fieldray.domain.finding import Finding
from fieldray.domain.run import Run
from fieldray.formatting import (
    date_and_time_text,
    decision_sentence,
    format_count,
    format_threshold,
    score_digits,
    score_text,
)
from fieldray.reports.wording import Wording
from fieldray.translation import Translator
from outcomes import POINT
from report_runs import run_with


@pytest.mark.parametrize(
    ("items", "text"),
    [(0, "0"), (999, "999"), (9999, "9999"), (10_000, "10\u202f000"), (1_234_567, "1\u202f234\u202f567")],
)
def test_many_items_are_counted_in_groups_of_three_digits(items: int, text: str) -> None:
    assert format_count(items) == text


@pytest.mark.parametrize(
    ("score", "borders", "written"),
    [
        (0.4996, (0.5, 0.5, 0.5), "0.4996"),  # below the threshold: not 0.50
        (0.5004, (0.5, 0.5, 0.5), "0.50"),
        (0.31, (0.5, 0.4, 0.6), "0.31"),
        (0.39996, (0.5, 0.4, 0.6), "0.39996"),
        (0.5999, (0.5, 0.4, 0.6), "0.5999"),
        (0.3871, (0.3874, 0.3, 0.5), "0.3871"),
        (0.12345, (0.1234, 0.1234, 0.1234), "0.1235"),
        (0.5, (0.00004, 0.00004, 0.00004), "0.50000"),  # with as many digits as the threshold next to it needs
    ],
)
def test_a_rounded_score_stays_on_its_side_of_the_limits(
    score: float, borders: tuple[float, float, float], written: str
) -> None:
    middle, low, high = borders
    point = replace(POINT, threshold=middle, unsure_low=low, unsure_high=high)
    assert score_text(Translator("en"), score, point) == written
    assert score_text(Translator("uk"), score, point) == written.replace(".", ",")
    digits = score_digits(score, point, min_digits=6)
    assert all((round(score, digits) >= border) == (score >= border) for border in borders)


def test_a_score_below_the_uncertain_zone_is_described_as_below() -> None:
    """An image that may lack a part or detail is uncertain whatever its score; the zone begins at 0.4."""
    findings = [Finding(label="opacity", score=score, point=POINT, decision="unsure") for score in (0.1, 0.5)]
    low, inside = (decision_sentence(Translator(), found) for found in findings)
    assert low.startswith("The score is below the uncertain zone.") and inside.startswith("The score is in the")


def test_a_limit_is_written_with_all_needed_digits() -> None:
    borders = (0.5, 0.39496, 0.387246349, 0.0, 1.0, 4e-8, 0.99999997)
    written = [format_threshold(Translator("en"), border) for border in borders]
    assert written == ["0.50", "0.39496", "0.387246", "0.00", "1.00", "0.00000004", "0.99999997"]


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
def test_times_are_shown_in_local_time() -> None:
    winter, summer = 1_767_304_800.0, 1_782_943_200.0  # 2026-01-01 22:00 and 2026-07-01 22:00 UTC
    english = Translator("en")
    assert date_and_time_text(english, winter) == "2026-01-02 00:00"
    assert date_and_time_text(english, summer) == "2026-07-02 01:00"
    stored = run_with([])
    run: Run = replace(stored.run, started_s=winter, ended_s=summer)
    fields = Wording(replace(stored, run=run)).run_fields()
    assert [field.text for field in fields[1:]] == ["2026-01-02 00:00", "2026-07-02 01:00"]
