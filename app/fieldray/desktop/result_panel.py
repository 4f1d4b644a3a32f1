"""The result panel: the pack's result for the current image, its operating point, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QCheckBox, QFrame, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.image_painting import DisplaySwitches
from fieldray.desktop.packs_page import PackResultButtons, model_card_button
from fieldray.desktop.performance_bars import PerformanceBars
from fieldray.desktop.style import Theme, category_icon, colour, colours, icon, scaled_font
from fieldray.desktop.verdict_controller import VerdictBar
from fieldray.desktop.widgets import (
    LayoutPart,
    PlainButton,
    PlainLabel,
    card,
    column_layout,
    make_label,
    push_button,
    remove_widgets,
    row_layout,
    set_surface,
    slider,
    split_paragraphs,
)
from fieldray.desktop.worklist_rows import WorkListRow
from fieldray.domain.finding import (
    Outcome,
    RefusedOutcome,
    ScreenedOutcome,
    can_be_fixed_by_turning,
    can_refusal_be_overruled,
    lungs_of,
    notes_of,
    override_notes,
)
from fieldray.domain.run import RefusalOverrides
from fieldray.formatting import (
    advice_text,
    backend_name,
    category_label,
    format_number,
    lung_area_and_evidence_sentences,
)
from fieldray.reasons import FREQUENT_NOTE_CODES, Reason, reason
from fieldray.reports.document import FindingText, ScoreScale, finding_texts
from fieldray.translation import Translator

EVIDENCE_OUTSIDE_LUNGS_CODE: Final = "evidence_outside"
_MIN_WIDTH: Final = 260
_MARK: Final = 34
_FOCUS_FRAME: Final = 2  # width of the focus frame in the style sheet


class FoldingCard(QFrame):
    """A card whose content can be folded away below its heading.

    A folded card stays folded when another image is opened.
    """

    def __init__(self, name: str, title: str, *parts: LayoutPart, switches: DisplaySwitches, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("card")
        self._name, self._switches, self._theme, self._inside = name, switches, theme, QWidget()
        column_layout(self._inside, *parts, spacing=6)
        self.head = push_button(title, self._fold, role="fold")
        column_layout(self, self.head, self._inside, margins=(14, 12, 14, 12), spacing=6)
        switches.changed.connect(self._refresh)
        self._refresh()

    def _fold(self) -> None:
        self._switches.set(folded=" ".join(sorted({*self._switches.folded.split()} ^ {self._name})))

    def _refresh(self) -> None:
        is_folded = self._name in self._switches.folded.split()
        self._inside.setVisible(not is_folded)
        self.head.setIcon(icon("folded" if is_folded else "open", self._theme))


class ResultPanel(QScrollArea):
    """The side panel with the result of the current image.

    The texts are built again for each image. The controls of heat map and verdict are kept.

    prior  the card about prior images, which shows and hides itself
    """

    model_card_requested = Signal()

    def __init__(self, controller: Controller, prior: QWidget, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(translator.text("Result"))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click in the panel leaves the focus on the list
        self._controller, self._image = controller, controller.image
        self._judging, self._switches = controller.judging, controller.switches
        self._translator, self._theme = translator, theme
        self._folding = partial(FoldingCard, switches=self._switches, theme=theme)
        self._page = page = QWidget()
        set_surface(page, "panel")
        self.override_buttons: list[PlainButton] = []
        self._empty = make_label(translator.text("The result of the selected image is shown here."), role="muted")
        self.packs = PackResultButtons(self._image, translator, theme)
        self._head = self._make_head()
        self._kept = make_label(role="warning")
        self.open_newer_button = push_button(
            translator.text("Open the new image"), controller.show_newer_result_of_image
        )
        self._result, self._measured = QWidget(), QWidget()
        self._heat_map = self._make_heat_map()
        self.lungs = LungsCard(self._folding, translator)
        self.verdict = VerdictBar(self._judging, lambda: str(controller.settings["reader"]), translator)
        self._verdict_card = card(make_label(translator.text("Your verdict"), role="heading"), self.verdict)
        self._pack = QWidget()
        self._inside = QWidget()
        above = self._head, self._kept, self.open_newer_button, self._result, self._verdict_card, self._measured
        self._layout = column_layout(self._inside, *above, self._heat_map, self.lungs, prior, self._pack, spacing=10)
        column_layout(page, self._empty, self.packs, self._inside, 1, margins=(10, 14, 10, 14), spacing=10)
        self.setWidget(page)
        self._image.changed.connect(self.refresh)
        for news in (self._image.loaded, self._image.result_replaced):
            news.connect(self._show_kept)
        controller.comparing.changed.connect(self._fit_width)  # after the refresh of the card about prior images
        self._image.screening_changed.connect(self._show_screening)
        self._connect_switches()
        self.setMinimumWidth(_MIN_WIDTH)
        self.refresh()

    def refresh(self) -> None:
        """Show the result of the current image."""
        row = self._image.row
        self._empty.setVisible(row is None)
        self._inside.setVisible(row is not None)
        self._show_kept()
        self.packs.refresh()
        if row is None:
            return
        self._mark.setPixmap(category_icon(row.category, self._theme).pixmap(QSize(_MARK, _MARK)))
        self._heading.setText(category_label(self._translator, row.category, row.manifest))
        self._heading.setStyleSheet(f"color: {colours(self._theme)[row.category]}; font-size: 17pt; font-weight: 600;")
        found = finding_texts(self._translator, row.outcome, row.manifest)
        self._result = self._exchange(self._result, self._make_result(row, found))
        self._pack = self._exchange(self._pack, self._make_pack(row))
        screened = row.outcome if isinstance(row.outcome, ScreenedOutcome) else None
        self._measured = self._exchange(self._measured, self._make_measured(screened, found))
        self._heat_map.setVisible(screened is not None and screened.class_maps is not None)
        self.lungs.show_outcome(row.outcome)
        self.verdict.show_agree_meaning(self._verdict_meaning(row))
        self._fit_width()
        self.verticalScrollBar().setValue(0)

    def _connect_switches(self) -> None:
        switches = self._switches
        self.heat_map_box.toggled.connect(lambda is_on: switches.set(heat_map=is_on))
        self.lungs.outline_box.toggled.connect(lambda is_on: switches.set(lung_outline=is_on))
        self.opacity.valueChanged.connect(lambda percent: switches.set(heat_map_opacity=percent))
        switches.changed.connect(self._show_switches)

    def _show_switches(self) -> None:
        self.heat_map_box.setChecked(self._switches.heat_map)
        self.lungs.outline_box.setChecked(self._switches.lung_outline)
        self.opacity.setValue(self._switches.heat_map_opacity)

    def _show_kept(self) -> None:
        """Show a text if the file cannot be read, or if a newer result has replaced the shown result.

        The text names the stored picture that is shown instead of the file. A button opens the newer result.
        """
        problem, note, is_replaced = self._image.problem, self._image.preview_note, self._image.is_result_replaced
        is_stored = problem is not None and note is not None
        said = [one for one in (problem, note) if one is not None and is_stored]
        said += [reason("image_replaced")] if is_replaced else []
        self._kept.setText(" ".join(map(self._translator.reason, said)))
        self._kept.setVisible(bool(said))
        self.open_newer_button.setVisible(is_replaced)
        self._verdict_card.setVisible(self._judging.verdicts.open_image is not None)
        self.verdict.refresh()

    def _fit_width(self) -> None:
        """Set the width of the panel so that the longest words of the language are not cut."""
        bar = self.verticalScrollBar().sizeHint().width() + 2 * _FOCUS_FRAME
        self.setMinimumWidth(max(_MIN_WIDTH, self._page.minimumSizeHint().width() + bar))

    # ---- widgets that are kept

    def _make_head(self) -> QWidget:
        head = QWidget()
        self._mark = PlainLabel()
        self._heading = PlainLabel()
        self._heading.setWordWrap(True)  # a pack may have a long name for a class
        row_layout(head, self._mark, (self._heading, 1), spacing=10)
        return head

    def _make_heat_map(self) -> QWidget:
        self.heat_map_box = QCheckBox(self._translator.text("Show the heat map (H)"))
        self.heat_map_box.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.heat_map_box.setChecked(self._switches.heat_map)
        self.opacity = slider(self._switches.heat_map_opacity)
        self.opacity.setAccessibleName(self._translator.text("Heat map opacity"))
        opacity = row_layout(None, make_label(self._translator.text("Heat map opacity")), (self.opacity, 1))
        meaning = self._translator.text("The colours show the influence on the score, not the outline of a lesion")
        parts = self.heat_map_box, opacity, make_label(meaning, role="muted")
        return self._folding("heat_map", self._translator.text("Heat map"), *parts)

    # ---- widgets that are built for each image

    def _make_result(self, row: WorkListRow, found: Sequence[FindingText]) -> QWidget:
        box = QWidget()
        column = column_layout(box, spacing=6)
        outcome, self.override_buttons = row.outcome, []
        if not isinstance(outcome, ScreenedOutcome):
            column.addWidget(make_label(self._translator.reason(outcome.reason)))
            if row.category != "not_an_image":
                column.addWidget(make_label(advice_text(self._translator, row.category), role="muted"))
            if others := self._packs_for(outcome.reason):
                sentence = self._translator.text("Packs for patients of this age: {packs}.", packs=", ".join(others))
                column.addWidget(make_label(sentence))
            self._add_overrides(column, row)
            return box
        for note in sorted(outcome.notes, key=lambda note: note.code in FREQUENT_NOTE_CODES):
            if note.code != EVIDENCE_OUTSIDE_LUNGS_CODE:  # this note is shown next to the figure
                role = "muted" if note.code in FREQUENT_NOTE_CODES else "warning"
                column.addWidget(make_label(self._translator.reason(note), role=role))
        for said in found:
            self._add_finding(column, said)
        if override_notes(outcome):
            self._add_override(
                column, self._translator.text("Undo my decision to screen this image"), RefusalOverrides()
            )
        return box

    def _packs_for(self, why: Reason) -> list[str]:
        """Return the names of available packs that accept the patient's age.

        Empty if age is not the reason for the refusal.

        why  the reason for the refusal
        """
        age, packs = dict(why.parameters).get("age", ""), self._controller.packs.candidates
        if why.code != "age" or not age.isdigit():
            return []
        ages = [(pack, pack.manifest.accepted.ages_years) for pack in packs if pack.can_screen and pack.manifest]
        fitting = (pack for pack, years in ages if years and years[0] <= int(age) <= years[1])
        return [f"{self._translator.pack_text(pack.names) or pack.pack_name} {pack.version}" for pack in fitting]

    def _add_overrides(self, column: QVBoxLayout, row: WorkListRow) -> None:
        """Add buttons for a refused image to a layout: screen in spite of the refusal, or turn the image."""
        why, text = row.outcome.reason if isinstance(row.outcome, RefusedOutcome) else None, self._translator.text
        if why is None or not can_refusal_be_overruled(why):
            return
        offered = [(text("Screen this image anyway"), RefusalOverrides(overrules=True))]
        if can_be_fixed_by_turning(why):
            is_grey = why.code == "inverted"
            turned = text("Swap black and white, and screen") if is_grey else text("Turn the image and screen")
            offered.insert(0, (turned, RefusalOverrides(turns=True)))
        for caption, overrides in offered:
            self._add_override(column, caption, overrides)
        column.addWidget(make_label(text("The result will record your decision."), role="muted"))

    def _add_override(self, column: QVBoxLayout, caption: str, overrides: RefusalOverrides) -> None:
        button = push_button(caption, lambda: self._image.screen_again(overrides))
        self.override_buttons.append(button)
        column.addWidget(button)
        self._show_screening()

    def _show_screening(self) -> None:
        for button in self.override_buttons:
            button.setEnabled(not self._image.is_screening)

    def _verdict_meaning(self, row: WorkListRow) -> str:
        text = self._translator.text
        if row.category == "refused":
            return text("Agree: the image is not suitable for this pack. Disagree: the image is suitable.")
        is_unusable = row.category in ("failed", "not_an_image")
        return text("Agree: this file cannot be used. Disagree: this file can be used.") if is_unusable else ""

    def _add_finding(self, column: QVBoxLayout, found: FindingText) -> None:
        text = self._translator.text
        column.addWidget(make_label(found.decision_sentence))
        if found.performance:
            column.addWidget(make_label(found.performance.sentence))
        column.addWidget(make_label(text("This pack looks for: {meaning}", meaning=found.label_meaning), role="muted"))
        column.addWidget(make_label(text("Score {score}", score=found.score), role="title"))
        if found.operating_point_sentence:
            column.addWidget(make_label(found.operating_point_sentence, role="heading"))
        column.addWidget(ScoreScaleWidget(found.scale, self._theme))

    def _make_measured(self, outcome: ScreenedOutcome | None, found: Sequence[FindingText]) -> QWidget:
        """Make the widget with the measured performance of each finding's operating point, and the device.

        The widget is empty if the image was not screened.
        """
        box = QWidget()
        column = column_layout(box, spacing=6)
        if outcome is None:
            return box
        for said in found:
            if said.performance:
                column.addWidget(PerformanceBars(said.performance, self._theme))
            if said.operating_point_sentence:
                column.addWidget(make_label(said.performance_sentence, role="muted"))
        column.addWidget(make_label(self._ran_on(outcome), role="muted"))
        return box

    def _ran_on(self, outcome: ScreenedOutcome) -> str:
        translator = self._translator
        return translator.text(
            "Score computed on {backend} in {milliseconds} ms. File read in {reading} ms. Pack {pack}.",
            backend=backend_name(translator, outcome.backend),
            milliseconds=format_number(translator, outcome.inference_ms, digits=1),
            reading=round(outcome.facts.decode_ms),
            pack=outcome.pack_name,
        )

    def _make_pack(self, row: WorkListRow) -> QWidget:
        box, manifest, translator = QWidget(), row.manifest, self._translator
        if manifest is not None:
            use = make_label(*split_paragraphs(translator.pack_text(manifest.intended_use)))
            limits = make_label(*split_paragraphs(translator.pack_text(manifest.limits)))
            column_layout(
                box,
                self._folding("use", translator.text("What this pack is for"), use),
                self._folding("limits", translator.text("Limits of this pack"), limits),
                model_card_button(translator, self.model_card_requested.emit),
                spacing=10,
            )
        return box

    def _exchange(self, old: QWidget, new: QWidget) -> QWidget:
        self._layout.replaceWidget(old, new)
        remove_widgets(old)
        return new


class LungsCard(QWidget):
    """The card of the lungs: areas, evidence inside the lungs, and findings to look at.

    The card is hidden for an image without usable lung fields.
    """

    def __init__(self, folding: Callable[..., QWidget], translator: Translator) -> None:
        super().__init__()
        self._translator = translator
        self.outline_box = QCheckBox(translator.text("Show the outline of the lungs (O)"))
        self.outline_box.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._areas = make_label()
        self._evidence = make_label(role="heading")
        self._warning = make_label(role="warning")
        parts = self.outline_box, self._areas, self._evidence, self._warning
        column_layout(self, folding("lungs", translator.text("Lungs"), *parts))

    def show_outcome(self, outcome: Outcome) -> None:
        """Show the facts about the lungs of an outcome's image. Without such facts, hide the card."""
        lungs, translator = lungs_of(outcome), self._translator
        self.setVisible(lungs is not None and lungs.refusal is None)
        if lungs is None:
            return
        areas, inside = lung_area_and_evidence_sentences(translator, lungs)
        self._areas.setText(areas)
        self._evidence.setVisible(bool(inside))
        self._evidence.setText(inside)
        warnings = [note for note in notes_of(outcome) if note.code == EVIDENCE_OUTSIDE_LUNGS_CODE]
        self._warning.setVisible(bool(warnings))
        self._warning.setText(*map(translator.reason, warnings))


