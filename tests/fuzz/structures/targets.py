"""Every part of the program that reads what others wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.structures import dicom_files, index_files, kept_files, messages, pack_files, zip_files
from fuzz.structures.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for module in (dicom_files, index_files, zip_files, pack_files, messages, kept_files)
    for target in module.TARGETS
}


def shares(names: tuple[str, ...], inputs: int) -> dict[str, int]:
    """How many of so many inputs each of these targets gets; one at least."""
    whole = sum(TARGETS[name].share for name in names)
    return {name: max(1, inputs * TARGETS[name].share // whole) for name in names}
