"""The engine: images in, predictions out, whatever happens to the backends.

Every image belongs to the model that was open when it was submitted. When another model is opened, queued images still
run on theirs, whose backends then end; new images wait for the new model.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from fieldray.domain.model import BackendName, DeviceChoice, Model, Policy, Prediction, Request
from fieldray.domain.run import Publish
from fieldray.errors import BackendProblem
from fieldray.inference.backend import BackendKind, Watch
from fieldray.inference.backend_runner import BackendRunner, Scheduler
from fieldray.reasons import Reason, reason

_CLOSE_GRACE_S: Final = 2.0
_ABORT_INTERVAL_S: Final = 0.2


class Engine(contextlib.AbstractContextManager["Engine"]):
    """Thread-safe; not to be closed from within `publish` or a future's callback.

    publish  receives `BackendChanged` of the model that is open, from the engine's threads, one at a time
    device   "auto" for all kinds, else only the one of this name
    kinds    the devices there are, preferred ones first
    policy   which of the backends that are ready run images; see `domain.model.Policy`
    passed   is given a model whose self-test passed on a backend, from that backend's thread and before it runs an
             image; a FieldrayError that it raises keeps the backend from running any
    """

    def __init__(
        self,
        publish: Publish,
        *,
        device: DeviceChoice = "auto",
        kinds: Sequence[BackendKind],
        policy: Policy = "accelerator",
        passed: Callable[[Model], None] = lambda _: None,
    ) -> None:
        self._kinds = tuple(kinds)
        self._chosen = self._names(device)
        self._policy = policy
        self._publish = publish
        self._watches: dict[BackendName, Watch] = {}
        self._passed = passed
        self._lock = threading.Lock()
        self._publishing = threading.RLock()
        self._current: _Deployment | None = None
        self._retiring: list[_Deployment] = []
        self._is_closed = False

    def open(self, model: Model) -> None:
        """Make `model` the one that images submitted from now on belong to; does not wait for its backends.

        Opening the model that is open changes nothing. Raises BackendProblem once the engine is closed.
        """
        with self._lock:
            if self._is_closed:
                raise BackendProblem(reason("engine_closed"))
            if self._current and self._current.model is model:
                return
            self._retiring = [deployment for deployment in self._retiring if not deployment.is_over]
            if self._current:
                self._current.scheduler.finish()
                self._retiring.append(self._current)
            scheduler = Scheduler([kind.name for kind in self._kinds], self._publish, publishing=self._publishing)
            scheduler.choose(self._chosen, self._policy)
            try:
                paired = zip(self._kinds, scheduler.statuses, strict=True)
                runners = [BackendRunner(kind, one, scheduler, model, passed=self._passed) for kind, one in paired]
                self._current = _Deployment(model, scheduler, runners)
            except BaseException:  # a thread could not be started: those that were must not wait for ever
                scheduler.close()
                raise
            self._watch_devices()

    def serving(self, *, timeout_s: float) -> BackendName | None:
        """The backend that the next image is for; None where none is ready within `timeout_s`.

        Raises BackendProblem when no image of the open model will ever be run again.
        """
        return self._deployment().scheduler.serving(timeout_s)

    def submit(self, request: Request) -> Future[Prediction]:
        """Queue an image; at once, whatever the backends do.

        Raises BackendProblem (again_other_pack) where its model is not the open one, ValueError if it does not fit the
        model's input. The future raises BackendProblem when no backend is left, when the engine is closed first, or
        when this image ended backend after backend.
        """
        with self._lock:
            deployment = self._deployment()
            if request.model not in (None, deployment.model):
                raise BackendProblem(reason("again_other_pack", pack=request.model.pack_name))
            spec = deployment.model.manifest.input
            shape = (1, spec.height, spec.width, spec.channels)
            if request.values.shape != shape or request.values.dtype.name != "uint8":
                raise ValueError(f"an image must be {shape} uint8, not {request.values.shape} {request.values.dtype}")
            return deployment.scheduler.submit(request)

    def reconsider(self, name: BackendName) -> None:
        """Try a backend again that was given up, off the critical path; does not wait."""
        self._deployment().scheduler.reconsider(name)

    def lost(self, name: BackendName, why: Reason) -> None:
        """A device is disconnected: end its backend now, in case it has not noticed; does not wait."""
        for deployment in self._deployments():
            deployment.scheduler.lose(name, why)
            for runner in deployment.runners:
                if runner.name == name:
                    runner.abort()

    def choose(self, device: DeviceChoice, policy: Policy) -> None:
        """Use other devices from now on, in the middle of a run too: no image is lost. Raises BackendProblem."""
        with self._lock:
            self._chosen, self._policy = self._names(device), policy
            if self._current:
                self._current.scheduler.choose(self._chosen, policy)
                self._watch_devices()

    @property
    def unavailable_reason(self) -> Reason | None:
        """Why no image of the open model will ever be run again, None while there is hope."""
        return self._deployment().scheduler.unavailable_reason()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that run models now."""
        return tuple(pid for deployment in self._deployments() for runner in deployment.runners if (pid := runner.pid))

    def close(self) -> None:
        """End everything; queued images fail. No thread or process is left."""
        with self._lock:
            self._is_closed = True
            deployments = self._deployments()
        for watch in self._watches.values():
            watch.close()
        for deployment in deployments:
            deployment.scheduler.close()
        for deployment in deployments:
            deployment.end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _names(self, device: DeviceChoice) -> frozenset[BackendName]:
        names = frozenset(kind.name for kind in self._kinds if device in ("auto", kind.name))
        if not names:
            raise BackendProblem(reason("no_device", name=device))
        return names

    def _watch_devices(self) -> None:
        """Watch for the devices that come and go, each from the moment it is wanted."""
        for kind in self._kinds:
            if kind.watch and kind.name in self._chosen and kind.name not in self._watches:
                watch = kind.watch(partial(self.reconsider, kind.name), partial(self.lost, kind.name))
                self._watches[kind.name] = watch
                watch.start()

    def _deployments(self) -> list[_Deployment]:
        return [*self._retiring, *([self._current] if self._current else [])]

    def _deployment(self) -> _Deployment:
        if self._current is None:
            raise ValueError("no model is open")
        return self._current


@dataclass(frozen=True, eq=False, slots=True)
class _Deployment:
    """One model, its scheduler and its runners."""

    model: Model
    scheduler: Scheduler
    runners: Sequence[BackendRunner]

    @property
    def is_over(self) -> bool:
        return all(runner.join(0) for runner in self.runners)

    def end(self) -> None:
        """After `scheduler.close`: wait for the runners, then end what does not end by itself."""
        for runner in self.runners:
            if not runner.join(_CLOSE_GRACE_S):
                while not runner.join(_ABORT_INTERVAL_S):
                    runner.abort()
