"""Zip files that Python's own writer would not make."""

from __future__ import annotations

import bz2
import functools
import io
import lzma
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable

_MEGABYTE = 2**20
Member = tuple[str, bytes]


def packed(members: Iterable[Member], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members, doubled names included."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


def packed_links(members: Iterable[Member], links: Iterable[Member]) -> bytes:
    """A zip with symbolic links, as `zip -y` writes them."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
        for name, target in links:
            link = zipfile.ZipInfo(name)
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
    return stream.getvalue()


def raw_member(name: str, data: bytes, *, method: int, size: int, crc: int = 0) -> bytes:
    """A zip of one member with these packed bytes and whatever size it states."""
    file_name = name.encode()
    version = {12: 46, 14: 63}.get(method, 20)
    common = struct.pack("<HHHHHIIIHH", version, 0, method, 0, 0x21, crc, len(data), size, len(file_name), 0)
    local = b"PK\x03\x04" + common + file_name
    central = b"PK\x01\x02" + struct.pack("<H", version) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + file_name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local) + len(data), 0)
    return local + data + central + b"PK\x05\x06" + end


@functools.cache
def _bzip2_zeros(megabytes: int) -> bytes:
    packer = bz2.BZ2Compressor(9)
    parts = [packer.compress(bytes(_MEGABYTE)) for _ in range(megabytes)]
    return b"".join([*parts, packer.flush()])


def bzip2_bomb(megabytes: int, *, stated: int) -> bytes:
    """About a kilobyte of bzip2 that unpacks to so many megabytes."""
    return raw_member("image.dcm", _bzip2_zeros(megabytes), method=12, size=stated)


def lzma_bomb(megabytes: int, *, stated: int) -> bytes:
    """LZMA, as APPNOTE 5.8 frames it."""
    dictionary = {"id": lzma.FILTER_LZMA1, "dict_size": 2**16}
    packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[dictionary])
    parts = [packer.compress(bytes(_MEGABYTE)) for _ in range(megabytes)]
    properties = struct.pack("<BI", 3 + 9 * (0 + 5 * 2), 2**16)
    data = struct.pack("<BBH", 9, 4, len(properties)) + properties + b"".join([*parts, packer.flush()])
    return raw_member("image.dcm", data, method=14, size=stated)


def deflate_bomb(megabytes: int, *, stated: int) -> bytes:
    """Deflate, a thousandth of what it unpacks to."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    parts = [packer.compress(bytes(_MEGABYTE)) for _ in range(megabytes)]
    return raw_member("image.dcm", b"".join([*parts, packer.flush()]), method=8, size=stated)


def overlapping(number: int, megabytes: int) -> bytes:
    """So many members in the listing that are all the same packed bytes, each of so many megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join([*(packer.compress(bytes(_MEGABYTE)) for _ in range(megabytes)), packer.flush()])
    local, entries = b"", b""
    for index in range(number):
        name = f"image-{index:05}.dcm".encode()
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0x21, 0, len(data), megabytes * _MEGABYTE, len(name), 0)
        local = local or b"PK\x03\x04" + common + name
        entries += b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = struct.pack("<HHHHIIH", 0, 0, number, number, len(entries), len(local) + len(data), 0)
    return local + data + entries + b"PK\x05\x06" + end


def listing_of(megabytes: int) -> bytes:
    """A zip whose end record states a listing of so many megabytes."""
    data = bytearray(packed([("image.png", b"x")]))
    at = data.rindex(b"PK\x05\x06") + 12
    data[at : at + 4] = struct.pack("<I", megabytes * _MEGABYTE)
    return bytes(data)
