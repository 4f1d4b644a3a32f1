"""Two runs on the same images: figures against scikit-learn and counts worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fieldray.audit.cases import Case, make_cases
from fieldray.audit.report import Side, pair
from fieldray.domain.finding import Finding, Outcome, ReadFacts, Refused, decide
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.run import StoredAnswer
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from outcomes import operating_point, screened

FIRST = Side(run_id=1, pack="first-1.0.0", label="opacity", point=operating_point(threshold=0.5))
SECOND = Side(
    run_id=2, pack="second-1.0.0", label="tb", point=operating_point(threshold=0.3, unsure_low=0.3, label="tb")
)


def result(number: int, score: float | None, *, label: str, folder: str) -> StoredAnswer:
    ref = ImageRef(path=Path(f"/{folder}/{number}.dcm"), kind="dicom", header=ImageHeader(patient_id=f"P{number}"))
    facts = ReadFacts(content_sha256=f"{number:064x}")
    outcome: Outcome = Refused(ref=ref, reason=reason("view", view="LL"), facts=facts)
    if score is not None:
        point = operating_point(threshold=0.5, unsure_low=0.5, unsure_high=0.5, label=label)
        finding = Finding(label=label, score=score, point=point, decision=decide(score, point))
        outcome = replace(screened(ref), facts=facts, findings=(finding,))
    return StoredAnswer(answer_id=number, row_id=number, run_id=1, outcome=outcome, is_resumed=False)


def cases_of(results: list[StoredAnswer], *, sick: set[int]) -> list[Case]:
    truths = {one.outcome.ref.key: one.row_id in sick for one in results}
    return list(make_cases(results, truths, label="opacity", patients={}))


def test_areas_are_those_of_scikit_learn_on_the_images_that_both_could_judge() -> None:
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
    found = pair(cases, runs[1][:100], first=FIRST, second=SECOND)  # the files lie elsewhere, and twenty are not there
    assert (found.images, found.elsewhere, found.patients) == (100, 20, 100)
    assert (found.both, found.only_first, found.only_second) == (95, 1, 3)
    judged = [n for n in range(100) if n not in refused[0] | refused[1]]
    truth = [n in sick for n in judged]
    area, sensitivity, specificity, all_found = found.figures
    known = [roc_auc_score(truth, scores[judged, side]) for side in (0, 1)]
    assert (area.first.value, area.second.value) == pytest.approx(known)
    assert area.difference == pytest.approx(known[1] - known[0]) and area.low < area.difference < area.high
    assert area.only_right is None
    hits = [[scores[n, 0] >= 0.5, scores[n, 1] >= 0.3] for n in judged if n in sick]
    assert sensitivity.only_right == (hits.count([True, False]), hits.count([False, True]))
    assert sensitivity.difference == pytest.approx(np.mean([b for _, b in hits]) - np.mean([a for a, _ in hits]))
    spared = [[scores[n, 0] < 0.5, scores[n, 1] < 0.3] for n in judged if n not in sick]
    assert specificity.only_right == (spared.count([True, False]), spared.count([False, True]))
    # A refused positive is not found: of 34 sick ones the first refused 3 and 6, the second 6.
    every = [n for n in range(100) if n in sick]
    assert all_found.first.value == pytest.approx(
        sum(n not in refused[0] and scores[n, 0] >= 0.5 for n in every) / len(every)
    )


def test_without_points_there_is_the_area_alone_and_one_kind_is_refused() -> None:
    runs = [[result(n, 0.1 * n, label=label, folder="f") for n in range(1, 9)] for label in ("opacity", "tb")]
    cases = cases_of(runs[0], sick={5, 6, 7, 8})
    found = pair(cases, runs[1], first=replace(FIRST, point=None), second=SECOND)
    assert [one.of for one in found.figures] == ["auc"]
    assert (found.figures[0].difference, found.figures[0].low < 0 < found.figures[0].high) == (0, True)
    with pytest.raises(UsageProblem, match="Of 3 images with a label that run 2 has too"):
        pair(cases, runs[1][:3], first=FIRST, second=SECOND)
    with pytest.raises(UsageProblem, match="Of 0 images"):
        pair(cases, [], first=FIRST, second=SECOND)
