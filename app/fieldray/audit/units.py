"""The units of an audit: images with their reference, grouped to examinations or patients, and the rule of referral.

One rule holds for the table of figures, the plan of thresholds, the proposal, the groups, the comparison of packs and
the list of disagreements. An examination or a patient has the condition if any of its images has it, and its score is
the highest of its images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fieldray.audit.cases import Reference
from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome, Screened, asked_for, calibrate, why_of
from fieldray.domain.image import ImageHeader, known_person
from fieldray.domain.metrics import Referral, Scores, Truth, Unit, logit
from fieldray.domain.model import Calibration, OperatingPoint
from fieldray.domain.run import StoredAnswer
from fieldray.reasons import Reason

ALWAYS_REFERRED: Final[frozenset[str]] = frozenset({"read_first"})  # the first of the list, whatever its score


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One image with its reference label.

    image     the key of the image (`ImageRef.key`)
    row_id    row of the image in the store
    patient   key of the patient: equal for all images of one patient
    exam      key of the examination: equal for all its images
    truth     whether the finding is present, by the reference
    score     calibrated score, 0..1; None if the image was refused or failed
    category  class of the image by the audited label
    why       the reason why the image has no score, or is to be read first
    is_asked  whether a person had the image turned, or screened although it was refused
    has_patient  whether a table or the header names the patient; else each examination counts as a patient
    identity  identity of the image's bytes (`StoredAnswer.identity`)
    """

    image: str
    row_id: int
    patient: str
    truth: bool
    score: float | None
    category: Category
    header: ImageHeader
    exam: str = ""
    why: Reason | None = None
    is_asked: bool = False
    has_patient: bool = True
    identity: tuple[str, int] = ("", 0)


def score_and_category(outcome: Outcome, label: str) -> tuple[float | None, Category]:
    """Return the calibrated score of a label (0..1, or None), and the class of the image by this label alone."""
    if not isinstance(outcome, Screened):
        return None, outcome.category
    own = tuple(finding for finding in outcome.findings if finding.label == label)
    return own[0].score if own else None, replace(outcome, findings=own).category


def make_cases(results: Iterable[StoredAnswer], reference: Reference, *, label: str) -> Iterator[Case]:
    """Yield the images of one run that have a reference label.

    The patient is named by the reference, or else by a valid Patient ID, or else the examination counts as the patient.
    The examination is named by the reference, or else it is the study, or else the image.

    label  the pack's label to audit
    """
    for result in results:
        ref = result.outcome.ref
        if ref.key in reference.truths:
            score, category = score_and_category(result.outcome, label)
            patient = reference.patients.get(ref.key) or known_person(ref.header.patient_id)
            exam = reference.exams.get(ref.key) or ref.study_key
            yield Case(
                image=ref.key,
                row_id=result.row_id,
                patient=patient or exam,
                exam=exam,
                truth=reference.truths[ref.key],
                score=score,
                category=category,
                header=ref.header,
                why=why_of(result.outcome),
                is_asked=bool(asked_for(result.outcome)),
                has_patient=bool(patient),
                identity=result.identity,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule of an audit: the unit counted, and what counts as referred.

    unit    an image, an examination or a patient
    refers  "above": read first, or a score at or above the threshold; "unsure": also a score at or above the lower end
            of the zone of uncertain scores. Without a score nothing is referred
    """

    unit: Unit = "image"
    refers: Referral = "above"

    def units(self, cases: Iterable[Case]) -> list[Case]:
        """Group the images into units. Returns for each unit the case of the image that decides it."""
        if self.unit == "image":
            return list(cases)
        members: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            members.setdefault((case.patient, case.exam if self.unit == "exam" else ""), []).append(case)
        return [_whole(own) for own in members.values()]

    def edge(self, point: OperatingPoint) -> float:
        """The score from which on a unit is referred at a point."""
        return point.threshold if self.refers == "above" else point.unsure_low

    def edge_at(self, threshold: float, pattern: OperatingPoint | None) -> float:
        """The score from which on a unit is referred at another threshold, around which the zone is moved along."""
        return threshold if self.refers == "above" else moved_band(pattern, threshold)[0]

    def threshold_of(self, edge: float, pattern: OperatingPoint | None) -> float:
        """The threshold that refers units from the score `edge` on: the inverse of `edge_at`."""
        if self.refers == "above" or pattern is None or pattern.unsure_low in (0, 1, pattern.threshold):
            return edge
        return max(_shifted(edge, of=pattern.unsure_low, to=pattern.threshold), edge)


def _whole(images: Sequence[Case]) -> Case:
    """One case of all images of a unit: the most urgent one, with the highest score."""
    scores = [case.score for case in images if case.score is not None]
    deciding = min(images, key=lambda case: (WORK_LIST_ORDER.index(case.category), -(case.score or 0.0)))
    return replace(
        deciding,
        truth=any(case.truth for case in images),
        score=max(scores, default=None),
        is_asked=any(case.is_asked for case in images),
    )


def is_assessed(case: Case) -> bool:
    """Whether the pack assessed the case: it has a score, or is to be read first."""
    return case.score is not None or case.category in ALWAYS_REFERRED


def is_referred(case: Case, edge: float) -> bool:
    """Whether a case is read first, or its score is at or above the edge."""
    return rank(case) >= edge


def rank(case: Case) -> float:
    """The score of a case; inf if the image is read first, -inf without a score."""
    if case.category in ALWAYS_REFERRED:
        return math.inf
    return -math.inf if case.score is None else case.score


def ranks(units: Sequence[Case]) -> tuple[Scores, Truth, list[str]]:
    """Ranks (n,) float64, truth (n,) bool and patients of units."""
    return (
        np.array([rank(case) for case in units], np.float64),
        np.array([case.truth for case in units], np.bool_),
        [case.patient for case in units],
    )


def moved_band(pattern: OperatingPoint | None, threshold: float) -> tuple[float, float]:
    """The unsure zone of a point moved to another threshold, at equal distance in log-odds. Ends at 0 or 1 stay.

    Without a point the zone is empty.
    """
    if pattern is None:
        return threshold, threshold

    def moved(end: float) -> float:
        return end if end in (0, 1) else _shifted(end, of=pattern.threshold, to=threshold)

    return min(moved(pattern.unsure_low), threshold), max(moved(pattern.unsure_high), threshold)


def _shifted(score: float, *, of: float, to: float) -> float:
    """A score moved in log-odds by as much as leads from one score to another."""
    here, there = logit(np.array([of, to])).tolist()
    return calibrate(score, Calibration(intercept=there - here))
