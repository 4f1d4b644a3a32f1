"""DICOM headers with values that are short in the file and huge as objects."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

_IMPLICIT: Final = b"1.2.840.10008.1.2\0"
_RADIOGRAPH: Final = b"1.2.840.10008.5.1.4.1.1.1\0"
_INDEX: Final = b"1.2.840.10008.1.3.10"
PIXELS: Final = struct.pack("<HHI", 0x7FE0, 0x0010, 2) + b"\0\0"


def element(tag: int, value: bytes) -> bytes:
    """Return a data element with implicit value representation."""
    return struct.pack("<HHI", tag >> 16, tag & 0xFFFF, len(value)) + value


def dicom_file(
    *elements: bytes, media_storage_sop_class_uid: bytes = b"1.2.840.10008.5.1.4.1.1.1\0", syntax: bytes = _IMPLICIT
) -> bytes:
    """Return a DICOM file with implicit value representation and these elements."""
    meta = b"".join(
        struct.pack("<HH2sH", 2, number, b"UI", len(value)) + value
        for number, value in ((2, media_storage_sop_class_uid), (0x10, syntax))
    )
    return bytes(128) + b"DICM" + meta + b"".join(elements)


def index_file(records: bytes) -> bytes:
    """Return a DICOMDIR with these bytes as its records."""
    return dicom_file(element(0x00041220, records), media_storage_sop_class_uid=_INDEX)


def record(*elements: bytes) -> bytes:
    """Return an item of a sequence."""
    return element(0xFFFEE000, b"".join(elements))


HOSTILE: Final[Mapping[str, Callable[[], bytes]]] = {
    "whole-numbers": lambda: dicom_file(element(0x00280008, b"1\\" * 400_000), PIXELS),
    "words": lambda: dicom_file(element(0x00280010, b"\1\0" * 10_000_000), PIXELS),
    "texts": lambda: dicom_file(element(0x00100020, b"A\\" * 4_000_000), PIXELS),
    "names": lambda: dicom_file(element(0x00100010, b"A\\" * 600_000), PIXELS),
    "identifiers": lambda: dicom_file(element(0x00080018, b"1\\" * 800_000), PIXELS),
    "character-sets": lambda: dicom_file(element(0x00080005, b"ISO_IR 6\\" * 1_000_000), PIXELS),
    "items": lambda: index_file(record() * 200_000),
    "items-undefined": lambda: dicom_file(
        struct.pack("<HHI", 4, 0x1220, 0xFFFFFFFF) + record() * 200_000, media_storage_sop_class_uid=_INDEX
    ),
    "components": lambda: index_file(record(element(0x00041500, b"A\\" * 4_000))),
}
