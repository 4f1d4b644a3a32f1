"""The units of an audit (images, examinations or patients), and the rule by which a unit is referred.

One rule applies to all parts of an audit: the table of figures, the threshold plan, the proposed operating point, the
subgroups, the comparison of packs and the list of disagreements. An examination or a patient has the condition if at
least one of the images has the condition. The score of an examination or a patient is the highest score of the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fieldray.audit.cases import ReferenceLabels
from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Category,
    Outcome,
    ScreenedOutcome,
    calibrate,
    override_notes,
    reason_of,
)
from fieldray.domain.image import ImageHeader, patient_id_if_usable
from fieldray.domain.metrics import ReferralRule, Scores, Truth, Unit, logit
from fieldray.domain.model import Calibration, OperatingPoint
from fieldray.domain.run import StoredResult
from fieldray.reasons import Reason

ALWAYS_REFERRED_CATEGORIES: Final[frozenset[str]] = frozenset(
    {"read_first"}
)  # the top of the work list, whatever the score


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One image of an audit: its reference label, and the pack's result.

    image_key             the key of the image (`ImageRef.key`)
    row_id                row of the image in the results database
    patient_key           key of the patient: equal for all images of one patient
    exam_key              key of the examination: equal for all images of one examination
    truth                 whether the finding is present, by the reference label
    score                 calibrated score, 0..1; None if the image was not suitable or failed
    category              class of the image by the audited label
    reason                the reason why the image has no score, or is to be read first; None for every other image
    has_refusal_override  whether a person asked the program to rotate the image, or to screen an unsuitable image
    has_known_patient     whether a table or the header names the patient; if not, each examination counts as a patient
    image_identity        identity of the image's bytes (`StoredResult.image_identity`)
    """

    image_key: str
    row_id: int
    patient_key: str
    truth: bool
    score: float | None
    category: Category
    header: ImageHeader
    exam_key: str = ""
    reason: Reason | None = None
    has_refusal_override: bool = False
    has_known_patient: bool = True
    image_identity: tuple[str, int] = ("", 0)


def score_and_category(outcome: Outcome, label: str) -> tuple[float | None, Category]:
    """Return the score of one label, and the class that the image has by this label alone.

    The score is calibrated, 0..1, or None if the image has no score for the label.
    """
    if not isinstance(outcome, ScreenedOutcome):
        return None, outcome.category
    own = tuple(finding for finding in outcome.findings if finding.label == label)
    return own[0].score if own else None, replace(outcome, findings=own).category


