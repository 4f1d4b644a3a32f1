"""The fonts of PDF documents: small ones for nearly all of them, larger ones where a name asks for other letters.

Taking a font apart and putting the letters of one document together again takes longer than laying the document out. So
the usual letters are taken out of DejaVu Sans in a few parts (Latin without accents, with them, Cyrillic), once for an
export, and a document has all of each part of which it needs a letter: no font tells anything of other documents. Any
other letter is taken from DejaVu Sans or, where that lacks it, from GNU Unifont, which draws all scripts coarsely. What
neither can draw is written as its escape.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from fieldray.paths import asset

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

# fpdf2 without its signatures: for them it imports a library for tests, and with that asyncio and sockets. Documents
# are not signed, and the installed program has none of these modules.
_SIGNING: Final = ModuleType("fpdf.sign")
vars(_SIGNING).update(Signature=type("Signature", (), {}), sign_content=None)
sys.modules.setdefault("fpdf.sign", _SIGNING)

from fpdf import FPDF  # noqa: E402
from fpdf.enums import Align, MethodReturnValue, XPos, YPos  # noqa: E402
from fpdf.fonts import TTFFont  # noqa: E402
from fpdf.output import CIDSystemInfo, OutputProducer, PDFFont, PDFFontStream  # noqa: E402
from fpdf.prefs import ViewerPreferences  # noqa: E402
from fpdf.syntax import Name, PDFArray, PDFContentStream, PDFObject  # noqa: E402

__all__ = ["FPDF", "Align", "MethodReturnValue", "ViewerPreferences", "XPos", "YPos"]

FAMILY: Final = "DejaVu Sans"
_STYLES: Final = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf"}
_ALL_SCRIPTS: Final = "Unifont.woff"  # packed: a third of its size
_FILES: Final = {".woff": ".otf"}  # what a subset of it is
# The usual letters in parts: the first is in every document, and has the signs of our own texts.
_PLAIN: Final = frozenset({*range(0x20, 0x7F), *range(0xA0, 0xC0), 0xD7, 0xF7, *range(0x2010, 0x2030), 0x2116})
_PARTS: Final = (_PLAIN, frozenset(range(0xC0, 0x180)) - _PLAIN, frozenset(range(0x400, 0x492)))
_USUAL: Final = frozenset().union(*_PARTS)
_Part = TypeVar("_Part", bound=PDFObject)
_MOST_LINES: Final = 4096  # texts of which it is kept how they break
_BREAKING: Final = frozenset("\n\r\f\u00ad")  # besides blanks
# Layout, kerning and hinting are of no use to fpdf2 and take most of the time.
_DROPPED: Final = ("GSUB", "GPOS", "GDEF", "kern", "FFTM", "JSTF", "BASE")


class Fonts:
    """The font files of one export, in a temporary folder that goes with the context."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fieldray-fonts-")
        self._made: dict[tuple[str, frozenset[int]], Path] = {}
        self._whole: dict[tuple[str, frozenset[int]], WholeFont] = {}
        self._wanted: frozenset[int] = frozenset()
        self.lines = lru_cache(_MOST_LINES)(_lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for font in self._whole.values():
            font.close()
        self._folder.cleanup()

    def foresee(self, texts: Iterable[str]) -> None:
        """Hear of texts that documents will have: fonts for unusual letters are then made once for all of them."""
        self._wanted |= _letters(texts) - _USUAL

    def usual(self, texts: Iterable[str], document: FPDF) -> tuple[WholeFont, ...]:
        """Fonts of each style for the usual letters of a document's texts."""
        used = _letters(texts)
        letters = _PARTS[0].union(*(part for part in _PARTS[1:] if part & used))
        return tuple(self._font(style, letters, document) for style in _STYLES)

    def fallbacks(self, texts: Iterable[str]) -> dict[str, Path]:
        """Fonts for the letters of these texts that the usual ones lack, by their families."""
        wanted = _letters(texts) - _USUAL
        foreseen = self._wanted if wanted <= self._wanted else wanted
        found: dict[str, Path] = {}
        for name, has in ((_STYLES[""], self._covered_by_dejavu), (_ALL_SCRIPTS, self._covered_by_unifont)):
            if wanted & has:
                found[f"{FAMILY} {len(found) + 2}"] = self._subset(name, foreseen & has)
            wanted, foreseen = wanted - has, foreseen - has
        return found

    def drawable(self, text: str) -> str:
        """The text, with escapes for what no font can draw."""
        if is_usual(text):
            return text
        known = self._covered_by_dejavu | self._covered_by_unifont
        return "".join(
            letter if ord(letter) in known else letter.encode("unicode_escape", "backslashreplace").decode("ascii")
            for letter in text
        )

    @cached_property
    def _covered_by_dejavu(self) -> frozenset[int]:
        return _covered(_STYLES[""])

    @cached_property
    def _covered_by_unifont(self) -> frozenset[int]:
        return _covered(_ALL_SCRIPTS)

    def _font(self, style: str, letters: frozenset[int], document: FPDF) -> WholeFont:
        if (style, letters) not in self._whole:
            path = self._subset(_STYLES[style], letters)
            number = list(_STYLES).index(style) + 1
            self._whole[style, letters] = WholeFont(document, path, f"{FAMILY.lower()}{style}", style, number)
        return self._whole[style, letters]

    def _subset(self, name: str, letters: frozenset[int]) -> Path:
        key = (name, letters)
        if key not in self._made:
            path = Path(self._folder.name) / f"{len(self._made)}{_FILES.get(Path(name).suffix, Path(name).suffix)}"
            _write_subset(name, letters, path)
            self._made[key] = path
        return self._made[key]


def is_usual(text: str) -> bool:
    """Whether the usual letters are enough for a text."""
    return _USUAL.issuperset(map(ord, text))


def _letters(texts: Iterable[str]) -> frozenset[int]:
    return frozenset(map(ord, set().union(*texts)))


class WholeFont(TTFFont):
    """A font that goes into documents as it is, the same one into many, each letter with a code of its own."""

    def __init__(self, document: FPDF, path: Path, key: str, style: str, number: int) -> None:
        super().__init__(document, path, key, style)
        self.i = number
        self.subset = _Codes({letter: code for code, letter in enumerate(sorted(self.cmap), 1)})  # type: ignore[assignment]

    @property
    def codes(self) -> Mapping[int, int]:
        """Of each letter, 1 for the first."""
        return cast("_Codes", self.subset).codes


class _Codes:
    """What fpdf2 asks for the code of a letter."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        self.codes = codes

    def pick(self, letter: int) -> int | None:
        """Its code, None for a letter that the font lacks."""
        return self.codes.get(letter)


class FontWriter(OutputProducer):
    """Writes a document; a `WholeFont` as it is (ISO 32000-1, 9.7), where fpdf2 would make a font for the document."""

    def _add_fonts(self, *drawn: Any) -> dict[int, Any]:
        fonts = self.fpdf.fonts
        ours = {key: font for key, font in fonts.items() if isinstance(font, WholeFont)}
        for key in ours:
            del fonts[key]
        found = dict(super()._add_fonts(*drawn))
        fonts.update(ours)
        return found | {font.i: self._add_whole(font) for font in ours.values()}

    def _add_whole(self, font: WholeFont) -> PDFFont:
        name = f"FIELDR+{font.name}"
        whole = self._added(PDFFont("Type0", name, "Identity-H"))
        widths = " ".join(f"{font.cw[letter]:.0f}" for letter in font.codes)
        glyphs = self._added(PDFFont("CIDFontType2", name, d_w=font.desc.missing_width, w=f"[1 [{widths}]]"))
        whole.descendant_fonts = PDFArray([glyphs])
        whole.to_unicode = self._added(PDFContentStream(_unicode_map(font.codes)))
        glyphs.c_i_d_system_info = self._added(CIDSystemInfo())
        numbers = b"".join(font.glyph_ids[letter].to_bytes(2, "big") for letter in font.codes)
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
    """What the codes mean, for those who search and copy (ISO 32000-1, 9.10.3)."""
    lines = [f"<{code:04X}> <{letter:04X}>" for letter, code in codes.items()]
    groups = [lines[start : start + 100] for start in range(0, len(lines), 100)]  # as many as there may be
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


def _lines(text: str, font: WholeFont, limit: float) -> tuple[str, ...] | None:
    """The lines of a text that may be `limit` thousandths of the letter size wide, broken as `FPDF.multi_cell` does.

    A word that is too long, such as a file's name, is broken behind one of its hyphens, underscores or slashes. None
    where more than blanks decide where it breaks, or a letter is none of the font's.
    """
    if not _BREAKING.isdisjoint(text) or not font.codes.keys() >= set(map(ord, text)):
        return None
    ends = list(accumulate(font.cw[ord(letter)] for letter in text))
    lines: list[str] = []
    start = 0
    while start < len(text):
        end = bisect_right(ends, (ends[start - 1] if start else 0) + limit, lo=start)
        blank = end if end == len(text) or text[end] == " " else text.rfind(" ", start, end)
        if blank < 0:
            mark = 1 + max(text.rfind(mark, start, end) for mark in _MARKS)
            end = mark if mark > (start + end) // 2 else max(end, start + 1)
        else:
            end = blank
        lines.append(text[start:end].replace("\xa0", " "))
        start = end + (blank >= 0)
    return tuple(lines) or ("",)


def _font(name: str) -> TTFont:
    from fontTools.ttLib import TTFont

    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it reports each table that it leaves out
    return TTFont(asset("fonts") / name, lazy=True, recalcTimestamp=False)


def _covered(name: str) -> frozenset[int]:
    with _font(name) as font:
        return frozenset(font.getBestCmap()) - {*range(0x20), 0x7F}


def _write_subset(name: str, letters: frozenset[int], path: Path) -> None:
    from fontTools import subset

    options = subset.Options(hinting=False, layout_features=[], glyph_names=False, notdef_outline=True)
    options.drop_tables += _DROPPED
    with _font(name) as font:
        font.flavor = None
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=letters | {0x20})
        subsetter.subset(font)
        font.save(path)
