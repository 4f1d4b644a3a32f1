"""A benchmark case is one model on one backend. The module finds images, times a case, and writes reports.

Each repetition runs in a fresh process, and its times are kept in order. The first image of a process bears the
start-up cost: memory, caches, weights sent to an Edge TPU. The second image bears a part of the start-up cost. Only the
third and later images show the steady rate. Iterations 1, 2 and 3+ are therefore reported separately, as in
V. Taran's dissertation (2022).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.backends import BACKENDS
from fieldray.domain.image import ImageRef
from fieldray.domain.model import InputSpec, Model
from fieldray.errors import BackendProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import write_studies
from fieldray.inference.backend import Backend, BackendKind, BackendOptions, known_backend_kinds
from fieldray.inference.worker import cpu_kind
from fieldray.paths import VERSION
from fieldray.process_environment import Priority, set_priority
from fieldray.reasons import Reason, reason
from fieldray.reports.document import BulletList, Table
from fieldray.reports.outputs import open_output
from fieldray.settings import Settings
from fieldray.workers.pool import WorkerPool

START_UP_IMAGE_COUNT: Final = 2  # images at the start of a repetition that are reported separately
MIN_IMAGE_COUNT: Final = START_UP_IMAGE_COUNT + 1

TimesMsByRepetition = Sequence[Sequence[float]]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSummary:
    """Statistics of the times of all repetitions; times are in milliseconds.

    images                     number of images that count in the mean: the third and later images of each repetition
    first_ms, second_ms        time of the first and of the second image, medians over the repetitions
    mean_ms, stdev_ms, p50_ms, p95_ms, p99_ms
                               statistics of the third and later images of all repetitions; the standard deviation is
                               that of a sample (n - 1)
    fps_min, fps_avg, fps_max  images per second: of the slowest image, over all images, of the fastest image
    """

    repetitions: int
    images: int
    first_ms: float
    second_ms: float
    mean_ms: float
    stdev_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    fps_min: float
    fps_avg: float
    fps_max: float

    @property
    def first_image_time_ratio(self) -> float:
        """The time of the first image divided by the mean time of the third and later images."""
        return self.first_ms / self.mean_ms


def summarise_times(repetitions: TimesMsByRepetition) -> TimingSummary:
    """Compute the statistics of repetitions, each a sequence of times in milliseconds.

    Raises ValueError if there are no repetitions, if a repetition has fewer than three images, or if a time is not
    above 0.
    """
    if not repetitions or any(len(times_ms) < MIN_IMAGE_COUNT for times_ms in repetitions):
        raise ValueError(f"every repetition needs {MIN_IMAGE_COUNT} images")
    later = np.concatenate([np.asarray(times_ms[START_UP_IMAGE_COUNT:], np.float64) for times_ms in repetitions])
    if not bool((later > 0).all()):
        raise ValueError("a time must be above 0")
    p50, p95, p99 = np.percentile(later, (50, 95, 99))
    return TimingSummary(
        repetitions=len(repetitions),
        images=len(later),
        first_ms=statistics.median(times_ms[0] for times_ms in repetitions),
        second_ms=statistics.median(times_ms[1] for times_ms in repetitions),
        mean_ms=float(later.mean()),
        stdev_ms=float(later.std(ddof=1)) if len(later) > 1 else 0.0,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        fps_min=1000 / float(later.max()),
        fps_avg=1000 / float(later.mean()),
        fps_max=1000 / float(later.min()),
    )


def mean_ms_from_third_image(times_ms: Sequence[float]) -> float:
    """Return the mean time in milliseconds of the third and later images of one repetition."""
    return statistics.fmean(times_ms[START_UP_IMAGE_COUNT:])


def paired_time_ratio(repetitions: TimesMsByRepetition, baselines: TimesMsByRepetition) -> float:
    """Return how many times as long a case takes as the baseline: the median of the ratios of paired repetitions.

    Repetition n of the case is paired with repetition n of the baseline, because both ran in one interleaved round. The
    load by other programs changes over minutes, but hardly within a round.

    Raises ValueError if the numbers of repetitions differ, or if there are none.
    """
    if not repetitions:
        raise ValueError("no repetition")
    pairs = zip(repetitions, baselines, strict=True)
    return statistics.median(
        mean_ms_from_third_image(times_ms) / mean_ms_from_third_image(base_ms) for times_ms, base_ms in pairs
    )


def rotate_left(items: Iterable[Item], by: int) -> list[Item]:
    """Return items rotated left by `by` positions, for example (2, 3, 1) from (1, 2, 3) by 1.

    Each round of a benchmark uses a different rotation. No item then always runs after the same neighbour.
    """
    found = list(items)
    start = by % len(found)
    return [*found[start:], *found[:start]]


MAX_IMAGE_COUNT: Final = 24  # different images; a longer measurement repeats them
_TIMEOUT_S: Final = 60.0
_MEMORY_MB: Final = 2048


@dataclass(frozen=True, eq=False, slots=True)
class LoadedImage:
    """An image's reference, and the network input made from the image: (height, width, channels) uint8."""

    ref: ImageRef
    network_input: NDArray[np.uint8]


def open_one_worker() -> WorkerPool:
    """Start a pool with one fresh worker process that reads images."""
    return WorkerPool(1, timeout_s=_TIMEOUT_S, memory_limit_mb=_MEMORY_MB)


def find_images(folder: Path | None, *, count: int, synthetic_folder: Path) -> tuple[ImageRef, ...]:
    """Find up to `count` images in a folder. Without a folder, draw synthetic images into `synthetic_folder`.

    Raises UsageProblem (nothing_to_screen) if the folder does not exist.
    """
    if folder is None:
        write_studies(synthetic_folder, count=count)
    wanted = (ref for ref in discover([folder or synthetic_folder]) if ref.problem is None)
    return tuple(itertools.islice(wanted, count))


