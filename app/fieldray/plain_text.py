"""Text from outside as what it is: one line, in the order of its letters, with nothing in it that cannot be seen.

Names of files, fields of images and the words of packs may hold anything. Where such a text is shown, in the window
and on the console alike, characters that end a line, reorder it, steer a terminal or have no width are shown by their
escapes: `\\n`, `\\x1b`, `\\u202e`. A text that is clean already comes out unchanged, so it may pass through twice.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

# Letters and marks by their category, yet without a width or a shape: Unicode's Default_Ignorable_Code_Point that are
# not of category Cf, and the empty braille pattern.
_WITHOUT_SHAPE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_BLANKS: Final = re.compile("(?<=\\s)\\s")
_LOOK_ALIKE: Final = str.maketrans("АВЕКМНОРСТУХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEKMHOPCTYXIJSABEZHIKMNOPTYX")
_LEADING_ZEROS: Final = re.compile("(?<![0-9])0+(?=[0-9])")


def visible(text: str) -> str:
    """The text on one line, all of it to be seen; what cannot be seen as an escape, as Python writes it."""
    if text.isprintable() and not _WITHOUT_SHAPE.search(text):
        return text
    return "".join(map(_shown, text))


def as_cell(text: str) -> str:
    """A text for a cell of a console table: `visible`, and blanks that follow a blank are escaped.

    With enough of them a name fills its row of the screen, and its end looks like the next row.
    """
    text = re.sub("^([a-z][a-z0-9+.-]+):/(?=[^/])", r"\1://", text)  # a path keeps one slash of an address
    return _BLANKS.sub(lambda blank: _escape(blank[0]), visible(text))


def is_seen(letter: str) -> bool:
    """Whether a character has a shape or a width of its own and leaves the order of the others alone."""
    if letter.isprintable():
        return not _WITHOUT_SHAPE.match(letter)
    return unicodedata.category(letter) == "Zs"


def look_alike(number: str) -> str:
    """One text for all numbers of patients that a person takes for the same one.

    They differ in case, in blanks, in zeros before a number, in the width of letters, or in Latin, Cyrillic and Greek
    letters of one shape.
    """
    plain = unicodedata.normalize("NFKC", number).upper().translate(_LOOK_ALIKE)
    return _LEADING_ZEROS.sub("", "".join(plain.split()))


def look_alikes(numbers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of an earlier text and a different one that looks like it, each pair once."""
    first: dict[str, str] = {}
    for number in dict.fromkeys(numbers):
        if number and (first_number := first.setdefault(look_alike(number), number)) != number:
            yield first_number, number


def _shown(letter: str) -> str:
    return letter if is_seen(letter) else _escape(letter)


def _escape(letter: str) -> str:
    """`\\x20`, `\\u2003`, `\\U000e0001`; `\\t`, `\\n` and `\\r` by their names."""
    if letter == " ":
        return "\\x20"
    return letter.encode("unicode_escape").decode("ascii")
