"""The one place that opens image files: here every failure of the file system becomes a reason."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
import sys
import time
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


# ---- Stamps: whether a file is still the one that was read, without reading all of it.
#
# A stamp is a keyed hash of a file's size, of the times of its last changes, and of a part of its content: its
# beginning, its end, and blocks between them at places that follow from the key, the path and the size. Who does not
# know the key can neither tell the places nor make a stamp. A file that is no larger than these parts is hashed as a
# whole.
#
# A clock that counts in steps of up to two seconds, as that of a FAT drive, can give two contents the same time. So
# what was changed a moment before it was read gets no stamp: it is read as a whole the next time, and then gets one.

_HEAD_BYTES: Final = 4096  # the header of an ordinary file
_BLOCK_BYTES: Final = 1024
_BLOCKS: Final = 4  # between the beginning and the end
_WHOLE_BYTES: Final = _HEAD_BYTES + (_BLOCKS + 1) * _BLOCK_BYTES
_AT_ONCE_BYTES: Final = 2**16
_STAMP_BYTES: Final = 16
_MARGIN_S: Final = 10.0  # two seconds for coarse steps, the rest for the clock of a server that is not quite ours

ReadPart = Callable[[int, int], bytes]


class Stamps:
    """Makes stamps with one key; thread-safe.

    now_s  the time, seconds since 1970
    """

    def __init__(self, key: bytes, *, now_s: Callable[[], float] = time.time) -> None:
        self.key: Final = key
        self._now_s = now_s

    def of_data(self, path: Path, data: bytes, state: FileState | None) -> bytes:
        """The stamp of a file that was read whole in this state; empty where none may vouch for it."""
        if state is None or not self._is_settled(state):
            return b""
        return self._stamp(path, state, lambda place, length: data[place : place + length])

    def hashed(self, ref: ImageRef, *, opener: Opener = open_file) -> tuple[str, bytes]:
        """SHA-256 (hex) of a file's bytes, and its stamp, empty where none may vouch for it. Raises Unreadable."""
        try:
            with opener(ref.path) as stream:
                state = state_of(stream)
                content_sha256, stamp = hash_of(stream), b""
                if state and self._is_settled(state) and ref.header.number_of_frames == 1:
                    stamp = self._stamp(ref.path, state, _part_of(stream, state.size))
                return content_sha256, stamp if state_of(stream) == state else b""
        except OSError as error:
            raise file_problem(error) from error

    def now(self, path: Path, stream: BinaryIO) -> bytes:
        """The stamp of an open file as it is now; empty for what is no file of the system. Raises OSError."""
        state = state_of(stream)
        return self._stamp(path, state, _part_of(stream, state.size)) if state else b""

    def _is_settled(self, state: FileState) -> bool:
        """Whether whoever changed the file from now on would give it another time."""
        return max(state.changed_ns, state.touched_ns) / 1e9 + _MARGIN_S < self._now_s()

    def _stamp(self, path: Path, state: FileState, read: ReadPart) -> bytes:
        stamp = hashlib.blake2b(struct.pack("<3q", *state), key=self.key, digest_size=_STAMP_BYTES)
        for place, length in self._parts(os.fsencode(path), state.size):
            stamp.update(read(place, length))
        return stamp.digest()

    def _parts(self, name: bytes, size: int) -> Iterator[tuple[int, int]]:
        """Where the parts that are hashed begin, and how long they are."""
        if size <= _WHOLE_BYTES:
            yield 0, size
            return
        yield 0, _HEAD_BYTES
        drawn = hashlib.blake2b(struct.pack("<q", size) + name, key=self.key, digest_size=8 * _BLOCKS)
        for number in struct.unpack(f"<{_BLOCKS}Q", drawn.digest()):
            yield _HEAD_BYTES + number % (size - _HEAD_BYTES - 2 * _BLOCK_BYTES + 1), _BLOCK_BYTES
        yield size - _BLOCK_BYTES, _BLOCK_BYTES


def _part_of(stream: BinaryIO, size: int) -> ReadPart:
    """Reads parts of an open file; a small one is read at once, which takes less time than several parts."""
    if size <= _AT_ONCE_BYTES:
        data = _read(stream, 0, size)
        return lambda place, length: data[place : place + length]
    return lambda place, length: _read(stream, place, length)


def _read(stream: BinaryIO, place: int, length: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(stream.fileno(), length, place)
    stream.seek(place)  # Windows
    return stream.read(length)
