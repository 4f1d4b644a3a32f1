"""Saving reports: off the window's thread, with its progress in a notice that can stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import Action, NoticeBoard
from fieldray.reasons import Reason
from fieldray.reports.exporter import ExportCancelled, ReportOptions

Tell = Callable[[int, int], None]
Note = Callable[[Reason], None]
Export = Callable[[int, Path, Sequence[str], ReportOptions, Tell, Note], tuple[Path, ...]]

_TOLD_EVERY_S: Final = 0.25


class Exporting(QObject):
    """One export at a time; the next waits for the one before."""

    _told = Signal(object, int, int)

    def __init__(self, background: Background, board: NoticeBoard) -> None:
        super().__init__()
        self._background, self._board = background, board
        self._stops: list[threading.Event] = []  # of the export that runs, then of those that wait
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._action = Action(lambda t: t.text("Stop"), self.cancel)
        self._told.connect(self._show)

    def start(self, export: Export, run_id: int, folder: Path, formats: Sequence[str], options: ReportOptions) -> None:
        """Write a run into a folder in the background."""
        stop, notes = threading.Event(), list[Reason]()
        self._stops.append(stop)
        self._show(stop, 0, 0)
        self._background.run(
            lambda: self._work(stop, lambda tell: export(run_id, folder, formats, options, tell, notes.append)),
            channel="export",
            done=lambda written: self._saved(stop, folder, len(written), notes),
            failed=lambda error: self._failed(stop, error),
        )

    def cancel(self) -> None:
        """Stop the one that runs: what is half done is discarded."""
        for stop in self._stops[:1]:
            stop.set()

    def end(self, *, wait_s: float) -> None:
        """Cancel all, and wait until it is over; from any thread."""
        for stop in tuple(self._stops):
            stop.set()
        self._is_idle.wait(wait_s)

    def _work(self, stop: threading.Event, export: Callable[[Tell], tuple[Path, ...]]) -> tuple[Path, ...]:
        told_s = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal told_s
            if stop.is_set():
                raise ExportCancelled
            if time.monotonic() - told_s > _TOLD_EVERY_S:
                told_s = time.monotonic()
                self._told.emit(stop, done, total)

        self._is_idle.clear()
        try:
            tell(0, 0)  # it may have been stopped while it waited
            return export(tell)
        finally:
            self._is_idle.set()

    def _show(self, stop: threading.Event, done: int, total: int) -> None:
        if stop not in self._stops[:1] or stop.is_set():
            return
        self._board.post(
            "export",
            lambda t: t.text("Saving: {done} of {total}", done=done, total=total) if total else t.text("Saving…"),
            action=self._action,
        )

    def _saved(self, stop: threading.Event, folder: Path, count: int, notes: Sequence[Reason]) -> None:
        self._stops.remove(stop)  # what is told late is not shown over this
        for note in notes:
            self._board.post_reason(f"export {dict(note.parameters)['file']}", note, level="warning")
        self._board.post(
            "export",
            lambda t: (
                t.plural(
                    "{count} file or folder was saved in {folder}.",
                    "{count} files or folders were saved in {folder}.",
                    count,
                    folder=folder,
                )
                if count
                else t.text("Nothing was saved: no result of this run has what these formats need.")
            ),
            level="info" if count else "warning",
        )

    def _failed(self, stop: threading.Event, error: Exception) -> None:
        self._stops.remove(stop)
        if isinstance(error, ExportCancelled):
            self._board.post("export", lambda t: t.text("Saving was stopped. What was half done was discarded."))
        else:
            self._board.post_error("export", error)
