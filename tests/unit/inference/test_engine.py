"""The engine with fake devices: every image gets its answer, devices come and go, and people are informed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_fakes import Behaviour, grey, grey_score

from fakes import FakeReaders
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model, Prediction
from fieldray.domain.pack_setup import set_up_pack
from fieldray.errors import BackendProblem, Cancelled, StorageProblem
from fieldray.inference.engine import TRIES_PER_IMAGE, Engine
from fieldray.pipeline.screen import screen_image
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from raised import raises
from tiny_models import tiny_manifest, tiny_model
from waiting import WAIT_S, Events, wait_for

DIED = reason("worker_died")
MODEL = tiny_model()
Ask = Callable[..., "Future[Prediction]"]


def engine_of(*kinds: Any, cpu: Behaviour | None = None, publish: Any = None, **options: Any) -> Engine:
    """An engine with these devices and the model open."""
    engine = Engine(publish or Events(), cpu=(cpu or Behaviour()).cpu(), kinds=kinds, **options)
    engine.open(MODEL)
    return engine


def serving_engine_of(edgetpu: Behaviour, **options: Any) -> Engine:
    """An engine with the model open whose Edge TPU is ready."""
    engine = engine_of(edgetpu.kind(), device="edgetpu", **options)
    engine.next_device(MODEL)
    return engine


def run(engine: Engine, level: int, **options: Any) -> Prediction:
    """Run an image of this grey level, which must go to a device."""
    found = engine.run(grey(level), **{"model": MODEL, **options})
    assert found
    return found


def backend_of(engine: Engine, level: int, **options: Any) -> str:
    """The name of the device that ran the image; "cpu" if a worker has to run it."""
    found = engine.run(grey(level), **{"model": MODEL, **options})
    return found.backend if found else "cpu"


@pytest.fixture
def ask() -> Iterator[Ask]:
    """A function that runs an image in a thread of its own."""
    with ThreadPoolExecutor(8) as threads:
        yield lambda engine, level, **options: threads.submit(run, engine, level, **options)


def problem(future: Future[Prediction]) -> str:
    error = future.exception(WAIT_S)
    assert isinstance(error, BackendProblem)
    return error.reason.code


def dies_on(level: int) -> Any:
    return lambda levels: DIED if level in levels else None


def start_hanging_image(device: Behaviour, asked: Callable[[], Future[Prediction]]) -> Future[Prediction]:
    """Start an image on the device and wait until it hangs there; `may_run` lets it continue."""
    device.may_run.clear()
    device.is_running.clear()
    hanging = asked()
    assert device.is_running.wait(WAIT_S)
    return hanging


def test_every_image_gets_its_own_answer(ask: Ask) -> None:
    with engine_of(Behaviour().kind(), device="edgetpu") as engine:
        answers = [future.result(WAIT_S) for future in [ask(engine, level) for level in range(0, 250, 10)]]
    expected = [grey_score(level) for level in range(0, 250, 10)]
    assert [prediction.scores["opacity"] for prediction in answers] == pytest.approx(expected)
    assert sorted(prediction.image_number_on_backend for prediction in answers) == list(range(1, 26))
    assert {(p.backend, p.pack_name, p.model_sha256) for p in answers} == {
        ("edgetpu", "tiny-1.0.0", MODEL.model_sha256)
    }


@pytest.mark.parametrize("backend", ["cpu", "edgetpu"])
def test_start_and_end_of_a_device_are_published(backend: str) -> None:
    events = Events()
    with engine_of(Behaviour().kind(), device=backend, publish=events) as engine:
        assert engine.next_device(MODEL) == backend
    states = [(event.state, event.is_in_use, event.detail) for event in events.heard]
    assert states == [("starting", False, ""), ("ready", True, "fake"), ("stopped", False, "")]


def test_an_image_whose_device_died_is_run_by_the_cpu() -> None:
    edgetpu, events = Behaviour(dies=dies_on(3)), Events()
    with engine_of(edgetpu.kind(), publish=events) as engine:
        events.wait_for("edgetpu", "ready")
        events.wait_for("cpu", "ready")
        edgetpu.start_problem = DIED  # the device cannot be restarted
        answers = [run(engine, level) for level in range(3)]
        backends = [backend_of(engine, level) for level in range(3, 6)]
        gone = events.wait_for("edgetpu", "unavailable")
    assert [prediction.image_number_on_backend for prediction in answers] == [1, 2, 3]
    assert backends == ["cpu"] * 3
    assert gone.reason == DIED and not gone.is_in_use


def test_a_better_device_takes_over_while_the_cpu_goes_on() -> None:
    edgetpu, events = Behaviour(), Events()
    edgetpu.may_start.clear()
    with engine_of(edgetpu.kind(), publish=events) as engine:
        events.wait_for("cpu", "ready")
        assert [backend_of(engine, level) for level in range(3)] == ["cpu"] * 3
        edgetpu.may_start.set()
        events.wait_for("edgetpu", "ready")
        assert run(engine, 9).backend == "edgetpu"
    in_use = [(event.backend, event.is_in_use) for event in events.heard if event.state == "ready"]
    assert in_use == [("cpu", True), ("edgetpu", True), ("cpu", False)]


def test_a_device_that_fails_its_self_test_runs_no_image() -> None:
    edgetpu, events = Behaviour(score_shift=0.05), Events()
    with engine_of(edgetpu.kind(), publish=events) as engine:
        gone = events.wait_for("edgetpu", "unavailable")
        assert backend_of(engine, 77) == "cpu"
    assert gone.reason is not None and gone.reason.code == "self_test"
    assert [77] not in edgetpu.runs
    assert edgetpu.starts == edgetpu.closes == 1  # not started a second time


@pytest.mark.parametrize("backend", ["cpu", "edgetpu"])
def test_a_passed_self_test_is_recorded_before_the_first_image(backend: str) -> None:
    runs, runs_before = Behaviour(), []

    def passed(model: Any) -> None:
        assert model is MODEL
        runs_before.append([levels for levels in runs.runs if levels == [77]])

    with engine_of(runs.kind(), cpu=runs, device=backend, passed=passed) as engine:
        assert engine.next_device(MODEL) == backend
        assert runs_before == [[]]
        assert backend_of(engine, 77) == backend


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(score_shift=0.05), Behaviour(start_problem=reason("bad_model", detail="it is a poem"))],
    ids=["other scores", "no network"],
)
def test_a_model_that_fails_its_test_is_not_recorded_or_tried_again(behaviour: Behaviour) -> None:
    known: list[Any] = []
    with engine_of(cpu=behaviour, passed=known.append) as engine, pytest.raises(BackendProblem):
        engine.next_device(MODEL)
    assert (known, behaviour.starts) == ([], 1)


def test_a_model_runs_no_image_if_its_passed_test_cannot_be_recorded() -> None:
    def passed(model: Any) -> None:
        raise StorageProblem(reason("trust_damaged", path="pack_trust.json", detail="it is a poem"))

    cpu = Behaviour()
    with engine_of(cpu=cpu, passed=passed) as engine, raises(BackendProblem, "trust_damaged"):
        engine.next_device(MODEL)
    assert [77] not in cpu.runs


def test_a_missing_device_has_a_reason_and_may_be_added_later() -> None:
    edgetpu, events = Behaviour(unavailable_reason=reason("no_model_file", device="Edge TPU")), Events()
    with engine_of(edgetpu.kind(), publish=events) as engine:
        assert events.wait_for("edgetpu", "unavailable").reason == reason("no_model_file", device="Edge TPU")
        assert edgetpu.starts == 0
        edgetpu.unavailable_reason = None
        engine.retry_backend("edgetpu")
        events.wait_for("edgetpu", "ready")
        assert run(engine, 1).backend == "edgetpu"


def test_a_device_that_died_while_idle_is_restarted() -> None:
    edgetpu, events = Behaviour(), Events()
    with serving_engine_of(edgetpu, publish=events) as engine:
        edgetpu.is_alive = False
        assert events.wait_for("edgetpu", "unavailable").reason == DIED
        edgetpu.is_alive = True
        assert run(engine, 5).image_number_on_backend == 1


def test_an_image_that_crashes_every_device_fails_alone(ask: Ask) -> None:
    edgetpu = Behaviour(dies=dies_on(2))
    with serving_engine_of(edgetpu) as engine:
        futures = [ask(engine, level) for level in range(5)]
        assert problem(futures[2]) == "worker_died"
        assert all(futures[level].result(WAIT_S).backend == "edgetpu" for level in (0, 1, 3, 4))
    assert edgetpu.runs.count([2]) == TRIES_PER_IMAGE
    edgetpu.runs.clear()
    cpu = Behaviour(dies=dies_on(2))
    with engine_of(edgetpu.kind(), cpu=cpu) as engine:
        wait_for(lambda: engine.next_device(MODEL) == "edgetpu")
        assert backend_of(engine, 2) == "cpu"  # workers repeat the image themselves
    assert (edgetpu.runs.count([2]), cpu.runs.count([2])) == (1, 0)


def test_images_fail_without_a_device_until_a_retry_succeeds(ask: Ask) -> None:
    cpu, events = Behaviour(start_problem=DIED), Events()
    with engine_of(cpu=cpu, publish=events) as engine:
        with pytest.raises(BackendProblem, match="stopped unexpectedly"):
            engine.next_device(MODEL)
        assert problem(ask(engine, 1)) == "worker_died"
        assert cpu.starts == 1 + 3
        cpu.start_problem = None
        engine.retry_backend("cpu")
        events.wait_for("cpu", "ready")
        assert backend_of(engine, 3) == "cpu"


def test_a_cancel_ends_waiting_for_a_slow_start_or_a_hanging_image(ask: Ask) -> None:
    edgetpu, cpu, is_over = Behaviour(), Behaviour(), threading.Event()
    for slow in (edgetpu, cpu):
        slow.may_start.clear()
    with engine_of(edgetpu.kind(), cpu=cpu) as engine, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(engine.next_device, MODEL, is_cancelled=is_over.is_set)
        is_over.set()
        assert isinstance(waiting.exception(WAIT_S), Cancelled)
        is_over.clear()
        edgetpu.may_start.set()
        assert engine.next_device(MODEL) == "edgetpu"
        hanging = start_hanging_image(edgetpu, lambda: ask(engine, 2, is_cancelled=is_over.is_set))
        unrun = ask(engine, 3, is_cancelled=is_over.is_set)
        is_over.set()
        assert all(isinstance(future.exception(WAIT_S), Cancelled) for future in (hanging, unrun))
        edgetpu.may_run.set()
    assert [3] not in edgetpu.runs


def test_the_engine_does_not_wait_for_the_test_of_the_cpu() -> None:
    """A device is lost before the CPU's test is done. Another worker runs that test; waiting could block them all."""
    edgetpu, cpu, events = Behaviour(dies=dies_on(2)), Behaviour(), Events()
    cpu.may_start.clear()
    with engine_of(edgetpu.kind(), cpu=cpu, publish=events) as engine:
        events.wait_for("edgetpu", "ready")
        edgetpu.start_problem = DIED
        assert backend_of(engine, 2) == "cpu"
        cpu.may_start.set()


