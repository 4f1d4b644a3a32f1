"""The CPU as a backend of the engine: it is the workers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import CPU
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.inference.backend import Answer, BackendKind
from fieldray.processes.child import ChildLost
from fieldray.reasons import reason
from fieldray.workers.pool import Workers


class WorkersBackend:
    """The CPU as `inference.backend.Backend`: a model's networks in the workers, one of which runs an input here."""

    pid: Final = None

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._model: Model | None = None
        self.detail = ""

    @property
    def is_alive(self) -> bool:
        """Whether there are workers."""
        return not self._workers.is_closed

    def start(self, model: Model) -> None:
        """Have the networks loaded and tested. Raises BackendProblem, PoolClosed."""
        try:
            self.detail = self._workers.load(model)
        except (OSError, ChildLost) as error:
            raise BackendProblem(reason("start_failed", detail=str(error))) from error
        self._model = model

    def run(self, image: NDArray[np.uint8]) -> Answer:
        """Run an image (height, width, channels) uint8. Raises BackendProblem, PoolClosed."""
        assert self._model
        try:
            return self._workers.run(image, model=self._model)
        except OSError as error:
            raise BackendProblem(reason("start_failed", detail=str(error))) from error

    def close(self) -> None:
        """The workers stay."""

    def abort(self) -> None:
        """End the workers: this is asked of a device that is gone, or of an engine that cannot wait any more."""
        self._workers.close()


def workers_kind(workers: Workers) -> BackendKind:
    """The CPU as a session uses it: whole images are looked at by its workers, and so are inputs that came back."""
    return BackendKind(
        entry=CPU,
        open=lambda: WorkersBackend(workers),
        permanent=frozenset({"lungs_unavailable"}),
        tests_itself=True,
    )
