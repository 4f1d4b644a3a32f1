"""The log file: what went wrong, for the one who mends it. Never names of patients or of their files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.paths import user_data
from fieldray.plain_text import visible

FILE_NAME: Final = "fieldray.log"
_LARGEST_BYTES: Final = 1_000_000
_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(name)s: %(message)s"


class _QuietHandler(logging.FileHandler):
    """Loses a line rather than disturb the program: the disk may be full, the file may be somebody else's."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802
        return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _RecordFormatter(logging.Formatter):
    """A record begins a line, and nothing else does: the lines of a traceback are set in, whatever names they hold."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(map(visible, super().format(record).split("\n")))


@contextlib.contextmanager
def journal_kept(folder: Path | None = None) -> Iterator[Path]:
    """Write warnings and errors of the program to `fieldray.log` in `folder` (the user's data) while inside.

    The file is made when there is something to say; a large one is kept as `fieldray.log.1`.
    """
    path = (folder or user_data()) / FILE_NAME
    with contextlib.suppress(OSError):
        if path.stat().st_size > _LARGEST_BYTES:
            path.replace(path.with_name(FILE_NAME + ".1"))
    handler = _QuietHandler(path, encoding="utf-8", errors="backslashreplace", delay=True)
    handler.setFormatter(_RecordFormatter(_FORMAT))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("fieldray")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
        handler.close()
