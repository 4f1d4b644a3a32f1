"""One image, from a file to an outcome, in a straight line. Start reading here."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import heat_map
from fieldray.domain.finding import (
    Failed,
    Outcome,
    ReadFacts,
    Refused,
    Screened,
    Stage,
    can_be_overruled,
    can_be_turned,
    without_normal,
)
from fieldray.domain.image import UPRIGHT, Box, Detail, Tensor, Turn
from fieldray.domain.lungs import LungFields, evidence_inside, evidence_limit, look_for_lungs
from fieldray.domain.model import Model, Prediction, Request
from fieldray.domain.purpose import header_notes, says_frontal_chest
from fieldray.domain.study import ImageRef
from fieldray.errors import BackendProblem, FieldrayError, ReaderProblem, Unusable, shortage
from fieldray.pipeline.assessment import Assessment
from fieldray.pipeline.ports import Decoder, Engine, ReadResult
from fieldray.reasons import NOTES, Reason, reason

log = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
_DETAILS: Final[tuple[Detail, ...]] = ("needed", "finer")
_request_ids = itertools.count(1)


class LungsUnavailable(BackendProblem):
    """No image's lungs will be found any more."""


class Cancelled(Exception):
    """The run was cancelled while this image was waiting: it gets no outcome now."""


Run = Callable[[Engine, Tensor], Prediction]


_TURNED: Final = {90: "turned_back", 180: "turned_round", 270: "turned_clockwise"}


