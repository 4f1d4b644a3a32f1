"""How a DICOM file of this program is told from any other: by its writer's name in the file meta information."""

from __future__ import annotations

from typing import Final

VERSION_NAME: Final = "FIELDRAY_REPORT"
_PREAMBLE: Final = 128
_META_BYTES: Final = 1024


def is_own(head: bytes) -> bool:
    """Whether a file that begins with `head` is a DICOM report of this program."""
    meta = head[_PREAMBLE : _PREAMBLE + _META_BYTES]
    return meta.startswith(b"DICM") and VERSION_NAME.encode() in meta
