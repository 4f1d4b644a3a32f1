"""One backend and the thread that owns it: start, self-test, images, restart.

A new backend gets ready in its own lane while another one goes on draining the queue: nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from fieldray.domain.model import Model
from fieldray.domain.prediction import BackendName, Prediction
from fieldray.errors import BackendProblem, FieldrayError, shortage
from fieldray.inference.backend import Answer, Backend, BackendKind
from fieldray.inference.scheduler import BackendStatus, InferenceJob, Scheduler
from fieldray.inference.self_test import check_golden, time_image
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

_STABLE_S: Final = 10.0  # a backend that lived this long has earned all its restarts again
_BACK_OFF: Final = 4.0


class BackendRunner:
    """Serves a board's queue with one kind of backend until the board is over."""

    def __init__(
        self,
        kind: BackendKind,
        slot: BackendStatus,
        board: Scheduler,
        model: Model,
        *,
        passed: Callable[[Model], None],
    ) -> None:
        self._kind = kind
        self._slot = slot
        self._board = board
        self._model = model
        self._passed = passed
        self._backend: Backend | None = None
        self._jobs: Sequence[InferenceJob] = ()
        self._failures = 0
        self._ready_since_s: float | None = None
        self._sequence = 0
        self._thread = threading.Thread(target=self._serve, name=f"lane-{kind.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> BackendName:
        """The backend's."""
        return self._kind.name

    @property
    def pid(self) -> int | None:
        """The process of its backend, None if there is none now."""
        backend = self._backend
        return backend.pid if backend else None

    def abort(self) -> None:
        """End the backend at once; its images go back to the board."""
        backend = self._backend
        if backend:
            backend.abort()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        delay_s = 0.0
        while self._board.pause(self._slot, delay_s):
            try:
                self._start()
                self._run_images()
            except FieldrayError as problem:
                delay_s = self._lose(problem.reason)
            except Exception as error:
                log.exception("a backend failed in a way nobody thought of")
                refused = shortage(error)
                why = refused.reason if refused else reason("internal", detail=f"{type(error).__name__}: {error}")
                delay_s = self._lose(why)
            finally:
                self._end_backend()
        self._board.enter(self._slot, "stopped")

    def _start(self) -> None:
        unavailable_reason = self._kind.unavailable_reason(self._model)
        if unavailable_reason:
            raise BackendProblem(unavailable_reason)
        self._board.enter(self._slot, "starting")
        self._backend = self._kind.open()
        self._backend.start(self._model)
        if self._model.golden:
            check_golden(self._backend, self._model.golden)
        image_s = time_image(self._backend, self._model.manifest.input)
        self._passed(self._model)
        self._sequence = 0
        self._ready_since_s = time.monotonic()
        self._board.enter(self._slot, "ready", detail=self._backend.detail, image_s=image_s)

    def _run_images(self) -> None:
        backend = self._backend
        assert backend
        while (jobs := self._board.take(self._slot, backend.capacity)) is not None:
            self._jobs = jobs
            if jobs:
                answers = backend.run([job.request.values[0] for job in jobs])
                self._deliver(jobs, answers)
            elif self._slot.unavailable_reason or not backend.is_alive:
                raise BackendProblem(reason("worker_died"))

    def _deliver(self, jobs: Sequence[InferenceJob], answers: Sequence[Answer]) -> None:
        predictions = [self._prediction(job, answer) for job, answer in zip(jobs, answers, strict=True)]
        self._jobs = ()
        self._failures = 0
        for job, prediction in zip(jobs, predictions, strict=True):
            job.future.set_result(prediction)
        self._board.done(jobs)

    def _prediction(self, job: InferenceJob, answer: Answer) -> Prediction:
        self._sequence += 1
        codes = (label.code for label in self._model.manifest.labels)
        return Prediction(
            request_id=job.request.request_id,
            pack_name=self._model.pack_name,
            model_sha256=self._model.model_sha256,
            backend=self._kind.name,
            scores=dict(zip(codes, map(float, answer.scores), strict=True)),
            class_maps=answer.class_maps,
            features=answer.features,
            latency_ms=answer.latency_ms,
            sequence=self._sequence,
        )

    def _lose(self, why: Reason) -> float:
        """Give the images back; returns how long to wait before the next start."""
        unavailable_reason = self._slot.unavailable_reason
        why = unavailable_reason or why
        log.info("backend %s is gone: %s", self._kind.name, why.text)
        if unavailable_reason or (
            self._ready_since_s is not None and time.monotonic() - self._ready_since_s > _STABLE_S
        ):
            self._failures = 0
        self._ready_since_s = None
        self._failures += 0 if unavailable_reason else 1
        delay_s = self._kind.restart_delay_s * _BACK_OFF ** max(0, self._failures - 1)
        is_hopeless = self._kind.is_permanent(why) or self._failures > self._kind.restarts
        if is_hopeless:
            self._failures, delay_s = 0, 0.0
        is_absent = why.code in self._kind.absent
        self._board.leave(self._slot, why, jobs=self._jobs, is_hopeless=is_hopeless, is_absent=is_absent)
        self._jobs = ()
        return delay_s

    def _end_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend:
            backend.close()
