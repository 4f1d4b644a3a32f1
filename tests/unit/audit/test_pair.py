"""Two runs on the same images: figures against scikit-learn and counts worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from fieldray.audit.cases import ReferenceLabels
from fieldray.audit.report import ComparedPack, compare_packs
from fieldray.audit.units import Case, CountingRule, make_cases
from fieldray.domain.finding import Finding, ImageFacts, Outcome, RefusedOutcome, decide
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.run import StoredResult
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from outcomes import operating_point, screened

FIRST = ComparedPack(run_id=1, pack="first-1.0.0", label="opacity", point=operating_point(threshold=0.5))
SECOND = ComparedPack(
    run_id=2, pack="second-1.0.0", label="tb", point=operating_point(threshold=0.3, unsure_low=0.3, label="tb")
)


def result(number: int, score: float | None, *, label: str, folder: str) -> StoredResult:
    ref = ImageRef(path=Path(f"/{folder}/{number}.dcm"), kind="dicom", header=ImageHeader(patient_id=f"P{number}"))
    facts = ImageFacts(content_sha256=f"{number:064x}")
    outcome: Outcome = RefusedOutcome(ref=ref, reason=reason("view", view="LL"), facts=facts)
    if score is not None:
        point = operating_point(threshold=0.5, unsure_low=0.5, unsure_high=0.5, label=label)
        finding = Finding(label=label, score=score, point=point, decision=decide(score, point))
        outcome = replace(screened(ref), facts=facts, findings=(finding,))
    return StoredResult(result_id=number, row_id=number, run_id=1, outcome=outcome, is_reused=False)


def cases_of(results: list[StoredResult], *, sick: set[int]) -> list[Case]:
    truths = {one.outcome.ref.key: one.row_id in sick for one in results}
    return list(make_cases(results, ReferenceLabels(truth_by_image=truths), label="opacity"))


def test_areas_on_images_scored_by_both_runs_equal_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(2)
    sick = set(range(0, 120, 3))
    scores = np.clip(
        generator.normal([[0.4 + 0.3 * (n in sick), 0.3 + 0.5 * (n in sick)] for n in range(120)], 0.2), 0, 1
    )
    refused = {0: {3, 4, 5, 6}, 1: {6, 7}}
    runs = [
        [
            result(n, None if n in refused[side] else float(scores[n, side]), label=label, folder=f"folder{side}")
            for n in range(120)
        ]
        for side, label in enumerate(("opacity", "tb"))
    ]
    cases = cases_of(runs[0], sick=sick)
    found = compare_packs(
        cases, runs[1][:100], first=FIRST, second=SECOND, rule=CountingRule()
    )  # the files lie elsewhere, and twenty are absent
    assert (found.image_count, found.missing_image_count, found.patient_count) == (100, 20, 100)
    assert (found.both_assessed_count, found.only_first_assessed_count, found.only_second_assessed_count) == (95, 1, 3)
    judged = [n for n in range(100) if n not in refused[0] | refused[1]]
    truth = [n in sick for n in judged]
    area, detected, falsely, sensitivity, specificity = found.figures
    known = [roc_auc_score(truth, scores[judged, side]) for side in (0, 1)]
    assert (area.first.value, area.second.value) == pytest.approx(known)
    assert area.difference == pytest.approx(known[1] - known[0]) and area.low < area.difference < area.high
    assert area.only_right_counts is None
    hits = [[scores[n, 0] >= 0.5, scores[n, 1] >= 0.3] for n in judged if n in sick]
    assert sensitivity.only_right_counts == (hits.count([True, False]), hits.count([False, True]))
    assert sensitivity.difference == pytest.approx(np.mean([b for _, b in hits]) - np.mean([a for a, _ in hits]))
    spared = [[scores[n, 0] < 0.5, scores[n, 1] < 0.3] for n in judged if n not in sick]
    assert specificity.only_right_counts == (spared.count([True, False]), spared.count([False, True]))
    # Refused images are not referred: of 34 with the condition the first run refused 3 and 6, the second 6.
    referred = [
        [n not in refused[side] and scores[n, side] >= edge for side, edge in ((0, 0.5), (1, 0.3))] for n in range(100)
    ]
    with_it, without = ([referred[n] for n in range(100) if (n in sick) == side] for side in (True, False))
    assert (detected.first.value, detected.second.value) == pytest.approx(np.mean(with_it, axis=0))
    assert (falsely.first.value, falsely.second.value) == pytest.approx(np.mean(without, axis=0))
    assert falsely.only_right_counts == (without.count([False, True]), without.count([True, False]))
    assert found.kappa is not None
    assert found.kappa[0] == pytest.approx(cohen_kappa_score(*np.transpose(referred)))


def test_without_operating_points_only_areas_are_compared() -> None:
    runs = [[result(n, 0.1 * n, label=label, folder="f") for n in range(1, 9)] for label in ("opacity", "tb")]
    cases = cases_of(runs[0], sick={5, 6, 7, 8})
    found = compare_packs(cases, runs[1], first=replace(FIRST, point=None), second=SECOND, rule=CountingRule())
    assert [one.name for one in found.figures] == ["auc"]
    assert (found.figures[0].difference, found.figures[0].low < 0 < found.figures[0].high) == (0, True)
    with pytest.raises(UsageProblem, match="Images with a label that are also in run 2: 3"):
        compare_packs(cases, runs[1][:3], first=FIRST, second=SECOND, rule=CountingRule())
    with pytest.raises(UsageProblem, match="Images with a label that are also in run 2: 0"):
        compare_packs(cases, [], first=FIRST, second=SECOND, rule=CountingRule())
