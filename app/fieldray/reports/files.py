"""An export is written beside its place and renamed: a reader never sees half a file."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fieldray.errors import StorageProblem
from fieldray.reasons import reason


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
        if error.errno == errno.ENOSPC:
            raise StorageProblem(reason("disk_full", path=path)) from error
        raise StorageProblem(reason("not_writable", path=path, detail=error.strerror or error)) from error
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
