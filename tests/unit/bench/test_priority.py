"""Priorities are relative to what a process has; lowering is always permitted."""

from __future__ import annotations

import os

import psutil
import pytest
from bench_subjects import FILMS

from fieldray.bench.priority import give_priority, niceness
from fieldray.bench.subject import Subject, time_network
from fieldray.inference.cpu import cpu_kind
from tiny_models import tiny_model


@pytest.mark.parametrize(("now", "steps", "expected"), [(0, 5, 5), (0, -10, -10), (-15, -10, -20), (18, 5, 19)])
def test_niceness_stays_within_its_range(now: int, steps: int, expected: int) -> None:
    assert niceness(now, steps) == expected


@pytest.mark.skipif(not psutil.LINUX, reason="each thread has a niceness of its own on Linux only")
def test_every_thread_of_a_process_is_lowered() -> None:
    lean = cpu_kind(cores=2, budget_s=None)
    backend = lean.make()
    try:
        backend.start(tiny_model())
        assert backend.pid
        threads = [thread.id for thread in psutil.Process(backend.pid).threads()]
        before = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
        assert give_priority(backend.pid, "lowered")
        after = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
        assert after == [niceness(nice, 5) for nice in before]
    finally:
        backend.close()


def test_a_lowered_subject_still_answers() -> None:
    subject = Subject(name="lowered", model=tiny_model(), kind=cpu_kind(cores=1, budget_s=None), priority="lowered")
    assert len(time_network(subject, FILMS, count=3)) == 3


def test_without_a_process_there_is_nothing_to_do() -> None:
    assert give_priority(None, "raised")
