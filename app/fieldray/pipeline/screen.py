"""Screening of one image, from a file to an outcome. A good module to start reading the program's code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import CPU
from fieldray.domain import heat_map
from fieldray.domain.finding import (
    NOTE_CODES_EXCLUDING_NORMAL,
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    ScreenedOutcome,
    replace_below_by_unsure,
)
from fieldray.domain.image import Correction, ImageDetail, ImageRef
from fieldray.domain.intended_use import header_notes
from fieldray.domain.lungs import LungFields, evidence_inside, min_evidence_inside
from fieldray.domain.model import Model, Prediction
from fieldray.domain.pack_setup import PackSetup
from fieldray.errors import (
    BackendProblem,
    Cancelled,
    FieldrayError,
    UnsuitableImage,
    WorkerProblem,
    reason_of_unexpected_error,
    resource_problem,
)
from fieldray.inference.backend import prediction_of
from fieldray.inference.engine import Engine
from fieldray.reasons import NOTE_TEMPLATES, Reason, reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult, DeviceRunResult
from fieldray.workers.pool import WorkerPool

log = logging.getLogger(__name__)

_TURNED: Final = {90: "turned_back", 180: "turned_round", 270: "turned_clockwise"}


def screen_image(
    ref: ImageRef,
    *,
    setup: PackSetup,
    workers: WorkerPool,
    engine: Engine,
    detail: ImageDetail = "needed",
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Screen an image with one pack. Returns the outcome of the image.

    Parameters and exceptions are those of `screen_with_packs`.
    """
    (outcome,) = screen_with_packs(
        ref,
        [setup],
        workers=workers,
        engine=engine,
        detail=detail,
        observe=observe,
        is_cancelled=is_cancelled,
    )
    return outcome


