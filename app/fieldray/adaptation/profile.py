"""Time per iteration against batch size and image size, and the batch size to take.

Iterations 1 and 2 carry start-up cost (memory, kernels chosen and compiled) and are kept apart from the later ones,
as the dissertation found (Taran 2022, chapter 4).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.engine import EngineSettings, open_engine
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.tables import Key, require, require_ranges

Mode = Literal["training", "inference"]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """What a profile measures: the time of an iteration against batch size and image size."""

    batch_sizes: Annotated[tuple[int, ...], Key(doc="Images in a step.", unit="images", low=1)] = (8, 16, 32, 64)
    sides: Annotated[tuple[int, ...], Key(doc="Image sides; the recipe's own by default.", unit="pixels", low=8)] = ()
    iterations: Annotated[int, Key(doc="Of each size; the first two are kept apart.", low=3)] = 6

    def __post_init__(self) -> None:
        require_ranges(self)
        require((bool(self.batch_sizes), "batch_sizes", "must have one or more"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """Seconds of the first and the second iteration, and the median of those from the third on."""

    first_s: float
    second_s: float
    later_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """The times of one mode at one batch size and one image side (pixels)."""

    mode: Mode
    batch_size: int
    side: int
    times: IterationTimes

    @property
    def later_s_per_image(self) -> float:
        """Seconds per image once it runs."""
        return self.times.later_s / self.batch_size


def time_iterations(
    run: Callable[[], object], *, iterations: int = 5, clock: Clock = time.perf_counter
) -> IterationTimes:
    """Run it `iterations` times (at least 3)."""
    if iterations < 3:
        raise ValueError("at least 3 iterations, to tell the first two from the others")
    seconds = []
    for _ in range(iterations):
        begun = clock()
        run()
        seconds.append(clock() - begun)
    return IterationTimes(first_s=seconds[0], second_s=seconds[1], later_s=statistics.median(seconds[2:]))


def profile(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batch_sizes: Sequence[int],
    sides: Sequence[int] = (),
    modes: Sequence[Mode] = ("training", "inference"),
    settings: EngineSettings,
    iterations: int = 5,
    clock: Clock = time.perf_counter,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[ProfileRow, ...]:
    """Measure each mode at each batch size and image side (none: the specification's own), on a fresh engine each.

    Another side than the specification's needs a network without dense layers. The images are noise.
    """
    rows: list[ProfileRow] = []
    wanted = [(side, size, mode) for side in sides or (specification.height,) for size in batch_sizes for mode in modes]
    for side, size, mode in wanted:
        sized = specification if side == specification.height else replace(specification, height=side, width=side)
        run = _iteration(sized, weights, mode=mode, batch_size=size, settings=settings)
        times = time_iterations(run, iterations=iterations, clock=clock)
        rows.append(ProfileRow(mode=mode, batch_size=size, side=side, times=times))
        progress(len(rows), len(wanted))
    return tuple(rows)


def _iteration(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    mode: Mode,
    batch_size: int,
    settings: EngineSettings,
) -> Callable[[], object]:
    generator = np.random.default_rng(0)
    shape = (batch_size, specification.height, specification.width, specification.input_channels)
    images = generator.random(shape, np.float32)
    labels = specification.channels[specification.label_set]
    targets = np.eye(labels, dtype=np.float32)[generator.integers(0, labels, batch_size)]
    engine = open_engine(specification, weights, settings=settings)
    if mode == "inference":
        return lambda: engine.logits(images)
    return lambda: engine.step(images, targets, learning_rate=1e-6)


def propose_batch_size(rows: Sequence[ProfileRow], *, mode: Mode = "training", tolerance: float = 0.1) -> int:
    """The smallest batch size within `tolerance` of the fastest per image. Raises ValueError if there are no rows.

    Larger batches than that win no time and make fewer steps of the same images.
    """
    per_image = {row.batch_size: row.later_s_per_image for row in rows if row.mode == mode}
    fastest = min(per_image.values())
    return min(size for size, seconds in per_image.items() if seconds <= fastest * (1 + tolerance))


def fastest_batch_size(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batch_sizes: Sequence[int],
    settings: EngineSettings,
) -> int | None:
    """The batch size proposed for training this network, of those given; None if none is given."""
    if not batch_sizes:
        return None
    rows = profile(
        specification, weights, batch_sizes=batch_sizes, modes=("training",), settings=settings, iterations=4
    )
    return propose_batch_size(rows)


def inference_seconds(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    images: NDArray[np.float32],
    settings: EngineSettings,
) -> float:
    """Seconds per image of inference in batches of these images (n, height, width, channels), once it runs."""
    engine = open_engine(specification, weights, settings=settings)
    return time_iterations(lambda: engine.logits(images), iterations=7).later_s / len(images)
