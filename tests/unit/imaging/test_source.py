"""Failures of the file system, by an opener that has them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from fieldray.domain.image import ImageRef
from fieldray.errors import Unreadable
from fieldray.imaging.source import content_hash, read_bytes

REF = ImageRef(path=Path("image.dcm"))


class _TornOut(io.BytesIO):
    """A file on a drive that is pulled out while it is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(107, "Transport endpoint is not connected")


def _raising(error: OSError) -> Callable[[Path], BinaryIO]:
    def opener(path: Path) -> BinaryIO:
        raise error

    return opener


@pytest.mark.parametrize("read", [read_bytes, content_hash])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file"), "missing"),
        (PermissionError(13, "Permission denied"), "no_permission"),
        (OSError(5, "Input/output error"), "drive_error"),
    ],
)
def test_what_cannot_be_opened(read: Callable[..., object], error: OSError, code: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(REF, opener=_raising(error))
    assert caught.value.reason.code == code


@pytest.mark.parametrize("read", [read_bytes, content_hash])
def test_a_drive_pulled_out_while_reading(read: Callable[..., object]) -> None:
    with pytest.raises(Unreadable) as caught:
        read(REF, opener=lambda path: _TornOut(b"x"))
    assert "not connected" in caught.value.reason.text


def test_bytes_and_hash() -> None:
    data = bytes(range(256)) * 10_000
    assert read_bytes(REF, opener=lambda path: io.BytesIO(data)) == data
    assert content_hash(REF, opener=lambda path: io.BytesIO(data)) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("read", [read_bytes, content_hash])
def test_a_vast_file_is_not_read(read: Callable[..., object]) -> None:
    class _Vast(io.BytesIO):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            return 2**40

    with pytest.raises(Unreadable) as caught:
        read(REF, opener=lambda path: _Vast(b"x"))
    assert caught.value.reason.code == "file_too_large"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes and devices of POSIX")
@pytest.mark.parametrize("read", [read_bytes, content_hash])
@pytest.mark.parametrize("kind", ["pipe", "pipe in a link", "device", "folder"])
def test_what_is_no_ordinary_file_any_more_is_neither_waited_for_nor_read(
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
    with pytest.raises(Unreadable) as caught:
        read(ImageRef(path=path))
    assert caught.value.reason.code == "unreadable"
