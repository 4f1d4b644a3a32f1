"""All cases of the attack run, and the cases of the power-cut run that start the whole program."""

from __future__ import annotations

from typing import Final

from attack import files, guard, images, models, outputs, packs, processes, zips
from harness.case import Case
from powercut import drives

ATTACKS: Final[tuple[Case, ...]] = tuple(
    case for group in (packs, models, images, zips, guard, files, processes, outputs) for case in group.CASES
)
POWERCUTS: Final[tuple[Case, ...]] = tuple(drives.CASES)