def test_an_unexpected_error_of_a_device_becomes_a_reason() -> None:
    edgetpu, events = Behaviour(dies=lambda levels: levels[7] if levels == [1] else None), Events()
    with engine_of(edgetpu.kind(), publish=events) as engine:
        events.wait_for("edgetpu", "ready")
        assert backend_of(engine, 1) == "cpu"
    assert events.wait_for("edgetpu", "unavailable").reason == reason("internal", detail="IndexError")


def test_opening_another_model_fails_waiting_images_and_ends_the_running_one(ask: Ask) -> None:
    edgetpu = Behaviour()
    second = tiny_model(labels=2, manifest=tiny_manifest(labels=2, version="2.0.0"))
    with serving_engine_of(edgetpu) as engine:
        running = start_hanging_image(edgetpu, lambda: ask(engine, 1))
        waiting = [ask(engine, level) for level in (2, 3)]
        engine.open(second)
        assert {problem(future) for future in waiting} == {"again_other_pack"}
        edgetpu.may_run.set()
        assert running.result(WAIT_S).pack_name == "tiny-1.0.0"
        new = run(engine, 4, model=second)
        assert (new.pack_name, set(new.scores)) == ("tiny-2.0.0", {"opacity", "label1"})
        with raises(BackendProblem, "again_other_pack"):
            run(engine, 5)


