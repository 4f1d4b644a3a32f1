"""Limits on how much is read: every size that a file states is checked against these before memory is allocated."""

from __future__ import annotations

from typing import Final

from fieldray.errors import Unreadable
from fieldray.reasons import reason

MAX_PIXELS: Final = 400_000_000
MAX_FRAMES: Final = 300
MAX_FILE_BYTES: Final = 2**30
MAX_HEADER_BYTES: Final = 64 * 2**20
# For a deflated data set or a member of a zip file, as long as only its header is wanted.
MAX_INFLATED_HEADER_BYTES: Final = 8 * 2**20
MAX_INDEX_RECORDS: Final = 20_000
# As many as a zip file without extensions can list.
MAX_ZIP_MEMBERS: Final = 65_535


def check_pixel_count(rows: int, columns: int) -> None:
    """Raise Unreadable `too_large` for more than 400 million pixels."""
    if rows * columns > MAX_PIXELS:
        raise Unreadable(reason("too_large", detail=f"{rows} x {columns}"))


def check_file_size(size_bytes: int) -> None:
    """Raise Unreadable `file_too_large` for more than 1 GB, `empty` for nothing."""
    if size_bytes == 0:
        raise Unreadable(reason("empty"))
    if size_bytes > MAX_FILE_BYTES:
        raise Unreadable(reason("file_too_large", size_mb=size_bytes // 2**20))
