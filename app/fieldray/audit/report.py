"""An audit with all that a reader of its report must know: of what, on what, by whose labels, since when.

It may propose an operating point that would suit the site's own images; a point is taken only by a person's yes. It may
set the pack beside another one on the same images.

A threshold can be planned for a programme as the protocol of WHO and TDR asks (Determining the local calibration of
computer-assisted detection (CAD) thresholds and other parameters, 2021): at every score, who is called, found and
missed, and at what cost. What is counted is people: one is called if any of their images is at or above the threshold
or read first, and is sick if the finding is in any of them. Who has no image with a score is not called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.audit.cases import Case, said_of
from fieldray.audit.drift import Drift
from fieldray.audit.figures import ALWAYS_FOUND, Audit, arrays, grouped, is_found, predictive_values
from fieldray.domain import metrics
from fieldray.domain.finding import calibrate
from fieldray.domain.metrics import Scores, Share, Truth, share_of
from fieldray.domain.model import Calibration, Estimate, OperatingPoint, Trust
from fieldray.domain.run import StoredAnswer
from fieldray.errors import UsageProblem
from fieldray.reasons import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A threshold with what was measured at it, on the same images that it was chosen on.

    wanted       the sensitivity that was asked for, 0..1, or that the chosen threshold has
    specificity  its interval is the wider one that a threshold chosen on the same images has
    images       with a score
    """

    label: str
    wanted: float
    threshold: float
    unsure_low: float
    unsure_high: float
    sensitivity: Share
    specificity: Share
    images: int
    patients: int


def require_sensitivity(wanted: float) -> None:
    """Raise UsageProblem for a sensitivity outside (0, 1]."""
    if not 0 < wanted <= 1:
        raise UsageProblem(reason("audit_sensitivity", value=wanted))


def propose(
    cases: Sequence[Case],
    *,
    label: str,
    pattern: OperatingPoint | None,
    wanted: float,
    threshold: float | None = None,
) -> Proposal:
    """The highest threshold that catches a share of the positives, or the one that a person chose.

    cases      with scores of both classes among them, of the label
    pattern    the point whose band of "not sure" is moved along; without one there is no band
    wanted     the sensitivity, where no threshold was chosen
    threshold  the one that a person chose

    Raises UsageProblem for a sensitivity outside (0, 1], and a threshold outside [0, 1] or above all positives.
    """
    require_sensitivity(wanted)
    scores, truth, patients = arrays([case for case in cases if case.score is not None])
    chosen = metrics.threshold_for_sensitivity(scores, truth, wanted=wanted) if threshold is None else threshold
    low, high = moved_band(pattern, chosen) if pattern else (chosen, chosen)
    hits = metrics.sensitivity(scores, truth, threshold=chosen, patients=patients)
    if not (hits.count and 0 <= chosen <= 1):
        raise UsageProblem(reason("audit_threshold", value=chosen))
    spared = metrics.specificity(scores, truth, threshold=chosen, patients=patients)
    wanted = wanted if threshold is None else hits.value
    near = metrics.specificity_at_sensitivity(scores, truth, wanted=wanted, patients=patients)
    return Proposal(
        label=label,
        wanted=wanted,
        threshold=chosen,
        unsure_low=low,
        unsure_high=high,
        sensitivity=hits,
        specificity=replace(spared, low=min(spared.low, near.low), high=max(spared.high, near.high)),
        images=len(scores),
        patients=len(set(patients)),
    )


