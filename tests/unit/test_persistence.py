"""Files that are written completely or not at all, and folders that are private to one user."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.persistence import (
    PRIVATE_FILE_MODE,
    SHARED_FILE_MODE,
    exchange_names,
    make_folder,
    make_private_folder,
    remove_unfinished_files,
    replace_folder_atomically,
    require_regular_file,
    sync_folder,
    temporary_path,
    write_atomically,
    write_new_file,
    writing_atomically,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="links and permissions of POSIX")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [place.name for place in path.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(error), writing_atomically(path) as stream:
        stream.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_name_of_maximum_length_can_be_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("x" * 255), b"content")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"content"


@posix
def test_no_link_is_followed_when_writing(tmp_path: Path) -> None:
    """Neither a link instead of the file, nor one under the temporary name of older versions."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "reports"
    folder.mkdir()
    for name in ("report", "report.new", "report.part", ".report.new"):
        (folder / name).symlink_to(victim)
    write_atomically(folder / "report", b"content")
    assert victim.read_text() == "precious"
    assert not (folder / "report").is_symlink()
    assert (folder / "report").read_bytes() == b"content"


@posix
def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", [bytes([letter]) * 100_000 for letter in b"abcd"]
    threads = [threading.Thread(target=write_atomically, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_private_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "private", b"")
    write_atomically(tmp_path / "shared", b"", mode=SHARED_FILE_MODE)
    assert mode_of(tmp_path / "private") == 0o600
    assert mode_of(tmp_path / "shared") == 0o666 & ~umask
    make_private_folder(tmp_path / "home")
    assert mode_of(tmp_path / "home") == 0o700
    for mode in (PRIVATE_FILE_MODE, SHARED_FILE_MODE):
        write_atomically(tmp_path / f"{mode}" / "deep" / "file", b"", mode=mode)
        folders = {mode_of(tmp_path / f"{mode}"), mode_of(tmp_path / f"{mode}" / "deep")}
        assert folders == {0o700 if mode == PRIVATE_FILE_MODE else 0o777 & ~umask}


@posix
def test_the_permissions_of_an_open_folder_are_narrowed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    assert mode_of(tmp_path) == 0o700


@posix
def test_a_shared_sticky_folder_is_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_private_folder(tmp_path)
    assert mode_of(tmp_path) == 0o1777


def test_an_existing_file_is_never_overwritten_as_new(tmp_path: Path) -> None:
    write_new_file(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        write_new_file(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


@posix
def test_writing_to_a_special_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(StorageProblem) as problem:
            require_regular_file(tmp_path / name)
        assert problem.value.reason.code == "not_plain"
    require_regular_file(tmp_path / "absent")


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageProblem) as problem:
        write_atomically(tmp_path / "file" / "inside", b"")
    assert problem.value.reason.code == "not_writable"


# ---- folders


def completed(path: Path, content: bytes) -> Path:
    """A folder with one file, under a temporary name next to its final place."""
    temporary = temporary_path(path)
    temporary.mkdir()
    write_new_file(temporary / "file", content)
    return temporary


def not_exchanged(first: Path, second: Path) -> bool:
    """The exchange of two names, as on a file system that does not support it."""
    return False


@pytest.mark.parametrize("exchange", [exchange_names, not_exchanged])
def test_a_completed_folder_takes_a_free_name_or_replaces_a_folder(
    tmp_path: Path, exchange: Callable[[Path, Path], bool]
) -> None:
    path = tmp_path / "folder"
    for content in (b"first", b"second"):
        replace_folder_atomically(completed(path, content), path, exchange=exchange)
        assert (path / "file").read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_a_failed_replacement_keeps_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    replace_folder_atomically(completed(path, b"first"), path)

    def lost(first: Path, second: Path) -> bool:
        shutil.rmtree(first)
        return False

    with pytest.raises(FileNotFoundError):
        replace_folder_atomically(completed(path, b"second"), path, exchange=lost)
    assert (path / "file").read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_with_those_above_them(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "one" / "two" / "three")
    assert (tmp_path / "one" / "two" / "three").is_dir()
    with pytest.raises(OSError):
        (tmp_path / "file").touch()
        make_folder(tmp_path / "file" / "four")


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    sync_folder(tmp_path / "gone")


def test_only_temporary_files_of_ended_processes_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    own = temporary_path(tmp_path / "x").name
    here = own.partition("-")[2][:8]  # this computer
    gone = [f".{process}-{here}{'0' * 24}.new{more}" for process, more in ((ended.pid, ""), (ended.pid, "-wal"))]
    gone += [f".{os.getpid()}-{here}{'0' * 24}.new"]
    stays = [own, f".{os.getppid()}-{here}{'0' * 24}.new", ".other.new", "1-2.new", ".x-1.new"]
    stays += [f".{ended.pid}-{'0' * 32}.new"]  # of another computer with the same home
    for name in (*gone, *stays):
        (tmp_path / name).touch()
    (tmp_path / f".{ended.pid}-{here}folder.new" / "inner").mkdir(parents=True)
    remove_unfinished_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(stays)
