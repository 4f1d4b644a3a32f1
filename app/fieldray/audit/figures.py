"""How good a pack is on one's own images: figures with 95 % intervals by patient, from cases alone."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fieldray.audit.cases import Case
from fieldray.domain import metrics
from fieldray.domain.finding import WORK_LIST_ORDER, Category, Decision, decide
from fieldray.domain.metrics import Scores, Share, Truth, share
from fieldray.domain.model import Estimate, OperatingPoint
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason

SMALLEST_GROUP: Final = 20  # images of each class from which a subgroup has figures of its own
HALF_WIDTH: Final = 0.05
_Z: Final = 1.959964
_LARGEST_BINS: Final = 10
_IMAGES_PER_BIN: Final = 20
_AGE_GROUPS: Final = ((0, 18), (18, 40), (40, 65), (65, 200))
_MOST_IMAGES: Final = 1_000_000
ALWAYS_FOUND: Final[frozenset[str]] = frozenset({"read_first"})  # of the list, so it is found whatever its score
_ALWAYS: Final = frozenset({"abnormal", "unsure", "normal", "refused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPoint:
    """What an operating point does on these images.

    found                           share of all positives, refused ones too, that are at or above it or read first
    classes                         by truth and class, of all cases: what lies beyond the zone's edges is called so
    sensitivity, specificity        of the cases with a score
    positive_value, negative_value  predictive values at the prevalence asked for; None where a share is 0/0
    """

    point: OperatingPoint
    found: Share
    classes: Mapping[bool, Mapping[Category, Share]]
    sensitivity: Share
    specificity: Share
    positive_value: Estimate | None
    negative_value: Estimate | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Images of like scores: their mean score and the share of positives, in 0..1."""

    mean_score: float
    positives: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Images that have one thing in common, as `view` = "PA"."""

    by: str
    name: str
    images: int
    area: Estimate
    points: tuple[AtPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Everything that was measured.

    images, patients, positives  of all cases; the figures are of those with a score
    scored                       the number of cases with a score
    area                         under the ROC curve
    curve                        (1 - specificity, sensitivity) from (0, 0) to (1, 1)
    prevalence                   at which the predictive values hold, 0..1
    counts                       of cases by category and truth
    unsure, refused              shares of all cases
    calibration_error            expected calibration error, 0..1
    disagreements                called abnormal or normal against the reference, the surest first
    """

    images: int
    patients: int
    positives: int
    scored: int
    area: Estimate
    curve: tuple[tuple[float, float], ...]
    points: tuple[AtPoint, ...]
    prevalence: float
    counts: Mapping[Category, Mapping[bool, int]]
    unsure: Share
    refused: Share
    bins: tuple[Bin, ...]
    calibration_error: float
    groups: tuple[Group, ...]
    disagreements: tuple[Case, ...]
    notes: tuple[Reason, ...] = ()


def require_prevalence(prevalence: float | None) -> None:
    """Raise UsageProblem for a prevalence outside (0, 1)."""
    if prevalence is not None and not 0 < prevalence < 1:
        raise UsageProblem(reason("audit_prevalence", value=prevalence))


def audit(cases: Sequence[Case], points: Sequence[OperatingPoint], *, prevalence: float | None = None) -> Audit:
    """All figures of images with their reference, of one label of one pack.

    prevalence  share of positives among the patients to be screened, between 0 and 1; without it, that of the cases

    Raises UsageProblem without images of both classes that have a score, or with a prevalence outside (0, 1).
    """
    require_prevalence(prevalence)
    scored = [case for case in cases if case.score is not None]
    scores, truth, patients = arrays(scored)
    if not truth.any() or truth.all():
        raise UsageProblem(reason("audit_one_class_scored", images=len(cases), scored=len(scored)))
    known = float(np.mean([case.truth for case in cases])) if prevalence is None else prevalence
    everyone = [case.patient for case in cases]
    against = [case for case in cases if case.category == ("normal" if case.truth else "abnormal")]
    return Audit(
        images=len(cases),
        patients=len(set(everyone)),
        positives=sum(case.truth for case in cases),
        scored=len(scored),
        area=metrics.area(scores, truth, patients=patients),
        curve=roc_curve(scores, truth),
        points=tuple(at_point(cases, point, prevalence=known) for point in points),
        prevalence=known,
        counts=_counts(cases),
        unsure=share(np.array([case.category == "unsure" for case in cases]), patients=everyone),
        refused=share(np.array([case.category == "refused" for case in cases]), patients=everyone),
        bins=calibration_bins(scores, truth, patients=patients),
        calibration_error=metrics.calibration_error(scores, truth),
        groups=_groups(cases, points, prevalence=known),
        disagreements=tuple(sorted(against, key=lambda case: abs((case.score or 0.0) - case.truth), reverse=True)),
        notes=tuple(_notes(cases, scored)),
    )


