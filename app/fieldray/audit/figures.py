"""The performance of a pack on a site's own images: figures with 95 % intervals.

All figures count units: images, examinations or patients, as `units.CountingRule` says. Images of one patient are not
independent, so the intervals are computed by patient.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.audit.agreement import Agreement, agreements
from fieldray.audit.units import ALWAYS_REFERRED_CATEGORIES, Case, CountingRule, is_assessed, is_referred
from fieldray.domain import metrics
from fieldray.domain.finding import WORK_LIST_ORDER, Category, Decision, decide
from fieldray.domain.image import parse_dicom_date
from fieldray.domain.metrics import Scores, Share, Truth, share_of_hits
from fieldray.domain.model import Estimate, OperatingPoint
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, merge_by_code, reason

MIN_SUBGROUP_UNITS: Final = 20  # minimum number of units of each class for the figures of a subgroup
MAX_INTERVAL_HALF_WIDTH: Final = 0.05
_Z: Final = 1.959964
_LARGEST_BINS: Final = 10
_IMAGES_PER_BIN: Final = 20
_AGE_GROUPS: Final = ((0, 18), (18, 40), (40, 65), (65, 200))
_MAX_IMAGES: Final = 1_000_000
_ALWAYS: Final = frozenset({"abnormal", "unsure", "normal", "refused"})
_EACH_IMAGE: Final = CountingRule()
_NOBODY: Final[Mapping[str, Mapping[str, bool]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPerformance:
    """The performance of one operating point on the units (images, examinations or patients) of an audit.

    detected_share          share of all units with the condition that were referred
    falsely_referred_share  share of all units without the condition that were referred
    class_shares_by_truth   share of units in each class. Key True: shares of the units with the condition. Key False:
                            shares of the units without the condition
    sensitivity             share of the assessed units with the condition that were referred
    specificity             share of the assessed units without the condition that were not referred
    ppv, npv                positive and negative predictive value at the audit's prevalence. `ppv` is None if no unit
                            was referred, `npv` is None if every unit was referred

    A unit that was not assessed counts as not referred.
    """

    point: OperatingPoint
    detected_share: Share
    falsely_referred_share: Share
    class_shares_by_truth: Mapping[bool, Mapping[Category, Share]]
    sensitivity: Share
    specificity: Share
    ppv: Estimate | None
    npv: Estimate | None


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """A bin of the calibration: units (images, examinations or patients) with similar scores.

    mean_score      mean calibrated score, 0..1
    positive_share  share of the units with the condition
    """

    mean_score: float
    positive_share: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgroup:
    """The figures of a part of an audit's units (images, examinations or patients).

    attribute, name  an attribute and the value that all units of the subgroup have; for example "sex" and "F"
    unit_count       number of units of the subgroup
    auc              area under the ROC curve
    points           the performance of each operating point on the subgroup
    """

    attribute: str
    name: str
    unit_count: int
    auc: Estimate
    points: tuple[PointPerformance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAssessedUnits:
    """Numbers of units (images, examinations or patients) that were not assessed for one reason.

    positive_count  number of units with the condition
    negative_count  number of units without the condition
    """

    reason: Reason
    positive_count: int
    negative_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All results of an audit.

    Every figure except `image_count` and `patient_count` counts units: images, examinations or patients, as the audit's
    rule says.

    positive_count       number of units with the condition
    assessed_unit_count  number of units with a score, or with an image to be read first
    auc                  area under the ROC curve of the scores
    roc_points           points of the ROC curve (1 - specificity, sensitivity)
    prevalence           prevalence at which the predictive values hold, 0..1
    counts_by_category_and_truth
                         number of units by category, and then by truth (True: with the condition)
    unsure_share, refused_share
                       share of all units that are uncertain, and share of all units that are not suitable
    not_assessed       units that were not assessed, by reason
    calibration_bins   calibration bins of equal numbers of units
    calibration_error  0..1. In each bin: distance between the mean score and the share of units with the condition.
                       The error is the mean of these distances
    misclassified      units falsely referred or missed at the first operating point. The most certain mistakes come
                       first, units without a score last
    agreements         Cohen's kappa of every two judges: the pack, the reference labels and each reader
    cases              all images
    """

    rule: CountingRule
    image_count: int
    patient_count: int
    unit_count: int
    positive_count: int
    assessed_unit_count: int
    auc: Estimate
    roc_points: tuple[tuple[float, float], ...]
    points: tuple[PointPerformance, ...]
    prevalence: float
    counts_by_category_and_truth: Mapping[Category, Mapping[bool, int]]
    unsure_share: Share
    refused_share: Share
    not_assessed: tuple[NotAssessedUnits, ...]
    calibration_bins: tuple[CalibrationBin, ...]
    calibration_error: float
    subgroups: tuple[Subgroup, ...]
    misclassified: tuple[Case, ...]
    agreements: tuple[Agreement, ...]
    cases: tuple[Case, ...]
    notes: tuple[Reason, ...] = ()