def screen_with_packs(
    ref: ImageRef,
    setups: Sequence[PackSetup],
    *,
    workers: WorkerPool,
    engine: Engine,
    detail: ImageDetail = "needed",
    observe: Callable[[Prediction], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Outcome, ...]:
    """Screen an image with several packs. Returns the outcome of each pack.

    setups        one setup for each pack, whose model is open in the engine
    workers       workers that read the image, find its lungs and run classifiers
    engine        chooses for each pack the device that runs the classifier
    detail        minimum detail in which the image is read
    observe       function called with each prediction
    is_cancelled  function that returns whether the run was cancelled

    The image is read once for all packs (see `Workers.load_as_group`), and again in finer detail if a score is close to
    a threshold. If a person asked to turn the image, the image is read again for the packs that refused it.

    Every image gives an outcome: an unexpected error is logged and becomes `FailedOutcome`. Raises Cancelled, and
    EnvironmentProblem if no image at all can be read or screened any more.
    """

    def judge(turned: ImageRef, by: Sequence[PackSetup]) -> list[Outcome]:
        return _ImageScreening(turned, by, workers, engine, detail, observe, is_cancelled).outcomes()

    def upright(lying: Outcome, setup: PackSetup) -> Outcome:
        if not isinstance(lying, RefusedOutcome) or not setup.overrides.will_turn(lying.reason, lying.ref.correction):
            return lying
        if lying.lungs is None:
            raise ValueError("an image that is turned without its lungs")
        turn = Correction(lying.lungs.rotation_degrees, lying.lungs.is_inverted)
        (found,) = judge(replace(lying.ref, correction=turn), [setup])
        if len({lying.facts.content_sha256, found.facts.content_sha256} - {""}) > 1:
            return FailedOutcome(ref=found.ref, stage="decode", reason=reason("changed"), facts=lying.facts)
        return lying if isinstance(found, RefusedOutcome) else found

    return tuple(map(upright, judge(ref, setups), setups))


@dataclass(frozen=True, eq=False, slots=True)
class _ImageScreening:
    """The screening of one image by a worker for some packs.

    predictions  by position of the pack: the last prediction for the image, or the error of the device
    """

    ref: ImageRef
    setups: Sequence[PackSetup]
    workers: WorkerPool
    engine: Engine
    detail: ImageDetail
    observe: Callable[[Prediction], None]
    is_cancelled: Callable[[], bool]
    predictions: dict[int, Prediction | Exception] = field(default_factory=dict)

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each pack. Raises as `screen_with_packs`."""
        return [self._outcome(number, seen) for number, seen in enumerate(self._pack_results())]

    def _pack_results(self) -> Sequence[AnalysisResult]:
        """Return the worker's result for each pack.

        If an error prevents the analysis, the results contain the error's reason.
        """
        if self.ref.problem:
            problem = AnalysisResult(problem=self.ref.problem, is_refusal=self.ref.problem_is_refusal, stage="discover")
            return [problem] * len(self.setups)
        try:
            questions = [(self._question(one), one.model) for one in self.setups]
            return self.workers.analyse_for_models(
                questions, run_elsewhere=self._run_elsewhere, is_cancelled=self.is_cancelled
            )
        except Exception as error:
            return [self._ended(error, AnalysisResult())] * len(self.setups)

    def _question(self, setup: PackSetup) -> AnalysisRequest:
        """Return the request to a worker, with the device on which the pack's classifier runs.

        Waits until the engine has a device for the pack. Raises Cancelled, BackendProblem.
        """
        name = self.engine.next_device(setup.model, is_cancelled=self.is_cancelled)
        return AnalysisRequest(
            ref=self.ref,
            rules=setup.model.manifest.accepted,
            operating_points=setup.points,
            overrides=setup.overrides,
            detail=self.detail,
            classifier_location="here" if name == CPU.name else "elsewhere",
        )

    def _run_elsewhere(self, number: int, values: NDArray[np.uint8]) -> DeviceRunResult:
        """Run a pack's classifier on a device, as requested by a worker. Returns scores and features for the worker.

        number  position of the pack
        values  (1, height, width, channels) uint8, the input of the network

        Raises BackendProblem if the device failed.
        """
        model = self.setups[number].model
        try:
            prediction = self.engine.run(values, model=model, is_cancelled=self.is_cancelled)
        except Exception as error:  # stored, because the worker only learns that the device failed
            self.predictions[number] = error
            raise BackendProblem(reason_of_unexpected_error(error)) from error
        if prediction is None:
            return DeviceRunResult()
        self._note(number, prediction)
        return DeviceRunResult(scores=prediction.scores, features=prediction.features)

    def _note(self, number: int, prediction: Prediction) -> None:
        self.predictions[number] = prediction
        self.observe(prediction)

    def _outcome(self, number: int, seen: AnalysisResult) -> Outcome:
        setup = self.setups[number]
        try:
            if seen.network_output:
                backend, sequence = CPU.name, seen.classifier_run_count
                answered = prediction_of(
                    seen.network_output, setup.model, backend=backend, image_number_on_backend=sequence
                )
                self._note(number, answered)
            if not seen.problem and isinstance(found := self.predictions.get(number), Exception):
                raise found
            return self._judged(setup, seen, self.predictions.get(number))
        except Exception as error:
            return self._judged(setup, self._ended(error, seen), None)

    def _ended(self, error: Exception, seen: AnalysisResult) -> AnalysisResult:
        """Return the worker's result for an image with the reason of an error. Raises errors that end the whole run.

        error  the error during the analysis or the prediction
        seen   the worker's result so far
        """
        if isinstance(error, Cancelled):
            raise error
        if self.is_cancelled() and (isinstance(error, WorkerProblem) or not isinstance(error, FieldrayError)):
            raise Cancelled from error  # the cancellation caused the error
        if isinstance(error, WorkerProblem):
            raise error
        if isinstance(error, BackendProblem):
            self._require_backend(error)
            seen = replace(seen, stage="inference")  # also for a worker that was lost during inference
        elif not isinstance(error, FieldrayError):
            if problem := resource_problem(error):
                raise problem from error
            log.error("image failed at stage %s", seen.stage, exc_info=error)
        why = error.reason if isinstance(error, FieldrayError) else reason("internal", detail=type(error).__name__)
        return replace(seen, problem=why, is_refusal=isinstance(error, UnsuitableImage))

    def _require_backend(self, error: BackendProblem) -> None:
        """Raise BackendProblem if no device can run one of the packs any more, or if no lungs can be found any more.

        error  the error that a single image caused
        """
        if error.reason.code == "lungs_unavailable":
            raise error
        for setup in self.setups:
            if why := self.engine.unavailable_reason(setup.model):
                raise BackendProblem(why) from error

    def _judged(self, setup: PackSetup, seen: AnalysisResult, prediction: Prediction | Exception | None) -> Outcome:
        ref = self.ref
        if seen.header is not None:  # header of the bytes read, which may be newer
            ref = replace(ref, kind=seen.kind, header=seen.header)
        if seen.problem and seen.is_refusal:
            return RefusedOutcome(ref=ref, reason=seen.problem, facts=seen.facts, lungs=seen.lungs)
        if seen.problem:
            return FailedOutcome(ref=ref, stage=seen.stage, reason=seen.problem, facts=seen.facts)
        if not isinstance(prediction, Prediction):
            raise ValueError("an image whose classifier was not run")
        return _outcome_of(ref, setup, seen, prediction)


def _outcome_of(ref: ImageRef, setup: PackSetup, seen: AnalysisResult, prediction: Prediction) -> Outcome:
    """Return the outcome of an image from the worker's result and the prediction.

    An image that fails the out-of-distribution check is refused. If lungs were found, the image is a chest X-ray, and
    gets a score with a note instead.
    """
    facts, lungs, overruled, manifest = seen.facts, seen.lungs, seen.overruled_reasons, setup.model.manifest
    gate = manifest.ood_gate
    extra: dict[str, float] = {}
    of_header = header_notes(ref.header, manifest.accepted, ages_confirmed=setup.ages_confirmed)
    of_header += tuple(reason(code) for code in facts.notes if code in NOTE_TEMPLATES)
    notes = lungs.notes if lungs and not lungs.refusal else ()
    if manifest.is_bare:
        notes += (reason("unsigned_operating_point_unknown"),)
    if gate and prediction.features is not None:
        extra["gate_distance"] = gate.distance(prediction.features)
        if not extra["gate_distance"] <= gate.limit:  # also true for a distance that is not a number
            why = reason("unlike_training")
            if lungs is None:
                if not setup.overrides.will_overrule(why, ref.correction):
                    return RefusedOutcome(ref=ref, reason=why, facts=facts, lungs=None)
                overruled = tuple(dict.fromkeys((*overruled, why)))
            notes += (reason("unlike_measured"),) if lungs else ()
    findings = setup.findings(prediction.scores)
    if not (manifest.is_bare or NOTE_CODES_EXCLUDING_NORMAL.isdisjoint(facts.notes)):
        findings = replace_below_by_unsure(findings)
    screened = ScreenedOutcome(
        ref=ref,
        facts=facts,
        findings=findings,
        class_maps=prediction.class_maps,
        pack_name=prediction.pack_name,
        model_sha256=setup.model.model_sha256,
        backend=prediction.backend,
        inference_ms=prediction.latency_ms,
        extra_figures=extra,
        lungs=lungs,
        notes=(*of_header, *_override_notes(ref.correction, overruled), *notes),
    )
    return _with_evidence(screened, setup.model, lungs) if lungs and not lungs.refusal else screened


def _override_notes(turn: Correction, overruled: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return the notes on an image that a person asked to turn, or to screen in spite of a refusal.

    overruled  reasons for which the image would have been refused
    """
    return (
        *((reason(_TURNED[turn.rotation_degrees]),) if turn.rotation_degrees else ()),
        *((reason("grey_swapped_back"),) if turn.inverts_grey else ()),
        *((reason("screened_anyway"), *overruled) if overruled else ()),
    )


def _with_evidence(screened: ScreenedOutcome, model: Model, lungs: LungFields) -> ScreenedOutcome:
    """Return an outcome with the share of its heat map that lies inside the lungs (0..1).

    A share below the pack's limit adds a note.
    """
    shown, facts = heat_map.shown_heat_map(screened, model.manifest), screened.facts
    if shown is None:
        return screened
    share = evidence_inside(shown.evidence, shown.cells_to_image, lungs, rows=facts.rows, columns=facts.columns)
    notes, limit = screened.notes, min_evidence_inside(model.manifest)
    if lungs.read_first_reason:
        limit = None  # if not all lungs were found, evidence outside means nothing
    if share is not None and limit is not None and share < limit and shown.finding.decision != "below":
        notes += (reason("evidence_outside", percent=round(100 * share)),)
    return replace(screened, lungs=replace(lungs, evidence_inside=share), notes=notes)
