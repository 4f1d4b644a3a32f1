"""The engine with fake backends: what it promises about images, backends and what people are told."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_fakes import Behaviour, grey, grey_score

from fakes import FakeReaders
from fieldray.domain.assessment import choose
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model, Prediction, Request
from fieldray.errors import BackendProblem, StorageProblem
from fieldray.inference.backend_runner import TRIES_PER_IMAGE
from fieldray.inference.engine import Engine
from fieldray.pipeline.screen import screen_image
from fieldray.reasons import reason
from fieldray.workers.calls import Look, Seen
from tiny_models import tiny_manifest, tiny_model
from waiting import WAIT_S, Events

DIED = reason("worker_died")
MODEL = tiny_model()


def engine_of(*kinds: Any, publish: Any = None, **options: Any) -> Engine:
    """With the model open."""
    engine = Engine(publish or Events(), kinds=kinds, **options)
    engine.open(MODEL)
    return engine


def serving_engine_of(*kinds: Any, publish: Any = None) -> Engine:
    """Once a backend is ready."""
    engine = engine_of(*kinds, publish=publish)
    engine.serving(timeout_s=WAIT_S)
    return engine


def answer(future: Future[Prediction]) -> Prediction:
    return future.result(WAIT_S)


def problem(future: Future[Prediction]) -> str:
    error = future.exception(WAIT_S)
    assert isinstance(error, BackendProblem)
    return error.reason.code


def dies_on(level: int) -> Any:
    return lambda levels: DIED if level in levels else None


def test_every_image_gets_its_own_answer() -> None:
    with engine_of(Behaviour().kind()) as engine:
        futures = [engine.submit(grey(level)) for level in range(0, 250, 10)]
        answers = [answer(future) for future in futures]
    assert [prediction.request_id for prediction in answers] == list(range(0, 250, 10))
    assert [prediction.scores["opacity"] for prediction in answers] == pytest.approx(
        [grey_score(level) for level in range(0, 250, 10)]
    )
    assert [prediction.sequence for prediction in answers] == list(range(1, 26))
    assert {(p.backend, p.pack_name, p.model_sha256) for p in answers} == {("cpu", "tiny-1.0.0", MODEL.model_sha256)}


def test_what_people_are_told_of_a_start_and_an_end() -> None:
    events = Events()
    serving_engine_of(Behaviour().kind(), publish=events).close()
    states = [(event.state, event.in_use, event.detail) for event in events.heard]
    assert states == [("starting", False, ""), ("ready", True, "fake"), ("stopped", False, "")]


def test_an_image_whose_backend_died_is_run_by_the_next_one() -> None:
    edgetpu, events = Behaviour(dies=dies_on(3)), Events()
    with engine_of(edgetpu.kind("edgetpu"), Behaviour().kind(), publish=events) as engine:
        events.wait_for("edgetpu", "ready")
        events.wait_for("cpu", "ready")
        edgetpu.start_problem = DIED  # it does not come back
        answers = [answer(future) for future in [engine.submit(grey(level)) for level in range(6)]]
        gone = events.wait_for("edgetpu", "unavailable")
    assert [prediction.backend for prediction in answers] == ["edgetpu"] * 3 + ["cpu"] * 3
    assert [prediction.sequence for prediction in answers] == [1, 2, 3, 1, 2, 3]
    assert answers[3].scores["opacity"] == pytest.approx(grey_score(3))
    assert gone.reason == DIED and not gone.in_use


def test_a_better_backend_takes_over_while_the_other_goes_on() -> None:
    edgetpu, events = Behaviour(), Events()
    edgetpu.may_start.clear()
    with engine_of(edgetpu.kind("edgetpu"), Behaviour().kind(), publish=events) as engine:
        assert [answer(engine.submit(grey(level))).backend for level in range(3)] == ["cpu"] * 3
        edgetpu.may_start.set()
        events.wait_for("edgetpu", "ready")
        assert answer(engine.submit(grey(9))).backend == "edgetpu"
    in_use = [(event.backend, event.in_use) for event in events.heard if event.state == "ready"]
    assert in_use == [("cpu", True), ("edgetpu", True), ("cpu", False)]


def test_a_backend_that_fails_its_self_test_runs_no_image() -> None:
    edgetpu, events = Behaviour(score_shift=0.05), Events()
    with engine_of(edgetpu.kind("edgetpu"), Behaviour().kind(), publish=events) as engine:
        gone = events.wait_for("edgetpu", "unavailable")
        assert answer(engine.submit(grey(77))).backend == "cpu"
    assert gone.reason is not None and gone.reason.code == "self_test"
    assert [77] not in edgetpu.runs
    assert edgetpu.starts == edgetpu.closes == 1  # it is not tried again


def test_a_model_is_known_to_run_once_its_self_test_passed_and_before_an_image_is_run() -> None:
    cpu, runs_before = Behaviour(), []

    def passed(model: Any) -> None:
        assert model is MODEL
        runs_before.append([levels for levels in cpu.runs if levels == [77]])

    with engine_of(cpu.kind(), passed=passed) as engine:
        assert answer(engine.submit(grey(77))).request_id == 77
    assert runs_before == [[]]


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(score_shift=0.05), Behaviour(start_problem=reason("bad_model", detail="it is a poem"))],
    ids=["other scores", "no network"],
)
def test_a_model_that_cannot_be_run_leaves_no_trace(behaviour: Behaviour) -> None:
    known: list[Any] = []
    with engine_of(behaviour.kind(), passed=known.append) as engine, pytest.raises(BackendProblem):
        engine.serving(timeout_s=WAIT_S)
    assert known == []


def test_a_model_runs_no_image_where_it_cannot_be_kept_that_it_ran() -> None:
    def passed(model: Any) -> None:
        raise StorageProblem(reason("trust_damaged", path="pack_trust.json", detail="it is a poem"))

    cpu = Behaviour()
    with engine_of(cpu.kind(), passed=passed) as engine:
        assert problem(engine.submit(grey(77))) == "trust_damaged"
    assert [77] not in cpu.runs


def test_a_backend_that_is_not_there_says_why_and_may_come_later() -> None:
    edgetpu, events = Behaviour(unavailable_reason=reason("no_model_file", device="Edge TPU")), Events()
    with engine_of(edgetpu.kind("edgetpu"), Behaviour().kind(), publish=events) as engine:
        assert events.wait_for("edgetpu", "unavailable").reason == reason("no_model_file", device="Edge TPU")
        assert edgetpu.starts == 0
        edgetpu.unavailable_reason = None
        engine.reconsider("edgetpu")
        events.wait_for("edgetpu", "ready")
        assert answer(engine.submit(grey(1))).backend == "edgetpu"


def test_a_backend_that_died_in_idleness_is_started_again() -> None:
    cpu, events = Behaviour(), Events()
    with serving_engine_of(cpu.kind(), publish=events) as engine:
        cpu.is_alive = False
        assert events.wait_for("cpu", "unavailable").reason == DIED
        cpu.is_alive = True
        assert answer(engine.submit(grey(5))).sequence == 1


def test_an_image_that_ends_every_backend_takes_only_itself_down() -> None:
    cpu = Behaviour(dies=dies_on(2))
    with engine_of(cpu.kind()) as engine:
        futures = [engine.submit(grey(level)) for level in range(5)]
        assert problem(futures[2]) == "worker_died"
        assert [answer(futures[level]).request_id for level in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert cpu.runs.count([2]) == TRIES_PER_IMAGE


def test_images_fail_when_no_backend_is_left_and_go_on_after_a_new_try() -> None:
    cpu, events = Behaviour(start_problem=DIED), Events()
    with engine_of(cpu.kind(), publish=events) as engine:
        queued = engine.submit(grey(1))
        assert problem(queued) == "worker_died"
        assert problem(engine.submit(grey(2))) == "worker_died"
        with pytest.raises(BackendProblem, match="stopped unexpectedly"):
            engine.serving(timeout_s=WAIT_S)
        assert cpu.starts == 1 + 3
        cpu.start_problem = None
        engine.reconsider("cpu")
        events.wait_for("cpu", "ready")
        assert answer(engine.submit(grey(3))).request_id == 3


def test_waiting_for_a_slow_start_has_an_end() -> None:
    cpu = Behaviour()
    cpu.may_start.clear()
    with engine_of(cpu.kind()) as engine:
        assert engine.serving(timeout_s=0.01) is None
        cpu.may_start.set()
        engine.serving(timeout_s=WAIT_S)


def test_a_lasting_reason_is_not_tried_again() -> None:
    cpu = Behaviour(start_problem=reason("bad_model", detail="it is a poem"))
    with engine_of(cpu.kind()) as engine, pytest.raises(BackendProblem, match="it is a poem"):
        engine.serving(timeout_s=WAIT_S)
    assert cpu.starts == 1


def test_a_failure_nobody_thought_of_is_a_reason_too() -> None:
    def explode(levels: list[int]) -> Any:
        if levels == [1]:
            raise ZeroDivisionError("seven")
        return None

    with engine_of(Behaviour(dies=explode).kind()) as engine:
        error = engine.submit(grey(1)).exception(WAIT_S)
        assert isinstance(error, BackendProblem) and "seven" in error.reason.text
        assert answer(engine.submit(grey(2))).request_id == 2


def test_images_belong_to_the_model_they_were_submitted_for() -> None:
    cpu = Behaviour()
    second = tiny_model(labels=2, manifest=tiny_manifest(labels=2, version="2.0.0"))
    with serving_engine_of(cpu.kind()) as engine:
        cpu.may_run.clear()
        old = [engine.submit(grey(level)) for level in range(4)]
        engine.open(second)
        new = [engine.submit(grey(level)) for level in range(4)]
        cpu.may_run.set()
        assert {answer(future).pack_name for future in old} == {"tiny-1.0.0"}
        assert {answer(future).pack_name for future in new} == {"tiny-2.0.0"}
        assert set(answer(new[0]).scores) == {"opacity", "label1"}


def test_what_was_made_for_a_model_that_is_closed_by_then_is_run_by_no_other() -> None:
    """Another pack is opened while a worker reads the image: its answer must not be stored as that of the first."""
    engine = engine_of(Behaviour().kind("edgetpu"))
    bigger = tiny_model(manifest=tiny_manifest(side=128))  # its input does not even fit

    class Slow(FakeReaders):
        def look(self, question: Look, *, model: Model | None) -> Seen:
            engine.open(next(others))
            return super().look(question, model=model)

    others = iter((MODEL, tiny_model(), bigger))
    with engine:
        found = []
        for _ in range(3):
            engine.open(MODEL)
            ref = ImageRef(path=Path("bright.png"))
            found.append(screen_image(ref, assessment=choose(MODEL), workers=Slow(), engine=engine))
    assert [outcome.status for outcome in found] == ["screened", "failed", "failed"]
    assert {outcome.reason.code for outcome in found[1:]} == {"again_other_pack"}


def test_the_backends_of_a_former_model_end_when_they_are_done_and_say_no_more() -> None:
    cpu, events = Behaviour(), Events()
    with serving_engine_of(cpu.kind(), publish=events) as engine:
        engine.open(tiny_model())
        engine.serving(timeout_s=WAIT_S)
        waited = threading.Event()
        while not cpu.closes:
            assert not waited.wait(0.01)
    assert events.states("cpu") == ["starting", "ready", "starting", "ready", "stopped"]


def test_opening_the_model_that_is_open_changes_nothing() -> None:
    cpu = Behaviour()
    with serving_engine_of(cpu.kind()) as engine:
        engine.open(MODEL)
        assert answer(engine.submit(grey(1))).sequence == 1
    assert cpu.starts == 1


def test_closing_fails_what_is_queued_and_lets_what_runs_end() -> None:
    cpu = Behaviour()
    engine = serving_engine_of(cpu.kind())
    cpu.may_run.clear()
    cpu.is_running.clear()
    running = engine.submit(grey(1))
    assert cpu.is_running.wait(WAIT_S)
    queued = engine.submit(grey(2))
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert problem(queued) == "engine_closed"
    cpu.may_run.set()
    closing.join()
    assert answer(running).request_id == 1
    assert problem(engine.submit(grey(3))) == "engine_closed"
    with pytest.raises(BackendProblem, match="stopped before"):
        engine.open(tiny_model())


def test_closing_ends_a_backend_that_hangs() -> None:
    cpu = Behaviour()
    engine = serving_engine_of(cpu.kind())
    cpu.may_run.clear()
    cpu.is_running.clear()
    hanging = engine.submit(grey(1))
    assert cpu.is_running.wait(WAIT_S)
    engine.close()
    assert problem(hanging) == "worker_died"
    assert cpu.closes == 1


def test_an_image_nobody_wants_any_more_is_not_run() -> None:
    cpu = Behaviour()
    with serving_engine_of(cpu.kind()) as engine:
        cpu.may_run.clear()
        first, second, third = (engine.submit(grey(level)) for level in (1, 2, 3))
        assert second.cancel()
        cpu.may_run.set()
        assert [answer(first).request_id, answer(third).request_id] == [1, 3]
        with pytest.raises(CancelledError):
            second.result()
    assert [2] not in cpu.runs


def test_a_listener_that_fails_costs_no_image() -> None:
    def fail(event: Any) -> None:
        raise RuntimeError("no window there")

    with engine_of(Behaviour().kind(), publish=fail) as engine:
        assert answer(engine.submit(grey(1))).request_id == 1


def test_a_listener_may_call_the_engine() -> None:
    answers: list[Future[Prediction]] = []
    with Engine(lambda event: answers.append(engine.submit(grey(1))), kinds=[Behaviour().kind()]) as engine:
        engine.open(MODEL)
        engine.serving(timeout_s=WAIT_S)
        assert answer(engine.submit(grey(2))).request_id == 2
        assert answer(answers[0]).request_id == 1


@pytest.mark.parametrize("values", [np.zeros((1, 32, 64, 1), np.uint8), np.zeros((1, 64, 64, 1), np.float32)])
def test_an_image_that_does_not_fit_the_model_is_our_own_fault(values: Any) -> None:
    with engine_of(Behaviour().kind()) as engine, pytest.raises(ValueError, match="an image must be"):
        engine.submit(Request(request_id=1, values=values))


def test_without_a_model_there_is_nothing_to_run() -> None:
    with Engine(Events(), kinds=[Behaviour().kind()]) as engine, pytest.raises(ValueError, match="no model is open"):
        engine.submit(grey(1))


def test_no_image_is_lost_or_mixed_up_when_backends_die_at_random() -> None:
    dice = np.random.default_rng(7)
    deaths = {number: int(count) for number, count in enumerate(dice.choice(3, size=100, p=(0.8, 0.1, 0.1)), start=130)}
    planned = sum(deaths.values())
    lock = threading.Lock()

    def dies(levels: list[int]) -> Any:
        with lock:
            doomed = [level for level in levels if deaths.get(level)]
            for level in doomed:
                deaths[level] -= 1
            return DIED if doomed else None

    edgetpu, cpu, events = Behaviour(dies=dies), Behaviour(dies=dies), Events()
    kinds = (replace(edgetpu.kind("edgetpu"), restarts=planned), replace(cpu.kind(), restarts=planned))
    with engine_of(*kinds, publish=events) as engine:
        futures = [engine.submit(grey(level, request_id=2 * level)) for level in range(130, 230)]
        answers = [answer(future) for future in futures]
    assert [prediction.request_id for prediction in answers] == list(range(260, 460, 2))
    expected = [grey_score(level) for level in range(130, 230)]
    assert [prediction.scores["opacity"] for prediction in answers] == pytest.approx(expected)
    assert planned > 20 and not any(deaths.values())
