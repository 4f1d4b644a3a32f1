"""The page of the history: past runs, what to do with them, and how two of them differ."""

from __future__ import annotations

import datetime
from typing import Final

from PySide6.QtCore import QItemSelectionModel, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QScrollArea,
    QTableWidget,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.comparison_view import ComparisonView
from fieldray.desktop.history_filters import device_choices, first_day, time_choices, verdict_choices
from fieldray.desktop.icons import icon
from fieldray.desktop.past_runs import PastRuns
from fieldray.desktop.reading_table import reading_table
from fieldray.desktop.style import Theme
from fieldray.desktop.widgets import card, choice_box, label, name_surface, push_button, question_box, set_item_tip
from fieldray.domain.finding import WORK_LIST_ORDER
from fieldray.domain.history import DeletionPlan, RunFilter, RunSummary
from fieldray.formatting import category_word, moment, pack_of_run
from fieldray.pipeline.history import plan_sentences
from fieldray.translation import Translator

_TABLE_HEIGHT: Final = 420
_LEAST_HEIGHT: Final = 160
_SEARCH_WIDTH: Final = 260


class HistoryPage(QScrollArea):
    """Filters, the table of runs with its buttons, and below it the last comparison."""

    left = Signal()
    export_wanted = Signal(int)

    def __init__(self, runs: PastRuns, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setAccessibleName(translator.text("History of runs"))
        self._runs, self._translator = runs, translator
        self._theme: Theme = theme
        self._listed: tuple[RunSummary, ...] = ()
        self._compared: object = None
        page = QWidget()
        name_surface(page, "page")
        self._column = QVBoxLayout(page)
        self._column.setContentsMargins(24, 16, 24, 24)
        self._column.setSpacing(12)
        self._column.addLayout(self._make_top())
        frame, self._inside = card()
        self._inside.addLayout(self._make_filters())
        self.count = label(role="muted")
        self._inside.addWidget(self.count)
        self.table = self._make_table()
        self._inside.addWidget(self.table)
        hint = self._translator.text("Choose one run to open or save it, two (Ctrl and click) to compare them.")
        self._inside.addWidget(label(hint, role="muted"))
        self._inside.addLayout(self._make_buttons())
        self.problem = label(role="warning")
        self._inside.addWidget(self.problem)
        self._column.addWidget(frame)
        self.comparison: ComparisonView | None = None
        self._column.addStretch(1)
        self.setWidget(page)
        runs.changed.connect(self._refresh)
        runs.planned.connect(self._ask)
        self._show_comparison()
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._runs.refresh()

    # ---- building

    def _make_top(self) -> QHBoxLayout:
        back = push_button(self._translator.text("Back to the images"), picture=icon("back", self._theme))
        back.clicked.connect(self.left)
        row = QHBoxLayout()
        row.addWidget(back)
        row.addWidget(label(self._translator.text("History of runs"), role="title"), 1)
        return row

    def _make_filters(self) -> QHBoxLayout:
        translator, wanted = self._translator, self._runs.wanted
        self.search = QLineEdit(wanted.text)
        self.search.setPlaceholderText(translator.text("Search pack or folder"))
        self.search.setAccessibleName(translator.text("Search pack or folder"))
        self.search.setClearButtonEnabled(True)
        self.search.setFixedWidth(_SEARCH_WIDTH)
        self.search.textChanged.connect(lambda _: self._filter())
        self.dates = choice_box(time_choices(translator))
        self.dates.setAccessibleName(translator.text("Date"))
        self.verdicts = choice_box(verdict_choices(translator))
        self.verdicts.setAccessibleName(translator.text("Verdict"))
        self.verdicts.setCurrentIndex(self.verdicts.findData(wanted.verdict))
        self.devices = choice_box(device_choices(translator))
        self.devices.setAccessibleName(translator.text("Run on"))
        self.devices.setCurrentIndex(self.devices.findData(wanted.backend))
        row = QHBoxLayout()
        row.addWidget(self.search)
        for box in (self.dates, self.verdicts, self.devices):
            box.activated.connect(lambda _: self._filter())
            row.addWidget(box)
        row.addStretch(1)
        return row

    def _make_buttons(self) -> QHBoxLayout:
        text = self._translator.text
        self.open_button = push_button(text("Open"), role="primary")
        self.open_button.clicked.connect(self._open)
        self.compare_button = push_button(text("Compare two"))
        self.compare_button.clicked.connect(lambda: self._runs.compare(*self.chosen()))
        self.export_button = push_button(text("Save the results…"), picture=icon("export", self._theme))
        self.export_button.clicked.connect(lambda: self.export_wanted.emit(self.chosen()[0]))
        self.delete_button = push_button(text("Delete…"))
        self.delete_button.clicked.connect(lambda: self._runs.plan(self.chosen()))
        row = QHBoxLayout()
        for button in (self.open_button, self.compare_button, self.export_button):
            row.addWidget(button)
        row.addStretch(1)
        row.addWidget(self.delete_button)
        return row

    def _make_table(self) -> QTableWidget:
        text = self._translator.text
        words = (category_word(self._translator, category) for category in WORK_LIST_ORDER)
        headings = (text("Run"), text("Pack"), text("Images"), *words, text("Verdicts"), text("Folder"))
        table = reading_table(headings, [self._cells(found) for found in self._listed], most=_TABLE_HEIGHT)
        table.setFixedHeight(max(_LEAST_HEIGHT, table.minimumHeight()))
        table.setWordWrap(False)
        table.setAccessibleName(text("History of runs"))
        header = table.horizontalHeader()
        for column in range(len(headings) - 1):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        for row, found in enumerate(self._listed):
            for column, tip in ((0, self._state(found)), (len(headings) - 1, ", ".join(found.run.spec.paths))):
                set_item_tip(table.item(row, column), tip)
        table.itemSelectionChanged.connect(self._refresh_buttons)
        table.cellActivated.connect(lambda _row, _column: self._open())
        return table

    def _cells(self, found: RunSummary) -> tuple[str, ...]:
        run = found.run
        return (
            f"{run.run_id}   {moment(self._translator, run.started_s)}",
            pack_of_run(self._translator, run.spec),
            str(found.total),
            *(str(found.counts.get(category, 0)) for category in WORK_LIST_ORDER),
            str(found.judged),
            ", ".join(run.spec.paths),
        )

    def _state(self, found: RunSummary) -> str:
        text = self._translator.text
        states = {
            "running": text("under way"),
            "paused": text("paused"),
            "finished": text("finished"),
            "cancelled": text("stopped before its end"),
            "interrupted": text("interrupted"),
            "failed": text("ended early"),
        }
        return states[found.run.state]

    # ---- what a person does

    def chosen(self) -> list[int]:
        """The numbers of the runs that are marked."""
        rows = {index.row() for index in self.table.selectionModel().selectedRows()}
        return [self._listed[row].run.run_id for row in sorted(rows)]

    def _filter(self) -> None:
        days = int(self.dates.currentData())
        self._runs.filter(
            RunFilter(
                text=self.search.text().strip(),
                since=first_day(days, today=datetime.date.today()),
                verdict=self.verdicts.currentData(),
                backend=self.devices.currentData(),
            )
        )

    def _open(self) -> None:
        chosen = self.chosen()
        if len(chosen) == 1 and self._runs.can_open:
            self._runs.open(chosen[0])

    def _ask(self, plan: DeletionPlan) -> None:
        """Twice: once with what is lost, once more before it is lost."""
        if not self.isVisible():
            return
        translator = self._translator
        count = len(plan.run_ids)
        question = translator.plural("Delete {count} run?", "Delete {count} runs?", count)
        more = " ".join(map(translator.reason, plan_sentences(plan)))
        answers = {translator.text("Delete…"): lambda: self._ask_again(plan)}
        question_box(self, question, more, answers=answers, no=translator.text("Keep")).open()

    def _ask_again(self, plan: DeletionPlan) -> None:
        translator = self._translator
        question = translator.text("Are you sure? This cannot be undone.")
        more = translator.plural(
            "{count} result will be deleted for good.", "{count} results will be deleted for good.", plan.results
        )
        answers = {translator.text("Delete for good"): lambda: self._runs.delete(plan)}
        question_box(self, question, more, answers=answers, no=translator.text("Keep")).open()

    # ---- what is shown

    def _refresh(self) -> None:
        runs, translator = self._runs, self._translator
        if runs.shown != self._listed:
            self._relist(runs.shown)
        if self._compared is not runs.comparison:
            self._show_comparison()
        total = sum(found.total for found in self._listed)
        listed = translator.plural("{count} run", "{count} runs", len(self._listed))
        images = translator.plural("{count} image", "{count} images", total)
        self.count.setText(f"{listed}, {images}")
        self.problem.setText(translator.reason(runs.problem) if runs.problem else "")
        self.problem.setVisible(runs.problem is not None)
        self._refresh_buttons()

    def _relist(self, summaries: tuple[RunSummary, ...]) -> None:
        chosen = self.chosen()
        self._listed = summaries
        before, self.table = self.table, self._make_table()
        self._inside.replaceWidget(before, self.table)
        before.hide()
        before.deleteLater()
        mark = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
        for row, found in enumerate(summaries):
            if found.run.run_id in chosen:
                self.table.selectionModel().select(self.table.model().index(row, 0), mark)

    def _refresh_buttons(self) -> None:
        number, is_free = len(self.chosen()), not self._runs.is_busy
        self.open_button.setEnabled(number == 1 and self._runs.can_open)
        self.compare_button.setEnabled(number == 2 and is_free)
        self.export_button.setEnabled(number == 1)
        self.delete_button.setEnabled(number > 0 and is_free)

    def _show_comparison(self) -> None:
        if self.comparison is not None:
            self.comparison.hide()
            self.comparison.deleteLater()
            self.comparison = None
        self._compared = found = self._runs.comparison
        if found is not None:
            self.comparison = ComparisonView(found, self._translator)
            self.comparison.image_wanted.connect(lambda run_id, row_id: self._runs.open(run_id, row_id=row_id))
            self._column.insertWidget(2, self.comparison)
