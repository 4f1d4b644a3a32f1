"""`fieldray archive screen` against `fieldray screen` on the same images: time, decisions, memory, and random kills."""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.screening import ScreeningFailed
from fieldray.bench.report import Points, Report, Table
from fieldray.domain.finding import Outcome, Screened
from fieldray.imaging.synthetic import write_studies
from fieldray.paths import python_command
from fieldray.store.results import ResultQuery

_COUNTED: Final = (0, 1)
_LOOK_S: Final = 0.25
_LONGEST_CALM_S: Final = 8.0
_PREAMBLE: Final = 128  # of a DICOM file: its bytes mean nothing (PS3.10 7.1)

Notify = Callable[[str], None]
Said = dict[str, tuple[str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTime:
    """One run: `workers` is 0 for `fieldray screen`; memory of the driver at a third and at the end, in megabytes."""

    workers: int
    images: int
    total_s: float
    early_mb: float
    late_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRun:
    """An archive with processes killed at random: what was killed, and what came of the images."""

    killed: dict[str, int]
    starts: int
    total_s: float
    lost: int
    doubled: int
    differing: int


def write_copies(folder: Path, sources: Sequence[Path], count: int) -> Path:
    """`count` files that show what the sources show, each with bytes of its own. Raises OSError."""
    folder.mkdir(parents=True)
    contents = [(source.name, source.read_bytes()) for source in sources]
    for number in range(count):
        name, data = contents[number % len(contents)]
        mark = number.to_bytes(8, "little")
        is_dicom = data[_PREAMBLE : _PREAMBLE + 4] == b"DICM"
        changed = mark + data[len(mark) :] if is_dicom else data + mark
        (folder / f"{number:06}-{name}").write_bytes(changed)
    return folder


def cluster_report(
    source: Path | None,
    options: Sequence[str],
    *,
    count: int,
    workers: Sequence[int],
    rounds: int,
    kills: int,
    seed: int,
    notify: Notify,
) -> Report:
    """Measure both ways side by side, round by round, then an archive under `kills` random kills.

    Parameters
    ----------
    source
        Whose files are copied, `count` in all, each with changed bytes; synthetic studies without it.
    options
        More options of both commands (`--pack ...`).

    Raises
    ------
    ScreeningFailed, OSError
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        root = Path(folder)
        if source is None:
            write_studies(source := root / "studies")
        files = sorted(path for path in source.rglob("*") if path.is_file())
        if not files:
            raise ScreeningFailed(f"{source} holds no files")
        images = write_copies(root / "images", files, count)
        times: list[ArchiveTime] = []
        expected: Said = {}
        differing: dict[int, int] = {}
        for number in range(rounds):
            for each in (0, *workers):
                notify(f"round {number + 1} of {rounds}: {f'{each} workers' if each else 'screen'}")
                place = root / f"{number}-{each}"
                times.append(_timed(images, place, options, workers=each, count=count))
                said = stored(place / "home")
                expected = expected or said
                differing[each] = max(differing.get(each, 0), differences(expected, said))
        killed = _killed(images, root / "kills", options, expected, kills=kills, seed=seed, notify=notify)
    return _report(times, differing, killed, count=count)


def stored(home: Path) -> Said:
    """What the newest run of a home says of each image: category, scores, and the hash of the file."""
    with ResultQuery(home / "results.sqlite") as query:
        return {row.outcome.ref.key: _said(row.outcome) for row in query.rows(query.runs()[0].run_id)}


def differences(one: Said, other: Said) -> int:
    """How many images are not in both with the same outcome."""
    return sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())


def _said(outcome: Outcome) -> tuple[str, str, str]:
    found = (
        json.dumps([(each.label, each.score, each.decision) for each in outcome.findings])
        if isinstance(outcome, Screened)
        else outcome.reason.code
    )
    return outcome.category, found, outcome.facts.content_sha256


def _command(images: Path, place: Path, options: Sequence[str], *, workers: int) -> list[str]:
    if not workers:
        return python_command("fieldray.__main__", "screen", str(images), "--device", "cpu", *options)
    own = ("--out", str(place / "out"), "--workers", str(workers), "--device", "cpu")
    return python_command("fieldray.__main__", "archive", "screen", str(images), *own, *options)


def _started(command: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FIELDRAY_HOME": str(home)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Raises ScreeningFailed where it did not end with results."""
    assert process.stderr
    said = process.stderr.read()
    if process.wait() not in _COUNTED:
        raise ScreeningFailed(f"ended with {process.returncode}: {said.decode(errors='replace').strip()}")


def _timed(images: Path, place: Path, options: Sequence[str], *, workers: int, count: int) -> ArchiveTime:
    began_s = time.perf_counter()
    memory: list[float] = []
    with _started(_command(images, place, options, workers=workers), place / "home") as process:
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                memory.append(driver.memory_info().rss / 2**20)
            time.sleep(_LOOK_S)
        total_s = time.perf_counter() - began_s
        _ended(process)
    third = len(memory) // 3 + 1
    early_mb, late_mb = max(memory[:third], default=0.0), max(memory[-third:], default=0.0)
    return ArchiveTime(workers=workers, images=count, total_s=total_s, early_mb=early_mb, late_mb=late_mb)


# ---- kills


def _killed(
    images: Path, place: Path, options: Sequence[str], expected: Said, *, kills: int, seed: int, notify: Notify
) -> KillRun | None:
    """An archive with two workers, one of whose processes is killed again and again until `kills` were."""
    if not kills:
        return None
    chance, killed, starts = random.Random(seed), Counter[str](), 0
    command = _command(images, place, ("--chunk", "32", *options), workers=2)
    began_s = time.perf_counter()
    while True:
        starts += 1
        with _started(command, place / "home") as process:
            while process.poll() is None and sum(killed.values()) < kills:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(1.0, _LONGEST_CALM_S))
                    break
                role, victim = chance.choice(_victims(process.pid))
                notify(f"kill {sum(killed.values()) + 1} of {kills}: {role}")
                with contextlib.suppress(psutil.Error):
                    victim.kill()
                    killed[role] += 1
            assert process.stderr
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode in _COUNTED:
            break
        if process.returncode != -9:
            raise ScreeningFailed(f"ended with {process.returncode}: {said}")
    said_of = stored(place / "home")
    with ResultQuery(place / "home" / "results.sqlite") as query:
        rows = sum(1 for _ in query.rows(query.runs()[0].run_id))
    return KillRun(
        killed=dict(killed),
        starts=starts,
        total_s=time.perf_counter() - began_s,
        lost=len(expected.keys() - said_of.keys()),
        doubled=rows - len(said_of),
        differing=differences(expected, said_of),
    )


def _victims(pid: int) -> list[tuple[str, psutil.Process]]:
    """The driver, the scheduler and the workers that run."""
    driver = psutil.Process(pid)
    found = [("driver", driver)]
    for child in driver.children():
        with contextlib.suppress(psutil.Error, ValueError, IndexError):
            found.append((str(json.loads(child.cmdline()[-1])["role"]), child))
    return found


# ---- the report


def _report(times: Sequence[ArchiveTime], differing: dict[int, int], killed: KillRun | None, *, count: int) -> Report:
    alone_s = statistics.median(one.total_s for one in times if not one.workers)
    rows = []
    for workers in dict.fromkeys(one.workers for one in times):
        runs = [one for one in times if one.workers == workers]
        total_s = statistics.median(one.total_s for one in runs)
        rows.append(
            (
                f"archive screen, {workers} workers" if workers else "screen",
                f"{total_s:.1f}",
                f"{count / total_s:.1f}",
                f"{total_s / alone_s:.3f}",
                str(differing[workers]),
                f"{statistics.median(one.early_mb for one in runs):.0f}",
                f"{statistics.median(one.late_mb for one in runs):.0f}",
            )
        )
    columns = ("command", "seconds", "images / s", "time against screen", "other decisions", "MB early", "MB late")
    blocks: list[Any] = [Table(f"{count} images", columns, tuple(rows))]
    if killed:
        names = ", ".join(f"{number} {role}" for role, number in sorted(killed.killed.items()))
        blocks.append(
            Points(
                "Kills at random",
                (
                    f"Killed: {names}. The driver was started {killed.starts} times.",
                    f"Lost {killed.lost}, doubled {killed.doubled}, other decisions {killed.differing}.",
                ),
            )
        )
    note = "Seconds are medians over the rounds, start and end of the program included. Memory is the driver's."
    return Report(
        kind="cluster",
        title="Fieldray: an archive screened by a cluster on one computer",
        blocks=(*blocks, Points("How it was measured", (note,))),
        data={"runs": [asdict(one) for one in times], "kills": asdict(killed) if killed else None},
    )