def require_valid_prevalence(prevalence: float | None) -> None:
    """Raise UsageProblem for a prevalence that is not between 0 and 1. None is allowed."""
    if prevalence is not None and not 0 < prevalence < 1:
        raise UsageProblem(reason("audit_prevalence", value=prevalence))


def compute_audit(
    cases: Sequence[Case],
    points: Sequence[OperatingPoint],
    *,
    rule: CountingRule = _EACH_IMAGE,
    prevalence: float | None = None,
    readers: Mapping[str, Mapping[str, bool]] = _NOBODY,
) -> Audit:
    """Compute all figures of an audit: one label of one pack, on images with reference labels.

    points      the operating points to evaluate; the first operating point also decides the disagreements
    prevalence  share with the condition among the patients to be screened, between 0 and 1; by default the share among
                the units
    readers     by reader and image key, whether the reader found the condition

    Raises UsageProblem if no scored unit has the condition, if all scored units have it, or for a prevalence outside
    (0, 1).
    """
    require_valid_prevalence(prevalence)
    units = rule.group_into_units(cases)
    scored = [unit for unit in units if unit.score is not None]
    scores, truth, patients = arrays_of_scored_cases(scored)
    if not truth.any() or truth.all():
        raise UsageProblem(reason("audit_one_class_scored", units=len(units), scored=len(scored)))
    known = float(np.mean([unit.truth for unit in units])) if prevalence is None else prevalence
    everyone = [unit.patient_key for unit in units]
    bins = calibration_bins(scores, truth, patients=patients)
    return Audit(
        rule=rule,
        image_count=len(cases),
        patient_count=len(set(everyone)),
        unit_count=len(units),
        positive_count=sum(unit.truth for unit in units),
        assessed_unit_count=sum(map(is_assessed, units)),
        auc=metrics.auc_estimate(scores, truth, patients=patients),
        roc_points=roc_curve(scores, truth),
        points=tuple(performance_at(units, point, rule=rule, prevalence=known) for point in points),
        prevalence=known,
        counts_by_category_and_truth=_counts(units),
        unsure_share=share_of_hits(np.array([unit.category == "unsure" for unit in units]), patients=everyone),
        refused_share=share_of_hits(np.array([unit.category == "refused" for unit in units]), patients=everyone),
        not_assessed=tuple(_not_assessed(units)),
        calibration_bins=bins,
        calibration_error=metrics.calibration_error(scores, truth, bins=len(bins)),
        subgroups=_groups(cases, points, rule=rule, prevalence=known),
        misclassified=tuple(_disagreements(units, points, rule)),
        agreements=tuple(agreements(cases, points, rule=rule, readers=readers)),
        cases=tuple(cases),
        notes=tuple(_notes(cases, units, rule)),
    )


def arrays_of_scored_cases(cases: Sequence[Case]) -> tuple[Scores, Truth, list[str]]:
    """Return scores (n,) float64, truths (n,) bool and patients of cases that all have a score."""
    return (
        np.array([case.score for case in cases], np.float64),
        np.array([case.truth for case in cases], np.bool_),
        [case.patient_key for case in cases],
    )