def make_cases(results: Iterable[StoredResult], reference: ReferenceLabels, *, label: str) -> Iterator[Case]:
    """Yield the images of one run that have a reference label, each with the pack's result.

    The patient of an image is the patient in the reference, or else the Patient ID if it is valid, or else the
    examination. The examination of an image is the examination in the reference, or else the study, or else the image.

    label  the pack's label to audit
    """
    for result in results:
        ref = result.outcome.ref
        if ref.key in reference.truth_by_image:
            score, category = score_and_category(result.outcome, label)
            patient = reference.patient_by_image.get(ref.key) or patient_id_if_usable(ref.header.patient_id)
            exam = reference.exam_by_image.get(ref.key) or ref.patient_study_key
            yield Case(
                image_key=ref.key,
                row_id=result.row_id,
                patient_key=patient or exam,
                exam_key=exam,
                truth=reference.truth_by_image[ref.key],
                score=score,
                category=category,
                header=ref.header,
                reason=reason_of(result.outcome),
                has_refusal_override=bool(override_notes(result.outcome)),
                has_known_patient=bool(patient),
                image_identity=result.image_identity,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingRule:
    """The rule of an audit: the unit that is counted, and the score from which a unit is referred.

    unit    an image, an examination or a patient
    refers  "above": a unit is referred if the score is at or above the threshold. "unsure": a unit is referred if the
            score is at or above the lower end of the uncertain zone

    A unit to be read first is always referred. Any other unit without a score is not referred.
    """

    unit: Unit = "image"
    refers: ReferralRule = "above"

    def group_into_units(self, cases: Iterable[Case]) -> list[Case]:
        """Group the images into units.

        Returns one case for each unit: the case of the unit's most urgent image, with the truth and score of the whole
        unit.
        """
        if self.unit == "image":
            return list(cases)
        members: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            members.setdefault((case.patient_key, case.exam_key if self.unit == "exam" else ""), []).append(case)
        return [_merged_case(own) for own in members.values()]

    def referral_score(self, point: OperatingPoint) -> float:
        """Return the lowest calibrated score (0..1) with which an operating point refers a unit."""
        return point.threshold if self.refers == "above" else point.unsure_low

    def referral_score_at(self, threshold: float, base_point: OperatingPoint | None) -> float:
        """Return the lowest calibrated score (0..1) with which a unit is referred at a given threshold.

        base_point  an operating point whose uncertain zone is moved to the threshold; None for no zone
        """
        return threshold if self.refers == "above" else shifted_uncertain_zone(base_point, threshold)[0]

    def threshold_for_referral_score(self, referral_score: float, base_point: OperatingPoint | None) -> float:
        """Return the threshold that refers exactly the units with a score of `referral_score` (0..1) or more.

        The function is the inverse of `referral_score_at`.

        base_point  an operating point whose uncertain zone is moved to the threshold; None for no zone
        """
        if self.refers == "above" or base_point is None or base_point.unsure_low in (0, 1, base_point.threshold):
            return referral_score
        return max(_shifted(referral_score, of=base_point.unsure_low, to=base_point.threshold), referral_score)


def _merged_case(images: Sequence[Case]) -> Case:
    """Merge the images of a unit into the case of the most urgent image, with the unit's truth and highest score."""
    scores = [case.score for case in images if case.score is not None]
    deciding = min(images, key=lambda case: (WORK_LIST_ORDER.index(case.category), -(case.score or 0.0)))
    return replace(
        deciding,
        truth=any(case.truth for case in images),
        score=max(scores, default=None),
        has_refusal_override=any(case.has_refusal_override for case in images),
    )


def is_assessed(case: Case) -> bool:
    """Return whether the pack assessed a case: the image has a score, or is to be read first."""
    return case.score is not None or case.category in ALWAYS_REFERRED_CATEGORIES


def is_referred(case: Case, referral_score: float) -> bool:
    """Return whether a unit is referred: the image is to be read first, or the score is `referral_score` (0..1) or
    more.
    """
    return ranking_score(case) >= referral_score


def ranking_score(case: Case) -> float:
    """Return the score of a unit for the comparison with thresholds.

    The score is inf if the image is to be read first, and -inf if the image has no score.
    """
    if case.category in ALWAYS_REFERRED_CATEGORIES:
        return math.inf
    return -math.inf if case.score is None else case.score


def scores_and_truths(units: Sequence[Case]) -> tuple[Scores, Truth, list[str]]:
    """Return the scores, truths and patients of units.

    Scores (n,) float64 come from `ranking_score`. Truths are (n,) bool. Patients are a list with one key per unit.
    """
    return (
        np.array([ranking_score(case) for case in units], np.float64),
        np.array([case.truth for case in units], np.bool_),
        [case.patient_key for case in units],
    )


def shifted_uncertain_zone(base_point: OperatingPoint | None, threshold: float) -> tuple[float, float]:
    """Return the ends of an operating point's uncertain zone, moved to another threshold.

    The zone is moved on the log-odds scale, on which each end keeps its distance to the threshold. An end at 0 or 1
    stays in place. Without an operating point the zone is empty: both ends are the threshold.
    """
    if base_point is None:
        return threshold, threshold

    def moved(end: float) -> float:
        return end if end in (0, 1) else _shifted(end, of=base_point.threshold, to=threshold)

    return min(moved(base_point.unsure_low), threshold), max(moved(base_point.unsure_high), threshold)


def _shifted(score: float, *, of: float, to: float) -> float:
    """Move a score along the log-odds scale by the distance from the score `of` to the score `to`."""
    here, there = logit(np.array([of, to])).tolist()
    return calibrate(score, Calibration(intercept=there - here))
