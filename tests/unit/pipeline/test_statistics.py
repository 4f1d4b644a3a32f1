from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from fieldray.domain.model import BackendName, Prediction
from fieldray.domain.run import Speed
from fieldray.pipeline.statistics import InferenceStatistics, MachineLoad, RunSpeed


def prediction(latency_ms: float, sequence: int, backend: BackendName = "cpu") -> Prediction:
    return Prediction(
        pack_name="tiny-1.0.0",
        model_sha256="m",
        backend=backend,
        scores={},
        class_maps=None,
        features=None,
        latency_ms=latency_ms,
        image_number_on_backend=sequence,
    )


def statistics() -> InferenceStatistics:
    return InferenceStatistics(load=lambda: (50.0, 300.0))


def test_no_speed_is_stated_before_the_third_image() -> None:
    measured = statistics()
    assert measured.speed() == Speed(cpu_percent=50.0, memory_mb=300.0)
    measured.add(prediction(80, 1))
    measured.add(prediction(20, 2))
    assert measured.speed() == Speed(first_image_ms=80, second_image_ms=20, cpu_percent=50.0, memory_mb=300.0)


def test_speed_is_counted_from_the_third_image_on() -> None:
    measured = statistics()
    for sequence, latency_ms in enumerate((80, 20, 4, 5, 10, 5), 1):
        measured.add(prediction(latency_ms, sequence))
    speed = measured.speed()
    # of 4, 5, 10, 5 ms: 1000/10, 1000 / (24/4), 1000/4, the last 1000/5
    assert (speed.fps_min, speed.fps_max, speed.fps_now) == (100, 250, 200)
    assert speed.fps_avg == pytest.approx(1000 / 6)
    assert speed.p50_ms == 5
    # 95 % of the way through 4, 5, 5, 10: between the third and the fourth, at 2.85 -> 5 + 0.85 * 5
    assert speed.p95_ms == pytest.approx(9.25)


def test_a_second_backend_has_figures_of_its_own() -> None:
    measured = statistics()
    for sequence in range(1, 5):
        measured.add(prediction(10, sequence))
    for sequence in range(1, 4):
        measured.add(prediction(2, sequence, "edgetpu"))
    assert measured.speed().fps_max == 500
    assert measured.speed().first_image_ms == 2
    measured.add(prediction(10, 5))
    assert measured.speed().fps_max == 100


def test_the_load_includes_this_process_and_its_children() -> None:
    alone = MachineLoad().measure()[1]
    keep = "data = bytearray(64 * 2**20); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", keep], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "up\n"
        together = MachineLoad().measure()[1]
        child.communicate("\n")
    assert together > alone + 60


def test_the_cpu_load_is_measured_over_a_minimum_interval() -> None:
    """For queries of any thread, however soon: after a second with all cores, a hundredth, and another second."""
    cores = os.cpu_count() or 1
    times = [(100.0, 1000.0)]
    load, shares = MachineLoad(times=lambda: times[-1]), list[float | None]()
    for idle_s, up_s in ((0.0, 0.0), (0.25, 1.0), (0.0, 0.01), (1.0, 0.99)):
        idle, up = times[-1]
        times.append((idle + idle_s * cores, up + up_s * cores))
        asking = threading.Thread(target=lambda: shares.append(load.measure()[0]))
        asking.start()
        asking.join()
    assert shares == [None, 75.0, 75.0, pytest.approx(0.0)]


def test_the_cpu_load_of_this_computer_is_measured() -> None:
    load = MachineLoad()
    deadline = time.monotonic() + 10
    while load.measure()[0] is None and time.monotonic() < deadline:  # while the test computes, a core is busy
        pass
    assert (load.measure()[0] or 0) > 0


def test_the_speed_is_of_the_last_seconds() -> None:
    now = [0.0]
    pace = RunSpeed(clock=lambda: now[0])
    pace.restart(0)
    assert (pace.images_per_s(), pace.remaining_s(10)) == (0.0, None)
    for second in range(1, 31):
        now[0] = float(second)
        pace.record_progress(second * 2 if second <= 15 else 30 + (second - 15) * 4)
    # since 20 s: four images per second
    assert pace.images_per_s() == pytest.approx(4)
    assert pace.remaining_s(10) == pytest.approx(2.5)
    now[0] = 1000.0
    pace.restart(90)
    now[0] = 1001.0
    pace.record_progress(91)
    assert pace.images_per_s() == pytest.approx(1)
