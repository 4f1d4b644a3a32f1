"""The licences of others in the About box: what was collected is shown, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtWidgets import QDialog, QLabel
from pytestqt.qtbot import QtBot

import licences
import parts
from fieldray.desktop.dialogs import AboutDialog, LicencesDialog, licensed_parts
from fieldray.translation import Translator

LGPL = "GNU LESSER GENERAL PUBLIC LICENSE\n\nEveryone is permitted to copy…"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Written by the very code that writes the installed program's."""
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
    path.write_text(json.dumps(licences.table(made)), encoding="utf-8")
    return path


@pytest.mark.parametrize("language", ["en", "uk"])
def test_the_texts_are_shown_as_they_are(language: str, table: Path, qtbot: QtBot) -> None:
    about = AboutDialog(Translator(language), licences=table)
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
    assert "_internal" not in dialog.text.toPlainText()  # only what is under the LGPL is named as replaceable
    dialog.close()


def test_a_checkout_says_why_there_are_none(tmp_path: Path, qtbot: QtBot) -> None:
    about = AboutDialog(Translator("en"), licences=tmp_path / "absent.json")
    qtbot.addWidget(about)
    assert isinstance(about, QDialog)
    assert any("listed in the installed program" in label.text() for label in about.findChildren(QLabel))
    assert licensed_parts(tmp_path / "absent.json") == ()
