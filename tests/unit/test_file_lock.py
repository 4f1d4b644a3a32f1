"""A file lock that another holder has, that cannot be written, or that is waited for."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from fieldray.persistence import FileLock, LockHeldError

_FULL = Path("/dev/full")
_HOLD = """
import sys
from pathlib import Path
from fieldray.persistence import FileLock
lock = FileLock(Path(sys.argv[1]), holder="the other one")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


def _open_files() -> int:
    return psutil.Process().num_fds()


def _open_files_at(path: Path) -> int:
    return sum(file.path == str(path) for file in psutil.Process().open_files())


def test_the_holder_of_a_lock_is_reported_and_a_released_lock_can_be_taken(path: Path) -> None:
    with FileLock(path, holder="process 1"), pytest.raises(LockHeldError) as caught:
        FileLock(path, holder="process 2")
    assert caught.value.holder == "process 1"
    with FileLock(path, holder="process 3") as lock:
        lock.release()
        lock.release()
        FileLock(path, holder="process 4").release()


def test_a_process_that_ends_leaves_no_lock_behind(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError, match="the other one"):
            FileLock(path, holder="this one", wait_s=0.05)
        other.kill()
    FileLock(path, holder="this one").release()


def test_a_held_lock_is_waited_for(path: Path) -> None:
    first = FileLock(path, holder="first")
    got: list[str] = []

    def wait() -> None:
        with FileLock(path, holder="second", wait_s=60.0):
            got.append("second")

    waiting = threading.Thread(target=wait)
    waiting.start()
    got.append("first")
    first.release()
    waiting.join()
    assert got == ["first", "second"]


def test_a_lock_file_removed_during_the_wait_is_not_held_twice(path: Path) -> None:
    first = FileLock(path, holder="first")
    has, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        second = FileLock(path, holder="second", wait_s=60.0)
        has.set()
        may_end.wait(60.0)
        second.remove()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while _open_files_at(path) < 2:
        time.sleep(0.01)
    first.remove()
    first.remove()
    assert has.wait(60.0)
    with pytest.raises(LockHeldError, match="second"):
        FileLock(path, holder="third")
    may_end.set()
    waiting.join()
    assert not path.exists()


def test_a_missing_lock_file_is_created_only_if_wanted(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(path, holder="nobody", is_made=False)
    assert not path.exists()


@pytest.mark.skipif(not _FULL.exists(), reason="a device of Linux")
def test_a_failed_lock_leaves_no_file_open() -> None:
    before = _open_files()
    FileLock(_FULL, holder="nobody will read this").release()  # without room for the holder's name it still locks
    assert _open_files() == before


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
def test_waiting_for_a_held_lock_leaves_no_file_open(path: Path) -> None:
    with FileLock(path, holder="first"):
        before = _open_files()
        with pytest.raises(LockHeldError):
            FileLock(path, holder="second")
        assert _open_files() == before


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"work of years")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        FileLock(path, holder="nobody")
    assert (tmp_path / "precious").read_bytes() == b"work of years"


def test_a_lock_in_a_missing_folder_raises_an_os_error(path: Path) -> None:
    with pytest.raises(OSError) as caught:
        FileLock(path / "below", holder="nobody")
    assert caught.value.errno in (errno.ENOENT, errno.ENOTDIR)
