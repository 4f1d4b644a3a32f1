"""Measure the migration of a large results database of an earlier version: time, disk space, memory, and kills.

The large database is made from a small database that version 0.2.0 of the program has written. The results of each
image are copied many times, with other names and patients, and with heat maps of the usual size.
"""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import CHECKOUT, MemoryWatch, load_average
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.paths import DATABASE_NAME, python_command
from fieldray.store.database import open_read_only

Notify = Callable[[str], None]
_OLD: Final = (CHECKOUT / "tests" / "old_stores" / "version-11.zip", "several_packs")
_MAP_SIDE: Final = 16
_BATCH: Final = 500  # copies of the small database in one transaction
_POLL_S: Final = 0.02
_SEED: Final = 1
_COUNTED: Final = ("images", "answers", "verdicts", "runs")
_OPEN: Final = "from pathlib import Path; from fieldray.store.opening import open_database; open_database(Path({!r}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFigures:
    """The figures of one migration without a kill: seconds, disk bytes (before, after, peak), memory, rows by table."""

    seconds: float
    bytes_before: int
    bytes_after: int
    most_bytes: int
    most_memory_mb: float
    counts: Mapping[str, int]


def run_benchmark(*, rows: int, kills: int, notify: Notify) -> BenchmarkReport:
    """Measure the migration of a database with `rows` results, and return the report.

    One migration is measured without a kill. Another is killed `kills` times at random moments, then measured.
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        path = Path(folder) / DATABASE_NAME
        wanted = _make(path, rows, notify)
        notify("migrating a copy to its end, to know how long it takes")
        whole = _copied(path, Path(folder) / "whole")
        first = _migrated(whole)
        for file in whole.parent.iterdir():
            file.unlink()
        generator, ended = random.Random(_SEED), list[str]()
        for number in range(1, kills + 1):
            notify(f"kill {number} of {kills}")
            ended.append(_killed(path, generator.uniform(0.05, 0.95) * first.seconds))
        last = _migrated(path)
    lost = {name: wanted[name] - last.counts[name] for name in ("answers", "verdicts")}
    how = (
        f"A database of version 11 with {rows} results of one to three packs: {first.bytes_before / 2**20:.0f} MB.",
        "The maximum on disk counts all files of the folder, the old database included.",
        f"The migration was killed {kills} times at random moments. Afterwards the old database was complete "
        f"{ended.count('old')} times, and the new database {ended.count('new')} times. The next start then completed "
        "the migration.",
        f"Load average at the end: {load_average()}, on {os.cpu_count()} threads.",
    )
    names = ("seconds", "MB before", "MB after", "maximum MB on disk", "maximum MB of memory")
    cells = tuple(
        (name, *(f"{value:.0f}" for value in _values(found)))
        for name, found in (("not interrupted", first), ("after the kills", last))
    )
    return BenchmarkReport(
        file_stem="migration",
        title=f"Fieldray: the migration of a results database with {rows} results",
        blocks=(
            Table("Migration", ("", *names), cells),
            BulletList("Lost rows", tuple(f"{name}: {count}" for name, count in lost.items())),
            BulletList("How it was measured", how),
        ),
        json_values={"rows": rows, "ended": ended, "first": asdict(first), "last": asdict(last), "lost": lost},
    )


def _values(found: MigrationFigures) -> Sequence[float]:
    sizes = (found.bytes_before, found.bytes_after, found.most_bytes)
    return (found.seconds, *(size / 2**20 for size in sizes), found.most_memory_mb)


# ---- the large database of version 11


def _make(path: Path, rows: int, notify: Notify) -> dict[str, int]:
    """Write a database of version 11 with about `rows` results. Returns the numbers of answers and verdicts."""
    archive, name = _OLD
    with zipfile.ZipFile(archive) as packed:
        path.write_bytes(packed.read(f"{name}/{DATABASE_NAME}"))
    with closing(sqlite3.connect(path)) as store:
        store.row_factory = sqlite3.Row
        results = [dict(row) for row in store.execute("SELECT * FROM results")]
        listed = [dict(row) for row in store.execute("SELECT * FROM work_list")]
        verdicts = [dict(row) for row in store.execute("SELECT * FROM verdicts")]
        span = 1 + max(row["id"] for row in results)
        copies = max(1, rows // len(results) - 1)
        for first in range(1, copies + 1, _BATCH):
            notify(f"{first * len(results)} of {rows} results written")
            for copy in range(first, min(first + _BATCH, copies + 1)):
                _put(store, "results", [_result(row, copy, span * copy) for row in results])
                _put(store, "work_list", [_of_another(row, copy, result_id=span * copy) for row in listed])
                _put(
                    store,
                    "verdicts",
                    [_of_another(row, copy, id=span * copy, result_id=span * copy) for row in verdicts],
                )
            store.commit()
        counts = {"answers": "results", "verdicts": "verdicts"}
        return {name: store.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for name, table in counts.items()}


def _put(store: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        names = ", ".join(rows[0])
        marks = ", ".join(f":{name}" for name in rows[0])
        store.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)


def _result(row: Mapping[str, Any], copy: int, further: int) -> dict[str, Any]:
    """Return a copy of a row of results for another image: with other name, content and patient, and a heat map.

    `copy` is the number of the copy. `further` is added to the id.
    """
    found = _of_another(row, copy, id=further)
    found["image_key"] = row["image_key"] + b"-%d" % copy
    found["header"] = row["header"].replace('"patient_id":"', f'"patient_id":"{copy}-')
    if row["class_maps"]:
        found["details"] = row["details"].replace('"maps":[1,2,4]', f'"maps":[1,{_MAP_SIDE},{_MAP_SIDE}]')
        found["class_maps"] = random.Random(copy).randbytes(4 * _MAP_SIDE**2)
    return found


def _of_another(row: Mapping[str, Any], copy: int, **further: int) -> dict[str, Any]:
    """Return a copy of a row for another image, with other content hash and patient.

    `copy` is the number of the copy. `further` are numbers that are added to fields of the row.
    """
    found = {**row, **{name: row[name] + number for name, number in further.items()}}
    if "content_sha256" in row:
        found["content_sha256"] = hashlib.sha256(row["content_sha256"] + b"%d" % copy).digest()
    if "person" in row:
        found |= {"person": row["person"] ^ copy, "study": row["study"] ^ copy}
    return found


def _copied(path: Path, folder: Path) -> Path:
    folder.mkdir()
    with closing(sqlite3.connect(path)) as store:
        store.execute("VACUUM INTO ?", (str(folder / path.name),))
    return folder / path.name


# ---- migrations


def _started(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*python_command("fieldray")[:1], "-c", _OPEN.format(str(path))], cwd=CHECKOUT)


def _migrated(path: Path) -> MigrationFigures:
    """Let a child process open a database, which migrates it, and return the figures.

    Raises RuntimeError if the migration fails.
    """
    before, most, began_s = _on_disk(path.parent), 0, time.perf_counter()
    with _started(path) as process:
        watch = MemoryWatch(process.pid)
        watch.start()
        while process.poll() is None:
            most = max(most, _on_disk(path.parent))
            time.sleep(_POLL_S)
        watch.stop()
    if process.returncode:
        raise RuntimeError(f"the migration ended with {process.returncode}")
    seconds, after = time.perf_counter() - began_s, path.stat().st_size
    with closing(open_read_only(path)) as store:
        counts = {name: store.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in _COUNTED}
    return MigrationFigures(
        seconds=seconds,
        bytes_before=before,
        bytes_after=after,
        most_bytes=max(most, _on_disk(path.parent)),
        most_memory_mb=watch.rss_mb,
        counts=counts,
    )


def _on_disk(folder: Path) -> int:
    """Return the total size on disk of all files in a folder, in bytes. A file with two names counts once."""
    found = dict[int, int]()
    for file in folder.iterdir():
        try:
            facts = file.stat()
        except FileNotFoundError:  # the migration has removed this file
            continue
        if file.is_file():
            found[facts.st_ino] = 512 * facts.st_blocks
    return sum(found.values())


def _killed(path: Path, after_s: float) -> str:
    """Start a migration, and kill it after `after_s` seconds. Returns the version of the database then: "old" or "new".

    Raises RuntimeError if the database is damaged.
    """
    with _started(path) as process:
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
    with closing(open_read_only(path)) as store:
        (is_whole,) = store.execute("PRAGMA quick_check").fetchone()
        tables = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if is_whole != "ok":
        raise RuntimeError(f"the database is damaged: {is_whole}")
    return "new" if "answers" in tables else "old"
