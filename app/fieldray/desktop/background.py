"""Work off the window's thread, and events from other threads: both arrive in the window's. And its services."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.run import Count, Event, Publish
from fieldray.errors import FieldrayError
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ReportOptions
from fieldray.settings import Settings

if TYPE_CHECKING:
    from fieldray.bench.load import KeptStudy
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import PackMemory
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import Priors
    from fieldray.pipeline.constancy import ConstancyRecords
    from fieldray.pipeline.history import History
    from fieldray.pipeline.session import Session


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
        self.board = board
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
        failed = task.failed or partial(self.board.post_error, channel)
        if isinstance(error, FieldrayError):
            failed(error)
        elif error is not None:
            failed(FieldrayError(reason("internal", detail=type(error).__name__)))
            raise error
        elif task.done is not None:
            task.done(result)


_PULSE_MS: Final = 10
_REST_MS: Final = 50  # while nothing happens
_SLICE_S: Final = 0.008


class Bridge(QObject):
    """Takes events from any thread and emits them, in order, in the window's thread.

    Thousands of resumed images arrive at once; they are handed on in slices of a few milliseconds, so that the window
    stays responsive meanwhile. The timer also lets Python run, and so hear of a signal, while nothing happens.
    """

    published = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[Event] = deque()
        self._pulse = QTimer(self, interval=_PULSE_MS)
        self._pulse.timeout.connect(self._drain)
        self._pulse.start()

    def publish(self, event: Event) -> None:
        """Hand over one event; any thread may call this, and it never blocks."""
        self._waiting.append(event)

    def close(self) -> None:
        """Hand nothing more on."""
        self._pulse.stop()

    def _drain(self) -> None:
        end = time.perf_counter() + _SLICE_S
        while self._waiting and time.perf_counter() < end:
            self.published.emit(self._waiting.popleft())
        self._pulse.setInterval(_PULSE_MS if self._waiting else _REST_MS)


# ---- What the window asks of the packages that do the work, and how they are opened.

Note = Callable[[Reason], None]
Export = Callable[[int, Path, Sequence[str], ReportOptions, Count, Note], tuple[Path, ...]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Services:
    """The rooms at work. The window knows them by type alone and is given them: its tests come through the same door.

    are_empty      whether these paths are folders without any file
    may_lack_ages  whether there may be images among these paths that do not say how old the patient is
    known_load     what was last measured of an image beside other programs
    measure_load   measures that anew for the pack in a folder, signed by a key
    check_constancy  check the pack in use on each device (`pipeline.constancy.check`); waits for it
    """

    session: Session
    library: PackLibrary
    memory: PackMemory
    are_empty: Callable[[Sequence[Path]], bool]
    may_lack_ages: Callable[[Sequence[Path]], bool]
    drives: DriveWatch
    audit: Auditor
    history: History
    priors: Priors
    constancy: ConstancyRecords
    check_constancy: Callable[[], tuple[Reason, ...]]
    export: Export
    known_load: Callable[[], KeptStudy | None]
    measure_load: Callable[[Path, str, Count], KeptStudy]


OpenServices = Callable[[Settings, Publish], Services]


def open_services(settings: Settings, publish: Publish) -> Services:
    """Open the services. Slow (imports, the database): call it in the background. Raises StorageProblem."""
    from fieldray.bench.load import kept_study, study_apart
    from fieldray.imaging.quality import are_empty, may_lack_ages
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import PackMemory
    from fieldray.paths import user_data
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import Priors, system_comparer
    from fieldray.pipeline.constancy import ConstancyRecords, check
    from fieldray.pipeline.history import History
    from fieldray.pipeline.session import Session

    library = PackLibrary(user_data())
    session = Session(settings, publish)
    database, comparer = session.database, system_comparer(settings)
    constancy = ConstancyRecords(database.parent)
    drives = DriveWatch(publish)
    drives.start()

    return Services(
        session=session,
        library=library,
        memory=PackMemory(user_data()),
        are_empty=are_empty,
        may_lack_ages=may_lack_ages,
        drives=drives,
        audit=Auditor(database, library.site_points),
        history=History(database),
        priors=Priors(database, comparer, lambda ref, point: session.screen_one(ref, operating_point=point)),
        constancy=constancy,
        check_constancy=lambda: check(session, constancy),
        export=lambda run_id, folder, formats, options, progress, note: session.export(
            run_id, folder, formats, options=options, progress=progress, note=note, is_apart=True
        ),
        known_load=kept_study,
        measure_load=study_apart,
    )
