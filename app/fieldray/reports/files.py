"""Texts that a person asked for: written beside their place and renamed, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from fieldray.persistence import SHARED, storage_problem, written_beside


def require_writable(folder: Path) -> None:
    """Make the folder if absent and try to write there, before hours of work. Raises StorageProblem."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_problem(error, folder) from error


@contextlib.contextmanager
def text_written_beside(path: Path, *, encoding: str) -> Iterator[TextIO]:
    """A text stream whose content appears at `path` when the block ends well, and vanishes when it does not.

    File names that are not valid Unicode are written with backslash escapes (as in JSON). The folder is made if
    absent. Raises StorageProblem (disk_full, not_writable).
    """
    with written_beside(path, mode=SHARED) as stream:
        text = io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", newline="")
        try:
            yield text
        finally:
            text.detach()  # brings what it holds to the stream, which is not its own to close