def moved_band(pattern: OperatingPoint, threshold: float) -> tuple[float, float]:
    """A point's band around another threshold: as far from it in log-odds; an end at 0 or 1 stays there."""
    here, there = metrics.logit(np.array([pattern.threshold, threshold])).tolist()

    def moved(end: float) -> float:
        return end if end in (0, 1) else calibrate(end, Calibration(intercept=there - here))

    return min(moved(pattern.unsure_low), threshold), max(moved(pattern.unsure_high), threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was audited.

    names        of the pack by language, empty where it is not at hand any more
    meaning      of the label by language, as above
    labels_from  "folders", "verdicts", or the path of the table
    made_s       when, in seconds since 1970 (UTC)
    class_names  see `Manifest`
    """

    pack: str
    names: Mapping[str, str]
    trust: Trust
    fingerprint: str
    model_sha256: str
    label: str
    meaning: Mapping[str, str]
    labels_from: str
    run_id: int
    paths: tuple[str, ...]
    program_version: str
    made_s: float
    lungs_pack: str = ""
    position: int = 0
    class_names: Mapping[str, Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one of two packs said in a run; `point` is None where none was in force."""

    run_id: int
    pack: str
    label: str
    point: OperatingPoint | None
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedFigure:
    """A figure of two packs on the same images.

    of          "auc", "sensitivity" and "specificity" of what both could judge, "found" as `AtPoint.found`
    difference  the second's less the first's, with the ends of its interval, low and high
    only_right  how many images the first, and the second, was right on alone; not of an area
    """

    of: str
    first: Estimate
    second: Estimate
    difference: float
    low: float
    high: float
    only_right: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two packs on the images with a label that are in both runs.

    both, only_first, only_second  images that both could judge, and one of them alone
    elsewhere                      images with a label that are not in the second run
    """

    first: Side
    second: Side
    images: int
    patients: int
    both: int
    only_first: int
    only_second: int
    elsewhere: int
    figures: tuple[PairedFigure, ...]


def pair(cases: Sequence[Case], results: Iterable[StoredAnswer], *, first: Side, second: Side) -> Paired:
    """The answers of two packs compared on the same bytes; `cases` are of the first.

    Raises UsageProblem without both classes.
    """
    judged = {one.identity: said_of(one.outcome, second.label) for one in results}
    before = [case for case in cases if case.identity in judged]
    after = [replace(case, score=score, category=said) for case in before for score, said in [judged[case.identity]]]
    pairs = list(zip(before, after, strict=True))
    both = [(one, other) for one, other in pairs if one.score is not None and other.score is not None]
    (scores, truth, patients), (others, _, _) = (arrays([each[side] for each in both]) for side in (0, 1))
    if not truth.any() or truth.all():
        raise UsageProblem(reason("audit_pairs_one_class", run=second.run_id, images=len(pairs), both=len(both)))
    areas = [metrics.area(own, truth, patients=patients) for own in (scores, others)]
    value, low, high = metrics.area_difference(np.column_stack([scores, others]), truth, patients=patients)
    figures = [PairedFigure(of="auc", first=areas[0], second=areas[1], difference=value, low=low, high=high)]
    if first.point and second.point:
        points = first.point, second.point
        hits = np.column_stack([own >= point.threshold for own, point in zip((scores, others), points, strict=True)])
        found = np.array([[is_found(case, point) for case, point in zip(each, points, strict=True)] for each in pairs])
        sick, people = np.array([case.truth for case in before]), [case.patient for case in before]
        figures += [
            _figure("sensitivity", hits, truth, patients),
            _figure("specificity", ~hits, ~truth, patients),
            _figure("found", found, sick, people),
        ]
    return Paired(
        first=first,
        second=second,
        images=len(pairs),
        patients=len({case.patient for case in before}),
        both=len(both),
        only_first=sum(case.score is not None for case in before) - len(both),
        only_second=sum(case.score is not None for case in after) - len(both),
        elsewhere=len(cases) - len(pairs),
        figures=tuple(figures),
    )


def _figure(of: str, rights: NDArray[np.bool_], chosen: NDArray[np.bool_], patients: Sequence[str]) -> PairedFigure:
    """`rights` (images, 2): whether the first was, and the second; of the images that are chosen (images,)."""
    right, patients = rights[chosen], [one for one, own in zip(patients, chosen, strict=True) if own]
    first, second = (metrics.share(right[:, side], patients=patients).estimate for side in (0, 1))
    value, low, high = metrics.share_difference(right[:, 0], right[:, 1], patients=patients)
    alone = int((right[:, 0] & ~right[:, 1]).sum()), int((right[:, 1] & ~right[:, 0]).sum())
    return PairedFigure(of=of, first=first, second=second, difference=value, low=low, high=high, only_right=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Everything that is written down.

    proposal  a local operating point that could be taken
    plan      None where it takes healthy people and there are none
    paired    this run beside another one, where that was asked for
    """

    subject: Subject
    audit: Audit
    drifts: tuple[Drift, ...]
    proposal: Proposal
    plan: Plan | None = None
    paired: Paired | None = None


PEOPLE: Final = 1000  # screened, of whom a plan speaks
EVERYBODY: Final = ("", "")
_STEPS: Final = 1000  # between the scores 0 and 1
_LADDER: Final = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.5)

