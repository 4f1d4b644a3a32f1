"""The PDF documents of a run, of its studies and of an audit: the layout of their A4 pages."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from PIL import Image

from fieldray.domain.finding import Outcome, lungs_of
from fieldray.domain.image import ShownImage
from fieldray.domain.run import StoredResult
from fieldray.formatting import format_number
from fieldray.reasons import Reason
from fieldray.reports.audit import AuditText
from fieldray.reports.document import Block, FindingText, ImageText, ShareChart, shorten
from fieldray.reports.exporter import StoredRun
from fieldray.reports.images import has_heat_map, heat_map_legend, image_as_shown, safe_file_name
from fieldray.reports.pdf_document import (
    ACCENT_COLOUR,
    CATEGORY_COLOURS,
    MARGIN_MM,
    MUTED_COLOUR,
    TEXT_COLOUR,
    TEXT_WIDTH_MM,
    Colour,
    Column,
    Document,
)
from fieldray.reports.wording import Wording
from fieldray.translation import Translator

_IMAGE_SIDE: Final = 800  # pixels over 74 mm: 270 per inch


def pdf_of_run(stored: StoredRun) -> bytes:
    """Return the PDF document of a whole run."""
    wording = Wording(stored)
    table, title = wording.results_table(), wording.translator.text("Results of a screening run")
    made_s = stored.run.ended_s or stored.run.started_s
    document = Document(title, wording.translator, made_s=made_s, running=title)
    document.add_heading(title, tag="H1", size_pt=17)
    document.add_blocks(wording.run_blocks())
    document.draw_signature_line(wording.signature)  # on the page of the summary, so that it is clear what is signed
    if table.rows:
        document.add_page()
        document.add_blocks((table,))
    return document.to_pdf_bytes()


def pdf_of_month(title: str, blocks: Sequence[Block], first_day: datetime.date, translator: Translator) -> bytes:
    """Return the PDF document of the report on a month.

    first_day  the first day of the month
    """
    began = datetime.datetime.combine(first_day, datetime.time(), datetime.UTC)
    document = Document(title, translator, made_s=began.timestamp())
    document.add_heading(title, tag="H1", size_pt=17)
    document.add_blocks(blocks)
    return document.to_pdf_bytes()


def pdfs_of_studies(stored: StoredRun) -> Iterator[tuple[str, bytes]]:
    """Yield a file name and a PDF document for each study of a run, in the order of the studies in the work list.

    A file that is no image belongs to no study.
    """
    wording = Wording(stored)
    results: dict[str, list[StoredResult]] = {}
    for result in stored.results:
        if result.outcome.category != "not_an_image":
            results.setdefault(result.outcome.ref.patient_study_key, []).append(result)
    all_results = itertools.chain.from_iterable(results.values())
    images = stored.read_images(all_results, _IMAGE_SIDE)
    taken = set[str]()
    for study in results.values():
        name = _free_name(wording.study_patient_and_day(study[0].outcome.ref), taken)
        yield f"{name}.pdf", _study(list(itertools.islice(images, len(study))), wording, stored)


def _free_name(parts: tuple[str, str], taken: set[str]) -> str:
    """Return an unused file name without suffix, made of person and day. If the name is taken, a number is added.

    parts  person and day
    taken  names in use, to which the new name is added
    """
    name = first = " ".join(filter(None, (safe_file_name(parts[0]), parts[1])))
    number = 1
    while name.casefold() in taken:
        number += 1
        name = f"{first} ({number})"
    taken.add(name.casefold())
    return name


def _study(images: list[tuple[StoredResult, ShownImage | Reason]], wording: Wording, stored: StoredRun) -> bytes:
    title, run = wording.study_title(images[0][0].outcome.ref), stored.run
    who = wording.study_patient_line(images[0][0].outcome.ref)
    running = " · ".join(part for part in (who, title) if part)
    document = Document(title, wording.translator, made_s=run.ended_s or run.started_s, running=running)
    for index, (result, image) in enumerate(images):
        if index:
            document.add_page()
        one, of = wording.for_result(result), stored.for_result(result)
        text = one.image_text(result, problem=image if isinstance(image, Reason) else None)
        ends = wording.legend if has_heat_map(result.outcome, of.manifest) else None
        draw_image_page(document, text, _as_shown(result, image, of), ends)
        if text.prior_fields:
            document.add_heading(wording.translator.text("Compared with a prior image"))
            document.add_fields(text.prior_fields)
        if result is images[-1][0]:
            document.draw_signature_line(wording.signature)  # next to the result that is signed
        document.draw_separator()
        pack, made = (*one.pack_fields(), *one.run_fields()), (*text.image_fields, *one.provenance_fields())
        document.draw_side_by_side(
            partial(document.add_fields, pack, column=_LEFT, label_width_mm=22, size_pt=_SMALL),
            partial(document.add_fields, made, column=_RIGHT, label_width_mm=22, size_pt=_SMALL),
        )
    return document.to_pdf_bytes()


def _as_shown(result: StoredResult, image: ShownImage | Reason, stored: StoredRun) -> list[Image.Image]:
    """Return the image without overlay, and the image as displayed. Empty if no image is available.

    image  the grey image, or the reason why the file cannot be read; then the stored preview or thumbnail is used
    """
    outcome = result.outcome
    shown = (stored.read_preview(result) or _thumbnail(outcome)) if isinstance(image, Reason) else image
    if shown is None:
        return []
    clean = [Image.fromarray(shown.pixels)] if has_heat_map(outcome, stored.manifest) or lungs_of(outcome) else []
    return [*clean, image_as_shown(outcome, shown, stored.manifest)]


def _thumbnail(outcome: Outcome) -> ShownImage | None:
    """Return the thumbnail stored with a result; None if no thumbnail is stored."""
    facts = outcome.facts
    if facts.thumbnail is None or not facts.rows:
        return None
    return ShownImage(pixels=facts.thumbnail, file_rows=facts.rows, file_columns=facts.columns)


_IMAGE_WIDTH: Final = 64.0  # mm, if two images are side by side
_IMAGE_HEIGHT: Final = 74.0
_GAP: Final = 5.0
_HALF: Final = (TEXT_WIDTH_MM - _GAP) / 2
_LEFT: Final = Column(MARGIN_MM, _HALF)
_RIGHT: Final = Column(MARGIN_MM + _HALF + _GAP, _HALF)
_SMALL: Final = 7.0  # points


def draw_image_page(
    document: Document, text: ImageText, images: Sequence[Image.Image], legend_labels: tuple[str, str] | None
) -> None:
    """Draw the page of one image: the image with and without overlay, the result next to it, and explanations below.

    legend_labels  texts at the two ends of the colour legend, weak and strong; None without a heat map
    """
    document.add_heading(text.patient or text.title, tag="H1", size_pt=14)
    document.draw_separator()
    left = Column(MARGIN_MM, 2 * _IMAGE_WIDTH + 1 if len(images) > 1 else _HALF)
    right = Column(MARGIN_MM + left.width_mm + _GAP, TEXT_WIDTH_MM - left.width_mm - _GAP)
    document.draw_side_by_side(
        partial(_figures, document, text, images, legend_labels, column=left),
        partial(_result, document, text, column=right),
    )
    document.ln(2)
    document.draw_side_by_side(partial(_known, document, text), partial(_points, document, text.findings))


def _figures(
    document: Document, text: ImageText, images: Sequence[Image.Image], ends: tuple[str, str] | None, *, column: Column
) -> None:
    """Draw the images side by side, with legend and caption.

    ends  texts at the two ends of the colour legend; None without a heat map
    """
    top = below = document.y
    for index, image in enumerate(images):
        alt_text = text.alt_text if image is images[-1] else text.title
        width = column.width_mm / len(images)
        left = MARGIN_MM + index * width
        high = document.draw_figure(image, alt_text=alt_text, left=left, top=top, width=width - 1, height=_IMAGE_HEIGHT)
        below = max(below, top + high)
    document.set_y(below + 1.5)
    if images and ends:
        _legend(document, ends)
    document.add_paragraph(text.caption, column=column, size_pt=7.5, colour=MUTED_COLOUR)


def _result(document: Document, text: ImageText, *, column: Column) -> None:
    document.add_paragraph(
        text.class_name, tag="H2", style="B", size_pt=14, colour=CATEGORY_COLOURS[text.category], column=column
    )
    if text.read_first_reason:
        document.add_paragraph(text.read_first_reason, size_pt=9, column=column)
    for finding in text.findings:
        document.ln(1)
        document.add_paragraph(finding.summary, size_pt=9, column=column)
        document.ln(2)
        document.draw_scale(finding.scale, column=column)
    given, *_ = text.verdict_fields
    document.ln(1)
    document.add_paragraph(f"{given.label}: {given.text}", style="B", size_pt=9, column=column)
    if not text.findings:
        _remarks(document, text, column=column)


def _known(document: Document, text: ImageText) -> None:
    document.add_fields((*text.patient_fields, *text.verdict_fields[1:]), column=_LEFT, label_width_mm=28)
    if text.findings:
        _remarks(document, text, column=_LEFT)


def _remarks(document: Document, text: ImageText, *, column: Column) -> None:
    for remark in text.remarks:
        document.ln(1)
        document.add_paragraph(remark, size_pt=8.5, column=column)


def _points(document: Document, findings: Sequence[FindingText]) -> None:
    """Draw the measured performance at the operating point of each finding."""
    for finding in findings:
        if len(findings) > 1:
            document.add_paragraph(finding.label_meaning, style="B", size_pt=8.5, column=_RIGHT)
        if finding.operating_point_sentence:
            document.add_paragraph(finding.operating_point_sentence, style="B", size_pt=8.5, column=_RIGHT)
            document.add_paragraph(finding.performance_sentence, size_pt=_SMALL, colour=MUTED_COLOUR, column=_RIGHT)
        if finding.performance:
            document.draw_performance(finding.performance, column=_RIGHT)


def _legend(document: Document, ends: tuple[str, str]) -> None:
    top = document.y
    document.draw_figure(
        heat_map_legend(240, 16), alt_text="", left=MARGIN_MM + 18, top=top + 0.6, width=36, height=2.4
    )
    document.add_paragraph(ends[0], column=Column(MARGIN_MM, 17), size_pt=7.5)
    document.set_y(top)
    document.add_paragraph(ends[1], column=Column(MARGIN_MM + 56, 30), size_pt=7.5)


_SIDE: Final = 66.0  # mm
_DOT: Final = 0.9
_FRAME: Final[Colour] = (160, 168, 175)
_TICKS: Final = (0.0, 0.5, 1.0)


def pdf_of_audit(audit: AuditText) -> bytes:
    """Return the PDF document of an audit."""
    title = shorten(audit.title)
    document = AuditDocument(title, audit.translator, made_s=audit.report.subject.audited_s)
    document.add_heading(title, tag="H1", size_pt=17)
    document.add_blocks(audit.blocks_before_charts())
    charts, ticks = audit.charts(), tuple(format_number(audit.translator, tick, digits=1) for tick in _TICKS)
    document.draw_charts(charts[:2], ticks)
    if charts[2:]:
        document.draw_charts(charts[2:], ticks)
    document.add_blocks(audit.blocks_after_charts())
    return document.to_pdf_bytes()


class AuditDocument(Document):
    """A PDF document that can also draw charts. Charts are drawn as lines, not as images."""

    def draw_charts(self, charts: Sequence[ShareChart], ticks: Sequence[str]) -> None:
        """Draw charts side by side, each with a description for screen readers.

        ticks  the texts at 0, 0.5 and 1 on both axes, in the document's language
        """
        self._room(_SIDE + 24)
        self.ln(3)
        top = self.y
        for index, chart in enumerate(charts):
            left = MARGIN_MM + 14 + index * (TEXT_WIDTH_MM / 2 + 2)
            alt_text = ". ".join(
                (chart.chart_and_axis_titles[0], *(f"{x:.2f} {y:.2f}" for x, y, *_ in chart.marks_with_intervals))
            )
            with self._tagged("Figure", alt_text=alt_text):
                self._chart(chart, left, top + 6, ticks)
        self.set_y(top + _SIDE + 20)

    def _chart(self, chart: ShareChart, left: float, top: float, ticks: Sequence[str]) -> None:
        def at(x: float, y: float) -> tuple[float, float]:
            return left + x * _SIDE, top + (1 - y) * _SIDE

        self._axes(chart, left, top, ticks)
        self.set_draw_color(*ACCENT_COLOUR)
        self.set_fill_color(*ACCENT_COLOUR)
        self.set_line_width(0.5)
        if chart.line:
            self.polyline([at(x, y) for x, y in chart.line])
        for x, y, low, high in chart.marks_with_intervals:
            self.line(*at(x, low), *at(x, high))
            self.circle(*at(x, y), _DOT, style="F")

    def _axes(self, chart: ShareChart, left: float, top: float, ticks: Sequence[str]) -> None:
        self.set_draw_color(*_FRAME)
        self.set_line_width(0.2)
        self.rect(left, top, _SIDE, _SIDE)
        self.line(left, top + _SIDE, left + _SIDE, top)
        self._label(chart.chart_and_axis_titles[0], left, top - 6, _SIDE, style="B", colour=TEXT_COLOUR)
        for index, text in zip(_TICKS, ticks, strict=True):
            self._label(text, left + index * _SIDE - 5, top + _SIDE + 0.5, 10)
            self._label(text, left - 9, top + (1 - index) * _SIDE - 2, 10)
        self._label(chart.chart_and_axis_titles[1], left, top + _SIDE + 4.5, _SIDE)
        with self.rotation(90, x=left - 13, y=top + _SIDE):
            self._label(chart.chart_and_axis_titles[2], left - 13, top + _SIDE, _SIDE)

    def _label(
        self, text: str, left: float, top: float, width: float, *, style: str = "", colour: Colour = MUTED_COLOUR
    ) -> None:
        self._set(style, 8, colour)
        self.set_xy(left, top)
        self.cell(width, 4, text, align="C")
