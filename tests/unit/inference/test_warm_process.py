"""The process in waiting: one at most, handed over once, gone with the engine."""

from __future__ import annotations

import threading

import psutil

from fieldray.inference.litert import RUNTIMES
from fieldray.inference.worker import WarmProcess
from waiting import wait_for


def children() -> int:
    return len(psutil.Process().children())


def test_one_waits_and_is_handed_over_once() -> None:
    spare = WarmProcess(RUNTIMES)
    spare.prepare()
    spare.prepare()
    assert children() == 1
    first, second = spare.take(), spare.take()
    assert first.is_running and not second.is_running
    first.close()
    spare.close()
    assert children() == 0


def test_one_that_died_in_waiting_is_not_handed_over() -> None:
    spare = WarmProcess(RUNTIMES)
    spare.prepare()
    (waiting,) = psutil.Process().children()
    waiting.kill()
    waiting.wait(10)
    for thread in threading.enumerate():
        if thread.name == "child-keeper":
            thread.join(10)  # it hears of the end a moment later
    assert not spare.take().is_running
    spare.close()


def test_none_waits_without_a_runtime_or_after_the_end() -> None:
    spare = WarmProcess(())
    spare.prepare()
    assert children() == 0
    spare.close()
    spare.prepare()
    assert children() == 0


def test_the_end_does_not_wait_for_one_that_is_just_starting() -> None:
    spare = WarmProcess(RUNTIMES)
    thread = threading.Thread(target=spare.prepare)
    thread.start()
    wait_for(lambda: children() or not thread.is_alive())
    spare.close()
    thread.join()
    assert children() == 0
