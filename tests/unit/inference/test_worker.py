"""The network in a child process: its messages, and the reasons when the child dies, hangs or lacks something."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

from fieldray.backends import CPU
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.litert import MEMORY_LIMIT_MB, RUNTIME_PACKAGE, NetworkSpec
from fieldray.inference.service import NetworkService
from fieldray.inference.worker import InferRequest, OpenRequest, WorkerBackend
from fieldray.processes.child import Child, decode_message, encode_message, make_message_handler
from fieldray.processes.wire import Message, read_message, write_message
from fieldray.reasons import reason
from tiny_models import (
    tiny_inputs,
    tiny_manifest,
    tiny_model,
    tiny_model_bytes,
    tiny_scores,
    with_custom_operator,
)

posix_only = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")


@contextmanager
def started(model: Model | None = None, **options: Any) -> Iterator[WorkerBackend]:
    backend = WorkerBackend(CPU, **options)
    try:
        backend.start(model or tiny_model())
        yield backend
    finally:
        backend.close()


def test_closing_ends_the_process() -> None:
    with started() as backend:
        assert backend.detail.startswith(RUNTIME_PACKAGE)
        answer = backend.run(tiny_inputs()[3])
        assert answer.features.shape == (4,)
        assert answer.scores[0] == pytest.approx(tiny_scores(tiny_inputs()[3:4])[0, 0], abs=0.008)
        assert backend.pid is not None and psutil.pid_exists(backend.pid)
        assert backend.is_alive
    assert backend.pid is None and not backend.is_alive


@posix_only
def test_a_suspended_process_is_killed_at_its_deadline() -> None:
    with started(run_timeout_s=0.3) as backend:
        assert backend.pid
        os.kill(backend.pid, signal.SIGSTOP)
        with pytest.raises(BackendProblem) as caught:
            backend.run(tiny_inputs()[0])
        assert not backend.is_alive
    assert caught.value.reason.text == "The process that runs the model gave no answer within 0.3 s."


FILES = {
    **{f"cut at {share}": tiny_model_bytes()[: int(share * len(tiny_model_bytes()))] for share in (0.1, 0.5, 0.9)},
    "custom operator": with_custom_operator(b"Exec"),
    "operator without a name": with_custom_operator(b""),
    "operator named in no letters": with_custom_operator(b"\xff\xfe"),  # the runtime itself crashes on this file
    "nothing": b"",
    "zeros": b"\0" * 5_000,
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_crashes_the_child_at_most(name: str) -> None:
    with pytest.raises(BackendProblem) as caught, started(replace(tiny_model(), files={"litert": FILES[name]})):
        pass
    assert caught.value.reason.code in ("bad_model", "worker_died")


def test_a_model_that_needs_too_much_memory_has_a_reason() -> None:
    greedy = replace(tiny_model(), files={"litert": tiny_model_bytes(fills_mb=3000)})
    with pytest.raises(BackendProblem) as caught, started(greedy) as backend:
        backend.run(tiny_inputs()[0])
    assert caught.value.reason == reason("model_memory", limit_mb=MEMORY_LIMIT_MB)


def test_a_process_that_never_became_ready_is_not_a_bad_model() -> None:
    command = [sys.executable, "-I", "-c", "raise SystemExit('no memory')"]
    with pytest.raises(BackendProblem) as caught, started(child=lambda: Child("any", command=lambda _: command)):
        pass
    assert caught.value.reason == reason("start_failed", detail="child process ended with 1: no memory")


# ---- messages between the two processes

ANSWER = NetworkOutput(
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


def opening() -> OpenRequest:
    manifest = tiny_manifest()
    spec = NetworkSpec(input=manifest.input, outputs=manifest.outputs, label_count=1)
    file = np.frombuffer(tiny_model_bytes(), np.uint8)
    return OpenRequest(file=file, spec=spec, threads=1)


def test_a_request_arrives_as_it_was_sent() -> None:
    asked = opening()
    arrived = decode_message(travelled(encode_message(asked)), OpenRequest)
    assert np.array_equal(arrived.file, asked.file)
    assert (arrived.spec, arrived.threads, arrived.delegate) == (asked.spec, 1, None)


def test_an_answer_arrives_as_it_was_sent() -> None:
    arrived = decode_message(travelled(encode_message(ANSWER)), NetworkOutput)
    for name in ("scores", "class_maps", "features"):
        assert np.array_equal(getattr(arrived, name), getattr(ANSWER, name)), name
    assert (arrived.latency_ms, arrived.mask) == (2.5, None)


def test_an_answer_with_an_array_of_another_type_is_refused() -> None:
    message = encode_message(ANSWER)
    wrong = {name: array.astype(np.float64) for name, array in message.arrays.items()}
    with pytest.raises(ValueError, match="float64"):
        decode_message(travelled(Message(message.body, wrong)), NetworkOutput)


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
def test_an_impossible_answer_cannot_be_created(change: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(ANSWER, **change)


def test_the_service_opens_and_runs() -> None:
    service = NetworkService()
    assert service.open(opening()).endswith(", 1 x 1")
    answer = service.run(InferRequest(values=tiny_inputs()[0]))
    assert answer.scores[0] == pytest.approx(tiny_scores(tiny_inputs()[:1])[0, 0], abs=0.008)
    with pytest.raises(ValueError, match="opened already"):
        service.open(opening())


def test_the_service_refuses_messages_in_the_wrong_order() -> None:
    with pytest.raises(ValueError, match="no network"):
        NetworkService().run(InferRequest(values=tiny_inputs()[0]))
    with pytest.raises(KeyError):
        make_message_handler()(Message({"call": "erase", "value": {}}))
