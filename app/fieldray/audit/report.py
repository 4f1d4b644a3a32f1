"""An audit with all that a reader of its report must know: of what, on what, by whose labels, since when.

It may propose an operating point that would suit the site's own images; a point is taken only by a person's yes. It may
set the pack beside another one on the same images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fieldray.audit.cases import Case, label_score
from fieldray.audit.drift import Drift
from fieldray.audit.figures import Audit, arrays, is_found
from fieldray.audit.planning import Plan
from fieldray.domain import metrics
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate, OperatingPoint, Trust
from fieldray.domain.run import StoredResult
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_SMALLEST: float = 1e-7


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

    def moved(end: float) -> float:
        if end in (0, 1):
            return end
        odds = _logit(end) - _logit(pattern.threshold) + _logit(threshold)
        return 1 / (1 + math.exp(-odds))

    return min(moved(pattern.unsure_low), threshold), max(moved(pattern.unsure_high), threshold)


def _logit(share: float) -> float:
    inside = min(max(share, _SMALLEST), 1 - _SMALLEST)
    return math.log(inside / (1 - inside))


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
    class_names: Mapping[str, Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two runs, and what was judged of it; `point` is None where none was in force."""

    run_id: int
    pack: str
    label: str
    point: OperatingPoint | None


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


def pair(cases: Sequence[Case], results: Iterable[StoredResult], *, first: Side, second: Side) -> Paired:
    """Two runs compared on the same bytes; `cases` are of the first. Raises UsageProblem without both classes."""
    judged = {one.identity: (label_score(one, second.label), one.outcome.category) for one in results}
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