def read_images(refs: Sequence[ImageRef], spec: InputSpec, workers: WorkerPool) -> tuple[LoadedImage, ...]:
    """Read the images and prepare them as network input; unreadable images are left out.

    Raises UsageProblem (nothing_to_measure) if no image can be read.
    """
    results = ((ref, workers.read_network_input(ref, spec)) for ref in refs)
    images = tuple(LoadedImage(ref, tensor.values[0]) for ref, tensor in results if tensor)
    if not images:
        raise UsageProblem(reason("nothing_to_measure"))
    return images


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSize:
    """The size of a measurement: `repetition_count` repetitions, each with `image_count` images in a fresh process."""

    repetition_count: int
    image_count: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BenchmarkCase:
    """A model on a backend, to be timed.

    name                  name of the case for a person; no other case of the benchmark has this name
    priority              scheduling priority of the backend's process
    backend_descriptions  descriptions of the backends that ran the case, such as device and library version; filled
                          while the case runs
    """

    name: str
    model: Model
    kind: BackendKind
    priority: Priority = "normal"
    backend_descriptions: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def open_backend(self) -> Iterator[Backend]:
        """Open a fresh backend, ready to run a first image, while the `with` block runs. Raises BackendProblem."""
        unavailable_reason = self.kind.unavailable_reason(self.model)
        if unavailable_reason:
            raise BackendProblem(unavailable_reason)
        backend = self.kind.open()
        try:
            backend.start(self.model)
            if not set_priority(backend.pid, self.priority):
                raise BackendProblem(reason("priority_denied"))
            self.backend_descriptions.add(backend.detail)
            yield backend
        finally:
            backend.close()


def cpu_case(model: Model, threads: int = 1, *, priority: Priority = "normal") -> BenchmarkCase:
    """Return the case that runs the model on the CPU in a separate process."""
    name = f"cpu, {threads} thread{'s' * (threads > 1)}" + (f", priority {priority}" if priority != "normal" else "")
    return BenchmarkCase(name=name, model=model, kind=cpu_kind(threads=threads), priority=priority)


def cases_on_all_backends(model: Model, *, threads: int) -> tuple[BenchmarkCase, ...]:
    """Return one case for each known backend, with `threads` threads on the CPU.

    No warm-up image runs before the first image.
    """
    options = BackendOptions(threads=threads, priority="normal")
    kinds = reversed(known_backend_kinds(options))  # the CPU comes first, as the baseline
    return tuple(BenchmarkCase(name=f"{model.pack_name} on {kind.name}", model=model, kind=kind) for kind in kinds)


def accelerator_cases(model: Model, *, max_clock: bool = False) -> tuple[BenchmarkCase, ...]:
    """Return a case for each device that does not share the CPU.

    With `max_clock`, devices that have a clock setting get a second case at the highest clock.
    """
    cases = [BenchmarkCase(name=kind.name, model=model, kind=kind) for kind in _accelerators(Settings())]
    if max_clock:
        fast = Settings({entry.clock_speed_setting_key: "max" for entry in BACKENDS if entry.clock_speed_setting_key})
        cases += [
            BenchmarkCase(name=f"{kind.name}, highest clock", model=model, kind=kind)
            for kind in _accelerators(fast)
            if kind.entry.clock_speed_setting_key
        ]
    return tuple(cases)


def _accelerators(settings: Settings) -> list[BackendKind]:
    options = BackendOptions(settings=settings, priority="normal")
    return [kind for kind in known_backend_kinds(options) if not kind.entry.computes_on_cpu]


def find_usable_cases(cases: Sequence[BenchmarkCase]) -> tuple[tuple[BenchmarkCase, ...], dict[str, Reason]]:
    """Find the cases whose backend can be opened now.

    Returns these cases and, by case name, the reason why each other case cannot be used. Raises BackendProblem if the
    first case of `cases` cannot be used, because the first case is the baseline of all comparisons.
    """
    found, problems = [], {}
    for case in cases:
        try:
            with case.open_backend():
                found.append(case)
        except BackendProblem as problem:
            if not found:
                raise
            problems[case.name] = problem.reason
    return tuple(found), problems


def time_images(
    backend: Backend, images: Sequence[LoadedImage], *, image_count: int, min_duration_s: float = 0.0
) -> list[float]:
    """Time the network alone on one image after another. Returns milliseconds for each image.

    The images are repeated until `image_count` images have run and `min_duration_s` seconds have passed.
    """
    until_s = time.perf_counter() + min_duration_s
    times_ms: list[float] = []
    for image in itertools.cycle(images):
        if len(times_ms) >= image_count and time.perf_counter() >= until_s:
            break
        times_ms.append(backend.run(image.network_input).latency_ms)
    return times_ms


__all__ = ["BulletList", "Table"]


ReportBlock = BulletList | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkReport:
    """A benchmark report.

    file_stem    name of the JSON file, without suffix
    blocks       the tables and lists to print
    json_values  the values of the JSON file that come after time, program and system
    """

    file_stem: str
    title: str
    blocks: tuple[ReportBlock, ...]
    json_values: Mapping[str, Any]


def write_report(report: BenchmarkReport, folder: Path) -> Path:
    """Write a report as `<kind>.json` into a folder, and return the path of the file.

    Raises UsageProblem, StorageProblem.
    """
    path = folder / f"{report.file_stem}.json"
    with open_output(path, "json") as stream:
        stream.write(json.dumps({"report": report.file_stem, **report_header(), **report.json_values}, indent=1))
    return path


def report_header() -> dict[str, Any]:
    """Return the time, the program version and the system: the first keys of every report's JSON file."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": f"fieldray {VERSION}",
        "system": platform.platform(),
    }
