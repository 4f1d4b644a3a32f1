"""The results of a pruning study: original network, iterations of the pruning runs, and baselines."""

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

ORIGINAL_NETWORK_NAME: Final = "original"


class NetworkFigures(Struct, frozen=True, kw_only=True):
    """The figures of a network of a pruning study, compared with the original network.

    Attributes
    ----------
    test_accuracy, test_accuracy_int8
        Share of test images (0..1) that the float network and the int8 file classify correctly.
    milliseconds_per_image, speed_up
        By kind of timing (see `training.profile.time_networks`): time per image in milliseconds, and time of the
        original network divided by this time.
    removed_share, channels
        Share (0..1) of the original network's parameters that were removed, and number of channels by channel set.
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
    """The figures that a pruning run measured in one iteration.

    Accuracies are shares (0..1) of the validation images.
    """

    iteration: int
    settings: IterationSettings | None
    validation_accuracy_before_retraining: float
    validation_accuracy: float
    batch_size_proposed: int | None
    wall_seconds: float


class MeasuredIteration(IterationFigures, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of an iteration, and the figures of the network after the iteration (see `NetworkFigures`).

    Attributes
    ----------
    test_accuracy_from_random_weights
        Test accuracies of networks of this shape that were trained from random weights, one for each seed. None if no
        network of this shape was trained.
    test_accuracy_from_random_weights_by_epochs
        Test accuracies of trainings from random weights with other numbers of epochs, by number of epochs.
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


class PruningRun(Struct, frozen=True, kw_only=True):
    """The iterations of a pruning run, and the stop rule that ended the run. Iteration 0 is the original network."""

    stopped_by: str
    iterations: tuple[IterationFigures, ...]

    @property
    def measured_iterations(self) -> list[MeasuredIteration]:
        """All iterations except iteration 0 (the original network), with the figures of their networks."""
        return [row for row in self.iterations if isinstance(row, MeasuredIteration)]


class StudyResults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document results.json of a study: original network, runs and baselines by name, and profile if measured."""

    study: str
    original: NetworkFigures
    runs: dict[str, PruningRun]
    baselines: dict[str, NetworkFigures]
    profile: Profile | None = None


MillisecondsByTimingKind = Mapping[str, float]
"""Milliseconds per image, by kind of timing: "engine_batch" in the training engine, "int8" for the int8 file."""


def network_figures(
    network: Network,
    *,
    conversion: Conversion,
    milliseconds: MillisecondsByTimingKind,
    original: tuple[Network, MillisecondsByTimingKind],
) -> NetworkFigures:
    """Return the figures of a network, compared with the original network of the study.

    Parameters
    ----------
    conversion
        The network's int8 file and test accuracies.
    milliseconds
        The network's milliseconds per image, by kind of timing.
    original
        The original network, and the original network's milliseconds per image by kind of timing.
    """
    whole, here = parameter_count(original[0][0]), parameter_count(network[0])
    return NetworkFigures(
        parameters=here,
        times_fewer_parameters=whole / here,
        removed_share=1 - here / whole,
        multiply_adds=multiply_add_count(network[0]),
        test_accuracy=conversion.float_accuracy,
        test_accuracy_int8=conversion.int8_accuracy,
        milliseconds_per_image=dict(milliseconds),
        speed_up={kind: original[1][kind] / own for kind, own in milliseconds.items()},
        int8_bytes=len(conversion.int8_file),
        channels=dict(network[0].channels),
    )


def iteration_figures(iteration: Iteration) -> IterationFigures:
    """Return the figures of an iteration in the form for results.json."""
    return IterationFigures(
        iteration=iteration.number,
        settings=iteration.settings,
        validation_accuracy_before_retraining=iteration.quality_before,
        validation_accuracy=iteration.quality,
        batch_size_proposed=iteration.batch_size_proposed,
        wall_seconds=iteration.wall_seconds,
    )
