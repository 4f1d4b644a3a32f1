"""The results of a pruning study: the original, the iterations of its runs, and one-shot baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from fieldray_adapt.networks.specification import (
    multiply_add_count,
    parameter_count,
)
from fieldray_adapt.prune.conversion import Conversion
from fieldray_adapt.prune.iterations import Iteration, IterationSettings
from fieldray_adapt.training.profile import Network, Profile

ORIGINAL: Final = "original"


class NetworkFigures(Struct, frozen=True, kw_only=True):
    """The measurements of a network of a study, compared with the original.

    Accuracies are shares of the test images, of the float network and of its int8 file. Milliseconds and how many times
    faster than the original are by kind (see `time_networks`), channels by the name of their set.
    """

    parameters: int
    times_fewer_parameters: float
    removed_share: float
    multiply_adds: int
    test_accuracy: float
    test_accuracy_int8: float
    milliseconds_per_image: dict[str, float]
    speed_up: dict[str, float]
    int8_bytes: int
    channels: dict[str, int]


class IterationFigures(Struct, frozen=True, kw_only=True):
    """The record of an iteration in a run. Accuracies are of the validation part, 0..1."""

    iteration: int
    settings: IterationSettings | None
    validation_accuracy_before_retraining: float
    validation_accuracy: float
    batch_size_proposed: int | None
    wall_seconds: float


class MeasuredIteration(IterationFigures, frozen=True, kw_only=True, omit_defaults=True):
    """An iteration with its network, as in `NetworkFigures`; by seed, what the shape gets right from random weights."""

    parameters: int
    times_fewer_parameters: float
    removed_share: float
    multiply_adds: int
    test_accuracy: float
    test_accuracy_int8: float
    milliseconds_per_image: dict[str, float]
    speed_up: dict[str, float]
    int8_bytes: int
    channels: dict[str, int]
    test_accuracy_from_random_weights: tuple[float, ...] | None = None


class RunResults(Struct, frozen=True, kw_only=True):
    """A run's iterations, the first without a network of its own, and the rule that ended it."""

    stopped_by: str
    iterations: tuple[IterationFigures, ...]

    @property
    def measured(self) -> list[MeasuredIteration]:
        """The iterations with a network of their own."""
        return [row for row in self.iterations if isinstance(row, MeasuredIteration)]


class StudyResults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """results.json: the original, its runs and one-shot baselines by name, and the profile where there is one."""

    study: str
    original: NetworkFigures
    runs: dict[str, RunResults]
    baselines: dict[str, NetworkFigures]
    profile: Profile | None = None


MillisecondsByKind = Mapping[str, float]
"""Milliseconds per image, by kind (see `time_networks`)."""


def network_figures(
    network: Network, *, of: Conversion, timed: MillisecondsByKind, original: tuple[Network, MillisecondsByKind]
) -> NetworkFigures:
    """Return a network's row of the table; `original` is the reference of its ratios."""
    whole, here = parameter_count(original[0][0]), parameter_count(network[0])
    return NetworkFigures(
        parameters=here,
        times_fewer_parameters=whole / here,
        removed_share=1 - here / whole,
        multiply_adds=multiply_add_count(network[0]),
        test_accuracy=of.accuracy,
        test_accuracy_int8=of.accuracy_int8,
        milliseconds_per_image=dict(timed),
        speed_up={kind: original[1][kind] / own for kind, own in timed.items()},
        int8_bytes=len(of.int8),
        channels=dict(network[0].channels),
    )


def iteration_figures(iteration: Iteration) -> IterationFigures:
    """The record of an iteration in a run, as in the table."""
    return IterationFigures(
        iteration=iteration.number,
        settings=iteration.settings,
        validation_accuracy_before_retraining=iteration.quality_before,
        validation_accuracy=iteration.quality,
        batch_size_proposed=iteration.batch_size_proposed,
        wall_seconds=iteration.wall_seconds,
    )
