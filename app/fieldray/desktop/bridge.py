"""The one way from the working rooms into the window."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from fieldray.domain.events import Event

_SLICE_S: Final = 0.008


class Bridge(QObject):
    """Takes events from any thread and emits them, in order, in the window's thread.

    Thousands of resumed images arrive at once; they are handed on in slices of a few milliseconds, so that the window
    stays responsive meanwhile.
    """

    published = Signal(object)
    _arrived = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[Event] = deque()
        self._lock = threading.Lock()
        self._is_draining = False
        self._arrived.connect(self._drain, Qt.ConnectionType.QueuedConnection)

    def publish(self, event: Event) -> None:
        """Hand over one event; any thread may call this, and it never blocks."""
        with self._lock:
            self._waiting.append(event)
            wake = not self._is_draining
            self._is_draining = True
        if wake:
            self._arrived.emit()

    def _drain(self) -> None:
        end = time.perf_counter() + _SLICE_S
        while time.perf_counter() < end:
            with self._lock:
                if not self._waiting:
                    self._is_draining = False
                    return
                event = self._waiting.popleft()
            self.published.emit(event)
        QTimer.singleShot(1, self._drain)
