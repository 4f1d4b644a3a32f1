from __future__ import annotations

import io

import numpy as np
import pytest

from fieldray.packs.arrays import pack_array, unpack_array


def test_round_trip_keeps_values_and_is_read_only() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = unpack_array(pack_array(np.asfortranarray(array)), dtype="float32", dimensions=2)
    assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_big_endian_arrays_are_written_little_endian() -> None:
    found = unpack_array(pack_array(np.array([1.0, 2.0], dtype=">f4")), dtype="float32", dimensions=1)
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
        # a header that claims 4 TB for 16 bytes: nothing may be allocated on its word
        _saved(np.zeros((2, 2), np.float32)).replace(b"(2, 2), }                ", b"(1000000, 1000000), }    "),
    ],
)
def test_what_is_not_the_array_asked_for_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_array(data, dtype="float32", dimensions=2)
