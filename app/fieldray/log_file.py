"""The log file of errors for developers. The log never contains names of patients or of their files."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.command_names import OPTIONAL_PACKAGES
from fieldray.paths import data_folder
from fieldray.persistence import PRIVATE_FILE_MODE
from fieldray.plain_text import escape_invisible_characters

LOG_FILE_NAME: Final = "fieldray.log"
_LARGEST_BYTES: Final = 1_000_000
# A pipe that nobody reads would block the program. A link would redirect the log to another file.
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(name)s: %(message)s"


class _QuietHandler(logging.FileHandler):
    """A log handler that drops a line rather than disturb the program, for example on a full disk."""

    def _open(self) -> io.TextIOWrapper:
        """Open the log file so that only this user may read it, whatever the umask.

        Raises OSError for a link, and for a file that is not a regular file.
        """
        handle = os.open(self.baseFilename, _APPEND | getattr(os, "O_CLOEXEC", 0), PRIVATE_FILE_MODE)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"not an ordinary file: {self.baseFilename}")
            if hasattr(os, "fchmod"):
                os.fchmod(handle, PRIVATE_FILE_MODE)
            return io.TextIOWrapper(os.fdopen(handle, "ab"), encoding=self.encoding, errors=self.errors)
        except BaseException:
            os.close(handle)
            raise

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802
        return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _RecordFormatter(logging.Formatter):
    """A formatter that indents all lines of a record but the first.

    Without the indentation, a file name in a traceback could imitate a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(map(escape_invisible_characters, super().format(record).split("\n")))


@contextlib.contextmanager
def configure_logging(folder: Path | None = None) -> Iterator[Path]:
    """Write warnings and errors of the program to the file `fieldray.log` during the block, and yield the file's path.

    folder  the folder of the file; by default the user's data folder

    The file is created with its first record. A file that has grown too large is renamed to `fieldray.log.1`.
    """
    path = (folder or data_folder()) / LOG_FILE_NAME
    with contextlib.suppress(OSError):
        if path.stat().st_size > _LARGEST_BYTES:
            path.replace(path.with_name(LOG_FILE_NAME + ".1"))
    handler = _QuietHandler(path, encoding="utf-8", errors="backslashreplace", delay=True)
    handler.setFormatter(_RecordFormatter(_FORMAT))
    handler.setLevel(logging.WARNING)
    loggers = [logging.getLogger(package) for package in ("fieldray", *OPTIONAL_PACKAGES)]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield path
    finally:
        for logger, was_propagated in zip(loggers, propagated, strict=True):
            logger.removeHandler(handler)
            logger.propagate = was_propagated
        handler.close()
