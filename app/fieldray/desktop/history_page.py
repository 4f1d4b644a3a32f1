"""The history page: past runs, operations on them, and the comparison of two runs."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Final

from PySide6.QtCore import QItemSelectionModel, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QMenu, QTableWidget, QWidget

from fieldray.desktop.past_runs import PastRuns
from fieldray.desktop.style import Theme, icon
from fieldray.desktop.widgets import (
    Page,
    ask_for_paths,
    ask_for_text,
    card,
    choice_box,
    column_layout,
    make_label,
    push_button,
    question_box,
    read_only_table,
    remove_widgets,
    row_layout,
    search_field,
    set_tooltip,
)
from fieldray.desktop.worklist import CATEGORIES_SHOWN_IF_PRESENT, device_filter_box, verdict_filter_box
from fieldray.domain.finding import WORK_LIST_ORDER
from fieldray.domain.history import DeletionPlan, ResultPair, RunFilter, RunSummary
from fieldray.formatting import category_label, date_and_time_text, format_date, pack_names_of_run, run_state_text
from fieldray.pipeline.history import comparison_blocks, deletion_plan_sentences
from fieldray.reasons import reason
from fieldray.translation import Translator

_MAX_ROWS: Final = 1000
_FIRST_COLUMNS: Final = (0, 1)
_TABLE_HEIGHT: Final = 420
_MIN_HEIGHT: Final = 160
_ANY_TIME: Final = -1
_SEARCH_WIDTH: Final = 260


class HistoryPage(Page):
    """The page of past runs: filters, the table of runs with buttons, and the last comparison of two runs."""

    export_requested = Signal(int)

    def __init__(self, runs: PastRuns, translator: Translator, theme: Theme) -> None:
        title = translator.text("History of runs")
        super().__init__(title, title, translator, theme)
        self._runs = runs
        self._listed: tuple[RunSummary, ...] = ()
        self._compared: object = None
        self._hides_names = translator.hides_names()
        self.count, self.problem = make_label(role="muted"), make_label(role="warning")
        self.table = self._make_table()
        hint = make_label(
            translator.text(
                "To open or save a run, select the run. To compare two runs, select both (Ctrl and click)."
            ),
            role="muted",
        )
        filters, buttons = self._make_filters(), self._make_buttons()
        self._inside = column_layout(None, filters, self.count, self.table, hint, buttons, self.problem, spacing=6)
        self._column.insertWidget(1, card(self._inside))
        self.quality: QWidget | None = None
        self._taken = runs.quality_note_counts_by_day
        self.comparison: QWidget | None = None
        self.refresh_on_signals(runs.changed)
        runs.deletion_planned.connect(self._ask)
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._filter()  # filters by date depend on the current day
        self._runs.refresh()

    # ---- building

    def _make_filters(self) -> QHBoxLayout:
        translator, wanted = self._translator, self._runs.run_filter
        self.search = search_field(translator.text("Search pack or folder"), wanted.text)
        self.search.setMaximumWidth(_SEARCH_WIDTH)
        self.search.textChanged.connect(lambda _: self._filter())
        self.dates = choice_box(
            (  # filter by the day on which a run began: maximum number of days before today
                (translator.text("Any date"), _ANY_TIME),
                (translator.text("Today"), 0),
                (translator.text("Last 7 days"), 6),
                (translator.text("Last 30 days"), 29),
                (translator.text("Last 12 months"), 364),
            ),
            accessible_name=translator.text("Date"),
            selected=(datetime.date.today() - wanted.since).days if wanted.since else _ANY_TIME,
        )
        self.verdicts = verdict_filter_box(translator, wanted.verdict)
        self.devices = device_filter_box(translator, wanted.backend)
        boxes = self.dates, self.verdicts, self.devices
        for box in boxes:
            box.activated.connect(lambda _: self._filter())
        return row_layout(None, (self.search, 100), *boxes, 1)  # the search field shrinks in a narrow window

    def _make_buttons(self) -> QHBoxLayout:
        text = self._translator.text
        self.open_button = push_button(text("Open"), self._open, role="primary")
        self.compare_button = push_button(
            text("Compare two runs"), lambda: self._runs.compare(*self.selected_run_ids())
        )
        self.export_button = push_button(
            text("Save the results…"),
            lambda: self.export_requested.emit(self.selected_run_ids()[0]),
            icon=icon("export", self._theme),
        )
        self.delete_button = push_button(text("Delete…"), lambda: self._runs.plan_deletion(self.selected_run_ids()))
        self.patient_button = push_button(text("Delete the results of a patient…"), self._ask_patient)
        self.month_button = push_button(text("Monthly report"))
        self.month_button.setMenu(self._make_months())
        buttons = self.open_button, self.compare_button, self.export_button, self.month_button
        return row_layout(None, *buttons, 1, self.patient_button, self.delete_button)

    def _make_months(self) -> QMenu:
        """Make the menu with the current and the previous month. The command line exports earlier months."""
        menu, text = QMenu(self), self._translator.text
        for name, back in ((text("Report for this month…"), 0), (text("Report for last month…"), 1)):
            menu.addAction(name).triggered.connect(partial(self._save_month, back))
        return menu

    def _save_month(self, back: int) -> None:
        """Save the report on a month.

        back  0 for the current month, 1 for the previous month
        """
        translator, mode = self._translator, QFileDialog.FileMode.Directory
        first = datetime.date.today().replace(day=1)
        first = (first - datetime.timedelta(days=back)).replace(day=1)
        title = translator.text("Save the report to a folder")
        ask_for_paths(
            self, title, mode, lambda paths: self._runs.save_monthly_report(paths[0], first, translator), translator
        )

    def _make_table(self) -> QTableWidget:
        text = self._translator.text
        classes = (category_label(self._translator, category) for category in WORK_LIST_ORDER)
        cells = [self._cells(found) for found in self._listed]
        headings = (text("Run"), text("Pack"), text("Images"), *classes, text("Verdicts"), text("Folder"))
        table = read_only_table(headings, cells, max_height=_TABLE_HEIGHT)
        table.setFixedHeight(max(_MIN_HEIGHT, table.minimumHeight()))
        table.setWordWrap(False)
        table.setAccessibleName(text("History of runs"))
        for column, category in enumerate(WORK_LIST_ORDER, 3):
            is_there = category not in CATEGORIES_SHOWN_IF_PRESENT or any(
                found.counts.get(category) for found in self._listed
            )
            table.setColumnHidden(column, not is_there)
        for row, found in enumerate(self._listed):
            if (item := table.item(row, 0)) is not None:
                set_tooltip(item, run_state_text(self._translator, found.run))
        table.itemSelectionChanged.connect(self._refresh_buttons)
        table.cellActivated.connect(lambda _row, _column: self._open())
        return table

    def _cells(self, found: RunSummary) -> tuple[str, ...]:
        run = found.run
        return (
            f"{run.run_id}   {date_and_time_text(self._translator, run.started_s)}",
            pack_names_of_run(self._translator, run.spec),
            str(found.image_count),
            *(str(found.counts.get(category, 0)) for category in WORK_LIST_ORDER),
            str(found.verdict_count),
            self._translator.name_unless_hidden(", ".join(run.spec.paths)),
        )

    # ---- commands of a person

    def selected_run_ids(self) -> list[int]:
        """Return the ids of the runs that are selected in the table."""
        rows = {index.row() for index in self.table.selectionModel().selectedRows()}
        return [self._listed[row].run.run_id for row in sorted(rows)]

    def _filter(self) -> None:
        days, today = int(self.dates.currentData()), datetime.date.today()
        self._runs.change_filter(
            RunFilter(
                text=self.search.text().strip(),
                since=None if days == _ANY_TIME else today - datetime.timedelta(days=days),
                verdict=self.verdicts.currentData(),
                backend=self.devices.currentData(),
            )
        )

    def _open(self) -> None:
        chosen = self.selected_run_ids()
        if len(chosen) == 1 and self._runs.can_begin:
            self._runs.open(chosen[0])

    def _ask_patient(self) -> None:
        """Ask for the complete Patient ID of the patient whose images a person wants to delete."""
        text = self._translator.text
        ask_for_text(
            self,
            text("Delete the results of a patient"),
            text("Patient ID, as written in the image files:"),
            self._runs.plan_patient_deletion,
        )

    def _ask(self, plan: DeletionPlan) -> None:
        """Ask a person to confirm a deletion twice: with the list of results to delete, and again before deleting."""
        if not self.isVisible():
            return
        translator = self._translator
        count = len(plan.run_ids)
        question = translator.plural("Delete {count} run?", "Delete {count} runs?", count)
        if plan.patient_id:
            question = translator.text(
                "Delete all results of the patient with the ID {number}?", number=plan.patient_id
            )
        more = " ".join(map(translator.reason, deletion_plan_sentences(plan)))
        answers = {translator.text("Delete…"): lambda: self._ask_again(plan)}
        question_box(self, question, more, answers=answers, decline_text=translator.text("Do not delete")).open()

    def _ask_again(self, plan: DeletionPlan) -> None:
        translator = self._translator
        question = translator.text("Are you sure? The deletion cannot be undone.")
        more = translator.plural(
            "{count} result will be deleted for good.", "{count} results will be deleted for good.", plan.result_count
        )
        answers = {translator.text("Delete for good"): lambda: self._runs.delete(plan)}
        question_box(self, question, more, answers=answers, decline_text=translator.text("Do not delete")).open()

    # ---- display

    def refresh(self) -> None:
        """Show the past runs and the last comparison of two runs, without patients' names while names are hidden."""
        runs, translator = self._runs, self._translator
        are_other_names, self._hides_names = self._hides_names != translator.hides_names(), translator.hides_names()
        if are_other_names or runs.filtered_runs != self._listed:
            self._relist(runs.filtered_runs)
        if self._taken is not runs.quality_note_counts_by_day:
            self._show_quality()
        if are_other_names or self._compared is not runs.comparison:
            self._show_comparison()
        total = sum(found.image_count for found in self._listed)
        listed = translator.plural("{count} run", "{count} runs", len(self._listed))
        images = translator.plural("{count} image", "{count} images", total)
        self.count.setText(f"{listed}, {images}")
        self.problem.setText(translator.reason(runs.problem) if runs.problem else "")
        self.problem.setVisible(runs.problem is not None)
        self._refresh_buttons()

    def _relist(self, summaries: tuple[RunSummary, ...]) -> None:
        chosen = self.selected_run_ids()
        self._listed = summaries
        before, self.table = self.table, self._make_table()
        self._inside.replaceWidget(before, self.table)
        remove_widgets(before)
        mark = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
        for row, found in enumerate(summaries):
            if found.run.run_id in chosen:
                self.table.selectionModel().select(self.table.model().index(row, 0), mark)

    def _show_quality(self) -> None:
        """Show the image quality of each day, for the person who takes the X-rays.

        Hidden if no image has a note on quality.
        """
        translator, self._taken = self._translator, self._runs.quality_note_counts_by_day
        remove_widgets(self.quality)
        self.quality = None
        rows = [
            (format_date(translator, datetime.date.fromisoformat(day)), translator.reason(reason(code)), number)
            for day, of in self._taken.items()
            for code, number in ((code, f"{of[code]} / {of['images']}") for code in sorted(of.keys() - {"images"}))
        ]
        if rows:
            title = translator.text("Image quality, by day")
            headings = translator.text("Day"), translator.text("Note"), translator.text("Images")
            table = read_only_table(headings, rows)
            table.setAccessibleName(title)
            self.quality = card(make_label(title, role="title"), table)
            self._column.insertWidget(2, self.quality)

    def _refresh_buttons(self) -> None:
        number, is_idle = len(self.selected_run_ids()), not self._runs.is_busy
        self.open_button.setEnabled(number == 1 and self._runs.can_begin)
        self.compare_button.setEnabled(number == 2 and is_idle)
        self.export_button.setEnabled(number == 1)
        self.delete_button.setEnabled(number > 0 and is_idle)
        self.patient_button.setEnabled(bool(self._listed) and is_idle)

    def _show_comparison(self) -> None:
        """Show the comparison of two runs image by image. A double click on an image opens its run."""
        remove_widgets(self.comparison)
        self.comparison, text = None, self._translator.text
        self._compared = found = self._runs.comparison
        if found is None:
            return
        pairs = found.pairs[:_MAX_ROWS]
        said, moves, changes = comparison_blocks(found, self._translator, pairs=pairs)
        parts: list[QWidget] = [make_label(said.title, role="title"), *map(make_label, said.sentences)]
        if pairs:
            tables = [read_only_table(table.columns, table.rows) for table in (moves, changes)]
            for table in tables:
                table.setAccessibleName(said.title)
            tables[1].cellActivated.connect(lambda row, column: self._open_side(pairs[row], column))
            parts += [tables[0], make_label(text("To see an image, double-click the row."), role="muted"), tables[1]]
        if len(found.pairs) > _MAX_ROWS:
            most = text(
                "The first {count} images are shown. To list all images, run: fieldray history compare {first} "
                "{second}",
                count=_MAX_ROWS,
                first=found.first.run_id,
                second=found.second.run_id,
            )
            parts.append(make_label(most, role="muted"))
        self.comparison = card(*parts)
        self._column.insertWidget(2, self.comparison)

    def _open_side(self, pair: ResultPair, column: int) -> None:
        result = pair.first if column in _FIRST_COLUMNS else pair.second
        self._runs.open(result.run_id, row_id=result.row_id)
