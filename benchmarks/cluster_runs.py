"""Run `fieldray screen` and `fieldray archive screen` as a user does, and compare the results for each image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from PIL import Image

from benchmarks.screening import ScreeningFailed
from fieldray.domain.finding import Outcome, ScreenedOutcome
from fieldray.imaging.synthetic import chest_phantom
from fieldray.paths import python_command
from fieldray.store.results import ResultQuery

COMPLETED_EXIT_CODES: Final = (0, 1)  # 0: all images have results; 1: some images failed
_LOOK_S: Final = 0.25
_WARM_UP_SHARE: Final = 0.1
_PREAMBLE: Final = 128  # bytes at the start of a DICOM file, with any content (PS3.10 7.1)
_SYNTHETIC_IMAGES: Final = 24
_DRAWN_SIDE: Final = 768
_CURVE_POINTS: Final = 40
_SHOWN_EVERY_S: Final = 60.0

ImageResults = dict[str, tuple[str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The figures of one run of `fieldray screen` or `fieldray archive screen`.

    Attributes
    ----------
    workers
        Number of workers; 0 for `fieldray screen`.
    total_s
        Seconds from the start of the command to its end.
    images_per_s
        Images per second after the first tenth of the images, without start and end of the command.
    curve
        Pairs, from start to end: number of images with results, and memory of the command's process in megabytes.
    differing
        Number of images whose outcome differs from that in the first run of `fieldray screen`.
    """

    workers: int
    images: int
    total_s: float
    images_per_s: float
    curve: tuple[tuple[int, float], ...]
    differing: int = 0

    @property
    def start_s(self) -> float:
        """The seconds for start and end of the command: the total time minus the time of all images."""
        return self.total_s - self.images / self.images_per_s

    def median_memory_mb(self, first_share: float, last_share: float) -> float:
        """Return the median memory of the command's process in megabytes, while part of the images was screened.

        The part begins when the share `first_share` (0..1) of the images has results, and ends at `last_share`.
        """
        found = [memory for done, memory in self.curve if first_share <= done / self.images <= last_share]
        return statistics.median(found) if found else 0.0


