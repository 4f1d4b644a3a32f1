"""Zip files that Python's own writer would not make."""

from __future__ import annotations

import bz2
import functools
import io
import lzma
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable

from fuzz.structures.zip_files import Ends, Member, written

_MEGABYTE = 2**20


def packed(members: Iterable[tuple[str, bytes]], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members, doubled names included."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


@functools.cache
def _zeros(method: int, megabytes: int) -> bytes:
    """So many megabytes of zeros: deflated (8), as bzip2 (12), or as LZMA in the frame of APPNOTE 5.8 (14)."""
    head = b""
    if method == 8:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    elif method == 12:
        packer = bz2.BZ2Compressor(9)
    else:
        filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 2**16}]
        packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=filters)
        properties = struct.pack("<BI", 3 + 9 * (0 + 5 * 2), 2**16)
        head = struct.pack("<BBH", 9, 4, len(properties)) + properties
    parts = [packer.compress(bytes(_MEGABYTE)) for _ in range(megabytes)]
    return b"".join([head, *parts, packer.flush()])


def bomb(method: int, *, stated: int) -> bytes:
    """A kilobyte to a megabyte that unpacks to one gigabyte, and states another size."""
    data = _zeros(method, 1024)
    version = {12: 46, 14: 63}.get(method, 20)
    return written([Member(b"image.dcm", data, method, version=version, packed_size=len(data), size=stated)], Ends())


def overlapping(number: int, megabytes: int) -> bytes:
    """So many members in the listing that are all the same packed bytes, each of so many megabytes."""
    data = _zeros(8, megabytes)
    sizes = {"packed_size": len(data), "size": megabytes * _MEGABYTE}
    first = Member(b"image-00000.dcm", data, 8, **sizes)
    others = (Member(b"image-%05d.dcm" % at, data, 8, **sizes, offset=0, stands=False) for at in range(1, number))
    return written([first, *others], Ends())


def listing_of(megabytes: int) -> bytes:
    """A zip whose end record states a listing of so many megabytes."""
    return written([Member(b"image.png", b"x", 0, packed_size=1, size=1)], Ends(size=megabytes * _MEGABYTE))
