"""Which of the backends that are ready get images, by policy and by a person's choice."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from backend_fakes import Behaviour, grey

from fieldray.domain.model import Policy
from fieldray.errors import BackendProblem
from fieldray.inference.backend_runner import BackendStatus, Scheduler
from fieldray.inference.engine import Engine
from fieldray.reasons import Reason, reason
from raised import raises
from tiny_models import tiny_model
from waiting import WAIT_S, Events, wait_for

MODEL = tiny_model()


def ready_scheduler(policy: Policy, *, edgetpu_s: float, cpu_s: float) -> tuple[Scheduler, Events]:
    events = Events()
    scheduler = Scheduler(["edgetpu", "cpu"], events, publishing=threading.RLock())
    scheduler.choose({"edgetpu", "cpu"}, policy)
    for status, image_s in zip(scheduler.statuses, (edgetpu_s, cpu_s), strict=True):
        scheduler.enter(status, "ready", image_s=image_s)
    return scheduler, events


def in_use(events: Events) -> set[str]:
    """By the last event of each."""
    return {name for name, is_used in {event.backend: event.in_use for event in events.heard}.items() if is_used}


@pytest.mark.parametrize(
    ("policy", "edgetpu_s", "cpu_s", "served_by"),
    [
        ("accelerator", 0.07, 0.01, {"edgetpu"}),
        ("fastest", 0.07, 0.01, {"cpu"}),
        ("fastest", 0.005, 0.01, {"edgetpu"}),
        ("both", 0.07, 0.01, {"edgetpu", "cpu"}),
    ],
)
def test_who_serves(policy: Policy, edgetpu_s: float, cpu_s: float, served_by: set[str]) -> None:
    scheduler, events = ready_scheduler(policy, edgetpu_s=edgetpu_s, cpu_s=cpu_s)
    assert in_use(events) == served_by
    future = scheduler.submit(grey(1))
    takers = {status.name for status in scheduler.statuses if takes(scheduler, status)}
    assert takers and takers <= served_by
    scheduler.close()
    assert not future.done() or future.exception()


def takes(scheduler: Scheduler, status: BackendStatus) -> bool:
    """Whether a runner of this status is given the image, or would wait for another one."""
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(scheduler.take(status)))
    thread.start()
    thread.join(0.05)
    found = any(taken)
    if thread.is_alive():
        thread.join()  # it gives up after a second without images
    return found


def test_a_lost_device_serves_no_more_until_it_is_reconsidered() -> None:
    scheduler, events = ready_scheduler("accelerator", edgetpu_s=0.01, cpu_s=0.01)
    scheduler.lose("edgetpu", reason("coral_unplugged"))
    assert in_use(events) == {"cpu"}
    assert scheduler.take(scheduler.statuses[0]) is None
    scheduler.reconsider("edgetpu")
    assert in_use(events) == {"edgetpu"}


def test_an_edgetpu_that_is_plugged_in_again_before_its_loss_was_noticed_is_started_again() -> None:
    edgetpu, events = Behaviour(), Events()
    with Engine(events, kinds=[edgetpu.kind("edgetpu"), Behaviour().kind()]) as engine:
        engine.open(MODEL)
        events.wait_for("edgetpu", "ready")
        edgetpu.may_run.clear()
        future = engine.submit(grey(5))
        assert edgetpu.is_running.wait(WAIT_S)
        engine.lost("edgetpu", reason("coral_unplugged"))
        engine.reconsider("edgetpu")
        assert future.result(WAIT_S).backend == "cpu"
        edgetpu.may_run.set()
        wait_for(lambda: edgetpu.starts == 2)


def test_only_the_chosen_device_is_started() -> None:
    edgetpu, cpu = Behaviour(), Behaviour()
    with Engine(Events(), kinds=[edgetpu.kind("edgetpu"), cpu.kind()], device="cpu") as engine:
        engine.open(MODEL)
        assert engine.submit(grey(1)).result(WAIT_S).backend == "cpu"
        assert edgetpu.starts == 0
        engine.choose("edgetpu", "accelerator")
        assert engine.submit(grey(2)).result(WAIT_S).backend == "edgetpu"
        assert engine.unavailable_reason is None


def test_a_device_of_which_there_is_no_kind_cannot_be_chosen() -> None:
    with raises(BackendProblem, "no_device"):
        Engine(Events(), kinds=[Behaviour().kind()], device="edgetpu")


def test_a_device_that_comes_while_its_backend_finds_it_absent_is_tried_again() -> None:
    scheduler, _ = ready_scheduler("accelerator", edgetpu_s=0.01, cpu_s=0.01)
    status, cpu = scheduler.statuses
    begun, why = status.chances, reason("device_not_chosen")
    scheduler.reconsider("edgetpu")  # it was plugged in after the runner had looked for it
    scheduler.leave(status, why, job=None, is_hopeless=True, is_absent=True, chances=begun)
    assert not status.is_out
    assert scheduler.pause(status, 0.0)
    scheduler.leave(status, why, job=None, is_hopeless=True, is_absent=True, chances=status.chances)
    assert status.is_out and not cpu.is_out
    scheduler.close()


def test_an_idle_backend_looks_after_itself_however_busy_another_one_is() -> None:
    scheduler, _ = ready_scheduler("accelerator", edgetpu_s=0.01, cpu_s=0.01)
    over = threading.Event()

    def keep_waking() -> None:
        while not over.wait(0.005):
            scheduler.reconsider("edgetpu")  # wakes all who wait, as each image submitted does

    waker = threading.Thread(target=keep_waking)
    waker.start()
    idle = threading.Thread(target=lambda: scheduler.take(scheduler.statuses[1]))
    idle.start()
    idle.join(WAIT_S)
    gave_up = not idle.is_alive()
    over.set()
    waker.join()
    scheduler.close()
    idle.join()
    assert gave_up


def test_two_images_that_end_their_worker_in_the_classifier_do_not_end_the_cpu() -> None:
    """Each has its three tries; the backend is no worse for it."""
    deaths: list[int] = []

    def dies(levels: list[int]) -> Reason | None:
        deaths.extend(level for level in levels if level in (1, 2))
        return reason("worker_died") if levels[0] in (1, 2) else None

    kind = replace(Behaviour(dies=dies).kind(), tests_itself=True)
    with Engine(Events(), kinds=[kind]) as engine:
        engine.open(MODEL)
        bad = [engine.submit(grey(level)) for level in (1, 2)]
        for future in bad:
            with pytest.raises(BackendProblem):
                future.result(WAIT_S)
        assert engine.submit(grey(3)).result(WAIT_S).backend == "cpu"
    assert deaths == [1, 1, 1, 2, 2, 2]
