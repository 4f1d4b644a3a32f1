"""Every sentence a person can see has its line in every language, with the same fields."""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import fieldray
from fieldray.backends import BACKENDS
from fieldray.paths import asset
from fieldray.reasons import TEMPLATES
from fieldray.settings import TABLE
from fieldray.translation import LANGUAGES

PACKAGE = Path(fieldray.__file__).parent
OTHERS = [language for language in LANGUAGES if language != "en"]

# Written alike in both languages: names of things, commands, file kinds, keys and units.
SAME_IN_ALL = {
    *("DICOM", "PNG", "JPEG", "DICOMDIR", "zip", "CSV", "JSON", "Fieldray", "SHA", "Edge", "TPU", "Coral", "USB"),
    *(
        "TensorFlow",
        "Lite",
        "Ed25519",
        "PEM",
        "AVX",
        "Intel",
        "AMD",
        "Linux",
        "Ctrl",
        "N",
        "H",
        "x",
        "a",
        "f",
        "libedgetpu",
        "libusb",
    ),
    *("ai", "edge", "litert", "tflite", "runtime", "edgetpu", "compiler", "edgetpu_compiler", "coral", "docs", "udev"),
    *("plugdev", "cpupower", "frequency", "set", "g", "performance"),
    *("FIELDRAY_HOME",),
    *("Apache", "GNU", "LGPL", "Qt", "Python", "for", "code", "qt", "io"),
    *(
        "pack",
        "splits",
        "weights",
        "none",
        "learning_rate",
        "fieldray",
        "adapt",
        "RECIPE",
        "pip",
        "install",
        "Ed",
        "PEM",
    ),
}


def spoken() -> Iterator[str]:
    """Literals given to `.text(`, the reasons and the phrases that fill them, and the labels of the settings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "text":
                yield from (part.value for part in node.args[:1] if isinstance(part, ast.Constant))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reason":
                values = (given.value.value for given in node.keywords if isinstance(given.value, ast.Constant))
                yield from (value for value in values if isinstance(value, str) and " " in value)
    yield from TEMPLATES.values()
    yield from (row.label for row in TABLE)
    yield from (entry.title for entry in BACKENDS)


def fields(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.fixture(params=OTHERS)
def table(request: pytest.FixtureRequest) -> dict[str, str]:
    loaded: dict[str, str] = json.loads(asset(f"translations/{request.param}.json").read_text(encoding="utf-8"))
    return loaded


def test_nothing_is_left_untranslated(table: dict[str, str]) -> None:
    assert [text for text in dict.fromkeys(spoken()) if not table.get(text)] == []


def test_nothing_is_translated_that_nobody_says(table: dict[str, str]) -> None:
    assert table.keys() - set(spoken()) == set()


def test_the_fields_are_the_same(table: dict[str, str]) -> None:
    assert [text for text, other in table.items() if fields(text) != fields(other)] == []


def test_no_english_words_are_left(table: dict[str, str]) -> None:
    left = {
        other: foreign
        for other in table.values()
        if (foreign := set(re.findall(r"[A-Za-z_]+", re.sub(r"\{\w+\}", "", other))) - SAME_IN_ALL)
    }
    assert left == {}


def test_the_font_of_the_window_has_every_letter(qapp: object, table: dict[str, str]) -> None:
    from PySide6.QtGui import QFont, QFontMetrics

    metrics = QFontMetrics(QFont())
    letters = set("".join(table.values())) - {"\n"}
    assert [letter for letter in sorted(letters) if not metrics.inFontUcs4(ord(letter))] == []
