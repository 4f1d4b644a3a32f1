"""Findings and outcomes: from a score to a decision at an operating point, and the category of every image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import ImageRef, PixelMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import Calibration, OodGate, OperatingPoint
from fieldray.reasons import Reason

Decision = Literal["above", "below", "unsure", "not_assessed"]
Status = Literal["screened", "refused", "failed"]
Stage = Literal["discover", "decode", "quality", "inference", "store"]
Category = Literal["read_first", "abnormal", "unsure", "normal", "not_assessed", "refused", "failed", "not_an_image"]

# Of 300 images as JPEG and as JPEG 2000, read both ways, half of the scores between 0.2 and 0.95 moved by less than
# 0.025 and nine in ten by less than 0.055; half of the distances near the limit by less than 1.5 %, so that this
# margin misses half of what the gate changes. Wider ones read many images twice to save few decisions.
BORDERLINE_SCORE: Final = 0.05
# Near 0 and 1 scores move by less than that: it is the log-odds of the raw score that a lower resolution moves,
# wherever they lie. Of 239 images of adults, read both ways, none moved by more than 0.77. This margin changed no
# decision of 399; one of 0.55 changed one, and one of 0.3 more.
BORDERLINE_LOG_ODDS: Final = 0.8
# That was near the resolution the network needs. What is averaged over more pixels that were read moves less. With the
# packs of 256 pixels 99 of 100 images of children do by less than 0.2 from 1.5 on. Those that are cropped to the lungs
# move more, by 0.3 to 0.5, but by where the lungs are found: a wider margin changed the decision of none of 397.
FINELY_READ: Final = 1.5
BORDERLINE_LOG_ODDS_FINELY_READ: Final = 0.2
_INT8_STEP: Final = 1 / 256  # of a raw score; close to 0 and 1 it is the wider margin
BORDERLINE_DISTANCE: Final = 0.015  # as a share of the gate's limit
THUMBNAIL_SIDE: Final = 64
PREVIEW_SIDE: Final = 256
_EPSILON = 1e-7
# Which finding decides an image with several labels: the first of these decisions, then the highest score.
_MOST_URGENT_FIRST: Final[tuple[Decision, ...]] = ("above", "unsure", "not_assessed", "below")
# The order of a work list: what needs eyes first comes first. Normal images are last of those read, never hidden. Files
# beside the images are of no patient: nobody's refusal.
WORK_LIST_ORDER: Final[tuple[Category, ...]] = (
    *("read_first", "abnormal", "unsure", "not_assessed"),
    *("normal", "refused", "failed", "not_an_image"),
)
# What a person who looks at the image can see to be wrong: it is screened all the same if they say so. Nobody sees an
# age, and a file without a usable image stays one.
_OVERRULABLE: Final = frozenset(
    {"view", "body_part", "for_processing", "image_type"}
    | {"not_frontal_chest", "rotated", "upside_down", "inverted", "unlike_training"}
)
# Codes of notes on an image of which a part, or the detail, may be missing.
NEVER_NORMAL: Final = frozenset({"lower_part_dark", "little_detail"})
_TURNABLE: Final = frozenset({"rotated", "upside_down", "inverted"})
# Codes of notes on a result that is there because a person asked for it.
ASKED_FOR: Final = frozenset(
    {"screened_anyway", "turned_back", "turned_clockwise", "turned_round", "grey_swapped_back"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The calibrated score of a label, and the decision at its operating point."""

    label: str
    score: float
    point: OperatingPoint | None
    decision: Decision

    @property
    def is_by_larger(self) -> bool:
        """Return whether the larger output alone decided, because no operating point is known."""
        return self.point is None and self.decision != "not_assessed"


def calibrate(score: float, calibration: Calibration | None) -> float:
    """Calibrated score in [0, 1] of a raw score in [0, 1] (Platt 1999, on the logit)."""
    if calibration is None:
        return score
    clipped = min(max(score, _EPSILON), 1 - _EPSILON)
    logit = math.log(clipped / (1 - clipped))
    return float(sigmoid(calibration.slope * logit + calibration.intercept))


def decide(score: float, point: OperatingPoint | None) -> Decision:
    """Return the decision at an operating point. Without a point: "not_assessed", never a threshold of 0.5."""
    if point is None:
        return "not_assessed"
    if score >= point.unsure_high:
        return "above"
    return "below" if score < point.unsure_low else "unsure"


def decide_by_larger(scores: Mapping[str, float]) -> tuple[Finding, ...]:
    """Return the findings of a model without an operating point: the label with the larger score decides.

    The first label is the abnormal one. Of equal scores the first decides. The decision of other labels is never
    "above".
    """
    abnormal, *others = scores
    is_abnormal = scores[abnormal] >= max(scores[label] for label in others)
    decisions: dict[str, Decision] = {abnormal: "above" if is_abnormal else "below"}
    return tuple(
        Finding(label=label, score=score, point=None, decision=decisions.get(label, "below"))
        for label, score in scores.items()
    )


