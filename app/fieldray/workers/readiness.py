"""The self-test of a model in the workers. The test must pass before the workers run the model on the first image."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from fieldray.domain.model import Model
from fieldray.errors import FieldrayError, reason_of_unexpected_error
from fieldray.inference.backend import PERMANENT_PROBLEM_CODES, BackendStatus, measure_image_time_s
from fieldray.reasons import Reason
from fieldray.workers.pool import WorkerPool

log = logging.getLogger(__name__)

_DELAYS_S: Final = (0.0, 0.05, 0.2, 0.8)  # waiting times before the first try and each repetition


class ModelReadiness:
    """Tests in a thread whether the workers can run one model, and stores the result. Thread-safe.

    changed  function called from that thread when a test has changed `status` or `is_inactive`
    passed   function called with the model when its test has passed, before `status` changes. If the function raises
             FieldrayError, the workers run no image
    """

    def __init__(
        self, workers: WorkerPool, model: Model, changed: Callable[[], None], passed: Callable[[Model], None]
    ) -> None:
        self._workers, self._model = workers, model
        self._changed, self._passed = changed, passed
        self._lock = threading.Lock()
        self._status = BackendStatus()
        self._is_inactive = True
        self._is_over = threading.Event()  # set when the result of the last test is no longer wanted
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> BackendStatus:
        """The state of the model: "stopped", "starting" (during a test), "ready" (test passed) or "unavailable"."""
        return self._status

    @property
    def is_inactive(self) -> bool:
        """Whether the workers run no image of the model until `start` is called.

        True if the model was not tested yet, was stopped, or failed permanently.
        """
        return self._is_inactive

    def start(self) -> None:
        """Start the test of the model in a thread, unless a test is running or has passed. Returns at once."""
        with self._lock:
            if not self._is_inactive:
                return
            is_over = threading.Event()
            thread = threading.Thread(target=self._test, args=(is_over, self._thread), name="readiness", daemon=True)
            thread.start()
            self._thread, self._is_over, self._is_inactive = thread, is_over, False

    def stop(self, why: Reason | None = None) -> None:
        """Make the workers run no further image with the model until `start` is called. Returns at once.

        why  a reason changes the state of a model that was started to "unavailable"; None changes it to "stopped"
        """
        with self._lock:
            self._is_over.set()
            self._is_inactive = True
            if why is None:
                self._status = BackendStatus()
            elif self._status.state != "stopped":
                self._status = BackendStatus(state="unavailable", reason=why)

    def close(self) -> None:
        """Abort a running test, even one that hangs in a worker. The workers run no further image with the model."""
        self.stop()
        self._workers.abort_cancelled_calls()
        if self._thread:
            self._thread.join()

    def _test(self, is_over: threading.Event, former: threading.Thread | None) -> None:
        if former:
            former.join()
        for delay_s in _DELAYS_S:
            if is_over.wait(delay_s):
                return
            self._enter(is_over, BackendStatus(state="starting"))
            try:
                run = partial(self._workers.run, model=self._model, is_cancelled=is_over.is_set)
                image_s = measure_image_time_s(run, self._model.manifest.input)
                if is_over.is_set():
                    return
                self._passed(self._model)
            except FieldrayError as problem:
                why = problem.reason
            except Exception as error:
                log.exception("a test of the workers failed unexpectedly")
                why = reason_of_unexpected_error(error)
            else:
                self._enter(is_over, BackendStatus(state="ready", detail=self._workers.detail, image_time_s=image_s))
                return
            is_inactive = why.code in PERMANENT_PROBLEM_CODES or delay_s == _DELAYS_S[-1]
            self._enter(is_over, BackendStatus(state="unavailable", reason=why), is_inactive=is_inactive)
            if is_inactive:
                return

    def _enter(self, is_over: threading.Event, status: BackendStatus, *, is_inactive: bool = False) -> None:
        with self._lock:
            if is_over.is_set():
                return
            self._status, self._is_inactive = status, is_inactive
        if status.reason:
            log.info("the CPU is unavailable: %s", status.reason.text)
        self._changed()
