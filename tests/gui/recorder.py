"""Checks at every verdict that a window takes that the judged image was in sight."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject

from fieldray.desktop.application import Application
from fieldray.desktop.verdicts import VerdictSubject
from fieldray.desktop.viewer import Viewer


class Recorder(QObject):
    """Keeps in `wrong` a sentence for each verdict on an image, or on an answer, that was not in sight.

    Withdrawing a verdict is not checked: its image is shown only afterwards.

    What the viewer painted last is taken from its paint events, not from the program. A viewer that does not paint,
    as in the random walks, is not checked.
    """

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._application, self._viewer = application, None
        self._painted: tuple[int, str] | None = None  # row number and content hash of the painted pixels
        self.wrong: list[str] = []
        image = application.controller.image
        for news in (image.changed, image.loaded):
            news.connect(self._watch)
        application.controller.judging.verdict_about_to_change.connect(self._look)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint and watched is self._viewer:
            image = self._application.controller.image
            self._painted = (image.row.row_id, image.pixels_sha256) if image.row is not None else None
        return False

    def _watch(self) -> None:
        window = self._application.window
        if window is not None and window.area.viewer is not self._viewer:
            self._viewer = window.area.viewer
            self._viewer.installEventFilter(self)

    def _look(self, judged: VerdictSubject) -> None:
        bench = self._application.controller
        image, row = bench.image, bench.image.row
        if row is None or judged != VerdictSubject(row.result_id, row.outcome):
            self.wrong.append(f"a verdict on row {judged.result_id}, which was not open")
            return
        content = row.outcome.facts.content_sha256
        if (image.is_loading and image.pyramid is None) or image.is_result_replaced:
            self.wrong.append(f"a verdict on row {row.row_id} while it was loaded, or after it was replaced")
        if image.pyramid is not None and image.pixels_sha256 != content:
            self.wrong.append(f"a verdict on {content}, while the pixels of {image.pixels_sha256} were in sight")
        if not bench.rows.index_of(image.packs[0].row_id).isValid():
            self.wrong.append(f"a verdict on row {row.row_id}, which the list does not show")
        viewer = self._viewer
        paints = isinstance(viewer, Viewer) and viewer.isVisible() and viewer.updatesEnabled()
        if paints and self._painted != (row.row_id, image.pixels_sha256):
            self.wrong.append(f"a verdict on row {row.row_id}, while {self._painted} was painted")
