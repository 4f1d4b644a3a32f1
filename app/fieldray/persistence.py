"""Files that are there whole or not at all, a folder that is this user's alone, and a lock that ends with its process.

One door for every file that is written in one go: its content is written beside its place under a name that nobody can
foresee, brought to the disk and renamed. A reader never sees half a file, a kill or a power cut leaves the old one or
the new one, and no link that somebody laid there is followed.

Locks are the operating system's own: none can be left behind by a process that was killed, so a file that is merely
there locks nothing. The text inside is only for the sentence that tells who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import platform
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

PRIVATE: Final = 0o600
SHARED: Final = 0o666  # less what the user's umask takes away, as any program's documents
PRIVATE_FOLDER: Final = 0o700
_OTHERS: Final = 0o077
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD of fcntl.h, RENAME_EXCHANGE of linux/fs.h
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write `data` to `path`; its folder is made if absent. Raises StorageProblem (disk_full, not_writable)."""
    with writing_atomically(path, mode=mode) as stream:
        stream.write(data)


@contextlib.contextmanager
def writing_atomically(path: Path, *, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A stream whose content appears at `path` when the block ends well, and vanishes when it does not.

    The folder is made if absent, for this user alone where the file is.

    Raises StorageProblem (disk_full, not_writable), and what the block raises.
    """
    temporary = unfinished(path)
    try:
        make_folder(path.parent, is_private=mode == PRIVATE)
        try:
            with _created(temporary, mode) as stream:
                yield stream
                _sync(stream)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise storage_problem(error, path) from error


def replace_durably(temporary: Path, path: Path) -> None:
    """Bring a complete file to the disk and give it its name; what had the name before is gone. Raises OSError."""
    with temporary.open("r+b") as stream:
        _sync(stream)
    temporary.replace(path)
    sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """A name beside `path` for what this process has not completed yet.

    Short, whatever the file is called: a name of the greatest length has no room for an ending.
    """
    return path.with_name(f".{os.getpid()}-{_process_number()}{secrets.token_hex(4)}.new")


@functools.cache
def _process_number() -> str:
    """What the names of `unfinished` have in common besides the process: no other process of any computer has it."""
    return _this_computer() + secrets.token_hex(8)


@functools.cache
def _this_computer() -> str:
    """What such names begin with: a home may be shared, and a process id says nothing of another computer."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def clear_abandoned(folder: Path) -> None:
    """Remove from a folder what the program's processes on this computer began there and did not live to complete.

    A database has companions there: their names go on behind the ending.
    """
    for left in folder.glob(".*-*.new*"):
        process, _, number = left.name[1:].partition("-")
        if process.isdigit() and number.startswith(_this_computer()) and not _is_at_work(int(process), number):
            _remove(left)


def _is_at_work(process: int, number: str) -> bool:
    """Whether the process is there that has this number in its names; one that began later may have its process id."""
    if process == os.getpid():
        return number.startswith(_process_number())
    import psutil

    return psutil.pid_exists(process)


def _remove(left: Path) -> None:
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            left.unlink()


def write_new(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file that is not there yet and bring it to the disk, for folders that are renamed as a whole.

    Raises OSError, FileExistsError too.
    """
    with _created(path, mode) as stream:
        stream.write(data)
        _sync(stream)


def make_empty(path: Path) -> None:
    """Make a file for this user alone that somebody else fills, as SQLite does. Raises OSError, FileExistsError too."""
    _created(path, PRIVATE).close()


def exchanged(first: Path, second: Path) -> bool:
    """Whether the system could exchange two names (renameat2(2), RENAME_EXCHANGE)."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # not in every C library
    return rename is not None and rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0


def replace_atomically(temporary: Path, path: Path, *, exchange: Callable[[Path, Path], bool] = exchanged) -> None:
    """Give a completed folder its name and remove the one that has it; both names are `path`'s or `unfinished`.

    Its files were brought to the disk by `write_new`; so are their names here, and its own. Linux exchanges the two in
    one step, on the file systems that can. Elsewhere there is a moment with neither, and both lie beside.

    Raises OSError.
    """
    sync_folder(temporary)
    displaced = temporary
    try:
        temporary.rename(path)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        if not exchange(temporary, path):
            displaced = _replaced(temporary, path)
    sync_folder(path.parent)
    shutil.rmtree(displaced, ignore_errors=True)
    sync_folder(path.parent)


def _replaced(temporary: Path, path: Path) -> Path:
    """Rename what is at `path` and then `temporary`; where the former is now."""
    displaced = unfinished(path)
    path.rename(displaced)
    try:
        temporary.rename(path)
    except OSError:
        displaced.rename(path)
        raise
    return displaced


def make_folder(folder: Path, *, is_private: bool = False) -> None:
    """Make a folder if absent, and those above it, and bring their names to the disk. Raises OSError.

    is_private  whether those that are made are for this user alone; one that is there is left as it is
    """
    if not folder.is_dir():
        make_folder(folder.parent, is_private=is_private)
        folder.mkdir(mode=PRIVATE_FOLDER if is_private else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def make_private(folder: Path) -> None:
    """Make a folder if absent, and keep everybody else out of it, whatever the umask. Raises OSError.

    One that belongs to somebody else, or to everybody (as /tmp does), is left as it is.
    """
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if os.name != "posix":
        return
    status = folder.stat()
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
    if is_ours and stat.S_IMODE(status.st_mode) != PRIVATE_FOLDER:
        with contextlib.suppress(OSError):  # a drive without permissions, such as a FAT flash drive
            folder.chmod(PRIVATE_FOLDER)


def require_plain(path: Path) -> None:
    """Refuse what is there but is no ordinary file: a link would lead writing to a place nobody named.

    Raises StorageProblem (not_plain).
    """
    if not is_plain(path):
        raise StorageProblem(reason("not_plain", path=path))


def is_plain(path: Path) -> bool:
    """Whether the path is a regular file or nothing is there. False for links, folders and devices."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True


def is_open_to_others(path: Path) -> bool:
    """Whether other users of this computer may read or change a file, as far as the system says. Raises OSError."""
    return os.name == "posix" and bool(path.stat().st_mode & _OTHERS)


def storage_problem(error: OSError, path: Path) -> StorageProblem:
    """What the operating system says about writing to `path`, in words for a person."""
    if error.errno in _FULL:
        return StorageProblem(reason("disk_full", path=path))
    if error.errno == errno.EIO:
        return StorageProblem(reason("disk_failing", path=path, detail=error.strerror))
    return StorageProblem(reason("not_writable", path=path, detail=error.strerror or error))


def _created(path: Path, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, _NEW, mode), "wb")


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can: a new one is sure only then.

    Raises OSError where it can and did not.
    """
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in (errno.EIO, *_FULL):
            raise


# Not through a link: what it leads to would be emptied.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE: Final = 1024  # beyond the text: Windows lets nobody read a locked byte
_LONGEST: Final = 200
_MOST_FILES: Final = 1000  # that are deleted while they are waited for; a system may give a new number each time
_ASK_AGAIN_S: Final = 0.01
_HELD_ERRNO: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})  # flock; msvcrt.locking


class LockHeldError(Exception):
    """Somebody else holds the lock; `holder` is what they wrote about themselves."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """Held from birth until `release`, or the end of the process.

    holder    one line about who holds it, at most 200 characters of ASCII; a disk without room for it locks as well
    wait_s    how long to wait for somebody else at most
    is_made   whether the file is made where there is none; otherwise FileNotFoundError is raised
    Raises LockHeldError if somebody else holds it, this process included; OSError if the file cannot be opened or its
    file system knows no locks.
    """

    def __init__(self, path: Path, *, holder: str, wait_s: float = 0.0, is_made: bool = True) -> None:
        self._path, self._handle = path, -1
        flags = _FLAGS if is_made else _FLAGS & ~os.O_CREAT
        try:
            self._take(flags, until_s=time.monotonic() + wait_s)
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
                os.write(self._handle, holder.encode("ascii", errors="replace")[:_LONGEST])
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give it back; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Delete its file and give it back; safe to call twice. Whoever waits for it takes the next file there is."""
        if self._handle < 0:
            return
        if os.name == "posix":
            self._unlink()
            self.release()
        else:  # Windows deletes no open file, and so none that somebody else holds by then
            self.release()
            self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _take(self, flags: int, *, until_s: float) -> None:
        """Lock the file that others find. One that was deleted meanwhile is not it: then the next one is opened."""
        for _ in range(_MOST_FILES):
            self._handle = os.open(self._path, flags, 0o600)
            self._wait(until_s)
            if self._is_at_its_path():
                return
            self.release()
        raise LockHeldError("?")

    def _wait(self, until_s: float) -> None:
        """The systems' own waiting knows no end, so the lock is asked for again and again."""
        while True:
            try:
                return _lock(self._handle)
            except OSError as error:
                if error.errno not in _HELD_ERRNO:
                    raise
                if time.monotonic() >= until_s:
                    raise LockHeldError(self._holder()) from error
            time.sleep(_ASK_AGAIN_S)

    def _is_at_its_path(self) -> bool:
        """Whether the file that is locked is the one that others find."""
        if os.name != "posix":
            return True
        try:
            return os.path.samestat(os.fstat(self._handle), self._path.lstat())
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        text = os.read(self._handle, _LONGEST).decode("ascii", errors="replace")
        return text.strip("\0 \n") or "?"


@contextlib.contextmanager
def only_writer(path: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """While inside, nobody else who asks for the same changes the file at `path`.

    wait_s  how long to wait for somebody else at most: a change takes milliseconds, on a slow disk a second
    Raises StorageProblem (file_in_use, disk_full, disk_failing, not_writable), and what the block raises.
    """
    try:
        held = FileLock(path.with_suffix(".lock"), holder=f"process {os.getpid()}", wait_s=wait_s)
    except LockHeldError as rival:
        raise StorageProblem(reason("file_in_use", path=path, holder=rival.holder)) from rival
    except OSError as error:
        raise storage_problem(error, path) from error
    with held:
        yield


def _lock(handle: int) -> None:
    """Raises OSError: one of `_HELD_ERRNO` if it is locked."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