def roc_curve(scores: Scores, truth: Truth) -> tuple[tuple[float, float], ...]:
    """Return the points (1 - specificity, sensitivity) of the ROC curve, from (0, 0) to (1, 1)."""
    levels, rank = np.unique(-scores, return_inverse=True)
    hits, alarms = (np.cumsum(np.bincount(rank[own], minlength=len(levels))) for own in (truth, ~truth))
    pairs = zip(alarms / alarms[-1], hits / hits[-1], strict=True)
    return ((0.0, 0.0), *((float(alarm), float(hit)) for alarm, hit in pairs))


def performance_at(
    units: Sequence[Case], point: OperatingPoint, *, rule: CountingRule, prevalence: float
) -> PointPerformance:
    """Return the performance of an operating point on units (images, examinations or patients).

    The units must be of both classes; units that were not assessed may be among them. The operating point must have
    been chosen on other images, because on its own images the performance is overestimated.

    prevalence  prevalence for the predictive values, 0..1, exclusive
    """
    referred = np.array([is_referred(unit, rule.referral_score(point)) for unit in units], np.bool_)
    truth, assessed = (np.array(list(map(of, units)), np.bool_) for of in (lambda unit: unit.truth, is_assessed))
    patients = [unit.patient_key for unit in units]

    def part(hits: NDArray[np.bool_], of: NDArray[np.bool_]) -> Share:
        return share_of_hits(hits[of], patients=[who for who, own in zip(patients, of, strict=True) if own])

    detected, falsely = part(referred, truth), part(referred, ~truth)
    positive, negative = predictive_values(detected, complement_share(falsely), prevalence=prevalence)
    categories = [category_at_point(point, unit.score, otherwise=unit.category) for unit in units]
    return PointPerformance(
        point=point,
        detected_share=detected,
        falsely_referred_share=falsely,
        class_shares_by_truth=class_shares(categories, truth, patients=patients),
        sensitivity=part(referred, truth & assessed),
        specificity=part(~referred, ~truth & assessed),
        ppv=positive,
        npv=negative,
    )


def category_at_point(point: OperatingPoint, score: float | None, *, otherwise: Category) -> Category:
    """Return the class of an image with this score at an operating point.

    score      calibrated score, 0..1; None for an image without a score
    otherwise  the class that the image has so far, returned for an image without a score, and for an image that is to
               be read first
    """
    if score is None or otherwise in ALWAYS_REFERRED_CATEGORIES:
        return otherwise
    decisions: dict[Decision, Category] = {"above": "abnormal", "unsure": "unsure", "below": "normal"}
    return decisions[decide(score, point)]


def class_shares(
    categories: Sequence[Category], truth: Truth, *, patients: Sequence[str]
) -> dict[bool, dict[Category, Share]]:
    """Return the share of units in each class.

    Key True: shares of the units with the condition. Key False: shares of the units without the condition. The classes
    come in the order of the work list. The classes *abnormal*, *unsure*, *normal* and *refused* are always present,
    further classes only if they occur.

    categories  class of each unit
    truth       (n,) whether each unit has the condition
    patients    patient of each unit, for the intervals
    """
    there = [category for category in WORK_LIST_ORDER if category in _ALWAYS or category in categories]
    shares: dict[bool, dict[Category, Share]] = {}
    for own in (True, False):
        members = [index for index, known in enumerate(truth) if bool(known) == own]
        of = [patients[index] for index in members]
        shares[own] = {
            category: share_of_hits(
                np.array([categories[index] == category for index in members], np.bool_), patients=of
            )
            for category in there
        }
    return shares


def predictive_values(
    sensitivity: Share, specificity: Share, *, prevalence: float
) -> tuple[Estimate | None, Estimate | None]:
    """Return the positive and the negative predictive value at a known prevalence.

    The positive value is None if no unit was referred. The negative value is None if every unit was referred.

    With odds = (1 - prevalence) / prevalence, the positive value is 1 / (1 + odds * r) with r = (1 - specificity) /
    sensitivity. The negative value is 1 / (1 + r / odds) with r = (1 - sensitivity) / specificity. The interval of r
    comes from the intervals of both shares (Donner and Zou, Statistical Methods in Medical Research 21 (2012) 347,
    section 3).

    sensitivity  share of the units with the condition that were referred
    specificity  share of the units without the condition that were not referred
    prevalence   0..1, exclusive
    """
    odds = (1 - prevalence) / prevalence
    positive = _interval_of_ratio(complement_share(specificity), sensitivity)
    negative = _interval_of_ratio(complement_share(sensitivity), specificity)
    return positive and _predictive(positive, odds), negative and _predictive(negative, 1 / odds)