def test_opening_a_model_does_not_wait_for_the_start_of_the_last_one() -> None:
    edgetpu, second = Behaviour(), tiny_model()
    edgetpu.may_start.clear()
    with engine_of(edgetpu.kind(), device="edgetpu") as engine:
        wait_for(lambda: edgetpu.starts == 1)
        engine.open(second)
        wait_for(lambda: edgetpu.starts == 2, limit_s=1.5)
        assert edgetpu.closes == 1  # never two at once: an Edge TPU has room for one
        edgetpu.may_start.set()
        assert run(engine, 1, model=second).backend == "edgetpu"


def test_an_input_for_a_closed_model_is_run_by_no_other_model() -> None:
    """Another pack is opened while a worker reads the image: the new pack's answer must not count as the first's."""

    class Slow(FakeReaders):
        def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
            engine.open(next(opened))
            return super().analyse(question, model=model)

    opened = iter((MODEL, tiny_model()))
    with engine_of(Behaviour().kind(), device="edgetpu") as engine:
        screen = partial(screen_image, ImageRef(path=Path("bright.png")), workers=Slow(), engine=engine)
        assert screen(setup=set_up_pack(MODEL)).status == "screened"
        failed = screen(setup=set_up_pack(MODEL))
    assert (failed.status, failed.stage, failed.reason.code) == ("failed", "inference", "again_other_pack")


def test_the_device_of_a_closed_model_stops_and_publishes_nothing_more() -> None:
    edgetpu, events, second = Behaviour(), Events(), tiny_model()
    with serving_engine_of(edgetpu, publish=events) as engine:
        engine.open(MODEL)  # the open model again: nothing changes
        assert run(engine, 1).image_number_on_backend == edgetpu.starts == 1
        engine.open(second)
        engine.next_device(second)
        assert edgetpu.closes == 1
    assert events.states("edgetpu") == ["starting", "ready", "starting", "ready", "stopped"]


