"""All cases, by group."""

from __future__ import annotations

from typing import Final

from attack import files, guard, images, models, outputs, packs, processes, store, zips
from attack.case import Case

GROUPS: Final = (packs, models, images, zips, guard, store, files, processes, outputs)
CASES: Final[tuple[Case, ...]] = tuple(case for group in GROUPS for case in group.CASES)
