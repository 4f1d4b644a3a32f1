"""Reading files: failures of the file system, and stamps, which notice most changes of a file without a full read."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.errors import Unreadable
from fieldray.imaging.source import FileStamper, FileState, open_file
from fieldray.imaging.whole_file import hash_file, read_bytes, read_bytes_and_state
from raised import raises

Opener = Callable[[Path], BinaryIO]
REF = ImageRef(path=Path("image.dcm"))


class _TornOut(io.BytesIO):
    """A file on a drive that is pulled out while it is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(107, "Transport endpoint is not connected")

    getbuffer = read  # type: ignore[assignment]


class _Sized(io.BytesIO):
    """A file that states this size and holds other data."""

    def __init__(self, size: int, data: bytes) -> None:
        super().__init__(data)
        self._size = size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._size if whence == io.SEEK_END else super().seek(offset, whence)


def _raising(error: OSError) -> Opener:
    def opener(path: Path) -> BinaryIO:
        raise error

    return opener


@pytest.mark.parametrize("read", [read_bytes, hash_file])
@pytest.mark.parametrize(
    ("opener", "code", "says"),
    [
        (_raising(FileNotFoundError(2, "No such file")), "missing", ""),
        (_raising(PermissionError(13, "Permission denied")), "no_permission", ""),
        (_raising(OSError(5, "Input/output error")), "drive_error", ""),
        (lambda _: _TornOut(b"x"), "unreadable", "not connected"),
        (lambda _: _Sized(2**40, b"x"), "file_too_large", ""),
    ],
    ids=["gone", "not permitted", "failing", "torn out", "vast"],
)
def test_a_file_that_cannot_be_read_has_a_reason(
    read: Callable[..., object], opener: Opener, code: str, says: str
) -> None:
    with raises(Unreadable, code, says=says):
        read(REF, opener=opener)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes and devices of POSIX")
@pytest.mark.parametrize("read", [read_bytes, hash_file])
@pytest.mark.parametrize("kind", ["pipe", "pipe in a link", "device", "folder"])
def test_a_path_that_became_a_pipe_or_device_is_refused_at_once(
    tmp_path: Path, read: Callable[[ImageRef], object], kind: str
) -> None:
    path = tmp_path / "image.dcm"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        pipe = tmp_path / "pipe" if "link" in kind else path
        os.mkfifo(pipe)
        if pipe != path:
            path.symlink_to(pipe)
    with raises(Unreadable, "unreadable"):
        read(ImageRef(path=path))


# ---- stamps: changes that they notice, and changes that they cannot notice

KEY = bytes(range(32))
LATER = time.time() + 3600
STATE = FileState(size_bytes=100_000, modified_ns=10**18, status_changed_ns=10**18)
DATA = bytes(number * 7919 % 251 for number in range(100_000))


@pytest.fixture
def stamps() -> FileStamper:
    """A stamper whose clock is an hour ahead, so that files of today are old enough for a stamp."""
    return FileStamper(KEY, now_s=lambda: LATER)


def stamp_of_file(stamps: FileStamper, path: Path) -> bytes:
    with open_file(path) as stream:
        return stamps.stamp_of_stream(path, stream)


@pytest.mark.parametrize("size", [1, 9216, 9217, 65_536, 65_537, 300_000])
def test_a_file_read_whole_an_open_one_and_a_hashed_one_have_the_same_stamp(
    stamps: FileStamper, tmp_path: Path, size: int
) -> None:
    path, data = tmp_path / "a.dcm", (DATA * 3)[:size]
    path.write_bytes(data)
    ref = ImageRef(path=path)
    found = stamps.stamp_of_data(path, *read_bytes_and_state(ref))
    assert len(found) == 16
    assert stamp_of_file(stamps, path) == found
    assert hash_file(ref, stamper=stamps) == (hashlib.sha256(data).hexdigest(), found)


def test_a_stamp_depends_on_size_times_key_and_path(stamps: FileStamper) -> None:
    path = Path("/images/a.dcm")
    known = {stamps.stamp_of_data(path, DATA, STATE)}
    for state in (STATE._replace(modified_ns=10**18 + 1), STATE._replace(status_changed_ns=10**18 + 1)):
        known.add(stamps.stamp_of_data(path, DATA, state))
    known.add(stamps.stamp_of_data(path, DATA + b"0", STATE._replace(size_bytes=100_001)))
    known.add(stamps.stamp_of_data(Path("/images/b.dcm"), DATA, STATE))
    known.add(FileStamper(KEY[::-1], now_s=lambda: LATER).stamp_of_data(path, DATA, STATE))
    assert len(known) == 6


def changed(place: int) -> bytes:
    return DATA[:place] + bytes([DATA[place] ^ 1]) + DATA[place + 1 :]


