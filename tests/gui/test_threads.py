"""The window stays quick: its event bridge, its background tasks, and how little it does at a time, counted not timed.

Events keep their order, the newest request wins, nothing blocks and nothing is left behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from cProfile import Profile

import pytest
from desk import Desk
from fake_rooms import screened
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from fieldray.desktop.background import BackgroundTasks, EventBridge
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.desktop.worklist_rows import COLUMN_KEYS, WorkListRow
from fieldray.domain.run import RunChanged
from fieldray.errors import FieldrayError
from fieldray.reasons import reason


def test_events_of_one_thread_arrive_in_order_in_the_windows_thread(qtbot: QtBot) -> None:
    bridge, got, threads = EventBridge(), [], set()
    bridge.published.connect(lambda event: (got.append(event.run_id), threads.add(threading.current_thread())))

    def publish() -> None:
        for number in range(5000):
            bridge.publish(RunChanged(run_id=number, state="running"))

    worker = threading.Thread(target=publish)
    worker.start()
    worker.join()
    qtbot.waitUntil(lambda: len(got) == 5000)
    assert got == list(range(5000))
    assert threads == {threading.main_thread()}


def test_a_flood_of_events_leaves_room_for_the_window(qtbot: QtBot) -> None:
    bridge, handled, turns = EventBridge(), [], []

    def handle(event: RunChanged) -> None:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        handled.append(len(turns))

    bridge.published.connect(handle)
    ticker = QTimer()
    ticker.timeout.connect(lambda: turns.append(True))
    ticker.start(0)
    for number in range(100):
        bridge.publish(RunChanged(run_id=number, state="running"))
    qtbot.waitUntil(lambda: len(handled) == 100)
    # 100 events of 1 ms in slices of 8 ms: at least ten turns of the window in between.
    assert handled[-1] - handled[0] >= 10


@pytest.fixture
def background(qtbot: QtBot) -> Iterator[BackgroundTasks]:
    made = BackgroundTasks(NoticeBoard())
    yield made
    made.close()


def refuse(error: Exception) -> None:
    raise error


def test_a_channel_works_in_order_and_channels_side_by_side(background: BackgroundTasks, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="slow", done=lambda _: got.append("slow"), failed=refuse)
    background.run(lambda: 1, channel="slow", done=lambda _: got.append("after"), failed=refuse)
    background.run(lambda: 2, channel="quick", done=lambda _: got.append("quick"), failed=refuse)
    qtbot.waitUntil(lambda: got == ["quick"])
    gate.set()
    qtbot.waitUntil(lambda: got == ["quick", "slow", "after"])


def test_the_newest_request_wins(background: BackgroundTasks, qtbot: QtBot) -> None:
    gate, ran, got = threading.Event(), [], []

    def work(number: int) -> int:
        gate.wait(5)
        ran.append(number)
        return number

    for number in range(5):
        background.run(
            lambda number=number: work(number), channel="image", done=got.append, failed=refuse, newest_only=True
        )
    gate.set()
    qtbot.waitUntil(lambda: got == [4])
    assert ran[-1] == 4 and len(ran) <= 2


def test_the_answer_to_a_forgotten_request_is_not_delivered(background: BackgroundTasks, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="image", done=got.append, failed=refuse, newest_only=True)
    background.discard_channel_tasks("image")
    gate.set()
    background.run(lambda: "next", channel="image", done=got.append, failed=refuse)
    qtbot.waitUntil(lambda: got == ["next"])


def test_an_error_is_delivered_in_the_windows_thread(background: BackgroundTasks, qtbot: QtBot) -> None:
    got: list[tuple[str, threading.Thread]] = []

    def work() -> None:
        raise FieldrayError(reason("truncated"))

    background.run(
        work, channel="any", failed=lambda error: got.append((error.reason.code, threading.current_thread()))
    )
    qtbot.waitUntil(lambda: bool(got))
    assert got == [("truncated", threading.main_thread())]


def test_a_bug_is_delivered_to_the_caller_and_raised(background: BackgroundTasks, qtbot: QtBot) -> None:
    got: list[str] = []
    with qtbot.captureExceptions() as caught:
        background.run(lambda: 1 / 0, channel="any", failed=lambda error: got.append(error.reason.code))
        qtbot.waitUntil(lambda: bool(caught))
    assert (got, [kind for kind, _, _ in caught]) == (["internal"], [ZeroDivisionError])


def test_requests_wait_until_the_services_are_open(background: BackgroundTasks, qtbot: QtBot) -> None:
    got: list[object] = []
    for number in range(2):
        background.run_with_services(
            lambda services, number=number: (services, number), channel="a", done=got.append, failed=refuse
        )
    background.run(lambda: "at once", channel="b", done=got.append, failed=refuse)
    qtbot.waitUntil(lambda: got == ["at once"])
    background.set_services("services")  # type: ignore[arg-type]
    qtbot.waitUntil(lambda: got == ["at once", ("services", 0), ("services", 1)])


def test_after_close_nothing_comes_any_more(background: BackgroundTasks, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="a", done=got.append, failed=refuse)
    background.close()
    gate.set()
    background.run(lambda: 1, channel="b", done=got.append, failed=refuse)
    qtbot.wait(50)
    assert got == []


def test_emitting_a_signal_keeps_the_reference_count_of_true(qtbot: QtBot) -> None:
    """PySide6 6.12.0 drops one reference at every signal. Before Python 3.12 a long run then ends in a crash."""
    bridge = EventBridge()
    event = RunChanged(run_id=1, state="running")
    before = sys.getrefcount(True)
    for _ in range(200):
        bridge.published.emit(event)
    assert abs(sys.getrefcount(True) - before) < 50


ROWS = 2000
START = """
import json, sys
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication
from fieldray.desktop.application import run_application
LARGE = {"ai_edge_litert", "imagecodecs", "matplotlib", "pydicom", "tensorflow"}
class Watch(QObject):
    def eventFilter(self, watched, event):
        if event.type() == QEvent.Type.Paint:
            print(json.dumps(sorted(LARGE & sys.modules.keys())), flush=True)
            QApplication.instance().removeEventFilter(self)
            QTimer.singleShot(0, lambda: [window.close() for window in QApplication.topLevelWidgets()])
        return False
