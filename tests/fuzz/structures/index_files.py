"""Generated DICOMDIR files (PS3.10, 8.6 and PS3.3, F): records that form loops, are cut, or refer to wrong files."""

from __future__ import annotations

import functools
import os
import random
import struct
from pathlib import Path
from typing import BinaryIO, Final

from fieldray.imaging.discover import discover
from fieldray.imaging.source import open_file
from fuzz.structures.dicom_elements import Element, Encoding, Item, binary
from fuzz.structures.dicom_files import PLACES, dicom_file
from fuzz.structures.target import holds

_INDEX_CLASS: Final = b"1.2.840.10008.1.3.10"
_PLAIN: Final = (b"1.2.840.10008.1.2.1", Encoding())
_OTHERS: Final = (
    (b"1.2.840.10008.1.2", Encoding(is_implicit=True)),
    (b"1.2.840.10008.1.2.2", Encoding(is_little=False)),
    (b"1.2.840.10008.1.2.1.99", Encoding()),
)
_KINDS: Final = (b"PATIENT", b"STUDY", b"SERIES", b"IMAGE")
_FILES: Final = (
    b"IMAGES\\ONE", b"IMAGES\\TWO", b"IMAGES\\ONE.;1", b"images\\one", b"LOWER\\THREE", b"Lower\\Three.Dcm", b"TEXT",
    b"GONE", b"IMAGES\\GONE", b"IMAGES\\" * 8 + b"ONE", b"LOOP\\LOOP\\IMAGES\\ONE", b"LINK", b"IMAGES", b"DICOMDIR",
)  # fmt: skip
_STRANGE_FILES: Final = (
    b"", b"\\", b"\\\\", b"..", b"..\\..\\etc\\passwd", b"/etc/passwd", b".", b"IMAGES\\..\\TEXT", b"C:\\ONE",
    b"IMAGES/ONE", b"A" * 300, b"A\\" * 40, b"IMAGES\\ONE\\ONE", b"\xd0\x90", b"\xff\xfe", b"A\0B", b"CON", b"NUL.TXT",
    b'"', b"*", b"IMAGES\\", b"\x1b$B\\\x1b(B", b"TEXT\\ ", b" TEXT", b"IMAGES\\ONE ", b"A" * 9_000, b"\n", b"%s",
    b"LINK\\X", b"~",
)  # fmt: skip
_OFFSETS: Final = (0, 1, 0x1A0, 2**31, 2**32 - 1)


def make_index(chance: random.Random) -> bytes:
    """Make a DICOMDIR, mostly with a few patients."""
    syntax, encoding = _PLAIN if chance.random() < 0.85 else chance.choice(_OTHERS)
    records = _records(chance, is_little=encoding.is_little)
    sequence = Element(0x00041220, b"SQ", records, is_undefined=chance.random() < 0.3)
    elements = [
        Element(0x00041130, b"CS", b"CD"),
        _offset(0x00041200, chance, is_little=encoding.is_little),
        _offset(0x00041202, chance, is_little=encoding.is_little),
        Element(0x00041212, b"US", binary(b"US", 0)),
        sequence,
    ]
    places = chance.choice(PLACES)
    return dicom_file(elements, syntax, encoding, chance, places=places, media_storage_sop_class_uid=_INDEX_CLASS)


def _offset(tag: int, chance: random.Random, *, is_little: bool) -> Element:
    """Make an element with the offset of another record, which may be wrong."""
    return Element(tag, b"UL", binary(b"UL", chance.choice(_OFFSETS), is_little=is_little))


def _records(chance: random.Random, *, is_little: bool) -> list[Item]:
    count = chance.choice((0, 1, 4, 4, 8, 8, 12)) if chance.random() < 0.995 else 2_000
    is_undefined = chance.random() < 0.3
    strange = chance.choice((0.0, 0.0, 0.1, 0.5))
    records = []
    for number in range(count):
        kind = _KINDS[number % 4] if chance.random() < 0.95 else chance.choice((b"PRIVATE", b"MRDR", b"X", b""))
        content = [
            _offset(0x00041400, chance, is_little=is_little),
            Element(0x00041410, b"US", binary(b"US", chance.choice((0xFFFF, 0xFFFF, 0)), is_little=is_little)),
            _offset(0x00041420, chance, is_little=is_little),
            Element(0x00041430, b"CS", kind),
        ]
        if kind == b"IMAGE":
            name = chance.choice(_STRANGE_FILES) if chance.random() < strange else chance.choice(_FILES)
            content.append(Element(0x00041500, b"CS", name))
            content.append(Element(0x00041510, b"UI", b"1.2.840.10008.5.1.4.1.1.1"))
        if kind == b"PATIENT":
            content += [Element(0x00100010, b"PN", b"Doe^Jane"), Element(0x00100020, b"LO", b"7")]
        if chance.random() < 0.05:
            icon = [Element(0x00280010, b"US", binary(b"US", 64)), Element(0x7FE00010, b"OW", bytes(64))]
            content.append(Element(0x00880200, b"SQ", [Item(list[Element](icon))]))
        records.append(Item(list[Element](content), is_undefined=is_undefined))
    return records


def _image(number: int) -> bytes:
    """Return the smallest DICOM file that is an image."""
    elements = [Element(0x00080018, b"UI", b"2.25.%d" % number), Element(0x7FE00010, b"OW", b"\0\0")]
    body = Encoding().written(elements)
    return bytes(128) + b"DICM" + Encoding().written([Element(0x00020010, b"UI", _PLAIN[0])]) + body


@functools.cache
def write_medium(folder: Path) -> Path:
    """Write the files next to a DICOMDIR: images, a text, a link that forms a loop, and a link out of the folder."""
    medium = folder / "medium"
    for place, number in (("IMAGES/ONE", 1), ("IMAGES/TWO", 2), ("lower/three", 3), ("../outside/FOUR", 4)):
        (medium / place).parent.mkdir(parents=True, exist_ok=True)
        (medium / place).write_bytes(_image(number))
    (medium / "TEXT").write_bytes(b"no image")
    (medium / "LOOP").symlink_to(".")
    (medium / "LINK").symlink_to("../outside/FOUR")
    return medium


def read_index(data: bytes, folder: Path) -> str | None:
    """Search a DICOMDIR, or its folder, for images as discovery does."""
    medium = write_medium(folder)
    index, top = medium / "DICOMDIR", os.path.realpath(medium) + os.sep

    def inside(path: Path) -> BinaryIO:
        holds(os.path.realpath(path).startswith(top), f"{path} lies outside and was opened")
        return open_file(path)

    index.write_bytes(data)
    is_whole_folder = data and struct.unpack("B", data[-1:])[0] % 4 == 0
    paths, opener = ([medium], open_file) if is_whole_folder else ([index], inside)
    refs = list(discover(paths, opener=opener))
    holds(refs, "a DICOMDIR that stands for nothing")
    holds(len({ref.key for ref in refs}) == len(refs), "an image is given twice")
    if is_whole_folder:
        found = {os.path.realpath(ref.path) for ref in refs}
        images = {top + name for name in ("IMAGES/ONE", "IMAGES/TWO", "lower/three")}
        holds(found >= images, "images of its folder are lost")
    problems = [ref.problem.code for ref in refs if ref.problem]
    holds("internal" not in problems, "an image for which nobody thought of a reason")
    return next((ref.problem.code for ref in refs if ref.path == index and ref.problem), None)
