"""Measure `fieldray screen` as a user runs it: time to the first result, pace, and peak memory of all its processes.

    .venv/bin/python tools/bench_screening.py [FOLDER] --pack DIR|ID [--counts 200,2000]

Without FOLDER synthetic images are made. With one, its files are taken in turn, again and again, until there are
enough; `--fresh` is used, so nothing is taken over. Prints rows for README's table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_tree import MemoryWatch
from fieldray.paths import program_command


@dataclass(frozen=True)
class Measured:
    """One run. `pss_mb` shares what processes have in common, `rss_mb` counts it for each of them."""

    images: int
    first_s: float
    total_s: float
    pss_mb: float
    rss_mb: float
    processes: int


def collect(sources: list[Path], folder: Path, count: int) -> None:
    """Put `count` files into `folder`: a copy of each source, then further names for the same bytes."""
    for number in range(count):
        source = sources[number % len(sources)]
        place = folder / f"{number:05}-{source.name}"
        if number < len(sources):
            shutil.copyfile(source, place)
        else:
            os.link(folder / f"{number % len(sources):05}-{source.name}", place)


def measure(folder: Path, options: list[str]) -> Measured:
    """Screen a folder once."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "FIELDRAY_HOME": home}
        began = time.monotonic()
        process = subprocess.Popen(
            program_command("screen", str(folder), "--json", "-", "--fresh", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        watch = MemoryWatch(process.pid)
        watch.start()
        assert process.stdout
        assert process.stderr
        lines = int(bool(process.stdout.readline()))
        first_s = time.monotonic() - began
        lines += sum(1 for _ in process.stdout)
        words = process.stderr.read()
        code = process.wait()
        total_s = time.monotonic() - began
        watch.stop()
    if code not in (0, 1):
        raise SystemExit(f"fieldray screen ended with {code}:\n{words}")
    sys.stderr.write(words + "\n")
    return Measured(lines, first_s, total_s, watch.pss_mb, watch.rss_mb, watch.processes)


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--counts", default="200,2000", help="numbers of images to screen")
    parser.add_argument("--starts", type=int, default=5, help="how often the time to the first result is measured")
    arguments, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or _synthetic(Path(temporary) / "images")
        sources = sorted(path for path in folder.rglob("*") if path.is_file())
        (Path(temporary) / "few").mkdir()
        collect(sources, Path(temporary) / "few", 10)
        starts = [measure(Path(temporary) / "few", options).first_s for _ in range(arguments.starts)]
        sys.stdout.write(f"start to first result, s: median {statistics.median(starts):.2f}, worst {max(starts):.2f}\n")
        sys.stdout.write("| images | seconds | images/s | peak PSS, MB | peak RSS, MB | processes |\n")
        sys.stdout.write("|---|---|---|---|---|---|\n")
        for count in map(int, arguments.counts.split(",")):
            place = Path(temporary) / str(count)
            place.mkdir()
            collect(sources, place, count)
            found = measure(place, options)
            sys.stdout.write(
                f"| {found.images} | {found.total_s:.1f} | {found.images / found.total_s:.1f} | {found.pss_mb:.0f} "
                f"| {found.rss_mb:.0f} | {found.processes} |\n"
            )
            sys.stdout.flush()
    return 0


def _synthetic(folder: Path) -> Path:
    from fieldray.imaging.synthetic import write_studies

    write_studies(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
