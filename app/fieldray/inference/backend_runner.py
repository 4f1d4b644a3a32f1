"""What the backends of one model share, and the thread that owns each of them: start, self-test, images, restart.

Every image is either in the queue or with the one runner that runs it. A runner whose backend died puts its images
back at the head of the queue, and the backend then in use runs them. A new backend gets ready in its own runner while
another one keeps draining the queue, so nothing waits for it. All states change under one lock; events are published
and futures settled after it is released, so that no foreign code runs inside it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fieldray.domain.model import BackendName, InputSpec, Model, Policy, Prediction, Request
from fieldray.domain.run import BackendChanged, BackendState, Publish
from fieldray.errors import BackendProblem, FieldrayError, shortage
from fieldray.inference.backend import Answer, Backend, BackendKind, check_golden, prediction_of
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

TRIES_PER_IMAGE: Final = 3
_IDLE_CHECK_S: Final = 0.1  # an idle process that died has to be noticed before it is needed
_STABLE_S: Final = 10.0  # a backend that lived this long has earned all its restarts again
_BACK_OFF: Final = 4.0
_TIMED_RUNS: Final = 2


@dataclass(eq=False, slots=True)
class InferenceJob:
    """An image that waits for its answer.

    tries  how often the last resort died while it ran this image; another backend may have been unplugged
    """

    request: Request
    future: Future[Prediction] = field(default_factory=Future)
    tries: int = 0
    has_begun: bool = False

    def begin(self) -> bool:
        """Whether it is still wanted; from now on it cannot be cancelled."""
        self.has_begun = self.has_begun or self.future.set_running_or_notify_cancel()
        return self.has_begun


@dataclass(eq=False, slots=True)
class BackendStatus:
    """What is known of one backend.

    image_s      seconds per image, known once it is ready
    is_hopeless  it failed too often; it is not started again unless asked for
    absent       why its device is not connected, None if it may be
    is_chosen    whether the person wants it used
    """

    name: BackendName
    state: BackendState = "stopped"
    detail: str = ""
    reason: Reason | None = None
    image_s: float = 0.0
    is_hopeless: bool = False
    chances: int = 0  # how often it was to be tried again whatever was known of it
    absent: Reason | None = None
    is_chosen: bool = True
    announced: BackendChanged | None = None

    @property
    def unavailable_reason(self) -> Reason | None:
        """Why it must not run now, whatever its state."""
        return self.absent if self.is_chosen else reason("device_not_chosen")

    @property
    def is_out(self) -> bool:
        """Whether it will not run an image again by itself."""
        return self.is_hopeless or self.unavailable_reason is not None


class Scheduler:
    """The queue, the state each backend is in, and who drains the queue now.

    names       in order of preference, the last resort last; `policy` says which of them serve
    publishing  held while `publish` runs, so that its listener receives one event at a time; shared by all schedulers
    """

    def __init__(self, names: Sequence[BackendName], publish: Publish, *, publishing: threading.RLock) -> None:
        self._policy: Policy = "accelerator"
        self.statuses: Final = tuple(BackendStatus(name) for name in names)
        self._publish: Publish | None = publish
        self._publishing = publishing
        lock = threading.RLock()
        self._condition = threading.Condition(lock)  # a state has changed
        self._arrival = threading.Condition(lock)  # that, or an image has come: for those who run images
        self._events: deque[BackendChanged] = deque()
        self._jobs: deque[InferenceJob] = deque()
        self._running = 0
        self._is_finishing = False
        self._is_closed = False

    # ---- for the engine

    def submit(self, request: Request) -> Future[Prediction]:
        """Queue an image. Its future raises BackendProblem if no backend can run it."""
        job = InferenceJob(request)
        with self._condition:
            why = self.unavailable_reason()
            if not why:
                self._jobs.append(job)
                self._arrival.notify_all()
        if why:
            job.future.set_exception(BackendProblem(why))
        return job.future

    def serving(self, timeout_s: float) -> BackendName | None:
        """The backend that the next image is for; None where none is ready in time. Raises BackendProblem.

        Where several drain the queue, it is the last resort once images wait for the others.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._serving() or self.unavailable_reason(), timeout_s)
            if why := self.unavailable_reason():
                raise BackendProblem(why)
            serving = self._serving()
            return serving[-1 if self._jobs else 0].name if serving else None

    def unavailable_reason(self) -> Reason | None:
        """Why no backend will ever run an image again, the last resort's own reason; or None."""
        with self._condition:
            if self._is_closed:
                return reason("engine_closed")
            if not all(status.is_out for status in self.statuses):
                return None
            last_resort = self._chosen()[-1]
            return last_resort.unavailable_reason or last_resort.reason

    def reconsider(self, name: BackendName) -> None:
        """Let a backend that was given up or whose device was absent be started again."""
        with self._changing():
            for status in self.statuses:
                if status.name == name:
                    status.is_hopeless, status.absent = False, None
                    status.chances += 1

    def lose(self, name: BackendName, why: Reason) -> None:
        """A backend's device is gone."""
        with self._changing():
            for status in self.statuses:
                if status.name == name:
                    status.absent = why

    def choose(self, names: Collection[BackendName], policy: Policy) -> None:
        """Use only these backends, by this policy; one that was given up is tried again."""
        with self._changing():
            self._policy = policy
            for status in self.statuses:
                status.is_chosen, status.is_hopeless = status.name in names, False
                status.chances += 1

    def finish(self) -> None:
        """Take no more images, run those queued, then end; from now on publish nothing about backends."""
        with self._condition:
            self._is_finishing = True
            self._publish = None
            self._wake_all()

    def close(self) -> None:
        """End now: queued images fail."""
        with self._changing() as doomed:
            self._is_closed = True
            doomed.extend((job, reason("engine_closed")) for job in self._jobs)
            self._jobs.clear()

    # ---- for the runners

    @property
    def is_over(self) -> bool:
        """Whether no image will come any more."""
        with self._condition:
            return self._is_closed or (self._is_finishing and not self._jobs and not self._running)

    def take(self, status: BackendStatus) -> InferenceJob | None:
        """Wait for an image to run; None after a moment without any, or if it must not run."""
        until_s = time.monotonic() + _IDLE_CHECK_S
        with self._condition:
            while not self.is_over and not status.unavailable_reason:
                if self._jobs and status in self._serving():
                    job = self._jobs.popleft()
                    if job.begin():
                        self._running += 1
                        return job
                    self._wake_all()
                elif not self._arrival.wait(until_s - time.monotonic()) or time.monotonic() > until_s:
                    break  # woken again and again for others' images, it must check its own process too
        return None

    def done(self) -> None:
        """An image that was taken has its answer."""
        with self._condition:
            self._running -= 1
            if self._is_finishing:
                self._wake_all()

    def enter(self, status: BackendStatus, state: BackendState, *, detail: str = "", image_s: float = 0.0) -> None:
        """The backend is in a new state, and all is well with it."""
        with self._changing():
            status.state, status.detail, status.reason, status.image_s = state, detail, None, image_s

    def leave(
        self,
        status: BackendStatus,
        why: Reason,
        *,
        job: InferenceJob | None,
        is_hopeless: bool,
        chances: int,
        is_absent: bool = False,
    ) -> None:
        """The backend is unavailable, and the image that it had was not run.

        That a device was never connected (`is_absent`) is not worth reporting: its backend is just stopped. A device
        that came since the start, when `chances` were counted, is tried again: that it was not there is no longer so.
        """
        with self._changing() as doomed:
            status.state = "stopped" if is_absent else "unavailable"
            status.detail, status.reason = "", why
            status.is_hopeless = is_hopeless and status.chances == chances
            if job:
                self._running -= 1
                job.tries += status is self._chosen()[-1]
                if self._is_closed or job.tries >= TRIES_PER_IMAGE:
                    doomed.append((job, why))
                else:
                    self._jobs.appendleft(job)
            lasting = self.unavailable_reason()
            if lasting:
                doomed.extend((job, lasting) for job in self._jobs)
                self._jobs.clear()

    def pause(self, status: BackendStatus, delay_s: float) -> bool:
        """Wait before a start: for `delay_s`, and until it may run. False if there is no need any more."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, delay_s)
            self._condition.wait_for(lambda: self.is_over or not status.is_out)
            return not self.is_over

    # ---- inside, with the lock held

    def _wake_all(self) -> None:
        self._condition.notify_all()
        self._arrival.notify_all()

    def _serving(self) -> Sequence[BackendStatus]:
        """Who may take images now."""
        ready = [status for status in self.statuses if status.state == "ready" and not status.unavailable_reason]
        if self._is_closed:
            return []
        if self._policy == "both":
            return ready
        if self._policy == "fastest":
            return sorted(ready, key=lambda status: status.image_s)[:1]
        return ready[:1]

    def _chosen(self) -> Sequence[BackendStatus]:
        return [status for status in self.statuses if status.is_chosen] or self.statuses

    def _note_events(self) -> None:
        for status in self.statuses:
            if self._is_closed and status.state != "stopped":
                continue  # it is about to stop, and nothing else matters
            event = BackendChanged(
                backend=status.name,
                state=status.state,
                in_use=status in self._serving(),
                detail=status.detail,
                reason=status.reason,
            )
            if event != status.announced and (status.announced or status.state != "stopped"):
                status.announced = event
                self._events.append(event)

    # ---- after the lock

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[tuple[InferenceJob, Reason]]]:
        doomed: list[tuple[InferenceJob, Reason]] = []
        with self._condition:
            yield doomed
            self._note_events()
            self._wake_all()
        for job, why in doomed:
            if job.begin():
                job.future.set_exception(BackendProblem(why))
        self._send_events()

    def _send_events(self) -> None:
        with self._publishing:  # one after another, in the order in which the states changed
            while self._events:
                event, publish = self._events.popleft(), self._publish
                if publish is None:
                    continue
                try:
                    publish(event)
                except Exception:
                    log.exception("a listener failed; the run continues")


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
                backend, self._backend = self._backend, None
                if backend:
                    backend.close()
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
        self._sequence += 1
        run = {"sequence": self._sequence, "request_id": job.request.request_id}
        prediction = prediction_of(answer, self._model, backend=self._kind.name, **run)
        self._job = None
        self._failures = 0
        job.future.set_result(prediction)
        self._scheduler.done()

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
        self._scheduler.leave(
            self._status,
            why,
            job=self._job,
            is_hopeless=is_hopeless,
            chances=self._chances,
            is_absent=why.code in self._kind.absent,
        )
        self._job = None
        return delay_s


def _time_image(backend: Backend, spec: InputSpec) -> float:
    """Seconds an image takes; the best of a few, so that it is its own."""
    image = np.zeros((spec.height, spec.width, spec.channels), np.uint8)
    times_s = []
    for _ in range(_TIMED_RUNS):
        began_s = time.perf_counter()
        backend.run(image)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
