from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest

from fieldray.packs.reading import array_from_npy, array_to_npy, pack_problem
from tiny_packs import npy_file


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ENOTCONN])
def test_read_errors_of_a_removed_drive_are_recognised(tmp_path: Path, number: int) -> None:
    assert pack_problem(OSError(number, "gone"), folder=tmp_path).reason.code == "drive_gone"


def test_read_errors_of_a_connected_drive_are_named(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    assert pack_problem(error, folder=tmp_path).reason.text == "The pack cannot be read: Permission denied."
    assert pack_problem(error, folder=tmp_path / "gone").reason.code == "drive_gone"
    error.winerror = 1167  # type: ignore[attr-defined]  # ERROR_DEVICE_NOT_CONNECTED
    assert pack_problem(error, folder=tmp_path).reason.code == "drive_gone"


# ---- arrays


def test_a_saved_array_reads_back_read_only() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = array_from_npy(array_to_npy(np.asfortranarray(array)), dtype="float32", dimensions=2)
    assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_big_endian_arrays_are_written_little_endian() -> None:
    found = array_from_npy(array_to_npy(np.array([1.0, 2.0], dtype=">f4")), dtype="float32", dimensions=1)
    assert found.tolist() == [1.0, 2.0]


def _saved(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an array",
        _saved(np.zeros((2, 2), np.float64)),
        _saved(np.zeros(4, np.float32)),
        _saved(np.zeros((0, 4), np.float32)),
        _saved(np.asfortranarray(np.zeros((2, 3), np.float32))),
        _saved(np.array([[{}]], dtype=object), allow_pickle=True),
        _saved(np.zeros((2, 2), np.float32)) + b"\0",
        _saved(np.zeros((2, 2), np.float32))[:-1],
        _saved(np.array([[1, np.nan]], np.float32)),
        # a header that claims 4 TB for 16 bytes: nothing may be allocated for it
        _saved(np.zeros((2, 2), np.float32)).replace(b"(2, 2), }                ", b"(1000000, 1000000), }    "),
    ],
)
def test_an_array_file_of_other_shape_or_type_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        array_from_npy(data, dtype="float32", dimensions=2)


@pytest.mark.parametrize(
    "header",
    [
        *(
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
            for shape in ("(-2, -2)", "(" * 5_000 + "2, 2" + ")" * 5_000, "(" + "9" * 9_000 + ", 2)", "(2.0, 2)")
        ),
        "",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }" + " " * 300,
        "{" * 9_000,
    ],
)
def test_a_malformed_array_header_is_refused(header: str) -> None:
    with pytest.raises(ValueError):
        array_from_npy(npy_file(header, bytes(16)), dtype="float32", dimensions=2)


def test_a_header_longer_than_its_file_is_refused() -> None:
    data = array_to_npy(np.zeros((2, 2), np.float32))
    for length in range(128):  # the header ends at 128, and its values begin after that
        with pytest.raises(ValueError):
            array_from_npy(data[:length], dtype="float32", dimensions=2)
    with pytest.raises(ValueError, match="header"):
        array_from_npy(data[:8] + b"\xff\xff" + data[10:], dtype="float32", dimensions=2)