@dataclass(eq=False, slots=True)
class _Watch:
    """Measures the number of results, and the memory of a command's process, repeatedly during a run."""

    database: Path
    began_s: float = field(default_factory=time.perf_counter)
    seen: list[tuple[float, int, float]] = field(default_factory=list)
    _query: ResultQuery | None = None

    def look(self, driver: psutil.Process) -> None:
        if self._query is None and self.database.exists():
            self._query = ResultQuery(self.database)
        done = self._query.last_image_row_id() if self._query else 0
        with contextlib.suppress(psutil.Error):
            memory_mb = driver.memory_info().rss / 2**20
            self.seen.append((time.perf_counter() - self.began_s, done, memory_mb))

    def close(self) -> None:
        if self._query:
            self._query.close()

    def images_per_s(self, count: int) -> float:
        """Return the images per second between the first tenth of the `count` images and the last image."""
        known = [(at_s, done) for at_s, done, _ in self.seen if done >= _WARM_UP_SHARE * count]
        if not known:
            raise ScreeningFailed("too few images to tell a rate")
        first_s, first = known[0]
        last_s, last = next((row for row in known if row[1] == known[-1][1]), known[-1])
        if last <= first:
            raise ScreeningFailed(f"the results of {count} images came all at once: take more images")
        return (last - first) / (last_s - first_s)

    def curve(self) -> tuple[tuple[int, float], ...]:
        step = max(1, len(self.seen) // _CURVE_POINTS)
        return tuple((done, round(memory_mb, 1)) for _, done, memory_mb in [*self.seen[::step], *self.seen[-1:]])


def draw_sources(folder: Path) -> Path:
    """Draw a few synthetic chest images as JPEG files in a new folder. Returns the folder. Raises OSError."""
    folder.mkdir(parents=True)
    for number in range(_SYNTHETIC_IMAGES):
        pixels = chest_phantom(_DRAWN_SIDE, _DRAWN_SIDE, number + 1, abnormal=number % 3 == 0)
        Image.fromarray((pixels >> 4).astype(np.uint8)).save(folder / f"study-{number:02}.jpg", quality=90)
    return folder


def write_copies(folder: Path, sources: Sequence[Path], count: int) -> Path:
    """Write `count` copies of image files to a folder, each with different bytes. Returns the folder.

    Copies that exist already are kept. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = [(source.name, source.read_bytes()) for source in sources]
    there = {path.name for path in folder.iterdir()}
    for number in range(count):
        name, data = contents[number % len(contents)]
        mark = number.to_bytes(8, "little")
        is_dicom = data[_PREAMBLE : _PREAMBLE + 4] == b"DICM"
        changed = mark + data[len(mark) :] if is_dicom else data + mark
        path = folder / f"{number:06}-{name}"
        if path.name not in there or path.stat().st_size != len(changed):
            path.write_bytes(changed)
    return folder


def read_newest_run(home: Path) -> ImageResults:
    """Return category, scores and file hash of each image in the newest run, by image.

    `home` is the user data folder, which has the results database.
    """
    with ResultQuery(home / "results.sqlite") as query:
        return {row.outcome.ref.key: _comparable(row.outcome) for row in query.results(query.runs()[0].run_id)}


def count_differences(first: ImageResults, second: ImageResults) -> int:
    """Return the number of images that are missing in one of two runs, or whose outcomes differ."""
    return sum(first.get(key) != second.get(key) for key in first.keys() | second.keys())


def count_faults(home: Path, expected: ImageResults) -> dict[str, int]:
    """Return the numbers of lost images, of images stored twice, and of unexpected outcomes in the newest run.

    `home` is the user data folder, which has the results database. `expected` are the expected results.
    """
    said = read_newest_run(home)
    with ResultQuery(home / "results.sqlite") as query:
        rows = sum(1 for _ in query.results(query.runs()[0].run_id))
    lost = len(expected.keys() - said.keys())
    return {"lost": lost, "doubled": rows - len(said), "differing": count_differences(expected, said)}


def faults_sentence(counts: Mapping[str, int]) -> str:
    """Return the numbers of `count_faults` as a sentence."""
    return f"Images lost: {counts['lost']}, stored twice: {counts['doubled']}, different: {counts['differing']}."


def _comparable(outcome: Outcome) -> tuple[str, str, str]:
    found = (
        json.dumps([(each.label, each.score, each.decision) for each in outcome.findings])
        if isinstance(outcome, ScreenedOutcome)
        else outcome.reason.code
    )
    return outcome.category, found, outcome.facts.content_sha256


def screening_command(images: Path, folder: Path, options: Sequence[str], *, workers: int) -> list[str]:
    """Return the command that screens the folder `images`: `archive screen`, or with 0 workers `screen`.

    The output folder of the archive is in `folder`.
    """
    if not workers:
        return python_command("fieldray.__main__", "screen", str(images), "--device", "cpu", *options)
    own = ("--out", str(folder / "out"), "--workers", str(workers), "--device", "cpu")
    return python_command("fieldray.__main__", "archive", "screen", str(images), *own, *options)


def start_command(command: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
    """Start a command with the user data folder `home`. Returns the process, whose standard error is a pipe."""
    environment = {**os.environ, "FIELDRAY_HOME": str(home)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def start_logged_command(
    command: Sequence[str], home: Path, log_path: Path, *, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command with the user data folder `home`. All output is written to the file `log_path`."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as stream:
        environment = {**os.environ, "FIELDRAY_HOME": str(home)}
        return subprocess.Popen(command, cwd=cwd, stdout=stream, stderr=subprocess.STDOUT, env=environment)


def wait_for_results(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends. Raises ScreeningFailed if the exit code is not that of a screening with results."""
    assert process.stderr
    said = process.stderr.read()
    if process.wait() not in COMPLETED_EXIT_CODES:
        raise ScreeningFailed(f"ended with {process.returncode}: {said.decode(errors='replace').strip()}")


def measure_run(
    images: Path, folder: Path, options: Sequence[str], *, workers: int, count: int, notify: Callable[[str], None]
) -> RunFigures:
    """Measure one run of a command with a new user data folder. Raises ScreeningFailed.

    `notify` is called with the progress every minute.
    """
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted benchmark
    watch = _Watch(folder / "home" / "results.sqlite")
    with (
        contextlib.closing(watch),
        start_command(screening_command(images, folder, options, workers=workers), folder / "home") as process,
    ):
        driver, shown_s = psutil.Process(process.pid), time.perf_counter()
        while process.poll() is None:
            watch.look(driver)
            time.sleep(_LOOK_S)
            if watch.seen and time.perf_counter() - shown_s > _SHOWN_EVERY_S:
                shown_s = time.perf_counter()
                notify(f"{watch.seen[-1][1]} of {count} images, {watch.seen[-1][2]:.0f} MB")
        total_s = time.perf_counter() - watch.began_s
        wait_for_results(process)
    if workers and not (folder / "out" / "merged.json").exists():
        raise ScreeningFailed("the archive is not complete")
    return RunFigures(
        workers=workers, images=count, total_s=total_s, images_per_s=watch.images_per_s(count), curve=watch.curve()
    )
