"""What travels between the engine's process and the one that runs the network."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec
from fieldray.inference.messages import OpenRequest, answer_message, answers_of, run_message
from fieldray.inference.runtime import RUNTIMES
from fieldray.inference.service import Service
from fieldray.processes.wire import Message, read_message, write_message
from tiny_models import tiny_inputs, tiny_manifest, tiny_model_bytes, tiny_scores

ANSWER = Answer(
    scores=np.array([0.25, 0.5], np.float32),
    class_maps=np.arange(8, dtype=np.float32).reshape(2, 2, 2),
    features=np.array([1, 2, 3], np.float32),
    latency_ms=2.5,
)


def travelled(message: Message) -> Message:
    stream = io.BytesIO()
    write_message(stream, message)
    stream.seek(0)
    arrived = read_message(stream)
    assert arrived
    return arrived


def open_request() -> OpenRequest:
    manifest = tiny_manifest()
    spec = NetworkSpec(input=manifest.input, outputs=manifest.outputs, labels=1)
    return OpenRequest(file=tiny_model_bytes(), spec=spec, runtimes=RUNTIMES, cores=1, budget_s=0.0)


def test_a_request_to_open_arrives_as_it_was_sent() -> None:
    sent = open_request()
    arrived = OpenRequest.of(travelled(sent.message()))
    assert arrived.file == sent.file
    assert arrived.spec == sent.spec
    assert (arrived.runtimes, arrived.cores, arrived.budget_s) == (sent.runtimes, sent.cores, sent.budget_s)


def test_answers_arrive_as_they_were_sent() -> None:
    other = replace(ANSWER, scores=np.array([1, 0], np.float32))
    first, second = answers_of(travelled(answer_message([ANSWER, other])), count=2)
    assert (first.scores == ANSWER.scores).all() and (second.scores == [1, 0]).all()
    assert first.class_maps is not None and (first.class_maps == ANSWER.class_maps).all()
    assert first.features is not None and (first.features == ANSWER.features).all()
    assert first.latency_ms == 2.5


def test_answers_without_maps_and_features_have_none() -> None:
    bare = replace(ANSWER, class_maps=None, features=None)
    (arrived,) = answers_of(travelled(answer_message([bare])), count=1)
    assert arrived.class_maps is None and arrived.features is None


def test_too_few_answers_make_no_sense() -> None:
    with pytest.raises(ValueError, match="1 answers to 2 images"):
        answers_of(answer_message([ANSWER]), count=2)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": np.array([np.nan], np.float32)},
        {"scores": np.array([1.5], np.float32)},
        {"scores": np.array([[0.5]], np.float32)},
        {"features": np.array([np.inf], np.float32)},
        {"class_maps": np.zeros((2, 2), np.float32)},
    ],
)
def test_an_answer_no_network_can_give_is_not_born(change: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(ANSWER, **change)


def test_the_service_opens_and_runs() -> None:
    service = Service()
    try:
        opened = service.handle(travelled(open_request().message())).body
        assert (opened["networks"], opened["threads"]) == (1, 1)
        (answer,) = answers_of(service.handle(travelled(run_message([tiny_inputs()[0]]))), count=1)
        assert answer.scores[0] == pytest.approx(tiny_scores(tiny_inputs()[:1])[0, 0], abs=0.008)
    finally:
        service.close()


@pytest.mark.parametrize("message", [run_message([tiny_inputs()[0]]), Message({"operation": "erase"})])
def test_the_service_refuses_what_is_out_of_order(message: Message) -> None:
    with pytest.raises(ValueError, match=r"1 images for 0 networks|no operation"):
        Service().handle(message)
