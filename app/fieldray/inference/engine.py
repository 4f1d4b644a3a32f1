"""The engine, which chooses the device for each image and handles the failure of a device.

A device that can be plugged in has a runner: a thread that starts and tests a process, and runs inputs in the process
one by one. The device runs only the first of the open models. The CPU runs each open model, in the worker processes
that screen whole images. The engine only queries the workers' readiness (`CpuControl`). If a device fails, the worker
process of the image runs the input. A device starts while other devices run images, so no image waits.

When another model is opened, inputs that still wait for a device fail. All states of the runners change under one lock.
Events are published and inputs answered after the lock is released, so that no code of a caller runs under the lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import CPU
from fieldray.domain.model import BackendName, DeviceChoice, DevicePolicy, Model, Prediction
from fieldray.domain.run import BackendChanged, BackendState, Publish
from fieldray.errors import BackendProblem, Cancelled, FieldrayError, reason_of_unexpected_error
from fieldray.inference.backend import (
    PERMANENT_PROBLEM_CODES,
    Backend,
    BackendKind,
    BackendStatus,
    DeviceWatcher,
    measure_image_time_s,
    prediction_of,
    run_self_test,
)
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

TRIES_PER_IMAGE: Final = 3
_RESTARTS: Final = 3  # maximum in a row; an image that ran, or `_STABLE_S` without a failure, ends the row
_RESTART_DELAY_S: Final = 0.05
_BACK_OFF: Final = 4.0  # factor by which the delay grows before each further restart
_STABLE_S: Final = 10.0  # a device that ran this long may be restarted `_RESTARTS` times again
_IDLE_CHECK_S: Final = 0.1  # the end of an idle process is noticed before the process is needed
_WAIT_S: Final = 0.2
_CLOSE_GRACE_S: Final = 2.0
_ABORT_INTERVAL_S: Final = 0.2


class CpuControl(Protocol):
    """The interface by which the engine makes a model ready to run on the CPU (implemented by
    `workers.readiness.ModelReadiness`).
    """

    @property
    def status(self) -> BackendStatus: ...
    @property
    def is_inactive(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self, why: Reason | None = None) -> None: ...
    def close(self) -> None: ...


OpenCpuControl = Callable[[Model, Callable[[], None], Callable[[Model], None]], CpuControl]


class _Input(NamedTuple):
    """An input for a device, (height, width, channels) uint8, and the future that receives the answer."""

    values: NDArray[np.uint8]
    answer: Future[Prediction]


class _InputReturned(Exception):
    """A device returned an input without an answer; `reason` is set if the input ended the device, else None."""

    def __init__(self, why: Reason | None) -> None:
        super().__init__(why)
        self.reason = why


@dataclass(eq=False, slots=True, kw_only=True)
class _Runner:
    """One device that runs one model: its state, and the thread that prepares the device and runs inputs on it.

    previous        the device's runner for the previous model, which must end first
    has_given_up    whether the device failed too often. It then starts again only on request
    forced_retries  number of requested restarts that ignore earlier failures
    absence_reason  the reason why the device is not connected; None if none is known
    is_chosen       whether the person wants the device to be used
    inputs          inputs that wait for the device; `input` is the input in progress
    """

    kind: BackendKind
    model: Model
    previous: _Runner | None
    thread: threading.Thread = field(default_factory=threading.Thread)
    status: BackendStatus = field(default_factory=BackendStatus)
    has_given_up: bool = False
    forced_retries: int = 0
    absence_reason: Reason | None = None
    is_chosen: bool = True
    has_ended: bool = False
    backend: Backend | None = None
    inputs: deque[_Input] = field(default_factory=deque)
    input: _Input | None = None
    failures: int = 0
    ready_since_s: float | None = None

    @property
    def name(self) -> BackendName:
        """The name of the device."""
        return self.kind.name

    @property
    def unavailable_reason(self) -> Reason | None:
        """The reason why the device must not run now, such as its removal; None if it may run."""
        return self.absence_reason if self.is_chosen else reason("device_not_chosen")

    @property
    def is_inactive(self) -> bool:
        """Whether the device is out of use: the device failed too often, or must not run now (`unavailable_reason`)."""
        return self.has_given_up or self.unavailable_reason is not None

    @property
    def is_ready(self) -> bool:
        """Whether the device may be given an input."""
        return self.status.state == "ready" and not self.has_ended and self.unavailable_reason is None

    def abort(self) -> None:
        """End the device's process at once. Inputs without an answer return to the engine."""
        if backend := self.backend:
            backend.abort()


