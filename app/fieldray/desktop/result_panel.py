"""What the pack says about the open image, by which operating point, and what it cannot say."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QScrollArea,
    QSlider,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.class_shape import ClassMark
from fieldray.desktop.formatting import (
    backend_name,
    category_word,
    decision_sentence,
    label_meaning,
    number,
    percent,
)
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.score_scale import ScoreScale
from fieldray.desktop.style import Theme, colours
from fieldray.desktop.verdict_bar import VerdictBar
from fieldray.desktop.widgets import PlainLabel, card, label, name_surface, paragraphs
from fieldray.desktop.work_row import WorkRow
from fieldray.domain.finding import Finding, Screened
from fieldray.domain.model import Manifest
from fieldray.translation import Translator


class ResultPanel(QScrollArea):
    """The side panel. Its texts are built again for each image; the heat map's controls and the verdict stay."""

    def __init__(self, image: OpenImage, translator: Translator, theme: Theme, *, opacity_percent: int) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._image, self._translator = image, translator
        self._theme: Theme = theme
        self.setMinimumWidth(300)
        self.setAccessibleName(translator.text("Result"))
        page = QWidget()
        name_surface(page, "panel")
        self._layout = QVBoxLayout(page)
        self._layout.setContentsMargins(16, 14, 16, 14)
        self._layout.setSpacing(10)
        self.setWidget(page)
        self._empty = label(translator.text("The result of the chosen image is shown here."), role="muted")
        self._head = self._make_head()
        self._result = QWidget()
        self.heat_map_box = QCheckBox(translator.text("Show the heat map (H)"))
        self.heat_map_box.setChecked(True)
        self.opacity = QSlider(Qt.Orientation.Horizontal)
        self.opacity.setRange(0, 100)
        self.opacity.setValue(opacity_percent)
        self.opacity.setAccessibleName(translator.text("Opacity of the heat map"))
        self._heat_map = self._make_heat_map()
        self.verdict = VerdictBar(translator)
        self._verdict_card = self._card(translator.text("Your verdict"), self.verdict)
        self._pack = QWidget()
        for widget in (self._empty, self._head, self._result, self._heat_map, self._verdict_card, self._pack):
            self._layout.addWidget(widget)
        self._layout.addStretch(1)
        self.verdict.given.connect(image.give_verdict)
        image.changed.connect(self.refresh)
        image.verdict_changed.connect(self._show_verdict)
        self.refresh()

    def refresh(self) -> None:
        """Show the open image's result."""
        row = self._image.row
        self._empty.setVisible(row is None)
        for widget in (self._head, self._result, self._heat_map, self._verdict_card, self._pack):
            widget.setVisible(row is not None)
        if row is None:
            return
        self._mark.show_class(row.category)
        self._word.setText(category_word(self._translator, row.category))
        self._word.setStyleSheet(f"color: {colours(self._theme)[row.category]}; font-size: 17pt; font-weight: 600;")
        self._result = self._exchange(self._result, self._make_result(row))
        self._pack = self._exchange(self._pack, self._make_pack(row))
        screened = row.outcome if isinstance(row.outcome, Screened) else None
        self._heat_map.setVisible(screened is not None and screened.class_maps is not None)
        self._verdict_card.setVisible(screened is not None)
        self._show_verdict()
        self.verticalScrollBar().setValue(0)

    # ---- parts that stay

    def _make_head(self) -> QWidget:
        head = QWidget()
        row = QHBoxLayout(head)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(10)
        self._mark = ClassMark(self._theme, side=30)
        self._word = PlainLabel()
        row.addWidget(self._mark)
        row.addWidget(self._word, 1)
        return head

    def _make_heat_map(self) -> QWidget:
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        opacity = QHBoxLayout()
        opacity.addWidget(label(self._translator.text("Opacity")))
        opacity.addWidget(self.opacity, 1)
        column.addWidget(self.heat_map_box)
        column.addLayout(opacity)
        meaning = self._translator.text("What influenced the score, not the lesion's outline")
        column.addWidget(label(meaning, role="muted"))
        return self._card(self._translator.text("Heat map"), inside)

    def _card(self, title: str, inside: QWidget) -> QWidget:
        frame, column = card()
        column.addWidget(label(title, role="heading"))
        column.addWidget(inside)
        return frame

    # ---- parts that are built for each image

    def _make_result(self, row: WorkRow) -> QWidget:
        box = QWidget()
        column = QVBoxLayout(box)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        outcome = row.outcome
        if not isinstance(outcome, Screened):
            column.addWidget(label(self._translator.reason(outcome.reason)))
            column.addWidget(label(self._unavailable_reason(row), role="muted"))
            return box
        for finding in sorted(outcome.findings, key=lambda finding: finding is not row.finding):
            self._add_finding(column, finding, row.manifest)
        column.addWidget(label(self._ran_on(outcome), role="muted"))
        return box

    def _unavailable_reason(self, row: WorkRow) -> str:
        if row.category == "refused":
            return self._translator.text("The image was not assessed. Look at it yourself.")
        return self._translator.text("The image could not be screened. Look at it yourself, or try again.")

    def _add_finding(self, column: QVBoxLayout, finding: Finding, manifest: Manifest | None) -> None:
        translator, point = self._translator, finding.point
        column.addWidget(label(decision_sentence(translator, finding.decision)))
        meaning = label_meaning(translator, finding.label, manifest)
        column.addWidget(label(translator.text("It looks for: {meaning}", meaning=meaning), role="muted"))
        score = number(translator, finding.score, digits=2)
        column.addWidget(label(translator.text("Score {score}", score=score), role="title"))
        if point is not None:
            threshold = number(translator, point.threshold, digits=2)
            name = translator.pick(point.titles)
            used = translator.text("Operating point “{name}”: {threshold}", name=name, threshold=threshold)
            column.addWidget(label(used, role="heading"))
        column.addWidget(ScoreScale(finding, translator, self._theme))
        if point is not None:
            measured = translator.text(
                "Measured there: sensitivity {sensitivity}, specificity {specificity} (95 % confidence), on {data}.",
                sensitivity=percent(translator, point.sensitivity),
                specificity=percent(translator, point.specificity),
                data=translator.pick(point.measured_on),
            )
            column.addWidget(label(measured, role="muted"))

    def _ran_on(self, outcome: Screened) -> str:
        translator = self._translator
        return translator.text(
            "{backend}, {milliseconds} ms; reading {reading} ms. Pack {pack}.",
            backend=backend_name(translator, outcome.backend),
            milliseconds=number(translator, outcome.inference_ms, digits=1),
            reading=round(outcome.facts.decode_ms),
            pack=outcome.pack_name,
        )

    def _make_pack(self, row: WorkRow) -> QWidget:
        box = QWidget()
        column = QVBoxLayout(box)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(10)
        manifest = row.manifest
        if manifest is not None:
            translator = self._translator
            use = label(*paragraphs(translator.pick(manifest.intended_use)))
            column.addWidget(self._card(translator.text("What this pack is for"), use))
            limits = label(*paragraphs(translator.pick(manifest.limits)))
            column.addWidget(self._card(translator.text("What it cannot do"), limits))
        return box

    def _exchange(self, old: QWidget, new: QWidget) -> QWidget:
        self._layout.replaceWidget(old, new)
        old.hide()
        old.deleteLater()
        return new

    def _show_verdict(self, *_: object) -> None:
        row = self._image.row
        self.verdict.show_verdict(row.verdict if row else None)
