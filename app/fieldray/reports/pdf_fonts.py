"""The fonts of PDF documents: a common subset of one font for most documents, and further fonts for unusual letters.

Subsetting a font for one document takes longer than laying out the document. So a subset of DejaVu Sans with Latin,
Cyrillic and the program's signs is made in advance, and every document contains that subset. Other letters come from
the whole of Noto Sans Arabic or DejaVu Sans. If both lack a letter, GNU Unifont is used, which has coarse glyphs for
all scripts. A letter that no font has is written as an escape.

HarfBuzz joins Arabic letters and places marks, and fpdf2 orders right-to-left text (UAX 9). Unifont has no tables for
joining: `unjoined_scripts` returns the scripts whose letters are drawn separately.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping
from copy import copy
from functools import cache, lru_cache
from itertools import accumulate
from types import ModuleType
from typing import Any, Final, TypeVar, cast

from fieldray.paths import asset_path

# fpdf2 is loaded without its code for signatures, which imports asyncio and sockets. Documents are not signed, and the
# installed program has none of these modules.
_SIGNING: Final = ModuleType("fpdf.sign")
vars(_SIGNING).update(Signature=type("Signature", (), {}), sign_content=None)
sys.modules.setdefault("fpdf.sign", _SIGNING)

from fpdf import FPDF  # noqa: E402
from fpdf.enums import Align, MethodReturnValue, XPos, YPos  # noqa: E402
from fpdf.fonts import HarfBuzzFont, TTFFont  # noqa: E402
from fpdf.output import CIDSystemInfo, OutputProducer, PDFFont, PDFFontStream  # noqa: E402
from fpdf.prefs import ViewerPreferences  # noqa: E402
from fpdf.syntax import Name, PDFArray, PDFContentStream, PDFObject  # noqa: E402
from uharfbuzz import Face  # noqa: E402

__all__ = ["FPDF", "Align", "MethodReturnValue", "ViewerPreferences", "XPos", "YPos"]

FONT_FAMILY: Final = "DejaVu Sans"
_STYLES: Final = {"": "DejaVuSans-usual.ttf", "B": "DejaVuSans-Bold-usual.ttf"}
# By font family: the file, and the letters that may be in the file. Unifont is compressed to a third of its size.
_FURTHER: Final = {
    "noto sans arabic": ("NotoSansArabic-usual.ttf", range(0x600, 0x900)),
    "dejavu sans whole": ("DejaVuSans.ttf", range(sys.maxunicode)),
    "unifont": ("Unifont.woff", range(sys.maxunicode)),
}
# Right-to-left letters and marks: Hebrew to Arabic Extended-A without digits, and their presentation forms.
_LEFTWARDS: Final = "\u0590-\u065f\u066a-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
_STRETCH: Final = re.compile(f"[{_LEFTWARDS}](?:\\W*[{_LEFTWARDS}])*")
_LEFT_TO_RIGHT_MARK: Final = "\u200e"
_NEVER_DRAWN: Final = frozenset({*range(0x20), 0x7F})
_Part = TypeVar("_Part", bound=PDFObject)
_MAX_CACHED_TEXTS: Final = 4096  # number of texts whose lines are cached
_BREAKING: Final = frozenset("\n\r\f\u00ad")  # break characters other than spaces


class FullyEmbeddedFont(TTFFont):
    """A font file that is embedded unchanged in every document, so that a letter has one code in all documents."""

    def __init__(self, style: str, number: int) -> None:
        super().__init__(FPDF(), asset_path("fonts") / _STYLES[style], f"{FONT_FAMILY.lower()}{style}", style)
        self.close()
        self.i = number
        self.subset = _Codes({letter: code for code, letter in enumerate(sorted(self.cmap), 1)})  # type: ignore[assignment]

    @property
    def letter_codes(self) -> Mapping[int, int]:
        """The codes of the letters in PDF documents with this font. The keys are Unicode code points."""
        return cast("_Codes", self.subset).codes


@cache
def standard_fonts() -> tuple[FullyEmbeddedFont, ...]:
    """Return the fonts that every document contains: plain and bold."""
    return tuple(FullyEmbeddedFont(style, number) for number, style in enumerate(_STYLES, 1))


def escape_missing_letters(text: str, document: FPDF) -> str:
    """Return a text in which escapes replace letters that no font has.

    document  the document, to which fonts for unusual letters are added
    """
    lacking = {*map(ord, text)} - standard_fonts()[0].letter_codes.keys()
    for family, (name, may_have) in _FURTHER.items():
        if any(letter in may_have for letter in lacking - _NEVER_DRAWN):
            if family not in document.fonts:
                _add_font(family, name, document)
            found = cast("TTFFont", document.fonts[family]).cmap
            lacking = {letter for letter in lacking if letter in _NEVER_DRAWN or letter not in found}
    return text.translate({letter: ascii(chr(letter))[1:-1] for letter in lacking})


def _add_font(family: str, name: str, document: FPDF) -> None:
    document.add_font(family, fname=asset_path("fonts") / name)
    document.set_fallback_fonts([known for known in _FURTHER if known in document.fonts], exact_match=False)
    font = cast("TTFFont", document.fonts[family])
    if font.is_compressed:  # otherwise fpdf2 would compress the font again, in many seconds
        tables = font.ttfont.reader
        face = Face.create_for_tables(lambda _face, tag, _: tables[tag] if tag in tables.tables else b"", None)
        font._hbfont = HarfBuzzFont(face)


def with_direction_marks(text: str) -> str:
    """Return a text with a left-to-right mark before and after each part that is written from right to left.

    The documents' languages are written from left to right. Without the marks, a number after a Hebrew name would count
    as a part of the name (UAX 9, N1), and would change places with the sign between name and number.
    """
    return _STRETCH.sub(rf"{_LEFT_TO_RIGHT_MARK}\g<0>{_LEFT_TO_RIGHT_MARK}", text)


def unjoined_scripts(text: str, document: FPDF) -> set[str]:
    """Return the scripts of a text whose letters cannot be joined, because only Unifont has glyphs for them.

    document  the document; `escape_missing_letters` must already have added the fonts that the text needs
    """
    if "unifont" not in document.fonts:
        return set()
    *joined, coarse = (cast("TTFFont", document.fonts[family]).cmap for family in _FURTHER if family in document.fonts)
    return {
        unicodedata.name(letter).partition(" ")[0].title()
        for letter in set(text)
        if ord(letter) in coarse
        and not any(ord(letter) in table for table in joined)
        and (unicodedata.category(letter).startswith("M") or unicodedata.bidirectional(letter) in ("R", "AL"))
    }


class _Codes:
    """A mapping of letters to their numbers in a font, with the methods that fpdf2 calls."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        self.codes = codes

    def pick(self, letter: int) -> int | None:
        """Return the number of a letter in the font; None if the font lacks the letter.

        letter  Unicode number of the letter
        """
        return self.codes.get(letter)

    def get_glyph(self, *, unicode: tuple[int, ...], **_: object) -> int | None:
        """Return the number of a glyph's letter in the font; None if the font lacks the letter.

        unicode  Unicode numbers of the letters of the glyph; in this font, every glyph has exactly one letter
        """
        return self.codes.get(unicode[0]) if unicode else None

    def pick_glyph(self, code: int) -> int:
        return code


