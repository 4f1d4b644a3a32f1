"""A bounded queue between threads that can end and can be cancelled."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ChannelEnded(Exception):
    """No more items will come."""


class Channel(Generic[Item]):
    """Holds at most `size` items; `writers` threads put into it and each says `finish` when it is done.

    A thread that waits for room is woken once half of it is free: waking it for every item would cost as much as what
    it does for one.
    """

    def __init__(self, size: int, *, writers: int = 1) -> None:
        self._size = size
        self._writers = writers
        self._items: deque[Item] = deque()
        self._is_broken = False
        lock = threading.RLock()
        self._has_room = threading.Condition(lock)
        self._has_items = threading.Condition(lock)

    def put(self, item: Item) -> None:
        """Add an item, waiting while the channel is full. Raises ChannelEnded once it was cancelled."""
        with self._has_room:
            self._has_room.wait_for(lambda: self._is_broken or len(self._items) < self._size)
            if self._is_broken:
                raise ChannelEnded
            self._items.append(item)
            self._has_items.notify()

    def get(self, *, timeout_s: float | None = None) -> Item | None:
        """The oldest item; None if none came in time. Raises ChannelEnded when all is taken or it was cancelled."""
        with self._has_items:
            self._has_items.wait_for(lambda: self._items or self._is_over, timeout=timeout_s)
            if self._items and not self._is_broken:
                if len(self._items) <= 1 + self._size // 2:
                    self._has_room.notify_all()
                return self._items.popleft()
            if self._is_over:
                raise ChannelEnded
            return None

    def finish(self) -> None:
        """One writer is done."""
        with self._has_items:
            self._writers -= 1
            self._has_items.notify_all()

    def cancel(self) -> None:
        """Drop everything and wake all waiting threads."""
        with self._has_items:
            self._is_broken = True
            self._items.clear()
            self._has_items.notify_all()
            self._has_room.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._is_broken or self._writers <= 0
