"""The fonts of PDF documents: small ones for nearly all of them, larger ones where a name asks for other letters.

fpdf2 takes a font apart for every document, which takes a tenth of a second for a whole one. So the letters of most
documents are taken out of DejaVu Sans once for an export. Any other letter is taken from DejaVu Sans or, where that
lacks it, from GNU Unifont, which draws all scripts coarsely. What neither can draw is written as its escape.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fieldray.paths import asset

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

FAMILY: Final = "DejaVu Sans"
_STYLES: Final = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf"}
_ALL_SCRIPTS: Final = "Unifont.woff"  # packed: a third of its size
_FILES: Final = {".woff": ".otf"}  # what a subset of it is
# Latin, Cyrillic, punctuation, and the signs of our own texts.
_USUAL: Final = frozenset(
    {*range(0x20, 0x7F), *range(0xA0, 0x180), *range(0x400, 0x492), *range(0x2010, 0x2030), 0x2116}
)
# Layout, kerning and hinting are of no use to fpdf2 and take most of the time.
_DROPPED: Final = ("GSUB", "GPOS", "GDEF", "kern", "FFTM", "JSTF", "BASE")


@dataclass(frozen=True, slots=True)
class Fallback:
    """A font for letters that the usual ones lack."""

    family: str
    path: Path


class Fonts:
    """The font files of one export, in a temporary folder that goes with the context."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fieldray-fonts-")
        self._made: dict[tuple[str, frozenset[int]], Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def usual(self) -> dict[str, Path]:
        """The file of each style: "" and "B"."""
        return {style: self._subset(name, _USUAL) for style, name in _STYLES.items()}

    def fallbacks(self, texts: Iterable[str]) -> tuple[Fallback, ...]:
        """Fonts for the letters of these texts that the usual ones lack."""
        wanted = {ord(letter) for text in texts for letter in text} - _USUAL
        found: list[Fallback] = []
        for name, has in ((_STYLES[""], self._covered_by_dejavu), (_ALL_SCRIPTS, self._covered_by_unifont)):
            here = frozenset(wanted & has)
            wanted -= here
            if here:
                found.append(Fallback(f"{FAMILY} {len(found) + 2}", self._subset(name, here)))
        return tuple(found)

    def drawable(self, text: str) -> str:
        """The text, with escapes for what no font can draw."""
        if all(ord(letter) in _USUAL for letter in text):
            return text
        known = self._covered_by_dejavu | self._covered_by_unifont
        return "".join(letter if ord(letter) in known else _escaped(letter) for letter in text)

    @cached_property
    def _covered_by_dejavu(self) -> frozenset[int]:
        return _covered(_STYLES[""])

    @cached_property
    def _covered_by_unifont(self) -> frozenset[int]:
        return _covered(_ALL_SCRIPTS)

    def _subset(self, name: str, letters: frozenset[int]) -> Path:
        key = (name, letters)
        if key not in self._made:
            path = Path(self._folder.name) / f"{len(self._made)}{_FILES.get(Path(name).suffix, Path(name).suffix)}"
            _write_subset(name, letters, path)
            self._made[key] = path
        return self._made[key]


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


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")
