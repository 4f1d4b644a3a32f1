"""Parameters of an experiment, and the samples that its tasks are run with.

The rule: form the Cartesian product of the discrete parameters; take n of it with the fewest repetitions; draw n
numbers for each continuous range; combine by index. Up to the size of the product nothing is repeated; beyond it each
combination appears as often as any other, or once more.

Source: D. Buniatyan's thesis on Hyper.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

Value = int | float | str | bool
Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Values that a placeholder takes: one constant, several discrete ones, or a continuous range.

    Attributes
    ----------
    values
        One value is a constant; empty for a range.
    low, high
        Of a range, both within it.
    scale
        Whether numbers are drawn evenly between them (linear), or their logarithms are (log).
    """

    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "linear"
    is_constant: bool = False

    def __post_init__(self) -> None:
        if self.values:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError("must have a low below its high")
        if self.scale == "log" and self.low <= 0:
            raise ValueError("must have a low above 0 where the scale is log")

    @property
    def is_range(self) -> bool:
        """Whether it is continuous."""
        return not self.values

    @classmethod
    def from_document(cls, value: object) -> Parameter:
        """From a TOML value: a list is discrete, a table is a range, anything else a constant. Raises ValueError."""
        if _is_value(value):
            return cls(values=(value,), is_constant=True)
        if isinstance(value, list):
            known = tuple(item for item in value if _is_value(item))
            if not value or len(known) != len(value):
                raise ValueError("must be a list of numbers, texts, true and false, and not empty")
            if len({(type(item), item) for item in known}) != len(known):
                raise ValueError("must not name a value twice")
            return cls(values=known)
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a value, a list or a range {{ low = 1.0, high = 2.0 }}, not {value}")
        unknown = set(value) - {"low", "high", "scale"}
        if unknown or not {"low", "high"} <= set(value):
            raise ValueError("must have low and high, may have scale, and has no other key")
        if not all(isinstance(value[key], int | float) and not isinstance(value[key], bool) for key in ("low", "high")):
            raise ValueError("must have numbers as low and high")
        if value.get("scale", "linear") not in get_args(Scale):
            raise ValueError(f"must have one of {', '.join(get_args(Scale))} as scale, not {value['scale']}")
        return cls(low=float(value["low"]), high=float(value["high"]), scale=value.get("scale", "linear"))


def combinations(parameters: Mapping[str, Parameter]) -> int:
    """Size of the product of the discrete parameters; 1 where there is none."""
    return math.prod(len(known.values) for known in parameters.values() if not known.is_range)


def samples(parameters: Mapping[str, Parameter], *, count: int, seed: int | str) -> list[dict[str, Value]]:
    """The values of `count` tasks, each a value by parameter; the same seed gives the same.

    Raises ValueError for a negative count.
    """
    if count < 0:
        raise ValueError("a count of samples is 0 or more")
    generator = random.Random(f"{seed}")
    discrete = {name: known.values for name, known in parameters.items() if not known.is_range}
    chosen = _spread(combinations(parameters), count, generator)
    drawn = {
        name: [_draw(known, generator) for _ in range(count)] for name, known in parameters.items() if known.is_range
    }
    rows = []
    for index, number in enumerate(chosen):
        row = _combination(discrete, number) | {name: numbers[index] for name, numbers in drawn.items()}
        rows.append({name: row[name] for name in parameters})
    return rows


def _spread(size: int, count: int, generator: random.Random) -> list[int]:
    """`count` numbers below `size`, none of them more than once more often than another, in a random order."""
    rounds, left = divmod(count, size)
    found = [number for _ in range(rounds) for number in generator.sample(range(size), size)]
    return found + generator.sample(range(size), left)


def _combination(discrete: Mapping[str, Sequence[Value]], number: int) -> dict[str, Value]:
    """The combination of that number, the last parameter counting fastest, as in `itertools.product`."""
    found = {}
    for name in reversed(tuple(discrete)):
        number, index = divmod(number, len(discrete[name]))
        found[name] = discrete[name][index]
    return found


def _draw(known: Parameter, generator: random.Random) -> float:
    if known.scale == "log":
        number = math.exp(generator.uniform(math.log(known.low), math.log(known.high)))
    else:
        number = generator.uniform(known.low, known.high)
    return min(max(number, known.low), known.high)  # rounding may lead out of the range


def _is_value(value: object) -> TypeGuard[Value]:
    return isinstance(value, int | float | str | bool) and not (isinstance(value, float) and math.isnan(value))
