"""The contents of an audit report.

subject          pack, images, reference labels and dates of the audit
proposal         an operating point that suits the site's own images; adopted only with a person's consent
threshold_plan   how many units each threshold would refer, detect and miss, and at what cost
pack_comparison  the comparison with a second pack on the same images

The threshold plan follows the protocol of WHO and TDR (Determining the local calibration of computer-assisted detection
(CAD) thresholds and other parameters, 2021).

All figures count units: images, examinations or patients, as the `CountingRule` says. Units that were not assessed
count as not referred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.audit.drift import Drift
from fieldray.audit.figures import (
    Audit,
    arrays_of_scored_cases,
    complement_share,
    predictive_values,
    split_into_subgroups,
)
from fieldray.audit.units import (
    Case,
    CountingRule,
    is_assessed,
    is_referred,
    score_and_category,
    scores_and_truths,
    shifted_uncertain_zone,
)
from fieldray.domain import metrics
from fieldray.domain.metrics import Scores, Share, wilson_share
from fieldray.domain.model import Estimate, OperatingPoint, Trust
from fieldray.domain.run import StoredResult
from fieldray.errors import UsageProblem
from fieldray.reasons import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalGoal:
    """The goal of a proposed operating point. Sensitivity and specificity are shares of all units, assessed or not.

    threshold    the threshold, 0..1; None lets the program choose a threshold
    specificity  the specificity to reach, 0..1; only used without a threshold
    sensitivity  the sensitivity to reach, 0..1; only used without a threshold and a specificity

    Raises UsageProblem for a sensitivity or specificity outside (0, 1].
    """

    sensitivity: float = 0.9
    specificity: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for code, value in (("audit_sensitivity", self.sensitivity), ("audit_specificity", self.specificity)):
            if value is not None and not 0 < value <= 1:
                raise UsageProblem(reason(code, value=value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdProposal:
    """A proposed threshold, with the performance on the images for which the threshold was chosen.

    goal                        the goal of the choice
    unsure_low, unsure_high     the ends of the uncertain zone
    sensitivity                 share of all units with the condition that were referred
    specificity                 share of all units without the condition that were not referred
    image_count, patient_count  numbers of images and patients of the audit

    If the goal is a sensitivity, the interval of the specificity is wider than usual, because the threshold was chosen
    on these images. If the goal is a specificity, the interval of the sensitivity is wider.
    """

    label: str
    rule: CountingRule
    goal: ProposalGoal
    threshold: float
    unsure_low: float
    unsure_high: float
    sensitivity: Share
    specificity: Share
    image_count: int
    patient_count: int

    @property
    def reaches_goal(self) -> bool:
        """Whether the proposed threshold reaches the sensitivity or specificity that was wanted.

        The goal may be out of reach if many units were not assessed or are to be read first.
        """
        if self.goal.threshold is not None:
            return True
        if self.goal.specificity is not None:
            return self.specificity.value >= self.goal.specificity - _ROUNDING
        return self.sensitivity.value >= self.goal.sensitivity - _ROUNDING


def propose_operating_point(
    cases: Sequence[Case], *, label: str, base_point: OperatingPoint | None, rule: CountingRule, wanted: ProposalGoal
) -> ThresholdProposal:
    """Propose the threshold that suits the goal `wanted`.

    goal in `wanted`  proposed threshold
    a sensitivity     the highest threshold that reaches the sensitivity
    a specificity     the lowest threshold that reaches the specificity
    a threshold       the threshold of the goal, unchanged

    cases       images of the label; some scored units must have the condition, and some must not
    base_point  the operating point whose uncertain zone is moved to the threshold; None for no zone

    Raises UsageProblem for a given threshold outside [0, 1], or for a threshold that no unit with the condition
    reaches.
    """
    scores, truth, patients = scores_and_truths(rule.group_into_units(cases))
    chosen = wanted.threshold
    if chosen is None:
        if wanted.specificity is not None:
            edge = metrics.threshold_for_specificity(scores, truth, wanted=wanted.specificity)
        else:
            edge = metrics.threshold_for_sensitivity(scores, truth, wanted=wanted.sensitivity)
        chosen = rule.threshold_for_referral_score(edge, base_point)
    edge, (low, high) = rule.referral_score_at(chosen, base_point), shifted_uncertain_zone(base_point, chosen)
    hits = metrics.sensitivity(scores, truth, threshold=edge, patients=patients)
    if wanted.threshold is not None and not (hits.count and 0 <= chosen <= 1):
        raise UsageProblem(reason("audit_threshold", value=chosen))
    spared = metrics.specificity(scores, truth, threshold=edge, patients=patients)
    if wanted.specificity is not None and wanted.threshold is None:
        near = metrics.sensitivity_at_specificity(scores, truth, wanted=wanted.specificity, patients=patients)
        hits = replace(hits, low=min(hits.low, near.low), high=max(hits.high, near.high))
    else:
        caught = wanted.sensitivity if wanted.threshold is None else hits.value
        near = metrics.specificity_at_sensitivity(scores, truth, wanted=caught, patients=patients)
        spared = replace(spared, low=min(spared.low, near.low), high=max(spared.high, near.high))
    return ThresholdProposal(
        label=label,
        rule=rule,
        goal=wanted,
        threshold=chosen,
        unsure_low=low,
        unsure_high=high,
        sensitivity=hits,
        specificity=spared,
        image_count=len(cases),
        patient_count=len(set(patients)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The subject of an audit: pack, label, images and dates.

    pack_names     the pack's name by language; empty if the pack is no longer installed
    meaning        the label's meaning by language; empty if the pack is no longer installed
    label_source   source of the reference labels: "folders", "verdicts", or the path of the label table
    paths          the folders and files of the audited run
    audited_s      time of the audit, seconds since 1970 (UTC)
    pack_position  position of the pack in the run, 0 for the first pack
    class_names    the pack's own names of the classes; see `Manifest`
    """

    pack: str
    pack_names: Mapping[str, str]
    trust: Trust
    fingerprint: str
    model_sha256: str
    label: str
    meaning: Mapping[str, str]
    label_source: str
    run_id: int
    paths: tuple[str, ...]
    program_version: str
    audited_s: float
    lungs_pack: str = ""
    pack_position: int = 0
    class_names: Mapping[str, Mapping[str, str]] | None = None

    @property
    def label_codes(self) -> tuple[str, ...]:
        """The code of the audited label, as a tuple with one item."""
        return (self.label,)

    @property
    def is_bare(self) -> bool:
        """Whether the pack is a legacy model: unsigned model files of the dissertation, without operating point."""
        return self.trust == "legacy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPack:
    """One of the two packs of a comparison, with the run that contains the pack's results.

    point          the operating point with which the run decided; None if there was none
    pack_position  position of the pack in the run, 0 for the first pack
    """

    run_id: int
    pack: str
    label: str
    point: OperatingPoint | None
    pack_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedFigure:
    """One figure of two packs, measured on the same units (images, examinations or patients).

    name                   "auc": area under the ROC curve. "detected" and "falsely_referred": shares of all units, as
                           in `PointPerformance`. "sensitivity" and "specificity": shares of the units that both packs
                           assessed
    difference, low, high  the second pack's figure minus the first pack's figure, and the ends of the difference's 95 %
                           interval
    only_right_counts      number of units that only the first pack judged correctly, and number that only the second
                           pack judged correctly; None for "auc"
    """

    name: str
    first: Estimate
    second: Estimate
    difference: float
    low: float
    high: float
    only_right_counts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackComparison:
    """The comparison of two packs on the labelled images that are in both runs.

    image_count, patient_count  numbers of images in both runs, and of their patients
    unit_count                  number of units (images, examinations or patients, as the audit's rule says)
    both_assessed_count         number of units that both packs assessed
    only_first_assessed_count, only_second_assessed_count
                                number of units that only the first pack assessed, and that only the second pack
                                assessed
    missing_image_count         number of labelled images that are not in the second run
    kappa                       (kappa, low, high): Cohen's kappa between the packs, on whether a unit is referred, and
                                the ends of the 95 % interval. None unless both packs have an operating point
    """

    first: ComparedPack
    second: ComparedPack
    image_count: int
    unit_count: int
    patient_count: int
    both_assessed_count: int
    only_first_assessed_count: int
    only_second_assessed_count: int
    missing_image_count: int
    figures: tuple[PairedFigure, ...]
    kappa: tuple[float, float, float] | None = None