class Engine(contextlib.AbstractContextManager["Engine"]):
    """Runs models on the devices. Thread-safe. Must not be closed from within `publish`.

    publish  receives `BackendChanged` of the open models, one call at a time, from any thread. For every model but the
             first, only the state of the CPU is published
    cpu      makes the `CpuControl` of a model. The arguments are the model, a function that the control calls when its
             state has changed, and `passed`
    device   "auto" for the CPU and all devices, else the name of the only device that runs the first model
    kinds    the devices other than the CPU; the preferred device comes first
    policy   which of the ready devices run images of the first model; see `domain.model.DevicePolicy`
    passed   called with a model whose self-test passed on a device or the CPU, from any thread, before its first
             image. If `passed` raises FieldrayError, this device or the CPU runs no image
    """

    def __init__(
        self,
        publish: Publish,
        *,
        cpu: OpenCpuControl,
        device: DeviceChoice = "auto",
        kinds: Sequence[BackendKind] = (),
        policy: DevicePolicy = "accelerator",
        passed: Callable[[Model], None] = lambda _: None,
    ) -> None:
        self._open_cpu = cpu
        self._kinds = tuple(kinds)
        self._chosen = self._names(device)
        self._policy = policy
        self._publish = publish
        self._passed = passed
        self._watches: dict[BackendName, DeviceWatcher] = {}
        self._changed = threading.Condition()
        self._publishing = threading.RLock()  # held while `publish` runs, so that it receives one event at a time
        self._events: deque[BackendChanged] = deque()
        self._announced: dict[_Runner | CpuControl, BackendChanged] = {}  # the last event of each runner and CPU
        self._model: Model | None = None  # the first open model, which devices run
        self._runners: tuple[_Runner, ...] = ()
        self._cpus: dict[Model, CpuControl] = {}  # by open model
        self._former: tuple[_Runner, ...] = ()
        self._is_closed = False

    def open(self, model: Model, *others: Model) -> None:
        """Use `model` and `others` for all images from now on. A model that is already open keeps its state.

        Devices run only the first model, because a device can load one network. The CPU runs each model. Returns at
        once. Raises BackendProblem if the engine is closed.
        """
        with self._changing():
            if self._is_closed:
                raise BackendProblem(reason("engine_closed"))
            models = (model, *others)
            if models == tuple(self._cpus):
                return
            try:
                self._retire(but=models)
                self._cpus = {one: self._cpus.get(one) or self._new_cpu(one) for one in models}
                if self._model is None:
                    self._model = model
                    self._runners = tuple(map(self._new_runner, self._kinds))
                    for runner in self._runners:
                        runner.thread.start()
                self._start_cpus()
            except BaseException:  # a thread could not be started; the started threads must not wait for ever
                self._retire()
                raise
            self._watch_devices()

    def next_device(self, model: Model, *, is_cancelled: Callable[[], bool] = lambda: False) -> BackendName:
        """Return the device for the next image, which may be the CPU. Waits until a device is ready.

        If images wait for each ready device, the last device is returned, such as the CPU. Raises BackendProblem for a
        model that is not open (again_other_pack) or can never run. Raises Cancelled if `is_cancelled` returns True.
        """
        runner = self._next_runner(model, is_cancelled)
        return runner.name if runner else CPU.name

    def run(
        self, values: NDArray[np.uint8], *, model: Model, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Prediction | None:
        """Run a model on an input (1, height, width, channels) uint8, on the device that the engine chooses. Blocks.

        Returns None if the engine chooses the CPU. The caller then lets the worker process that has the image run the
        input. The self-test of the CPU may not have ended yet.

        Raises the exceptions of `next_device`, BackendProblem if this input ended several processes, and ValueError for
        an input that does not fit the model.
        """
        spec = model.manifest.input
        shape = (1, spec.height, spec.width, spec.channels)
        if values.shape != shape or values.dtype.name != "uint8":
            raise ValueError(f"an image must be {shape} uint8, not {values.shape} {values.dtype}")
        tries = 0
        while True:
            asked = _Input(values[0], Future())
            with self._changed:
                runner = self._next_runner(model, is_cancelled, falls_back=True, spares_devices=tries > 0)
                if runner is None:
                    return None
                runner.inputs.append(asked)
                self._changed.notify_all()
            try:
                return _awaited(asked.answer, is_cancelled)
            except _InputReturned as lost:
                tries += lost.reason is not None
                if lost.reason and tries == TRIES_PER_IMAGE:
                    raise BackendProblem(lost.reason) from lost

    def retry_backend(self, name: BackendName) -> None:
        """Start a backend again: the CPU, or a device that had failed or was absent. Returns at once."""
        with self._changing():
            for runner in self._runners:
                if runner.name == name:
                    runner.has_given_up, runner.absence_reason = False, None
                    runner.forced_retries += 1
            if name == CPU.name:
                self._start_cpus()

    def end_removed_device(self, name: BackendName, why: Reason) -> None:
        """End the process of a device that was removed; `why` is the reason to report. Returns at once."""
        with self._changing():
            gone = [runner for runner in (*self._former, *self._runners) if runner.name == name]
            for runner in gone:
                runner.absence_reason = why
        for runner in gone:
            runner.abort()

    def choose_devices(self, device: DeviceChoice, policy: DevicePolicy) -> None:
        """Change the devices that run models from now on. No image of an active run is lost. Raises BackendProblem."""
        with self._changing():
            self._chosen, self._policy = self._names(device), policy
            for runner in self._runners:  # a chosen device that was given up is tried again
                runner.is_chosen, runner.has_given_up = runner.name in self._chosen, False
                runner.forced_retries += 1
            self._start_cpus()
            if self._model:
                self._watch_devices()

    def unavailable_reason(self, model: Model) -> Reason | None:
        """Return the reason why an open model can no longer run on any device; None while it runs or may run again."""
        with self._changed:
            if self._is_closed:
                return reason("engine_closed")
            cpu, runners = self._cpus.get(model), self._runners_of(model)
            if cpu is None or not cpu.is_inactive or not all(runner.is_inactive for runner in runners):
                return None
            if self._may_use_cpu(model):
                return cpu.status.reason
            last_resort = [runner for runner in runners if runner.is_chosen][-1]
            return last_resort.unavailable_reason or last_resort.status.reason

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the child processes that run the devices."""
        backends = [runner.backend for runner in (*self._former, *self._runners)]
        return tuple(backend.pid for backend in backends if backend and backend.pid)

    def close(self) -> None:
        """Stop all threads, processes and tests of the CPU. Waiting calls fail."""
        with self._changing():
            self._is_closed = True
            for runner in self._runners:
                runner.has_ended = True
            for cpu in self._cpus.values():
                cpu.stop()
        for watch in self._watches.values():
            watch.close()
        for cpu in self._cpus.values():
            cpu.close()
        for runner in (*self._former, *self._runners):
            self._wait_for_end(runner)

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the choice of the device for an image; every caller holds the lock

    def _next_runner(
        self,
        model: Model,
        is_cancelled: Callable[[], bool],
        *,
        falls_back: bool = False,
        spares_devices: bool = False,
    ) -> _Runner | None:
        """Wait for the runner of the next image and return the runner; None for the CPU (see `next_device`).

        falls_back      whether to return the CPU at once if no device is ready and the CPU may be used
        spares_devices  whether to return the CPU at once if the CPU may be used
        """
        with self._changed:
            while True:
                if is_cancelled():
                    raise Cancelled
                if why := self.unavailable_reason(model):
                    raise BackendProblem(why)
                if model not in self._cpus:
                    raise BackendProblem(reason("again_other_pack", pack=model.pack_name))
                serving = self._serving(model)
                if not self._cpus[model].is_inactive and (spares_devices or (falls_back and not serving)):
                    return None
                if serving:
                    return next((one for one in serving if one is None or not one.inputs), serving[-1])
                self._changed.wait(_WAIT_S)

    def _serving(self, model: Model) -> Sequence[_Runner | None]:
        """Return the runners that run images of an open model now; None stands for the CPU."""
        cpu = self._cpus[model].status
        ready: list[_Runner | None] = [runner for runner in self._runners_of(model) if runner.is_ready]
        if cpu.state == "ready":
            ready.append(None)
        if self._policy == "both":
            return ready
        if self._policy == "fastest":
            ready.sort(key=lambda runner: (runner.status if runner else cpu).image_time_s)
        return ready[:1]

    def _runners_of(self, model: Model) -> Sequence[_Runner]:
        """Return the runners of an open model; empty for every model but the first, because only the CPU runs these."""
        return self._runners if model is self._model else ()

    def _may_use_cpu(self, model: Model) -> bool:
        """Return whether the CPU may run images of an open model.

        A choice of devices applies only to the first model.
        """
        return CPU.name in self._chosen or model is not self._model

    def _names(self, device: DeviceChoice) -> frozenset[BackendName]:
        names = frozenset(name for name in (*(kind.name for kind in self._kinds), CPU.name) if device in ("auto", name))
        if not names:
            raise BackendProblem(reason("no_device", name=device))
        return names

    def _new_runner(self, kind: BackendKind) -> _Runner:
        assert self._model
        former = next((runner for runner in reversed(self._former) if runner.name == kind.name), None)
        runner = _Runner(kind=kind, model=self._model, previous=former, is_chosen=kind.name in self._chosen)
        runner.thread = threading.Thread(target=self._serve, args=(runner,), name=f"runner-{kind.name}", daemon=True)
        return runner

    def _new_cpu(self, model: Model) -> CpuControl:
        return self._open_cpu(model, self._note_change, self._passed)

    def _start_cpus(self) -> None:
        """Start or stop the CPU, as the choice of devices says. A CPU that failed too often is tried again."""
        for model, cpu in self._cpus.items():
            if self._is_closed:
                return
            if self._may_use_cpu(model):
                cpu.start()
            else:
                cpu.stop(reason("device_not_chosen"))

    def _watch_devices(self) -> None:
        """Start to watch for connection and removal of each device that a person wants to use."""
        for kind in self._kinds:
            if kind.watch and kind.name in self._chosen and kind.name not in self._watches:
                watch = kind.watch(partial(self.retry_backend, kind.name), partial(self.end_removed_device, kind.name))
                self._watches[kind.name] = watch
                watch.start()

    def _retire(self, *, but: Sequence[Model] = ()) -> None:
        """Stop the runners and the CPU of all models except `but`. A runner stops after its current input."""
        for model in [model for model in self._cpus if model not in but]:
            cpu = self._cpus.pop(model)
            cpu.stop()
            self._announced.pop(cpu, None)
        if self._model not in but[:1]:
            self._announced.clear()  # the CPU's event is sent again for the model that is now first
            for runner in self._runners:
                runner.has_ended = True
            self._former = tuple(runner for runner in (*self._former, *self._runners) if runner.thread.is_alive())
            self._model, self._runners = None, ()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the states for a `with` block. Then return inputs that cannot run, and publish the events."""
        returned = list[_Input]()
        try:
            with self._changed:
                try:
                    yield
                finally:  # also if a thread could not be started
                    for runner in (*self._former, *self._runners):
                        if not runner.is_ready:
                            returned += runner.inputs
                            runner.inputs.clear()
                    self._note_events()
                    self._changed.notify_all()
        finally:
            for one in returned:
                if one.answer.set_running_or_notify_cancel():
                    one.answer.set_exception(_InputReturned(None))
            self._send_events()

    def _note_change(self) -> None:
        """Publish a changed state of the CPU, and notify the waiting threads."""
        with self._changing():
            pass

    def _note_events(self) -> None:
        for model, cpu in self._cpus.items():
            serving = self._serving(model)
            for runner in self._runners_of(model):
                self._note_event(runner, runner.name, in_use=runner in serving)
            if model is self._model or cpu.status.state in ("ready", "unavailable"):
                self._note_event(cpu, CPU.name, in_use=None in serving)

    def _note_event(self, one: _Runner | CpuControl, name: BackendName, *, in_use: bool) -> None:
        status, before = one.status, self._announced.get(one)
        if self._is_closed and status.state != "stopped":
            return  # the engine is closing, and only the state "stopped" matters
        event = BackendChanged(
            backend=name, state=status.state, is_in_use=in_use, detail=status.detail, reason=status.reason
        )
        if event != before and (before or status.state != "stopped"):
            self._announced[one] = event
            self._events.append(event)

    def _send_events(self) -> None:
        with self._publishing:  # one event at a time, in the order in which the states changed
            while self._events:
                try:
                    self._publish(self._events.popleft())
                except Exception:
                    log.exception("a listener failed; the run continues")

    # ---- the thread of a runner

    def _serve(self, runner: _Runner) -> None:
        if former := runner.previous:
            self._wait_for_end(former)  # the former runner releases the device when it ends
            runner.previous = None
        delay_s = 0.0
        while self._pause(runner, delay_s):
            why, forced_retries = None, runner.forced_retries
            try:
                self._start(runner)
                self._run_inputs(runner)
            except FieldrayError as problem:
                why = problem.reason
            except Exception as error:
                log.exception("a device failed unexpectedly")
                why = reason_of_unexpected_error(error)
            backend, runner.backend = runner.backend, None
            if why:  # before `close`, so that other devices run the input at once
                delay_s = self._lose(runner, why, forced_retries=forced_retries)
            if backend:
                backend.close()
        self._enter(runner, BackendStatus())

    def _pause(self, runner: _Runner, delay_s: float) -> bool:
        """Wait `delay_s` seconds, and until the runner may start. Returns False if the runner is no longer needed."""
        with self._changed:
            self._changed.wait_for(lambda: runner.has_ended, delay_s)
            self._changed.wait_for(lambda: runner.has_ended or not runner.is_inactive)
            return not runner.has_ended

    def _start(self, runner: _Runner) -> None:
        """Start and test the runner's device.

        Raises FieldrayError. The start ends before the next slow step if the model was closed.
        """
        model, kind = runner.model, runner.kind
        if why := kind.unavailable_reason(model):
            raise BackendProblem(why)
        self._enter(runner, BackendStatus(state="starting"))
        _require_wanted(runner)
        runner.backend = backend = kind.open()
        _require_wanted(runner)
        backend.start(model)
        if model.golden:
            run_self_test(backend.run, model.golden)
        image_s = measure_image_time_s(backend.run, model.manifest.input)
        _require_wanted(runner)
        self._passed(model)
        runner.ready_since_s = time.monotonic()
        self._enter(runner, BackendStatus(state="ready", detail=backend.detail, image_time_s=image_s))

    def _run_inputs(self, runner: _Runner) -> None:
        for sequence in itertools.count(1):
            if (one := self._taken(runner)) is None:
                return
            assert runner.backend
            answer = runner.backend.run(one.values)
            prediction = prediction_of(answer, runner.model, backend=runner.name, image_number_on_backend=sequence)
            runner.input, runner.failures = None, 0
            one.answer.set_result(prediction)

    def _taken(self, runner: _Runner) -> _Input | None:
        """Wait for the next input; None if the model was closed. Raises BackendProblem for an unusable device."""
        with self._changed:
            while not runner.has_ended:
                if why := runner.unavailable_reason:
                    raise BackendProblem(why)
                while runner.inputs:
                    one = runner.inputs.popleft()
                    if one.answer.set_running_or_notify_cancel():
                        runner.input = one
                        return one
                if runner.backend and not runner.backend.is_alive:
                    raise BackendProblem(reason("worker_died"))
                self._changed.wait(_IDLE_CHECK_S)
        return None

    def _lose(self, runner: _Runner, why: Reason, *, forced_retries: int) -> float:
        """Return the runner's input to its caller. Returns the seconds to wait before the next start.

        forced_retries  the runner's `forced_retries` when the device started. If this number has changed, a restart was
                        requested meanwhile, and the device is tried again
        """
        kind, since_s, unavailable_reason = runner.kind, runner.ready_since_s, runner.unavailable_reason
        why = unavailable_reason or why
        log.info("%s is unavailable: %s", runner.name, why.text)
        if unavailable_reason or (since_s is not None and time.monotonic() - since_s > _STABLE_S):
            runner.failures = 0
        runner.failures += unavailable_reason is None
        delay_s = _RESTART_DELAY_S * _BACK_OFF ** max(0, runner.failures - 1)
        is_permanent = why.code in PERMANENT_PROBLEM_CODES or why.code in kind.permanent_problem_codes
        has_given_up = is_permanent or runner.failures > _RESTARTS
        if has_given_up:
            runner.failures, delay_s = 0, 0.0
        one, runner.input, runner.ready_since_s = runner.input, None, None
        with self._changing():
            state: BackendState = "stopped" if why.code in kind.absent_device_codes else "unavailable"
            runner.status = BackendStatus(state=state, reason=why)
            runner.has_given_up = has_given_up and runner.forced_retries == forced_retries
        if one:
            one.answer.set_exception(_InputReturned(why))
        return delay_s

    def _enter(self, runner: _Runner, status: BackendStatus) -> None:
        with self._changing():
            runner.status = status

    def _wait_for_end(self, runner: _Runner) -> None:
        """Wait for the end of a stopped runner; kill a process that does not end by itself."""
        if runner.status.state == "starting":
            runner.abort()
        runner.thread.join(_CLOSE_GRACE_S)
        while runner.thread.is_alive():
            runner.abort()
            runner.thread.join(_ABORT_INTERVAL_S)


def _require_wanted(runner: _Runner) -> None:
    if runner.has_ended:
        raise BackendProblem(reason("engine_closed"))


def _awaited(answer: Future[Prediction], is_cancelled: Callable[[], bool]) -> Prediction:
    """Wait for a device's answer until it is ready or cancelled. Raises Cancelled, and the exceptions of the future."""
    while True:
        try:
            return answer.result(_WAIT_S)
        except TimeoutError:
            if is_cancelled():
                answer.cancel()
                raise Cancelled from None
