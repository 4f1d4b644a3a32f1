"""The PDF documents of a run and of its studies, and what stands where on their pages."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from PIL import Image

from fieldray.domain.finding import Category, Outcome
from fieldray.domain.image import ShownImage
from fieldray.domain.run import StoredResult
from fieldray.reasons import Reason
from fieldray.reports.document import Field, FindingText, ImageText, RunText
from fieldray.reports.exporter import StoredRun
from fieldray.reports.images import has_map, image_as_shown, legend
from fieldray.reports.pdf.document import ACCENT, COLOURS, MARGIN, MUTED, WIDTH, Column, Document
from fieldray.reports.pdf.fonts import Fonts
from fieldray.reports.wording import Wording

_IMAGE_SIDE: Final = 1100  # pixels over 112 mm: 250 per inch


def run_document(stored: StoredRun) -> bytes:
    """The whole run. Texts are collected first: they decide which fonts are needed."""
    wording = Wording(stored)
    rows: list[tuple[Category, tuple[str, ...]]] = [
        (result.outcome.category, wording.row(number, result)) for number, result in enumerate(stored.results, 1)
    ]
    run, table, labels = wording.run(), wording.table(), _labels(wording)
    with Fonts() as fonts:
        texts = [*texts_of(run), *texts_of(table), *texts_of(rows), *labels.values()]
        document = _document(fonts, texts, wording, stored, title=run.title)
        run_pages(document, run, labels)
        if rows:
            document.add_page()
            table_pages(document, table.title, table.headings, rows)
        return document.finished()


def study_documents(stored: StoredRun) -> Iterator[tuple[str, bytes]]:
    """A name and a document for each study, in the order of their first images in the work list.

    A file that is no image is of no study.
    """
    wording = Wording(stored)
    results: dict[str, list[StoredResult]] = {}
    for result in stored.results:
        if result.outcome.category != "not_an_image":
            results.setdefault(result.outcome.ref.study_key, []).append(result)
    together = itertools.chain.from_iterable(results.values())
    with Fonts() as fonts:
        for study in results.values():
            fonts.foresee(texts_of([wording.image(result) for result in study]))
        images = stored.read_images(together, _IMAGE_SIDE)
        for number, study in enumerate(results.values(), 1):
            yield f"{number:05}.pdf", _study(list(itertools.islice(images, len(study))), fonts, wording, stored)


def _study(
    images: list[tuple[StoredResult, ShownImage | Reason]], fonts: Fonts, wording: Wording, stored: StoredRun
) -> bytes:
    texts = [wording.image(result, problem=_problem(image)) for result, image in images]
    about = (*wording.pack(), *wording.run_fields(), *wording.provenance())
    labels = _labels(wording)
    title = wording.study_title(images[0][0].outcome.ref)
    letters = [*texts_of(texts), *texts_of(about), *labels.values(), *wording.legend]
    document = _document(fonts, letters, wording, stored, title=title)
    for place, (text, (result, image)) in enumerate(zip(texts, images, strict=True)):
        if place:
            document.add_page()
        image_page(document, text, _illustration(result, image, wording, stored))
        document.heading(labels["image"])
        document.fields((*text.patient, *text.image))
        if text.priors:
            document.heading(labels["prior"])
            document.fields(text.priors)
        _about(document, about, labels)
    return document.finished()


def _illustration(
    result: StoredResult, image: ShownImage | Reason, wording: Wording, stored: StoredRun
) -> Illustration | None:
    outcome = result.outcome
    shown = (stored.read_preview(result) or _thumbnail(outcome)) if isinstance(image, Reason) else image
    if shown is None:
        return None
    return Illustration(
        image_as_shown(outcome, shown, stored.manifest), has_map(outcome, stored.manifest), wording.legend
    )


def _about(document: Document, about: tuple[Field, ...], labels: dict[str, str]) -> None:
    document.heading(labels["pack"])
    document.fields(about)


def _thumbnail(outcome: Outcome) -> ShownImage | None:
    """The smallest image that is kept with a result, where there is no preview either."""
    facts = outcome.facts
    if facts.thumbnail is None or not facts.rows:
        return None
    return ShownImage(pixels=facts.thumbnail, rows=facts.rows, columns=facts.columns)


def _problem(image: ShownImage | Reason) -> Reason | None:
    return image if isinstance(image, Reason) else None


def _labels(wording: Wording) -> dict[str, str]:
    text = wording.translator.text
    return {
        "counts": text("What came out"),
        "pack": text("The pack"),
        "provenance": text("What it was made with"),
        "image": text("Patient and image"),
        "prior": text("Compared with a prior image"),
    }


def _document(fonts: Fonts, texts: list[str], wording: Wording, stored: StoredRun, *, title: str) -> Document:
    made = datetime.datetime.fromtimestamp(stored.run.ended_s or stored.run.started_s, datetime.UTC)
    return Document(fonts, texts, title=title, notice=wording.notice, language=wording.language, made=made)


_IMAGE_WIDTH: Final = 98.0
_IMAGE_HEIGHT: Final = 112.0
_IMAGE: Final = Column(MARGIN, _IMAGE_WIDTH)
_BESIDE: Final = Column(MARGIN + _IMAGE_WIDTH + 6, WIDTH - _IMAGE_WIDTH - 6)
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
    """An image as it was shown, and whether there are colours over it that need a legend; its ends: weak, strong."""

    image: Image.Image
    has_colours: bool
    ends: tuple[str, str]


def image_page(document: Document, text: ImageText, illustration: Illustration | None) -> None:
    """An image: the image to the left, what the pack says to the right. What is known is added below."""
    document.heading(text.person or text.title, tag="H1", size=14)
    document.rule()
    top, page = document.y, document.page
    below = _figure(document, text, illustration, top)
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


def _figure(document: Document, text: ImageText, illustration: Illustration | None, top: float) -> float:
    """The image with its caption; where it ends."""
    below = top
    if illustration is not None:
        below += document.figure(
            illustration.image, spoken=text.spoken, left=MARGIN, top=top, width=_IMAGE_WIDTH, height=_IMAGE_HEIGHT
        )
    document.set_y(below + 1.5)
    if illustration is not None and illustration.has_colours:
        _legend(document, illustration.ends)
    document.paragraph(text.caption, column=_IMAGE, size=7.5, colour=MUTED)
    return document.y


def _legend(document: Document, ends: tuple[str, str]) -> None:
    top = document.y
    document.figure(legend(240, 16), spoken="", left=MARGIN + 18, top=top + 0.6, width=36, height=2.4)
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
