"""The lung fields of a result, where they were found."""

from __future__ import annotations

from typing import Any

from fieldray.domain.finding import Outcome


def lungs_of(outcome: Outcome) -> Any:
    """Stands in until screening keeps them."""
    return getattr(outcome, "lungs", None)
