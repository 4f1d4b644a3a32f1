"""What the pipeline asks of what looks at images and of what runs models; fakes come through the same doors.

And the one door between them: the CPU as a backend of the engine is the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import CPU
from fieldray.domain.image import Image, ShownImage, Tensor
from fieldray.domain.model import BackendName, DeviceChoice, InputSpec, Model, Policy, Prediction, Request
from fieldray.domain.study import ImageRef
from fieldray.errors import BackendProblem
from fieldray.imaging.source import Stamps
from fieldray.inference.backend import Answer, BackendKind
from fieldray.processes.child import ChildLost
from fieldray.reasons import Reason, reason
from fieldray.workers.calls import Look, Seen


class Readers(Protocol):
    """Processes that look at images, as a session holds them (`pool.Workers`)."""

    def look(self, question: Look, /, *, model: Model | None) -> Seen: ...
    @property
    def size(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def load(self, model: Model, /) -> str: ...
    def run(self, values: NDArray[np.uint8], /, *, model: Model) -> Answer: ...
    def tensor(self, ref: ImageRef, spec: InputSpec, /) -> Tensor | None: ...
    def read_image(self, ref: ImageRef, /, *, content_sha256: str = "") -> Image: ...
    def read_shown(self, ref: ImageRef, /, *, side: int, content_sha256: str = "") -> ShownImage: ...
    def read_preview(self, preview: bytes, /) -> NDArray[np.uint8]: ...
    def members(self, ref: ImageRef, /) -> Iterator[ImageRef]: ...
    def content_hash(self, ref: ImageRef, /) -> tuple[str, bytes]: ...
    def stamp_with(self, stamps: Stamps, /) -> None: ...
    def give_up(self) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Runs the model. `unavailable_reason` tells why no image will be run any more, None while there is hope.

    `serving` names the device that the next image is for, None where none is ready in time; raises BackendProblem.
    """

    @property
    def unavailable_reason(self) -> Reason | None: ...
    def serving(self, *, timeout_s: float) -> BackendName | None: ...
    def submit(self, request: Request, /) -> Future[Prediction]: ...


class OpenEngine(Engine, Protocol):
    """An engine as a session holds it (`inference.engine.Engine`)."""

    def open(self, model: Model) -> None: ...
    def reconsider(self, name: BackendName) -> None: ...
    def choose(self, device: DeviceChoice, policy: Policy) -> None: ...
    def close(self) -> None: ...


class WorkersBackend:
    """The CPU as `inference.backend.Backend`: a model's networks in the workers, one of which runs an input here."""

    pid: Final = None

    def __init__(self, workers: Readers) -> None:
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


def workers_kind(workers: Readers) -> BackendKind:
    """The CPU as a session uses it: whole images are looked at by its workers, and so are inputs that came back."""
    return BackendKind(
        entry=CPU,
        open=lambda: WorkersBackend(workers),
        permanent=frozenset({"lungs_unavailable"}),
        tests_itself=True,
    )
