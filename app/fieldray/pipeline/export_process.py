"""An export in a process of its own, for the window: what computes for minutes there would make it pause here.

Every thread of a process waits for the one that runs Python, and code in C that lays out a page or scales an image may
keep it waiting for a tenth of a second. The process leaves the CPU to what somebody is waiting for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fieldray.domain.model import Manifest
from fieldray.domain.prior import PairRecord
from fieldray.domain.run import RunSpec
from fieldray.errors import FieldrayError, shortage, unexpected
from fieldray.persistence import clear_unfinished
from fieldray.pipeline.export import KnownPack, Tell, export_run
from fieldray.processes.child import Child, ChildLost
from fieldray.processes.priority import step_back
from fieldray.processes.wire import Message
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ExportCancelled, ReportOptions
from fieldray.settings import TABLE, Settings
from fieldray.typed_json import converted
from fieldray.workers.pool import number_of_workers, open_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVICE: Final = "fieldray.pipeline.export_process:handle"
_NEWS_S: Final = 0.1
_LONGEST_S: Final = 60.0  # for one answer; an export itself may take any time


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
    order = {
        "database": str(database),
        "run_id": run_id,
        "folder": str(folder.absolute()),
        "formats": list(formats),
        "spec": msgspec.to_builtins(spec),
        "options": asdict(options),
        "pack": _written(pack),
        "settings": {row.key: settings[row.key] for row in TABLE},
    }
    child = child or Child(SERVICE)
    try:
        child.start()
        child.call(Message({"ask": "start", **order}), timeout_s=_LONGEST_S)
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
        news = child.call(Message({"ask": "news"}), timeout_s=_LONGEST_S).body
        for code, parameters in news["notes"]:
            note(reason(code, **parameters))
        if news["written"] is not None:
            return tuple(map(Path, news["written"]))
        try:
            tell(news["done"], news["total"])
        except ExportCancelled:
            child.call(Message({"ask": "stop"}), timeout_s=_LONGEST_S)
            raise


def _written(pack: KnownPack | None) -> Any:
    """As JSON has it; no report says anything of the images that a pack does not know."""
    if pack is None:
        return None
    return msgspec.to_builtins({"manifest": replace(pack.manifest, ood_gate=None), "model_sha256": pack.model_sha256})


# ---- in the process


def _options(values: Mapping[str, Any]) -> ReportOptions:
    return ReportOptions(**{**values, "pairs": converted(values["pairs"], tuple[PairRecord, ...])})


class _Export:
    """One export, in a thread of its own."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._stop = threading.Event()
        self._steps = 0, 0
        self._notes = list[Reason]()
        self._written: tuple[Path, ...] | None = None
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="export", daemon=True)
        self._thread.start()

    def news(self) -> Message:
        """How far it is, or what was written. Raises what ended it."""
        self._thread.join(_NEWS_S)
        if self._problem is not None:
            raise self._problem
        written = None if self._written is None else [str(path) for path in self._written]
        notes = [(note.code, dict(note.parameters)) for note in self._notes]
        del self._notes[: len(notes)]
        return Message({"done": self._steps[0], "total": self._steps[1], "written": written, "notes": notes})

    def stop(self) -> Message:
        """End it, once what is half done was discarded."""
        self._stop.set()
        self._thread.join()
        return Message({})

    def _work(self) -> None:
        try:
            self._written = self._export()
        except Exception as problem:
            self._problem = problem

    def _export(self) -> tuple[Path, ...]:
        order, settings = self._order, Settings(self._order["settings"])
        pack = order["pack"] and KnownPack(
            manifest=converted(order["pack"]["manifest"], Manifest), model_sha256=order["pack"]["model_sha256"]
        )
        return export_run(
            Path(order["database"]),
            order["run_id"],
            Path(order["folder"]),
            order["formats"],
            spec=converted(order["spec"], RunSpec) if order["spec"] else None,
            options=_options(order["options"]),
            pack=pack,
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

    def handle(self, message: Message) -> Message:
        """Answer `start`, `news` and `stop`."""
        if message.body["ask"] == "start":
            step_back()
            self._export = _Export(message.body)
            return Message({})
        assert self._export is not None
        return self._export.news() if message.body["ask"] == "news" else self._export.stop()


handle: Final = _Desk().handle
