"""Generated zip files (APPNOTE 6.3): every method, and wrong, overlapping, repeated or encrypted records, and bombs."""

from __future__ import annotations

import functools
import itertools
import os
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.imaging.discover import discover
from fieldray.imaging.whole_file import read_bytes
from fuzz.structures.dicom_files import PLACES, make_header
from fuzz.structures.target import holds, refusals

_TIMES: Final = itertools.count()
_METHODS: Final = (0, 0, 8, 8, 8)
_STRANGE_METHODS: Final = (1, 9, 12, 14, 20, 93, 95, 97, 98, 99, 65_535)
_NAMES: Final = (
    b"a.dcm", b"b.dcm", b"IMAGES/ONE", b"x/y/z.png", b"c.jpg", "знімок.dcm".encode(), b"\x8f\x90.dcm", b"folder/",
    b"A.DCM", b"a.dcm",
)  # fmt: skip
_STRANGE_NAMES: Final = (
    b"", b"/", b"..", b"../../x.dcm", b"/etc/passwd", b"C:\\x.dcm", b"a\0b", b"\n", b".hidden", b"__MACOSX/x",
    b"a" * 5_000, b"\xff\xfe", b"\xed\xa0\x80", b"mimetype", b"[Content_Types].xml", b"META-INF/MANIFEST.MF", b"%s",
    b"~", b"a//b", b"./a", b"a\\b", b"CON", b"!", b"#", b"a.dcm/", b"\xe2\x80\xaegnp.x",
)  # fmt: skip
_NUMBERS_16: Final = (0, 1, 2, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_NUMBERS_32: Final = (0, 1, 2, 22, 46, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_NUMBERS_64: Final = (0, 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(slots=True)
class Member:
    """A member with the values of its local header and of its entry in the central directory.

    `local_name` and `local_extra` are of the local header alone. If not `stands`, the member has only the entry.
    """

    name: bytes
    data: bytes
    method: int
    flags: int = 0
    version: int = 20
    crc: int = 0
    packed_size: int = 0
    size: int = 0
    offset: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    local_name: bytes | None = None
    local_extra: bytes = b""
    mark: bytes = b"PK\x03\x04"
    stands: bool = True
    date: int = 0x21


@functools.cache
def _contents() -> tuple[bytes, ...]:
    """Return contents for members: DICOM headers, the beginning of a PNG and of a JPEG, a text, another zip file..."""
    chance = random.Random("contents of zip files")
    headers = [make_header(chance) for _ in range(24)]
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 64, 48) + b"\x08\0\0\0\0"
    jpeg = b"\xff\xd8\xff\xc0\0\x0b\x08\0\x40\0\x30\x01\x01\x11\0\xff\xd9"
    zip_file = written([_whole(b"a", b"x", 0)], Ends())
    return (*headers, png, jpeg, b"a text", b"", zip_file, bytes(3_000), b"MZ" + bytes(100))


@functools.cache
def _packed(data: bytes, method: int) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush() if method == 8 else data


@functools.cache
def _bomb() -> bytes:
    """Return 30 MB of zeros, deflated to a few kilobytes."""
    return _packed(bytes(30 * 2**20), 8)


def _whole(name: bytes, data: bytes, method: int) -> Member:
    packed = _packed(data, method)
    member = Member(name, packed, method, crc=zlib.crc32(data), packed_size=len(packed), size=len(data))
    member.flags = 0x800 if not name.isascii() else 0
    return member


@dataclass(slots=True)
class Ends:
    """The values in the records at the end of the zip file. None stands for the correct value."""

    count: int | None = None
    size: int | None = None
    offset: int | None = None
    comment: bytes = b""
    has_64: bool = False
    count_64: int | None = None
    size_64: int | None = None
    offset_64: int | None = None
    copies: int = 1
    prefix: bytes = b""


def written(listed: Sequence[Member], ends: Ends) -> bytes:
    """Return a zip file: these members with their local headers, then the central directory and the end records."""
    parts, entries, at = [ends.prefix], [], len(ends.prefix)
    for member in listed:
        name = member.name if member.local_name is None else member.local_name
        common = _common(member, len(name), len(member.local_extra))
        local = member.mark + common + name + member.local_extra + member.data if member.stands else b""
        offset = at if member.offset is None else member.offset
        central = b"PK\x01\x02" + struct.pack("<H", 20) + _common(member, len(member.name), len(member.extra))
        central += struct.pack("<HHHII", len(member.comment), 0, 0, 0, offset & 0xFFFFFFFF)
        entries.append(central + member.name + member.extra + member.comment)
        parts.append(local)
        at += len(local)
    directory = b"".join(entries)
    parts.append(directory)
    count, size, offset = len(listed), len(directory), at
    if ends.has_64:
        numbers = (ends.count_64, ends.count_64, ends.size_64, ends.offset_64)
        true = (count, count, size, offset)
        stated = [found if value is None else value for value, found in zip(numbers, true, strict=True)]
        parts.append(b"PK\x06\x06" + struct.pack("<QHHII4Q", 44, 45, 45, 0, 0, *stated))
        parts.append(b"PK\x06\x07" + struct.pack("<IQI", 0, at + size, 1))
        count, size, offset = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    count, size, offset = (
        true if value is None else value
        for value, true in zip((ends.count, ends.size, ends.offset), (count, size, offset), strict=True)
    )
    end = struct.pack("<HHHHIIH", 0, 0, count & 0xFFFF, count & 0xFFFF, size, offset & 0xFFFFFFFF, len(ends.comment))
    parts += [b"PK\x05\x06" + end + ends.comment] * ends.copies
    return b"".join(parts)


def _common(member: Member, name: int, extra: int) -> bytes:
    sizes = (member.crc, member.packed_size & 0xFFFFFFFF, member.size & 0xFFFFFFFF, name & 0xFFFF, extra & 0xFFFF)
    return struct.pack("<HHHHHIIIHH", member.version, member.flags, member.method, 0, member.date, *sizes)


def make_zip(chance: random.Random) -> bytes:
    """Make a zip file with a few members."""
    listed = [
        _whole(chance.choice(_NAMES), chance.choice(_contents()), chance.choice(_METHODS))
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5)))
    ]
    ends = Ends(comment=chance.choice((b"", b"", b"a comment")), has_64=chance.random() < 0.15)
    is_cut = False
    for _ in range(chance.choice(PLACES)):
        way = chance.random()
        if way < 0.75 and listed:
            _break_member(listed, chance.randrange(len(listed)), chance)
        elif way < 0.95:
            _break_ends(ends, chance)
        else:
            is_cut = True
    data = written(listed, ends)
    return data[: chance.randrange(len(data) + 1)] if is_cut else data


