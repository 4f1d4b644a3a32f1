"""A device that comes while its backend finds it absent."""

from __future__ import annotations

import threading

from fieldray.inference.backend_runner import Scheduler
from fieldray.reasons import reason

WHY = reason("device_not_chosen")


def test_a_device_that_comes_while_its_backend_finds_it_absent_is_tried_again() -> None:
    scheduler = Scheduler(("edgetpu", "cpu"), lambda event: None, publishing=threading.RLock())
    status, cpu = scheduler.statuses
    begun = status.chances
    scheduler.reconsider("edgetpu")  # it was plugged in after the runner had looked for it
    scheduler.leave(status, WHY, job=None, is_hopeless=True, is_absent=True, chances=begun)
    assert not status.is_out
    assert scheduler.pause(status, 0.0)
    scheduler.leave(status, WHY, job=None, is_hopeless=True, is_absent=True, chances=status.chances)
    assert status.is_out and not cpu.is_out
    scheduler.close()
