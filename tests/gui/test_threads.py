"""The bridge and the background: order, newest wins, nothing blocks and nothing is left."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from fake_rooms import screened
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from fieldray.desktop.background import Background, Bridge
from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.events import OutcomeReady, Progress, RunChanged
from fieldray.errors import FieldrayError
from fieldray.reasons import reason


def test_events_of_one_thread_arrive_in_order_in_the_windows_thread(qtbot: QtBot) -> None:
    bridge, got, threads = Bridge(), [], set()
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


def test_of_figures_that_wait_only_the_newest_is_handed_on(qtbot: QtBot) -> None:
    bridge, got = Bridge(), []
    bridge.published.connect(got.append)
    outcomes = [OutcomeReady(run_id=1, row_id=number, outcome=screened(number, 0.5)) for number in range(3)]
    for done, outcome in enumerate(outcomes, start=1):
        bridge.publish(outcome)
        bridge.publish(progress(done))
    ended, begun = RunChanged(run_id=1, state="finished"), RunChanged(run_id=2, state="running")
    for event in (ended, begun, progress(0)):
        bridge.publish(event)
    qtbot.waitUntil(lambda: len(got) == 7)
    assert got == [outcomes[0], progress(3), *outcomes[1:], ended, begun, progress(0)]
    bridge.publish(progress(1))
    qtbot.waitUntil(lambda: got[7:] == [progress(1)])


def progress(done: int) -> Progress:
    return Progress(done=done, total=3, total_is_final=True, images_per_s=1.0, remaining_s=None)


def test_a_flood_of_events_leaves_room_for_the_window(qtbot: QtBot) -> None:
    bridge, handled, turns = Bridge(), [], []

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
def background(qtbot: QtBot) -> Background:
    return Background(NoticeBoard())


def refuse(error: Exception) -> None:
    raise error


def test_a_channel_works_in_order_and_channels_side_by_side(background: Background, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="slow", done=lambda _: got.append("slow"), failed=refuse)
    background.run(lambda: 1, channel="slow", done=lambda _: got.append("after"), failed=refuse)
    background.run(lambda: 2, channel="quick", done=lambda _: got.append("quick"), failed=refuse)
    qtbot.waitUntil(lambda: got == ["quick"])
    gate.set()
    qtbot.waitUntil(lambda: got == ["quick", "slow", "after"])


def test_the_newest_request_wins(background: Background, qtbot: QtBot) -> None:
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


def test_what_was_forgotten_is_not_delivered(background: Background, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="image", done=got.append, failed=refuse, newest_only=True)
    background.forget("image")
    gate.set()
    background.run(lambda: "next", channel="image", done=got.append, failed=refuse)
    qtbot.waitUntil(lambda: got == ["next"])


def test_an_error_is_delivered_in_the_windows_thread(background: Background, qtbot: QtBot) -> None:
    got: list[tuple[str, threading.Thread]] = []

    def work() -> None:
        raise FieldrayError(reason("truncated"))

    background.run(
        work, channel="any", failed=lambda error: got.append((error.reason.code, threading.current_thread()))
    )
    qtbot.waitUntil(lambda: bool(got))
    assert got == [("truncated", threading.main_thread())]


def test_a_bug_is_said_to_whoever_waits_and_raised(background: Background, qtbot: QtBot) -> None:
    got: list[str] = []
    with qtbot.captureExceptions() as caught:
        background.run(lambda: 1 / 0, channel="any", failed=lambda error: got.append(error.reason.code))
        qtbot.waitUntil(lambda: bool(caught))
    assert (got, [kind for kind, _, _ in caught]) == (["internal"], [ZeroDivisionError])


def test_what_is_asked_before_the_services_are_open_waits_for_them(background: Background, qtbot: QtBot) -> None:
    got: list[object] = []
    for number in range(2):
        background.ask(lambda services, number=number: (services, number), channel="a", done=got.append, failed=refuse)
    background.run(lambda: "at once", channel="b", done=got.append, failed=refuse)
    qtbot.waitUntil(lambda: got == ["at once"])
    background.open("services")  # type: ignore[arg-type]
    qtbot.waitUntil(lambda: got == ["at once", ("services", 0), ("services", 1)])


def test_after_close_nothing_comes_any_more(background: Background, qtbot: QtBot) -> None:
    gate, got = threading.Event(), []
    background.run(lambda: gate.wait(5), channel="a", done=got.append, failed=refuse)
    background.close()
    gate.set()
    background.run(lambda: 1, channel="b", done=got.append, failed=refuse)
    qtbot.wait(50)
    assert got == []


def test_emitting_costs_no_reference_to_true(qtbot: QtBot) -> None:
    """PySide6 6.12.0 drops one at every signal: before Python 3.12 a long run ends in a crash of the interpreter."""
    bridge = Bridge()
    event = RunChanged(run_id=1, state="running")
    before = sys.getrefcount(True)
    for _ in range(200):
        bridge.published.emit(event)
    assert abs(sys.getrefcount(True) - before) < 50
