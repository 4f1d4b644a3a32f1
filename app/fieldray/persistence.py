"""Files that are there whole or not at all, and a folder that is this user's alone.

One door for every file that is written in one go: its content is written beside its place under a name that nobody can
foresee, brought to the disk and renamed. A reader never sees half a file, a kill or a power cut leaves the old one or
the new one, and no link that somebody laid there is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

PRIVATE: Final = 0o600
SHARED: Final = 0o666  # less what the user's umask takes away, as any program's documents
_PRIVATE_FOLDER: Final = 0o700
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write `data` to `path`; its folder is made if absent. Raises StorageProblem (disk_full, not_writable)."""
    with written_beside(path, mode=mode) as stream:
        stream.write(data)


@contextlib.contextmanager
def written_beside(path: Path, *, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A stream whose content appears at `path` when the block ends well, and vanishes when it does not.

    The folder is made if absent. Raises StorageProblem (disk_full, not_writable), and what the block raises.
    """
    # Short, whatever the file is called: a name of the greatest length has no room for an ending.
    beside = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _created(beside, mode) as stream:
                yield stream
                _sync(stream)
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_problem(error, path) from error


def write_new(path: Path, data: bytes, *, mode: int = SHARED) -> None:
    """Write a file that is not there yet and bring it to the disk, for folders that are renamed as a whole.

    Raises OSError, FileExistsError too.
    """
    with _created(path, mode) as stream:
        stream.write(data)
        _sync(stream)


def make_private(folder: Path) -> None:
    """Make a folder if absent, and keep everybody else out of it, whatever the umask. Raises OSError.

    One that belongs to somebody else, or to everybody (as /tmp does), is left as it is.
    """
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    if os.name != "posix":
        return
    status = folder.stat()
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
    if is_ours and stat.S_IMODE(status.st_mode) != _PRIVATE_FOLDER:
        with contextlib.suppress(OSError):  # a drive without permissions, such as a FAT flash drive
            folder.chmod(_PRIVATE_FOLDER)


def require_plain(path: Path) -> None:
    """Refuse what is there but is no ordinary file: a link would lead writing to a place nobody named.

    Raises StorageProblem (not_plain).
    """
    if not is_plain(path):
        raise StorageProblem(reason("not_plain", path=path))


def is_plain(path: Path) -> bool:
    """Whether an ordinary file is there, or nothing."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True


def storage_problem(error: OSError, path: Path) -> StorageProblem:
    """What the operating system says about writing to `path`, in words for a person."""
    if error.errno in _FULL:
        return StorageProblem(reason("disk_full", path=path))
    return StorageProblem(reason("not_writable", path=path, detail=error.strerror or error))


def _created(path: Path, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, _NEW, mode), "wb")


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Bring a renaming to the disk, where the system can."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
