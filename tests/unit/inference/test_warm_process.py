"""The process in waiting: one at most, handed over once, gone with the engine."""

from __future__ import annotations

import threading

import psutil

from fieldray.inference.worker import WarmProcess


def children() -> int:
    return len(psutil.Process().children())


def test_one_waits_and_is_handed_over_once() -> None:
    spare = WarmProcess()
    spare.prepare()
    spare.prepare()
    assert children() == 1
    first, second = spare.take(), spare.take()
    assert first.is_running and not second.is_running
    first.close()
    spare.close()
    assert children() == 0


def test_one_that_died_in_waiting_is_not_handed_over() -> None:
    spare = WarmProcess()
    spare.prepare()
    (waiting,) = psutil.Process().children()
    waiting.kill()
    waiting.wait(10)
    for thread in threading.enumerate():
        if thread.name == "child-keeper":
            thread.join(10)  # it hears of the end a moment later
    assert not spare.take().is_running
    spare.close()


def test_none_waits_after_the_end() -> None:
    spare = WarmProcess()
    spare.prepare()
    spare.close()
    spare.prepare()
    assert children() == 0