def _break_member(listed: list[Member], index: int, chance: random.Random) -> None:
    """Break a value that a member states, or its position, bytes or repetition."""
    if chance.random() < 0.6:
        _break_record(listed[index], chance)
    else:
        _break_place(listed, index, chance)


def _break_record(member: Member, chance: random.Random) -> None:
    near = [max(0, member.size + step) for step in (-1, 1)]
    values: dict[str, Sequence[object]] = {
        "name": _STRANGE_NAMES,
        "local_name": _STRANGE_NAMES,
        "method": (*_STRANGE_METHODS, *_METHODS),
        "flags": (1, 0x8, 0x20, 0x40, 0x800, 0x2000, 0xFFFF),
        "size": (*_NUMBERS_32, *near),
        "packed_size": (*_NUMBERS_32, *near, len(member.data) + 1),
        "crc": (member.crc ^ 1, 0),
        "extra": (_extra(chance),),
        "local_extra": (b"\1\0", bytes(60_000), _extra(chance)),
    }
    name = chance.choice(tuple(values))
    setattr(member, name, chance.choice(values[name]))


def _break_place(listed: list[Member], index: int, chance: random.Random) -> None:
    member, way = listed[index], chance.randrange(7)
    if way == 0:
        member.offset = chance.choice((*_NUMBERS_32, chance.randrange(2_000)))
    elif way == 1:
        member.mark, member.stands = chance.choice(((b"PK\1\2", True), (b"\0" * 4, True), (b"PK\3\4", False)))
    elif way == 2:
        listed[index:index] = [member] * chance.choice((1, 2, 40))  # equal members, each with its own bytes
    elif way == 3:  # overlapping members: further names for the same bytes
        listed += [_twin(member, b"%d.dcm" % number) for number in range(chance.choice((1, 3, 60)))]
    elif way == 4:
        at = chance.randrange(len(member.data) + 1)
        member.data = member.data[:at] + chance.choice((b"", b"\xff", bytes(9))) + member.data[at + 1 :]
    elif way == 5 and chance.random() < 0.1:
        member.method, member.data, member.packed_size = 8, _bomb(), len(_bomb())
        member.size = chance.choice((30 * 2**20, 100, 2**31, 2**32 - 1, 20 * 2**20))
    else:
        member.comment, member.date = chance.choice((b"", b"c" * 40_000)), chance.choice((0, 0xFFFF, 0x1C0))


