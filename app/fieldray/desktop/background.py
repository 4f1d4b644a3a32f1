"""Tasks in background threads, delivery of their results and of events to the window, and the window's services."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.run import Event, ProgressHandler, Publish
from fieldray.errors import Cancelled, FieldrayError
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings

if TYPE_CHECKING:
    from fieldray.bench.load import StoredLoadStudy
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import RememberedPacks
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import PriorFinder
    from fieldray.pipeline.constancy import ConstancyRecords
    from fieldray.pipeline.history import History
    from fieldray.pipeline.session import Session


_Done = Callable[[Any], None]
_Failed = Callable[[FieldrayError], None]


class BackgroundTasks(QObject):
    """Runs tasks outside the window's thread, on named channels.

    Tasks of one channel run one after another; different channels run in parallel. All methods must be called in the
    window's thread. In that thread, `done(result)` or `failed(error)` of a task is called. An error without a reason is
    a bug, and is raised after `failed`.

    notice_board  shows an error of a task without `failed`, under the name of the task's channel
    """

    _answered = Signal(object)

    def __init__(self, board: NoticeBoard) -> None:
        super().__init__()
        self.notice_board = board
        self._opened: Future[Services] = Future()
        self._channels: dict[str, Executor] = {}
        self._under_way: set[Future[Any]] = set()
        self._wanted: dict[Future[Any], tuple[str, _Done | None, _Failed | None]] = {}
        self._is_closed = False
        self._answered.connect(self._deliver, Qt.ConnectionType.QueuedConnection)

    @property
    def services(self) -> Services | None:
        """The services that `run_with_services` passes to tasks; None until the services are open."""
        return self._opened.result() if self._opened.done() and not self._is_closed else None

    def set_services(self, services: Services) -> None:
        """Take the opened services, and begin the tasks that wait for the services (see `run_with_services`)."""
        self._opened.set_result(services)

    def run_with_services(self, work: Callable[[Services], Any], **run_options: Any) -> Future[Any] | None:
        """Run `work(services)` in the background as soon as the services are open.

        run_options  the keyword arguments of `run`

        Returns the value of `run`.
        """
        return self.run(lambda: work(self._opened.result()), **run_options)

    def run(
        self,
        work: Callable[[], Any],
        *,
        channel: str,
        done: _Done | None = None,
        failed: _Failed | None = None,
        newest_only: bool = False,
    ) -> Future[Any] | None:
        """Run the function `work` in the background, after all other tasks of its channel.

        done         function called with the result of `work`; None for no call
        failed       function called with the exception that `work` raised; None to show the error as a notice
        newest_only  whether waiting tasks of the channel are dropped, and the result of a running task is discarded

        Returns the future of the task; None after `close`, because then no task is accepted.
        """
        if self._is_closed:
            return None
        if newest_only:
            self.discard_channel_tasks(channel)
        if channel not in self._channels:
            self._channels[channel] = self._begin(channel)
        task = self._channels[channel].submit(work)
        self._under_way.add(task)
        self._wanted[task] = channel, done, failed
        task.add_done_callback(self._answer)
        return task

    def discard_channel_tasks(self, channel: str) -> None:
        """Drop the waiting tasks of a channel, and discard the result of its running task."""
        for task in [task for task, (of, _, _) in self._wanted.items() if of == channel]:
            del self._wanted[task]
            task.cancel()

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Accept no more tasks and deliver no more results.

        wait_s  maximum time in seconds to wait for running tasks

        Returns whether all tasks have ended.
        """
        self._is_closed = True
        self._opened.cancel()
        self._wanted.clear()
        for pool in self._channels.values():
            pool.shutdown(wait=False, cancel_futures=True)
        return not wait(tuple(self._under_way), wait_s).not_done

    def _begin(self, channel: str) -> Executor:
        """Return a new executor with one thread for the tasks of a channel."""
        return ThreadPoolExecutor(1, thread_name_prefix=f"window-{channel}")

    def _answer(self, task: Future[Any]) -> None:
        """Pass a finished task to the window's thread, which delivers the result. Called from any thread."""
        self._under_way.discard(task)
        if not self._is_closed:
            self._answered.emit(task)

    def _deliver(self, task: Future[Any]) -> None:
        if task not in self._wanted:  # the result was discarded
            return
        channel, done, failed = self._wanted.pop(task)
        error = task.exception()
        failed = failed or partial(self.notice_board.post_error, channel)
        if isinstance(error, FieldrayError):
            failed(error)
        elif error is not None:
            failed(FieldrayError(reason("internal", detail=type(error).__name__)))
            raise error
        elif done is not None:
            done(task.result())


