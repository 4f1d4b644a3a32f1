"""An audit as a PDF document: figures, curves, groups, disagreements and notes, on A4 pages."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Final

from fieldray.audit.figures import Audit
from fieldray.formatting import number, research_only
from fieldray.reports.audit_words import AuditWords
from fieldray.reports.document import Field, cut, cut_path
from fieldray.reports.pdf.document import ACCENT, MARGIN, MUTED, TEXT, WIDTH, Colour, Document
from fieldray.reports.pdf.fonts import Fonts
from fieldray.translation import Translator

_SIDE: Final = 66.0  # mm
_DOT: Final = 0.9
_FRAME: Final[Colour] = (160, 168, 175)
_FIGURES: Final = (98.0, 30.0, 50.0)
_GROUPS: Final = (54.0, 18.0, 38.0, 34.0, 34.0)
_DISAGREEMENTS: Final = (24.0, 18.0, 12.0, 100.0, 24.0)
_TICKS: Final = (0.0, 0.5, 1.0)

_MOST_OF_A_PATH: Final = 240
_MOST_OF_A_CELL: Final = 120
_MOST_OF_A_SENTENCE: Final = 1200

Mark = tuple[float, float, float, float]  # x, y, and the ends of y's interval


def audit_document(words: AuditWords, translator: Translator) -> bytes:
    """The whole document. Texts are collected first: they decide which fonts are needed."""
    made = datetime.datetime.fromtimestamp(words.report.subject.made_s, datetime.UTC)
    with Fonts() as fonts:
        document = AuditDocument(
            fonts,
            list(_texts(words)),
            title=cut(words.title),
            notice=research_only(translator),
            language=translator.language,
            made=made,
        )
        _first_page(document, words, translator)
        _charts(document, words.report.audit, translator)
        _groups(document, words, translator)
        _disagreements(document, words)
        return document.finished()


def _texts(words: AuditWords) -> Iterator[str]:
    yield cut(words.title)
    for _, text in words.facts():
        yield cut(text)
    for row in words.groups():
        yield from map(_cell, row)
    for case in words.disagreements():
        yield cut_path(case.image, most=_MOST_OF_A_PATH)
    for sentence in (*words.notes(), *words.drifts(), words.proposal()):
        yield cut(sentence, most=_MOST_OF_A_SENTENCE)
    for figure in words.figures():
        yield cut(figure.what)


def _cell(text: str) -> str:
    return cut(text, most=_MOST_OF_A_CELL)


def _first_page(document: AuditDocument, words: AuditWords, translator: Translator) -> None:
    document.heading(cut(words.title), tag="H1", size=17)
    document.paragraph(research_only(translator), style="B", size=9.5, colour=ACCENT)
    document.ln(1)
    document.fields([Field(label, cut(text)) for label, text in words.facts()])
    document.heading(translator.text("Figures, with 95 % intervals by patient"))
    document.begin_table(
        (translator.text("Figure"), translator.text("Images"), translator.text("Value (95 % interval)")), _FIGURES
    )
    for figure in words.figures():
        document.table_row(tuple(map(_cell, figure)), category="not_assessed")
    document.heading(translator.text("What to bear in mind"))
    for sentence in (*words.notes(), *words.drifts(), words.proposal()):
        document.paragraph(cut(sentence, most=_MOST_OF_A_SENTENCE))
        document.ln(0.8)


def _charts(document: AuditDocument, found: Audit, translator: Translator) -> None:
    text = translator.text
    marks = [(part.mean_score, part.positives.value, part.positives.low, part.positives.high) for part in found.bins]
    document.charts(
        (
            Chart((text("ROC curve"), text("1 – specificity"), text("Sensitivity")), line=found.curve),
            Chart((text("Calibration"), text("Mean score"), text("Share of positives")), marks=marks),
        ),
        tuple(number(translator, tick, digits=1) for tick in _TICKS),
    )


def _groups(document: AuditDocument, words: AuditWords, translator: Translator) -> None:
    if rows := words.groups():
        document.heading(translator.text("Groups with 20 images of each kind or more"))
        document.begin_table(words.group_headings(), _GROUPS)
        for row in rows:
            document.table_row(tuple(map(_cell, row)), category="not_assessed")


def _disagreements(document: AuditDocument, words: AuditWords) -> None:
    document.heading(words.count_of_disagreements())
    found = words.disagreements()
    if not found:
        return
    reference, answer, score, image = words.disagreement_headings()
    document.begin_table((reference, score, "", image, answer), _DISAGREEMENTS)
    for case in found:
        cells = (case.reference, case.score, "", cut_path(case.image, most=_MOST_OF_A_PATH), case.answer)
        document.table_row(cells, category=case.category)


class Chart:
    """Two axes from 0 to 1 with a line, or with points and their intervals.

    titles  of the chart, the x axis and the y axis
    """

    def __init__(
        self,
        titles: tuple[str, str, str],
        *,
        line: Sequence[tuple[float, float]] = (),
        marks: Sequence[Mark] = (),
    ) -> None:
        self.titles, self.line, self.marks = titles, line, marks


class AuditDocument(Document):
    """A document that can draw charts, as lines and not as images."""

    def charts(self, charts: Sequence[Chart], ticks: Sequence[str]) -> None:
        """Side by side, each an element with a spoken text."""
        self._room(_SIDE + 24)
        self.ln(3)
        top = self.y
        for place, chart in enumerate(charts):
            left = MARGIN + 14 + place * (WIDTH / 2 + 2)
            spoken = ". ".join((chart.titles[0], *(f"{x:.2f} {y:.2f}" for x, y, *_ in (chart.marks or ()))))
            with self._tagged("Figure", spoken=spoken):
                self._chart(chart, left, top + 6, ticks)
        self.set_y(top + _SIDE + 20)

    def _chart(self, chart: Chart, left: float, top: float, ticks: Sequence[str]) -> None:
        def at(x: float, y: float) -> tuple[float, float]:
            return left + x * _SIDE, top + (1 - y) * _SIDE

        self._axes(chart, left, top, ticks)
        self.set_draw_color(*ACCENT)
        self.set_fill_color(*ACCENT)
        self.set_line_width(0.5)
        if chart.line:
            self.polyline([at(x, y) for x, y in chart.line])
        for x, y, low, high in chart.marks:
            self.line(*at(x, low), *at(x, high))
            self.circle(*at(x, y), _DOT, style="F")

    def _axes(self, chart: Chart, left: float, top: float, ticks: Sequence[str]) -> None:
        self.set_draw_color(*_FRAME)
        self.set_line_width(0.2)
        self.rect(left, top, _SIDE, _SIDE)
        self.line(left, top + _SIDE, left + _SIDE, top)
        self._words(chart.titles[0], left, top - 6, _SIDE, style="B", colour=TEXT)
        for place, text in zip(_TICKS, ticks, strict=True):
            self._words(text, left + place * _SIDE - 5, top + _SIDE + 0.5, 10)
            self._words(text, left - 9, top + (1 - place) * _SIDE - 2, 10)
        self._words(chart.titles[1], left, top + _SIDE + 4.5, _SIDE)
        with self.rotation(90, x=left - 13, y=top + _SIDE):
            self._words(chart.titles[2], left - 13, top + _SIDE, _SIDE)

    def _words(
        self, text: str, left: float, top: float, width: float, *, style: str = "", colour: Colour = MUTED
    ) -> None:
        self._set(style, 8, colour)
        self.set_xy(left, top)
        self.cell(width, 4, text, align="C")
