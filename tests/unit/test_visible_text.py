from __future__ import annotations

import sys
import unicodedata

import pytest

from fieldray.plain_text import console_cell_text, escape_invisible_characters
from hostile import ALL, forbidden_in

CLEAN = ("image-001.png", "Знімок грудної клітки №1", "Müller^Jürgen", "胸部Ｘ線", "שלום", "a  b", "5 мг", "胸 部", "")


@pytest.mark.parametrize("text", CLEAN)
def test_a_clean_text_is_unchanged(text: str) -> None:
    assert escape_invisible_characters(text) == text


@pytest.mark.parametrize("text", ALL)
def test_invisible_reordering_and_control_characters_are_escaped(text: str) -> None:
    shown = escape_invisible_characters(text)
    assert forbidden_in(shown) == set()
    assert len(shown.splitlines()) == 1
    assert escape_invisible_characters(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x85", "\\x85"),
        ("x\u202egnp.exe", "x\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_invisible_characters_are_escaped_as_in_python(text: str, shown: str) -> None:
    assert escape_invisible_characters(text) == shown


def test_every_character_without_a_shape_is_escaped() -> None:
    """Controls, formatting, surrogates, private use, unassigned, and line and paragraph separators."""
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    left = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in hidden and escape_invisible_characters(chr(code)) == chr(code)
    ]
    assert left == []


def test_repeated_blanks_in_a_console_cell_are_escaped() -> None:
    assert console_cell_text("a b") == "a b"
    assert [console_cell_text(path) for path in ("s3:/box/a.png", "s3://box", "C:/a")] == [
        "s3://box/a.png",
        "s3://box",
        "C:/a",
    ]
    assert console_cell_text("a    normal 0.01") == "a \\x20\\x20\\x20normal 0.01"
    assert console_cell_text("a\u3000\u2003 b") == "a\u3000\\u2003\\x20b"
