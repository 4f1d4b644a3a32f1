"""An export is written beside its place and renamed: a reader never sees half a file."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fieldray.errors import StorageProblem
from fieldray.reasons import reason


def require_writable(folder: Path) -> None:
    """Make the folder if absent and try to write there, before hours of work. Raises StorageProblem."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _problem(error, folder) from error


@contextlib.contextmanager
def text_written_beside(path: Path, *, encoding: str) -> Iterator[TextIO]:
    """A text stream whose content appears at `path` when the block ends well, and vanishes when it does not.

    File names that are not valid Unicode are written with backslash escapes (as in JSON). The folder is made if
    absent. Raises StorageProblem (disk_full, not_writable).
    """
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding=encoding, errors="backslashreplace", newline="") as stream:
            yield stream
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise _problem(error, path) from error
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _problem(error: OSError, path: Path) -> StorageProblem:
    if error.errno == errno.ENOSPC:
        return StorageProblem(reason("disk_full", path=path))
    return StorageProblem(reason("not_writable", path=path, detail=error.strerror or error))
