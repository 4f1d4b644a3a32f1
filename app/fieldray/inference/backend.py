"""What the engine asks of a backend: anything that runs a model on images, whatever the device.

A backend is used by one thread, the one that started it; only `abort`, `pid` and `is_alive` may be used by others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import Model
from fieldray.domain.prediction import BackendName
from fieldray.reasons import Reason


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Answer:
    """What a network says about one image. Raises ValueError for what no network of ours can say.

    scores      (labels,) float32 in [0, 1], in the order of the manifest's labels
    class_maps  (labels, rows, columns) float32 logits, or None
    features    (n,) float32, or None
    latency_ms  the invocation alone
    """

    scores: NDArray[np.float32]
    class_maps: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    latency_ms: float

    def __post_init__(self) -> None:
        # NaN fails both comparisons
        if self.scores.ndim != 1 or not bool(np.all((self.scores >= 0) & (self.scores <= 1))):
            raise ValueError(f"scores must be (labels,) in 0..1, not {self.scores}")
        if not _is_finite(self.class_maps, dimensions=3) or not _is_finite(self.features, dimensions=1):
            raise ValueError("class maps must be (labels, rows, columns) and features (n,), both finite")


def _is_finite(array: NDArray[Any] | None, *, dimensions: int) -> bool:
    return array is None or (array.ndim == dimensions and bool(np.isfinite(array).all()))


class Backend(Protocol):
    """Runs one model on one device."""

    @property
    def capacity(self) -> int:
        """How many images it runs at once, 1 or more; known once started."""

    @property
    def detail(self) -> str:
        """What runs, in a few words for the log and the status line; known once started."""

    @property
    def pid(self) -> int | None:
        """The process that does the work, None if there is none."""

    @property
    def is_alive(self) -> bool:
        """Whether it can still be asked something. Cheap."""

    def start(self, model: Model) -> None:
        """Get ready to run `model`. Raises BackendProblem."""

    def run(self, images: Sequence[NDArray[np.uint8]]) -> list[Answer]:
        """Run 1 to `capacity` images (height, width, channels) uint8, answers in the same order.

        Raises BackendProblem; the backend is then of no more use and must be closed.
        """

    def close(self) -> None:
        """End in order; safe to call twice or before `start`."""

    def abort(self) -> None:
        """End at once, from any thread; a `start` or `run` under way then raises BackendProblem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKind:
    """A device the engine may use.

    unavailable_reason  the reason why it cannot be used with a model here and now, or None; may take its time
    make     a new backend, not started
    close    ends what the kind itself keeps; no backend will be started any more
    restarts how often it is started again after deaths in a row, without an image run or some quiet time between them
    """

    name: BackendName
    make: Callable[[], Backend]
    unavailable_reason: Callable[[Model], Reason | None]
    restarts: int = 3
    close: Callable[[], None] = lambda: None
