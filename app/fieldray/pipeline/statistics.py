"""The speed of a run in images per second, and the load of the computer.

As in V. Taran's dissertation (2022), the first two images of a device do not count. They include the device's start.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import psutil

from fieldray.domain.model import BackendName, Prediction
from fieldray.domain.run import Speed

_RECENT: Final = 4096  # images kept for percentiles, so that memory does not grow with the run
_PACE_WINDOW_S: Final = 10.0
_MEMORY_EVERY_S: Final = 2.0  # a measurement takes a hundredth of a second

_CPU_EVERY_S: Final = 0.25  # the system counts in hundredths of a second, so shorter intervals are inexact

CpuPercentAndMemoryMb = tuple[float | None, float]


@dataclass(slots=True)
class _Latencies:
    """Inference times of one device in milliseconds. The first two images (warm-up) do not count in the mean.

    first_ms, second_ms  times of the first and the second image; None before
    count                number of images from the third image on
    total_ms             sum of the times from the third image on
    low_ms, high_ms      shortest and longest time from the third image on
    recent_ms            latest times from the third image on, for percentiles
    """

    first_ms: float | None = None
    second_ms: float | None = None
    count: int = 0
    total_ms: float = 0.0
    low_ms: float = float("inf")
    high_ms: float = 0.0
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, latency_ms: float, *, sequence: int) -> None:
        if sequence == 1:
            self.first_ms = latency_ms
        elif sequence == 2:
            self.second_ms = latency_ms
        else:
            self.count += 1
            self.total_ms += latency_ms
            self.low_ms = min(self.low_ms, latency_ms)
            self.high_ms = max(self.high_ms, latency_ms)
            self.recent_ms.append(latency_ms)

    def speed(self, *, cpu_percent: float | None, memory_mb: float) -> Speed:
        if not self.count:
            return Speed(
                first_image_ms=self.first_ms,
                second_image_ms=self.second_ms,
                cpu_percent=cpu_percent,
                memory_mb=memory_mb,
            )
        p50, p95 = np.percentile(self.recent_ms, (50, 95))
        return Speed(
            fps_now=1000 / self.recent_ms[-1],
            fps_min=1000 / self.high_ms,
            fps_avg=1000 * self.count / self.total_ms,
            fps_max=1000 / self.low_ms,
            first_image_ms=self.first_ms,
            second_image_ms=self.second_ms,
            p50_ms=float(p50),
            p95_ms=float(p95),
            cpu_percent=cpu_percent,
            memory_mb=memory_mb,
        )


class InferenceStatistics:
    """Collects the inference times of one run, from any thread.

    load  function that returns the load of the computer: CPU percent and memory in MB
    """

    def __init__(self, *, load: Callable[[], CpuPercentAndMemoryMb] | None = None) -> None:
        self._load = load or MachineLoad().measure
        self._lock = threading.Lock()
        self._by_backend: dict[BackendName, _Latencies] = {}
        self._latest: BackendName | None = None

    def add(self, prediction: Prediction) -> None:
        """Add the inference time of a prediction to the statistics."""
        with self._lock:
            self._latest = prediction.backend
            latencies = self._by_backend.setdefault(prediction.backend, _Latencies())
            latencies.add(max(prediction.latency_ms, 1e-3), sequence=prediction.image_number_on_backend)

    def speed(self) -> Speed:
        """Return the current speed of the device that ran the latest image."""
        cpu_percent, memory_mb = self._load()
        with self._lock:
            latencies = self._by_backend[self._latest] if self._latest else _Latencies()
            return latencies.speed(cpu_percent=cpu_percent, memory_mb=memory_mb)


class MachineLoad:
    """Measures the CPU load of the computer, and the memory of this process together with its child processes.

    times  function that returns idle time and total time of all cores together, in seconds. `psutil.cpu_percent` is
           not used, because that function measures separately for each thread and returns 0 at first
    """

    def __init__(self, *, times: Callable[[], tuple[float, float]] | None = None) -> None:
        self._process, self._times = psutil.Process(), times or _cpu_times
        self._memory_mb, self._due_s = 0.0, 0.0
        self._since_s, self._cpu_due_s = self._times(), _CPU_EVERY_S * (psutil.cpu_count() or 1)
        self._cpu_percent: float | None = None

    def measure(self) -> CpuPercentAndMemoryMb:
        """Return the CPU load (percent of all cores; None at first) and the memory in MB.

        Memory is measured every two seconds. Between measurements, the last value is returned.
        """
        idle_s, up_s = (now - before for now, before in zip(self._times(), self._since_s, strict=True))
        if up_s >= self._cpu_due_s:
            self._cpu_percent = min(max(0.0, 100 * (1 - idle_s / up_s)), 100.0)
            self._since_s = self._since_s[0] + idle_s, self._since_s[1] + up_s
        now_s = time.monotonic()
        if now_s >= self._due_s:
            processes = [self._process, *self._process.children(recursive=True)]
            self._memory_mb, self._due_s = sum(memory_mb(process) for process in processes), now_s + _MEMORY_EVERY_S
        return self._cpu_percent, self._memory_mb


def _cpu_times() -> tuple[float, float]:
    times = psutil.cpu_times()
    guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # included in "user" as well
    return times.idle + getattr(times, "iowait", 0.0), sum(times) - guests_s


def memory_mb(process: psutil.Process) -> float:
    """Return the memory of a process in MB: the proportional set size on Linux, else the resident set size."""
    try:
        if psutil.LINUX:
            return float(process.memory_full_info().pss) / 2**20
        return float(process.memory_info().rss) / 2**20
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # the process ended meanwhile
        return 0.0


class RunSpeed:
    """Measures the speed of a run over the last ten seconds, and estimates the remaining time."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def restart(self, done_count: int) -> None:
        """Discard the measured speed, for example after a pause, and measure anew from now on.

        done_count  number of images done so far
        """
        self._samples.clear()
        self.record_progress(done_count)

    def record_progress(self, done_count: int) -> None:
        """Record that `done_count` images of the run are done at this moment."""
        now = self._clock()
        self._samples.append((now, done_count))
        while len(self._samples) > 2 and self._samples[0][0] < now - _PACE_WINDOW_S:
            self._samples.popleft()

    def images_per_s(self) -> float:
        """Return the speed in images per second; 0.0 until an image is done."""
        if len(self._samples) < 2:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def remaining_s(self, image_count: int) -> float | None:
        """Return the estimated time in seconds for `image_count` more images; None while the speed is 0."""
        pace = self.images_per_s()
        return image_count / pace if pace > 0 else None


class RateLimiter:
    """Limits how often an action is done: `is_due` returns True at most once in `seconds` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def is_due(self) -> bool:
        """Return whether the action may be done now. After True, the next interval begins."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
