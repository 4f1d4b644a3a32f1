"""Statistics of repeated measurements: iterations 1, 2 and 3+ apart, as in the dissertation.

A repetition holds the times of one fresh process in order. The first image of a process carries start-up cost
(memory, caches, weights sent to an Edge TPU) and the second some of it; only the third and later ones show the rate.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

START_UP: Final = 2  # images at the start of a repetition that are kept apart
FEWEST_IMAGES: Final = START_UP + 1

Repetitions = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics over repetitions; times are in milliseconds.

    Attributes
    ----------
    first_ms, second_ms
        Medians over the repetitions.
    mean_ms, stdev_ms, p50_ms, p95_ms, p99_ms
        Of all images from the third of each repetition on; the standard deviation is the sample's (n - 1).
    fps_min, fps_avg, fps_max
        Images per second: of the slowest image, over all, of the fastest image.
    """

    repetitions: int
    images: int
    first_ms: float
    second_ms: float
    mean_ms: float
    stdev_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    fps_min: float
    fps_avg: float
    fps_max: float

    @property
    def first_ratio(self) -> float:
        """The time of the first image as a multiple of the later ones'."""
        return self.first_ms / self.mean_ms


def summarise(repetitions: Repetitions) -> Summary:
    """Summarise repetitions.

    Raises ValueError if there is none, one has no third image, or a time is not above 0.
    """
    if not repetitions or any(len(times_ms) < FEWEST_IMAGES for times_ms in repetitions):
        raise ValueError(f"every repetition needs {FEWEST_IMAGES} images")
    later = np.concatenate([np.asarray(times_ms[START_UP:], np.float64) for times_ms in repetitions])
    if not bool((later > 0).all()):
        raise ValueError("a time must be above 0")
    p50, p95, p99 = np.percentile(later, (50, 95, 99))
    return Summary(
        repetitions=len(repetitions),
        images=len(later),
        first_ms=statistics.median(times_ms[0] for times_ms in repetitions),
        second_ms=statistics.median(times_ms[1] for times_ms in repetitions),
        mean_ms=float(later.mean()),
        stdev_ms=float(later.std(ddof=1)) if len(later) > 1 else 0.0,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        fps_min=1000 / float(later.max()),
        fps_avg=1000 / float(later.mean()),
        fps_max=1000 / float(later.min()),
    )


def later_mean_ms(times_ms: Sequence[float]) -> float:
    """Mean of the third and later images of one repetition."""
    return statistics.fmean(times_ms[START_UP:])


def paired_ratio(repetitions: Repetitions, baselines: Repetitions) -> float:
    """The time as a multiple of the baseline's: median of the ratios of repetitions measured side by side.

    Other load on the machine changes over minutes, but hardly within one round of interleaved repetitions.
    Raises ValueError for different numbers of repetitions, or none.
    """
    if not repetitions:
        raise ValueError("no repetition")
    pairs = zip(repetitions, baselines, strict=True)
    return statistics.median(later_mean_ms(times_ms) / later_mean_ms(base_ms) for times_ms, base_ms in pairs)


def by_iteration(repetitions: Repetitions) -> list[float]:
    """Median time of iteration 1, 2, 3, ... over the repetitions, up to the length of the shortest one."""
    return [statistics.median(times_ms) for times_ms in zip(*repetitions, strict=False)]
