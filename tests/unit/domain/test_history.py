"""Filters of past runs, and the differences of two runs."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from fieldray.domain.finding import Category
from fieldray.domain.history import ResultBrief, RunFilter, RunSummary, compare_runs, verdict_passes
from fieldray.domain.run import Run
from outcomes import run_spec

DAY = datetime.date(2026, 11, 20)
NOON_S = datetime.datetime(2026, 11, 20, 12).timestamp()
RUN = Run(run_id=1, spec=run_spec(), state="finished", reason=None, started_s=NOON_S, ended_s=None)
OTHER = replace(RUN, run_id=2)


def brief(content: str, category: Category = "normal", score: float | None = 0.5, **changes: object) -> ResultBrief:
    values = {
        "row_id": 1,
        "image_key": b"/a",
        "image_name": f"/images/{content}",
        "content_sha256": content,
        "frame": 0,
    }
    return ResultBrief(**{**values, "category": category, "score": score, "label": "opacity", **changes})


@pytest.mark.parametrize(
    ("wanted", "is_listed"),
    [
        (RunFilter(), True),
        (RunFilter(text="TINY"), True),
        (RunFilter(text="/ima"), True),
        (RunFilter(text="other"), False),
        (RunFilter(since=DAY, until=DAY), True),
        (RunFilter(since=DAY + datetime.timedelta(1)), False),
        (RunFilter(until=DAY - datetime.timedelta(1)), False),
        (RunFilter(backend="cpu"), True),
        (RunFilter(backend="edgetpu"), False),
        (RunFilter(verdict="given"), True),
        (RunFilter(verdict="none"), True),
        (RunFilter(verdict="disagreed"), False),
    ],
)
def test_a_run_matches_if_all_filters_match(wanted: RunFilter, is_listed: bool) -> None:
    summary = RunSummary(
        run=RUN, counts={"normal": 3}, counts_by_backend={"cpu": 3, "": 1}, counts_by_verdict={"agree": 1}
    )
    assert wanted.accepts(summary) == is_listed
    assert not RunFilter(verdict="none").accepts(replace(summary, counts_by_verdict={"agree": 3}))
    assert RunFilter(verdict="disagreed").accepts(replace(summary, counts_by_verdict={"disagree": 1}))


def test_verdict_filters_match_given_absent_or_disagreeing() -> None:
    assert [verdict_passes("disagree", wanted) for wanted in ("any", "given", "none", "disagreed")] == [
        True,
        True,
        False,
        True,
    ]
    assert [verdict_passes(None, wanted) for wanted in ("any", "given", "none", "disagreed")] == [
        True,
        False,
        True,
        False,
    ]


def test_differences_list_class_changes_first_then_larger_score_changes() -> None:
    first = [brief("a", score=0.5), brief("b", score=0.1), brief("c", score=0.1), brief("d"), brief("only")]
    second = [
        brief("d", "refused", None, label=""),
        brief("c", score=0.3),
        brief("b", score=0.11),
        brief("a", "abnormal", 0.55),
        brief("new"),
    ]
    found = compare_runs(RUN, first, OTHER, second)
    assert [pair.first.content_sha256 for pair in found.pairs] == ["a", "d", "c", "b"]
    assert (found.changed_count, found.pairs[1].score_difference, found.has_single_label) == (2, None, True)
    assert found.counts_by_classes == {("normal", "abnormal"): 1, ("normal", "refused"): 1, ("normal", "normal"): 2}
    assert [each.content_sha256 for each in (*found.only_in_first, *found.only_in_second)] == ["only", "new"]


def test_images_are_matched_by_content_and_frame() -> None:
    first = [
        brief("a", image_name="/old/a"),
        brief("a", image_name="/old/copy"),
        brief("a", frame=1),
        brief("", image_name="/gone"),
    ]
    second = [brief("a", image_name="/new/b"), brief("", image_name="/gone"), brief("", image_name="/other")]
    found = compare_runs(RUN, first, OTHER, second)
    assert [(pair.first.image_name, pair.second.image_name) for pair in found.pairs] == [
        ("/gone", "/gone"),
        ("/old/a", "/new/b"),
    ]
    assert [each.frame for each in found.only_in_first] == [1]


def test_runs_with_other_labels_are_reported_without_score_differences() -> None:
    found = compare_runs(RUN, [brief("a")], OTHER, [brief("a", label="tuberculosis")])
    assert (found.has_single_label, found.pairs[0].score_difference) == (False, None)
