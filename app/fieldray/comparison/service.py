"""The comparison as a child process serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.compare import compare
from fieldray.comparison.features import band_pass
from fieldray.domain.comparison import Aligned, Alignment, FramedImage, Incomparable, PairComparison
from fieldray.processes.rpc import Call, served

SERVICE: Final = "fieldray.comparison.service:handle"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Pair:
    """The images to compare, and their features (rows, columns, channels) where a network made them."""

    prior: FramedImage
    current: FramedImage
    features: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Compared:
    """What came of it: a `PairComparison` without its images, which are known to who asks."""

    aligned: Aligned | None
    problem: Incomparable | None
    tried: Alignment | None
    reliability: float | None

    def of(self, pair: Pair) -> PairComparison:
        """With the images that it is of. Raises ValueError where it is nothing of the kind."""
        return PairComparison(
            prior=pair.prior,
            current=pair.current,
            aligned=self.aligned,
            problem=self.problem,
            tried=self.tried,
            reliability=self.reliability,
        )


COMPARE: Final = Call("compare", Pair, Compared)


def compare_pair(pair: Pair) -> Compared:
    """Compare two images."""
    given = iter(pair.features or ())
    found = compare(pair.prior, pair.current, features=(lambda _: next(given)) if pair.features else band_pass)
    return Compared(aligned=found.aligned, problem=found.problem, tried=found.tried, reliability=found.reliability)


handle: Final = served((COMPARE, compare_pair))