def without_normal(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Replace "below" by "unsure" in findings, for an image of which a part may be missing."""
    return tuple(replace(found, decision="unsure") if found.decision == "below" else found for found in findings)


def position_on_scale(score: float, threshold: float) -> float:
    """Map a score in [0, 1] to a display scale 0..1 with the threshold at 0.5 and both sides linear."""
    if score < threshold:
        return 0.5 * score / threshold
    return 1.0 if threshold >= 1 else 0.5 + 0.5 * (score - threshold) / (1 - threshold)


def borderline_scores(
    scores: Mapping[str, float], *, oversampling: float = 1.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Move raw scores in [0, 1] down and up by the borderline margin in log-odds. Returns lowest, highest by label.

    oversampling  pixels read per pixel of the network's input, along the axis with fewer
    """
    margin = BORDERLINE_LOG_ODDS_FINELY_READ if oversampling >= FINELY_READ else BORDERLINE_LOG_ODDS

    def moved(score: float, way: int) -> float:
        by_odds = calibrate(score, Calibration(slope=1.0, intercept=way * margin))
        by_step = score + way * _INT8_STEP
        return min(max(min(by_odds, by_step) if way < 0 else max(by_odds, by_step), 0.0), 1.0)

    lowest, highest = ({label: moved(score, way) for label, score in scores.items()} for way in (-1, 1))
    return lowest, highest


def is_borderline(
    findings: Iterable[Finding],
    lowest: Iterable[Finding],
    highest: Iterable[Finding],
    *,
    gate: OodGate | None,
    distance: float | None,
) -> bool:
    """Return whether the small error of a codec's reduced resolution could change the outcome of an image.

    A score is borderline only within both margins of a limit: the margin of the score, and the margin of its log-odds.

    findings         findings of the image as read
    lowest, highest  findings of the `borderline_scores`
    distance         distance measured by the out-of-distribution check, or None
    """
    if gate is not None and distance is not None:
        if abs(distance - gate.limit) <= BORDERLINE_DISTANCE * gate.limit:
            return True
        if not distance <= gate.limit:
            return False
    return any(
        _decided_like(found, max(low.score, found.score - BORDERLINE_SCORE))
        != _decided_like(found, min(high.score, found.score + BORDERLINE_SCORE))
        for found, low, high in zip(findings, lowest, highest, strict=True)
    )


def _decided_like(found: Finding, score: float) -> Decision:
    """Return the decision of a finding for another score.

    Where the larger of two shares decides, 0.5 and more is above.
    """
    if found.is_by_larger:
        return "above" if score >= 0.5 else "below"
    return decide(score, found.point)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReadFacts:
    """Facts from reading an image, small enough to keep for every row.

    thumbnail   (h, w) uint8, longer side `THUMBNAIL_SIDE` or less, as displayed; None if the image was not read
    preview     JPEG of the image, longer side `PREVIEW_SIDE` or less, in the orientation of the file; only set on the
                way
                to the store, else empty
    stamp       identifies the state of the file (see `imaging.source`); only set on the way to the store, else empty;
                also
                empty if no stamp can identify the state
    """

    content_sha256: str = ""
    rows: int = 0
    columns: int = 0
    thumbnail: NDArray[np.uint8] | None = None
    preview: bytes = b""
    pixel_map: PixelMap | None = None
    decode_ms: float = 0.0
    notes: tuple[str, ...] = ()
    stamp: bytes = b""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Screened:
    """The outcome of an image that was read, run and assessed.

    lungs  the lung fields, None where no lung-field pack ran
    notes  notes for a person about this result
    """

    status: ClassVar[Status] = "screened"

    ref: ImageRef
    facts: ReadFacts
    findings: tuple[Finding, ...]
    class_maps: NDArray[np.float32] | None
    pack_name: str
    model_sha256: str
    backend: str
    inference_ms: float
    extra: Mapping[str, float] = field(default_factory=dict)
    lungs: LungFields | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def category(self) -> Category:
        """Return the category of the image.

        Read first if a lung was not seen, whatever the findings are. Else abnormal if any finding is above, else unsure
        if any is unsure, else normal if all are below.
        """
        if why_of(self):
            return "read_first"
        decisions = {finding.decision for finding in self.findings}
        if "above" in decisions:
            return "abnormal"
        if "unsure" in decisions:
            return "unsure"
        return "normal" if decisions == {"below"} else "not_assessed"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Refused:
    """The outcome of an image that is no usable frontal chest X-ray, or of a file that is no image.

    `lungs` as in `Screened`; they may be the reason.
    """

    status: ClassVar[Status] = "refused"

    ref: ImageRef
    reason: Reason
    facts: ReadFacts = field(default_factory=ReadFacts)
    lungs: LungFields | None = None

    @property
    def category(self) -> Category:
        return "not_an_image" if self.reason.code == "not_an_image" else "refused"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Failed:
    """The outcome of an image that could not be read or run; `stage` names the failed step."""

    status: ClassVar[Status] = "failed"
    category: ClassVar[Category] = "failed"

    ref: ImageRef
    stage: Stage
    reason: Reason
    facts: ReadFacts = field(default_factory=ReadFacts)


Outcome = Screened | Refused | Failed


def image_count(counts: Mapping[Category, int]) -> int:
    """Return the number of images counted; files that are no image are left out."""
    return sum(counts.values()) - counts.get("not_an_image", 0)


def can_be_overruled(why: Reason) -> bool:
    """Return whether a person may overrule a refusal for this reason."""
    return why.code in _OVERRULABLE


def can_be_turned(why: Reason) -> bool:
    """Return whether an image refused for this reason can be turned: it lies on its side, upside down or is
    inverted.
    """
    return why.code in _TURNABLE


def without_preview(outcome: Outcome) -> Outcome:
    """Return the outcome without the data for the store (preview, stamp), to keep thousands of outcomes in memory."""
    facts = outcome.facts
    return replace(outcome, facts=replace(facts, preview=b"", stamp=b"")) if facts.preview or facts.stamp else outcome


def lungs_of(outcome: Outcome) -> LungFields | None:
    """Return the lung fields of an image, None if they are not known."""
    return None if isinstance(outcome, Failed) else outcome.lungs


def why_of(outcome: Outcome) -> Reason | None:
    """Return the reason why an image was refused, failed, or must be read first; None for any other image."""
    if isinstance(outcome, Screened):
        return outcome.lungs.read_first if outcome.lungs else None
    return outcome.reason


def notes_of(outcome: Outcome) -> tuple[Reason, ...]:
    """Return the notes on a screened image; empty for other outcomes."""
    return outcome.notes if isinstance(outcome, Screened) else ()


def asked_for(outcome: Outcome) -> tuple[Reason, ...]:
    """Return the notes that a person overruled a refusal or had the image turned; empty if nobody did."""
    return tuple(note for note in notes_of(outcome) if note.code in ASKED_FOR)


def leading_finding(outcome: Outcome) -> Finding | None:
    """Return the finding that decides an image's category; None for an image that was not screened."""
    return leading_of(outcome.findings) if isinstance(outcome, Screened) else None


def leading_of(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that decides an image's category, out of all its findings; None without any."""
    order = _MOST_URGENT_FIRST.index
    return min(findings, key=lambda found: (order(found.decision), -found.score), default=None)


def listed_score(findings: Iterable[Finding]) -> float | None:
    """Return the score that orders an image within its category, the highest first; None without findings.

    Without an operating point the larger of two scores decides. A normal image is then ordered by its smaller score, so
    that the least certain image comes first.
    """
    found = tuple(findings)
    leading = leading_of(found)
    if leading is not None and leading.is_by_larger and leading.decision == "below":
        return min(finding.score for finding in found)
    return leading.score if leading else None


def leading_position(outcomes: Sequence[Outcome]) -> int:
    """Return the position of the most urgent of several packs' outcomes for an image; of equals, the first.

    Within a category the highest score is the most urgent one.
    """

    def urgency(position: int) -> tuple[int, float]:
        outcome = outcomes[position]
        score = listed_score(outcome.findings) if isinstance(outcome, Screened) else None
        return WORK_LIST_ORDER.index(outcome.category), 1.0 if score is None else -score

    return min(range(len(outcomes)), key=urgency)


def as_one_image(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Give every pack's outcome for one image the facts from reading the image.

    A pack whose worker was lost before it read the image takes the facts from the other packs' outcomes.
    """
    known = next((outcome for outcome in outcomes if outcome.facts.content_sha256), None)
    if known is None:
        return tuple(outcomes)
    ref, facts = known.ref, replace(known.facts, notes=(), decode_ms=0.0)
    return tuple(
        outcome
        if outcome.facts.content_sha256
        else replace(outcome, ref=replace(outcome.ref, kind=ref.kind, header=ref.header), facts=facts)
        for outcome in outcomes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultKind:
    """The number of results with one category and the same codes of reason and notes."""

    category: Category
    codes: tuple[str, ...]
    number: int


def counted_as(outcome: Outcome) -> ResultKind:
    """Return the kind of one outcome, with the number 1."""
    why = why_of(outcome)
    codes = tuple(said.code for said in (*([why] if why else []), *notes_of(outcome)))
    return ResultKind(category=outcome.category, codes=codes, number=1)