def _twin(member: Member, name: bytes) -> Member:
    return Member(
        name, member.data, member.method, member.flags,
        crc=member.crc, packed_size=member.packed_size, size=member.size, offset=member.offset or 0, stands=False,
    )  # fmt: skip


def _extra(chance: random.Random) -> bytes:
    """Make an extra field: sizes of zip64, a Unicode name, or another; it may be cut or state a wrong length."""
    kind = chance.choice((1, 1, 1, 0x7075, 0x6375, 0x5455, 0x9901, 0, 0xFFFF))
    numbers = b"".join(struct.pack("<Q", chance.choice(_NUMBERS_64)) for _ in range(chance.randrange(4)))
    content = numbers if kind == 1 else chance.choice((b"\1\0\0\0\0a.dcm", b"\2", b"", b"\1" + bytes(4) + b"\xff\xfe"))
    return struct.pack("<HH", kind, chance.choice((len(content), len(content), *_NUMBERS_16))) + content


def _break_ends(ends: Ends, chance: random.Random) -> None:
    values: dict[str, Sequence[object]] = {
        "count": _NUMBERS_16,
        "size": (*_NUMBERS_32, 100, 2**24),
        "offset": (*_NUMBERS_32, chance.randrange(2_000)),
        "comment": (b"PK\5\6" + bytes(18), b"c" * 65_535, b"PK\6\6" + bytes(52), b"PK\6\7" + bytes(16)),
        "count_64": _NUMBERS_64,
        "size_64": (*_NUMBERS_64, 2**25),
        "offset_64": _NUMBERS_64,
        "copies": (0, 2, 3),
        "prefix": (b"MZ" + bytes(300), b"PK\3\4", b"x"),
    }
    name = chance.choice(tuple(values))
    setattr(ends, name, chance.choice(values[name]))
    ends.has_64 = ends.has_64 or name.endswith("_64")


def read_zip(data: bytes, folder: Path) -> str | None:
    """List a zip file and read its members as a worker does, and read the list as the program does."""
    zip_file = folder / "a.zip"
    zip_file.write_bytes(data)
    os.utime(zip_file, ns=(0, next(_TIMES)))  # else inputs of equal size seem unchanged
    refs, lost = [], list[str]()
    for ref in discover([zip_file]):
        refs.append(ref)
        holds(len(refs) <= 70_000, "a list without end")
        holds(not ref.problem or ref.problem.code != "internal", "a member for which nobody thought of a reason")
    for ref in list({one.zip_member: one for one in refs if one.zip_member is not None}.values())[:8]:
        with refusals() as why:
            holds(len(read_bytes(ref)) <= 31 * 2**20, "more than was packed")
        lost += why
    return lost[0] if lost else None