Prices = tuple[float, float]  # of screening one person, and of the test of one who is called, in any currency


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a threshold does.

    sensitivity, specificity  shares of the sick and of the healthy people of the audit
    ppv, npv                  predictive values at the plan's prevalence; None where a share is 0/0
    called, found, missed     of 1,000 people screened at that prevalence
    cost, cost_per_found      of these, and for each one who is found; None without prices, or if none is found
    """

    threshold: float
    sensitivity: Share
    specificity: Share
    ppv: Estimate | None
    npv: Estimate | None
    called: float
    found: float
    missed: float
    cost: float | None
    cost_per_found: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every threshold, in thousandths of the score and at the operating points.

    without_score, sick_without  people that are not called at any threshold, and the sick among them
    groups  by what and name, as ("sex", "F"), the step at each threshold from the lowest on; `EVERYBODY` first
    shown   the thresholds for a table: the highest that find so many of the sick, and those at the operating points
    """

    prevalence: float
    prices: Prices | None
    people: int
    without_score: int
    sick_without: int
    groups: Mapping[tuple[str, str], Mapping[float, Step]]
    shown: tuple[float, ...]


def require_prices(prices: Prices | None) -> None:
    """Raise UsageProblem for what is no price."""
    for value in prices or ():
        if not 0 <= value < math.inf:
            raise UsageProblem(reason("audit_price", value=value))


def plan(cases: Sequence[Case], points: Iterable[float], *, prevalence: float, prices: Prices | None) -> Plan | None:
    """The plan; None where everybody is sick, or nobody is. Raises UsageProblem as `require_prices` does.

    points      thresholds that are to be among the steps
    prevalence  of those to be screened, 0..1, exclusive
    """
    require_prices(prices)
    (scores, sick), points = _people(cases), set(points)
    thresholds = sorted(points | {math.floor(_STEPS * score) / _STEPS for score in scores if math.isfinite(score)})
    groups = {}
    for by, name, members in ((*EVERYBODY, cases), *grouped(cases)):
        own, own_sick = _people(members)
        if own_sick.any() and not own_sick.all():
            both = np.sort(own[own_sick]), np.sort(own[~own_sick])
            groups[by, name] = {at: _step(at, both, prevalence=prevalence, prices=prices) for at in thresholds}
    if EVERYBODY not in groups:
        return None
    steps = groups[EVERYBODY].values()
    most = max(step.sensitivity.value for step in steps)
    ladder = {max(step.threshold for step in steps if step.sensitivity.value >= min(each, most)) for each in _LADDER}
    without = np.isneginf(scores)
    return Plan(
        prevalence=prevalence,
        prices=prices,
        people=len(scores),
        without_score=int(without.sum()),
        sick_without=int((without & sick).sum()),
        groups=groups,
        shown=tuple(sorted(ladder | points)),
    )


def _people(cases: Iterable[Case]) -> tuple[Scores, Truth]:
    """Each one's highest score, infinite where an image is read first and where there is none, and who is sick."""
    scores: dict[str, float] = {}
    sick: dict[str, bool] = {}
    for case in cases:
        own = math.inf if case.category in ALWAYS_FOUND else -math.inf if case.score is None else case.score
        scores[case.patient] = max(own, scores.get(case.patient, -math.inf))
        sick[case.patient] = case.truth or sick.get(case.patient, False)
    return np.array([*scores.values()], np.float64), np.array([*sick.values()], np.bool_)


def _step(threshold: float, both: tuple[Scores, Scores], *, prevalence: float, prices: Prices | None) -> Step:
    """`both` are the scores of the sick and of the healthy, each sorted."""
    below = [int(np.searchsorted(own, threshold)) for own in both]
    sick, healthy = map(len, both)
    hits = share_of(sick - below[0], sick, number=sick)
    spared = share_of(below[1], healthy, number=healthy)
    ppv, npv = predictive_values(hits, spared, prevalence=prevalence)
    found = PEOPLE * prevalence * hits.value
    called = found + PEOPLE * (1 - prevalence) * (1 - spared.value)
    cost = PEOPLE * prices[0] + called * prices[1] if prices else None
    return Step(
        threshold=threshold,
        sensitivity=hits,
        specificity=spared,
        ppv=ppv,
        npv=npv,
        called=called,
        found=found,
        missed=PEOPLE * prevalence - found,
        cost=cost,
        cost_per_found=None if cost is None or not found else cost / found,
    )
