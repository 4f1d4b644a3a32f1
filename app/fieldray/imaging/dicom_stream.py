"""What a DICOM header is read from: never more than is there, nor more than a header may hold."""

from __future__ import annotations

import io
from typing import BinaryIO, Final

from fieldray.imaging.limits import MAX_HEADER_BYTES, MAX_INDEX_RECORDS

MAX_READS: Final = 400_000
# In bytes, of words and decimal numbers, which become an object each.
LONGEST_TEXT: Final = 2**13
# Each item becomes an object of a kilobyte; an index file may have icons, an item within each of its records.
_MAX_ITEMS: Final = 2 * MAX_INDEX_RECORDS
_ITEM: Final = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
_ELEMENT_BYTES: Final = 8
_CHARACTER_SETS: Final = (b"\x08\x00\x05\x00", b"\x00\x08\x00\x05")


class HeaderTooLong(ValueError):
    """There is more in it than is read of any file."""


class BoundedStream:
    """A stream that never returns, or allocates memory for, more than is left in it, nor more items than a file has."""

    def __init__(self, raw: BinaryIO, *, reads: int = MAX_READS) -> None:
        self.raw = raw
        self.is_cut = False
        self._end = raw.seek(0, io.SEEK_END)
        self._reads_left = reads
        self._items_left = _MAX_ITEMS
        self._bytes_left = MAX_HEADER_BYTES
        self._element = b""
        raw.seek(0)
        self.tell = raw.tell

    def head(self) -> bytes:
        """The beginning of the element that comes next; the stream stays where it is."""
        start = self.raw.tell()
        head = self.raw.read(_ELEMENT_BYTES)
        self.raw.seek(start)
        return head

    def is_at_end(self) -> bool:
        return self.raw.tell() >= self._end

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = self.raw.seek(offset, whence)
        self.is_cut = self.is_cut or position > self._end
        return position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self.raw.tell())
        wanted = left if size < 0 else size
        if wanted > left > 0:
            self.is_cut = True
        wanted = min(wanted, left)
        self._reads_left -= 1
        self._bytes_left -= wanted
        if self._reads_left < 0 or self._bytes_left < 0:
            raise HeaderTooLong("the header is longer than a header may be")
        if wanted > LONGEST_TEXT and self._element.startswith(_CHARACTER_SETS):
            raise ValueError("more character sets than there are")  # pydicom converts these as soon as it reads them
        data = self.raw.read(wanted)
        if wanted == _ELEMENT_BYTES:
            self._note(data)
        return data

    def _note(self, element: bytes) -> None:
        """The first bytes of an element, by which pydicom learns what follows."""
        self._element = element
        self._items_left -= element.startswith(_ITEM)
        if self._items_left < 0:
            raise HeaderTooLong("more items than a header may hold")