class StoppableTask(QObject):
    """A background task that reports its progress a few times a second and can be stopped.

    The result of a stopped task is None.
    """

    progressed = Signal(object, int, int)  # this task, number done, total

    def __init__(self, work: Callable[[Services, ProgressHandler], Any]) -> None:
        super().__init__()
        self._work, self._reported_s = work, time.monotonic()
        self.is_stopped = False

    def stop(self) -> None:
        """Stop the task and discard its unfinished results. May be called from any thread."""
        self.is_stopped = True

    def __call__(self, services: Services) -> Any:
        try:
            self._report(0, 0)  # raises if the task was stopped while it waited
            return self._work(services, self._report)
        except Cancelled:
            return None

    def _report(self, done: int, total: int) -> None:
        if self.is_stopped:
            raise Cancelled
        if time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self.progressed.emit(self, done, total)


_REPORT_EVERY_S: Final = 0.25
_PULSE_MS: Final = 10
_REST_MS: Final = 50  # interval of the timer without events
_SLICE_S: Final = 0.008


class EventBridge(QObject):
    """Carries events of the services from any thread to the window's thread, in order.

    The events of thousands of reused results may arrive together. Events are delivered in portions of a few
    milliseconds, so that the window stays responsive. The timer also lets Python run and handle signals while the
    program is idle.
    """

    published = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[Event] = deque()
        self._pulse = QTimer(self, interval=_PULSE_MS)
        self._pulse.timeout.connect(self._drain)
        self._pulse.start()

    def publish(self, event: Event) -> None:
        """Send one event to the window. Any thread may call this method, which never blocks."""
        self._waiting.append(event)

    def close(self) -> None:
        """Stop delivering events to the window."""
        self._pulse.stop()

    def _drain(self) -> None:
        end = time.perf_counter() + _SLICE_S
        while self._waiting and time.perf_counter() < end:
            self.published.emit(self._waiting.popleft())
        self._pulse.setInterval(_PULSE_MS if self._waiting else _REST_MS)


# ---- services of the window


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Services:
    """The services behind the window: session, packs, history, audit and others. Tests pass substitutes.

    are_empty_folders         function that returns whether paths are folders without any file
    may_lack_patient_ages     function that returns whether paths may contain images without the patient's age
    run_constancy_test        function that runs the constancy test of the pack in use
                              (`pipeline.constancy.run_constancy_test`)
    read_computer_load_study  function that returns the latest load study of this computer, or None
    run_computer_load_study   function that runs a load study with the pack in a folder. Its arguments are the folder,
                              the fingerprint of the signing key, and a function for the progress
    """

    session: Session
    library: PackLibrary
    remembered_packs: RememberedPacks
    are_empty_folders: Callable[[Sequence[Path]], bool]
    may_lack_patient_ages: Callable[[Sequence[Path]], bool]
    drives: DriveWatch
    auditor: Auditor
    history: History
    priors: PriorFinder
    constancy: ConstancyRecords
    run_constancy_test: Callable[[], tuple[Reason, ...]]
    read_computer_load_study: Callable[[], StoredLoadStudy | None]
    run_computer_load_study: Callable[[Path, str, ProgressHandler], StoredLoadStudy]


OpenServices = Callable[[Settings, Publish], Services]


def open_services(settings: Settings, publish: Publish) -> Services:
    """Open the services behind the window. Raises StorageProblem.

    Call this function in the background, because imports and the database are slow.

    publish  function that receives the events of runs and drives, from any thread
    """
    from fieldray.bench.load import read_load_study, run_load_study_in_child
    from fieldray.imaging.quality import are_empty_folders, may_lack_patient_ages
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import RememberedPacks
    from fieldray.paths import data_folder
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import PriorFinder, system_comparer_factory
    from fieldray.pipeline.constancy import ConstancyRecords, run_constancy_test
    from fieldray.pipeline.history import History
    from fieldray.pipeline.session import Session

    library = PackLibrary(data_folder())
    session = Session(settings, publish)
    database, comparer = session.database, system_comparer_factory(settings)
    constancy = ConstancyRecords(database.parent)
    drives = DriveWatch(publish)
    drives.start()

    return Services(
        session=session,
        library=library,
        remembered_packs=RememberedPacks(data_folder()),
        are_empty_folders=are_empty_folders,
        may_lack_patient_ages=may_lack_patient_ages,
        drives=drives,
        auditor=Auditor(database, library.site_points),
        history=History(database),
        priors=PriorFinder(database, comparer, lambda ref, point: session.screen_one(ref, operating_point=point)),
        constancy=constancy,
        run_constancy_test=lambda: run_constancy_test(session, constancy),
        read_computer_load_study=read_load_study,
        run_computer_load_study=run_load_study_in_child,
    )
