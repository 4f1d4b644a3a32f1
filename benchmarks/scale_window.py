"""Measure the real window with a large run in a child process: time of each act of the user, pauses of the window."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, cast

import psutil
from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtWidgets import QApplication

from fieldray.desktop.application import Application, shorten_thread_switch_interval
from fieldray.desktop.worklist_rows import COLUMN_KEYS
from fieldray.domain.run import ImageDone, RunChanged
from fieldray.paths import results_database_path
from fieldray.processes.wire import Message
from fieldray.settings import Settings
from fieldray.store.results import ResultStore

TIMER_INTERVAL_MS: Final = 5
_MEGABYTE: Final = 2**20
_FRAME_MS: Final = 16
_STUDIES: Final = 10
_SEARCHES: Final = ("garcia", "pid1234", "image-000123", "2019031", "nobody is called so")
_KNOWN: Final = 50
_ARRIVALS_PER_S: Final = 120.0


class TimerDelays:
    """Measures how late a regular timer fires while the window works.

    Attributes
    ----------
    pause_ms
        Longest delay of the timer in the last run, in milliseconds.
    busy_ms
        Longest CPU time of the window's thread between two timer events, in milliseconds.
    """

    def __init__(self, step: Callable[[], None] = lambda: None) -> None:
        self._loop, self._beat, self._steps = QEventLoop(), QTimer(), QTimer()
        for timer, act in ((self._beat, self._note), (self._steps, step)):
            timer.setTimerType(Qt.TimerType.PreciseTimer)
            timer.timeout.connect(act)
        self.pause_ms = self.busy_ms = 0.0

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Let the window work, and measure the timer, until `is_over` returns True."""
        self._is_over, self.pause_ms, self.busy_ms = is_over, 0.0, 0.0
        self._last_s, self._last_cpu_s = time.perf_counter(), time.thread_time()
        self._beat.start(TIMER_INTERVAL_MS)
        self._steps.start(_FRAME_MS)
        self._loop.exec()
        self._steps.stop()
        self._beat.stop()

    def _note(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        self.pause_ms = max(self.pause_ms, 1000 * (now_s - self._last_s) - TIMER_INTERVAL_MS)
        self.busy_ms = max(self.busy_ms, 1000 * (cpu_s - self._last_cpu_s))
        self._last_s, self._last_cpu_s = now_s, cpu_s
        if self._is_over():
            self._loop.quit()


@contextlib.contextmanager
def real_window(pack_id: str) -> Iterator[Application]:
    """Open the window with the pack `pack_id`, and yield the application. The window is closed after the block."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    qt = cast("QApplication", QApplication.instance() or QApplication([]))
    qt.setQuitOnLastWindowClosed(False)
    application = Application(qt, Settings({"language": "en", "theme": "light", "pack": pack_id}))
    shorten_thread_switch_interval(application)
    ended: list[bool] = []
    application.ended.connect(lambda: ended.append(True))
    application.show()
    heart = TimerDelays()
    try:
        heart.run_until(lambda: application.controller.packs.model is not None)
        yield application
    finally:
        application.controller.close()
        heart.run_until(lambda: bool(ended))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAction:
    """The figures of an act of the user, such as sorting the work list.

    Attributes
    ----------
    seconds
        Time until the result is visible.
    pause_ms
        Longest time in which the window did not react, in milliseconds.
    busy_ms
        Longest CPU time of the window's thread without a timer event, in milliseconds.
    rows
        Number of rows in the list afterwards.
    """

    name: str
    seconds: float
    pause_ms: float
    busy_ms: float
    rows: int


class _Bench:
    """Performs acts of a user in the window, such as sorting, and measures the time of each act."""

    def __init__(self, application: Application) -> None:
        assert application.window is not None
        self.application, self.window = application, application.window
        self.rows, self.table = application.controller.rows, application.window.work_list.table
        self.search = application.window.work_list.filter_bar.search
        self.acts: list[UserAction] = []
        self._arrived = 0
        self.rows.list_changed.connect(self._count)

    def measure(
        self,
        name: str,
        act: Callable[[], object],
        is_over: Callable[[], bool],
        *,
        step: Callable[[], None] = lambda: None,
    ) -> UserAction:
        """Perform an act, and wait until `is_over` returns True and all visible rows are loaded.

        `step` is called repeatedly during the wait. Returns the figures of the act.
        """
        heart, begun = TimerDelays(step), list[float]()

        def begin() -> None:
            begun.append(time.perf_counter())
            act()

        QTimer.singleShot(0, begin)
        heart.run_until(lambda: bool(begun) and is_over() and self.is_visible())
        QApplication.processEvents()
        seconds = time.perf_counter() - begun[0]
        found = UserAction(
            name=name, seconds=seconds, pause_ms=heart.pause_ms, busy_ms=heart.busy_ms, rows=self.rows.rowCount()
        )
        self.acts.append(found)
        return found

    def measure_list_change(self, name: str, act: Callable[[], object]) -> None:
        """Perform and measure an act after which the work list has other rows or another order."""
        before = self._arrived
        self.measure(name, act, lambda: self._arrived > before and self.rows.is_fully_read)

    def is_visible(self) -> bool:
        """Return whether every visible row of the work list is loaded."""
        first, last = self.table.rowAt(0), self.table.rowAt(self.table.viewport().height() - 1)
        rows = range(max(first, 0), (last if last >= 0 else self.rows.rowCount() - 1) + 1)
        return None not in [self.rows.row_at(self.rows.index(row, 0)) for row in rows]

    def is_open(self, *, at: int | None = None, not_at: int | None = None) -> bool:
        """Return whether the image of the row `at` is selected and open; without `at`, of any row except `not_at`."""
        row, index = self.application.controller.image.row, self.table.currentIndex()
        is_there = index.row() != not_at if at is None else index.row() == at
        return is_there and row is not None and row.row_id == self.rows.row_id_at(index)

    def scroll(self, steps: int) -> None:
        """Scroll from the top to the end and back, each in `steps` steps, and measure both."""
        bar = self.table.verticalScrollBar()
        bar.setValue(0)
        for name, target in (("scroll to the end", bar.maximum()), ("scroll to the top", 0)):
            start = bar.value()
            left = deque(start + (target - start) * step // steps for step in range(1, steps + 1))
            self.measure(name, lambda: None, partial(_is_empty, left), step=partial(_take_first, left, bar.setValue))

    def open_images(self) -> None:
        """Open the last image, the first image, and the next studies, and measure each act."""
        work_list = self.window.work_list
        for name, is_last in (("choose the last image", True), ("choose the first image", False)):
            row = self.rows.rowCount() - 1 if is_last else 0
            self.measure(name, partial(work_list.select_first_or_last, is_last=is_last), partial(self.is_open, at=row))
        for _ in range(_STUDIES):
            before = self.table.currentIndex().row()
            self.measure("next study", partial(work_list.select_next_study, 1), partial(self.is_open, not_at=before))

    def sort_and_filter(self) -> None:
        """Measure acts: sort by every column in both orders, filter by class, device and verdict, and search words."""
        sort, model = self.table.horizontalHeader().setSortIndicator, self.rows
        for column, key in enumerate(COLUMN_KEYS):
            self.measure_list_change(f"sort by {key}, up", partial(sort, column, Qt.SortOrder.AscendingOrder))
            self.measure_list_change(f"sort by {key}, down", partial(sort, column, Qt.SortOrder.DescendingOrder))
        self.measure_list_change("sort as usual", partial(sort, -1, Qt.SortOrder.AscendingOrder))
        for category in ("abnormal", "normal", "refused", None):
            self.measure_list_change(
                f"only {category or 'all classes'}", partial(model.change_filter, category=category)
            )
        for verdict in ("given", "none", "any"):
            self.measure_list_change(f"verdict {verdict}", partial(model.change_filter, verdict=verdict))
        for device in ("edgetpu", ""):
            self.measure_list_change(f"run on {device or 'any device'}", partial(model.change_filter, backend=device))
        for text in _SEARCHES:
            self.measure_list_change(f"search “{text}”", partial(self.search.setText, text))
        self.measure_list_change("search ended", self.search.clear)

    def add_results(self, run_id: int, count: int, arrivals: int) -> None:
        """Scroll and search while `arrivals` new results are added to the run, and measure each act."""
        publish, search, spent = self.application.controller.event_bridge.publish, self.search, threading.Event()

        def save() -> None:
            with ResultStore(results_database_path()) as store:
                known = [result.outcome for result in itertools.islice(store.results(run_id), _KNOWN)]
                spec = store.run(run_id).spec
                publish(RunChanged(run_id=store.open_run(spec), state="running"))
                began_s = time.perf_counter()
                for number in range(arrivals):
                    outcome = known[number % _KNOWN]
                    ref = replace(outcome.ref, path=outcome.ref.path.with_name(f"new-{number}.dcm"))
                    image = store.save_image(run_id, replace(outcome, ref=ref), spec=spec)
                    publish(ImageDone(image=image))
                    time.sleep(max(0.0, began_s + number / _ARRIVALS_PER_S - time.perf_counter()))
                store.set_run_state(run_id, "cancelled")
                publish(RunChanged(run_id=run_id, state="cancelled"))
            spent.set()

        thread, bar = threading.Thread(target=save, name="arrivals"), self.table.verticalScrollBar()
        texts, frames = [*_SEARCHES, ""], itertools.count(1)
        frames_each = max(1, round(1000 * arrivals / _ARRIVALS_PER_S / _FRAME_MS / len(texts)))

        def step() -> None:
            if spent.is_set() and not texts:
                return
            frame = next(frames)
            bar.setValue((frame * 7919 * 54) % max(bar.maximum(), 1))
            if frame % frames_each == 0 and texts:
                search.setText(texts.pop(0))

        self.measure(
            f"{arrivals} results arrive, scrolling and searching",
            thread.start,
            lambda: spent.is_set() and not texts and self.rows.rowCount() == count + arrivals,
            step=step,
        )
        thread.join()

    def _count(self) -> None:
        self._arrived += 1


def _is_empty(left: deque[int]) -> bool:
    return not left


def _take_first(left: deque[int], act: Callable[[int], None]) -> None:
    if left:
        act(left.popleft())


def measure(pack: str, run: int, count: int, *, steps: int = 250, arrivals: int = 1200) -> dict[str, Any]:
    """Open the window and the run `run`, perform all acts of a user, and return the figures.

    `count` is the number of images in the run. The list is scrolled in `steps` steps. `arrivals` is the number of
    results that are added to the run during the measurement.
    """
    process = psutil.Process()
    with real_window(pack) as application:
        assert application.window is not None
        application.window.showNormal()
        application.window.resize(1366, 768)
        empty_mb = process.memory_info().rss / _MEGABYTE
        bench = _Bench(application)
        controller, rows = application.controller, application.controller.rows
        bench.measure(
            "open the run: its first page",
            lambda: controller.past_runs.open(run),
            lambda: rows.run_id == run and rows.rowCount() > 0,
        )
        bench.measure("all of its rows", lambda: None, lambda: rows.is_fully_read)
        opened_mb = process.memory_info().rss / _MEGABYTE
        bench.scroll(steps)
        scrolled_mb = process.memory_info().rss / _MEGABYTE
        bench.open_images()
        read_mb = process.memory_info().rss / _MEGABYTE
        bench.sort_and_filter()
        bench.add_results(run, count, arrivals)
        full_mb = process.memory_info().rss / _MEGABYTE
    return {
        "acts": [asdict(act) for act in bench.acts],
        "empty_mb": empty_mb,
        "opened_mb": opened_mb,
        "scrolled_mb": scrolled_mb,
        "read_mb": read_mb,
        "full_mb": full_mb,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """Return the peak memory of this process in megabytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def handle(message: Message) -> Message:
    """Call `measure` with the arguments in a message. Returns a message with the figures."""
    body: Mapping[str, Any] = message.body
    return Message(measure(**body))