def arrays(cases: Sequence[Case]) -> tuple[Scores, Truth, list[str]]:
    """Scores (n,) float64, truth (n,) bool and patients of cases that have a score."""
    return (
        np.array([case.score for case in cases], np.float64),
        np.array([case.truth for case in cases], np.bool_),
        [case.patient for case in cases],
    )


def roc_curve(scores: Scores, truth: Truth) -> tuple[tuple[float, float], ...]:
    """(1 - specificity, sensitivity) at every threshold, from (0, 0) to (1, 1)."""
    levels, rank = np.unique(-scores, return_inverse=True)
    hits, alarms = (np.cumsum(np.bincount(rank[own], minlength=len(levels))) for own in (truth, ~truth))
    pairs = zip(alarms / alarms[-1], hits / hits[-1], strict=True)
    return ((0.0, 0.0), *((float(alarm), float(hit)) for alarm, hit in pairs))


def at_point(cases: Sequence[Case], point: OperatingPoint, *, prevalence: float) -> AtPoint:
    """What a point that was chosen on other images does to cases of both classes, with and without a score."""
    scores, truth, patients = arrays([case for case in cases if case.score is not None])
    categories = [category_at(point, case.score, otherwise=case.category) for case in cases]
    found = [is_found(case, point) for case in cases if case.truth]
    hits = metrics.sensitivity(scores, truth, threshold=point.threshold, patients=patients)
    spared = metrics.specificity(scores, truth, threshold=point.threshold, patients=patients)
    positive, negative = predictive_values(hits, spared, prevalence=prevalence)
    everyone = [case.patient for case in cases]
    return AtPoint(
        point=point,
        found=share(np.array(found, np.bool_), patients=[case.patient for case in cases if case.truth]),
        classes=class_shares(categories, np.array([case.truth for case in cases], np.bool_), patients=everyone),
        sensitivity=hits,
        specificity=spared,
        positive_value=positive,
        negative_value=negative,
    )


def is_found(case: Case, point: OperatingPoint) -> bool:
    """Whether an image is at or above a point, or read first: a refused one is not."""
    return case.category in ALWAYS_FOUND or (case.score is not None and case.score >= point.threshold)


def category_at(point: OperatingPoint, score: float | None, *, otherwise: Category) -> Category:
    """The class of an image at a point: `otherwise` what it is without a score, or read first whatever its score."""
    if score is None or otherwise in ALWAYS_FOUND:
        return otherwise
    decisions: dict[Decision, Category] = {"above": "abnormal", "unsure": "unsure", "below": "normal"}
    return decisions[decide(score, point)]


def class_shares(
    categories: Sequence[Category], truth: Truth, *, patients: Sequence[str]
) -> dict[bool, dict[Category, Share]]:
    """By truth (n,), the share of each class among its images, in the order of the work list.

    What a pack says of an image it judges, and what it refuses, are always there; any other class where it occurs.
    """
    there = [category for category in WORK_LIST_ORDER if category in _ALWAYS or category in categories]
    shares: dict[bool, dict[Category, Share]] = {}
    for own in (True, False):
        members = [index for index, known in enumerate(truth) if bool(known) == own]
        of = [patients[index] for index in members]
        shares[own] = {
            category: share(np.array([categories[index] == category for index in members], np.bool_), patients=of)
            for category in there
        }
    return shares


def predictive_values(hits: Share, spared: Share, *, prevalence: float) -> tuple[Estimate | None, Estimate | None]:
    """Positive and negative predictive value at a prevalence that is known; None where nothing is called so.

    Either is 1 / (1 + odds * r) with r the ratio of two independent shares, whose interval comes from the intervals of
    the two (Donner and Zou, Statistical Methods in Medical Research 21 (2012) 347, section 3).

    hits, spared  sensitivity and specificity
    prevalence    0..1, exclusive
    """
    odds = (1 - prevalence) / prevalence
    positive = _interval_of_ratio(_turned(spared), hits)
    negative = _interval_of_ratio(_turned(hits), spared)
    return positive and _predictive(positive, odds), negative and _predictive(negative, 1 / odds)


