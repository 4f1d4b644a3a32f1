"""The engine with the real network in a real process that is killed and stopped."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from backend_fakes import WAIT_S, Events, grey, grey_score

from fieldray.backends import CPU
from fieldray.inference.backend import BackendKind
from fieldray.inference.engine import Engine
from fieldray.inference.worker import WorkerBackend
from tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")
MODEL = tiny_model()


def impatient_cpu() -> BackendKind:
    return BackendKind(entry=CPU, open=lambda: WorkerBackend(CPU, run_timeout_s=0.5), restart_delay_s=0.001)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_no_image_is_lost_when_the_process_is_killed_or_hangs(blow: signal.Signals) -> None:
    events = Events()
    with Engine(events, kinds=[impatient_cpu()]) as engine:
        engine.open(MODEL)
        futures = [engine.submit(grey(number % 256, request_id=number)) for number in range(120)]
        for victim in (futures[20], futures[70]):
            victim.result(WAIT_S)
            (pid,) = engine.pids
            os.kill(pid, blow)
        answers = [future.result(WAIT_S) for future in futures]
        (survivor,) = engine.pids
    assert [prediction.request_id for prediction in answers] == list(range(120))
    expected = [grey_score(number % 256) for number in range(120)]
    assert [prediction.scores["opacity"] for prediction in answers] == pytest.approx(expected, abs=0.008)
    assert answers[0].class_maps is not None and answers[0].class_maps.shape == (1, 16, 16)
    assert events.states("cpu").count("unavailable") == 2
    assert not psutil.pid_exists(survivor)
