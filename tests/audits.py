"""Audit reports of made-up cases, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fieldray.audit.drift import measure_drift
from fieldray.audit.figures import compute_audit
from fieldray.audit.report import (
    AuditReport,
    AuditSubject,
    ComparedPack,
    PackComparison,
    PairedFigure,
    ProposalGoal,
    ScreeningPrices,
    propose_operating_point,
    threshold_plan,
)
from fieldray.audit.units import Case, CountingRule
from fieldray.domain.image import ImageHeader
from fieldray.domain.model import OperatingPoint
from outcomes import POINT

PRICES = ScreeningPrices(screening_price=2.0, test_price=20.0)
PATIENTS = CountingRule(unit="patient")


def audit_report(
    text: str = "made-up",
    *,
    scores: Mapping[int, float],
    points: Sequence[OperatingPoint] = (POINT,),
    prices: ScreeningPrices | None = PRICES,
    rule: CountingRule = PATIENTS,
) -> AuditReport:
    """Return a report of 60 cases, of which the odd rows are positive and score 0.85, the others 0.45.

    `scores` replaces scores by row. `text` is in every name. The last patient has a positive and a negative image, all
    others have one image.
    """
    cases = []
    for row in range(1, 61):
        score = scores.get(row, 0.45 + 0.4 * (row % 2))
        header = ImageHeader(
            view_position=text, manufacturer=text, patient_sex=text, patient_name="Nobody^Known"
        )  # fmt: skip
        cases.append(
            Case(
                image_key=f"/знімки/{text.replace('/', ' ')}-图{row}.png", row_id=row,
                patient_key=f"SECRET{min(row, 59)}",
                truth=row % 2 == 1, score=score, category="abnormal" if score >= 0.5 else "normal", header=header,
            )
        )  # fmt: skip
    point, names = points[0], {"en": text, "uk": text}
    subject = AuditSubject(
        pack=text, pack_names=names, trust="signed", fingerprint="ab12", model_sha256="c" * 64, label=point.label,
        meaning=names, label_source=text, run_id=3, paths=("/знімки", text), program_version=text, audited_s=1e9,
    )  # fmt: skip
    proposal = propose_operating_point(cases, label=point.label, base_point=point, rule=rule, wanted=ProposalGoal())
    thresholds = proposal.threshold, point.threshold
    return AuditReport(
        subject=subject,
        audit=compute_audit(cases, points, rule=rule),
        rows_without_image_by_truth={True: 0, False: 0},
        drifts=(measure_drift([60, 0], [0, 60], quantity="scores"),),
        proposal=proposal,
        threshold_plan=threshold_plan(cases, thresholds, rule=rule, base_point=point, prevalence=0.1, prices=prices),
        pack_comparison=_paired_with_another(ComparedPack(run_id=3, pack=text, label=point.label, point=point)),
    )


def _paired_with_another(side: ComparedPack) -> PackComparison:
    """Return a comparison of this pack with another one of equal name."""
    figures = [
        PairedFigure(
            name=of, first=POINT.sensitivity, second=POINT.specificity, difference=-0.2, low=-0.25, high=0.01,
            only_right_counts=None if of == "auc" else (12, 3),
        )
        for of in ("auc", "detected", "falsely_referred", "sensitivity", "specificity")
    ]  # fmt: skip
    return PackComparison(
        first=side, second=side, image_count=60, unit_count=31, patient_count=31, both_assessed_count=58,
        only_first_assessed_count=1, only_second_assessed_count=1, missing_image_count=3,
        figures=tuple(figures),
    )  # fmt: skip
