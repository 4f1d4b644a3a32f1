"""The card and the bar of two compared images: available prior images, scores, maps, differences, and display mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QPainter, QPaintEvent
from PySide6.QtWidgets import QMessageBox, QSizePolicy, QWidget

from fieldray.desktop.comparison_controller import ComparisonController
from fieldray.desktop.comparison_view import ComparisonView, comparison_problem_text, study_date_text
from fieldray.desktop.controller import Controller
from fieldray.desktop.image_painting import DisplaySwitches, Size, ViewState, draw_heat_map, draw_image, heat_map_of
from fieldray.desktop.result_panel import FoldingCard
from fieldray.desktop.style import Theme, icon, preserve_painter_state
from fieldray.desktop.widgets import (
    PlainButton,
    choice_box,
    column_layout,
    make_label,
    push_button,
    question_box,
    row_layout,
    set_surface,
    set_tooltip,
    slider,
    without_markup,
)
from fieldray.desktop.worklist_rows import WorkListRow, result_text
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.prior_image import PriorImage, PriorOrigin, prior_warnings
from fieldray.formatting import (
    file_name,
    format_number,
    view_and_laterality_label,
)
from fieldray.reports.pair_wording import comparison_notice, image_interval_text, region_count_text, region_sentence
from fieldray.translation import Translator

_MODES: Final = ("side_by_side", "swipe", "blink", "difference")
_MAP_HEIGHT: Final = 132
_MAX_REGIONS: Final = 12


class PriorImageCard(QWidget):
    """The card about prior images in the side panel. The card is visible while an image is open."""

    prior_file_requested = Signal()

    def __init__(self, controller: Controller, translator: Translator, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)  # with a parent, because a widget without one would be a window
        switches, comparing = controller.switches, controller.comparing
        self._comparing, self._translator = comparing, translator
        self.start = push_button(translator.text("Compare with prior image (E)"), comparing.start_or_stop)
        self.file = push_button(translator.text("Choose a file…"), self.prior_file_requested.emit)
        for button in (self.start, self.file):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.state_label, self.score_label, self.region_label = make_label(role="muted"), make_label(), make_label()
        self.score_label.setAccessibleName(translator.text("Scores of both images"))
        self.maps = HeatMapPair(comparing, translator)
        self.opacity = slider(switches.difference_opacity_percent)
        self.opacity.setAccessibleName(translator.text("Opacity of the difference colours"))
        self.opacity.valueChanged.connect(lambda percent: switches.set(difference_opacity_percent=percent))
        self._strength = QWidget()
        self.priors = choice_box((), accessible_name=translator.text("Prior images of this patient"))
        self.priors.setMinimumContentsLength(12)
        self.priors.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.priors.activated.connect(self._choose)
        self._lay_out(switches, theme)
        comparing.changed.connect(self.refresh)
        for opened in (comparing.image, comparing.second_image):
            opened.loaded.connect(self.maps.update)
        self.refresh()

    def _lay_out(self, switches: DisplaySwitches, theme: Theme) -> None:
        row_layout(
            self._strength, make_label(self._translator.text("Opacity of the difference colours")), (self.opacity, 1)
        )
        buttons = column_layout(None, self.start, self.file, spacing=6)
        parts = self.state_label, self.priors, buttons, self.score_label, self.maps, self.region_label, self._strength
        title = self._translator.text("Prior image")
        column_layout(self, FoldingCard("prior", title, *parts, switches=switches, theme=theme))

    # ---- texts

    def refresh(self) -> None:
        """Show the prior images that can be chosen, and the results of the comparison."""
        comparing, translator = self._comparing, self._translator
        row, second_row = comparing.image.row, comparing.second_image.row
        self.setVisible(row is not None)
        if row is None:
            return
        self.start.setText(
            translator.text("Stop comparing") if comparing.is_on else translator.text("Compare with prior image (E)")
        )
        self.start.setEnabled(comparing.is_on or bool(comparing.priors))
        self.state_label.setText(self._priors_text())
        self._show_priors(row)
        is_pair = comparing.is_on and comparing.prior is not None and second_row is not None
        for widget in (self.score_label, self.maps):
            widget.setVisible(is_pair)
        if is_pair and second_row is not None:
            self.score_label.setText(*self._score_lines(row, second_row))
            self.maps.update()
        found = self._found_lines()
        self.region_label.setText(*found)
        self.region_label.setVisible(bool(found))
        self._strength.setVisible(comparing.overlays is not None)

    def _priors_text(self) -> str:
        comparing, translator = self._comparing, self._translator
        if comparing.priors:
            return translator.plural(
                "{count} prior image can be compared.", "{count} prior images can be compared.", len(comparing.priors)
            )
        return _search_text(translator, comparing)

    def _show_priors(self, row: WorkListRow) -> None:
        comparing, box = self._comparing, self.priors
        box.setVisible(bool(comparing.priors))
        box.clear()
        for prior in comparing.priors:
            box.addItem(self._name(prior, row))
        if comparing.prior in comparing.priors:
            box.setCurrentIndex(comparing.priors.index(comparing.prior))

    def _name(self, prior: PriorImage, row: WorkListRow) -> str:
        text = self._translator.text
        origins: dict[PriorOrigin, str] = {
            "run": text("this run"),
            "history": text("earlier run"),
            "file": self._translator.name_unless_hidden(file_name(prior.outcome.ref)),
        }
        header = prior.header
        gap = image_interval_text(self._translator, header, row.header)
        parts = (
            study_date_text(self._translator, header),
            gap,
            view_and_laterality_label(header),
            origins[prior.origin],
        )
        return without_markup(" · ".join(part for part in parts if part))

    def _score_lines(self, row: WorkListRow, second_row: WorkListRow) -> tuple[str, ...]:
        text = self._translator.text
        scores = (
            text("Current image: {image}", image=self._score(row)),
            text("Prior image: {day}", day=self._score(second_row)),
        )
        differ = text(
            "Scores of two different packs cannot be compared. A difference between these scores does not "
            "mean that the patient has changed."
        )
        return (*scores, differ) if _packs_differ(row, second_row) else scores

    def _score(self, row: WorkListRow) -> str:
        if isinstance(row.outcome, ScreenedOutcome) and not row.outcome.model_sha256:
            return self._translator.text("not screened yet")
        return result_text(self._translator, row)

    def _found_lines(self) -> tuple[str, ...]:
        comparing, translator = self._comparing, self._translator
        pair = comparing.comparison
        if comparing.problem is not None and comparing.prior is not None:
            return (comparison_problem_text(translator, comparing),)
        if pair is None or pair.aligned_pair is None:
            return ()
        alignment, regions = pair.aligned_pair.alignment, pair.aligned_pair.regions
        text, more = translator.text, len(regions) - _MAX_REGIONS
        values = alignment.similarity_before, alignment.similarity_after
        before, after = (format_number(translator, value, digits=2) for value in values)
        return (
            text(
                "Similarity inside the lungs: {before} before alignment, {after} after alignment",
                before=before,
                after=after,
            ),
            text(
                "Matching points: {kept} accepted, {rejected} rejected",
                kept=alignment.kept_match_count,
                rejected=alignment.rejected_match_count,
            ),
            region_count_text(translator, len(regions)),
            *(region_sentence(translator, region, index) for index, region in enumerate(regions[:_MAX_REGIONS], 1)),
            *([translator.plural("and {count} more", "and {count} more", more)] if more > 0 else []),
        )

    def _choose(self, index: int) -> None:
        if 0 <= index < len(self._comparing.priors):
            self._comparing.compare_with_prior(self._comparing.priors[index])


class HeatMapPair(QWidget):
    """Small pictures of the current image (left) and its prior image (right), with heat maps."""

    def __init__(self, comparing: ComparisonController, translator: Translator) -> None:
        super().__init__()
        self._images = comparing.image, comparing.second_image
        self.setAccessibleName(translator.text("Heat maps of both images"))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(200, _MAP_HEIGHT)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        gap, width = 6, (self.width() - 6) // 2
        for index, opened in enumerate(self._images):
            box = QRectF(index * (width + gap), 0, width, self.height())
            painter.fillRect(box, Qt.GlobalColor.black)
            pyramid, row = opened.pyramid, opened.row
            if pyramid is None or row is None:
                continue
            with preserve_painter_state(painter):
                painter.setClipRect(box)
                painter.translate(box.topLeft())
                state, view = ViewState(), Size(box.width(), box.height())
                draw_image(painter, pyramid, state, view, pixel_ratio=self.devicePixelRatio())
                heat = heat_map_of(row)
                if heat is not None:
                    transform = state.transform(pyramid.size, view)
                    draw_heat_map(painter, heat, transform, image=pyramid.size, opacity=0.45)
        painter.end()


def _search_text(translator: Translator, comparing: ComparisonController) -> str:
    none = comparing.no_prior_reason
    return translator.reason(none) if none else translator.text("Looking for prior images…")


def _packs_differ(row: WorkListRow, second_row: WorkListRow) -> bool:
    models = [found.outcome.model_sha256 for found in (row, second_row) if isinstance(found.outcome, ScreenedOutcome)]
    return len(models) == 2 and all(models) and models[0] != models[1]


def prior_question_box(
    parent: QWidget, question: PriorImage, comparing: ComparisonController, translator: Translator
) -> QMessageBox:
    """Return the dialog that asks whether to compare with an image of another patient.

    question  the image of the other patient
    """
    row = comparing.image.row
    warnings = " ".join(map(translator.reason, prior_warnings(question, row.outcome) if row else ()))
    more = translator.text("The two images can only be shown side by side, not as an overlay.")
    answers = {
        translator.text("Show side by side"): lambda: comparing.answer_other_patient_question(
            question, is_confirmed=True
        )
    }
    decline_text, on_decline = (
        translator.text("Cancel"),
        lambda: comparing.answer_other_patient_question(question, is_confirmed=False),
    )
    return question_box(parent, warnings, more, answers=answers, decline_text=decline_text, on_decline=on_decline)


class ComparisonInfoBar(QWidget):
    """The bar above two compared images: both dates, the time between them, warnings, and the display mode."""

    def __init__(
        self,
        comparing: ComparisonController,
        view: ComparisonView,
        actions: Mapping[str, QAction],
        translator: Translator,
        theme: Theme,
    ) -> None:
        super().__init__()
        set_surface(self, "panel")
        self._comparing, self._view, self._translator = comparing, view, translator
        self.dates, self.warnings = make_label(role="heading"), make_label(role="warning")
        self.state, self.notice = make_label(), make_label(comparison_notice(translator), role="muted")
        self.buttons = self._make_buttons(actions)
        self.list_key = push_button(translator.text("Show the work list ({key})", key="F8"), actions["panels"].trigger)
        self.list_key.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.list_key.hide()  # shown while the list is hidden
        close = push_button(
            "", comparing.stop, icon=icon("close", theme), accessible_name=translator.text("Stop comparing")
        )
        set_tooltip(close, actions["prior"].toolTip())
        first = row_layout(None, (self.dates, 1), self.list_key, close)
        for button in (self.list_key, close):
            first.setAlignment(button, Qt.AlignmentFlag.AlignTop)
        modes = row_layout(None, *((button, 1) for button in self.buttons.values()), spacing=6)
        column_layout(self, first, self.warnings, self.state, modes, self.notice, margins=(10, 6, 6, 6), spacing=4)
        comparing.changed.connect(self._refresh)
        view.changed.connect(self._refresh)
        self._refresh()

    def _make_buttons(self, actions: Mapping[str, QAction]) -> dict[str, PlainButton]:
        text = self._translator.text
        titles = {
            "prior_side_by_side": text("Side by side"),
            "prior_swipe": text("Swipe"),
            "prior_blink": text("Blink"),
            "prior_difference": text("Difference"),
            "prior_mesh": text("Alignment grid"),
        }
        buttons = {}
        for command, title in titles.items():
            button = push_button(title, actions[command].trigger, role="choice")
            button.setAccessibleDescription(actions[command].iconText())
            set_tooltip(button, actions[command].toolTip())
            buttons[command] = button
        return buttons

    def _refresh(self) -> None:
        comparing, row, prior = self._comparing, self._comparing.image.row, self._comparing.prior
        self.setVisible(comparing.is_on and row is not None)
        if not comparing.is_on or row is None:
            return
        translator = self._translator
        if prior is None:
            self.dates.setText(translator.text("Current image: {image}", image=study_date_text(translator, row.header)))
        else:
            self.dates.setText(
                translator.text(
                    "Current image: {open}. Prior image: {prior}, {gap}",
                    open=study_date_text(translator, row.header),
                    prior=study_date_text(translator, prior.header),
                    gap=image_interval_text(translator, prior.header, row.header),
                )
            )
        warnings = [translator.reason(doubt) for doubt in comparing.warnings]
        self.warnings.setText(*warnings)
        self.warnings.setVisible(bool(warnings))
        self.state.setText(self._state())
        self.state.setVisible(bool(self.state.text()))
        can_lay = comparing.overlays is not None
        for mode in _MODES:
            button = self.buttons[f"prior_{mode}"]
            button.setChecked(self._view.mode == mode)
            button.setEnabled(can_lay or mode == "side_by_side")
        self.buttons["prior_mesh"].setChecked(self._view.switches.prior_mesh)
        self.buttons["prior_mesh"].setEnabled(can_lay)

    def _state(self) -> str:
        comparing, translator = self._comparing, self._translator
        if comparing.prior is None:
            return "" if comparing.priors and not comparing.is_searching else _search_text(translator, comparing)
        if comparing.problem is not None:
            return comparison_problem_text(translator, comparing)
        if comparing.overlays is not None:
            return ""
        return translator.text("Comparing…")