def compare_packs(
    cases: Sequence[Case],
    results: Iterable[StoredResult],
    *,
    first: ComparedPack,
    second: ComparedPack,
    rule: CountingRule,
) -> PackComparison:
    """Compare two packs on the images whose bytes are in both runs.

    cases    the labelled images with the results of the first pack
    results  the results of the second pack

    Raises UsageProblem unless the units that both packs scored include some with and some without the condition.
    """
    judged = {one.image_identity: score_and_category(one.outcome, second.label) for one in results}
    images = [case for case in cases if case.image_identity in judged]
    others = [
        replace(case, score=score, category=said) for case in images for score, said in [judged[case.image_identity]]
    ]
    # Each pack may take another image as the most urgent of a unit. Only truth and patient are common to both.
    pairs = list(zip(rule.group_into_units(images), rule.group_into_units(others), strict=True))
    both = [each for each in pairs if all(map(is_assessed, each))]
    scored = [each for each in pairs if each[0].score is not None and each[1].score is not None]
    (scores, truth, patients), (of_second, _, _) = (
        arrays_of_scored_cases([each[side] for each in scored]) for side in (0, 1)
    )
    if not truth.any() or truth.all():
        raise UsageProblem(reason("audit_pairs_one_class", run=second.run_id, images=len(images), both=len(scored)))
    areas = [metrics.auc_estimate(own, truth, patients=patients) for own in (scores, of_second)]
    value, low, high = metrics.auc_difference(np.column_stack([scores, of_second]), truth, patients=patients)
    figures = [PairedFigure(name="auc", first=areas[0], second=areas[1], difference=value, low=low, high=high)]
    kappa = None
    if first.point and second.point:
        edges = rule.referral_score(first.point), rule.referral_score(second.point)
        figures += _shares(pairs, both, edges)
        referred = _referred(pairs, edges)
        kappa = metrics.kappa(referred[:, 0], referred[:, 1], patients=[one.patient_key for one, _ in pairs])
    return PackComparison(
        first=first,
        second=second,
        image_count=len(images),
        unit_count=len(pairs),
        patient_count=len({case.patient_key for case in images}),
        both_assessed_count=len(both),
        only_first_assessed_count=sum(is_assessed(one) for one, _ in pairs) - len(both),
        only_second_assessed_count=sum(is_assessed(other) for _, other in pairs) - len(both),
        missing_image_count=len(cases) - len(images),
        figures=tuple(figures),
        kappa=kappa,
    )


