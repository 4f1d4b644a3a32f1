"""Files that are written completely or not at all, folders for one user alone, and locks that end with their process.

Every file that is written as a whole is written by this module: under an unpredictable temporary name in the target
folder, synced to the disk, and then renamed. A reader therefore never sees half a file. After a kill or a power cut,
either the old or the new file exists. A link that somebody placed at the path is not followed.

Locks are those of the operating system. A killed process leaves no lock behind, so the presence of a lock file means
nothing. The text in the file is only for the message that names the holder of the lock.
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

PRIVATE_FILE_MODE: Final = 0o600
SHARED_FILE_MODE: Final = 0o666  # permissions before the user's umask, as for documents of any program
PRIVATE_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD of fcntl.h, RENAME_EXCHANGE of linux/fs.h
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE_FILE_MODE) -> None:
    """Write `data` to `path`. A missing folder is created.

    mode  permissions of the file; by default only this user may access it

    Raises StorageProblem (disk_full, not_writable).
    """
    with writing_atomically(path, mode=mode) as stream:
        stream.write(data)


@contextlib.contextmanager
def writing_atomically(path: Path, *, mode: int = PRIVATE_FILE_MODE) -> Iterator[BinaryIO]:
    """Yield a stream whose content appears at `path` when the block ends, and is discarded if the block raises.

    mode  permissions of the file, and of a folder that must be created; by default only this user has access

    Raises StorageProblem (disk_full, not_writable), and the exceptions of the block.
    """
    temporary = temporary_path(path)
    try:
        make_folder(path.parent, is_private=mode == PRIVATE_FILE_MODE)
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
    """Sync a complete file to the disk and rename it to `path`. An existing file at `path` is replaced.

    Raises OSError.
    """
    with temporary.open("r+b") as stream:
        _sync(stream)
    temporary.replace(path)
    sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """Return a temporary name in the folder of `path` for a file that this process has not completed.

    The temporary name is short and does not contain the name of `path`, which may already have the maximum length.
    """
    return path.with_name(f".{os.getpid()}-{_process_number()}{secrets.token_hex(4)}.new")


@functools.cache
def _process_number() -> str:
    """Return a part of `temporary_path` names that only this process has, among all processes on all computers."""
    return _this_computer() + secrets.token_hex(8)


@functools.cache
def _this_computer() -> str:
    """Return the beginning of `temporary_path` names, which identifies this computer.

    Several computers may share a home folder, and a process id has no meaning on another computer.
    """
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def remove_unfinished_files(folder: Path) -> None:
    """Remove unfinished files that killed processes of this program left in a folder.

    The folder may be on a network drive, so files of programs on other computers stay. SQLite's companion files of an
    unfinished database, such as `...-journal`, are removed, too.
    """
    for left in folder.glob(".*-*.new*"):
        process, _, number = left.name[1:].partition("-")
        if process.isdigit() and number.startswith(_this_computer()) and not _is_at_work(int(process), number):
            _remove(left)


def _is_at_work(process: int, number: str) -> bool:
    """Return whether the process with this id and this number still runs.

    The number distinguishes this process from an earlier process that had the same id.
    """
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


def write_new_file(path: Path, data: bytes, *, mode: int = PRIVATE_FILE_MODE) -> None:
    """Write a new file in a folder that is later renamed as a whole, and sync the file to the disk.

    mode  permissions of the file; by default only this user may access it

    Raises OSError. Raises FileExistsError for an existing file.
    """
    with _created(path, mode) as stream:
        stream.write(data)
        _sync(stream)


def create_empty_file(path: Path) -> None:
    """Create an empty file that only this user may access, to be filled by other code such as SQLite.

    Raises OSError. Raises FileExistsError for an existing file.
    """
    _created(path, PRIVATE_FILE_MODE).close()


def exchange_names(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders in one step, by renameat2(2) with RENAME_EXCHANGE.

    Returns False if the operating system or the file system cannot do this.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # not every C library has this function
    return rename is not None and rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0


def replace_folder_atomically(
    temporary: Path, path: Path, *, exchange: Callable[[Path, Path], bool] = exchange_names
) -> None:
    """Rename a completed folder to `path`. An older folder at `path` is removed.

    temporary  the completed folder, with a name from `temporary_path`
    exchange   exchanges two names and returns whether the system was able to do this

    The files of the folder were synced to the disk by `write_new_file`; this function syncs the names. On Linux both
    names are exchanged in one step, if the file system supports this. On other systems there is a moment without a
    folder at `path`, when both folders have temporary names. Raises OSError.
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
    """Give the folder at `path` a temporary name, then rename `temporary` to `path`.

    Returns the temporary path of the old folder.
    """
    displaced = temporary_path(path)
    path.rename(displaced)
    try:
        temporary.rename(path)
    except OSError:
        displaced.rename(path)
        raise
    return displaced


