"""Messages between processes, valid and malformed."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest

from fieldray.processes.wire import Message, read_message, write_message


def _through(message: Message) -> Message:
    stream = io.BytesIO()
    write_message(stream, message)
    stream.seek(0)
    answer = read_message(stream)
    assert answer is not None
    assert stream.read() == b""
    return answer


def _raw(header: object) -> io.BytesIO:
    text = json.dumps(header).encode()
    return io.BytesIO(struct.pack("<I", len(text)) + text)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "float32", "float64"])
def test_arrays_travel_unchanged(dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    answer = _through(Message({"a": [1, None, "текст"]}, {"first": array, "second": array[:, ::2]}))
    assert answer.body == {"a": [1, None, "текст"]}
    np.testing.assert_array_equal(answer.arrays["first"], array)
    np.testing.assert_array_equal(answer.arrays["second"], array[:, ::2])
    assert answer.arrays["first"].dtype == dtype


def test_empty_and_zero_dimensional_arrays_travel() -> None:
    answer = _through(Message({}, {"empty": np.zeros((0, 5), np.uint8), "single": np.array(7, np.int32)}))
    assert answer.arrays["empty"].shape == (0, 5)
    assert int(answer.arrays["single"]) == 7


def test_arrays_in_the_other_byte_order_are_converted() -> None:
    answer = _through(Message({}, {"big": np.array([1, 256], ">u2")}))
    assert answer.arrays["big"].tolist() == [1, 256]


def test_several_messages_follow_one_another() -> None:
    stream = io.BytesIO()
    for number in range(3):
        write_message(stream, Message({"n": number}, {"a": np.full(number, number, np.uint8)}))
    stream.seek(0)
    received = [read_message(stream) for _ in range(4)]
    assert [message.body["n"] if message else None for message in received] == [0, 1, 2, None]


@pytest.mark.parametrize("dtype", ["object", "complex128"])
def test_arrays_of_other_types_are_not_sent(dtype: str) -> None:
    with pytest.raises(TypeError):
        write_message(io.BytesIO(), Message({}, {"a": np.zeros(2, dtype)}))


@pytest.mark.parametrize("data", [b"", b"\1", b"\1\0\0"])
def test_the_end_of_the_stream_gives_none(data: bytes) -> None:
    assert read_message(io.BytesIO(data)) is None


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"body": {}},
        {"body": {}, "arrays": 3},
        {"body": {}, "arrays": [["a", "uint8"]]},
        {"body": {}, "arrays": [["a", "object", [1]]]},
        {"body": {}, "arrays": [["a", "uint8", [-1]]]},
        {"body": {}, "arrays": [["a", "uint8", {}]]},
        {"body": {}, "arrays": [["a", "uint8", [True]]]},
        {"body": {}, "arrays": [["a", "uint8", [0, 2**40]]]},
        {"body": {}, "arrays": [["a", "uint8", [1] * 9]]},
        {"body": {}, "arrays": [["a", "uint8", [10**4_000] * 600]]},  # minutes to multiply
        {"body": {}, "arrays": [[["a"], "uint8", [0]]]},
        # announced but missing: ten bytes, and more than is allocated for any message
        {"body": {}, "arrays": [["a", "uint8", [10]]]},
        {"body": {}, "arrays": [["a", "float64", [2**31, 2**31]]]},
        {"body": {}, "arrays": [["a", "uint8", [2**30]], ["b", "uint8", [2**30]], ["c", "uint8", [1]]]},
    ],
)
def test_a_malformed_header_is_a_value_error(header: object) -> None:
    with pytest.raises(ValueError):
        read_message(_raw(header))


class Counted(io.BytesIO):
    """A stream that remembers the largest size that was asked for."""

    largest = 0

    def read(self, size: int | None = -1) -> bytes:
        self.largest = max(self.largest, size or 0)
        return super().read(size)


def test_announced_data_is_not_allocated_before_it_arrives() -> None:
    """A read allocates all that it asks for, even if almost nothing arrives."""
    stream = Counted(_raw({"body": {}, "arrays": [["a", "uint8", [2**31]]]}).getvalue() + bytes(10))
    with pytest.raises(ValueError):
        read_message(stream)
    assert stream.largest <= 64 * 2**20


def test_an_array_of_several_pieces_is_read_whole() -> None:
    array = np.arange(9 * 2**20 + 1, dtype=np.int64)  # a little more than one piece of 64 MB
    np.testing.assert_array_equal(_through(Message({}, {"a": array})).arrays["a"], array)


def test_a_long_or_deep_header_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        read_message(io.BytesIO(struct.pack("<I", 2**31) + b"{}"))
    deep = b"[" * 100_000
    with pytest.raises(ValueError):
        read_message(io.BytesIO(struct.pack("<I", len(deep)) + deep))
