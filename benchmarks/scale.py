"""Measure the window with a run of a million images: first page, scrolling, sorting, filtering, searching, memory.

The database is written for the measurement, with synthetic results and without image files. The real window runs in a
child process, without a screen if there is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import child_command, load_average, temporary_home
from benchmarks.reports import Goal, max_goal
from benchmarks.scale_window import TIMER_INTERVAL_MS
from benchmarks.synthetic_run import SyntheticRun
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.domain.model import Model
from fieldray.paths import results_database_path
from fieldray.pipeline.history import History
from fieldray.processes.child import Child
from fieldray.processes.wire import Message
from fieldray.store.database import companion_files

Notify = Callable[[str], None]
MAX_FIRST_PAGE_S: Final = 1.0
MAX_PAUSE_MS: Final = 100.0
MAX_MEMORY_MB: Final = 300.0
_TIMEOUT_S: Final = 3600.0
_QUERIES: Final[Mapping[str, tuple[ResultFilter, ResultOrder]]] = {
    "as usual": (ResultFilter(), ResultOrder()),
    "by class, last first": (ResultFilter(), ResultOrder("class", True)),
    "as they came": (ResultFilter(), ResultOrder("image")),
    "by patient": (ResultFilter(), ResultOrder("patient")),
    "by date, newest first": (ResultFilter(), ResultOrder("date", True)),
    "by score": (ResultFilter(), ResultOrder("score", True)),
    "the images of a patient together": (ResultFilter(), ResultOrder(is_grouped_by_patient=True)),
    "one class": (ResultFilter(category="normal"), ResultOrder()),
    "one device": (ResultFilter(backend="edgetpu"), ResultOrder()),
    "without a verdict": (ResultFilter(verdict="none"), ResultOrder()),
    "search": (ResultFilter(text="garcia"), ResultOrder()),
    "search that finds nothing": (ResultFilter(text="nobody is called so"), ResultOrder()),
}


def run_benchmark(
    model: Model, *, count: int, notify: Notify, scroll_steps: int = 250, new_results: int = 1200
) -> BenchmarkReport:
    """Write a run of `count` images, measure the window with this run, and return the report.

    The work list is scrolled in `scroll_steps` steps. `new_results` results are added during the measurement.
    Raises StorageProblem.
    """
    load = [load_average()]
    with temporary_home():
        database, began_s = results_database_path(), time.perf_counter()
        made = SyntheticRun(model, chest_count=min(24, 1 + count // 100))
        run_id = made.save(database, count, progress=lambda done: notify(f"{done} of {count} results saved"))
        saved_s = time.perf_counter() - began_s
        size = sum(file.stat().st_size for file in (database, *companion_files(database)) if file.exists())
        notify("reading by SQL")
        queries = _queries(database, run_id)
        notify("the window")
        wanted = {"pack": model.manifest.pack_id, "run": run_id, "count": count}
        wanted |= {"steps": scroll_steps, "arrivals": new_results}
        found = _window(wanted)
    load.append(load_average())
    busiest = max(found["acts"], key=lambda act: float(act["busy_ms"]))
    marks = _marks(found["acts"], found["peak_mb"])
    how = (
        f"{count} results of one run, saved by the program's own functions in {saved_s:.0f} s. A result with heat "
        f"map and lungs takes {size / count:.0f} bytes, without its thumbnail, which is in another file. There are no "
        "image files. An opened image shows its stored preview.",
        f"A pause is the delay of a timer of the window that fires every {TIMER_INTERVAL_MS} ms. The longest work "
        f"between two events took {busiest['busy_ms']:.0f} ms ({busiest['name']}). Other programs cause longer pauses.",
        f"Resident memory: {found['empty_mb']:.0f} MB with an empty window, {found['opened_mb']:.0f} MB with the "
        f"run, {found['scrolled_mb']:.0f} MB after scrolling, {found['read_mb']:.0f} MB after opening images, "
        f"{found['full_mb']:.0f} MB after all actions, {found['peak_mb']:.0f} MB maximum.",
        f"Load average before: {load[0]}, after: {load[1]}, on {os.cpu_count()} threads.",
    )
    return BenchmarkReport(
        file_stem="scale",
        title=f"Fieldray: the window with {count} images",
        blocks=(
            BulletList("Goals", tuple(mark.sentence for mark in marks)),
            _table(found["acts"]),
            Table(
                "SQL queries alone",
                ("list", "rows", "seconds"),
                tuple((name, f"{rows}", f"{seconds:.3f}") for name, rows, seconds in queries),
            ),
            BulletList("How it was measured", how),
        ),
        json_values={"results": count, "saved_s": saved_s, "bytes": size, "queries": queries, **found},
    )


def _marks(acts: Sequence[Mapping[str, Any]], peak_mb: float) -> tuple[Goal, ...]:
    longest = max(acts, key=lambda act: float(act["pause_ms"]))
    pause = f"longest pause of the window ({longest['name']})"
    return (
        max_goal("time to the first page", acts[0]["seconds"], MAX_FIRST_PAGE_S, unit="s"),
        max_goal(pause, longest["pause_ms"], MAX_PAUSE_MS, unit="ms"),
        max_goal("peak memory of the window", peak_mb, MAX_MEMORY_MB, unit="MB"),
    )


def _queries(database: Path, run_id: int) -> list[tuple[str, int, float]]:
    """Measure queries of the database, each twice. Returns name, number of rows, and seconds of the second query."""
    lists, found = History(database), []
    for limit, queries in ((256, {"the first page": _QUERIES["as usual"]}), (None, _QUERIES)):
        for name, (wanted, order) in queries.items():
            lists.list_rows(run_id, wanted, order, limit=limit)
            began_s = time.perf_counter()
            rows = len(lists.list_rows(run_id, wanted, order, limit=limit).row_ids)
            found.append((name, rows, time.perf_counter() - began_s))
    return found


def _window(wanted: dict[str, Any]) -> Mapping[str, Any]:
    child = Child("benchmarks.scale_window:handle", command=child_command)
    try:
        child.start()
        return child.call(Message(wanted), timeout_s=_TIMEOUT_S).body
    finally:
        child.close()


def _table(acts: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the user's acts. Acts with one name share a row, which shows the longest times."""
    names = dict.fromkeys(str(act["name"]) for act in acts)
    rows = []
    for name in names:
        same = [act for act in acts if act["name"] == name]
        longest = {key: max(float(act[key]) for act in same) for key in ("seconds", "pause_ms", "busy_ms")}
        rows.append(
            (
                name if len(same) == 1 else f"{name}, longest of {len(same)}",
                f"{same[-1]['rows']}",
                f"{longest['seconds']:.2f}",
                f"{longest['pause_ms']:.0f}",
                f"{longest['busy_ms']:.0f}",
            )
        )
    columns = ("action", "rows listed", "seconds until visible", "longest pause, ms", "thread busy, ms")
    return Table("Actions of a user", columns, tuple(rows))