application = QApplication([])
watch = Watch()
application.installEventFilter(watch)
sys.exit(run_application([]))
"""


def times_called(calls: Profile, function: Callable[..., object]) -> int:
    """How often a function written in Python was called."""
    return sum(entry.callcount for entry in calls.getstats() if entry.code is function.__code__)


def test_of_thousands_of_rows_only_the_visible_ones_are_read_and_drawn(desk: Desk) -> None:
    rows, session = desk.bench.rows, desk.rooms.session
    desk.screen()
    session.outcomes[:] = [screened(number, (number * 7919 % 1000) / 1000) for number in range(ROWS)]
    inserted: list[int] = []
    rows.rowsInserted.connect(lambda _parent, first, last: inserted.append(last - first + 1))
    with Profile() as calls:
        desk.bench.screening.handle_run_changed(RunChanged(run_id=1, state="finished"))
        desk.bench.screening.start()
        desk.until_listed(ROWS)
        for act in (
            lambda: rows.sort(COLUMN_KEYS.index("score")),
            lambda: rows.sort(-1),
            lambda: rows.change_filter(text="px-10"),
            lambda: rows.change_filter(text=""),
        ):
            with desk.qtbot.waitSignal(rows.list_changed):
                act()
        desk.window.work_list.select_first_or_last(is_last=True)
        desk.until(lambda: desk.bench.image.row is not None)
    assert sum(inserted) == ROWS
    assert len(inserted) < ROWS / 10
    # Drawing every row once would request over 30 values a row; how often visible rows are drawn depends on time.
    assert 0 < times_called(calls, WorkListModel.data) < 5 * ROWS
    assert times_called(calls, WorkListRow.__post_init__) < ROWS / 4
    assert rows.rowCount() == ROWS


def test_sigterm_ends_the_program_in_order() -> None:
    script = START.replace("QTimer.singleShot", "(lambda *_: None)")
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline()
        program.terminate()
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def test_a_thread_that_never_ends_does_not_prevent_the_program_from_ending() -> None:
    hanging = """
import fieldray.desktop.controller, fieldray.desktop.application, threading
fieldray.desktop.controller._CLOSING_ENDS_MS = 100
fieldray.desktop.application._THREADS_END_S = 0.1
fieldray.desktop.application.Application.__init__.__kwdefaults__["services"] = lambda *_: threading.Event().wait()
"""
    script = START.replace("class Watch", f"{hanging}class Watch")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n")


def test_the_window_opens_before_large_libraries_are_imported() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == []
