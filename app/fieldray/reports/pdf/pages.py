"""What stands where: the pages of a run, and those of an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from PIL import Image

from fieldray.domain.finding import Category
from fieldray.reports.document import Field, FindingText, ImageText, RunText
from fieldray.reports.pdf.document import ACCENT, COLOURS, MARGIN, MUTED, WIDTH, Column, Document
from fieldray.reports.picture import legend

_PICTURE_WIDTH: Final = 98.0
_PICTURE_HEIGHT: Final = 112.0
_PICTURE: Final = Column(MARGIN, _PICTURE_WIDTH)
_BESIDE: Final = Column(MARGIN + _PICTURE_WIDTH + 6, WIDTH - _PICTURE_WIDTH - 6)
_TABLE: Final = (10.0, 30.0, 19.0, 43.0, 44.0, 14.0, 18.0)


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a value made of data classes and sequences."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from texts_of(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from texts_of(part)


def run_pages(document: Document, run: RunText, labels: dict[str, str]) -> None:
    """The first page of a run's document. `labels`: headings, by what follows them."""
    document.heading(run.title, tag="H1", size=17)
    document.paragraph(run.notice, style="B", size=9.5, colour=ACCENT)
    document.ln(1)
    document.fields(run.run)
    document.heading(labels["counts"])
    for category, word, count in run.counts:
        document.paragraph(f"{word}: {count}", style="B", size=10, colour=COLOURS[category])
    for remark in run.remarks:
        document.paragraph(remark, size=8.5)
    document.heading(labels["pack"])
    document.fields(run.pack)
    for point in run.points:
        _point(document, point)
    document.heading(labels["provenance"])
    document.fields(run.provenance)


def _point(document: Document, point: FindingText) -> None:
    document.ln(1)
    document.paragraph(f"{point.meaning}. {point.point}", style="B", size=9)
    for line in (point.measured, *point.classes):
        document.paragraph(line, size=8.5)


def table_pages(
    document: Document, title: str, headings: Sequence[str], rows: Sequence[tuple[Category, Sequence[str]]]
) -> None:
    """The list of all images."""
    document.heading(title)
    document.begin_table(headings, _TABLE)
    for category, row in rows:
        document.table_row(row, category=category)


@dataclass(frozen=True, eq=False, slots=True)
class Illustration:
    """The picture of an image, and whether there are colours over it that need a legend; its ends: weak, strong."""

    picture: Image.Image
    has_colours: bool
    ends: tuple[str, str]


def image_page(document: Document, text: ImageText, illustration: Illustration | None) -> None:
    """An image: the picture to the left, what the pack says to the right. What is known is added below."""
    document.heading(text.person or text.title, tag="H1", size=14)
    document.rule()
    top, page = document.y, document.page
    below = _picture(document, text, illustration, top)
    document.set_y(top)
    document.paragraph(text.word, tag="H2", style="B", size=16, colour=COLOURS[text.category], column=_BESIDE)
    if text.why:
        document.paragraph(text.why, size=9, column=_BESIDE)
    for finding in text.findings:
        _finding(document, finding)
    for remark in text.remarks:
        document.ln(1)
        document.paragraph(remark, size=9, column=_BESIDE)
    _fields(document, text.verdict)
    if document.page == page:
        document.set_y(max(below, document.y) + 2)
    document.rule()


def _picture(document: Document, text: ImageText, illustration: Illustration | None, top: float) -> float:
    """The picture with its caption; where it ends."""
    below = top
    if illustration is not None:
        below += document.picture(
            illustration.picture, spoken=text.spoken, left=MARGIN, top=top, width=_PICTURE_WIDTH, height=_PICTURE_HEIGHT
        )
    document.set_y(below + 1.5)
    if illustration is not None and illustration.has_colours:
        _legend(document, illustration.ends)
    document.paragraph(text.caption, column=_PICTURE, size=7.5, colour=MUTED)
    return document.y


def _legend(document: Document, ends: tuple[str, str]) -> None:
    top = document.y
    document.picture(legend(240, 16), spoken="", left=MARGIN + 18, top=top + 0.6, width=36, height=2.4)
    document.paragraph(ends[0], column=Column(MARGIN, 17), size=7.5)
    document.set_y(top)
    document.paragraph(ends[1], column=Column(MARGIN + 56, 30), size=7.5)


def _finding(document: Document, finding: FindingText) -> None:
    document.ln(1)
    document.paragraph(finding.meaning, style="B", size=10, column=_BESIDE)
    document.paragraph(finding.score, style="B", size=13, column=_BESIDE)
    document.scale(finding.scale, column=_BESIDE)
    document.paragraph(finding.sentence, size=9, column=_BESIDE)
    if finding.point:
        document.paragraph(finding.point, style="B", size=8.5, column=_BESIDE)
        for line in (finding.measured, *finding.classes):
            document.paragraph(line, size=8, colour=MUTED, column=_BESIDE)


def _fields(document: Document, lines: Sequence[Field]) -> None:
    if lines:
        document.ln(2)
        document.fields(lines, column=_BESIDE, label=26)
