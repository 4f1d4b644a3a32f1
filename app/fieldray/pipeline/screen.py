"""One image, from a file to an outcome, in a straight line. Start reading here."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

from fieldray.backends import CPU
from fieldray.domain import heat_map
from fieldray.domain.assessment import Assessment
from fieldray.domain.finding import (
    NEVER_NORMAL,
    Failed,
    Outcome,
    ReadFacts,
    Refused,
    Screened,
    Stage,
    without_normal,
)
from fieldray.domain.image import Detail, ImageRef, Turn
from fieldray.domain.lungs import LungFields, evidence_inside, evidence_limit
from fieldray.domain.model import Model, Prediction
from fieldray.domain.purpose import header_notes
from fieldray.errors import BackendProblem, Cancelled, FieldrayError, ReaderProblem, Unusable, shortage
from fieldray.inference.backend import prediction_of
from fieldray.inference.engine import Engine
from fieldray.reasons import NOTES, Reason, reason
from fieldray.workers.calls import Look, Seen
from fieldray.workers.pool import Workers

log = logging.getLogger(__name__)

_TURNED: Final = {90: "turned_back", 180: "turned_round", 270: "turned_clockwise"}


@dataclass(eq=False, slots=True)
class _Attempt:
    """One image, what screens it, and how far it has come, for what is told of it wherever it ends."""

    ref: ImageRef
    assessment: Assessment
    workers: Workers
    engine: Engine
    detail: Detail
    observe: Callable[[Prediction], None]
    is_cancelled: Callable[[], bool]
    first: Callable[[], Seen] | None
    stage: Stage = "discover"
    facts: ReadFacts = field(default_factory=ReadFacts)
    lungs: LungFields | None = None
    overruled: tuple[Reason, ...] = ()

    def overrule(self, *reasons: Reason) -> None:
        """Note that the image is screened although it is refused for these."""
        self.overruled = tuple(dict.fromkeys((*self.overruled, *reasons)))

    def turned(self) -> _Attempt:
        """The attempt on this image turned or inverted as its lung fields say."""
        if self.lungs is None:
            raise ValueError("an image that was turned without its lungs")
        turn = Turn(self.lungs.rotation_degrees, self.lungs.is_inverted)
        return replace(self, ref=replace(self.ref, turn=turn), lungs=None)

    @property
    def notes(self) -> tuple[Reason, ...]:
        """What was done to the image because a person asked for it."""
        turn = self.ref.turn
        return (
            *((reason(_TURNED[turn.degrees]),) if turn.degrees else ()),
            *((reason("grey_swapped_back"),) if turn.swaps_grey else ()),
            *((reason("screened_anyway"), *self.overruled) if self.overruled else ()),
        )

    def stopped(self, why: Reason, *, is_refusal: bool) -> Outcome:
        if is_refusal:
            return Refused(ref=self.ref, reason=why, facts=self.facts, lungs=self.lungs)
        return Failed(ref=self.ref, stage=self.stage, reason=why, facts=self.facts)


def screen_image(
    ref: ImageRef,
    *,
    assessment: Assessment,
    workers: Workers,
    engine: Engine,
    detail: Detail = "needed",
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
    first: Callable[[], Seen] | None = None,
) -> Outcome:
    """Have a worker look at the image: header and pixel checks, lungs, classifier. Gate, calibrate, decide.

    While a device runs the classifier, the worker gives its input back for it; what the device loses goes to a worker
    again. An image that was read approximately is looked at in finer detail where its result is borderline. `first`
    gives what was seen at the first look, where that is one for several packs.
    Gives an outcome, whatever the image is like; an unexpected error is logged and becomes `Failed`. Raises
    `Cancelled`, and an EnvironmentProblem when no image at all can be run or read any more.
    """
    image = _Attempt(ref, assessment, workers, engine, detail, observe, is_cancelled, first)
    try:
        if ref.problem:
            return image.stopped(ref.problem, is_refusal=ref.problem_is_refusal)
        lying = _outcome(image)
        if not (isinstance(lying, Refused) and assessment.wishes.will_turn(lying.reason, ref.turn)):
            return lying
        image = image.turned()
        upright = _outcome(image)
        return lying if isinstance(upright, Refused) else upright
    except Cancelled:
        raise
    except ReaderProblem as error:
        if is_cancelled():  # what it was waiting for was given up
            raise Cancelled from error
        raise
    except FieldrayError as error:
        if isinstance(error, BackendProblem) and error.reason.code == "lungs_unavailable":
            raise  # no image's lungs will be found any more
        if isinstance(error, BackendProblem) and engine.unavailable_reason:
            raise BackendProblem(engine.unavailable_reason) from error
        if isinstance(error, BackendProblem):
            image.stage = "inference"  # of a worker, too, which was lost there or has no network
        return image.stopped(error.reason, is_refusal=isinstance(error, Unusable))
    except Exception as error:
        if is_cancelled():
            raise Cancelled from error
        return _unforeseen(image, error)


@dataclass(frozen=True, eq=False, slots=True)
class Lane:
    """One pack of a run with its thresholds, and the engine that chooses its device."""

    assessment: Assessment
    engine: Engine


def screen_by_each(
    ref: ImageRef,
    lanes: Sequence[Lane],
    *,
    workers: Workers,
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Outcome, ...]:
    """What each pack alone would say of an image, which is read once, and in which lungs are looked for once.

    What a device loses, what is turned, and what another device is unsure of is looked at again for its pack alone.
    The packs are loaded together (`Workers.load_as_group`). Raises as `screen_image`.
    """

    @cache
    def seen() -> tuple[Seen, ...]:
        """The analysis of the image for each pack, done when the first pack asks for it."""
        asked = ((_question(ref, lane, is_cancelled), lane.assessment.model) for lane in lanes)
        return workers.look_for_each(list(asked))

    def screened(number: int, lane: Lane) -> Outcome:
        first = (lambda: seen()[number]) if len(lanes) > 1 else None
        screen = partial(screen_image, ref, workers=workers, observe=observe, is_cancelled=is_cancelled)
        return screen(assessment=lane.assessment, engine=lane.engine, first=first)

    return tuple(itertools.starmap(screened, enumerate(lanes)))


def _outcome(image: _Attempt) -> Outcome:
    seen = _look(image)
    return _judge(image, seen) if isinstance(seen, Prediction) else seen


def _look(image: _Attempt) -> Prediction | Outcome:
    """What the classifier says of the image, or the outcome of an image that it does not get to see."""
    assessment, detail, read_ms = image.assessment, image.detail, 0.0
    while True:
        image.stage = "decode"
        first, image.first = image.first, None
        if first:
            seen = first()
        else:
            question = _question(image.ref, Lane(assessment, image.engine), image.is_cancelled, detail=detail)
            seen = image.workers.look(question, model=assessment.model)
        if len({image.facts.content_sha256, seen.facts.content_sha256} - {""}) > 1:
            return image.stopped(reason("changed"), is_refusal=False)
        if seen.header is not None:  # judged and stored is the header of these bytes, not what discovery saw
            image.ref = replace(image.ref, kind=seen.kind, header=seen.header)
        image.facts, image.lungs, image.stage = seen.facts, seen.lungs, seen.stage
        image.facts = replace(image.facts, decode_ms=read_ms + seen.facts.decode_ms)
        image.overrule(*seen.overruled)
        if seen.problem:
            return image.stopped(seen.problem, is_refusal=seen.is_refusal)
        if seen.answer:
            prediction = prediction_of(seen.answer, assessment.model, backend=CPU.name, sequence=seen.sequence)
        elif seen.values is None:
            raise ValueError("an image without an input")
        else:
            prediction = image.engine.run(seen.values, model=assessment.model, is_cancelled=image.is_cancelled)
        image.observe(prediction)
        scores, features = prediction.scores, prediction.features
        if seen.answer or detail != "needed" or not seen.is_close(assessment, scores, features):
            return prediction
        detail, read_ms = "finer", image.facts.decode_ms


def _question(ref: ImageRef, lane: Lane, is_cancelled: Callable[[], bool], *, detail: Detail = "needed") -> Look:
    """What a worker is asked: to run the classifier, too, where no other device does.

    Waits until one is in use; raises Cancelled, BackendProblem.
    """
    assessment = lane.assessment
    name = lane.engine.serving(assessment.model, is_cancelled=is_cancelled)
    return Look(
        ref=ref,
        rules=assessment.model.manifest.accepted,
        points=assessment.points,
        wishes=assessment.wishes,
        detail=detail,
        runs=name == CPU.name,
    )


def _unforeseen(image: _Attempt, error: Exception) -> Outcome:
    if problem := shortage(error):
        raise problem from error
    log.exception("image failed at stage %s", image.stage)
    return image.stopped(reason("internal", detail=type(error).__name__), is_refusal=False)


def _judge(image: _Attempt, prediction: Prediction) -> Outcome:
    """With the lungs found, the image is known to be a chest X-ray: one unlike the pack's own is judged, and noted."""
    facts, lungs, assessment = image.facts, image.lungs, image.assessment
    manifest = assessment.model.manifest
    gate = manifest.ood_gate
    extra: dict[str, float] = {}
    of_header = header_notes(image.ref.header, manifest.accepted, is_confirmed=assessment.ages_confirmed)
    of_header += tuple(reason(code) for code in facts.notes if code in NOTES)
    notes = lungs.notes if lungs and not lungs.refusal else ()
    if manifest.is_bare:
        notes += (reason("unsigned_operating_point_unknown"),)
    if gate and prediction.features is not None:
        extra["gate_distance"] = gate.distance(prediction.features)
        if not extra["gate_distance"] <= gate.limit:  # also true for a distance that is not a number
            why = reason("unlike_training")
            if lungs is None:
                if not assessment.wishes.will_overrule(why, image.ref.turn):
                    return image.stopped(why, is_refusal=True)
                image.overrule(why)
            notes += (reason("unlike_measured"),) if lungs else ()
    findings = assessment.findings(prediction.scores)
    screened = Screened(
        ref=image.ref,
        facts=facts,
        findings=findings if NEVER_NORMAL.isdisjoint(facts.notes) else without_normal(findings),
        class_maps=prediction.class_maps,
        pack_name=prediction.pack_name,
        model_sha256=assessment.model.model_sha256,
        backend=prediction.backend,
        inference_ms=prediction.latency_ms,
        extra=extra,
        lungs=lungs,
        notes=(*of_header, *image.notes, *notes),
    )
    return _with_evidence(screened, assessment.model, lungs) if lungs and not lungs.refusal else screened


def _with_evidence(screened: Screened, model: Model, lungs: LungFields) -> Screened:
    """How much of the evidence for the deciding finding lies inside the lungs; noted below the pack's limit."""
    shown, facts = heat_map.shown_map(screened, model.manifest), screened.facts
    if shown is None:
        return screened
    share = evidence_inside(shown.evidence, shown.cells, lungs, rows=facts.rows, columns=facts.columns)
    notes, limit = screened.notes, evidence_limit(model.manifest)
    if lungs.read_first:
        limit = None  # of lungs that were not all found, what lies outside says nothing
    if share is not None and limit is not None and share < limit and shown.finding.decision != "below":
        notes += (reason("evidence_outside", percent=round(100 * share)),)
    return replace(screened, lungs=replace(lungs, evidence_inside=share), notes=notes)