def test_a_stamp_covers_the_beginning_the_end_and_random_blocks(stamps: FileStamper) -> None:
    path = Path("/images/a.dcm")
    known = stamps.stamp_of_data(path, DATA, STATE)
    places = [
        place for parts in stamps._parts(os.fsencode(path), STATE.size_bytes) for place in (parts[0], sum(parts) - 1)
    ]
    assert {0, 4095, 99_999} <= set(places)
    assert all(stamps.stamp_of_data(path, changed(place), STATE) != known for place in places)
    middle = [place for place in places if 4096 <= place < 100_000 - 1024]
    assert len(middle) == 8  # four blocks
    other = FileStamper(KEY[::-1], now_s=lambda: LATER)
    assert not set(middle) & {parts[0] for parts in other._parts(os.fsencode(path), STATE.size_bytes)}


def test_a_change_outside_the_sampled_blocks_with_forged_times_is_missed(stamps: FileStamper) -> None:
    """Only a hash of the whole content notices such a change; the option --verify computes it."""
    path = Path("/images/a.dcm")
    seen = [range(place, place + length) for place, length in stamps._parts(os.fsencode(path), STATE.size_bytes)]
    unseen = next(place for place in range(50_000, 100_000) if not any(place in part for part in seen))
    assert stamps.stamp_of_data(path, changed(unseen), STATE) == stamps.stamp_of_data(path, DATA, STATE)


def test_most_keys_notice_a_change_of_a_quarter_of_the_file(tmp_path: Path) -> None:
    """The change lies between the beginning and the end, with the same size and times."""
    path, other = Path("/images/a.dcm"), bytearray(DATA)
    other[40_000:65_000] = bytes(25_000)
    missed = 0
    for number in range(100):
        stamps = FileStamper(bytes([number]) * 32, now_s=lambda: LATER)
        missed += stamps.stamp_of_data(path, DATA, STATE) == stamps.stamp_of_data(path, bytes(other), STATE)
    assert missed <= 45  # 0.75^4 of 100 keys are 32


def test_the_stamp_of_a_small_file_covers_all_of_it(stamps: FileStamper) -> None:
    path, state = Path("/images/a.png"), FileState(9216, 10**18, 10**18)
    known = {stamps.stamp_of_data(path, changed(place)[:9216], state) for place in range(0, 9216, 97)}
    assert len(known) == len(range(0, 9216, 97))


@pytest.mark.skipif(os.name == "nt", reason="there it is the time at which the file was made")
def test_a_forged_modification_time_is_noticed_by_the_status_change_time(stamps: FileStamper, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(DATA)
    known, before = stamp_of_file(stamps, path), path.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    path.write_bytes(changed(50_000))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert stamp_of_file(stamps, path) != known


@pytest.mark.parametrize(("age_s", "has_stamp"), [(9.0, False), (11.0, True), (-60.0, False)])
def test_a_file_changed_just_now_or_in_the_future_gets_no_stamp(tmp_path: Path, age_s: float, has_stamp: bool) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(DATA)
    state = path.stat()
    changed_s = max(state.st_mtime_ns, state.st_ctime_ns) / 1e9
    stamps = FileStamper(KEY, now_s=lambda: changed_s + age_s)
    assert bool(stamps.stamp_of_data(path, *read_bytes_and_state(ImageRef(path=path)))) is has_stamp
    assert bool(hash_file(ImageRef(path=path), stamper=stamps)[1]) is has_stamp


def test_a_frame_of_a_multiframe_file_gets_no_stamp(stamps: FileStamper, tmp_path: Path) -> None:
    path = tmp_path / "a.dcm"
    path.write_bytes(DATA)
    assert hash_file(ImageRef(path=path, header=ImageHeader(number_of_frames=2)), stamper=stamps)[1] == b""


def test_a_file_that_changes_during_reading_gets_no_stamp(
    stamps: FileStamper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.dcm"
    path.write_bytes(DATA)
    states = iter(FileState(len(DATA), time_ns, 0) for time_ns in range(5))
    monkeypatch.setattr("fieldray.imaging.whole_file.file_state_of", lambda _: next(states))
    data, state = read_bytes_and_state(ImageRef(path=path))
    assert (data, state, stamps.stamp_of_data(path, data, state)) == (DATA, None, b"")
    assert hash_file(ImageRef(path=path), stamper=stamps)[1] == b""


def test_a_stream_that_is_no_file_gets_no_stamp(stamps: FileStamper) -> None:
    assert stamps.stamp_of_stream(Path("a"), io.BytesIO(b"image")) == b""
    with pytest.raises(Unreadable):
        hash_file(ImageRef(path=Path("/nowhere/a.dcm")), stamper=stamps)
