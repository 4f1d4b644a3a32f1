"""The network in a child process, and what the parent hears when that process dies, hangs or lacks something."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import pytest

from fieldray.backends import CPU
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.inference.litert import MEMORY_LIMIT_MB, RUNTIME
from fieldray.inference.worker import WorkerBackend
from fieldray.processes.child import Child
from fieldray.reasons import reason
from tiny_models import tiny_inputs, tiny_model, tiny_model_bytes, tiny_scores, with_custom_operator

posix_only = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")


@contextmanager
def started(model: Model | None = None, **options: Any) -> Iterator[WorkerBackend]:
    backend = WorkerBackend(CPU, **options)
    try:
        backend.start(model or tiny_model())
        yield backend
    finally:
        backend.close()


def test_answers_are_those_of_the_formula() -> None:
    inputs = tiny_inputs()
    with started() as backend:
        assert backend.detail.startswith(RUNTIME)
        answers = [backend.run(image) for image in inputs]
    assert [answer.scores[0] for answer in answers] == pytest.approx(tiny_scores(inputs)[:, 0], abs=0.008)
    assert answers[0].class_maps is not None and answers[0].class_maps.shape == (1, 16, 16)
    assert answers[0].features is not None and answers[0].features.shape == (4,)


def test_closing_ends_the_process() -> None:
    with started() as backend:
        assert backend.pid is not None and psutil.pid_exists(backend.pid)
        assert backend.is_alive
    assert backend.pid is None and not backend.is_alive


@posix_only
def test_a_stopped_process_is_ended_at_its_deadline() -> None:
    with started(run_timeout_s=0.3) as backend:
        assert backend.pid
        os.kill(backend.pid, signal.SIGSTOP)
        with pytest.raises(BackendProblem) as caught:
            backend.run(tiny_inputs()[0])
        assert not backend.is_alive
    assert caught.value.reason.text == "The process that runs the model gave no answer within 0.3 s."


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_cut_short_costs_the_child_at_most(share: float) -> None:
    whole = tiny_model()
    cut = replace(whole, files={"litert": whole.files["litert"][: int(share * len(whole.files["litert"]))]})
    with pytest.raises(BackendProblem) as caught, started(cut):
        pass
    assert caught.value.reason.code in ("bad_model", "worker_died")


@pytest.mark.parametrize(
    "file",
    [with_custom_operator(b"Exec"), with_custom_operator(b""), with_custom_operator(b"\xff\xfe"), b"", b"\0" * 5_000],
    ids=["custom operator", "operator without a name", "operator named in no letters", "nothing", "zeros"],
)
def test_a_hostile_file_costs_the_child_at_most(file: bytes) -> None:
    # a name in no letters is an error that the runtime itself does not survive
    with (
        pytest.raises(BackendProblem) as caught,
        started(replace(tiny_model(), files={"litert": file})),
    ):
        pass
    assert caught.value.reason.code in ("bad_model", "worker_died")


def test_a_model_that_wants_more_memory_than_it_may_have_is_a_plain_reason() -> None:
    greedy = replace(tiny_model(), files={"litert": tiny_model_bytes(fills_mb=3000)})
    with pytest.raises(BackendProblem) as caught, started(greedy) as backend:
        backend.run(tiny_inputs()[0])
    assert caught.value.reason == reason("model_memory", limit_mb=MEMORY_LIMIT_MB)


def test_a_process_that_never_was_ready_is_told_apart_from_a_bad_model() -> None:
    command = [sys.executable, "-I", "-c", "raise SystemExit('no memory')"]
    with pytest.raises(BackendProblem) as caught, started(child=lambda: Child("any", command=lambda _: command)):
        pass
    assert caught.value.reason == reason("start_failed", detail="child process ended with 1: no memory")
