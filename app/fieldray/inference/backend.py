"""The interface of a backend: a device that runs a model on images, such as the CPU or an Edge TPU.

A backend is used only by the thread that started it. Other threads may use only `abort`, `pid` and `is_alive`.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import BACKENDS, CPU, BackendEntry, BackendTable
from fieldray.domain.model import BackendName, GoldenVectors, InputSpec, Model, Prediction
from fieldray.domain.pack_setup import scores_by_label_code
from fieldray.domain.run import BackendState, Publish
from fieldray.errors import BackendProblem
from fieldray.process_environment import Priority
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class NetworkOutput:
    """The output of a network for one image. The constructor raises ValueError for a wrong shape, a value that is not
    finite, or a share outside 0..1.

    scores         (labels,) float32 in [0, 1], in the order of the manifest's labels
    class_maps     (labels, rows, columns) float32: logit of each label in each cell of the image; or None
    features       (n,) float32: the feature vector for the out-of-distribution check; or None
    latency_ms     duration of the inference alone, in milliseconds
    mask           (rows, columns) float32 in [0, 1], share of visible lung, or None
    region_shares  (rows, columns) float32 in [0, 1], share of the area where lung belongs, or None
    """

    scores: NDArray[np.float32]
    class_maps: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    latency_ms: float
    mask: NDArray[np.float32] | None = None
    region_shares: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        # NaN fails both comparisons
        if self.scores.ndim != 1 or not bool(np.all((self.scores >= 0) & (self.scores <= 1))):
            raise ValueError(f"scores must be (labels,) in 0..1, not {self.scores}")
        if not _is_finite(self.class_maps, dimensions=3) or not _is_finite(self.features, dimensions=1):
            raise ValueError("class maps must be (labels, rows, columns) and features (n,), both finite")
        for mask in (self.mask, self.region_shares):
            if not _is_finite(mask, dimensions=2) or (mask is not None and not 0 <= mask.min() <= mask.max() <= 1):
                raise ValueError("a mask must be (rows, columns) in 0..1")


def prediction_of(
    answer: NetworkOutput, model: Model, *, backend: BackendName, image_number_on_backend: int
) -> Prediction:
    """Return the `Prediction` of a classifier for one image, made from the output of its network.

    answer                   the output of the network
    backend                  name of the device that ran the network
    image_number_on_backend  number of the image since the device was opened, from 1
    """
    return Prediction(
        pack_name=model.pack_name,
        model_sha256=model.model_sha256,
        backend=backend,
        scores=scores_by_label_code(model, answer.scores),
        class_maps=answer.class_maps,
        features=answer.features,
        latency_ms=answer.latency_ms,
        image_number_on_backend=image_number_on_backend,
    )


def _is_finite(array: NDArray[Any] | None, *, dimensions: int) -> bool:
    return array is None or (array.ndim == dimensions and bool(np.isfinite(array).all()))


_REPEATED: Final = 1e-4  # largest difference of scores if an image runs twice; one step of an 8-bit score is 0.004


def run_self_test(run: Callable[[NDArray[np.uint8]], NetworkOutput], golden: GoldenVectors) -> None:
    """Test a device: run all golden inputs of a pack in their order, and then in reverse order.

    Raises BackendProblem("self_test") if a score differs from the expected score by more than the tolerance, or if a
    score depends on the inputs that ran before.
    """
    if not len(golden.inputs):
        return
    first = np.stack([run(image).scores for image in golden.inputs])
    again = np.stack([run(image).scores for image in golden.inputs[::-1]])[::-1]
    if first.shape != golden.scores.shape:
        raise BackendProblem(reason("self_test", detail=f"{first.shape} instead of {golden.scores.shape} scores"))
    difference = float(np.abs([first - golden.scores, again - golden.scores]).max())
    if difference > golden.tolerance:
        detail = f"a score differs by {difference:.3f}, allowed is {golden.tolerance:.3f}"
        raise BackendProblem(reason("self_test", detail=detail))
    if (difference := float(np.abs(first - again).max())) > _REPEATED:
        detail = f"an image that runs again gets a score that differs by {difference:.4f}"
        raise BackendProblem(reason("self_test", detail=detail))


_TIMED_RUNS: Final = 2  # the first one may have to load the model


def measure_image_time_s(run: Callable[[NDArray[np.uint8]], NetworkOutput], spec: InputSpec) -> float:
    """Return the seconds that a network takes for one image on an idle computer: the shortest of a few runs."""
    image = np.zeros((spec.height, spec.width, spec.channels), np.uint8)
    times_s = []
    for _ in range(_TIMED_RUNS):
        began_s = time.perf_counter()
        run(image)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """The state of one model on the CPU or another device.

    detail        the runtime and the device in a few words; empty until the model is ready
    reason        the reason why the model cannot run or was stopped, or None
    image_time_s  seconds that an image takes; 0 until the model is ready
    """

    state: BackendState = "stopped"
    detail: str = ""
    reason: Reason | None = None
    image_time_s: float = 0.0


class Backend(Protocol):
    """The interface of a backend: a device, opened to run one model."""

    @property
    def detail(self) -> str:
        """The runtime and device in a few words, for the log and the status line. Available after `start`."""

    @property
    def pid(self) -> int | None:
        """The id of the process that runs the model; None if no process runs."""

    @property
    def is_alive(self) -> bool:
        """Whether the backend can still run images. The property is fast to read."""

    def start(self, model: Model) -> None:
        """Load the model `model` into the device. Raises BackendProblem."""

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        """Run the network on one image (height, width, channels) uint8.

        Raises BackendProblem. After a BackendProblem the backend must be closed.
        """

    def close(self) -> None:
        """Stop the backend in an orderly way. The method may be called twice, or before `start`."""

    def abort(self) -> None:
        """Stop the backend at once, from any thread. A `start` or `run` in progress then raises BackendProblem."""


class DeviceWatcher(Protocol):
    """The interface of a thread that watches for the connection and removal of a device."""

    def start(self) -> None:
        """Start the thread that watches for the device."""

    def close(self) -> None:
        """Stop the thread, and wait for its end."""


WatchDevice = Callable[[Callable[[], None], Callable[[Reason], None]], DeviceWatcher]


def model_file_for(entry: BackendEntry, model: Model) -> bytes:
    """Return the network file of the pack that a device runs.

    A device lists the kinds of files that it can run, the best kind first. The file of the first kind that the pack has
    is returned.

    Raises BackendProblem (no_model_file) if the pack has no file that the device can run.
    """
    for role in entry.file_roles:
        if role in model.files:
            return model.files[role]
    raise BackendProblem(reason("no_model_file", device=entry.title))


# Codes of reasons that still apply at the next start, whatever the device
PERMANENT_PROBLEM_CODES: Final = frozenset(
    {"no_runtime", "bad_model", "model_memory", "self_test", "no_model_file", "lungs_unavailable"}
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BackendKind:
    """A device that the engine may use: how to open, test and watch the device.

    entry                    row of the device in `fieldray.backends`
    open                     makes a new backend, which is not started
    probe                    returns the reason why the device cannot be used with a model now, or None; may be slow. A
                             pack without a file for the device is refused without this call
    watch                    for a device that can be plugged in: makes the `DeviceWatcher` of the device from two
                             functions. The watcher calls the first function when the device is connected. When the
                             device is removed, the watcher calls the second function with the reason
    permanent_problem_codes  codes of further reasons after which the device is not started again automatically, in
                             addition to `PERMANENT_PROBLEM_CODES`
    absent_device_codes      codes of reasons that mean: the computer has no such device. These reasons are not reported
    """

    entry: BackendEntry
    open: Callable[[], Backend]
    probe: Callable[[Model], Reason | None] = lambda _: None
    watch: WatchDevice | None = None
    permanent_problem_codes: frozenset[str] = frozenset()
    absent_device_codes: frozenset[str] = frozenset()

    @property
    def name(self) -> BackendName:
        """The name of the device, such as "cpu"."""
        return self.entry.name

    def unavailable_reason(self, model: Model) -> Reason | None:
        """Return the reason why the device cannot be used with a model now, or None. The call may be slow."""
        if why := self.probe(model):
            return why
        try:
            model_file_for(self.entry, model)
        except BackendProblem as problem:
            return problem.reason
        return None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BackendOptions:
    """Options with which the devices of `fieldray.backends` are opened.

    publish   receives events of the devices (`DeviceChanged`); None to watch no device
    settings  the user's settings
    threads   number of threads of a network on the CPU; None for one per core
    priority  priority of the processes against other programs
    """

    publish: Publish | None = None
    settings: Settings = field(default_factory=Settings)
    threads: int | None = None
    priority: Priority = "raised"


def known_backend_kinds(options: BackendOptions, *, table: BackendTable = BACKENDS) -> tuple[BackendKind, ...]:
    """Return all devices that the program knows, the CPU included; the preferred device comes first.

    table  the known devices; by default those of `fieldray.backends`
    """
    return tuple(pkgutil.resolve_name(entry.backend_kind_function_path)(options) for entry in table)


def accelerator_kinds(options: BackendOptions) -> tuple[BackendKind, ...]:
    """Return the devices other than the CPU that the program knows (`fieldray.backends`), in order of preference."""
    return tuple(
        pkgutil.resolve_name(entry.backend_kind_function_path)(options) for entry in BACKENDS if entry is not CPU
    )
