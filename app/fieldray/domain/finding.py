"""Findings and outcomes of images.

A finding is the score of one label, with the decision at an operating point. An outcome is the result of screening one
image. The category of an outcome is the image's class in the work list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import CoordinateMap, ImageRef
from fieldray.domain.lungs import READ_FIRST_CODES, LungFields
from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import Calibration, OperatingPoint, OutOfDistributionCheck
from fieldray.reasons import Reason

Decision = Literal["above", "below", "unsure", "not_assessed"]
Status = Literal["screened", "refused", "failed"]
Stage = Literal["discover", "decode", "quality", "inference", "store"]
Category = Literal["read_first", "abnormal", "unsure", "normal", "not_assessed", "refused", "failed", "not_an_image"]

# Margin of the score. Measured on 300 images (JPEG and JPEG 2000) read reduced and in full: of the scores between 0.2
# and 0.95, half moved by less than 0.025, and nine in ten by less than 0.055. With a wider margin, many images would be
# read twice, and few decisions would change. Half of the distances near the limit of the out-of-distribution check
# moved by less than `BORDERLINE_DISTANCE_MARGIN`. This margin misses half of that check's changes.
BORDERLINE_SCORE_MARGIN: Final = 0.05
# Margin of the log-odds of the uncalibrated score. Near 0 and 1 a lower resolution moves scores by less than the margin
# above, but log-odds by as much as elsewhere. Of 239 images of adults, read reduced and in full, none moved by more
# than 0.77. Of 399 decisions, this margin missed no change; 0.55 missed one change, and 0.3 more.
BORDERLINE_LOG_ODDS_MARGIN: Final = 0.8
# The margin above is for images read near the resolution that the network needs. With an oversampling of 1.5 or more,
# scores move less: by less than 0.2 for 99 of 100 images of children with the packs of 256 pixels. The scores of images
# cropped to the lungs move by 0.3 to 0.5, because the crop moves. For them, a wider margin changed none of 397
# decisions.
NARROW_MARGIN_MIN_OVERSAMPLING: Final = 1.5
NARROW_LOG_ODDS_MARGIN: Final = 0.2
_INT8_STEP: Final = 1 / 256  # step of an uncalibrated int8 score; close to 0 and 1 this margin is the wider one
BORDERLINE_DISTANCE_MARGIN: Final = 0.015  # as a share of the limit of the out-of-distribution check
THUMBNAIL_SIDE: Final = 64
PREVIEW_SIDE: Final = 256
_EPSILON = 1e-7
# Of several findings, the one whose decision comes first here decides an image; then the one with the highest score.
_MOST_URGENT_FIRST: Final[tuple[Decision, ...]] = ("above", "unsure", "not_assessed", "below")
# The order of a work list, most urgent first. Normal images come last among the screened ones and are never hidden.
# Files that are no images have a category of their own, because they are no refused images.
WORK_LIST_ORDER: Final[tuple[Category, ...]] = (
    *("read_first", "abnormal", "unsure", "not_assessed"),
    *("normal", "refused", "failed", "not_an_image"),
)
# Codes of refusals that a person can see to be wrong by looking at the image. The image is then screened if the person
# asks for it. An age cannot be seen, and a file without a usable image cannot be overruled.
_OVERRULABLE: Final = frozenset(
    {"view", "body_part", "for_processing", "image_type"}
    | {"not_frontal_chest", "rotated", "upside_down", "inverted", "unlike_training"}
)
# Codes of notes that a part of the image, or its detail, may be missing. Such an image is never called normal.
NOTE_CODES_EXCLUDING_NORMAL: Final = frozenset({"lower_part_dark", "little_detail"})
_TURNABLE: Final = frozenset({"rotated", "upside_down", "inverted"})
# Codes of notes on a result that exists because a person asked for it.
OVERRIDE_NOTE_CODES: Final = frozenset(
    {"screened_anyway", "turned_back", "turned_clockwise", "turned_round", "grey_swapped_back"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The calibrated score of one label, and the decision at the label's operating point."""

    label: str
    score: float
    point: OperatingPoint | None
    decision: Decision

    @property
    def is_decided_by_larger_output(self) -> bool:
        """Whether the larger output of the network decided, because the model has no operating point."""
        return self.point is None and self.decision != "not_assessed"


