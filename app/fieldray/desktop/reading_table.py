"""A table of plain texts: the disagreements of an audit, past runs, the images of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from fieldray.desktop.widgets import plain

MARGIN: Final = 8
_HEIGHT: Final = 260


def reading_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, most: int = _HEIGHT) -> QTableWidget:
    """A table to read, with rows to activate; at most `most` points high. The last column takes the room there is."""
    table = QTableWidget(len(rows), len(headings))
    table.setHorizontalHeaderLabels([plain(heading) for heading in headings])
    for place, row in enumerate(rows):
        for column, text in enumerate(row):
            table.setItem(place, column, QTableWidgetItem(plain(text)))
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setTabKeyNavigation(False)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    header = table.horizontalHeader()
    header.setSectionResizeMode(len(headings) - 1, QHeaderView.ResizeMode.Stretch)
    header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    rows_height = sum(table.rowHeight(place) for place in range(len(rows)))
    table.setFixedHeight(min(rows_height + header.sizeHint().height() + MARGIN, most))
    return table