class FullFontDocumentWriter(OutputProducer):
    """Writes a document with each `FullyEmbeddedFont` unchanged (ISO 32000-1, 9.7). fpdf2 alone would subset fonts."""

    def _add_fonts(self, *drawn: Any) -> dict[int, Any]:
        fonts = self.fpdf.fonts
        ours = {key: font for key, font in fonts.items() if isinstance(font, FullyEmbeddedFont)}
        for key in ours:
            del fonts[key]
        found = dict(super()._add_fonts(*drawn))
        fonts.update(ours)
        return found | {font.i: self._add_whole(font) for font in ours.values()}

    def _add_whole(self, font: FullyEmbeddedFont) -> PDFFont:
        name = f"FIELDR+{font.name}"
        whole = self._added(PDFFont("Type0", name, "Identity-H"))
        widths = " ".join(f"{font.cw[letter]:.0f}" for letter in font.letter_codes)
        glyphs = self._added(PDFFont("CIDFontType2", name, d_w=font.desc.missing_width, w=f"[1 [{widths}]]"))
        whole.descendant_fonts = PDFArray([glyphs])
        whole.to_unicode = self._added(PDFContentStream(_unicode_map(font.letter_codes)))
        glyphs.c_i_d_system_info = self._added(CIDSystemInfo())
        numbers = b"".join(font.glyph_ids[letter].to_bytes(2, "big") for letter in font.letter_codes)
        glyphs.c_i_d_to_g_i_d_map = self._added(PDFContentStream(b"\0\0" + numbers, compress=True))
        descriptor = self._added(copy(font.desc))
        descriptor.font_name = Name(name)
        descriptor.font_file2 = self._added(PDFFontStream(font.ttffile.read_bytes()))  # type: ignore[attr-defined]
        glyphs.font_descriptor = descriptor
        return whole

    def _added(self, part: _Part) -> _Part:
        self._add_pdf_obj(part, "fonts")
        return part


def _unicode_map(codes: Mapping[int, int]) -> bytes:
    """Return the PDF table from letter numbers to Unicode, for search and copying (ISO 32000-1, 9.10.3).

    codes  number in the font by Unicode number
    """
    lines = [f"<{code:04X}> <{letter:04X}>" for letter, code in codes.items()]
    groups = [lines[start : start + 100] for start in range(0, len(lines), 100)]  # a block has at most 100 lines
    return "\n".join(
        (
            "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap",
            "/CIDSystemInfo <</Registry (Adobe) /Ordering (UCS) /Supplement 0>> def",
            "/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def",
            "1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange",
            *("\n".join((f"{len(group)} beginbfchar", *group, "endbfchar")) for group in groups),
            "endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend",
        )
    ).encode("ascii")


_MARKS: Final = "-_/\\"


@lru_cache(_MAX_CACHED_TEXTS)
def break_lines(text: str, font: FullyEmbeddedFont, limit: float) -> tuple[str, ...] | None:
    """Break a text into lines, as `FPDF.multi_cell` does.

    A word that is too long, such as a file name, is broken after a hyphen, underscore or slash. Returns None if the
    text has other break characters than spaces, or if the font lacks a letter.

    limit  maximum width of a line, in thousandths of the letter size
    """
    if not _BREAKING.isdisjoint(text) or not font.letter_codes.keys() >= set(map(ord, text)):
        return None
    ends = list(accumulate(font.cw[ord(letter)] for letter in text))
    found: list[str] = []
    start = 0
    while start < len(text):
        end = bisect_right(ends, (ends[start - 1] if start else 0) + limit, lo=start)
        blank = end if end == len(text) or text[end] == " " else text.rfind(" ", start, end)
        if blank < 0:
            mark = 1 + max(text.rfind(mark, start, end) for mark in _MARKS)
            end = mark if mark > (start + end) // 2 else max(end, start + 1)
        else:
            end = blank
        found.append(text[start:end].replace("\xa0", " "))
        start = end + (blank >= 0)
    return tuple(found) or ("",)
