"""Which results of a run a work list shows, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Category
from fieldray.domain.history import VerdictFilter

ListColumn = Literal["image", "patient", "date", "view", "class", "score", "backend", "ms", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFilter:
    """Which results are wanted.

    Attributes
    ----------
    category
        The only class, None for all.
    backend
        What ran the model, "" for anything.
    verdict
        Results with such a verdict.
    text
        Part of the patient's name, the number, the study date or the file name, whatever its case.
    staying
        Rows that stay whatever verdict is on them: those that were judged since the verdict was chosen.
    """

    category: Category | None = None
    backend: str = ""
    verdict: VerdictFilter = "any"
    text: str = ""
    staying: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ResultOrder:
    """What results are sorted by: without a column by class, what needs eyes first on top; so are equal ones."""

    column: ListColumn = "class"
    is_descending: bool = False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Listed:
    """What a work list holds at a moment.

    Attributes
    ----------
    row_ids
        (n,) int64, the rows of the results that are wanted, in order.
    counts
        All images of the run by class, whatever is wanted.
    """

    row_ids: NDArray[np.int64]
    counts: Mapping[Category, int] = field(default_factory=dict)