def _turned(found: Share) -> Share:
    """The share of those that are not hits."""
    return Share(found.of - found.count, found.of, 1 - found.value, 1 - found.high, 1 - found.low)


def _predictive(ratio: tuple[float, float, float], odds: float) -> Estimate:
    value, high, low = (1 / (1 + odds * r) for r in ratio)  # the larger the ratio, the smaller the value
    return Estimate(value, min(low, value), max(high, value))


def _interval_of_ratio(above: Share, below: Share) -> tuple[float, float, float] | None:
    """`above` / `below` with the ends of its interval, infinity included; None for 0 / 0."""
    a, b = above.value, below.value
    if not a and not b:
        return None

    def with_root(over: float, under: float) -> float:
        return a * b + math.sqrt(max((a * b) ** 2 - over * under, 0.0))

    over, under = above.low * (2 * a - above.low), below.high * (2 * b - below.high)
    low = over / with_root(over, under) if over else 0.0  # the lower root without its division by `under`, perhaps 0
    over, under = above.high * (2 * a - above.high), below.low * (2 * b - below.low)
    return a / b if b else math.inf, low, with_root(over, under) / under if under else math.inf


def calibration_bins(scores: Scores, truth: Truth, *, patients: Sequence[str]) -> tuple[Bin, ...]:
    """Bins of equal numbers of images by score, the lowest first; each of 20 images or more, at most ten."""
    number = max(1, min(_LARGEST_BINS, len(scores) // _IMAGES_PER_BIN))
    found = []
    for members in np.array_split(np.argsort(scores, kind="stable"), number):
        of = [patients[index] for index in members]
        found.append(Bin(float(scores[members].mean()), share(truth[members], patients=of)))
    return tuple(found)


def images_needed(value: float) -> int:
    """Images, each of another patient, for Wilson's interval of a share around `value` to be +/- `HALF_WIDTH` or less.

    They are of the class that the share is of: positives for a sensitivity, negatives for a specificity.
    """

    def is_enough(number: int) -> bool:
        inner = value * (1 - value) / number + _Z**2 / (4 * number**2)
        return _Z / (1 + _Z**2 / number) * math.sqrt(inner) <= HALF_WIDTH

    return 1 + bisect_left(range(1, _MOST_IMAGES), True, key=is_enough)


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


def grouped(cases: Sequence[Case]) -> Iterator[tuple[str, str, list[Case]]]:
    """By what, name and members of each group with enough images of both classes that have a score."""
    for by, grouping in _GROUPINGS.items():
        for name in sorted({grouping(case) for case in cases} - {""}):
            members = [case for case in cases if grouping(case) == name]
            truths = [case.truth for case in members if case.score is not None]
            if min(sum(truths), len(truths) - sum(truths)) >= SMALLEST_GROUP:
                yield by, name, members


def _groups(cases: Sequence[Case], points: Sequence[OperatingPoint], *, prevalence: float) -> tuple[Group, ...]:
    found = []
    for by, name, members in grouped(cases):
        scores, truth, patients = arrays([case for case in members if case.score is not None])
        judged = tuple(at_point(members, point, prevalence=prevalence) for point in points)
        area = metrics.area(scores, truth, patients=patients)
        found.append(Group(by=by, name=name, images=len(members), area=area, points=judged))
    return tuple(found)


def _notes(cases: Sequence[Case], scored: Sequence[Case]) -> Iterator[Reason]:
    if left := len(cases) - len(scored):
        yield reason("audit_no_score", count=left)
    if asked := sum(case.is_asked for case in cases):
        yield reason("asked_for_images", count=asked)
    positives = sum(case.truth for case in scored)
    if (fewer := min(positives, len(scored) - positives)) < SMALLEST_GROUP:
        yield reason("audit_few", count=fewer)
    own = [case.patient.partition("\n")[0] in (case.image, case.header.study_instance_uid) for case in cases]
    if sum(own) > len(cases) / 2:
        yield reason("audit_patients_unknown")
