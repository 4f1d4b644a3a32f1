"""Which of the ready devices get images, by policy and by a person's choice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from backend_fakes import Behaviour, grey

from fieldray.domain.model import DevicePolicy, Model
from fieldray.errors import BackendProblem
from fieldray.inference.engine import Engine
from fieldray.reasons import Reason, reason
from raised import raises
from tiny_models import tiny_model
from waiting import WAIT_S, Events, wait_for

MODEL = tiny_model()


def slow(image_s: float) -> Behaviour:
    return Behaviour(dies=lambda _: time.sleep(image_s))


def backend_of(engine: Engine, level: int = 1) -> str:
    """The name of the device that ran the image; "cpu" if a worker has to run it."""
    found = engine.run(grey(level), model=MODEL)
    return found.backend if found else "cpu"


def in_use(events: Events) -> set[str]:
    """The devices in use, by the last event of each."""
    return {name for name, is_used in {event.backend: event.is_in_use for event in events.heard}.items() if is_used}


@pytest.mark.parametrize(
    ("policy", "edgetpu_s", "cpu_s", "served_by"),
    [
        ("accelerator", 0.03, 0.005, {"edgetpu"}),
        ("fastest", 0.03, 0.005, {"cpu"}),
        ("fastest", 0.005, 0.03, {"edgetpu"}),
        ("both", 0.03, 0.005, {"edgetpu", "cpu"}),
    ],
)
def test_the_policy_decides_which_devices_run_images(
    policy: DevicePolicy, edgetpu_s: float, cpu_s: float, served_by: set[str]
) -> None:
    events = Events()
    kinds, cpu = [slow(edgetpu_s).kind()], slow(cpu_s).cpu()
    with Engine(events, cpu=cpu, kinds=kinds, policy=policy) as engine, ThreadPoolExecutor(4) as threads:
        engine.open(MODEL)
        for name in ("edgetpu", "cpu"):
            events.wait_for(name, "ready")
        assert in_use(events) == served_by
        assert set(threads.map(lambda level: backend_of(engine, level), range(12))) == served_by


def test_a_lost_device_gets_no_images_until_it_is_retried() -> None:
    """Its running image goes to the CPU. If it is connected again before its loss was noticed, it is restarted."""
    edgetpu, events = Behaviour(), Events()
    kinds, cpu = [edgetpu.kind()], Behaviour().cpu()
    with ThreadPoolExecutor(1) as thread, Engine(events, cpu=cpu, kinds=kinds) as engine:
        engine.open(MODEL)
        for name in ("edgetpu", "cpu"):
            events.wait_for(name, "ready")
        edgetpu.may_run.clear()
        edgetpu.is_running.clear()
        running = thread.submit(backend_of, engine)
        assert edgetpu.is_running.wait(WAIT_S)
        engine.end_removed_device("edgetpu", reason("coral_unplugged"))
        assert in_use(events) == {"cpu"}
        assert running.result(WAIT_S) == backend_of(engine) == "cpu"
        engine.retry_backend("edgetpu")
        edgetpu.may_run.set()
        wait_for(lambda: engine.next_device(MODEL) == "edgetpu")
        assert edgetpu.starts == 2


def test_only_the_chosen_device_is_started_and_the_choice_can_change() -> None:
    edgetpu, cpu, events = Behaviour(), Behaviour(), Events()
    with Engine(events, cpu=cpu.cpu(), kinds=[edgetpu.kind()], device="cpu") as engine:
        engine.open(MODEL)
        assert engine.next_device(MODEL) == backend_of(engine) == "cpu"
        assert edgetpu.starts == 0
        with raises(BackendProblem, "no_device"):
            engine.choose_devices("abacus", "accelerator")
        engine.choose_devices("edgetpu", "accelerator")
        assert backend_of(engine) == "edgetpu"
        assert engine.unavailable_reason(MODEL) is None
        assert events.wait_for("cpu", "unavailable").reason == reason("device_not_chosen")


def test_a_device_connected_during_its_search_is_searched_for_again() -> None:
    looked, may_say, events = threading.Event(), threading.Event(), Events()
    answers = [reason("edgetpu_not_here"), reason("edgetpu_not_here"), None]

    def probe(_: Model) -> Reason | None:
        looked.set()
        assert may_say.wait(WAIT_S)
        return answers.pop(0)

    with Engine(events, cpu=Behaviour().cpu(), kinds=[replace(Behaviour().kind(), probe=probe)]) as engine:
        engine.open(MODEL)
        assert looked.wait(WAIT_S)
        engine.retry_backend("edgetpu")  # it was connected after the search
        may_say.set()
        wait_for(lambda: len(answers) == 1)
        assert events.states("edgetpu") == []  # the absence of a device is not published
        engine.retry_backend("edgetpu")
        events.wait_for("edgetpu", "ready")
