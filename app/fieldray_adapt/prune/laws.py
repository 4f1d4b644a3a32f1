"""How a setting of the pruning loop moves from one iteration to the next.

The four laws of the dissertation (Taran 2022, formulas 3.1-3.4): constant, linear, multiplicative, and dependent on
the context, which is how much size, loss and time changed in the last iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from fieldray_adapt.tables import Key, require_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the last iteration changed, as ratios after / before, each above 0.

    Attributes
    ----------
    size
        Of the number of parameters, at most 1.
    loss
        Of the validation loss after retraining.
    time
        Of the seconds per image.
    batch
        The batch size that the profile proposes for the network as it is now, over the one used last.
    """

    size: float = 1.0
    loss: float = 1.0
    time: float = 1.0
    batch: float = 1.0

    def __post_init__(self) -> None:
        if not all(ratio > 0 and math.isfinite(ratio) for ratio in (self.size, self.loss, self.time, self.batch)):
            raise ValueError(f"ratios of a context are finite and above 0: {self}")


class Law(Protocol):
    """A first value, and each next one from the one before."""

    @property
    def start(self) -> float:
        """The value of the first iteration."""

    def next(self, previous: float, context: Context) -> float:
        """The value of the iteration after one that ran with `previous` and changed what `context` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bounds a law's values stay in."""

    lowest: Annotated[float, Key(doc="No value is below this.")] = -math.inf
    highest: Annotated[float, Key(doc="No value is above this.")] = math.inf

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"lowest {self.lowest} is above highest {self.highest}")

    def clip(self, value: float) -> float:
        """The nearest value within the bounds."""
        return min(max(value, self.lowest), self.highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Always the same value (3.1)."""

    start: Annotated[float, Key(doc="The value.")]

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002 - the same door as the other laws
        """The start value."""
        return self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A step added each time (3.2)."""

    start: Annotated[float, Key(doc="The first value.")]
    step: Annotated[float, Key(doc="Added after each iteration.")]
    bounds: Annotated[Range, Key(doc="Bounds that every value stays in.")] = Range()

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` plus the step."""
        return self.bounds.clip(previous + self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplicative:
    """A factor each time (3.3)."""

    start: Annotated[float, Key(doc="The first value.")]
    factor: Annotated[float, Key(doc="Multiplies the value after each iteration.", above=0)]
    bounds: Annotated[Range, Key(doc="Bounds that every value stays in.")] = Range()

    def __post_init__(self) -> None:
        require_ranges(self)

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` times the factor."""
        return self.bounds.clip(previous * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDependent:
    """Follows what the last iteration changed (3.4): each strength weighs a ratio r of after to before."""

    start: Annotated[float, Key(doc="The first value.")]
    size: Annotated[float, Key(doc="Strength of the change in parameters.")] = 0.0
    loss: Annotated[float, Key(doc="Strength of the change in validation loss.")] = 0.0
    time: Annotated[float, Key(doc="Strength of the change in time per image.")] = 0.0
    batch: Annotated[float, Key(doc="Strength of the batch size proposed over the one used last.")] = 0.0
    form: Annotated[
        Literal["product", "sum"],
        Key(
            doc="product: value x r ^ strength, for values above 0; sum: value + strength x log2 r, for values that "
            "may be 0 or negative."
        ),
    ] = "product"
    bounds: Annotated[Range, Key(doc="Bounds that every value stays in.")] = Range()

    def __post_init__(self) -> None:
        if self.form not in ("product", "sum"):
            raise ValueError(f"form is product or sum, not {self.form}")

    def next(self, previous: float, context: Context) -> float:
        """`previous`, moved by the context."""
        doublings = (
            self.size * math.log2(context.size)
            + self.loss * math.log2(context.loss)
            + self.time * math.log2(context.time)
            + self.batch * math.log2(context.batch)
        )
        return self.bounds.clip(previous + doublings if self.form == "sum" else previous * 2.0**doublings)
