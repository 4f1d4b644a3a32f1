"""Stamps: whether a file is still the one that was read, without reading all of it.

A stamp is a keyed hash of a file's size, of the times of its last changes, and of a part of its content: its
beginning, its end, and blocks between them at places that follow from the key, the path and the size. Who does not know
the key can neither tell the places nor make a stamp. A file that is no larger than these parts is hashed as a whole.

A clock that counts in steps of up to two seconds, as that of a FAT drive, can give two contents the same time. So what
was changed a moment before it was read gets no stamp: it is read as a whole the next time, and then gets one.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from fieldray.domain.study import ImageRef
from fieldray.imaging.source import FileState, Opener, file_problem, hash_of, open_file, state_of

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
