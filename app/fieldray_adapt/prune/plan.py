"""The table `prune` of a recipe: how the settings change from iteration to iteration (laws), and when pruning stops."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Final

from fieldray_adapt.prune.iterations import Iteration, IterationSettings
from fieldray_adapt.prune.laws import AnyPruningLaw, ChangeRatios
from fieldray_adapt.prune.selection import CutOffUnit
from fieldray_adapt.recipes.tables import key, recipe_table


@recipe_table
class StopRules:
    """The rules by which pruning stops. The first rule that applies ends the run."""

    iterations: int = key("Largest number of iterations.", low=1, example=3)
    lowest_quality: float = key(
        "Stop if the validation quality after retraining is below this value.", default=0.0, low=0, high=1
    )
    target_parameters: int | None = key("Stop if the network has at most this many parameters.", default=None, low=1)

    def reason_to_stop(self, rows: tuple[Iteration, ...]) -> str | None:
        """Return the name of the stop rule that applies after the iterations `rows`; None if pruning goes on."""
        last = rows[-1]
        if last.number and last.quality < self.lowest_quality:
            return "lowest_quality"
        if self.target_parameters is not None and last.parameters <= self.target_parameters:
            return "target_parameters"
        if last.number and last.parameters == rows[-2].parameters:
            return "nothing_left"
        return "iterations" if last.number >= self.iterations else None


@recipe_table
class PruneRecipe:
    """Iterative pruning: five settings, each with a law (rule for its value, see *Laws*), and the rules to stop.

    A law is a table with one of these sets of keys: { start } constant; { start, step } linear; { start, factor }
    multiplicative; { start, size, loss, time, batch, form } dependent on the context. All laws except the constant law
    may also have the key bounds = { lowest, highest }.
    """

    batch_size: AnyPruningLaw = key("Number of images in each step of retraining.", example={"start": 32})
    epochs: AnyPruningLaw = key("Number of epochs of retraining after channels are removed.", example={"start": 1.0})
    learning_rate: AnyPruningLaw = key("Highest learning rate of retraining.", example={"start": 3e-4})
    cut_off: AnyPruningLaw = key(
        "Channels whose share of zeros is above this limit are removed. The key cut_kind gives the limit's unit.",
        example={"start": 0.3},
    )
    minimum_channels: AnyPruningLaw = key("Smallest number of channels that a layer keeps.", example={"start": 16})
    stop: StopRules = key("Rules by which pruning stops.")
    batch_sizes: tuple[int, ...] = key(
        "Batch sizes that are timed after each iteration, for laws (rules for values) with the key batch. "
        "By default none.",
        default=(),
        low=1,
    )
    cut_kind: CutOffUnit = key(
        "Unit of the limit cut_off. level: a share of zeros (0..1). deviation: standard deviations above the mean "
        "share of zeros of the layer.",
        default="deviation",
    )
    largest_share: float = key(
        "Largest share of a layer's channels that one iteration may remove.", default=1.0, above=0, high=1
    )
    multiple: int = key(
        "The number of channels that a layer keeps is a multiple of this number.", default=1, unit="channels", low=1
    )
    calibration: int = key(
        "Number of training images on which the shares of zeros are measured.", default=200, unit="images", low=1
    )

    @property
    def fingerprint(self) -> str:
        """All values of the recipe's table except the stop rules, as text.

        Two tables with equal fingerprints can continue one run, even with different stop rules.
        """
        return json.dumps({**asdict(self), "stop": None}, sort_keys=True)

    def first_settings(self) -> IterationSettings:
        """Return the settings of iteration 1, which is the first iteration that removes channels."""
        return IterationSettings(**{name: getattr(self, name).start for name in _SETTINGS})

    def next_settings(self, rows: tuple[Iteration, ...]) -> IterationSettings:
        """Return the settings of the next iteration.

        Parameters
        ----------
        rows
            All iterations until now, in order. The first is iteration 0, the original network.
        """
        last = rows[-1]
        if last.settings is None:
            return self.first_settings()
        context = ChangeRatios.between(rows[-2], last)
        return IterationSettings(
            **{name: getattr(self, name).next_value(getattr(last.settings, name), context) for name in _SETTINGS}
        )


_SETTINGS: Final = tuple(field.name for field in fields(IterationSettings))