# ---- the score on a scale with the threshold in the middle, and the uncertain zone

_BAR_HEIGHT: Final = 12
_SCALE_SIDE: Final = 10


class ScoreScaleWidget(QWidget):
    """The scale "below | uncertain | above" with a mark at the score.

    Without an operating point, the scale goes from 0 to 1 without names.
    """

    def __init__(self, scale: ScoreScale, theme: Theme) -> None:
        super().__init__()
        self._scale, self._theme = scale, theme
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(180)

    def sizeHint(self) -> QSize:
        return QSize(240, self._line_height() * 2 + _BAR_HEIGHT + 22)

    def minimumSizeHint(self) -> QSize:
        return QSize(180, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(scaled_font(self.font(), 0.9))
        bar = QRectF(_SCALE_SIDE, self._line_height() + 12, self.width() - 2 * _SCALE_SIDE, _BAR_HEIGHT)
        low, high = self._scale.zone_start, self._scale.zone_end
        if low is None or high is None:
            painter.fillRect(bar, colour(self._theme, "pressed"))
        else:
            self._draw_zones(painter, bar, low, high)
        self._write(painter, bar)
        self._draw_mark(painter, bar)
        painter.end()

    def _draw_zones(self, painter: QPainter, bar: QRectF, low: float, high: float) -> None:
        for start, end, name in ((0.0, low, "normal"), (low, high, "unsure"), (high, 1.0, "abnormal")):
            part = QRectF(bar.x() + start * bar.width(), bar.y(), (end - start) * bar.width(), bar.height())
            shade = colour(self._theme, name)
            shade.setAlpha(150)
            painter.fillRect(part, shade)
        middle = bar.center().x()
        painter.setPen(QPen(colour(self._theme, "text"), 2))
        painter.drawLine(QPointF(middle, bar.top() - 4), QPointF(middle, bar.bottom() + 4))
        caption = self._scale.zone_label
        width = painter.fontMetrics().horizontalAdvance(caption)
        left = min(max(bar.x() + (low + high) / 2 * bar.width() - width / 2, 0), self.width() - width)
        painter.setPen(colour(self._theme, "muted"))
        painter.drawText(QRectF(left, 0, width + 2, self._line_height()), Qt.AlignmentFlag.AlignLeft, caption)

    def _write(self, painter: QPainter, bar: QRectF) -> None:
        below = QRectF(0, bar.bottom() + 6, self.width(), self._line_height())
        painter.setPen(colour(self._theme, "muted"))
        sides = (Qt.AlignmentFlag.AlignLeft, Qt.AlignmentFlag.AlignHCenter, Qt.AlignmentFlag.AlignRight)
        for side, caption in zip(
            sides, (self._scale.end_labels[0], self._scale.threshold_label, self._scale.end_labels[1]), strict=True
        ):
            painter.drawText(below, side | Qt.AlignmentFlag.AlignTop, caption)

    def _draw_mark(self, painter: QPainter, bar: QRectF) -> None:
        x = bar.x() + self._scale.score_position * bar.width()
        mark = QPolygonF([QPointF(x, bar.bottom() - 1), QPointF(x - 7, bar.top() - 8), QPointF(x + 7, bar.top() - 8)])
        painter.setPen(QPen(colour(self._theme, "surface"), 1.5))
        painter.setBrush(colour(self._theme, "text"))
        painter.drawPolygon(mark)

    def _line_height(self) -> int:
        return self.fontMetrics().height()
