"""Generated DICOM files: headers in every encoding with sequences and character sets, and fragmented pixel data."""

from __future__ import annotations

import functools
import io
import random
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pydicom
from pydicom.encaps import generate_fragments

from fieldray.domain.image import ImageRef
from fieldray.imaging.identify import identify
from fieldray.imaging.limits import DicomdirFound, ZipFound
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.synthetic import chest_phantom
from fieldray.store.rows import ref_of, ref_text
from fuzz.structures.dicom_elements import PIXELS, Element, Encoding, Item, binary, break_elements
from fuzz.structures.target import holds
from phantoms import LOSSLESS, LOSSY, write_dicom

_DEFLATED: Final = b"1.2.840.10008.1.2.1.99"
_ENCODINGS: Final = (
    (b"1.2.840.10008.1.2", Encoding(is_implicit=True)),
    (b"1.2.840.10008.1.2.1", Encoding()),
    (b"1.2.840.10008.1.2.1", Encoding()),
    (b"1.2.840.10008.1.2.2", Encoding(is_little=False)),
    (_DEFLATED, Encoding()),
)
_STRANGE_SYNTAXES: Final = (b"", b"1.2.3", b"1.2.840.10008.1.2.4.999", b"1.2.840.10008.1.2.4.110", b"x" * 300, b"\0")
# How many places of a structure are broken: often none, so that valid structures are read, too, and rarely many.
PLACES: Final = (0, 1, 1, 1, 2, 2, 3, 5)
_TEXTS: Final[tuple[tuple[int, bytes, tuple[bytes, ...]], ...]] = (

    (0x00080005, b"CS", (b"ISO_IR 100", b"ISO_IR 192", b"\\ISO 2022 IR 87", b"ISO_IR 6\\ISO 2022 IR 149", b"GB18030")),
    (0x00080016, b"UI", (b"1.2.840.10008.5.1.4.1.1.1", b"1.2.840.10008.5.1.4.1.1.88.22", b"1.2.840.10008.1.3.10")),
    (0x00080018, b"UI", (b"2.25.1", b"1.2.3.4")), (0x00080020, b"DA", (b"20240131", b"")),
    (0x00080030, b"TM", (b"101112.123", b"1011")), (0x00080050, b"SH", (b"A1", b"")),
    (0x00080060, b"CS", (b"DX", b"CR", b"CT")), (0x00080070, b"LO", (b"Maker",)),
    (0x00081030, b"LO", (b"Chest", b"\xd0\x93\xd1\x80")),
    (0x00100010, b"PN", (b"Doe^Jane", b"\x1b$BYamada\x1b(B^Taro=\xbb\xb3", b"A^B=C=D", b"^^^^")),
    (0x00100020, b"LO", (b"7", b"P 1")), (0x00100030, b"DA", (b"19800101",)), (0x00100040, b"CS", (b"F", b"M", b"")),
    (0x00101010, b"AS", (b"045Y", b"003M", b"45", b"")), (0x00180015, b"CS", (b"CHEST", b"HAND")),
    (0x00185101, b"CS", (b"PA", b"AP", b"LL")), (0x0020000D, b"UI", (b"1.2.3", b"")),
    (0x0020000E, b"UI", (b"1.2.3.1",)), (0x00200010, b"SH", (b"1",)), (0x00200062, b"CS", (b"U",)),
    (0x00280030, b"DS", (b"0.14\\0.14", b"0.1")), (0x00281050, b"DS", (b"2048", b"127.5\\40", b"0")),
    (0x00281051, b"DS", (b"4096", b"255\\400", b"1")), (0x00281052, b"DS", (b"0", b"-1024")),
    (0x00281053, b"DS", (b"1", b"0.5", b"-2")), (0x00281056, b"CS", (b"LINEAR", b"SIGMOID", b"LINEAR_EXACT")),
    (0x20500020, b"CS", (b"IDENTITY", b"INVERSE")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Picture:
    """An encoded frame of an image, its transfer syntax, and its size in pixels and bits."""

    syntax: bytes
    frame: bytes
    rows: int = 40
    columns: int = 32
    allocated: int = 16
    stored: int = 12


# ---- headers


def _header(chance: random.Random, *, is_little: bool) -> list[Element]:
    elements = [
        Element(tag, representation, chance.choice(values))
        for tag, representation, values in _TEXTS
        if chance.random() < 0.6
    ]
    if chance.random() < 0.4:
        elements.append(_sequence(chance, is_little=is_little))
    if chance.random() < 0.2:
        elements += [Element(0x00290010, b"LO", b"MAKER"), Element(0x00291001, b"UN", bytes(20))]
    if chance.random() < 0.1:
        elements.append(_table(chance, 0x00283010, is_little=is_little))
    if chance.random() < 0.05:
        elements.append(_table(chance, 0x00283000, is_little=is_little))
    return elements


def _sequence(chance: random.Random, *, is_little: bool, depth: int = 0) -> Element:
    """Make nested coded concepts, with and without stated lengths."""
    items: list[Item] = []
    for _ in range(chance.randrange(4)):
        inner = [Element(0x00080100, b"SH", b"T-D3000"), Element(0x00080104, b"LO", b"Chest")]
        if depth < 4 and chance.random() < 0.5:
            inner.append(_sequence(chance, is_little=is_little, depth=depth + 1))
        items.append(Item(list[Element](inner), is_undefined=chance.random() < 0.5))
    tag = chance.choice((0x00400275, 0x00540220, 0x00082218, 0x00089215, 0x00091010))
    return Element(tag, b"SQ", items, is_undefined=chance.random() < 0.5)


def _table(chance: random.Random, tag: int, *, is_little: bool) -> Element:
    count = chance.choice((2, 16, 256))
    descriptor = binary(b"US", count, chance.choice((0, 0xFC18)), chance.choice((8, 12, 16)), is_little=is_little)
    data = binary(b"US", *range(count), is_little=is_little)
    content = [Element(0x00283002, b"US", descriptor), Element(0x00283006, chance.choice((b"OW", b"US")), data)]
    return Element(tag, b"SQ", [Item(list[Element](content))], is_undefined=chance.random() < 0.5)


def _geometry(picture: _Picture, frames: int, chance: random.Random, *, is_little: bool) -> list[Element]:
    samples = 1 if picture.allocated != 8 or chance.random() < 0.8 else 3
    numbers = (
        (0x00280002, samples),
        (0x00280010, picture.rows),
        (0x00280011, picture.columns),
        (0x00280100, picture.allocated),
        (0x00280101, picture.stored),
        (0x00280102, picture.stored - 1),
        (0x00280103, chance.choice((0, 0, 0, 1))),
    )
    kind = b"RGB" if samples == 3 else chance.choice((*[b"MONOCHROME2"] * 6, b"MONOCHROME1", b"PALETTE COLOR"))
    elements = [Element(0x00280004, b"CS", kind)]
    if kind == b"PALETTE COLOR":
        descriptor, ramp = (binary(b"US", *values, is_little=is_little) for values in ((256, 0, 16), range(256)))
        elements += [Element(0x00281101 + colour, b"US", descriptor) for colour in range(3)]
        elements += [Element(0x00281201 + colour, b"OW", ramp) for colour in range(3)]
    elements += [Element(tag, b"US", binary(b"US", number, is_little=is_little)) for tag, number in numbers]
    if frames > 1 or chance.random() < 0.2:
        elements.append(Element(0x00280008, b"IS", b"%d" % frames))
    if chance.random() < 0.1:
        elements.append(Element(0x00280120, b"US", binary(b"US", chance.choice((0, 4095)), is_little=is_little)))
    return elements


def _meta(syntax: bytes, chance: random.Random, *, media_storage_sop_class_uid: bytes) -> list[Element]:
    return [
        Element(0x00020000, b"UL", binary(b"UL", 120)),
        Element(0x00020001, b"OB", b"\0\1"),
        Element(0x00020002, b"UI", media_storage_sop_class_uid),
        Element(0x00020003, b"UI", b"2.25.1"),
        Element(0x00020010, b"UI", syntax if chance.random() < 0.95 else chance.choice(_STRANGE_SYNTAXES)),
    ]


def dicom_file(
    elements: list[Element],
    syntax: bytes,
    encoding: Encoding,
    chance: random.Random,
    *,
    places: int,
    media_storage_sop_class_uid: bytes = b"1.2.840.10008.5.1.4.1.1.1",
) -> bytes:
    """Return a file of these elements with meta information, broken at `places` places before or after writing."""
    meta = _meta(syntax, chance, media_storage_sop_class_uid=media_storage_sop_class_uid)
    for _ in range(places):
        way = chance.random()
        if way < 0.08:
            break_elements(meta, chance, places=1)
        elif way < 0.9:
            break_elements(elements, chance, places=1)
    if places and chance.random() < 0.04:
        encoding = chance.choice(_ENCODINGS)[1]  # an encoding that contradicts the transfer syntax
    body = encoding.written(elements)
    if syntax == _DEFLATED:
        body = _deflated(body, chance, places=places)
    preamble = bytes(128) + b"DICM" if not places or chance.random() < 0.97 else b""
    data = preamble + (Encoding().written(meta) if chance.random() < 0.98 else b"") + body
    if places and chance.random() < 0.1:
        data = data[: chance.randrange(len(data) + 1)]
    return data


def _deflated(body: bytes, chance: random.Random, *, places: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = bytearray(packer.compress(body) + packer.flush())
    if places and chance.random() < 0.3:
        packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
    return bytes(packed) + (b"\0" if chance.random() < 0.5 else b"")


def make_header(chance: random.Random) -> bytes:
    """Make a DICOM file with a random header and trivial pixels."""
    syntax, encoding = chance.choice(_ENCODINGS)
    picture = _Picture(syntax, b"", rows=2, columns=2, stored=16)
    frames = chance.choice((1, 1, 1, 2, 300, 301))
    elements = _header(chance, is_little=encoding.is_little)
    elements += _geometry(picture, frames, chance, is_little=encoding.is_little)
    elements.sort(key=lambda element: element.tag)
    elements.append(Element(PIXELS, b"OW", bytes(8)))
    return dicom_file(elements, syntax, encoding, chance, places=chance.choice(PLACES))


def read_header(data: bytes, _folder: Path) -> str | None:
    """Read the header as discovery does. Valid references must survive being stored."""
    ref = ImageRef(path=Path("a.dcm"))
    found = identify(io.BytesIO(data), ref)
    if isinstance(found, list):
        holds(0 < len(found) <= 300, f"{len(found)} images in one file")
        for one in found[:2]:
            holds(ref_of(ref_text(one)) == one, "a reference that is another when it is read again")
            numbers = (one.header.rows, one.header.columns, one.header.bits_stored, one.header.number_of_frames)
            holds(all(0 <= number < 2**31 for number in numbers), "a number that DICOM does not have")
    return type(found).__name__ if isinstance(found, DicomdirFound | ZipFound) else None


# ---- pixels


@functools.cache
def _pictures() -> tuple[_Picture, ...]:
    """Return a small image in each transfer syntax, made by real encoders."""
    image, made = chest_phantom(40, 32, 7, abnormal=False), []
    with tempfile.TemporaryDirectory() as folder:
        for name, syntax in {**LOSSLESS, **LOSSY}.items():
            bits = 8 if name == "jpeg-baseline" else 12
            path = write_dicom(Path(folder) / name, image, transfer_syntax=syntax, bits=bits)
            dataset = pydicom.dcmread(path)
            data = dataset.PixelData
            frame = b"".join(list(generate_fragments(data))[1:]) if syntax.is_encapsulated else data
            made.append(_Picture(syntax.encode(), frame, allocated=8 if bits == 8 else 16, stored=bits))
    return tuple(made)


def _fragments(picture: _Picture, frames: int, chance: random.Random) -> Element:
    """Make encapsulated pixel data with or without an offset table. Each frame has one or several fragments."""
    items: list[Item] = []
    offsets, at = [], 0
    for _ in range(frames):
        offsets.append(at)
        frame = picture.frame
        cuts = sorted(chance.randrange(0, len(frame), 2) for _ in range(chance.choice((0, 0, 0, 1, 3))))
        for start, stop in zip((0, *cuts), (*cuts, len(frame)), strict=True):
            items.append(Item(frame[start:stop]))
            at += 8 + stop - start
    has_table = chance.random() < 0.5
    if has_table and chance.random() < 0.2:
        offsets[chance.randrange(frames)] = chance.choice((1, 7, at, at + 8, 2**31, 2**32 - 1))
    table = struct.pack(f"<{frames}I", *offsets) if has_table else b""
    return Element(PIXELS, b"OB", [Item(table), *items], is_undefined=True)


def make_pixels(chance: random.Random) -> bytes:
    """Make a DICOM file with a random header and random pixel data."""
    picture = chance.choice(_pictures())
    encoding = next((each for syntax, each in _ENCODINGS if syntax == picture.syntax), Encoding())
    is_native = any(syntax == picture.syntax for syntax, _ in _ENCODINGS)
    frames = chance.choice((1, 1, 1, 1, 2, 3))
    pixels = Element(PIXELS, b"OW", picture.frame * frames) if is_native else _fragments(picture, frames, chance)
    elements = _header(chance, is_little=encoding.is_little)
    elements += _geometry(picture, frames, chance, is_little=encoding.is_little)
    elements.sort(key=lambda element: element.tag)
    elements.append(pixels)
    return dicom_file(elements, picture.syntax, encoding, chance, places=chance.choice(PLACES))


def read_pixels(data: bytes, _folder: Path) -> None:
    """Decode the image as a worker does, at full or reduced resolution."""
    ref = ImageRef(path=Path("a.dcm"), frame=int(len(data) % 7 == 0))
    image = decode_image_bytes(data, ref, needed_size=TargetSize(8, 8) if len(data) % 3 == 0 else None)
    rows, columns = image.reduced_size
    holds(rows * columns <= 400_000_000, "more pixels than may be read")
    holds(not image.pixels.flags.writeable, "pixels that can be changed")
