"""What is said of the lungs of the open image: their areas, the evidence inside them, and what to look at."""

from __future__ import annotations

from PySide6.QtWidgets import QCheckBox, QVBoxLayout, QWidget

from fieldray.desktop.formatting import number
from fieldray.desktop.widgets import card, label
from fieldray.domain.lungs import LungFields, evidence_limit
from fieldray.domain.model import Manifest
from fieldray.translation import Translator


class LungsCard(QWidget):
    """The card of the result panel; it hides itself where no lungs were found."""

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self._translator = translator
        self.outline_box = QCheckBox(translator.text("Show the outline of the lungs (O)"))
        self._areas = label()
        self._evidence = label(role="heading")
        self._warning = label(role="warning")
        frame, column = card()
        parts = (self.outline_box, self._areas, self._evidence, self._warning)
        for part in (label(translator.text("Lungs"), role="heading"), *parts):
            column.addWidget(part)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def show_lungs(self, lungs: LungFields | None, manifest: Manifest | None) -> None:
        """Show what was found; nothing where no lungs were found."""
        self.setVisible(lungs is not None and lungs.found)
        if lungs is None:
            return
        translator = self._translator
        right, left = (number(translator, 100 * share, digits=1) for share in (lungs.right_share, lungs.left_share))
        self._areas.setText(
            translator.text("Area in the image: right lung {right} %, left lung {left} %", right=right, left=left)
        )
        inside = lungs.evidence_inside
        self._evidence.setVisible(inside is not None)
        self._warning.setVisible(inside is not None and manifest is not None and inside < evidence_limit(manifest))
        if inside is not None and manifest is not None:
            self._show_evidence(inside, evidence_limit(manifest))

    def _show_evidence(self, inside: float, limit: float) -> None:
        translator = self._translator
        self._evidence.setText(
            translator.text("Evidence inside the lungs: {percent} %", percent=round(100 * inside))
        )
        self._warning.setText(
            translator.text(
                "That is little: less than {percent} %. Something other than the lungs may have raised the score.",
                percent=round(100 * limit),
            )
        )
