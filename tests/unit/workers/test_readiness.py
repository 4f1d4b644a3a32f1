"""The self-test of workers with a model: passing, retries, and its state after stop and close."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from backend_fakes import Behaviour, FakeWorkers, grey

from fieldray.domain.model import Model
from fieldray.inference.backend import BackendStatus
from fieldray.reasons import reason
from fieldray.workers.pool import WorkerPool
from fieldray.workers.readiness import ModelReadiness
from tiny_models import tiny_model
from waiting import wait_for

DIED = reason("worker_died")
OTHERS = reason("device_not_chosen")
MODEL = tiny_model()


class Watched:
    """Workers with this behaviour, and every status that their self-test had."""

    def __init__(self, behaviour: Behaviour, passed: Callable[[Model], None] = lambda _: None) -> None:
        self.heard: list[BackendStatus] = []
        self.readiness = ModelReadiness(
            FakeWorkers(behaviour), MODEL, lambda: self.heard.append(self.readiness.status), passed
        )

    @property
    def states(self) -> list[str]:
        return [status.state for status in self.heard]


@contextmanager
def watched(behaviour: Behaviour, passed: Callable[[Model], None] = lambda _: None) -> Iterator[Watched]:
    made = Watched(behaviour, passed)
    try:
        yield made
    finally:
        made.readiness.close()


def test_workers_are_inactive_until_their_self_test_is_started() -> None:
    behaviour, models = Behaviour(), list[Model]()
    with watched(behaviour, models.append) as made:
        assert made.readiness.is_inactive and made.readiness.status == BackendStatus()
        behaviour.may_start.clear()
        made.readiness.start()
        wait_for(lambda: behaviour.starts)
        assert not made.readiness.is_inactive and made.states == ["starting"] and models == []
        behaviour.may_start.set()
        wait_for(lambda: made.readiness.status.state == "ready")
        made.readiness.start()  # already passed, so not tested again
        assert models == [MODEL] and behaviour.starts == 1
    ready = made.heard[-1]
    assert (made.states, ready.detail, ready.reason) == (["starting", "ready"], "fake", None)
    assert made.readiness.is_inactive and made.readiness.status == BackendStatus()


def test_the_time_per_image_is_that_of_the_fastest_image() -> None:
    with watched(Behaviour(dies=lambda _: time.sleep(0.02))) as made:
        made.readiness.start()
        wait_for(lambda: made.readiness.status.state == "ready")
        assert made.readiness.status.image_time_s >= 0.02


def test_a_failed_self_test_is_retried_three_times_and_on_request() -> None:
    behaviour = Behaviour(start_problem=DIED)
    with watched(behaviour) as made:
        made.readiness.start()
        wait_for(lambda: made.readiness.is_inactive)
        assert made.states == ["starting", "unavailable"] * 4
        assert made.readiness.status == BackendStatus(state="unavailable", reason=DIED)
        behaviour.start_problem = None
        made.readiness.start()
        wait_for(lambda: made.readiness.status.state == "ready")
        assert not made.readiness.is_inactive


def test_a_permanent_failure_is_not_retried() -> None:
    with watched(Behaviour(start_problem=reason("no_runtime"))) as made:
        made.readiness.start()
        wait_for(lambda: made.readiness.is_inactive)
    assert made.states == ["starting", "unavailable"]


def test_an_unexpected_error_of_the_self_test_becomes_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    def passed(_: Model) -> None:
        raise IndexError

    with watched(Behaviour(), passed) as made:
        made.readiness.start()
        wait_for(lambda: made.readiness.is_inactive)
        assert made.readiness.status.reason == reason("internal", detail="IndexError")
    assert "a test of the workers failed unexpectedly" in caplog.text


def test_a_stopped_self_test_changes_nothing_and_the_next_one_waits() -> None:
    behaviour, gate, models = Behaviour(), threading.Event(), list[Model]()

    def passed(model: Model) -> None:
        models.append(model)
        assert gate.wait(20)

    with watched(behaviour, passed) as made:
        made.readiness.stop(OTHERS)
        assert made.readiness.status == BackendStatus()  # it was never in use
        made.readiness.start()
        wait_for(lambda: models)
        made.readiness.stop(OTHERS)
        assert made.readiness.is_inactive and made.readiness.status == BackendStatus(state="unavailable", reason=OTHERS)
        made.readiness.start()
        gate.set()
        wait_for(lambda: made.readiness.status.state == "ready")
        assert models == [MODEL, MODEL]
    assert made.states == ["starting", "starting", "ready"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_closing_ends_a_self_test_that_hangs() -> None:
    with WorkerPool(1, timeout_s=600, memory_limit_mb=1024) as workers:
        workers.run(grey(1)[0], model=MODEL, is_cancelled=lambda: False)
        (pid,) = workers.pids
        psutil.Process(pid).send_signal(signal.SIGSTOP)
        readiness = ModelReadiness(workers, MODEL, lambda: None, lambda _: None)
        readiness.start()
        time.sleep(0.2)  # the self-test has the child
        readiness.close()
        assert readiness.is_inactive and readiness.status == BackendStatus()
