"""An engine on the test double, and what it said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from faults.double import DoubleEdgeTpu
from fieldray.domain.events import BackendChanged, Publish
from fieldray.domain.model import Request
from fieldray.inference.backend import BackendKind
from fieldray.inference.coral.backend import edgetpu_kind
from fieldray.inference.engine import Engine
from fieldray.inference.worker import cpu_kind
from tiny_models import SIDE

WAIT_S: Final = 20.0


class Said:
    """Keeps the events of an engine and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[Any], bool], *, after: int = 0) -> Any:
        """The first event from `after` on that is wanted, waited for if need be."""

        def found() -> Any:
            return next((event for event in self.events[after:] if wanted(event)), None)

        with self._changed:
            event = self._changed.wait_for(found, WAIT_S)
        assert event, f"not heard: {self.events}"
        return event

    def serves(self, backend: str, *, after: int = 0) -> BackendChanged:
        """The event that says that images now run on `backend`."""
        return self.wait_for(
            lambda event: isinstance(event, BackendChanged) and event.backend == backend and event.in_use, after=after
        )

    def gone(self, *, after: int = 0) -> str:
        """The code of the reason why the Edge TPU is not used."""
        event = self.wait_for(
            lambda event: (
                isinstance(event, BackendChanged) and event.backend == "edgetpu" and event.state == "unavailable"
            ),
            after=after,
        )
        return str(event.reason.code)


def open_engine(edgetpu: DoubleEdgeTpu, said: Said, **options: Any) -> Engine:
    """An engine whose only Edge TPU is the test double."""
    return Engine(said, kinds=double_kinds(said, edgetpu, run_timeout_s=1.0, start_timeout_s=5.0), **options)


def double_kinds(
    publish: Publish, edgetpu: DoubleEdgeTpu, *, cpu: BackendKind | None = None, **options: Any
) -> tuple[BackendKind, ...]:
    """The devices of a computer whose only Edge TPU is the test double."""
    kind = edgetpu_kind(
        libraries=[str(edgetpu.library)], find=edgetpu.find, publish=publish, priority="raised", **options
    )
    return kind, cpu or cpu_kind(priority="raised")


def grey(number: int) -> Request:
    """An even grey image of its own level."""
    return Request(request_id=number, values=np.full((1, SIDE, SIDE, 1), number % 256, np.uint8))
