"""All cases, by group."""

from __future__ import annotations

from typing import Final

from attack import guard, images, models, packs, zips
from attack.case import Case

GROUPS: Final = (packs.CASES, models.CASES, images.CASES, zips.CASES, guard.CASES)
CASES: Final[tuple[Case, ...]] = tuple(case for group in GROUPS for case in group)
