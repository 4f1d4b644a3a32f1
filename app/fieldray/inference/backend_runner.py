"""One backend and the thread that owns it: start, self-test, images, restart.

A new backend gets ready in its own runner while another one keeps draining the queue, so nothing waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from fieldray.domain.model import BackendName, InputSpec, Model, Prediction
from fieldray.errors import BackendProblem, FieldrayError, shortage
from fieldray.inference.backend import Answer, Backend, BackendKind, check_golden
from fieldray.inference.scheduler import BackendStatus, InferenceJob, Scheduler
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

_STABLE_S: Final = 10.0  # a backend that lived this long has earned all its restarts again
_BACK_OFF: Final = 4.0
_TIMED_RUNS: Final = 2


class BackendRunner:
    """Serves a scheduler's queue with one kind of backend until the scheduler has ended."""

    def __init__(
        self,
        kind: BackendKind,
        status: BackendStatus,
        scheduler: Scheduler,
        model: Model,
        *,
        passed: Callable[[Model], None],
    ) -> None:
        self._kind = kind
        self._status = status
        self._scheduler = scheduler
        self._model = model
        self._passed = passed
        self._backend: Backend | None = None
        self._job: InferenceJob | None = None
        self._failures = 0
        self._chances = 0
        self._ready_since_s: float | None = None
        self._sequence = 0
        self._thread = threading.Thread(target=self._serve, name=f"runner-{kind.name}", daemon=True)
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
        """End the backend at once; its images go back to the scheduler."""
        backend = self._backend
        if backend:
            backend.abort()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        delay_s = 0.0
        while self._scheduler.pause(self._status, delay_s):
            self._chances = self._status.chances
            try:
                self._start()
                self._run_images()
            except FieldrayError as problem:
                delay_s = self._lose(problem.reason)
            except Exception as error:
                log.exception("a backend failed unexpectedly")
                refused = shortage(error)
                why = refused.reason if refused else reason("internal", detail=f"{type(error).__name__}: {error}")
                delay_s = self._lose(why)
            finally:
                self._end_backend()
        self._scheduler.enter(self._status, "stopped")

    def _start(self) -> None:
        unavailable_reason = self._kind.unavailable_reason(self._model)
        if unavailable_reason:
            raise BackendProblem(unavailable_reason)
        self._scheduler.enter(self._status, "starting")
        self._backend = self._kind.open()
        self._backend.start(self._model)
        if self._model.golden and not self._kind.tests_itself:
            check_golden(self._backend.run, self._model.golden)
        image_s = _time_image(self._backend, self._model.manifest.input)
        self._passed(self._model)
        self._sequence = 0
        self._ready_since_s = time.monotonic()
        self._scheduler.enter(self._status, "ready", detail=self._backend.detail, image_s=image_s)

    def _run_images(self) -> None:
        backend = self._backend
        assert backend
        while not self._scheduler.is_over:
            self._job = job = self._scheduler.take(self._status)
            if job:
                self._deliver(job, backend.run(job.request.values[0]))
            elif not self._scheduler.is_over and (self._status.unavailable_reason or not backend.is_alive):
                raise BackendProblem(reason("worker_died"))

    def _deliver(self, job: InferenceJob, answer: Answer) -> None:
        prediction = self._prediction(job, answer)
        self._job = None
        self._failures = 0
        job.future.set_result(prediction)
        self._scheduler.done()

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
            mask=answer.mask,
            latency_ms=answer.latency_ms,
            sequence=self._sequence,
        )

    def _lose(self, why: Reason) -> float:
        """Return the images to the queue; how long to wait before the next start, in seconds."""
        unavailable_reason = self._status.unavailable_reason
        why = unavailable_reason or why
        log.info("backend %s is unavailable: %s", self._kind.name, why.text)
        if unavailable_reason or (
            self._ready_since_s is not None and time.monotonic() - self._ready_since_s > _STABLE_S
        ):
            self._failures = 0
        was_ready, self._ready_since_s = self._ready_since_s is not None, None
        # What ended a worker is an image, and one bad image after another must not end the run.
        self._failures += 0 if unavailable_reason or (was_ready and self._kind.tests_itself) else 1
        delay_s = self._kind.restart_delay_s * _BACK_OFF ** max(0, self._failures - 1)
        is_hopeless = self._kind.is_permanent(why) or self._failures > self._kind.restarts
        if is_hopeless:
            self._failures, delay_s = 0, 0.0
        is_absent = why.code in self._kind.absent
        self._scheduler.leave(
            self._status,
            why,
            job=self._job,
            is_hopeless=is_hopeless,
            chances=self._chances,
            is_absent=is_absent,
        )
        self._job = None
        return delay_s

    def _end_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend:
            backend.close()


def _time_image(backend: Backend, spec: InputSpec) -> float:
    """Seconds an image takes; the best of a few, so that it is its own."""
    image = np.zeros((spec.height, spec.width, spec.channels), np.uint8)
    times_s = []
    for _ in range(_TIMED_RUNS):
        began_s = time.perf_counter()
        backend.run(image)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
