"""All cases, by group."""

from __future__ import annotations

from typing import Final

from attack import files, guard, images, models, packs, processes, store, zips
from attack.case import Case

GROUPS: Final = (
    packs.CASES,
    models.CASES,
    images.CASES,
    zips.CASES,
    guard.CASES,
    store.CASES,
    files.CASES,
    processes.CASES,
)
CASES: Final[tuple[Case, ...]] = tuple(case for group in GROUPS for case in group)
