"""How a setting of the pruning loop moves from one iteration to the next.

The four laws of the dissertation (Taran 2022, formulas 3.1-3.4): constant, linear, multiplicative, and dependent on
the context, which is how much size, loss and time changed in the last iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the last iteration changed, as ratios after / before, each above 0.

    size    of the number of parameters, at most 1
    loss    of the validation loss after retraining
    time    of the seconds per image
    batch   the batch size that the profile proposes for the network as it is now, over the one used last
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

    lowest: float = -math.inf
    highest: float = math.inf

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"lowest {self.lowest} is above highest {self.highest}")

    def clip(self, value: float) -> float:
        """The nearest value within the bounds."""
        return min(max(value, self.lowest), self.highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Always the same value (3.1)."""

    start: float

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002 - the same door as the other laws
        """The start value."""
        return self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A step added each time (3.2)."""

    start: float
    step: float
    bounds: Range = Range()

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` plus the step."""
        return self.bounds.clip(previous + self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplicative:
    """A factor each time (3.3)."""

    start: float
    factor: float
    bounds: Range = Range()

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ValueError(f"factor must be above 0: {self.factor}")

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` times the factor."""
        return self.bounds.clip(previous * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDependent:
    """Answers to what the last iteration changed (3.4).

    size, loss, time, batch    how strongly each ratio r of the context counts
    form                "product": previous * r ** strength, for settings that are above 0 (batch size, rate);
                        "sum": previous + strength * log2(r), for settings that may be 0 or negative (deviations)
    """

    start: float
    size: float = 0.0
    loss: float = 0.0
    time: float = 0.0
    batch: float = 0.0
    form: Literal["product", "sum"] = "product"
    bounds: Range = Range()

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
