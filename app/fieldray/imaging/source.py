"""The one place that opens an image file: every failure of the file system becomes a plain reason here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fieldray.domain.study import ImageRef
from fieldray.errors import FieldrayError, Unreadable
from fieldray.imaging.limits import check_file_size
from fieldray.reasons import reason

Opener = Callable[[Path], BinaryIO]


def open_file(path: Path) -> BinaryIO:
    """Open for reading, also beyond 260 characters on Windows."""
    return path.open("rb")


def read_bytes(ref: ImageRef, *, opener: Opener = open_file) -> bytes:
    """The whole file or zip member. Raises Unreadable with a reason, `too_large` above 1 GB."""
    try:
        with opener(ref.path) as stream:
            size = stream.seek(0, 2)
            check_file_size(size)
            stream.seek(0)
            return stream.read(size)
    except OSError as error:
        raise file_problem(error) from error


def file_problem(error: OSError) -> FieldrayError:
    """The reason for an OSError met while a file was opened or read."""
    if isinstance(error, FileNotFoundError):
        return Unreadable(reason("missing"))
    if isinstance(error, PermissionError):
        return Unreadable(reason("no_permission"))
    return Unreadable(reason("unreadable", detail=error.strerror or type(error).__name__))
