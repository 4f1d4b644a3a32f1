from __future__ import annotations

import threading

import pytest

from fieldray.pipeline.batch import Channel, ChannelEnded


def test_items_come_in_order_and_then_the_end() -> None:
    channel: Channel[int] = Channel(3, writers=2)
    for number in (1, 2, 3):
        channel.put(number)
    channel.finish()
    assert [channel.get(), channel.get(), channel.get()] == [1, 2, 3]
    assert channel.get(timeout_s=0.01) is None  # the second writer may still come
    channel.finish()
    with pytest.raises(ChannelEnded):
        channel.get()


def test_a_full_channel_makes_the_writer_wait() -> None:
    channel: Channel[int] = Channel(2)
    put: list[int] = []

    def write() -> None:
        for number in range(5):
            channel.put(number)
            put.append(number)
        channel.finish()

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(0.1)
    assert put == [0, 1]
    assert [channel.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    writer.join()


def test_breaking_off_wakes_everybody_and_drops_the_rest() -> None:
    full, empty = Channel[int](1), Channel[int](1)
    full.put(1)
    ended: list[str] = []

    def expect(body: object, name: str) -> None:
        with pytest.raises(ChannelEnded):
            body()  # type: ignore[operator]
        ended.append(name)

    threads = [
        threading.Thread(target=expect, args=(lambda: full.put(2), "writer")),
        threading.Thread(target=expect, args=(empty.get, "decoder")),
    ]
    for thread in threads:
        thread.start()
    full.cancel()
    empty.cancel()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["decoder", "writer"]
    with pytest.raises(ChannelEnded):
        full.get()