def complement_share(found: Share) -> Share:
    """Return the share of the units without a property, from the share `found` of the units with the property."""
    return Share(found.of - found.count, found.of, 1 - found.value, 1 - found.high, 1 - found.low)


def _predictive(ratio: tuple[float, float, float], odds: float) -> Estimate:
    value, high, low = (1 / (1 + odds * r) for r in ratio)  # the larger the ratio, the smaller the predictive value
    return Estimate(value, min(low, value), max(high, value))


def _interval_of_ratio(above: Share, below: Share) -> tuple[float, float, float] | None:
    """Return the ratio of two shares and the ends of the ratio's interval: (ratio, low, high).

    The ratio or an end may be infinite. The result is None for 0 / 0.
    """
    a, b = above.value, below.value
    if not a and not b:
        return None

    def with_root(over: float, under: float) -> float:
        return a * b + math.sqrt(max((a * b) ** 2 - over * under, 0.0))

    over, under = above.low * (2 * a - above.low), below.high * (2 * b - below.high)
    low = over / with_root(over, under) if over else 0.0  # written without dividing by `under`, which may be 0
    over, under = above.high * (2 * a - above.high), below.low * (2 * b - below.low)
    return a / b if b else math.inf, low, with_root(over, under) / under if under else math.inf


def calibration_bins(scores: Scores, truth: Truth, *, patients: Sequence[str]) -> tuple[CalibrationBin, ...]:
    """Sort units (images, examinations or patients) by score and divide them into bins of equal size, low scores first.

    There are at most ten bins, with 20 or more units each. Fewer than 40 units give a single bin. `patients` names the
    patient of each unit, for the intervals.
    """
    number = max(1, min(_LARGEST_BINS, len(scores) // _IMAGES_PER_BIN))
    found = []
    for members in np.array_split(np.argsort(scores, kind="stable"), number):
        of = [patients[index] for index in members]
        found.append(CalibrationBin(float(scores[members].mean()), share_of_hits(truth[members], patients=of)))
    return tuple(found)


def images_needed_for_interval(share: float) -> int:
    """Return the number of images for a 95 % interval that extends at most `MAX_INTERVAL_HALF_WIDTH` to either side of
    a share.

    The interval is Wilson's interval of a share around `share`, for images of different patients. The images are of
    one class: positives for a sensitivity, negatives for a specificity.
    """

    def is_enough(number: int) -> bool:
        inner = share * (1 - share) / number + _Z**2 / (4 * number**2)
        return _Z / (1 + _Z**2 / number) * math.sqrt(inner) <= MAX_INTERVAL_HALF_WIDTH

    return 1 + bisect_left(range(1, _MAX_IMAGES), True, key=is_enough)


def _not_assessed(units: Sequence[Case]) -> Iterator[NotAssessedUnits]:
    """Yield, for each reason, the number of units that were not assessed. The most frequent reason comes first."""
    whys = Counter((unit.reason, unit.truth) for unit in units if unit.reason and not is_assessed(unit))
    alike = merge_by_code(Counter(why for why, _ in whys.elements()))
    for why, _ in alike.most_common():
        positives, negatives = (
            sum(number for (own, truth), number in whys.items() if own.code == why.code and truth == side)
            for side in (True, False)
        )
        yield NotAssessedUnits(reason=why, positive_count=positives, negative_count=negatives)


def _disagreements(units: Sequence[Case], points: Sequence[OperatingPoint], rule: CountingRule) -> list[Case]:
    """Return the units falsely referred or missed at the first operating point, the most certain mistakes first.

    If `points` is empty, the units of the classes *abnormal* and *read first* count as referred.
    """

    def referred(unit: Case) -> bool:
        return (
            is_referred(unit, rule.referral_score(points[0])) if points else unit.category in ("read_first", "abnormal")
        )

    def doubt(unit: Case) -> tuple[bool, float]:
        return unit.score is None, -abs((unit.score or 0.0) - unit.truth)

    return sorted((unit for unit in units if referred(unit) != unit.truth), key=doubt)


def _counts(cases: Sequence[Case]) -> dict[Category, dict[bool, int]]:
    number = Counter((case.category, case.truth) for case in cases)
    found: dict[Category, dict[bool, int]] = {}
    for (category, truth), count in sorted(number.items()):
        found.setdefault(category, {True: 0, False: 0})[truth] = count
    return found


_GROUPINGS: Final[Mapping[str, Callable[[Case], str]]] = {
    "view": lambda case: case.header.view,
    "sex": lambda case: case.header.patient_sex,
    "age": lambda case: _age_group(case.header.patient_age_years),
    "manufacturer": lambda case: case.header.manufacturer,
}


def _age_group(years: float | None) -> str:
    if years is None:
        return ""
    return next((f"{low} to {high - 1}" for low, high in _AGE_GROUPS if low <= years < high), "")


def split_into_subgroups(cases: Sequence[Case], rule: CountingRule) -> Iterator[tuple[str, str, list[Case]]]:
    """Yield each subgroup that has at least `MIN_SUBGROUP_UNITS` scored units with the condition, and as many without.

    Each item is (attribute, value, units of the subgroup), for example ("sex", "F", units).
    """
    for by, grouping in _GROUPINGS.items():
        for name in sorted({grouping(case) for case in cases} - {""}):
            units = rule.group_into_units(case for case in cases if grouping(case) == name)
            truths = [unit.truth for unit in units if unit.score is not None]
            if min(sum(truths), len(truths) - sum(truths)) >= MIN_SUBGROUP_UNITS:
                yield by, name, units


def _groups(
    cases: Sequence[Case], points: Sequence[OperatingPoint], *, rule: CountingRule, prevalence: float
) -> tuple[Subgroup, ...]:
    found = []
    for by, name, units in split_into_subgroups(cases, rule):
        scores, truth, patients = arrays_of_scored_cases([unit for unit in units if unit.score is not None])
        judged = tuple(performance_at(units, point, rule=rule, prevalence=prevalence) for point in points)
        auc = metrics.auc_estimate(scores, truth, patients=patients)
        found.append(Subgroup(attribute=by, name=name, unit_count=len(units), auc=auc, points=judged))
    return tuple(found)


def _notes(cases: Sequence[Case], units: Sequence[Case], rule: CountingRule) -> Iterator[Reason]:
    if left := sum(case.score is None for case in cases):
        yield reason("audit_no_score", count=left)
    if asked := sum(case.has_refusal_override for case in cases):
        yield reason("asked_for_images", count=asked)
    positives = sum(unit.truth for unit in units if unit.score is not None)
    scored = sum(unit.score is not None for unit in units)
    if (fewer := min(positives, scored - positives)) < MIN_SUBGROUP_UNITS:
        yield reason("audit_few", count=fewer)
    if sum(not case.has_known_patient for case in cases) > len(cases) / 2:
        yield reason("audit_patients_unknown")
    yield from _patient_notes(cases, rule)


def _patient_notes(cases: Sequence[Case], rule: CountingRule) -> Iterator[Reason]:
    """Yield notes about patients with images of both labels, and about patients whose examinations count as one."""
    images = defaultdict[str, list[Case]](list)
    for case in cases:
        images[case.patient_key].append(case)
    if both := sorted(who for who, own in images.items() if len({case.truth for case in own}) == 2):
        yield reason("audit_both_labels", count=len(both), numbers="; ".join(both))
    if rule.unit != "patient":
        return
    several = [own for own in images.values() if len({case.exam_key for case in own}) > 1]
    if several:
        days = [{parse_dicom_date(case.header.study_date) for case in own} - {None} for own in several]
        spans = [(max(own) - min(own)).days for own in days if own]  # type: ignore[type-var,operator]
        far = max(spans, default=0)
        yield reason("audit_several_exams", count=len(several), days=far or "?")
