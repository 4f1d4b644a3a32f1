"""Work off the window's thread, and events from other threads: both arrive in the window's thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.events import Event, Progress, RunChanged, Speed
from fieldray.errors import FieldrayError
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray.desktop.services import Services


@dataclass(frozen=True, eq=False, slots=True)
class _Task:
    number: int
    work: Callable[[], Any]
    done: Callable[[Any], None] | None
    failed: Callable[[FieldrayError], None] | None


class Background(QObject):
    """Runs functions on channels: one after another within a channel, channels side by side.

    `done(result)` or `failed(error)` is called in the window's thread; an error without a reason is our bug, and is
    raised after that. With `newest_only`, what waits on the channel is dropped and the answer of what runs is thrown
    away: the newest request wins. Threads live only while their channel has work, and never keep the program alive.

    services  what `ask` works with; what is asked before they are open waits for them
    board     where it is said that something failed, unless it is said how, by the name of its channel
    """

    _answered = Signal(object)

    def __init__(self, board: NoticeBoard) -> None:
        super().__init__()
        self._board = board
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Task]] = {}
        self._wanted_from: dict[str, int] = {}
        self._number = 0
        self._is_closed = False
        self._threads: set[threading.Thread] = set()
        self._answered.connect(self._deliver, Qt.ConnectionType.QueuedConnection)
        self.services: Services | None = None
        self._held: list[str] = []

    def open(self, services: Services) -> None:
        """The services are open."""
        with self._lock:
            self.services, held, self._held = services, self._held, []
            for channel in held:
                self._begin(channel)

    def ask(self, work: Callable[[Services], Any], **how: Any) -> None:
        """As `run`, with the services, once they are open."""
        self.run(lambda: work(self.services), needs_services=True, **how)  # type: ignore[arg-type]

    def run(
        self,
        work: Callable[[], Any],
        *,
        channel: str,
        done: Callable[[Any], None] | None = None,
        failed: Callable[[FieldrayError], None] | None = None,
        newest_only: bool = False,
        needs_services: bool = False,
    ) -> None:
        """Queue `work` on a channel. After `close` nothing is taken any more."""
        with self._lock:
            if self._is_closed:
                return
            self._number += 1
            task = _Task(self._number, work, done, failed)
            is_new = channel not in self._queues
            queue = self._queues.setdefault(channel, deque())
            if newest_only:
                queue.clear()
                self._wanted_from[channel] = task.number
            queue.append(task)
            if is_new and needs_services and self.services is None:
                self._held.append(channel)
            elif is_new:
                self._begin(channel)

    def forget(self, channel: str) -> None:
        """Drop what waits on a channel and the answer of what runs there."""
        with self._lock:
            self._queues.get(channel, deque()).clear()
            self._wanted_from[channel] = self._number + 1

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Take nothing more, deliver nothing more; wait up to `wait_s`. Whether every thread has ended."""
        with self._lock:
            self._is_closed = True
            for queue in self._queues.values():
                queue.clear()
            threads = tuple(self._threads)
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _begin(self, channel: str) -> None:
        """There is work on a channel that had none."""
        thread = threading.Thread(target=self._work_off, args=(channel,), name=f"window-{channel}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work_off(self, channel: str) -> None:
        while True:
            with self._lock:
                queue = self._queues[channel]
                if not queue:
                    del self._queues[channel]
                    self._threads.discard(threading.current_thread())
                    return
                task = queue.popleft()
            self._answer(channel, task)

    def _answer(self, channel: str, task: _Task) -> None:
        try:
            result, error = task.work(), None
        except Exception as problem:
            result, error = None, problem
        with self._lock:
            if self._is_closed:
                return
        self._answered.emit((channel, task, result, error))

    def _deliver(self, answer: tuple[str, _Task, Any, Exception | None]) -> None:
        channel, task, result, error = answer
        if self._is_closed or task.number < self._wanted_from.get(channel, 0):
            return
        failed = task.failed or partial(self._board.post_error, channel)
        if isinstance(error, FieldrayError):
            failed(error)
        elif error is not None:
            failed(FieldrayError(reason("internal", detail=type(error).__name__)))
            raise error
        elif task.done is not None:
            task.done(result)


_SLICE_S: Final = 0.008


class Bridge(QObject):
    """Takes events from any thread and emits them, in order, in the window's thread.

    Thousands of resumed images arrive at once; they are handed on in slices of a few milliseconds, so that the window
    stays responsive meanwhile. Of figures that replace each other (`Progress`, `Speed`) only the newest waits: what
    waits grows with the images and not with the time that the window is busy.
    """

    published = Signal(object)
    _arrived = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[list[Event]] = deque()  # each in a list of its own, so that it can be replaced
        self._newest: dict[type, list[Event]] = {}
        self._lock = threading.Lock()
        self._is_draining = False
        self._arrived.connect(self._drain, Qt.ConnectionType.QueuedConnection)

    def publish(self, event: Event) -> None:
        """Hand over one event; any thread may call this, and it never blocks."""
        with self._lock:
            if isinstance(event, RunChanged):
                self._newest.clear()  # figures of one run never replace those of another
            known = self._newest.get(type(event))
            if known:
                known[0] = event
                return
            self._waiting.append(entry := [event])
            if isinstance(event, Progress | Speed):
                self._newest[type(event)] = entry
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
                event = self._waiting.popleft()[0]
                self._newest.pop(type(event), None)
            self.published.emit(event)
        QTimer.singleShot(1, self._drain)
