"""The page of the audit: where the labels are, what came out, and what to do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFileDialog,
    QFormLayout,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from fieldray.desktop.auditing import Auditing
from fieldray.desktop.icons import icon
from fieldray.desktop.local_point_dialog import LocalPointDialog
from fieldray.desktop.reading_table import MARGIN, reading_table
from fieldray.desktop.style import Theme
from fieldray.desktop.unit_chart import UnitChart
from fieldray.desktop.widgets import PlainLabel, card, choice_box, label, name_surface, number_box, push_button
from fieldray.pipeline.auditing import AuditRequest
from fieldray.reports.audit_words import AuditWords
from fieldray.translation import Translator

_FIELD_WIDTH: Final = 340  # the longest hint is read whole in both languages


class AuditPage(QScrollArea):
    """The form above; below it the figures, the charts and the disagreements of the last audit."""

    left = Signal()
    image_wanted = Signal(int)

    def __init__(self, auditing: Auditing, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setAccessibleName(translator.text("Audit"))
        self._auditing, self._translator = auditing, translator
        self._theme: Theme = theme
        self._table: Path | None = None
        page = QWidget()
        name_surface(page, "page")
        self._column = QVBoxLayout(page)
        self._column.setContentsMargins(24, 16, 24, 24)
        self._column.setSpacing(12)
        self._column.addLayout(self._make_top())
        self._column.addWidget(self._make_form())
        self.problem = label()
        self._column.addWidget(self.problem)
        self._result: QWidget | None = None
        self._shown: object = None
        self._column.addStretch(1)
        self.setWidget(page)
        auditing.changed.connect(self._refresh)
        self._refresh()

    # ---- the form

    def _make_top(self) -> QHBoxLayout:
        back = push_button(self._translator.text("Back to the images"), picture=icon("back", self._theme))
        back.clicked.connect(self.left)
        row = QHBoxLayout()
        row.addWidget(back)
        row.addWidget(label(self._translator.text("Audit: how good is the pack on these images?"), role="title"), 1)
        return row

    def _make_form(self) -> QWidget:
        text = self._translator.text
        frame, column = card()
        why = text(
            "Compares the results of this run with what is known of its images. Nothing leaves this computer, and the "
            "pack stays as it is."
        )
        column.addWidget(label(why, role="muted"))
        self.labels = choice_box(
            (
                (text("Names of the folders"), "folders"),
                (text("A table (CSV)"), "table"),
                (text("My verdicts"), "verdicts"),
            )
        )
        self.labels.activated.connect(lambda _: self._refresh())
        self.table_button = push_button(text("Choose the table…"))
        self.table_button.clicked.connect(self._choose_table)
        self.positive, self.prevalence, self.sensitivity = QLineEdit(), QLineEdit(), number_box(50, 100, 90)
        self.positive.setPlaceholderText(text("recognised by itself: abnormal, positive, 1…"))
        self.prevalence.setPlaceholderText(text("as in these images"))
        self.sensitivity.lineEdit().setTextMargins(MARGIN, 0, 0, 0)
        form = QFormLayout()
        form.setSpacing(10)
        labels = QHBoxLayout()
        labels.addWidget(self.labels)
        labels.addWidget(self.table_button)
        labels.addStretch(1)
        form.addRow(PlainLabel(text("Where the labels are")), labels)
        for caption, field in (
            (text("Which label means positive"), self.positive),
            (text("Prevalence among your patients, %"), self.prevalence),
            (text("Wanted sensitivity, %"), self.sensitivity),
        ):
            field.setAccessibleName(caption)
            field.setFixedWidth(_FIELD_WIDTH)
            form.addRow(PlainLabel(caption), field)
        self.labels.setAccessibleName(text("Where the labels are"))
        column.addLayout(form)
        self.button = push_button(text("Audit"), role="primary")
        self.button.clicked.connect(self._audit)
        column.addWidget(self.button, 0, Qt.AlignmentFlag.AlignLeft)
        return frame

    def _choose_table(self) -> None:
        dialog = QFileDialog(self, self._translator.text("Choose the table with the labels"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda path: self.use_table(Path(path)))
        dialog.open()

    def use_table(self, path: Path) -> None:
        """Take the labels from this file."""
        self._table = path
        self.labels.setCurrentIndex(self.labels.findData("table"))
        self.table_button.setText(path.name)
        self._refresh()

    def _audit(self) -> None:
        choice = self.labels.currentData()
        prevalence = _share(self.prevalence.text())
        if choice == "table" and self._table is None:
            return
        self._auditing.audit(
            AuditRequest(
                labels=self._table if choice == "table" and self._table else choice,
                positive=tuple(name.strip() for name in self.positive.text().split(",") if name.strip()),
                prevalence=prevalence,
                sensitivity=self.sensitivity.value() / 100,
            )
        )

    # ---- what came out

    def _refresh(self) -> None:
        auditing, is_table = self._auditing, self.labels.currentData() == "table"
        self.table_button.setVisible(is_table)
        self.button.setEnabled(auditing.can_audit and not (is_table and self._table is None))
        text = ""
        if auditing.problem is not None:
            text = self._translator.reason(auditing.problem)
        elif auditing.is_busy:
            text = self._translator.text("Working out the figures…")
        elif not auditing.can_audit:
            text = self._translator.text("Screen images first: an audit is of the run that is open and finished.")
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        if self._shown is not auditing.report:
            self._show_report()
        if self._result is not None:
            self.take_button.setEnabled(auditing.can_take)

    def _show_report(self) -> None:
        if self._result is not None:
            self._result.hide()
            self._result.deleteLater()
            self._result = None
        self._shown = report = self._auditing.report
        if report is not None:
            self._result = self._make_result(AuditWords(report, self._translator))
            self._column.insertWidget(3, self._result)

    def _make_result(self, words: AuditWords) -> QWidget:
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(12)
        frame, inside = card()
        inside.addWidget(label(words.title, role="title"))
        row = QHBoxLayout()
        row.setSpacing(24)
        row.addLayout(self._make_figures(words), 1)
        row.addLayout(self._make_charts(words))
        inside.addLayout(row)
        inside.addLayout(self._make_buttons())
        column.addWidget(frame)
        column.addWidget(self._make_sentences(words))
        column.addWidget(self._make_disagreements(words))
        return page

    def _make_figures(self, words: AuditWords) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(18)
        grid.setVerticalSpacing(4)
        grid.addWidget(label(self._translator.text("95 % intervals, by patient"), role="muted"), 0, 0, 1, 3)
        rows = words.figures()
        for place, figure in enumerate(rows, 1):
            is_heading = not figure.value
            grid.addWidget(label(figure.what, role="heading" if is_heading else ""), place, 0)
            grid.addWidget(label(figure.counts, role="muted"), place, 1)
            grid.addWidget(label(figure.value), place, 2)
        below = len(rows) + 1
        for place, group in enumerate(words.groups(), below + 1):
            grid.addWidget(label(group[0]), place, 0)
            grid.addWidget(label(group[1], role="muted"), place, 1)
            grid.addWidget(label(f"{words.group_headings()[2]} {group[2]}"), place, 2)
        grid.setRowStretch(grid.rowCount(), 1)
        for column, stretch in ((0, 4), (2, 3)):
            grid.setColumnStretch(column, stretch)
        return grid

    def _make_charts(self, words: AuditWords) -> QVBoxLayout:
        text, found = self._translator.text, words.report.audit
        self.curve = UnitChart(
            (text("ROC curve"), text("1 – specificity"), text("Sensitivity")), self._translator, self._theme
        )
        self.curve.show_data(line=found.curve, spoken=words.area(found.area))
        self.calibration = UnitChart(
            (text("Calibration"), text("Mean score"), text("Share of positives")), self._translator, self._theme
        )
        marks = [
            (part.mean_score, part.positives.value, part.positives.low, part.positives.high) for part in found.bins
        ]
        self.calibration.show_data(marks=marks, spoken=words.figures()[-1].value)
        column = QVBoxLayout()
        column.addWidget(self.curve)
        column.addWidget(self.calibration)
        column.addStretch(1)
        return column

    def _make_buttons(self) -> QHBoxLayout:
        self.save_button = push_button(self._translator.text("Save the report…"), picture=icon("export", self._theme))
        self.save_button.clicked.connect(self._save)
        self.take_button = push_button(self._translator.text("Use as local operating point…"))
        self.take_button.clicked.connect(self._take)
        row = QHBoxLayout()
        row.addWidget(self.save_button)
        row.addWidget(self.take_button)
        row.addStretch(1)
        return row

    def _make_sentences(self, words: AuditWords) -> QWidget:
        frame, column = card()
        for sentence in (*words.notes(), *words.drifts(), words.proposal()):
            column.addWidget(label(sentence))
        return frame

    def _make_disagreements(self, words: AuditWords) -> QWidget:
        frame, column = card()
        column.addWidget(label(words.count_of_disagreements(), role="heading"))
        found = words.disagreements()
        if not found:
            return frame
        column.addWidget(
            label(self._translator.text("Double-click a row, or press Enter on it, to see its image."), role="muted")
        )
        self.disagreements = reading_table(
            words.disagreement_headings(), [(*case[2:5], Path(case.image).name) for case in found]
        )
        self.disagreements.setAccessibleName(words.count_of_disagreements())
        rows = [case.row_id for case in found]
        self.disagreements.cellActivated.connect(lambda row, _: self.image_wanted.emit(rows[row]))
        column.addWidget(self.disagreements)
        return frame

    # ---- what is done with it

    def _save(self) -> None:
        dialog = QFileDialog(self, self._translator.text("Save the report to a folder"))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(lambda path: self._auditing.save(Path(path), self._translator.language))
        dialog.open()

    def _take(self) -> None:
        report = self._auditing.report
        if report is None:
            return
        dialog = LocalPointDialog(AuditWords(report, self._translator).proposal(), self._translator, self)
        dialog.accepted.connect(lambda: self._auditing.take(dialog.name.text().strip(), dialog.person.text().strip()))
        dialog.open()


def _share(percent: str) -> float | None:
    """A share from a number in per cent, None for an empty field. What is no number is no prevalence either."""
    if not percent.strip():
        return None
    try:
        return float(percent.strip().rstrip("%").replace(",", ".")) / 100
    except ValueError:
        return float("nan")
