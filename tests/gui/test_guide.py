"""The user guide inside the program: in every language, naming the window's labels and keys, opening no file or link.

And the licences of others in the About box, shown word for word.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from desk import Desk
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel
from pytestqt.qtbot import QtBot

import fieldray
import licences
import parts
from fieldray.desktop.dialogs import AboutDialog, DocumentDialog, LicencesDialog, guide_dialog, guide_text
from fieldray.desktop.keys import KEY_BINDINGS
from fieldray.desktop.widgets import DocumentView
from fieldray.paths import guide_folder
from fieldray.settings import Settings
from fieldray.translation import Translator

LANGUAGES = sorted(path.stem for path in guide_folder().glob("*.md"))
LABEL = re.compile(r"(?<![*\w])\*([^*\n]+)\*(?!\*)")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
TITLE = re.compile(r"^##+ ", re.MULTILINE)
# Words in italics for stress that are no labels of the window.
STRESSED = {"model pack", "пакета моделі"}


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(language: str) -> Settings:
    return Settings({"language": language, "theme": "light", "pack": "made-up"})


def texts_of_the_window() -> set[str]:
    """Every English text in the sources of the window and in the modules whose texts it shows."""
    package = Path(fieldray.__file__).parent
    others = [
        package / name
        for name in (
            "reasons.py",
            "settings.py",
            "formatting.py",
            "domain/run.py",
            "reports/audit.py",
            "reports/document.py",
        )
    ]
    sources = [*sorted((package / "desktop").glob("*.py")), *sorted(package.glob("reports/exporters/*.py")), *others]
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def shown_image(view: DocumentView, name: str) -> tuple[int, int]:
    image = view.document().resource(QTextDocument.ResourceType.ImageResource.value, QUrl(name))
    return image.width(), image.height()


def test_f1_opens_the_guide_in_the_language_of_the_window(desk: Desk, language: str) -> None:
    QTest.keyClick(desk.window, Qt.Key.Key_F1)
    dialog = next(found for found in QApplication.topLevelWidgets() if isinstance(found, DocumentDialog))
    source = guide_text(guide_folder(), language)
    assert dialog.page.document().toPlainText().startswith(source.partition("\n")[0].removeprefix("# "))
    assert dialog.contents.count() == len(TITLE.findall(source))
    dialog.grab()
    before = dialog.page.verticalScrollBar().value()
    dialog.contents.setCurrentRow(dialog.contents.count() - 2)
    assert dialog.page.verticalScrollBar().value() > before
    dialog.close()


def test_every_picture_of_the_guide_is_shown(qtbot: QtBot, language: str) -> None:
    dialog = guide_dialog(Translator(language))
    qtbot.addWidget(dialog)
    names = PICTURE.findall(guide_text(guide_folder(), language))
    assert len(names) >= 4
    assert all(shown_image(dialog.page, name) > (300, 100) for name in names)


def test_every_label_named_in_the_guide_is_in_the_window(language: str) -> None:
    """Every text in *italics* is a text of the window, word for word."""
    translator = Translator(language)
    known = {translator.text(text) for text in texts_of_the_window()}
    named = set(LABEL.findall(guide_text(guide_folder(), language))) - STRESSED
    assert len(named) > 8
    assert named <= known


def test_every_key_of_the_window_stands_in_the_guide(language: str) -> None:
    """A row of digits is given by its ends; arrows with Alt, Ctrl or Shift by the modifier and the word *arrow*."""
    written = {"Down": "↓", "Up": "↑", "Space": "Пробіл"} if language == "uk" else {}
    bold = set(re.findall(r"\*\*([^*]+)\*\*", guide_text(guide_folder(), language)))
    missing = [
        key.command
        for key in KEY_BINDINGS
        if not {written.get(own, re.sub(r"^(\w+)\+(Left|Right|Up|Down)$", r"\1", own)) for own in key.shortcuts} & bold
        and key.command not in ("preset_2", "preset_3", "preset_4")
    ]
    assert missing == []


def test_a_language_without_a_guide_reads_the_english_one(tmp_path: Path) -> None:
    (tmp_path / "en.md").write_text("# Guide\n", encoding="utf-8")
    assert guide_text(tmp_path, "pl") == "# Guide\n"


def test_a_document_with_hostile_markup_reads_no_file_and_opens_no_link(qtbot: QtBot, untouched: Path) -> None:
    address = untouched.as_uri()
    lines = [f"![a]({untouched})", f"![b]({address})", "![c](http://example.org/x.png)", f"![d](../{untouched.name})"]
    lines += [f'<img src="{untouched}">', f"[link]({address})", f'<link rel="stylesheet" href="{address}">']
    view = DocumentView("# Title\n\n" + "\n\n".join(lines), {})
    qtbot.addWidget(view)
    view.resize(600, 400)
    view.show()
    view.grab()
    view.anchorClicked.emit(QUrl(address))
    for kind in QTextDocument.ResourceType:
        view.document().resource(kind.value, QUrl.fromLocalFile(str(untouched)))
    assert shown_image(view, str(untouched)) == (1, 1)
    assert view.document().toPlainText().startswith("Title")


def test_the_guide_is_searched(qtbot: QtBot, tmp_path: Path) -> None:
    """The search starts at the top; Enter goes to the next match, at last to the first, and keeps the guide open."""
    body = "\n".join(f"## Part {number}\n\n{'text ' * 400}{'Drives. ' * (number == 2)}\n" for number in range(1, 5))
    (tmp_path / "en.md").write_text(f"# Guide\n\nOf drives.\n\n{body}{'text ' * 900}drives\n", encoding="utf-8")
    dialog = guide_dialog(Translator("en"), folder=tmp_path)
    qtbot.addWidget(dialog)
    dialog.show()
    QTest.keyClick(dialog, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClicks(dialog.search, "DRIVES")
    places = []
    for _ in range(4):
        assert dialog.page.textCursor().selectedText().upper() == "DRIVES"
        places.append(dialog.page.textCursor().selectionStart())
        QTest.keyClick(dialog.search, Qt.Key.Key_Return)
    assert places[:3] == sorted(places[:3]) and len(set(places)) == 3 and places[3] == places[0]
    assert dialog.isVisible() and dialog.page.verticalScrollBar().value() > 0
    assert not dialog.no_match_label.isVisible()
    QTest.keyClicks(dialog.search, "no such words")
    assert dialog.page.textCursor().atStart()
    assert dialog.no_match_label.isVisible() and dialog.no_match_label.text() == "Nothing found."
    dialog.search.clear()
    assert not dialog.no_match_label.isVisible()
    assert dialog.contents.count() == 4


LGPL = "GNU LESSER GENERAL PUBLIC LICENSE\n\nEveryone is permitted to copy…"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table of licences, written by the code that writes the installed program's table."""
    made = [
        parts.Part(
            name="Qt", version="6.1", licence="LGPL-3.0-only", kind="native", package_url="pkg:generic/qt@6.1",
            texts={"LGPL-3.0-only": LGPL}, files=("_internal/libQt6Core.so.6",),
        ),
        parts.Part(
            name="numpy", version="2.4", licence="BSD-3-Clause", kind="distribution", package_url="pkg:pypi/numpy@2.4",
            texts={"LICENSE": "Redistribution and use", "fft/LICENSE": LGPL}, files=("_internal/numpy/x.so",),
        ),
    ]  # fmt: skip
    path = tmp_path / "licences.json"
    path.write_text(json.dumps(licences.licence_table(made)), encoding="utf-8")
    return path


