"""The results of a pruning study: original network, iterations of the runs, and one-shot baselines."""

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
    """The figures of a network, compared with the original.

    Attributes
    ----------
    test_accuracy, test_accuracy_int8
        Share of test images (0..1) that the float network and the int8 file classify correctly.
    milliseconds_per_image, speed_up
        Time, and how many times faster than the original, by kind (see `training.profile.time_networks`).
    channels
        Number of channels by channel set.
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
    """The figures that a pruning run measured for one of its iterations.

    Accuracies are shares (0..1) of the validation part.
    """

    iteration: int
    settings: IterationSettings | None
    validation_accuracy_before_retraining: float
    validation_accuracy: float
    batch_size_proposed: int | None
    wall_seconds: float


class MeasuredIteration(IterationFigures, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of an iteration and of its network (see `NetworkFigures`).

    Attributes
    ----------
    test_accuracy_from_random_weights
        Test accuracies of a network of this shape that was trained from random weights, one for each seed. None if none
        was trained.
    test_accuracy_from_random_weights_by_epochs
        The same after other numbers of epochs, by the number.
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
    test_accuracy_from_random_weights: tuple[float, ...] | None = None
    test_accuracy_from_random_weights_by_epochs: dict[str, tuple[float, ...]] = {}


class RunResults(Struct, frozen=True, kw_only=True):
    """The iterations of a run, and the stop rule that ended it. The first iteration is the original network."""

    stopped_by: str
    iterations: tuple[IterationFigures, ...]

    @property
    def measured(self) -> list[MeasuredIteration]:
        """The iterations of the run except iteration 0, with the figures of their networks. Iteration 0 is the original
        network.
        """
        return [row for row in self.iterations if isinstance(row, MeasuredIteration)]


class StudyResults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document results.json: original network, runs and baselines by name, and the profile if one was measured."""

    study: str
    original: NetworkFigures
    runs: dict[str, RunResults]
    baselines: dict[str, NetworkFigures]
    profile: Profile | None = None


MillisecondsByKind = Mapping[str, float]
"""Milliseconds per image, by kind of timing: "engine_batch" in the training engine, "int8" by the int8 file."""


def network_figures(
    network: Network,
    *,
    conversion: Conversion,
    milliseconds: MillisecondsByKind,
    original: tuple[Network, MillisecondsByKind],
) -> NetworkFigures:
    """Return the figures of a network, compared with the original network of the study.

    Parameters
    ----------
    conversion
        The network's int8 file and test accuracies.
    milliseconds
        The network's milliseconds per image, by kind of timing.
    original
        The original network and its milliseconds per image, with which sizes and times are compared.
    """
    whole, here = parameter_count(original[0][0]), parameter_count(network[0])
    return NetworkFigures(
        parameters=here,
        times_fewer_parameters=whole / here,
        removed_share=1 - here / whole,
        multiply_adds=multiply_add_count(network[0]),
        test_accuracy=conversion.accuracy,
        test_accuracy_int8=conversion.accuracy_int8,
        milliseconds_per_image=dict(milliseconds),
        speed_up={kind: original[1][kind] / own for kind, own in milliseconds.items()},
        int8_bytes=len(conversion.int8),
        channels=dict(network[0].channels),
    )


def iteration_figures(iteration: Iteration) -> IterationFigures:
    """Return the figures of an iteration in the form that results.json has."""
    return IterationFigures(
        iteration=iteration.number,
        settings=iteration.settings,
        validation_accuracy_before_retraining=iteration.quality_before,
        validation_accuracy=iteration.quality,
        batch_size_proposed=iteration.batch_size_proposed,
        wall_seconds=iteration.wall_seconds,
    )