_Pairs = Sequence[tuple[Case, Case]]


def _referred(pairs: _Pairs, edges: tuple[float, float]) -> NDArray[np.bool_]:
    """Return a bool array (units, 2). A row says whether the first and whether the second pack refers the unit."""
    rows = [[is_referred(case, edge) for case, edge in zip(each, edges, strict=True)] for each in pairs]
    return np.array(rows, np.bool_).reshape(-1, 2)


def _shares(pairs: _Pairs, both: _Pairs, edges: tuple[float, float]) -> Iterator[PairedFigure]:
    for of, members, has_condition, right in (
        ("detected", pairs, True, True),
        ("falsely_referred", pairs, False, True),
        ("sensitivity", both, True, True),
        ("specificity", both, False, False),
    ):
        own = [each for each in members if each[0].truth == has_condition]
        if own:
            yield _figure(
                of, _referred(own, edges) == right, [one.patient_key for one, _ in own], is_wrong=of[0] == "f"
            )


def _figure(of: str, hits: NDArray[np.bool_], patients: Sequence[str], *, is_wrong: bool) -> PairedFigure:
    """Compare a share of two packs.

    hits      (units, 2): whether a unit counts in the share of the first pack, and in the share of the second pack
    is_wrong  whether the share counts mistakes, as "falsely_referred" does
    """
    first, second = (metrics.share_of_hits(hits[:, side], patients=patients).estimate for side in (0, 1))
    value, low, high = metrics.share_difference(hits[:, 0], hits[:, 1], patients=patients)
    alone = int((hits[:, 0] & ~hits[:, 1]).sum()), int((hits[:, 1] & ~hits[:, 0]).sum())
    only_right = (alone[1], alone[0]) if is_wrong else alone
    return PairedFigure(
        name=of, first=first, second=second, difference=value, low=low, high=high, only_right_counts=only_right
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The contents of an audit report.

    rows_without_image_by_truth  number of table rows whose image is not in the run: key True counts rows with the
                                 condition, key False rows without
    drifts                       the drift of the run's images against the references
    proposal                     a local operating point that a person may adopt
    threshold_plan               the threshold plan; None if every unit has the condition, or if no unit has the
                                 condition
    pack_comparison              the comparison with a second pack, or None
    """

    subject: AuditSubject
    audit: Audit
    rows_without_image_by_truth: Mapping[bool, int]
    drifts: tuple[Drift, ...]
    proposal: ThresholdProposal
    threshold_plan: ThresholdPlan | None = None
    pack_comparison: PackComparison | None = None


THRESHOLD_PLAN_UNIT_COUNT: Final = 1000  # number of units to which the numbers of a plan refer
ALL_UNITS_SUBGROUP: Final = ("", "")
_STEPS: Final = 1000  # steps between the scores 0 and 1
_LADDER: Final = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.5)
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreeningPrices:
    """Prices of screening per unit (image, examination or patient), 0 or more, all in one currency.

    screening_price       price of screening one unit
    test_price            price of testing one referred unit
    second_reading_price  price of a second reading of one unit in the uncertain zone, referred or not
    """

    screening_price: float = 0.0
    test_price: float = 0.0
    second_reading_price: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRow:
    """One row of the threshold plan, computed for 1,000 units screened at the plan's prevalence.

    Units are images, examinations or patients, as the audit's rule says.

    sensitivity                 share of all units with the condition that were referred
    specificity                 share of all units without the condition that were not referred
    ppv, npv                    positive and negative predictive value at the plan's prevalence. `ppv` is None if no
                                unit is referred, `npv` is None if every unit is referred
    referred, detected, missed  numbers of units
    unsure                      number of units in the uncertain zone; the audit's rule decides whether these units are
                                referred
    cost                        cost of screening, tests and second readings; None without prices
    cost_per_detected           cost divided by the number detected; None without prices, or if no unit is detected
    """

    threshold: float
    sensitivity: Share
    specificity: Share
    ppv: Estimate | None
    npv: Estimate | None
    referred: float
    detected: float
    missed: float
    unsure: float
    cost: float | None
    cost_per_detected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPlan:
    """A threshold plan: how many units each possible threshold would refer, detect and miss, and at what cost.

    The possible thresholds are the scores of all units, rounded down to a thousandth, and the given `points`.

    prevalence              share with the condition among the patients to be screened, 0..1
    prices                  prices for the costs; None for a plan without costs
    units                   number of units of the audit
    units_not_assessed      number of units that were not assessed. These units are not referred at any threshold
    positives_not_assessed  number of units with the condition that were not assessed
    rows_by_subgroup        for each subgroup, a row of the plan for each threshold, the lowest threshold first. A
                            subgroup is (attribute, value), as ("sex", "F"); `ALL_UNITS_SUBGROUP` comes first
    shown_thresholds        the thresholds to print in a table: the `points` given to `threshold_plan`, and for nine
                            sensitivities from 50 to 100 % the highest threshold that reaches each sensitivity
    """

    prevalence: float
    prices: ScreeningPrices | None
    units: int
    units_not_assessed: int
    positives_not_assessed: int
    rows_by_subgroup: Mapping[tuple[str, str], Mapping[float, ThresholdRow]]
    shown_thresholds: tuple[float, ...]


def require_valid_prices(prices: ScreeningPrices | None) -> None:
    """Raise UsageProblem if a price is negative, infinite or not a number."""
    for value in (prices.screening_price, prices.test_price, prices.second_reading_price) if prices else ():
        if not 0 <= value < math.inf:
            raise UsageProblem(reason("audit_price", value=value))


def threshold_plan(
    cases: Sequence[Case],
    points: Iterable[float],
    *,
    rule: CountingRule,
    base_point: OperatingPoint | None,
    prevalence: float,
    prices: ScreeningPrices | None,
) -> ThresholdPlan | None:
    """Compute the threshold plan of an audit; None if every unit has the condition, or if no unit has the condition.

    points      thresholds to include besides the scores of the units
    base_point  the operating point whose uncertain zone is moved to each threshold; None for no zone
    prevalence  share with the condition among the patients to be screened, 0..1, exclusive

    Raises UsageProblem for prices that `require_valid_prices` rejects.
    """
    require_valid_prices(prices)
    units, points = rule.group_into_units(cases), set(points)
    (scores, truth, _), groups = scores_and_truths(units), {}
    thresholds = sorted(points | {math.floor(_STEPS * score) / _STEPS for score in scores if math.isfinite(score)})
    zones = {at: (rule.referral_score_at(at, base_point), *shifted_uncertain_zone(base_point, at)) for at in thresholds}
    for by, name, members in ((*ALL_UNITS_SUBGROUP, units), *split_into_subgroups(cases, rule)):
        if both := _by_truth(members):
            groups[by, name] = {
                at: _step(at, zone, both, prevalence=prevalence, prices=prices) for at, zone in zones.items()
            }
    if ALL_UNITS_SUBGROUP not in groups:
        return None
    steps = groups[ALL_UNITS_SUBGROUP].values()
    most = max(step.sensitivity.value for step in steps)
    ladder = {max(step.threshold for step in steps if step.sensitivity.value >= min(each, most)) for each in _LADDER}
    without = np.isneginf(scores)
    return ThresholdPlan(
        prevalence=prevalence,
        prices=prices,
        units=len(units),
        units_not_assessed=int(without.sum()),
        positives_not_assessed=int((without & truth).sum()),
        rows_by_subgroup=groups,
        shown_thresholds=tuple(sorted(ladder | points)),
    )


_Ranked = tuple[Scores, float]  # sorted ranks, and the effective number of units (`metrics.effective_image_count`)


def _by_truth(units: Sequence[Case]) -> tuple[_Ranked, _Ranked] | None:
    """Divide units into those with the condition and those without; None if one of the two parts would be empty.

    Each of the two parts is returned as (sorted ranking scores, effective number of units for the intervals).
    """
    sides = [[unit for unit in units if unit.truth == side] for side in (True, False)]
    if not all(sides):
        return None
    with_it, without = (
        (np.sort(scores_and_truths(side)[0]), metrics.effective_image_count([unit.patient_key for unit in side]))
        for side in sides
    )
    return with_it, without


def _step(
    threshold: float,
    zone: tuple[float, float, float],
    both: tuple[_Ranked, _Ranked],
    *,
    prevalence: float,
    prices: ScreeningPrices | None,
) -> ThresholdRow:
    """Return the row of the threshold plan at one threshold.

    zone  the lowest score with which a unit is referred, then the two ends of the uncertain zone
    both  the units with the condition and those without, as `_by_truth` returns them
    """
    (edge, low, high), ((positives, many), (negatives, others)) = zone, both
    hits = wilson_share(len(positives) - int(np.searchsorted(positives, edge)), len(positives), effective_count=many)
    spared = wilson_share(int(np.searchsorted(negatives, edge)), len(negatives), effective_count=others)
    ppv, npv = predictive_values(hits, spared, prevalence=prevalence)
    detected = THRESHOLD_PLAN_UNIT_COUNT * prevalence * hits.value
    referred = detected + THRESHOLD_PLAN_UNIT_COUNT * (1 - prevalence) * complement_share(spared).value
    in_zone = [int(np.searchsorted(own, high) - np.searchsorted(own, low)) / len(own) for own in (positives, negatives)]
    unsure = THRESHOLD_PLAN_UNIT_COUNT * (prevalence * in_zone[0] + (1 - prevalence) * in_zone[1])
    cost = (
        THRESHOLD_PLAN_UNIT_COUNT * prices.screening_price
        + referred * prices.test_price
        + unsure * prices.second_reading_price
        if prices
        else None
    )
    return ThresholdRow(
        threshold=threshold,
        sensitivity=hits,
        specificity=spared,
        ppv=ppv,
        npv=npv,
        referred=referred,
        detected=detected,
        missed=THRESHOLD_PLAN_UNIT_COUNT * prevalence - detected,
        unsure=unsure,
        cost=cost,
        cost_per_detected=None if cost is None or not detected else cost / detected,
    )
