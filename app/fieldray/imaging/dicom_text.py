"""Decoding of text in a DICOM file whose character set is missing or wrong.

Only letters that are certain are decoded. A wrongly decoded name is another person's name, and an archive would keep
the wrong name. Each uncertain byte therefore becomes U+FFFD, and a name with U+FFFD is not exported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydicom.charset import CODES_TO_ENCODINGS, decode_bytes

_ESCAPE: Final = b"\x1b"
_DELIMITERS: Final = frozenset(b"\\^=\r\n\t\f")
# pydicom's names of the encodings of a file without a character set, and of encodings in which most letters are ASCII.
_NOTHING_DECLARED: Final = frozenset({"iso8859", "ascii"})
_LATIN: Final = _NOTHING_DECLARED | {"latin_1", "iso8859_2", "iso8859_3", "iso8859_4", "iso_ir_148"}
_OF_SEVERAL_BYTES: Final = frozenset({"gb18030", "gbk", "gb2312", "euc_kr", "shift_jis", "iso_ir_58", "utf8", "utf_8"})
_CONTROLS: Final = re.compile("[\x80-\x9f\ufffd]")
_DIVIDED: Final = re.compile(r"[\^=\\ .,'’()\-]+")
_CYRILLIC: Final = re.compile("[А-ЯЁІЇЄҐЎ]?[а-яёіїєґў]+|[А-ЯЁІЇЄҐЎ]+")
_CAPITAL: Final = re.compile("[А-ЯЁІЇЄҐЎ]")
_VOWELS: Final = re.compile("[аеёиоуыэюяіїє]", re.IGNORECASE)
# In no language: Ukrainian and Russian letters together; ь, ъ or ы first in a word; five consonants in a row.
_NO_LANGUAGE: Final = re.compile(r"[їєґ].*[ыэёъў]|[ыэёъў].*[їєґ]|\b[ьъы]|[бвгджзклмнпрстфхцчшщ]{5}", re.IGNORECASE)
_WORD_LETTERS: Final = 3
_FEW_LETTERS: Final = 8
# Letters that have one byte in Western and in Central European sets (ISO 8859-1 and 8859-2, Windows 1252 and 1250).
_SHARED_LATIN: Final = frozenset(
    byte for byte in range(0xC0, 0x100) if bytes([byte]).decode("latin_1") == bytes([byte]).decode("iso8859_2")
)


def decode_text(value: bytes, encodings: Sequence[str], *, is_name: bool) -> str:
    """Decode the bytes of a DICOM text value. U+FFFD replaces each byte whose letter is uncertain.

    encodings  the encodings that the file declares, by pydicom's names
    is_name    whether the text is a person's name. A name has no signs such as a degree sign
    """
    if value.isascii() and _ESCAPE not in value:
        return value.decode("ascii")
    declared = [name for name in encodings if name not in _NOTHING_DECLARED]
    if _ESCAPE in value:  # the escape names the set that follows
        return str(decode_bytes(value, [*encodings, *CODES_TO_ENCODINGS.values()], set(_DELIMITERS)))
    several = [name for name in declared if name.lower() in _OF_SEVERAL_BYTES]
    others = [name for name in declared if name not in several]
    is_cyrillic = _is_cyrillic(value, "cp1251") and not any(_is_cyrillic(value, name) for name in others)
    if is_cyrillic and all(name in _LATIN or name == "iso_ir_144" for name in others):
        # In KOI8 capitals have the codes of small letters in Windows-1251, and a name has capitals.
        others = [] if is_name and not _CAPITAL.search(value.decode("cp1251")) else ["cp1251"]
    for name in (*several, "utf_8", *others):
        text = _strictly(value, name)
        if text is not None and not (is_name and name in _LATIN and not _is_latin_name(text)):
            return text
    if not declared and _is_latin(value):
        return value.decode("latin_1")
    return value.decode("ascii", "replace")


def _strictly(value: bytes, encoding: str) -> str | None:
    try:
        text = value.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return None
    return None if _CONTROLS.search(text) else text


def _is_cyrillic(value: bytes, encoding: str) -> bool:
    """Return whether bytes in this encoding are almost certainly Cyrillic words of one language.

    The two bytes of a Chinese or Korean letter look like two Cyrillic capitals. At least one word must therefore
    have small letters or an odd number of letters, or the text must have many letters.
    """
    text = _strictly(value, encoding)
    words = [word for word in _DIVIDED.split((text or "").strip()) if word and not word.isascii()]
    if not words or not all(_CYRILLIC.fullmatch(word) for word in words) or _NO_LANGUAGE.search(text or ""):
        return False
    if not all(_VOWELS.search(word) for word in words if len(word) >= _WORD_LETTERS):
        return False
    letters = sum(map(len, words))
    has_form = any(len(word) >= _WORD_LETTERS and (len(word) % 2 or word[1:].islower()) for word in words)
    return has_form or letters >= _FEW_LETTERS


def _is_latin_name(text: str) -> bool:
    """Return whether a name decoded as Latin is plausible.

    Some letters may have accents, but not every letter of a word. Otherwise the bytes belong to another character set.
    """
    words = [word for word in _DIVIDED.split(text.strip()) if not word.isascii()]
    has_plain = re.search("[A-Za-z]", text) is not None
    return has_plain and all(
        word.isalpha() and (len(word) < _WORD_LETTERS or re.search("[A-Za-z]", word)) for word in words
    )


def _is_latin(value: bytes) -> bool:
    """Return whether bytes are ASCII and accented letters with the same code in Western and Central European sets."""
    words = re.split(rb"[\^=\\ .,'()\-]+", value)
    return all(
        set(word) - _SHARED_LATIN <= set(range(0x80)) and re.search(rb"[A-Za-z]", word) is not None
        for word in words
        if not word.isascii()
    )