def test_closing_fails_waiting_images_and_finishes_the_running_one(ask: Ask) -> None:
    edgetpu = Behaviour()
    engine = serving_engine_of(edgetpu)
    running = start_hanging_image(edgetpu, lambda: ask(engine, 1))
    waiting = ask(engine, 2)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert problem(waiting) == "engine_closed"
    edgetpu.may_run.set()
    closing.join()
    assert running.result(WAIT_S).scores["opacity"] == pytest.approx(grey_score(1))
    assert problem(ask(engine, 3)) == "engine_closed"
    with pytest.raises(BackendProblem, match="stopped before"):
        engine.open(tiny_model())


def test_closing_ends_a_hanging_image(ask: Ask) -> None:
    slow = Behaviour()
    engine = serving_engine_of(slow)
    hanging = start_hanging_image(slow, lambda: ask(engine, 1))
    engine.close()
    assert problem(hanging) == "engine_closed"
    assert slow.closes == 1


def test_closing_ends_the_test_of_the_cpu() -> None:
    """The worker's test with the model hangs when the engine is closed."""
    slow = Behaviour()
    slow.may_run.clear()
    engine = engine_of(cpu=slow)
    assert slow.is_running.wait(WAIT_S)
    engine.close()
    with raises(BackendProblem, "engine_closed"):
        engine.next_device(MODEL)


def test_a_device_runs_the_first_model_and_the_cpu_the_others() -> None:
    edgetpu, cpu, events, second = Behaviour(), Behaviour(), Events(), tiny_model()
    with serving_engine_of(edgetpu, cpu=cpu, publish=events) as engine:
        engine.open(MODEL, second)
        assert engine.next_device(second) == backend_of(engine, 1, model=second) == "cpu"
        assert run(engine, 2).backend == "edgetpu"
        assert (edgetpu.starts, cpu.starts) == (1, 1)
        engine.open(MODEL)
        assert run(engine, 3).backend == "edgetpu"
        with raises(BackendProblem, "again_other_pack"):
            engine.next_device(second)
    said = [(event.state, event.is_in_use) for event in events.heard if event.backend == "cpu"]
    assert said == [("ready", True)]  # no events about models after the first


def test_a_model_that_fails_does_not_affect_the_others() -> None:
    """For example, if the lung-field pack of one of them cannot be run."""

    def passed(model: Model) -> None:
        if model is second:
            raise BackendProblem(DIED)

    second, cpu, events = tiny_model(), Behaviour(), Events()
    with engine_of(cpu=cpu, publish=events, passed=passed) as engine:
        engine.open(MODEL, second)
        with raises(BackendProblem, "worker_died"):
            engine.next_device(second)
        assert engine.next_device(MODEL) == "cpu"
        assert (engine.unavailable_reason(MODEL), engine.unavailable_reason(second)) == (None, DIED)
        assert events.wait_for("cpu", "unavailable").reason == DIED


def test_a_model_that_becomes_the_first_is_run_by_the_device_without_a_new_cpu_test() -> None:
    edgetpu, cpu, events, second = Behaviour(), Behaviour(), Events(), tiny_model()
    with serving_engine_of(edgetpu, cpu=cpu, publish=events) as engine:
        engine.open(MODEL, second)
        engine.next_device(second)
        engine.choose_devices("auto", "accelerator")
        events.wait_for("cpu", "starting")
        edgetpu.may_start.clear()
        heard = len(events.heard)
        engine.open(second)
        assert engine.next_device(second) == "cpu"
        assert events.serves("cpu", after=heard).state == "ready"
        edgetpu.may_start.set()
        events.serves("edgetpu", after=heard)
        assert run(engine, 1, model=second).backend == "edgetpu"
    assert (edgetpu.starts, cpu.starts) == (2, 2)


def test_a_listener_that_fails_or_calls_the_engine_costs_no_image() -> None:
    def listen(event: Any) -> None:
        engine.retry_backend(event.backend)
        raise RuntimeError("no window there")

    with Engine(listen, cpu=Behaviour().cpu()) as engine:
        engine.open(MODEL)
        assert engine.next_device(MODEL) == "cpu"


@pytest.mark.parametrize("values", [np.zeros((1, 32, 64, 1), np.uint8), np.zeros((1, 64, 64, 1), np.float32)])
def test_an_input_of_the_wrong_shape_or_type_raises_a_value_error(values: Any) -> None:
    with engine_of() as engine, pytest.raises(ValueError, match="an image must be"):
        engine.run(values, model=MODEL)
