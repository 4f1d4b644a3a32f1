"""A threshold planned for a programme: at every score who is called, who is found, who is missed, and at what cost.

As the protocol of WHO and TDR asks (Determining the local calibration of computer-assisted detection (CAD) thresholds
and other parameters, 2021). What is counted is people: one is called if any of their images is at or above the
threshold or read first, and is sick if the finding is in any of them. Who has no image with a score is not called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fieldray.audit.cases import Case
from fieldray.audit.figures import ALWAYS_FOUND, grouped, predictive_values
from fieldray.domain.metrics import Scores, Share, Truth, share_of
from fieldray.domain.model import Estimate
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

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
