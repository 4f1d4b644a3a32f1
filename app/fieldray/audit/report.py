"""An audit with all that a reader of its report must know: of what, on what, by whose labels, since when.

It may propose an operating point that would suit the site's own images; a point is taken only by a person's yes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldray.audit.cases import Case
from fieldray.audit.drift import Drift
from fieldray.audit.figures import Audit, arrays
from fieldray.domain import metrics
from fieldray.domain.metrics import Share
from fieldray.domain.model import OperatingPoint, Trust
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_SMALLEST: float = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A threshold with what was measured at it, on the same images that it was chosen on.

    wanted       the sensitivity that was asked for, 0..1
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


def propose(cases: Sequence[Case], *, label: str, pattern: OperatingPoint | None, wanted: float) -> Proposal:
    """The highest threshold that catches a share of the positives.

    Parameters
    ----------
    cases
        With scores of both classes among them.
    label
        The label that the scores are of.
    pattern
        The point whose band of "not sure" is moved along; without one there is no band.
    wanted
        The sensitivity, between 0 and 1.

    Raises
    ------
    UsageProblem
        For a sensitivity outside (0, 1].
    """
    require_sensitivity(wanted)
    scores, truth, patients = arrays([case for case in cases if case.score is not None])
    threshold = metrics.threshold_for_sensitivity(scores, truth, wanted=wanted)
    low, high = moved_band(pattern, threshold) if pattern else (threshold, threshold)
    return Proposal(
        label=label,
        wanted=wanted,
        threshold=threshold,
        unsure_low=low,
        unsure_high=high,
        sensitivity=metrics.sensitivity(scores, truth, threshold=threshold, patients=patients),
        specificity=metrics.specificity_at_sensitivity(scores, truth, wanted=wanted, patients=patients),
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
class AuditReport:
    """Everything that is written down. `proposal`: a local operating point that could be taken."""

    subject: Subject
    audit: Audit
    drifts: tuple[Drift, ...]
    proposal: Proposal
