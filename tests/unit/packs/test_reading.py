from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fieldray.packs.reading import problem_of, read_optional_file


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ENOTCONN])
def test_errors_of_a_drive_that_went(tmp_path: Path, number: int) -> None:
    assert problem_of(OSError(number, "gone"), folder=tmp_path).reason.code == "drive_gone"


def test_errors_of_a_drive_that_went_on_windows(tmp_path: Path) -> None:
    error = OSError(errno.EINVAL, "The device is not connected")
    error.winerror = 1167  # type: ignore[attr-defined]  # ERROR_DEVICE_NOT_CONNECTED
    assert problem_of(error, folder=tmp_path).reason.code == "drive_gone"


def test_an_error_on_a_drive_that_is_there_says_what_it_is(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    assert problem_of(error, folder=tmp_path).reason.text == "The pack cannot be read: Permission denied."
    assert problem_of(error, folder=tmp_path / "gone").reason.code == "drive_gone"


def test_a_file_that_may_be_absent(tmp_path: Path) -> None:
    assert read_optional_file(tmp_path, name="card", limit_bytes=10) is None
    (tmp_path / "card").write_bytes(b"text")
    assert read_optional_file(tmp_path, name="card", limit_bytes=10) == b"text"