def make_folder(folder: Path, *, is_private: bool = False) -> None:
    """Create a missing folder and its missing parents, and sync their names to the disk. Raises OSError.

    is_private  whether only this user may access new folders; existing folders are not changed
    """
    if not folder.is_dir():
        make_folder(folder.parent, is_private=is_private)
        folder.mkdir(mode=PRIVATE_FOLDER_MODE if is_private else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def make_private_folder(folder: Path) -> None:
    """Create a missing folder, and allow only this user to access the folder, whatever the umask. Raises OSError.

    A folder of another user is not changed. A folder for all users such as /tmp is not changed either.
    """
    folder.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
    if os.name != "posix":
        return
    status = folder.stat()
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
    if is_ours and stat.S_IMODE(status.st_mode) != PRIVATE_FOLDER_MODE:
        with contextlib.suppress(OSError):  # a drive without permissions, such as a FAT flash drive
            folder.chmod(PRIVATE_FOLDER_MODE)


def require_regular_file(path: Path) -> None:
    """Raise StorageProblem (not_plain) if the path is a link, a folder or a device. A missing file is allowed.

    Writing through a link would change a file elsewhere.
    """
    if not is_regular_or_absent(path):
        raise StorageProblem(reason("not_plain", path=path))


def is_regular_or_absent(path: Path) -> bool:
    """Return whether the path is a regular file or does not exist. Links, folders and devices give False."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return True


def is_accessible_to_other_users(path: Path) -> bool:
    """Return whether other users of this computer may read or change a file, as far as the system says.

    Raises OSError.
    """
    return os.name == "posix" and bool(path.stat().st_mode & _OTHERS)


def storage_problem(error: OSError, path: Path) -> StorageProblem:
    """Return the exception for an OSError that occurred when `path` was written."""
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
    """Sync the names in a folder to the disk, so that a new file survives a power cut.

    Raises OSError if the sync fails.

    On a system that cannot sync folders, nothing happens.
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


# A link is not followed, because the lock would empty the link's target.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_LOCKED_BYTE: Final = 1024  # behind the text, because on Windows a locked byte cannot be read
_MAX_HOLDER_BYTES: Final = 200
_MAX_LOCK_FILES: Final = 1000  # maximum number of lock files that are deleted during the wait
_ASK_AGAIN_S: Final = 0.01
_HELD_ERRNO: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})  # flock; msvcrt.locking


class LockHeldError(Exception):
    """The exception for a file lock that another process, or another lock object of this process, has taken.

    holder  the line of text that the holder wrote into the lock file
    """

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """A lock on a file, from construction until `release` or the end of the process.

    holder   one line about the holder, at most 200 characters of ASCII; left out if the disk is full
    wait_s   maximum time in seconds to wait for another holder
    is_made  whether a missing file is created; otherwise FileNotFoundError is raised

    Raises LockHeldError if another process, or another lock object of this process, has the lock. Raises OSError if the
    file cannot be opened or its file system has no locks.
    """

    def __init__(self, path: Path, *, holder: str, wait_s: float = 0.0, is_made: bool = True) -> None:
        self._path, self._handle = path, -1
        flags = _FLAGS if is_made else _FLAGS & ~os.O_CREAT
        try:
            self._take(flags, until_s=time.monotonic() + wait_s)
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
                os.write(self._handle, holder.encode("ascii", errors="replace")[:_MAX_HOLDER_BYTES])
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. The method may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Delete the lock file and release the lock. The method may be called twice.

        A process that waits for the lock then creates a new lock file.
        """
        if self._handle < 0:
            return
        if os.name == "posix":
            self._unlink()
            self.release()
        else:  # Windows deletes no open file, so another holder's file stays
            self.release()
            self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _take(self, flags: int, *, until_s: float) -> None:
        """Lock the file at the path.

        If the file was deleted before it was locked, the file that replaced it is locked instead.
        """
        for _ in range(_MAX_LOCK_FILES):
            self._handle = os.open(self._path, flags, 0o600)
            self._wait(until_s)
            if self._is_at_its_path():
                return
            self.release()
        raise LockHeldError("?")

    def _wait(self, until_s: float) -> None:
        """Try to lock again and again, because the operating system's own waiting has no time limit."""
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
        """Return whether the path still leads to the locked file."""
        if os.name != "posix":
            return True
        try:
            return os.path.samestat(os.fstat(self._handle), self._path.lstat())
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        text = os.read(self._handle, _MAX_HOLDER_BYTES).decode("ascii", errors="replace")
        return text.strip("\0 \n") or "?"


@contextlib.contextmanager
def exclusive_write_access(path: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Prevent other processes that use this function from changing the file at `path` during the block.

    wait_s  maximum time in seconds to wait for another writer. A change takes milliseconds, on a slow disk a second

    Raises StorageProblem (file_in_use) if another process still has the lock after `wait_s` seconds.
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
    """Lock an open file.

    Raises OSError. The error code is one of `_HELD_ERRNO` if another holder has the lock.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
