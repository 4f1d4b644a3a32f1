"""Whether files say how old a patient is, as far as their names tell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_WITHOUT_AGE: Final = (".png", ".jpg", ".jpeg", ".zip")
_MOST_NAMES: Final = 20_000


def may_lack_ages(paths: Sequence[Path]) -> bool:
    """Whether images among these may not say how old a patient is: PNG, JPEG, and what is in a zip.

    By their names alone, and of so many files that it cannot be told quickly, yes.
    """
    seen = 0
    for path in paths:
        if path.name.lower().endswith(_WITHOUT_AGE):
            return True
        for _, _, names in os.walk(path):
            seen += len(names)
            if seen > _MOST_NAMES or any(name.lower().endswith(_WITHOUT_AGE) for name in names):
                return True
    return False