@pytest.mark.parametrize("language", ["en", "uk"])
def test_the_about_box_shows_licence_texts_word_for_word(language: str, table: Path, qtbot: QtBot) -> None:
    about = AboutDialog(Translator(language), table=table)
    qtbot.addWidget(about)
    about.show()
    about.licences_button.click()
    dialog = about.findChild(LicencesDialog)
    assert dialog is not None
    assert [dialog.list.item(row).text() for row in range(dialog.list.count())] == [
        "Qt 6.1\nLGPL-3.0-only",
        "numpy 2.4\nBSD-3-Clause",
    ]
    assert LGPL in dialog.text.toPlainText()
    assert "_internal/libQt6Core.so.6" in dialog.text.toPlainText()
    assert any("LGPL" in label.text() for label in dialog.findChildren(QLabel))
    dialog.list.setCurrentRow(1)
    assert "Redistribution and use" in dialog.text.toPlainText()
    assert "_internal" not in dialog.text.toPlainText()  # only libraries under the LGPL are named as replaceable
    dialog.close()


def test_from_a_checkout_the_about_box_says_why_it_has_no_licences(tmp_path: Path, qtbot: QtBot) -> None:
    about = AboutDialog(Translator("en"), table=tmp_path / "absent.json")
    qtbot.addWidget(about)
    assert isinstance(about, QDialog)
    assert any("licences comes only with the installed program" in label.text() for label in about.findChildren(QLabel))
