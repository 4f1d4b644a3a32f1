"""Text from outside, shown safely: on one line, in the order of its letters, and without invisible characters.

Names of files, fields of images and texts of packs may contain any character. In the window and on the console,
characters that end a line, reorder it, control a terminal or have no width are shown as escapes: `\\n`, `\\x1b`,
`\\u202e`. A text without such characters is unchanged, so the functions may be applied twice.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

# Characters of the categories letter and mark that have no width and no shape: Unicode's Default_Ignorable_Code_Point
# outside the category Cf, and the empty braille pattern.
_WITHOUT_SHAPE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_BLANKS: Final = re.compile("(?<=\\s)\\s")
_LOOK_ALIKE: Final = str.maketrans("АВЕКМНОРСТУХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEKMHOPCTYXIJSABEZHIKMNOPTYX")
_LEADING_ZEROS: Final = re.compile("(?<![0-9])0+(?=[0-9])")


def escape_invisible_characters(text: str) -> str:
    """Return a text on one line. Each invisible character is replaced by its escape in Python, such as `\\x1b`."""
    if text.isprintable() and not _WITHOUT_SHAPE.search(text):
        return text
    return "".join(map(_shown, text))


def console_cell_text(text: str) -> str:
    """Return a text for a cell of a console table: by `escape_invisible_characters`, with repeated blanks escaped, too.

    A name with many blanks could otherwise fill its line of the screen, and imitate the next row.
    """
    text = re.sub("^([a-z][a-z0-9+.-]+):/(?=[^/])", r"\1://", text)  # a path keeps one slash of an address
    return _BLANKS.sub(lambda blank: _escape(blank[0]), escape_invisible_characters(text))


def is_visible_letter(letter: str) -> bool:
    """Return whether a character has a visible shape or a width, and does not reorder its neighbours."""
    if letter.isprintable():
        return not _WITHOUT_SHAPE.match(letter)
    return unicodedata.category(letter) == "Zs"


def comparable_patient_number(number: str) -> str:
    """Return a text that is equal for all patient numbers that a person would read as one number.

    These differences are ignored: letter case, blanks, zeros before a number, the width of letters, and Latin, Cyrillic
    or Greek letters of equal shape.
    """
    plain = unicodedata.normalize("NFKC", number).upper().translate(_LOOK_ALIKE)
    return _LEADING_ZEROS.sub("", "".join(plain.split()))


def find_look_alike_patient_numbers(numbers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each pair of different patient numbers that a person would read as one number (see
    `comparable_patient_number`).

    The number that comes earlier in `numbers` is the first of its pair.
    """
    first: dict[str, str] = {}
    for number in dict.fromkeys(numbers):
        if number and (first_number := first.setdefault(comparable_patient_number(number), number)) != number:
            yield first_number, number


def _shown(letter: str) -> str:
    return letter if is_visible_letter(letter) else _escape(letter)


def _escape(letter: str) -> str:
    """Return the escape of a character: `\\x20`, `\\u2003`, `\\U000e0001`, or the short form `\\t`, `\\n`, `\\r`."""
    if letter == " ":
        return "\\x20"
    return letter.encode("unicode_escape").decode("ascii")
