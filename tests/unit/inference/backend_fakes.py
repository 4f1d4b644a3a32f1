"""Python backends without a network for tests of the engine; they act as their `Behaviour` states."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fieldray.backends import BackendEntry
from fieldray.domain.model import BackendName, Model
from fieldray.errors import BackendProblem
from fieldray.inference.backend import BackendKind, NetworkOutput, run_self_test
from fieldray.reasons import Reason, reason
from fieldray.workers.readiness import ModelReadiness
from tiny_models import SIDE, tiny_scores


@dataclass
class Behaviour:
    """The behaviour that all backends of one kind share, across restarts.

    dies      called with a run's images (mean grey levels, as numbers); a reason returned ends the backend
    may_start, may_run   events that a test can clear to hold a start or a run
    """

    dies: Callable[[list[int]], Reason | None] = lambda levels: None
    start_problem: Reason | None = None
    unavailable_reason: Reason | None = None
    is_alive: bool = True
    score_shift: float = 0.0
    may_start: threading.Event = field(default_factory=threading.Event)
    may_run: threading.Event = field(default_factory=threading.Event)
    is_running: threading.Event = field(default_factory=threading.Event)
    starts: int = 0
    closes: int = 0
    runs: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_start.set()
        self.may_run.set()

    def kind(self, name: BackendName = "edgetpu") -> BackendKind:
        """A device of its own kind, which runs the pack's CPU file."""
        return BackendKind(
            entry=BackendEntry(name=name, title=name, file_roles=("litert",), backend_kind_function_path=""),
            open=lambda: FakeBackend(self),
            probe=lambda model: self.unavailable_reason,
            absent_device_codes=frozenset({"edgetpu_not_here"}),
            permanent_problem_codes=frozenset({"edgetpu_not_here"}),
        )

    def cpu(self) -> Callable[..., ModelReadiness]:
        """A function that makes the state of workers with the same behaviour."""
        return partial(ModelReadiness, FakeWorkers(self))


class FakeBackend:
    """Computes the formula of the tiny network in Python."""

    def __init__(self, behaviour: Behaviour, *, labels: int = 1) -> None:
        self._behaviour = behaviour
        self._labels = labels
        self._aborted = threading.Event()
        self.is_aborted: Callable[[], bool] = self._aborted.is_set

    detail = "fake"
    pid = None

    @property
    def is_alive(self) -> bool:
        return self._behaviour.is_alive

    def start(self, model: Model) -> None:
        self._behaviour.starts += 1
        self._labels = len(model.manifest.labels)
        self._wait(self._behaviour.may_start)
        if self._behaviour.start_problem:
            raise BackendProblem(self._behaviour.start_problem)

    def run(self, image: np.ndarray[Any, Any]) -> NetworkOutput:
        levels = [round(float(image.mean()))]
        self._behaviour.runs.append(levels)
        self._behaviour.is_running.set()
        self._wait(self._behaviour.may_run)
        why = self._behaviour.dies(levels)
        if why:
            raise BackendProblem(why)
        scores = np.clip(tiny_scores(image[None], labels=self._labels) + self._behaviour.score_shift, 0, 1)
        return NetworkOutput(scores=scores[0], class_maps=None, features=None, latency_ms=1.0)

    def close(self) -> None:
        self._behaviour.closes += 1

    def abort(self) -> None:
        self._aborted.set()

    def _wait(self, gate: threading.Event) -> None:
        while not gate.wait(0.005):
            if self.is_aborted():
                raise BackendProblem(reason("worker_died"))


class FakeWorkers:
    """`FakeBackend` for workers, which test a model when they load it."""

    detail = "fake"

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._loaded: list[Model] = []

    def run(self, values: np.ndarray[Any, Any], *, model: Model, is_cancelled: Callable[[], bool]) -> NetworkOutput:
        backend = FakeBackend(self._behaviour, labels=len(model.manifest.labels))
        backend.is_aborted = is_cancelled
        if not any(model is one for one in self._loaded):
            backend.start(model)
            if model.golden:
                run_self_test(backend.run, model.golden)
            self._loaded.append(model)
        return backend.run(values)

    def abort_cancelled_calls(self) -> None:
        """Nothing to do: `run` checks `is_cancelled` itself."""


def grey(level: int) -> np.ndarray[Any, Any]:
    """A network input of one grey level."""
    return np.full((1, SIDE, SIDE, 1), level, np.uint8)


def grey_score(level: int) -> float:
    """The score of the tiny network's formula for this grey level."""
    return float(tiny_scores(grey(level))[0, 0])
