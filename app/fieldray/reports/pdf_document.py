"""A PDF document with the notice *research use only* on every page, images, scales, and text for screen readers.

Every text is a tagged element of the document's structure (heading, paragraph, or figure with a description), in
reading order. Page numbers and notices at the edge are artefacts, which screen readers skip. fpdf2 tags only images.
The code here adds all other tags to fpdf2's structure tree.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from fieldray.domain.finding import Category
from fieldray.formatting import research_only_notice
from fieldray.paths import asset_path
from fieldray.reports.document import Block, Field, FieldList, Paragraph, ScoreScale, Table, replace_undecoded_letters
from fieldray.reports.exporter import PDF_VERSION_AND_PROGRAM_MARK
from fieldray.reports.pdf_fonts import (
    FONT_FAMILY,
    FPDF,
    Align,
    FullFontDocumentWriter,
    FullyEmbeddedFont,
    MethodReturnValue,
    ViewerPreferences,
    XPos,
    YPos,
    break_lines,
    escape_missing_letters,
    standard_fonts,
    unjoined_scripts,
    with_direction_marks,
)
from fieldray.reports.performance import MeasuredPerformance, PerformanceBar
from fieldray.translation import Translator

if TYPE_CHECKING:
    from PIL.Image import Image

Tag = Literal["H1", "H2", "P", "Figure"]
Colour = tuple[int, int, int]

MARGIN_MM: Final = 16.0
TEXT_WIDTH_MM: Final = 210.0 - 2 * MARGIN_MM
_FOOT: Final = 18.0
_HEAD: Final = 8.0
_APART: Final = 2.5  # mm
TEXT_COLOUR: Final[Colour] = (28, 34, 38)
MUTED_COLOUR: Final[Colour] = (92, 102, 110)
_LINE: Final[Colour] = (208, 214, 219)
ACCENT_COLOUR: Final[Colour] = (0, 92, 122)
CATEGORY_COLOURS: Final[dict[Category, Colour]] = {
    "read_first": (158, 12, 48),
    "abnormal": (179, 55, 11),
    "unsure": (125, 91, 0),
    "normal": (10, 106, 85),
    "not_assessed": (72, 82, 90),
    "refused": (72, 82, 90),
    "failed": (72, 82, 90),
    "not_an_image": (72, 82, 90),
}
_ZONES: Final[tuple[Colour, Colour, Colour]] = ((164, 211, 200), (232, 212, 150), (236, 178, 155))
_ROLES: Final = {"notice": ("B", 9.5), "count": ("B", 10.0), "lead": ("B", 9.0), "plain": ("", 8.5)}  # in points
_JPEG_QUALITY: Final = 88
_SHAPE: Final = 2.2  # width of the icon of a class in mm
_SHAPE_GAP: Final = 0.9  # space between icon and name of a class in mm
_BAR_LINE: Final = 4.0  # height of a line below a bar in mm

for _library in ("fpdf", "fontTools"):  # they log every font
    logging.getLogger(_library).setLevel(logging.ERROR)


class Column(NamedTuple):
    """The left edge and the width of a column of text on the page, in mm."""

    left_mm: float
    width_mm: float


WHOLE_WIDTH_COLUMN: Final = Column(MARGIN_MM, TEXT_WIDTH_MM)


class Document(FPDF):
    """A PDF document of A4 pages. Texts are drawn unchanged: the caller has made hidden characters visible.

    title       title, which a PDF viewer shows in its title bar
    translator  translator, which gives the language of the document and of the notice *research use only*
    made_s      time at which the reported results were made, seconds since 1970; not the time of the export
    running     subject of the document, at the top of every page next to the notice
    """

    def __init__(self, title: str, translator: Translator, *, made_s: float, running: str = "") -> None:
        super().__init__(format="A4", unit="mm")
        self._running = running
        self._translator, self._unjoined = translator, set[str]()
        self._notice, self._marks = research_only_notice(translator), Counter[int]()
        self.pdf_version = PDF_VERSION_AND_PROGRAM_MARK
        self.alias_nb_pages("")  # no text stands for the number of pages
        self.set_title(title)
        self.set_lang(translator.language)
        self.set_creator("Fieldray")
        self.set_producer("Fieldray with fpdf2")
        self.set_creation_date(datetime.datetime.fromtimestamp(made_s, datetime.UTC))
        self.viewer_preferences = ViewerPreferences(display_doc_title=True)
        self.set_margins(MARGIN_MM, MARGIN_MM, MARGIN_MM)
        self.c_margin = 0
        self.set_auto_page_break(False, margin=_FOOT)
        self.fonts.update({font.fontkey: font for font in standard_fonts()})
        self.add_page()

    def normalize_text(self, text: str) -> str:
        """Order and join the letters of a text that are written from right to left. fpdf2 calls this method."""
        shown = escape_missing_letters(replace_undecoded_letters(text, self._translator), self)
        self._unjoined |= unjoined_scripts(shown, self)
        marked = with_direction_marks(shown)
        self.set_text_shaping(marked != shown, direction="ltr")
        return marked

    # ---- blocks

    def add_blocks(self, blocks: Sequence[Block]) -> None:
        """Add blocks to the document, one below the other."""
        for block in blocks:
            if isinstance(block, Paragraph):
                self._add_paragraph(block)
                continue
            if isinstance(block, MeasuredPerformance):
                self.draw_performance(block)
                continue
            if block.title:
                self.add_heading(block.title)
            else:
                self.ln(_APART)
            if isinstance(block, FieldList):
                self.add_fields(block.fields)
            elif isinstance(block, Table):
                self._add_table(block)
            else:
                for sentence in block.sentences:
                    self.add_paragraph(sentence)
                    self.ln(0.8)

    def _add_paragraph(self, paragraph: Paragraph) -> None:
        if paragraph.role == "heading":
            self.add_heading(paragraph.text)
            return
        style, size = _ROLES[paragraph.role]
        if paragraph.role == "lead":
            self.ln(1)
        colour = (
            ACCENT_COLOUR
            if paragraph.role == "notice"
            else CATEGORY_COLOURS[paragraph.category]
            if paragraph.category
            else TEXT_COLOUR
        )
        self.add_paragraph(paragraph.text, style=style, size_pt=size, colour=colour)
        if paragraph.role == "notice":
            self.ln(1)

    def _add_table(self, table: Table) -> None:
        if table.rows:
            self._room(sum(self._row_height(table, cells) for cells in (table.columns, table.rows[0])))
            self._row(table, table.columns, style="B")
        for row, categories in zip(table.rows, table.cell_categories or repeat(()), strict=False):
            if self._room(self._row_height(table, row, style="")):
                self._row(table, table.columns, style="B")
            self._row(table, row, categories=categories)

    # ---- text

    def add_heading(self, text: str, *, tag: Tag = "H2", size_pt: float = 11) -> None:
        """Add a heading over the whole width. A heading is never the last line of a page.

        tag      kind of the element for screen readers
        size_pt  size of the letters in points
        """
        self._room(18)
        self.ln(2.5 if tag == "H2" else 0)
        self.add_paragraph(text, tag=tag, style="B", size_pt=size_pt)
        self.ln(0.8)

    def add_paragraph(
        self,
        text: str,
        *,
        column: Column = WHOLE_WIDTH_COLUMN,
        tag: Tag = "P",
        style: str = "",
        size_pt: float = 9,
        colour: Colour = TEXT_COLOUR,
    ) -> None:
        """Add a text, on the next page if this page has too little space.

        column   left edge and width of the text
        tag      kind of the element for screen readers
        style    "B" for bold, "" for plain letters
        size_pt  size of the letters in points
        """
        height = size_pt * 0.48
        self._set(style, size_pt, colour)
        self._room(self._height(text, column.width_mm, height))
        with self._tagged(tag):
            self.set_x(column.left_mm)
            self._lines(column.width_mm, height, text)

    def draw_side_by_side(self, left: Callable[[], None], right: Callable[[], None]) -> None:
        """Draw two columns side by side. If the left column needs another page, the right column is drawn below it."""
        top, page = self.y, self.page
        left()
        below = self.y
        if self.page == page:
            self.set_y(top)
        right()
        if self.page == page:
            self.set_y(max(below, self.y))

    def draw_signature_line(self, label: str) -> None:
        """Draw a line on which a person can sign.

        label  the text before the line
        """
        self._room(12)
        self._set("", 8.5, MUTED_COLOUR)
        self.set_xy(MARGIN_MM, self.y + 7)
        with self._tagged("P"):
            self.cell(self.get_string_width(label) + 2, 4, label)
        with self._artefact():
            self.set_draw_color(*_LINE)
            self.line(self.x, self.y + 4, MARGIN_MM + TEXT_WIDTH_MM, self.y + 4)
        self.set_y(self.y + 5)

    def add_fields(
        self,
        fields: Sequence[Field],
        *,
        column: Column = WHOLE_WIDTH_COLUMN,
        label_width_mm: float = 38,
        size_pt: float = 8.5,
    ) -> None:
        """Add a line with label and value for each field. A value longer than a page continues on the next page.

        column          left edge and width of the lines
        label_width_mm  width of the labels in mm
        size_pt         size of the letters in points
        """
        height = size_pt * 0.494
        for field in fields:
            self._set("", size_pt, TEXT_COLOUR)
            self._room(self._height(field.text, column.width_mm - label_width_mm, height) + 0.6)
            top = self.y
            with self._tagged("P"):
                self._set("", size_pt, MUTED_COLOUR)
                self.set_x(column.left_mm)
                self._lines(label_width_mm - 2, height, field.label)
                below = self.y
                self.set_xy(column.left_mm + label_width_mm, top)
                self._set("", size_pt, TEXT_COLOUR)
                self._lines(column.width_mm - label_width_mm, height, field.text)
            self.set_y(max(below, self.y) + 0.6)

    def _lines(self, width: float, height: float, text: str) -> None:
        broken = self._broken(text, width)
        if broken is None:
            self.multi_cell(width, height, text, align=Align.L, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
            return
        left = self.x
        for line in broken:
            self.set_x(left)
            self.cell(width, height, line, new_y=YPos.NEXT)
        self.set_x(MARGIN_MM)

    def _row_height(self, table: Table, cells: Sequence[str], *, style: str = "B") -> float:
        self._set(style, 8, TEXT_COLOUR)
        heights = (
            self._height(text, width - _APART, 3.8) for text, width in zip(cells, table.column_widths_mm, strict=True)
        )
        return max(heights) + 1.6

    def _row(self, table: Table, cells: Sequence[str], *, style: str = "", categories: Sequence[Category] = ()) -> None:
        """Draw one row of a table.

        cells       texts of the row
        style       "B" for bold, "" for plain letters
        categories  classes of the results in the columns from the fifth on; each text has the colour of its class
        """
        colours = {index: CATEGORY_COLOURS[category] for index, category in enumerate(categories, 4)}
        height, top, left = self._row_height(table, cells, style=style), self.y, MARGIN_MM
        with self._tagged("P"):
            for index, (text, width) in enumerate(zip(cells, table.column_widths_mm, strict=True)):
                self._set(style, 8, colours.get(index, TEXT_COLOUR))
                self.set_xy(left, top + 0.8)
                self._lines(width - _APART, 3.8, text)
                left += width
            self.set_draw_color(*_LINE)
            self.set_line_width(0.2)
            self.line(MARGIN_MM, top + height, MARGIN_MM + TEXT_WIDTH_MM, top + height)
        self.set_y(top + height)

    # ---- images

    def draw_figure(
        self, image: Image, *, alt_text: str, left: float, top: float, width: float, height: float
    ) -> float:
        """Draw an image in a box on the page, as large as possible. Returns the height of the drawn image in mm.

        alt_text                  description for screen readers
        left, top, width, height  the box in mm
        """
        data = io.BytesIO()
        image.save(data, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
        scale = min(width / image.width, height / image.height)
        wide, high = image.width * scale, image.height * scale
        with self._tagged("Figure", alt_text=alt_text):
            self.image(data, x=left + (width - wide) / 2, y=top, w=wide, h=high)
        return high

    def draw_scale(self, scale: ScoreScale, *, column: Column) -> None:
        """Draw a score on a scale: the uncertain zone, the threshold in the middle, and a mark at the score."""
        self._room(16)
        (left, width), top = column, self.y + 5
        with self._tagged("Figure", alt_text=scale.alt_text):
            self._zones(scale, left, top, width)
            mark = left + scale.score_position * width
            self.set_fill_color(*TEXT_COLOUR)
            self.polygon([(mark, top + 0.4), (mark - 1.6, top - 2.6), (mark + 1.6, top - 2.6)], style="F")
            self._scale_text(scale, left, top, width)
        self.set_y(top + 9)

    def _zones(self, scale: ScoreScale, left: float, top: float, width: float) -> None:
        if scale.zone_start is None or scale.zone_end is None:
            self.set_fill_color(*_LINE)
            self.rect(left, top, width, 3.2, style="F")
            return
        ends = (0.0, scale.zone_start, scale.zone_end, 1.0)
        for colour, start, end in zip(_ZONES, ends[:-1], ends[1:], strict=True):
            self.set_fill_color(*colour)
            self.rect(left + start * width, top, (end - start) * width, 3.2, style="F")
        self.set_draw_color(*TEXT_COLOUR)
        self.set_line_width(0.4)
        self.line(left + width / 2, top - 0.8, left + width / 2, top + 4)

    def _scale_text(self, scale: ScoreScale, left: float, top: float, width: float) -> None:
        self._set("", 7, MUTED_COLOUR)
        for align, text in (
            (Align.L, scale.end_labels[0]),
            (Align.C, scale.threshold_label),
            (Align.R, scale.end_labels[1]),
        ):
            self.set_xy(left, top + 3.8)
            self.cell(width, 4, text, align=align)
        if scale.zone_label and scale.zone_start is not None and scale.zone_end is not None:
            wide = self.get_string_width(scale.zone_label) + 2
            middle = left + (scale.zone_start + scale.zone_end) / 2 * width
            self.set_xy(min(max(middle - wide / 2, left), left + width - wide), top - 6.4)
            self.cell(wide, 4, scale.zone_label, align=Align.C)

    def draw_performance(self, performance: MeasuredPerformance, *, column: Column = WHOLE_WIDTH_COLUMN) -> None:
        """Draw the measured performance of a class: a sentence, and two bars of 100 images."""
        self.ln(1)
        self.add_paragraph(performance.sentence, size_pt=9, column=column)
        self.ln(0.8)
        self.add_paragraph(performance.title, style="B", size_pt=8.5, column=column)
        for bar in performance.bars:
            self._bar(bar, column)

    def _bar(self, bar: PerformanceBar, column: Column) -> None:
        """Draw a bar with its title, and below the bar the icon, name and number of each class."""
        self._room(17)
        self.add_paragraph(bar.title, size_pt=8, column=column)
        left, top = column.left_mm, self.y + 0.6
        with self._tagged("Figure", alt_text=bar.alt_text):
            for part in bar.parts:
                width = column.width_mm * part.images_per_hundred / 100
                self.set_fill_color(*CATEGORY_COLOURS[part.category])
                if width:
                    self.rect(left, top, width, 3.2, style="F")
                left += width
            self._bar_numbers(bar, column, top + 4)
        self.ln(0.8)

    def _bar_numbers(self, bar: PerformanceBar, column: Column, top: float) -> None:
        """Draw icon, name and number of each class of a bar, side by side, in as many lines as needed.

        top  upper edge of the first line in mm
        """
        self._set("", 8, TEXT_COLOUR)
        left = column.left_mm
        for part in bar.parts:
            caption = f"{part.class_name} {part.images_per_hundred}"
            width = _SHAPE + _SHAPE_GAP + self.get_string_width(caption)
            if left > column.left_mm and left + width > column.left_mm + column.width_mm:
                left, top = column.left_mm, top + _BAR_LINE
            self._shape(part.category, left, top + (_BAR_LINE - _SHAPE) / 2)
            self.set_xy(left + _SHAPE + _SHAPE_GAP, top)
            self.cell(width, _BAR_LINE, caption)
            left += width + _APART
        self.set_y(top + _BAR_LINE)

    def _shape(self, category: Category, left: float, top: float) -> None:
        """Draw the icon of a class in the colour of the class, as the window does.

        left, top  upper left corner of the icon in mm
        """
        self.image(_shape_of(category), x=left, y=top, w=_SHAPE, h=_SHAPE)

    def draw_separator(self) -> None:
        """Draw a thin horizontal line over the whole width of the page's text."""
        with self._artefact():
            self.set_draw_color(*_LINE)
            self.set_line_width(0.3)
            self.line(MARGIN_MM, self.y + 1, MARGIN_MM + TEXT_WIDTH_MM, self.y + 1)
        self.set_y(self.y + 2.5)

    def to_pdf_bytes(self) -> bytes:
        """Complete the document, and return the PDF file.

        Every page gets its subject and *research use only* at the top, and its number at the bottom, such as `3 / 12`.
        """
        if self._unjoined:
            said = self._translator.text(
                "This PDF shows the letters of some scripts separately instead of joined: {names}.",
                names=", ".join(sorted(self._unjoined)),
            )
            self.add_paragraph(said, size_pt=7.5, colour=MUTED_COLOUR)
        for page in self.pages:
            self.page, self.current_font_is_set_on_page = page, False
            with self._artefact():
                self.set_y(_HEAD)
                self._set("B", 8, ACCENT_COLOUR)
                room = TEXT_WIDTH_MM - self.get_string_width(self._notice) - _APART
                self._set("", 8, MUTED_COLOUR)
                self.cell(room, 5, self._shortened(self._running, room - _APART))
                self._set("B", 8, ACCENT_COLOUR)
                self.cell(TEXT_WIDTH_MM - room, 5, self._notice, align=Align.R)
                self.set_y(-_FOOT + 4)
                self._set("", 8, MUTED_COLOUR)
                self.cell(TEXT_WIDTH_MM, 5, f"{page} / {len(self.pages)}", align=Align.R)
        return bytes(self.output(output_producer_class=FullFontDocumentWriter))

    # ---- drawing

    def _shortened(self, text: str, room: float) -> str:
        """Return a text, cut at its end if the text is wider than `room` mm."""
        if self.get_string_width(text) <= room:
            return text
        return next(cut for n in range(len(text), -1, -1) if self.get_string_width(cut := f"{text[:n]}…") <= room)

    def _set(self, style: str, size: float, colour: Colour) -> None:
        self.set_font(FONT_FAMILY, style, size)
        self.set_text_color(*colour)

    def _broken(self, text: str, width: float) -> tuple[str, ...] | None:
        """Return the lines into which a text breaks; None if `break_lines` cannot break the text.

        width  width of the lines in mm
        """
        font = self.current_font
        assert isinstance(font, FullyEmbeddedFont)
        return break_lines(text, font, 1000 * width * self.k / self.font_size_pt)

    def _height(self, text: str, width: float, line: float) -> float:
        broken = self._broken(text, width)
        if broken is not None:
            return len(broken) * line
        found = self.multi_cell(width, line, text, align=Align.L, dry_run=True, output=MethodReturnValue.HEIGHT)
        return float(found)  # type: ignore[arg-type]

    def _room(self, height: float) -> bool:
        """Begin a new page if this page has too little space. Returns whether a page was begun.

        height  the space needed in mm
        """
        if self.y + height <= self.h - _FOOT:
            return False
        font = self.font_style, self.font_size_pt, self.text_color
        self.add_page()
        self.set_font(FONT_FAMILY, font[0], font[1])
        self.text_color = font[2]
        return True

    @contextlib.contextmanager
    def _tagged(self, tag: Tag, *, alt_text: str | None = None) -> Iterator[None]:
        """Make everything drawn in the `with` block one element of the document's structure (ISO 32000-1, 14.7).

        tag       kind of the element for screen readers
        alt_text  description for screen readers; None for text, which needs no description
        """
        number = self._marks[self.page]
        self._marks[self.page] += 1
        facts: dict[str, Any] = {"struct_type": f"/{tag}", "mcid": number, "alt_text": alt_text}
        _, parents = self.struct_builder.add_marked_content(page_number=self.page, **facts)
        self.pages[self.page].struct_parents = parents
        self._out(f"/{tag} <</MCID {number}>> BDC")
        yield
        self._out("EMC")

    @contextlib.contextmanager
    def _artefact(self) -> Iterator[None]:
        """Mark what the `with` block draws as decoration, which screen readers skip (ISO 32000-1, 14.8.2.2)."""
        self._out("/Artifact BMC")
        yield
        self._out("EMC")


@functools.cache
def _shape_of(category: Category) -> bytes:
    """Return the icon of a result class, as shown in the window, as SVG in the colour of the class."""
    red, green, blue = CATEGORY_COLOURS[category]
    drawing = asset_path(f"icons/classes/{category}.svg").read_text(encoding="utf-8")
    return drawing.replace("currentColor", f"#{red:02x}{green:02x}{blue:02x}").encode()
