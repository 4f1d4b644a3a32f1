"""An export in a process of its own, for the window: what computes for minutes there would make it pause here.

Every thread of a process waits for the one that runs Python, and code in C that lays out a page or scales an image may
keep it waiting for a tenth of a second. The process leaves the CPU to what somebody is waiting for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fieldray.domain.prior import PairRecord
from fieldray.domain.run import RunSpec
from fieldray.errors import FieldrayError, shortage, unexpected
from fieldray.persistence import clear_unfinished
from fieldray.pipeline.export import KnownPack, Tell, export_run
from fieldray.processes.child import Child, ChildLost
from fieldray.processes.priority import step_back
from fieldray.processes.rpc import Call, served
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ExportCancelled, ReportOptions
from fieldray.settings import TABLE, Settings, Value
from fieldray.workers.pool import number_of_workers, open_workers

SERVICE: Final = "fieldray.pipeline.export_process:handle"
_NEWS_S: Final = 0.1
_LONGEST_S: Final = 60.0  # for one answer; an export itself may take any time


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Order:
    """What to export; see `export_run`."""

    database: Path
    run_id: int
    folder: Path
    formats: tuple[str, ...]
    spec: RunSpec | None
    language: str
    names_people: bool
    pairs: tuple[PairRecord, ...]
    pack: KnownPack | None
    settings: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Results written and in all, what was left out since the last news, and the outputs once all is written."""

    done: int
    total: int
    written: tuple[Path, ...] | None
    notes: tuple[Reason, ...]


START: Final = Call("start", Order, type(None))
NEWS: Final = Call("news", type(None), News)
STOP: Final = Call("stop", type(None), type(None))


def export_apart(
    database: Path,
    run_id: int,
    folder: Path,
    formats: Sequence[str],
    *,
    spec: RunSpec | None,
    options: ReportOptions,
    pack: KnownPack | None,
    settings: Settings,
    tell: Tell,
    note: Callable[[Reason], None] = lambda _: None,
    child: Child | None = None,
) -> tuple[Path, ...]:
    """As `export_run`, with the workers that the settings ask for; `tell` is called ten times a second.

    `child` is the process to be started; without it, one for `SERVICE`.

    Raises EnvironmentProblem where no process can be started, FieldrayError where it was lost, and what `export_run`
    raises of `FieldrayError`.
    """
    order = Order(
        database=database,
        run_id=run_id,
        folder=folder.absolute(),
        formats=tuple(formats),
        spec=spec,
        language=options.language,
        names_people=options.names_people,
        pairs=options.pairs,
        pack=pack and replace(pack, manifest=replace(pack.manifest, ood_gate=None)),  # no report says anything of it
        settings={row.key: settings[row.key] for row in TABLE},
    )
    child = child or Child(SERVICE)
    try:
        child.start()
        START.ask(child, order, timeout_s=_LONGEST_S)
        return _follow(child, tell, note)
    except OSError as error:
        raise shortage(error) or FieldrayError(unexpected(error)) from error
    except ChildLost as error:
        if child.pid is not None:  # killed, it could not discard what was half done
            clear_unfinished(folder, process=child.pid)
        raise FieldrayError(reason("internal", detail=str(error))) from error
    finally:
        child.close()


def _follow(child: Child, tell: Tell, note: Callable[[Reason], None]) -> tuple[Path, ...]:
    """Ask how far it is until it is over."""
    while True:
        news = NEWS.ask(child, None, timeout_s=_LONGEST_S)
        for one in news.notes:
            note(one)
        if news.written is not None:
            return news.written
        try:
            tell(news.done, news.total)
        except ExportCancelled:
            STOP.ask(child, None, timeout_s=_LONGEST_S)
            raise


# ---- in the process


class _Export:
    """One export, in a thread of its own."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._stop = threading.Event()
        self._steps = 0, 0
        self._notes = list[Reason]()
        self._written: tuple[Path, ...] | None = None
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="export", daemon=True)
        self._thread.start()

    def news(self) -> News:
        """How far it is, or what was written. Raises what ended it."""
        self._thread.join(_NEWS_S)
        if self._problem is not None:
            raise self._problem
        notes = tuple(self._notes)
        del self._notes[: len(notes)]
        return News(done=self._steps[0], total=self._steps[1], written=self._written, notes=notes)

    def stop(self) -> None:
        """End it, once what is half done was discarded."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            self._written = self._export()
        except Exception as problem:
            self._problem = problem

    def _export(self) -> tuple[Path, ...]:
        order, settings = self._order, Settings(self._order.settings)
        return export_run(
            order.database,
            order.run_id,
            order.folder,
            order.formats,
            spec=order.spec,
            options=ReportOptions(language=order.language, names_people=order.names_people, pairs=order.pairs),
            pack=order.pack,
            readers=lambda: open_workers(settings, number_of_workers(settings)),
            tell=self._tell,
            note=self._notes.append,
        )

    def _tell(self, done: int, total: int) -> None:
        self._steps = done, total
        if self._stop.is_set():
            raise ExportCancelled


class _Desk:
    """Takes one order, then answers questions about it."""

    def __init__(self) -> None:
        self._export: _Export | None = None

    def start(self, order: Order) -> None:
        """Begin."""
        step_back()
        self._export = _Export(order)

    def news(self, _: None) -> News:
        """Of the export that was begun."""
        assert self._export is not None
        return self._export.news()

    def stop(self, _: None) -> None:
        """Stop it."""
        assert self._export is not None
        self._export.stop()


_desk: Final = _Desk()
handle: Final = served((START, _desk.start), (NEWS, _desk.news), (STOP, _desk.stop))
