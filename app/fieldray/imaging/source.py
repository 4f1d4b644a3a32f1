"""The one place that opens image files: here every failure of the file system becomes a reason."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from fieldray.domain.study import ImageRef
from fieldray.errors import Unreadable
from fieldray.imaging.limits import check_file_size
from fieldray.reasons import reason

Opener = Callable[[Path], BinaryIO]
_CHUNK_BYTES: Final = 2**20


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file for reading, also beyond 260 characters on Windows. Raises OSError for anything else.

    Whatever lies there now is not waited for: an image may have become a named pipe since it was found.
    """
    name = str(path)
    if sys.platform == "win32" and len(name) > 240 and not name.startswith("\\\\"):
        name = "\\\\?\\" + os.path.abspath(name)  # noqa: PTH100 - pathlib resolves links, which this must not
    # built in, because a path object would normalise the prefix away
    return open(name, "rb", opener=_open_at_once)


def _open_at_once(name: str, flags: int) -> int:
    number = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no ordinary file")
    return number


class FileState(NamedTuple):
    """What another content changes as a rule: the size, and the times of the last changes (nanoseconds since 1970).

    touched_ns  of the last change of the content or of what the system notes of the file, which no program can choose;
                on Windows, when the file was made
    """

    size: int
    changed_ns: int
    touched_ns: int


def state_of(stream: BinaryIO) -> FileState | None:
    """The state of an open file; None for what is none of the system. Raises OSError."""
    try:
        status = os.fstat(stream.fileno())
    except io.UnsupportedOperation:
        return None
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_bytes(ref: ImageRef, *, opener: Opener = open_file) -> bytes:
    """The whole file or zip member in memory. Raises as `read_with_state`."""
    return read_with_state(ref, opener=opener)[0]


def read_with_state(ref: ImageRef, *, opener: Opener = open_file) -> tuple[bytes, FileState | None]:
    """The whole file or zip member in memory, and the state it was in; None if it changed, and for a member.

    Raises Unreadable with the reason: missing, no_permission, drive_error, unreadable, empty, too_large, encrypted,
    damaged.
    """
    try:
        with opener(ref.path) as stream:
            if ref.member is not None:
                from fieldray.imaging.archive import open_archive

                return open_archive(stream).read(ref.member), None
            state = state_of(stream)
            size = stream.seek(0, io.SEEK_END)
            check_file_size(size)
            stream.seek(0)
            data = stream.read(size)
            return data, state if state and state == state_of(stream) and len(data) == state.size else None
    except OSError as error:
        raise file_problem(error) from error


def content_hash(ref: ImageRef, *, opener: Opener = open_file) -> str:
    """SHA-256 (hex) of the file's or member's bytes, without holding a file in memory. Raises Unreadable.

    So it does for a file that is larger than any that is read: nobody could cancel the hours that it may take.
    """
    try:
        with opener(ref.path) as stream:
            return hash_of(stream, ref.member)
    except OSError as error:
        raise file_problem(error) from error


def hash_of(stream: BinaryIO, member: str | None = None) -> str:
    """The same of an open file. Raises OSError, Unreadable."""
    digest = hashlib.sha256()
    for part in _parts(stream, member):
        digest.update(part)
    return digest.hexdigest()


def _parts(stream: BinaryIO, member: str | None) -> Iterator[bytes]:
    if member is None:
        return _whole(stream)
    from fieldray.imaging.archive import open_archive

    return open_archive(stream).parts(member)


def _whole(stream: BinaryIO) -> Iterator[bytes]:
    """What `read_bytes` would read of a file, in pieces; the same if the file grows meanwhile."""
    left = stream.seek(0, io.SEEK_END)
    check_file_size(left)
    stream.seek(0)
    while left > 0 and (part := stream.read(min(_CHUNK_BYTES, left))):
        left -= len(part)
        yield part


def file_problem(error: OSError) -> Unreadable:
    """The reason for an OSError met while a file was opened or read."""
    if isinstance(error, FileNotFoundError):
        return Unreadable(reason("missing"))
    if isinstance(error, PermissionError):
        return Unreadable(reason("no_permission"))
    if error.errno == errno.EIO:
        return Unreadable(reason("drive_error"))
    return Unreadable(reason("unreadable", detail=error.strerror or type(error).__name__))
