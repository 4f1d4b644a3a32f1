"""Expires once when a call is late, never after it ended, and leaves no thread."""

from __future__ import annotations

import threading

import pytest

from fieldray.processes.child import Deadline

_SOON_S = 10.0


@pytest.fixture
def expired() -> threading.Semaphore:
    return threading.Semaphore(0)


def test_a_late_call_expires_once_and_the_next_one_has_its_own_time(expired: threading.Semaphore) -> None:
    deadline = Deadline(expired.release, name="deadline")
    for _ in range(2):
        deadline.begin(0.01)
        assert expired.acquire(timeout=_SOON_S)
        assert not expired.acquire(timeout=0.2)
    deadline.close()


def test_a_call_that_ended_does_not_expire(expired: threading.Semaphore) -> None:
    deadline = Deadline(expired.release, name="deadline")
    for _ in range(100):
        deadline.begin(0.1)
        deadline.end()
    assert not expired.acquire(timeout=0.3)
    deadline.close()


def test_it_does_not_wait_for_the_end_of_an_earlier_call(expired: threading.Semaphore) -> None:
    deadline = Deadline(expired.release, name="deadline")
    deadline.begin(60)
    deadline.end()
    deadline.begin(0.01)
    assert expired.acquire(timeout=_SOON_S)
    deadline.close()


def test_no_thread_before_the_first_call_and_none_after_the_end(expired: threading.Semaphore) -> None:
    before = threading.active_count()
    deadline = Deadline(expired.release, name="deadline")
    assert threading.active_count() == before
    deadline.close()
    deadline = Deadline(expired.release, name="deadline")
    deadline.begin(60)
    assert threading.active_count() == before + 1
    deadline.close()
    assert threading.active_count() == before


def test_it_can_be_closed_by_what_it_calls() -> None:
    over = threading.Event()

    def end() -> None:
        deadline.close()
        over.set()

    deadline = Deadline(end, name="deadline")
    deadline.begin(0.01)
    assert over.wait(_SOON_S)
    deadline.close()
