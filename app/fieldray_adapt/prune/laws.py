"""The laws by which the settings of pruning change from one iteration to the next.

The four laws of the dissertation (Taran 2022, formulas 3.1-3.4) are constant, linear, multiplicative, and dependent on
the context. The context is the change of size, loss and time in the last iteration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fieldray_adapt.prune.iterations import Iteration
from fieldray_adapt.recipes.tables import Key, key, recipe_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRatios:
    """The changes that the last iteration of pruning made, as ratios (value after / value before), each above 0.

    Attributes
    ----------
    parameter_ratio
        Ratio of the numbers of parameters, at most 1.
    loss_ratio
        Ratio of the validation losses, both after retraining.
    time_ratio
        Ratio of the times per image.
    batch_size_ratio
        The batch size that a profile now proposes, divided by the batch size of the last iteration.
    """

    parameter_ratio: float = 1.0
    loss_ratio: float = 1.0
    time_ratio: float = 1.0
    batch_size_ratio: float = 1.0

    @classmethod
    def between(cls, before: Iteration, last: Iteration) -> ChangeRatios:
        """Return the ratios of the iteration `last` to the iteration `before`.

        `last` must not be iteration 0, the original network, which has no settings.
        """
        used = last.settings.batch_size if last.settings else math.nan
        return cls(
            parameter_ratio=last.parameters / before.parameters,
            loss_ratio=max(last.loss, 1e-6) / max(before.loss, 1e-6),
            time_ratio=last.seconds_per_image / before.seconds_per_image,
            batch_size_ratio=(last.batch_size_proposed or used) / used,
        )


@recipe_table
class Bounds:
    """Lower and upper limit of the values that a law gives."""

    lowest: float = key("Lower limit of the value.", default=-math.inf)
    highest: float = key("Upper limit of the value.", default=math.inf)

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"lowest {self.lowest} is above highest {self.highest}")

    def clip(self, value: float) -> float:
        """Return `value`, or the nearer limit if `value` is outside the limits."""
        return min(max(value, self.lowest), self.highest)


@recipe_table
class ConstantLaw:
    """A law of pruning by which a setting keeps its value in all iterations (formula 3.1)."""

    start: float = key("Value of the setting in all iterations.")

    def next_value(self, previous: float, ratios: ChangeRatios) -> float:  # noqa: ARG002 - all laws have these parameters
        """Return the setting's value for the next iteration: always the start value."""
        return self.start


@recipe_table
class LinearLaw:
    """A law of pruning by which a step is added to a setting's value after each iteration (formula 3.2)."""

    start: float = key("Value of the setting in the first iteration.")
    step: float = key("Number that is added to the value after each iteration.")
    bounds: Bounds = key("Limits of the value.", default=Bounds())

    def next_value(self, previous: float, ratios: ChangeRatios) -> float:  # noqa: ARG002
        """Return the setting's value for the next iteration: `previous` plus the step, within the bounds."""
        return self.bounds.clip(previous + self.step)


@recipe_table
class MultiplicativeLaw:
    """A law of pruning by which a setting's value is multiplied by a factor after each iteration (formula 3.3)."""

    start: float = key("Value of the setting in the first iteration.")
    factor: float = key("Number by which the value is multiplied after each iteration.", above=0)
    bounds: Bounds = key("Limits of the value.", default=Bounds())

    def next_value(self, previous: float, ratios: ChangeRatios) -> float:  # noqa: ARG002
        """Return the setting's value for the next iteration: `previous` times the factor, within the bounds."""
        return self.bounds.clip(previous * self.factor)


@recipe_table
class ContextDependentLaw:
    """A law of pruning by which a setting's value follows the changes that the last iteration made (formula 3.4).

    `size`, `loss`, `time` and `batch` are strengths. Each strength belongs to one ratio r of `ChangeRatios`. With the
    form product, the value is multiplied by r ^ strength. With the form sum, strength x log2 r is added to the value.
    """

    start: float = key("Value of the setting in the first iteration.")
    size: float = key(
        "How strongly the value follows the number of parameters: r = number after the iteration / before.", default=0.0
    )
    loss: float = key("How strongly the value follows the validation loss: r = loss after / loss before.", default=0.0)
    time: float = key("How strongly the value follows the time per image: r = time after / time before.", default=0.0)
    batch: float = key("How strongly the value follows the batch size: r = proposed size / last size.", default=0.0)
    form: Literal["product", "sum"] = key(
        "How each ratio r changes the value; its strength is the number given as size, loss, time or batch. product: "
        "value x r ^ strength, for values above 0; sum: value + strength x log2 r, for values that may be 0 or "
        "negative.",
        default="product",
    )
    bounds: Bounds = key("Limits of the value.", default=Bounds())

    def next_value(self, previous: float, ratios: ChangeRatios) -> float:
        """Return the setting's value for the next iteration: `previous` changed by the ratios, within the bounds."""
        doublings = (
            self.size * math.log2(ratios.parameter_ratio)
            + self.loss * math.log2(ratios.loss_ratio)
            + self.time * math.log2(ratios.time_ratio)
            + self.batch * math.log2(ratios.batch_size_ratio)
        )
        return self.bounds.clip(previous + doublings if self.form == "sum" else previous * 2.0**doublings)


_OWN_KEYS: Final[Mapping[str, type]] = {
    "step": LinearLaw,
    "factor": MultiplicativeLaw,
    **dict.fromkeys(("size", "loss", "time", "batch", "form"), ContextDependentLaw),
}
"""Keys that only one law has, with the class of that law. By these keys the law of a recipe's table is recognised."""


def pruning_law_class(law: Mapping[str, object]) -> type:
    """Return the class of the law that a recipe's table describes. `step`, for example, is a key of linear laws only.

    A table without such a key is a constant law. Raises ValueError if the table has keys of several laws.
    """
    named = {name: _OWN_KEYS[name] for name in law if name in _OWN_KEYS}
    if len(set(named.values())) > 1:
        raise ValueError(f"has keys of several laws: {', '.join(named)}")
    return next(iter(named.values()), ConstantLaw)


AnyPruningLaw = Annotated[
    ConstantLaw | LinearLaw | MultiplicativeLaw | ContextDependentLaw,
    Key(kind="a law: rule for the value in each iteration", class_for=pruning_law_class),
]
"""The type of a recipe's key whose value is a table that describes one of the laws."""
