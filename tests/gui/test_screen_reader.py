"""What a screen reader says: every control on every page and in every dialog has a name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from desk import Desk
from fake_rooms import FINGERPRINT, candidate
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QDialog,
    QLineEdit,
    QPlainTextEdit,
    QProgressBar,
    QScrollBar,
    QTextBrowser,
    QWidget,
)

import fieldray.desktop
from fieldray.desktop.audit_page import LocalPointDialog
from fieldray.desktop.dialogs import (
    AboutDialog,
    ExportDialog,
    GuideDialog,
    LicencesDialog,
    LicensedPart,
    SettingsDialog,
)
from fieldray.desktop.intent import Intent, IntentQuestion, PackInUse
from fieldray.desktop.keys import KeySheet
from fieldray.desktop.pack_choice import PackQuestion, QuestionKind
from fieldray.desktop.packs_page import ModelCard, PackDialog
from fieldray.desktop.welcome import ages_box
from fieldray.reasons import Reason
from fieldray.translation import Translator

CONTROLS = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit,
    QProgressBar, QTextBrowser,
)  # fmt: skip


def said(widget: QWidget) -> str:
    """The name that a screen reader is given, without what it means to press."""
    found = QAccessible.queryAccessibleInterface(widget)
    return found.text(QAccessible.Text.Name).strip() if found else ""


def controls(root: QWidget) -> Iterator[QWidget]:
    """What a person can act on, in sight or not, and what the program draws itself that Tab goes to."""
    for widget in root.findChildren(QWidget):
        if isinstance(widget, QScrollBar) or is_part(widget):
            continue
        is_own = type(widget).__module__.startswith("fieldray.") and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        if isinstance(widget, CONTROLS) or (is_own and not widget.isWindow()):
            yield widget


def is_part(widget: QWidget) -> bool:
    """Whether Qt made it as a part of another control, which is the one that is named."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QComboBox | QAbstractItemView | QLineEdit | QAbstractSpinBox):
            return True
        parent = parent.parentWidget()
    return False


def unnamed(root: QWidget) -> list[str]:
    return [
        f"{type(widget).__name__} {widget.objectName()} {widget.toolTip()}".strip()
        for widget in controls(root)
        if not said(widget)
    ]


def dialogs(desk: Desk, translator: Translator, text: str = "made up") -> Iterator[QDialog]:
    """One of each kind, with a text from outside in it."""
    window, bench, why = desk.window, desk.bench, Reason("modality", (("modality", text),))
    asked = candidate(f"/d/{text}", names={"en": text}, version=text, pack_id=text)
    part = LicensedPart(name=text, version=text, licence=text, replaceable=(text,), texts={text: text})
    yield AboutDialog(translator, window)
    yield LicencesDialog([part], translator, window)
    yield ExportDialog(translator, window)
    yield GuideDialog(translator, window)
    yield KeySheet(translator, window)
    yield ModelCard(text, translator, window)
    yield LocalPointDialog(text, translator, window)
    for kind in get_args(QuestionKind):
        fingerprint = FINGERPRINT if kind == "unknown_key" else ""
        question = PackQuestion(kind=kind, candidate=asked, reason=why, fingerprint=fingerprint)
        yield PackDialog(question, bench.packs, translator, window)
    yield SettingsDialog(bench.settings, translator, window)
    used = PackInUse(name=text, version=text, model_sha256="0" * 64, ages_years=(18, 95), source=asked)
    yield ages_box(
        window,
        IntentQuestion("ages", Intent(since=0, paths=(Path("/images", text),), pack=used)),
        bench.screening,
        translator,
    )


@pytest.mark.parametrize("language", ["en", "uk"])
def test_every_control_of_every_page_has_a_name(desk: Desk, language: str) -> None:
    desk.application.change_settings({"language": language})
    assert unnamed(desk.window) == []
    desk.screen()
    desk.open_row(1)
    desk.window.area.keep_or_close()
    desk.finish()
    desk.window.audit_page.button.click()
    desk.until(lambda: desk.bench.auditing.report is not None)
    assert len(list(controls(desk.window))) > 60
    assert unnamed(desk.window) == []


@pytest.mark.parametrize("language", ["en", "uk"])
def test_every_control_of_every_dialog_has_a_name(desk: Desk, language: str) -> None:
    kinds = set()
    for dialog in dialogs(desk, Translator(language)):
        assert list(controls(dialog))
        assert unnamed(dialog) == [], type(dialog).__name__
        assert dialog.windowTitle()
        kinds.add(type(dialog))
        dialog.close()
        dialog.deleteLater()
    for module in pkgutil.iter_modules(fieldray.desktop.__path__, "fieldray.desktop."):
        importlib.import_module(module.name)
    own = {kind for kind in QDialog.__subclasses__() if kind.__module__.startswith("fieldray.")}
    assert own - kinds == set()


def test_a_control_without_a_name_is_found(desk: Desk) -> None:
    nameless = QLineEdit(desk.window)
    assert unnamed(desk.window) == ["QLineEdit"]
    nameless.setAccessibleName("a name")
    assert unnamed(desk.window) == []