def calibrate(score: float, calibration: Calibration | None) -> float:
    """Return the calibrated score (0..1) of an uncalibrated score (0..1), by Platt scaling of the logit (1999).

    Without a calibration, the score is returned unchanged.
    """
    if calibration is None:
        return score
    clipped = min(max(score, _EPSILON), 1 - _EPSILON)
    logit = math.log(clipped / (1 - clipped))
    return float(sigmoid(calibration.slope * logit + calibration.intercept))


def decide(score: float, point: OperatingPoint | None) -> Decision:
    """Return the decision on a calibrated score (0..1): above, below or in the uncertain zone of an operating point.

    Without an operating point the decision is "not_assessed". A threshold of 0.5 is never assumed.
    """
    if point is None:
        return "not_assessed"
    if score >= point.unsure_high:
        return "above"
    return "below" if score < point.unsure_low else "unsure"


def decide_by_larger_output(scores: Mapping[str, float]) -> tuple[Finding, ...]:
    """Return the findings of a model without an operating point. The label with the larger score decides.

    The first label means *abnormal*. The decision of the first label is "above" if no other label has a larger score,
    else "below". The decision of every other label is "below".

    scores  score by label code, in the order of the labels
    """
    abnormal, *others = scores
    is_abnormal = scores[abnormal] >= max(scores[label] for label in others)
    decisions: dict[str, Decision] = {abnormal: "above" if is_abnormal else "below"}
    return tuple(
        Finding(label=label, score=score, point=None, decision=decisions.get(label, "below"))
        for label, score in scores.items()
    )


def replace_below_by_unsure(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in which the decision "unsure" replaces every decision "below".

    Used for an image that may lack a part of the chest or fine detail, because the missing part may show a finding.
    """
    return tuple(replace(found, decision="unsure") if found.decision == "below" else found for found in findings)


def position_on_scale(score: float, threshold: float) -> float:
    """Return the position (0..1) of a score (0..1) on a drawn scale with the threshold in the middle.

    The scores from 0 to the threshold fill the first half of the scale evenly. The scores from the threshold to 1 fill
    the second half evenly.
    """
    if score < threshold:
        return 0.5 * score / threshold
    return 1.0 if threshold >= 1 else 0.5 + 0.5 * (score - threshold) / (1 - threshold)


def score_bounds(
    scores: Mapping[str, float], *, oversampling: float = 1.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the lowest and the highest score that each label could have if the image were read in finer detail.

    The result is two dictionaries by label code: the lowest scores and the highest scores, 0..1. Each score is moved by
    a margin in log-odds, or by one step of an 8-bit score if the step is larger.

    scores        uncalibrated scores, 0..1, by label code
    oversampling  pixels read per pixel of the network's input, on the axis (rows or columns) where this number is
                  smaller; with 1.5 or more the margin is narrower
    """
    margin = NARROW_LOG_ODDS_MARGIN if oversampling >= NARROW_MARGIN_MIN_OVERSAMPLING else BORDERLINE_LOG_ODDS_MARGIN

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
    gate: OutOfDistributionCheck | None,
    distance: float | None,
) -> bool:
    """Return whether an image could get another decision if the image were read in full resolution.

    A codec's reduced resolution changes scores a little, so each score stands for a range of scores. An image is
    borderline if the decisions at the two ends of the range differ. The range ends `BORDERLINE_SCORE_MARGIN` from the
    score, or at the scores in `lowest` and `highest` if these are nearer.

    A distance near the limit of the out-of-distribution check is borderline, too. With a distance far above the limit
    the image is refused in any case, and the result is False.

    findings         findings of the image as it was read
    lowest, highest  the same findings, made from the two results of `score_bounds`
    gate             the out-of-distribution check; None for a pack without an out-of-distribution check
    distance         the image's distance in the out-of-distribution check; None if not measured
    """
    if gate is not None and distance is not None:
        if abs(distance - gate.limit) <= BORDERLINE_DISTANCE_MARGIN * gate.limit:
            return True
        if not distance <= gate.limit:
            return False
    return any(
        _decided_like(found, max(low.score, found.score - BORDERLINE_SCORE_MARGIN))
        != _decided_like(found, min(high.score, found.score + BORDERLINE_SCORE_MARGIN))
        for found, low, high in zip(findings, lowest, highest, strict=True)
    )


