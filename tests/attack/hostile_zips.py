"""Zip files that Python's own writer would not make."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterable

from attack.hostile_images import zeros
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


def bomb(*, stated: int) -> bytes:
    """A megabyte that unpacks to one gigabyte, and states another size."""
    data = zeros(1024 * _MEGABYTE, wbits=-15)
    return written([Member(b"image.dcm", data, 8, packed_size=len(data), size=stated)], Ends())


def overlapping(number: int, megabytes: int) -> bytes:
    """So many members in the listing that are all the same packed bytes, each of so many megabytes."""
    data = zeros(megabytes * _MEGABYTE, wbits=-15)
    sizes = {"packed_size": len(data), "size": megabytes * _MEGABYTE}
    first = Member(b"image-00000.dcm", data, 8, **sizes)
    others = (Member(b"image-%05d.dcm" % at, data, 8, **sizes, offset=0, stands=False) for at in range(1, number))
    return written([first, *others], Ends())
