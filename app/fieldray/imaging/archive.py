"""Zip files: listed without unpacking, members only ever read into memory, every size bounded before.

A member's name is a label and never a path: nothing is written, so hostile names can do no harm.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from fieldray.errors import Unreadable
from fieldray.imaging.limits import check_file_size
from fieldray.reasons import reason

_MAX_DIRECTORY_BYTES: Final = 16 * 2**20
_END_RECORD: Final = b"PK\x05\x06"
_END_RECORD_64: Final = b"PK\x06\x06"
_END_SEARCH_BYTES: Final = 65535 + 22 + 20 + 56
_IS_ENCRYPTED: Final = 0x1
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError)
# A film that is mostly black may shrink a thousandfold while it is small; nothing large does.
_MAX_RATIO: Final = 300
_RATIO_COUNTS_FROM_BYTES: Final = 64 * 2**20


@contextmanager
def open_archive(stream: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """The zip in `stream`. Raises Unreadable `damaged`, or `too_large` if it lists too many members."""
    _check_directory(stream)
    try:
        with zipfile.ZipFile(stream) as archive:
            yield archive
    except _DAMAGE as error:
        raise Unreadable(reason("damaged", detail="the zip file cannot be unpacked")) from error


def read_member(archive: zipfile.ZipFile, name: str, *, limit: int | None = None) -> bytes:
    """The first `limit` bytes of a member, all of it without a limit.

    Raises Unreadable: `missing`, `encrypted`, `empty`, `too_large`, `unsupported_compression`.
    """
    try:
        member = archive.getinfo(name)
    except KeyError as error:
        raise Unreadable(reason("missing")) from error
    check_member(member)
    try:
        with archive.open(member) as stream:
            return stream.read(member.file_size if limit is None else limit)
    except NotImplementedError as error:
        raise Unreadable(reason("unsupported_compression", name=f"zip method {member.compress_type}")) from error
    except _DAMAGE as error:
        raise Unreadable(reason("damaged", detail="it cannot be unpacked")) from error


def check_member(member: zipfile.ZipInfo) -> None:
    """Raise Unreadable for what is not unpacked: encrypted, empty, or far larger than it is packed."""
    if member.flag_bits & _IS_ENCRYPTED:
        raise Unreadable(reason("encrypted"))
    check_file_size(member.file_size)
    is_large = member.file_size > _RATIO_COUNTS_FROM_BYTES
    if is_large and member.file_size > _MAX_RATIO * max(1, member.compress_size):
        raise Unreadable(reason("file_too_large", size_mb=member.file_size // 2**20))


def _check_directory(stream: BinaryIO) -> None:
    """Hold the listing's stated size against a limit before `zipfile` loads it (APPNOTE 4.3.14 and 4.3.16)."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END_SEARCH_BYTES))
    tail = stream.read(_END_SEARCH_BYTES)
    stream.seek(0)
    stated = [struct.unpack_from("<I", tail + bytes(20), at + 12)[0] for at in _positions(tail, _END_RECORD)]
    stated = [0 if length == 0xFFFFFFFF else length for length in stated]
    stated += [struct.unpack_from("<Q", tail + bytes(60), at + 40)[0] for at in _positions(tail, _END_RECORD_64)]
    if max(stated, default=0) > _MAX_DIRECTORY_BYTES:
        raise Unreadable(reason("too_large", detail="too many files in one zip file"))


def _positions(data: bytes, mark: bytes) -> Iterator[int]:
    position = data.find(mark)
    while position >= 0:
        yield position
        position = data.find(mark, position + 1)
