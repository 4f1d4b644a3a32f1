"""Content is known by its first bytes."""

from __future__ import annotations

import struct

import pytest

from fieldray.imaging.identify import sniff


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("group", [0x0002, 0x0008])
def test_dicom_without_a_preamble_begins_with_an_element_in_either_byte_order(order: str, group: int) -> None:
    for element in (0x0000, 0x0005, 0x0016):
        head = struct.pack(order + "HH", group, element) + b"CS" + struct.pack(order + "H", 10) + b"ISO_IR 192"
        assert sniff(head) == "dicom"


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">HH", 0x0002, 0x0005) + b"xx" + bytes(20),  # big-endian without a value representation
        struct.pack("<HHI", 0x0008, 0x0005, 63) + bytes(20),  # of odd length
        struct.pack("<HH", 0x0010, 0x0010) + b"PN" + bytes(20),  # a group that no file begins with
        struct.pack("<HH", 0x0008, 0x0005) + b"CS",
    ],
)
def test_what_only_looks_like_an_element_is_no_dicom(head: bytes) -> None:
    assert sniff(head) == "unknown"
