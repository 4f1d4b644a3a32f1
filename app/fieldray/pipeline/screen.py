"""One image, from a file to an outcome, in a straight line. Start reading here."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from fieldray.domain.finding import Failed, Outcome, ReadFacts, Refused, Screened, Stage
from fieldray.domain.image import Detail
from fieldray.domain.prediction import Prediction, Request
from fieldray.domain.study import ImageRef
from fieldray.errors import BackendProblem, FieldrayError, ReaderProblem, Unusable, shortage
from fieldray.pipeline.assessment import Assessment
from fieldray.pipeline.ports import Decoder, Engine
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

_WAIT_S: Final = 0.2
_DETAILS: Final[tuple[Detail, ...]] = ("needed", "finer")
_request_ids = itertools.count(1)


class Cancelled(Exception):
    """The run was cancelled while this image was waiting: it gets no outcome now."""


def screen_image(
    ref: ImageRef,
    *,
    assessment: Assessment,
    decoder: Decoder,
    engine: Engine,
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Read with header and pixel checks, run, gate, calibrate, decide.

    An image is read as far as the network needs; one that was read approximately is refined where it is borderline.

    Gives an outcome, whatever the image is like; an unexpected error is logged and becomes `Failed`. Raises
    `Cancelled`, and an EnvironmentProblem when no image at all can be run or read any more.
    """
    stage: Stage = "discover"
    facts = ReadFacts()
    manifest = assessment.model.manifest
    try:
        if ref.problem:
            return _stopped(ref, ref.problem, facts, stage=stage, is_refusal=ref.problem_is_refusal)
        for detail in _DETAILS:
            stage = "decode"
            read = decoder.read(ref, manifest.input, rules=manifest.accepted, detail=detail)
            ref = read.ref or ref  # what is judged and stored is the header of these bytes, not what discovery saw
            facts = read.facts if detail == "needed" else _both(facts, read.facts)
            if read.problem or read.tensor is None:
                why = read.problem or reason("internal", detail="no tensor")
                return _stopped(ref, why, facts, stage=stage, is_refusal=read.problem_is_refusal)
            stage = "inference"
            request = Request(request_id=next(_request_ids), values=read.tensor.values)
            prediction = _answer(engine.submit(request), is_cancelled)
            observe(prediction)
            if not (read.is_approximate and assessment.is_close(prediction)):
                break
        return _judge(ref, facts, prediction, assessment)
    except (Cancelled, ReaderProblem):
        raise
    except FieldrayError as error:
        if isinstance(error, BackendProblem) and engine.unavailable_reason:
            raise BackendProblem(engine.unavailable_reason) from error
        return _stopped(ref, error.reason, facts, stage=stage, is_refusal=isinstance(error, Unusable))
    except Exception as error:
        if is_cancelled():
            raise Cancelled from error
        return _unforeseen(ref, error, facts, stage=stage)


def _unforeseen(ref: ImageRef, error: Exception, facts: ReadFacts, *, stage: Stage) -> Outcome:
    if problem := shortage(error):
        raise problem from error
    log.exception("image failed at stage %s", stage)
    return Failed(ref=ref, stage=stage, reason=reason("internal", detail=type(error).__name__), facts=facts)


def _judge(ref: ImageRef, facts: ReadFacts, prediction: Prediction, assessment: Assessment) -> Outcome:
    gate = assessment.model.manifest.ood_gate
    extra: dict[str, float] = {}
    if gate and prediction.features is not None:
        extra["gate_distance"] = gate.distance(prediction.features)
        if not extra["gate_distance"] <= gate.limit:  # also true for a distance that is not a number
            return Refused(ref=ref, reason=reason("unlike_training"), facts=facts)
    return Screened(
        ref=ref,
        facts=facts,
        findings=assessment.findings(prediction.scores),
        class_maps=prediction.class_maps,
        pack_name=prediction.pack_name,
        model_sha256=assessment.model.model_sha256,
        backend=prediction.backend,
        inference_ms=prediction.latency_ms,
        extra=extra,
    )


def _both(first: ReadFacts, second: ReadFacts) -> ReadFacts:
    """Of an image that was read twice."""
    return replace(second, decode_ms=first.decode_ms + second.decode_ms, notes=(*second.notes, "read_twice"))


def _stopped(ref: ImageRef, why: Reason, facts: ReadFacts, *, stage: Stage, is_refusal: bool) -> Outcome:
    if is_refusal:
        return Refused(ref=ref, reason=why, facts=facts)
    return Failed(ref=ref, stage=stage, reason=why, facts=facts)


def _answer(future: Future[Prediction], is_cancelled: Callable[[], bool]) -> Prediction:
    """Wait for the engine, but not past a cancel."""
    while True:
        try:
            return future.result(timeout=_WAIT_S)
        except TimeoutError:
            if future.done():
                raise
            if is_cancelled():
                future.cancel()
                raise Cancelled from None
