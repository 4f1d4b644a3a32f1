"""What travels between the engine's process and the one that runs the network."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec
from fieldray.inference.service import Service
from fieldray.inference.worker import Opening, Run
from fieldray.processes.rpc import received, sent, served
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


def opening() -> Opening:
    manifest = tiny_manifest()
    spec = NetworkSpec(input=manifest.input, outputs=manifest.outputs, labels=1)
    file = np.frombuffer(tiny_model_bytes(), np.uint8)
    return Opening(file=file, spec=spec, threads=1)


def test_a_question_arrives_as_it_was_sent() -> None:
    asked = opening()
    arrived = received(travelled(sent(asked)), Opening)
    assert np.array_equal(arrived.file, asked.file)
    assert (arrived.spec, arrived.threads, arrived.delegate) == (asked.spec, 1, None)


def test_an_answer_arrives_as_it_was_sent() -> None:
    arrived = received(travelled(sent(ANSWER)), Answer)
    for name in ("scores", "class_maps", "features"):
        assert np.array_equal(getattr(arrived, name), getattr(ANSWER, name)), name
    assert (arrived.latency_ms, arrived.mask) == (2.5, None)


def test_an_array_of_another_type_is_no_answer() -> None:
    message = sent(ANSWER)
    wrong = {name: array.astype(np.float64) for name, array in message.arrays.items()}
    with pytest.raises(ValueError, match="float64"):
        received(travelled(Message(message.body, wrong)), Answer)


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
    assert service.open(opening()).endswith(", 1 x 1")
    answer = service.run(Run(values=tiny_inputs()[0]))
    assert answer.scores[0] == pytest.approx(tiny_scores(tiny_inputs()[:1])[0, 0], abs=0.008)
    with pytest.raises(ValueError, match="opened already"):
        service.open(opening())


def test_the_service_refuses_what_is_out_of_order() -> None:
    with pytest.raises(ValueError, match="no network"):
        Service().run(Run(values=tiny_inputs()[0]))
    with pytest.raises(KeyError):
        served()(Message({"call": "erase", "value": {}}))
