"""The audit page: a form for the source of the labels, the results of the audit, and buttons to save them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QPolygonF, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QSizePolicy,
    QTableWidget,
    QVBoxLayout,
    QWidget,
)

from fieldray.audit.report import AuditReport, ProposalGoal, ScreeningPrices
from fieldray.desktop.dialogs import DIALOG_MARGINS, dialog_buttons, form_layout
from fieldray.desktop.past_runs import AuditController
from fieldray.desktop.style import Theme, colour, icon
from fieldray.desktop.widgets import (
    TEXT_FIELD_MARGIN,
    Page,
    ask_for_paths,
    card,
    choice_box,
    column_layout,
    make_label,
    number_box,
    push_button,
    read_only_table,
    remove_widgets,
    row_layout,
    without_markup,
)
from fieldray.domain.run import PackOfRun, Run
from fieldray.formatting import date_and_time_text, format_number, pack_label
from fieldray.pipeline.auditing import AuditRequest
from fieldray.reports.audit import AuditText
from fieldray.reports.document import Block, BulletList, Paragraph, ShareChart, Table
from fieldray.translation import Translator

_PLAN_HEIGHT: Final = 600
_FIELD_WIDTH: Final = 328  # wide enough for the longest hint in both languages


class AuditPage(Page):
    """The page of audits: a form for a new audit; figures, charts and disagreements of the last audit."""

    image_requested = Signal(int)

    def __init__(self, auditing: AuditController, translator: Translator, theme: Theme) -> None:
        title = translator.text("Audit: how good is the pack on the images of this run?")
        super().__init__(translator.text("Audit"), title, translator, theme)
        self._auditing = auditing
        self._table: Path | None = None
        self.problem = make_label()
        self._column.insertWidget(1, self._make_form())
        self._column.insertWidget(2, self.problem)
        self._result: QWidget | None = None
        self._shown: tuple[AuditReport | None, bool] = None, False
        self.refresh_on_signals(auditing.changed)
        self.refresh()

    # ---- the form

    def _make_form(self) -> QWidget:
        text = self._translator.text
        why = text(
            "An audit compares the results of this run with the known findings of the images. Nothing leaves this "
            "computer. The pack is not changed."
        )
        kinds = {
            "folders": text("Folder names"),
            "table": text("A table (CSV)"),
            "verdicts": text("My verdicts"),
        }
        choices = [(caption, kind) for kind, caption in kinds.items()]
        self.labels = choice_box(choices, accessible_name=text("Source of the reference labels"))
        self.labels.activated.connect(lambda _: self.refresh())
        units = (
            (text("Patients (if the patient ID is known)"), None),
            (text("Patients"), "patient"),
            (text("Examinations"), "exam"),
            (text("Images"), "image"),
        )
        rules = (
            (text("Read first, or a score at or above the threshold"), "above"),
            (text("Read first, or an uncertain or higher score"), "unsure"),
        )
        self.unit = choice_box(units, accessible_name=text("Count images, examinations or patients"))
        self.refers = choice_box(rules, accessible_name=text("Images that count as referred"))
        self.table_button = push_button(text("Choose the table…"), self._choose_table)
        self.positive, self.prevalence, self.sensitivity = QLineEdit(), QLineEdit(), number_box(50, 100, 90)
        self.prices, self.against = (QLineEdit(), QLineEdit(), QLineEdit()), choice_box(())
        self.positive.setPlaceholderText(text("automatic: labels such as abnormal, positive, 1"))
        self.prevalence.setPlaceholderText(text("the prevalence among these images"))
        self.sensitivity.lineEdit().setTextMargins(TEXT_FIELD_MARGIN, 0, 0, 0)
        fields = self.positive, self.unit, self.refers, self.prevalence, self.sensitivity, *self.prices, self.against
        for field in fields:
            field.setFixedWidth(_FIELD_WIDTH)
        rows = form_layout(
            (text("Source of the reference labels"), row_layout(None, self.labels, self.table_button, 1)),
            (text("Label that means “with the condition”"), self.positive),
            (text("Count images, examinations or patients"), self.unit),
            (text("Images that count as referred"), self.refers),
            (text("Prevalence among your patients, %"), self.prevalence),
            (text("Target sensitivity, %"), self.sensitivity),
            (text("Cost of one screening"), self.prices[0]),
            (text("Cost of the confirmatory test, per referral"), self.prices[1]),
            (text("Cost of a second reading, per uncertain result"), self.prices[2]),
            (text("Compare with another run"), self.against),
        )
        self.button = push_button(text("Audit"), self._audit, role="primary")
        return card(make_label(why, role="muted"), rows, row_layout(None, self.button, 1))

    def _choose_table(self) -> None:
        title = self._translator.text("Choose the table with the labels")
        mode, translator = QFileDialog.FileMode.ExistingFile, self._translator
        ask_for_paths(self, title, mode, lambda paths: self.select_label_table(*paths), translator)

    def select_label_table(self, path: Path) -> None:
        """Select a CSV file as the source of the reference labels in the form."""
        self._table = path
        self.labels.setCurrentIndex(self.labels.findData("table"))
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._auditing.list_comparable_runs()

    def _audit(self, threshold: float | None = None) -> None:
        choice, prevalence = self.labels.currentData(), _number(self.prevalence.text())
        against: str | None = self.against.currentData()
        prices = [_number(field.text()) for field in self.prices]
        if choice == "table" and self._table is None:
            return
        screening, test, unsure = (price or 0.0 for price in prices)
        self._auditing.start_audit(
            AuditRequest(
                label_source=self._table if choice == "table" and self._table else choice,
                positive_classes=tuple(name.strip() for name in self.positive.text().split(",") if name.strip()),
                prevalence=None if prevalence is None else prevalence / 100,
                counted_unit=self.unit.currentData(),
                referral_rule=self.refers.currentData(),
                goal=ProposalGoal(sensitivity=self.sensitivity.value() / 100, threshold=threshold),
                prices=None
                if not any(prices)
                else ScreeningPrices(screening_price=screening, test_price=test, second_reading_price=unsure),
                compared_pack=PackOfRun.parse(against) if against else None,
            )
        )

    # ---- results

    def refresh(self) -> None:
        """Update the form, and show the last audit report. While names are hidden, no patient is named."""
        auditing, is_table = self._auditing, self.labels.currentData() == "table"
        self.table_button.setVisible(is_table)
        if self._table is not None:
            self.table_button.setText(self._translator.name_unless_hidden(self._table.name))
        self._offer(auditing.comparable_runs)
        self.button.setEnabled(auditing.can_audit and not (is_table and self._table is None))
        text = ""
        if auditing.problem is not None:
            text = self._translator.reason(auditing.problem)
        elif auditing.is_busy:
            text = self._translator.text("Calculating the figures…")
        elif not auditing.can_audit:
            text = self._translator.text(
                "An audit needs a finished run. Screen images, or open a run from the history."
            )
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        before, self._shown = self._shown, (auditing.report, self._translator.hides_names())
        if any(now is not was for now, was in zip(self._shown, before, strict=True)):
            self._show_report()
        if self._result is not None:
            self.take_button.setEnabled(auditing.can_store_operating_point)

    def _offer(self, others: Sequence[Run]) -> None:
        """List the runs with which the visible run can be compared. The selected run stays selected.

        others  the runs to list
        """
        text, chosen = self._translator, self.against.currentData()
        self.against.clear()
        self.against.addItem(text.text("no comparison"), None)
        for run in others:
            began = date_and_time_text(text, run.started_s).rpartition(" ")[0]
            for position, pack in enumerate(run.spec.packs):
                of = PackOfRun(run.run_id, position)
                if of != self._auditing.audited_pack:
                    self.against.addItem(without_markup(f"{of}: {pack_label(text, pack)}, {began}"), str(of))
        self.against.setCurrentIndex(max(self.against.findData(chosen), 0))

    def _show_report(self) -> None:
        remove_widgets(self._result)
        self._result = None
        report = self._auditing.report
        if report is not None:
            self._result = self._make_result(AuditText(report, self._translator))
            self._column.insertWidget(3, self._result)

    def _make_result(self, audit: AuditText) -> QWidget:
        page = QWidget()
        figures = row_layout(None, (self._make_figures(audit), 1), self._make_charts(audit), spacing=24)
        found = card(make_label(audit.title, role="title"), figures, self._make_buttons(audit.report))
        sentences = card(
            *map(make_label, (*audit.notes(), *audit.drift_sentences(), audit.operating_point_proposal_text()))
        )
        others = [
            card(*_shown(blocks)) for blocks in (audit.subgroup_blocks(), audit.pack_comparison_blocks()) if blocks
        ]
        parts = [found, sentences, self._make_planning(audit), *others]
        column_layout(page, *parts, self._make_disagreements(audit), spacing=12)
        return page

    def _make_planning(self, audit: AuditText) -> QWidget:
        blocks, plan = audit.threshold_plan_blocks(), audit.report.threshold_plan
        if plan is None:
            return card(*_shown(blocks))
        how = self._translator.text(
            "Double-click a threshold, or select a threshold and press Enter. The threshold plan then uses this "
            "threshold, and proposes this threshold as the local operating point."
        )
        *_, workload = audit.charts()
        chart = AuditChart(
            workload, alt_text=workload.chart_and_axis_titles[0], translator=self._translator, theme=self._theme
        )
        said = column_layout(None, *_shown((*blocks[:1], Paragraph(how))), 1)
        tables = _shown(blocks[1:])
        self.steps = next(part for part in tables if isinstance(part, QTableWidget))
        self.steps.cellActivated.connect(lambda row, _: self._audit(plan.shown_thresholds[row]))
        return card(row_layout(None, (said, 1), chart, spacing=24), *tables)

    def _make_figures(self, audit: AuditText) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(18)
        grid.setVerticalSpacing(4)
        intervals = self._translator.text("95 % confidence intervals, calculated by patient")
        how = f"{audit.counting_rule_text()} {intervals}."
        grid.addWidget(make_label(how, role="muted"), 0, 0, 1, 3)
        rows = audit.figure_rows()
        for index, figure in enumerate(rows, 1):
            is_heading = not figure.value
            grid.addWidget(make_label(figure.name, role="heading" if is_heading else ""), index, 0)
            grid.addWidget(make_label(figure.counts, role="muted"), index, 1)
            grid.addWidget(make_label(figure.value), index, 2)
        grid.setRowStretch(grid.rowCount(), 1)
        for column, stretch in ((0, 4), (2, 3)):
            grid.setColumnStretch(column, stretch)
        return grid

    def _make_charts(self, audit: AuditText) -> QVBoxLayout:
        chart = partial(AuditChart, translator=self._translator, theme=self._theme)
        curve, calibration, *_ = audit.charts()
        self.curve = chart(curve, alt_text=audit.format_auc(audit.report.audit.auc))
        self.calibration = chart(calibration, alt_text=audit.calibration_row().value)
        return column_layout(None, self.curve, self.calibration, 1)

    def _make_buttons(self, report: AuditReport) -> QHBoxLayout:
        text, export = self._translator.text, icon("export", self._theme)
        self.save_button = push_button(text("Save the report…"), partial(self._save, report), icon=export)
        self.take_button = push_button(text("Use as local operating point…"), partial(self._offer_local_point, report))
        return row_layout(None, self.save_button, self.take_button, 1)

    def _make_disagreements(self, audit: AuditText) -> QWidget:
        found, cases = audit.misclassified_table(), audit.report.audit.misclassified
        heading = make_label(found.title, role="heading")
        if not cases:
            return card(heading)
        how = self._translator.text("To see an image, double-click the row or select the row and press Enter.")
        names = [self._translator.name_unless_hidden(Path(case.image_key).name, row_id=case.row_id) for case in cases]
        rows = [(*row[:2], row[4], name) for row, name in zip(found.rows, names, strict=True)]
        self.disagreements = read_only_table([found.columns[column] for column in (0, 1, 4, 3)], rows)
        self.disagreements.setAccessibleName(found.title)
        self.disagreements.cellActivated.connect(lambda row, _: self.image_requested.emit(cases[row].row_id))
        return card(heading, make_label(how, role="muted"), self.disagreements)

    # ---- saving

    def _save(self, report: AuditReport) -> None:
        title, translator = self._translator.text("Save the report to a folder"), self._translator
        save, mode = (
            partial(self._auditing.save_report, report, language=translator.language),
            QFileDialog.FileMode.Directory,
        )
        ask_for_paths(self, title, mode, lambda paths: save(paths[0]), translator)

    def _offer_local_point(self, report: AuditReport) -> None:
        dialog = LocalOperatingPointDialog(
            AuditText(report, self._translator).operating_point_proposal_text(), self._translator, self
        )
        dialog.accepted.connect(
            lambda: self._auditing.store_operating_point(dialog.name.text().strip(), dialog.person.text().strip())
        )
        dialog.open()


def _number(text: str) -> float | None:
    """Parse a number, with or without a percent sign.

    Returns None for an empty text, and nan for any other invalid text.
    """
    if not text.strip():
        return None
    try:
        return float(text.strip().rstrip("%").replace(",", "."))
    except ValueError:
        return float("nan")


def _shown(blocks: Sequence[Block]) -> list[QWidget]:
    """Make widgets from the parts of a report: titles, sentences and tables."""
    parts: list[QWidget] = []
    for block in blocks:
        if isinstance(block, Paragraph):
            parts.append(make_label(block.text, role="muted"))
            continue
        if block.title:
            parts.append(make_label(block.title, role="heading"))
        if isinstance(block, BulletList):
            parts += map(make_label, block.sentences)
        elif isinstance(block, Table):
            table = read_only_table(block.columns, block.rows, max_height=_PLAN_HEIGHT)
            table.setAccessibleName(block.title)
            table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
            table.horizontalHeader().setMinimumSectionSize(-1)  # undo the common width of all headings
            table.setFixedHeight(table.maximumHeight() + table.horizontalScrollBar().sizeHint().height())
            parts.append(table)
    return parts


class LocalOperatingPointDialog(QDialog):
    """The dialog in which a person confirms a local operating point.

    The person must enter a name for the operating point, and the person's own name.
    """

    def __init__(self, proposal: str, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        text = translator.text
        self.setMinimumWidth(520)
        title = text("Use a local operating point?")
        self.setWindowTitle(title)
        advice = text(
            "A local operating point is measured on the images of this run alone. This local operating point is kept "
            "on this computer, for this version of the pack only. Every result shows that the operating point is "
            "local. The operating points of the pack are kept."
        )
        self.name, self.person = QLineEdit(), QLineEdit()
        self.name.setPlaceholderText(text("for example: our-clinic"))
        for field in (self.name, self.person):
            field.textChanged.connect(self._check)
        fields = form_layout(
            (text("Name of the operating point (a–z, 0–9, -)"), self.name), (text("Your name"), self.person)
        )
        self.yes_button = push_button(text("Yes, use this operating point"))
        self.no_button = push_button(text("Do not use"))
        buttons = dialog_buttons(self, self.no_button, self.yes_button)
        parts = (make_label(title, role="title"), make_label(proposal), make_label(advice), fields, buttons)
        column_layout(self, *parts, margins=DIALOG_MARGINS, spacing=12)
        self._check()

    def _check(self) -> None:
        self.yes_button.setEnabled(bool(self.name.text().strip() and self.person.text().strip()))


# ---- A chart whose two axes go from 0 to 1: a line, or points with their intervals, over the diagonal.

_SIDE: Final = 210
_TICKS: Final = (0.0, 0.5, 1.0)
_DOT: Final = 4.0


class AuditChart(QWidget):
    """A widget that draws one chart of an audit report. `alt_text` describes the chart for screen readers."""

    def __init__(self, chart: ShareChart, *, alt_text: str, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._chart, self._translator, self._theme = chart, translator, theme
        self.setAccessibleName(without_markup(chart.chart_and_axis_titles[0]))
        self.setAccessibleDescription(without_markup(alt_text))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        height = self.fontMetrics().height()
        return QSize(_SIDE + 4 * height, _SIDE + 4 * height)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        height = self.fontMetrics().height()
        box = QRectF(3 * height, 1.5 * height, _SIDE, _SIDE)
        self._draw_axes(painter, box, height)
        painter.setPen(QPen(colour(self._theme, "accent"), 2))
        painter.drawPolyline(QPolygonF([_at(box, x, y) for x, y in self._chart.line]))
        for x, y, low, high in self._chart.marks_with_intervals:
            painter.drawLine(_at(box, x, low), _at(box, x, high))
            painter.setBrush(colour(self._theme, "accent"))
            painter.drawEllipse(_at(box, x, y), _DOT, _DOT)
        painter.end()

    def _draw_axes(self, painter: QPainter, box: QRectF, height: int) -> None:
        title, x_title, y_title = map(without_markup, self._chart.chart_and_axis_titles)
        painter.setPen(colour(self._theme, "text"))
        painter.drawText(QRectF(0, 0, self.width(), 1.4 * height), Qt.AlignmentFlag.AlignLeft, title)
        painter.setPen(QPen(colour(self._theme, "line"), 1))
        painter.drawRect(box)
        painter.drawLine(_at(box, 0, 0), _at(box, 1, 1))
        painter.setPen(colour(self._theme, "muted"))
        for tick in _TICKS:
            text = format_number(self._translator, tick, digits=1)
            corner = _at(box, tick, tick)
            below = QRectF(corner.x() - 20, box.bottom() + 2, 40, height)
            painter.drawText(below, Qt.AlignmentFlag.AlignHCenter, text)
            left = QRectF(box.left() - 44, corner.y() - height / 2, 40, height)
            painter.drawText(left, Qt.AlignmentFlag.AlignRight, text)
        under = QRectF(box.left(), box.bottom() + height, box.width(), 1.4 * height)
        painter.drawText(under, Qt.AlignmentFlag.AlignHCenter, x_title)
        painter.save()
        painter.translate(0, box.bottom())
        painter.rotate(-90)
        painter.drawText(QRectF(0, 0, box.height(), 1.4 * height), Qt.AlignmentFlag.AlignHCenter, y_title)
        painter.restore()


def _at(box: QRectF, x: float, y: float) -> QPointF:
    return QPointF(box.left() + x * box.width(), box.bottom() - y * box.height())