def _decided_like(found: Finding, score: float) -> Decision:
    """Return the decision that a finding would have with another score.

    For a model without an operating point, the decision is "above" from a score of 0.5 on.
    """
    if found.is_decided_by_larger_output:
        return "above" if score >= 0.5 else "below"
    return decide(score, found.point)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImageFacts:
    """Facts that were found while reading an image, small enough to keep for every row of the work list.

    content_sha256  SHA-256 (hex) of the file; empty if the file could not be read
    thumbnail       (h, w) uint8, longer side `THUMBNAIL_SIDE` or less, as displayed; None if the image was not read
    preview         JPEG of the image in the orientation of the file, longer side `PREVIEW_SIDE` or less; empty once the
                    preview is stored in the database
    input_to_image  maps pixels of the network's input to the image; None if no input was made
    decode_ms       duration of decoding in milliseconds
    notes           codes of notes from reading
    file_stamp      identifies the state of the file (see `imaging.source`); empty once the stamp is stored in the
                    database, and for a file whose state no stamp can identify
    """

    content_sha256: str = ""
    rows: int = 0
    columns: int = 0
    thumbnail: NDArray[np.uint8] | None = None
    preview: bytes = b""
    input_to_image: CoordinateMap | None = None
    decode_ms: float = 0.0
    notes: tuple[str, ...] = ()
    file_stamp: bytes = b""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ScreenedOutcome:
    """The outcome of an image that was read, run through the network and assessed.

    class_maps     (labels, rows, columns) float32 logits; None if the model has no class maps
    backend        the backend that ran the model
    extra_figures  further figures by name, such as "gate_distance" of the out-of-distribution check
    lungs          the lung fields; None if no lung-field pack ran
    notes          notes for a person about this result
    """

    status: ClassVar[Status] = "screened"

    ref: ImageRef
    facts: ImageFacts
    findings: tuple[Finding, ...]
    class_maps: NDArray[np.float32] | None
    pack_name: str
    model_sha256: str
    backend: str
    inference_ms: float
    extra_figures: Mapping[str, float] = field(default_factory=dict)
    lungs: LungFields | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def category(self) -> Category:
        """The class of the image in the work list.

        The first rule that applies decides: *read first* if a lung was not seen, *abnormal* if any decision is "above",
        *unsure* if any decision is "unsure", *normal* if all decisions are "below", else *not assessed*.

        A model without an operating point has only two classes, *abnormal* and *normal*. If a lung was not seen, the
        image stays in its class, and the reason to read the image first is kept with the result.
        """
        if reason_of(self) and not self.is_decided_by_larger_output:
            return "read_first"
        decisions = {finding.decision for finding in self.findings}
        if "above" in decisions:
            return "abnormal"
        if "unsure" in decisions:
            return "unsure"
        return "normal" if decisions == {"below"} else "not_assessed"

    @property
    def is_decided_by_larger_output(self) -> bool:
        """Whether the larger output of the network decided, because the model has no operating point."""
        return any(finding.is_decided_by_larger_output for finding in self.findings)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RefusedOutcome:
    """The outcome of an image that is not suitable for the pack, or of a file that is no image.

    lungs  the lung fields, which may show why the image is not suitable; None if no lung-field pack ran
    """

    status: ClassVar[Status] = "refused"

    ref: ImageRef
    reason: Reason
    facts: ImageFacts = field(default_factory=ImageFacts)
    lungs: LungFields | None = None

    @property
    def category(self) -> Category:
        """The class in the work list: "not_an_image" for a file that is no image, else "refused"."""
        return "not_an_image" if self.reason.code == "not_an_image" else "refused"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FailedOutcome:
    """The outcome of an image that could not be read, or on which the network could not be run.

    stage  the step of screening that failed
    """

    status: ClassVar[Status] = "failed"
    category: ClassVar[Category] = "failed"

    ref: ImageRef
    stage: Stage
    reason: Reason
    facts: ImageFacts = field(default_factory=ImageFacts)


Outcome = ScreenedOutcome | RefusedOutcome | FailedOutcome


def image_count(counts: Mapping[Category, int]) -> int:
    """Return the number of images among counted results, without the files that are no images.

    counts  number of results by category
    """
    return sum(counts.values()) - counts.get("not_an_image", 0)


def can_refusal_be_overruled(why: Reason) -> bool:
    """Return whether a person may have an image screened although the image was refused for this reason."""
    return why.code in _OVERRULABLE