@dataclass(eq=False, slots=True)
class _Attempt:
    """How far one image has come, for what is told of it wherever it ends."""

    ref: ImageRef
    stage: Stage = "discover"
    facts: ReadFacts = field(default_factory=ReadFacts)
    lungs: LungFields | None = None
    overruled: tuple[Reason, ...] = ()

    def is_overruled(self, why: Reason, assessment: Assessment) -> bool:
        """Whether the image is screened although it is refused for this, which is then noted. Turning comes first."""
        if not assessment.wishes.overrules or not can_be_overruled(why) or self.will_be_turned(why, assessment):
            return False
        if why not in self.overruled:
            self.overruled += (why,)
        return True

    def will_be_turned(self, why: Reason, assessment: Assessment) -> bool:
        """Whether the image, refused for this, is set right and looked at again."""
        return assessment.wishes.turns and can_be_turned(why) and self.ref.turn == UPRIGHT

    def turned(self) -> _Attempt:
        """The same image, set right by what its lungs said."""
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
    decoder: Decoder,
    engine: Engine,
    lung_engine: Engine | None = None,
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Read with header and pixel checks, find the lungs, run, gate, calibrate, decide.

    An image is read as far as the networks need; one that was read approximately is refined where it is borderline,
    and its lungs are found again: where they are is a matter of the reading, too.
    `lung_engine` runs the lung-field pack of the model, where it has one.

    Gives an outcome, whatever the image is like; an unexpected error is logged and becomes `Failed`. Raises
    `Cancelled`, and an EnvironmentProblem when no image at all can be run or read any more.
    """
    image, request_id = _Attempt(ref), next(_request_ids)

    def run(on: Engine, tensor: Tensor) -> Prediction:
        return _answer(on.submit(Request(request_id=request_id, values=tensor.values)), request_id, is_cancelled)

    def judged(image: _Attempt) -> Outcome:
        seen = _run_networks(image, assessment, decoder, run, engine=engine, lung_engine=lung_engine, observe=observe)
        return _judge(image, seen, assessment) if isinstance(seen, Prediction) else seen

    try:
        if ref.problem:
            return image.stopped(ref.problem, is_refusal=ref.problem_is_refusal)
        first = judged(image)
        if not (isinstance(first, Refused) and image.will_be_turned(first.reason, assessment)):
            return first
        image = image.turned()
        second = judged(image)
        return first if isinstance(second, Refused) else second
    except (Cancelled, ReaderProblem, LungsUnavailable):
        raise
    except FieldrayError as error:
        if isinstance(error, BackendProblem) and engine.unavailable_reason:
            raise BackendProblem(engine.unavailable_reason) from error
        return image.stopped(error.reason, is_refusal=isinstance(error, Unusable))
    except Exception as error:
        if is_cancelled():
            raise Cancelled from error
        return _unforeseen(image, error)


def _run_networks(
    image: _Attempt,
    assessment: Assessment,
    decoder: Decoder,
    run: Run,
    *,
    engine: Engine,
    lung_engine: Engine | None,
    observe: Callable[[Prediction], None],
) -> Prediction | Outcome:
    """What the classifier says of the image, or the outcome of an image that it does not get to see."""
    model, finder = assessment.model, assessment.model.lungs
    for detail in _DETAILS:
        image.stage = "decode"
        read = _read(image, assessment, decoder, detail)
        if len({image.facts.content_sha256, read.facts.content_sha256} - {""}) > 1:
            return image.stopped(reason("changed"), is_refusal=False)
        image.ref = read.ref or image.ref  # judged and stored is the header of these bytes, not what discovery saw
        image.facts = read.facts if detail == "needed" else _both(image.facts, read.facts)
        if read.problem:
            return image.stopped(read.problem, is_refusal=read.problem_is_refusal)
        image.stage = "inference"
        if finder:
            says_chest = says_frontal_chest(image.ref.header, model.manifest.accepted)
            image.lungs = find_lungs_of(read, image.facts, finder, lung_engine, run, says_chest=says_chest)
            why = image.lungs.refusal
            if why and not image.is_overruled(why, assessment):
                return image.stopped(why, is_refusal=True)
        tensor = _tensor(read, image.facts, model, image.lungs)
        image.facts = replace(image.facts, pixel_map=tensor.pixel_map)
        prediction = run(engine, tensor)
        observe(prediction)
        oversampling = tensor.pixel_map.finest / read.step
        if not (read.is_approximate and assessment.is_close(prediction, oversampling=oversampling)):
            break
    return prediction


def _read(image: _Attempt, assessment: Assessment, decoder: Decoder, detail: Detail) -> ReadResult:
    """Read once, and again without what a person overrules of its header."""
    manifest, finder = assessment.model.manifest, assessment.model.lungs
    wanted: dict[str, Any] = {"lungs": finder.manifest.input} if finder else {}
    while True:
        if waives := tuple(why.code for why in image.overruled):
            wanted["waives"] = waives
        read = decoder.read(image.ref, manifest.input, rules=manifest.accepted, detail=detail, **wanted)
        why = read.problem if read.problem_is_refusal else None
        if why is None or why.code in waives or not image.is_overruled(why, assessment):
            return read


def _unforeseen(image: _Attempt, error: Exception) -> Outcome:
    if problem := shortage(error):
        raise problem from error
    log.exception("image failed at stage %s", image.stage)
    return image.stopped(reason("internal", detail=type(error).__name__), is_refusal=False)


def find_lungs_of(
    read: ReadResult, facts: ReadFacts, finder: Model, engine: Engine | None, run: Run, *, says_chest: bool = False
) -> LungFields:
    """The lung fields of the image that was read. Raises BackendProblem that names the pack."""
    rules = finder.manifest.lung_rules
    if read.lungs is None or engine is None or rules is None:
        raise ValueError("an image without what its lungs are found with")
    spec, size = finder.manifest.input, {"rows": facts.rows, "columns": facts.columns}

    seen = read.lungs

    def answer(values: NDArray[np.uint8]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        try:
            found = run(engine, replace(seen, values=values))
        except BackendProblem as problem:
            if why := engine.unavailable_reason:
                raise LungsUnavailable(reason("lungs_unavailable", pack=finder.pack_name, detail=why.text)) from problem
            raise BackendProblem(reason("lungs_failed", detail=problem.reason.text)) from problem
        if found.mask is None:
            raise ValueError("a lung-field pack without a mask")
        pixel_map = seen.pixel_map.for_cells(found.mask.shape, of=(spec.height, spec.width))
        return found.mask, {"scores": found.scores, "pixel_map": pixel_map, "latency_ms": found.latency_ms, **size}

    return look_for_lungs(seen.values, answer, rules, says_chest=says_chest)


def _tensor(read: ReadResult, facts: ReadFacts, model: Model, lungs: LungFields | None) -> Tensor:
    """What the classifier gets: the image, or its lungs where the pack asks for them."""
    spec = model.manifest.input
    if read.tensor is not None:
        return read.tensor
    if lungs is None:
        raise ValueError("no tensor")
    if lungs.refusal:  # a person overruled it: nobody knows where the lungs are
        return read.cropped(spec, Box(top=0.0, left=0.0, rows=float(facts.rows), columns=float(facts.columns)))
    return read.cropped(spec, lungs.box(rows=facts.rows, columns=facts.columns, margin=spec.crop_margin))


def _judge(image: _Attempt, prediction: Prediction, assessment: Assessment) -> Outcome:
    """With the lungs found, the image is known to be a chest X-ray: one unlike the pack's own is judged, and noted."""
    facts, lungs = image.facts, image.lungs
    gate = assessment.model.manifest.ood_gate
    extra: dict[str, float] = {}
    accepted, is_confirmed = assessment.model.manifest.accepted, assessment.ages_confirmed
    of_header = header_notes(image.ref.header, accepted, is_confirmed=is_confirmed)
    of_header += tuple(reason(code) for code in facts.notes if code in NOTES)
    notes = lungs.notes if lungs and not lungs.refusal else ()
    if assessment.model.manifest.is_bare:
        notes += (reason("unsigned_operating_point_unknown"),)
    if gate and prediction.features is not None:
        extra["gate_distance"] = gate.distance(prediction.features)
        if not extra["gate_distance"] <= gate.limit:  # also true for a distance that is not a number
            why = reason("unlike_training")
            if lungs is None and not image.is_overruled(why, assessment):
                return image.stopped(why, is_refusal=True)
            notes += (reason("unlike_measured"),) if lungs else ()
    findings = assessment.findings(prediction.scores)
    screened = Screened(
        ref=image.ref,
        facts=facts,
        findings=without_normal(findings) if "lower_part_dark" in facts.notes else findings,
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


def _both(first: ReadFacts, second: ReadFacts) -> ReadFacts:
    """Of an image that was read twice."""
    return replace(second, decode_ms=first.decode_ms + second.decode_ms, notes=(*second.notes, "read_twice"))


def _answer(future: Future[Prediction], request_id: int, is_cancelled: Callable[[], bool]) -> Prediction:
    """Wait for the engine, but not past a cancel. Raises ValueError for the answer to another image."""
    while True:
        try:
            prediction = future.result(timeout=_WAIT_S)
            if prediction.request_id != request_id:
                raise ValueError(f"the answer to image {prediction.request_id}, not to {request_id}")
            return prediction
        except TimeoutError:
            if future.done():
                raise
            if is_cancelled():
                future.cancel()
                raise Cancelled from None
