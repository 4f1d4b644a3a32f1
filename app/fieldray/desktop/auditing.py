"""An audit of the run in the window: asked for, worked out in the background, saved, and a local point taken.

No widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from fieldray.audit.report import AuditReport
from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.pack_choice import PackChoice
from fieldray.desktop.screening import Screening
from fieldray.domain.model import Model
from fieldray.errors import FieldrayError
from fieldray.pipeline.auditing import AuditRequest
from fieldray.reasons import Reason

if TYPE_CHECKING:
    from fieldray.pipeline.auditing import Auditor


class Auditing(QObject):
    """The last report, or why there is none."""

    changed = Signal()

    def __init__(self, background: Background, board: NoticeBoard, screening: Screening, packs: PackChoice) -> None:
        super().__init__()
        self._background, self._board = background, board
        self._screening, self._packs = screening, packs
        self._service: Auditor | None = None
        self._model: Model | None = None
        self.report: AuditReport | None = None
        self.problem: Reason | None = None
        self.is_busy = False
        screening.started.connect(self.forget)
        screening.changed.connect(self.changed)

    def attach(self, service: Auditor) -> None:
        """The results are open."""
        self._service = service

    @property
    def can_audit(self) -> bool:
        """Whether a run is there and over."""
        has_run = self._service is not None and bool(self._screening.run_id) and not self._screening.is_busy
        return has_run and not self.is_busy

    @property
    def can_take(self) -> bool:
        """Whether the proposed operating point can become the site's."""
        model = self._model
        return self.report is not None and model is not None and model.trust != "legacy" and not self._screening.is_busy

    def audit(self, request: AuditRequest) -> None:
        """Work out the figures of the run."""
        service, run_id, model = self._service, self._screening.run_id, self._screening.run_model
        if not self.can_audit or service is None or not run_id:
            return
        self.is_busy, self.problem, self._model = True, None, model
        self.changed.emit()
        self._background.run(
            lambda: service.audit(run_id, request, model=model),
            channel="audit",
            newest_only=True,
            done=self._done,
            failed=self._failed,
        )

    def save(self, folder: Path, language: str) -> None:
        """Write the report into a folder."""
        service, report = self._service, self.report
        if service is None or report is None:
            return
        self._background.run(
            lambda: service.save(folder, report, language=language),
            channel="export",
            done=lambda written: self._saved(folder, written),
            failed=lambda error: self._board.post_error("export", error),
        )

    def take(self, name: str, person: str) -> None:
        """A person said yes: keep the proposed operating point, and offer it with the pack in use."""
        service, report, model = self._service, self.report, self._model
        if service is None or report is None or model is None:
            return
        self._background.run(
            lambda: service.take(report, name=name, person=person, model=model),
            channel="audit",
            done=self._taken,
            failed=lambda error: self._board.post_error("site_points", error),
        )

    # ---- inside

    def _done(self, report: AuditReport) -> None:
        self.is_busy, self.report = False, report
        self.changed.emit()

    def _failed(self, error: Exception) -> None:
        self.is_busy, self.report = False, None
        self.changed.emit()
        if not isinstance(error, FieldrayError):
            raise error
        self.problem = error.reason
        self.changed.emit()

    def _saved(self, folder: Path, written: Sequence[Path]) -> None:
        text = "{count} file was saved in {folder}.", "{count} files were saved in {folder}."
        self._board.post("export", lambda t: t.plural(text[0], text[1], len(written), folder=folder))

    def _taken(self, model: Model) -> None:
        point = model.manifest.operating_points[-1]
        self._packs.adopt(model)
        self._board.post(
            "site_points",
            lambda t: t.text(
                "The local operating point “{name}” was kept. Choose it under Packs.", name=t.pick(point.titles)
            ),
        )

    def forget(self) -> None:
        """Another run is in sight: the report is not about it."""
        self.report, self.problem, self.is_busy = None, None, False
        self._background.forget("audit")
        self.changed.emit()