def can_be_fixed_by_turning(why: Reason) -> bool:
    """Return whether turning an image removes the reason for which the image was refused.

    This is true for an image that lies on its side, is upside down or is inverted.
    """
    return why.code in _TURNABLE


def without_preview(outcome: Outcome) -> Outcome:
    """Return an outcome without preview and stamp, which only the database needs.

    Removing both saves memory where thousands of outcomes are kept.
    """
    facts = outcome.facts
    if not (facts.preview or facts.file_stamp):
        return outcome
    return replace(outcome, facts=replace(facts, preview=b"", file_stamp=b""))


def lungs_of(outcome: Outcome) -> LungFields | None:
    """Return the lung fields of an outcome; None if no lung fields are known."""
    return None if isinstance(outcome, FailedOutcome) else outcome.lungs


def reason_of(outcome: Outcome) -> Reason | None:
    """Return the reason why an image was refused, failed, or is to be read first; None for every other image."""
    if isinstance(outcome, ScreenedOutcome):
        return outcome.lungs.read_first_reason if outcome.lungs else None
    return outcome.reason


def notes_of(outcome: Outcome) -> tuple[Reason, ...]:
    """Return the notes on a screened image; empty if the image was refused or failed."""
    return outcome.notes if isinstance(outcome, ScreenedOutcome) else ()


def override_notes(outcome: Outcome) -> tuple[Reason, ...]:
    """Return the notes on a person's requests for this result: to overrule a refusal, or to turn the image."""
    return tuple(note for note in notes_of(outcome) if note.code in OVERRIDE_NOTE_CODES)


def leading_finding(outcome: Outcome) -> Finding | None:
    """Return the finding that decides an image's category; None for an image that was not screened."""
    return leading_finding_among(outcome.findings) if isinstance(outcome, ScreenedOutcome) else None


def leading_finding_among(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that decides an image's category, out of all findings; None if `findings` is empty.

    The most urgent finding decides; of equally urgent findings, the finding with the highest score. For a model without
    an operating point, the finding of the first label (*abnormal*) always decides, so that the scores of a list can be
    compared.
    """
    order, found = _MOST_URGENT_FIRST.index, tuple(findings)
    if found and found[0].is_decided_by_larger_output:
        return found[0]
    return min(found, key=lambda one: (order(one.decision), -one.score), default=None)


def score_for_sorting(findings: Iterable[Finding]) -> float | None:
    """Return the score that sorts an image within its category, the highest first; None if `findings` is empty."""
    leading = leading_finding_among(findings)
    return leading.score if leading else None


def most_urgent_pack_position(outcomes: Sequence[Outcome]) -> int:
    """Return the position of the pack with the most urgent outcome for an image; the first pack has position 0.

    Within a category, the highest score is the most urgent. Of equally urgent outcomes, the first counts.

    outcomes  the outcome of each pack, in the order of the run
    """

    def urgency(position: int) -> tuple[int, float]:
        outcome = outcomes[position]
        score = score_for_sorting(outcome.findings) if isinstance(outcome, ScreenedOutcome) else None
        return WORK_LIST_ORDER.index(outcome.category), 1.0 if score is None else -score

    return min(range(len(outcomes)), key=urgency)


def copy_missing_facts(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes of several packs for one image, each with the facts from reading the image.

    An outcome lacks these facts if a worker process ended before it had read the image. The facts are then copied from
    another pack's outcome.
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
class ResultCount:
    """The number of results that have this category, and exactly these codes of reason and notes.

    reason_and_note_codes  codes of the reason and of the notes that each of the results has
    result_count           number of results
    """

    category: Category
    reason_and_note_codes: tuple[str, ...]
    result_count: int

    @property
    def legacy_model_read_first_count(self) -> int:
        """The number of images that are to be read first and still have the class *abnormal* or *normal*.

        The number is above 0 only for a legacy model of the dissertation. Such a model has two classes, and an image to
        be read first stays in its class.
        """
        is_classed = self.category in ("abnormal", "normal")
        return self.result_count if is_classed and not READ_FIRST_CODES.isdisjoint(self.reason_and_note_codes) else 0


def result_count_of_outcome(outcome: Outcome) -> ResultCount:
    """Return the `ResultCount` of a single outcome. The number in the result is 1."""
    why = reason_of(outcome)
    codes = tuple(said.code for said in (*([why] if why else []), *notes_of(outcome)))
    return ResultCount(category=outcome.category, reason_and_note_codes=codes, result_count=1)
