"""How two runs differ: how many images went from which class to which, and the images themselves."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHeaderView, QVBoxLayout, QWidget

from fieldray.desktop.reading_table import reading_table
from fieldray.desktop.widgets import PlainLabel, card, label
from fieldray.domain.history import Comparison, ResultBrief, ResultPair
from fieldray.domain.model import Manifest
from fieldray.domain.run import Run
from fieldray.formatting import category_word, moment, number, pack_of_run, score_text
from fieldray.reasons import reason
from fieldray.translation import Translator

_MOST_ROWS: Final = 1000
_FIRST_COLUMNS: Final = (0, 1)


class ComparisonView(QWidget):
    """One comparison; a double click on an image opens the run on whose side it was."""

    image_wanted = Signal(int, int)  # number of the run, row

    def __init__(self, comparison: Comparison, translator: Translator) -> None:
        super().__init__()
        self._found, self._translator = comparison, translator
        frame, inside = card()
        self._add_words(inside)
        self._pairs = comparison.pairs[:_MOST_ROWS]
        if self._pairs:
            self._add_table(inside)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(frame)

    def _add_words(self, inside: QVBoxLayout) -> None:
        translator, found = self._translator, self._found
        inside.addWidget(label(translator.text("Two runs compared"), role="title"))
        inside.addWidget(label(self._name(found.first), self._name(found.second)))
        both = translator.plural("{count} image is in both runs.", "{count} images are in both runs.", len(found.pairs))
        changed = translator.plural(
            "{count} of them is in another class.", "{count} of them are in another class.", found.changed
        )
        inside.addWidget(label(f"{both} {changed}", role="heading"))
        inside.addWidget(self._moves())
        if not found.is_same_label:
            inside.addWidget(label(translator.reason(reason("history_other_label")), role="warning"))
        for run, only in ((found.first, found.only_first), (found.second, found.only_second)):
            if only:
                alone = translator.plural(
                    "{count} image is only in run {run}.",
                    "{count} images are only in run {run}.",
                    len(only),
                    run=run.run_id,
                )
                inside.addWidget(label(alone, role="muted"))

    def _name(self, run: Run) -> str:
        when = moment(self._translator, run.started_s)
        return self._translator.text(
            "Run {number} of {day}: {pack}", number=run.run_id, day=when, pack=pack_of_run(self._translator, run.spec)
        )

    def _moves(self) -> QFrame:
        """Counts of changes, the most frequent first; what stayed is below."""
        frame = QFrame()
        grid = QGridLayout(frame)
        grid.setContentsMargins(0, 0, 0, 0)
        moves = sorted(self._found.moves.items(), key=lambda move: (move[0][0] == move[0][1], -move[1]))
        for row, ((before, after), count) in enumerate(moves):
            words = " → ".join(
                category_word(self._translator, category, pack)
                for category, pack in zip((before, after), self._found.manifests, strict=True)
            )
            line = PlainLabel(words)
            line.setProperty("role", "muted" if before == after else "")
            grid.addWidget(line, row, 0)
            grid.addWidget(PlainLabel(str(count)), row, 1)
        grid.setColumnStretch(2, 1)
        return frame

    def _add_table(self, inside: QVBoxLayout) -> None:
        text, found = self._translator.text, self._found
        first, second = (text("Run {number}", number=run.run_id) for run in (found.first, found.second))
        score = text("Score")
        headings = (
            first,
            f"{score} ({found.first.run_id})",
            second,
            f"{score} ({found.second.run_id})",
            text("Change"),
        )
        self.table = reading_table((*headings, text("Image")), [self._cells(pair) for pair in self._pairs])
        header = self.table.horizontalHeader()
        for column in range(len(headings)):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self.table.setAccessibleName(text("Two runs compared"))
        self.table.cellActivated.connect(self._open)
        inside.addWidget(label(text("Double-click a row to see its image."), role="muted"))
        inside.addWidget(self.table)
        if len(found.pairs) > _MOST_ROWS:
            most = self._translator.text(
                "The first {count} are shown. fieldray history compare lists all.", count=_MOST_ROWS
            )
            inside.addWidget(label(most, role="muted"))

    def _cells(self, pair: ResultPair) -> tuple[str, ...]:
        difference = pair.difference
        shown = "–" if difference is None else f"{'+' if difference >= 0 else '−'}{self._number(abs(difference))}"
        first, second = self._found.manifests
        sides = (*self._side(pair.first, first), *self._side(pair.second, second))
        return (*sides, shown, pair.first.image)

    def _side(self, found: ResultBrief, pack: Manifest | None) -> tuple[str, str]:
        score = "–" if found.score is None else score_text(self._translator, found.score, found.point)
        return category_word(self._translator, found.category, pack), score

    def _number(self, value: float) -> str:
        return number(self._translator, value, digits=2)

    def _open(self, row: int, column: int) -> None:
        pair, found = self._pairs[row], self._found
        is_first = column in _FIRST_COLUMNS
        run, result = (found.first, pair.first) if is_first else (found.second, pair.second)
        self.image_wanted.emit(run.run_id, result.row_id)
