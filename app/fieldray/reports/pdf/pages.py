"""The PDF documents of a run, of its studies and of an audit, and what stands where on their A4 pages."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from PIL import Image

from fieldray.domain.finding import Outcome
from fieldray.domain.image import ShownImage
from fieldray.domain.run import StoredResult
from fieldray.formatting import number, research_only
from fieldray.reasons import Reason
from fieldray.reports.audit import AuditText
from fieldray.reports.document import Field, FindingText, ImageText, ShareChart, cut
from fieldray.reports.exporter import StoredRun
from fieldray.reports.images import has_map, image_as_shown, legend, safe_name
from fieldray.reports.pdf.document import ACCENT, COLOURS, MARGIN, MUTED, TEXT, WIDTH, Colour, Column, Document
from fieldray.reports.pdf.fonts import Fonts
from fieldray.reports.wording import Wording

_IMAGE_SIDE: Final = 1100  # pixels over 112 mm: 250 per inch


def run_document(stored: StoredRun) -> bytes:
    """The whole run. Texts are collected first: they decide which fonts are needed."""
    wording = Wording(stored)
    table, run, title = wording.table(), wording.run(), wording.translator.text("Results of a screening run")
    with Fonts() as fonts:
        document = _document(fonts, [*texts_of(run), *texts_of(table)], wording, stored, title=title)
        document.heading(title, tag="H1", size=17)
        document.add(run)
        if table.rows:
            document.add_page()
            document.add((table,))
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
        taken = set[str]()
        for study in results.values():
            name = _free_name(wording.study_name(study[0].outcome.ref), taken)
            yield f"{name}.pdf", _study(list(itertools.islice(images, len(study))), fonts, wording, stored)


def _free_name(parts: tuple[str, str], taken: set[str]) -> str:
    """A file's name without its suffix from a person and a day, with a number where another study has it."""
    name = first = " ".join(filter(None, (safe_name(parts[0]), parts[1])))
    number = 1
    while name.casefold() in taken:
        number += 1
        name = f"{first} ({number})"
    taken.add(name.casefold())
    return name


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
        "pack": text("The pack"),
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


@dataclass(frozen=True, eq=False, slots=True)
class Illustration:
    """An image as it was shown, and whether there are colours over it that need a legend; its ends: weak, strong."""

    image: Image.Image
    has_colours: bool
    ends: tuple[str, str]


def image_page(document: Document, text: ImageText, illustration: Illustration | None) -> None:
    """A page of one image: itself to the left, what the pack says to the right. What is known is added below."""
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


_SIDE: Final = 66.0  # mm
_DOT: Final = 0.9
_FRAME: Final[Colour] = (160, 168, 175)
_TICKS: Final = (0.0, 0.5, 1.0)


def audit_pdf(audit: AuditText) -> bytes:
    """The document of an audit. Texts are collected first: they decide which fonts are needed."""
    title, before, after = cut(audit.title), audit.before_charts(), audit.after_charts()
    with Fonts() as fonts:
        document = AuditDocument(
            fonts,
            list(texts_of((before, after))),
            title=title,
            notice=research_only(audit.translator),
            language=audit.translator.language,
            made=datetime.datetime.fromtimestamp(audit.report.subject.made_s, datetime.UTC),
        )
        document.heading(title, tag="H1", size=17)
        document.add(before)
        document.charts(audit.charts(), tuple(number(audit.translator, tick, digits=1) for tick in _TICKS))
        document.add(after)
        return document.finished()


class AuditDocument(Document):
    """A document that can draw charts, as lines and not as images."""

    def charts(self, charts: Sequence[ShareChart], ticks: Sequence[str]) -> None:
        """Side by side, each an element with a spoken text."""
        self._room(_SIDE + 24)
        self.ln(3)
        top = self.y
        for place, chart in enumerate(charts):
            left = MARGIN + 14 + place * (WIDTH / 2 + 2)
            spoken = ". ".join((chart.titles[0], *(f"{x:.2f} {y:.2f}" for x, y, *_ in chart.marks)))
            with self._tagged("Figure", spoken=spoken):
                self._chart(chart, left, top + 6, ticks)
        self.set_y(top + _SIDE + 20)

    def _chart(self, chart: ShareChart, left: float, top: float, ticks: Sequence[str]) -> None:
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

    def _axes(self, chart: ShareChart, left: float, top: float, ticks: Sequence[str]) -> None:
        self.set_draw_color(*_FRAME)
        self.set_line_width(0.2)
        self.rect(left, top, _SIDE, _SIDE)
        self.line(left, top + _SIDE, left + _SIDE, top)
        self._label(chart.titles[0], left, top - 6, _SIDE, style="B", colour=TEXT)
        for place, text in zip(_TICKS, ticks, strict=True):
            self._label(text, left + place * _SIDE - 5, top + _SIDE + 0.5, 10)
            self._label(text, left - 9, top + (1 - place) * _SIDE - 2, 10)
        self._label(chart.titles[1], left, top + _SIDE + 4.5, _SIDE)
        with self.rotation(90, x=left - 13, y=top + _SIDE):
            self._label(chart.titles[2], left - 13, top + _SIDE, _SIDE)

    def _label(
        self, text: str, left: float, top: float, width: float, *, style: str = "", colour: Colour = MUTED
    ) -> None:
        self._set(style, 8, colour)
        self.set_xy(left, top)
        self.cell(width, 4, text, align="C")
