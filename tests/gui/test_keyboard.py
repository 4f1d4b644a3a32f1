"""The window without a mouse and without eyes.

The whole reading task by key presses, each sent to the widget with the focus. And screen readers: every control on
every page and in every dialog has a name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from desk import Desk
from fake_rooms import FakeRooms, candidate, refused, screened
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QDialog,
    QFileDialog,
    QLineEdit,
    QPlainTextEdit,
    QProgressBar,
    QScrollBar,
    QTextBrowser,
    QWidget,
)
from test_first_run import settings, two_packs

import fieldray.desktop
from fieldray.desktop.audit_page import LocalOperatingPointDialog
from fieldray.desktop.dialogs import (
    AboutDialog,
    DocumentDialog,
    ExportDialog,
    Licences,
    LicencesDialog,
    LicensedPart,
    SettingsDialog,
    guide_dialog,
)
from fieldray.desktop.image_painting import ViewState
from fieldray.desktop.intent import IntentQuestion, PackInUse, ScreeningIntent
from fieldray.desktop.keys import KeyListDialog
from fieldray.desktop.pack_choice import PackQuestion, QuestionKind
from fieldray.desktop.packs_page import PackDialog
from fieldray.desktop.welcome import ages_question_box
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.run import Verdict
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import DEFAULT_REPORT_OPTIONS
from fieldray.translation import Translator

Key, Modifier = Qt.Key, Qt.KeyboardModifier
CONTROL, SHIFT = Modifier.ControlModifier, Modifier.ShiftModifier
MOST_TABS = 80
LEAST_MARK = 60

__all__ = ["settings", "two_packs"]  # fixtures


@pytest.fixture
def rooms(two_packs: FakeRooms) -> FakeRooms:
    """Two packs, and four images."""
    two_packs.outcomes = [screened(1, 0.9), screened(2, 0.1), screened(3, 0.42), screened(4, 0.7)]
    return two_packs


def focus() -> QWidget:
    """The widget that has the focus, which a key press reaches."""
    found = QApplication.focusWidget()
    assert found is not None
    assert found.isVisible()
    return found


def press(key: Key, modifier: Modifier = Modifier.NoModifier, *, times: int = 1) -> None:
    for _ in range(times):
        QTest.keyClick(focus(), key, modifier)


def tab_to(wanted: Callable[[], QWidget]) -> None:
    """Press Tab until the wanted widget has the focus; cards are rebuilt whenever packs are listed."""
    for _ in range(MOST_TABS):
        if QApplication.focusWidget() is wanted():
            return
        press(Key.Key_Tab)
    raise AssertionError(f"Tab never comes to {wanted()}, but to {focus()}")


def type_path(desk: Desk, path: Path) -> None:
    """In Qt's own file dialog: type the name and press Enter."""
    desk.until(lambda: any(isinstance(window, QFileDialog) for window in QApplication.topLevelWidgets()))
    desk.until(lambda: isinstance(QApplication.focusWidget(), QLineEdit) and isinstance(focus().window(), QFileDialog))
    focus().setCompleter(None)  # its list of suggestions would open at any time after the last key
    QTest.keyClicks(focus(), str(path))
    press(Key.Key_Return)
    desk.window.activateWindow()  # as a window manager does once a dialog is closed


def test_a_reading_from_the_folder_to_the_report_without_a_mouse(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "image.dcm").touch()  # a folder without files is not screened
    (tmp_path / "out").mkdir()
    first = open_and_walk(desk, tmp_path / "images")
    look_and_measure(desk)
    compare(desk, first)
    judge_and_save(desk, tmp_path / "out")


def open_and_walk(desk: Desk, images: Path) -> int:
    """Choose a pack and a folder, and walk through the list; returns the open row."""
    bench, window = desk.bench, desk.window
    desk.until(lambda: [card.button.isVisible() for card in window.welcome.cards] == [True, True])
    window.activateWindow()
    desk.until(window.isActiveWindow)

    tab_to(lambda: window.welcome.cards[1].button)
    press(Key.Key_Space)
    desk.until(lambda: bench.packs.model is not None)
    assert bench.packs.model.manifest.pack_id == "adults"
    press(Key.Key_O, CONTROL)
    type_path(desk, images)
    desk.until(lambda: bench.rows.total_image_count() == 4)
    assert desk.rooms.session.started_with[-1][0] == (images,)
    desk.until(lambda: QApplication.focusWidget() is window.work_list.table)
    press(Key.Key_Home)
    desk.until(lambda: bench.image.pyramid is not None)
    first = bench.image.row.row_id
    press(Key.Key_Down)
    assert bench.image.row.row_id != first
    press(Key.Key_Up)
    desk.until(lambda: not bench.image.is_loading)
    assert bench.image.row.row_id == first
    return first


def look_and_measure(desk: Desk) -> None:
    """Zoom, move, change the window, switch overlays on and off by keys; then measure a line."""
    viewer, switches = desk.window.viewer, desk.bench.switches
    press(Key.Key_Plus, times=3)
    press(Key.Key_Right, SHIFT)
    press(Key.Key_Down, SHIFT)
    assert viewer.state.zoom > 1
    assert viewer.state.image_center[0] > 256
    assert viewer.state.image_center[1] > 300
    press(Key.Key_3)
    assert viewer.state.display_window == viewer.pyramid.display_window_presets[2]
    press(Key.Key_Up, CONTROL)
    press(Key.Key_Left, CONTROL)
    assert viewer.state.display_window not in viewer.pyramid.display_window_presets
    press(Key.Key_H)
    press(Key.Key_O)
    assert (switches.heat_map, switches.lung_outline) == (False, True)
    press(Key.Key_G)
    assert switches.magnifier
    press(Key.Key_M)
    press(Key.Key_Return)
    press(Key.Key_Right, SHIFT)
    press(Key.Key_Return)
    assert len(viewer.state.measurement_lines) == 1


def compare(desk: Desk, first: int) -> None:
    """Compare the open image with the next one of the list; then close the comparison."""
    bench, window = desk.bench, desk.window
    press(Key.Key_C)
    press(Key.Key_Down)
    desk.until(lambda: bench.second_image.pyramid is not None and bench.image.pyramid is not None)
    assert bench.second_image.row.row_id == first
    assert window.area.viewer.state.zoom == window.area.second_viewer.state.zoom
    press(Key.Key_C)
    assert bench.second_image.row is None
    press(Key.Key_Space)
    assert window.viewer.state == ViewState()


def judge_and_save(desk: Desk, out: Path) -> None:
    """Give a verdict with a note; then save CSV, which is ticked, without JSON."""
    window = desk.window
    desk.until(lambda: desk.bench.image.is_visible)
    press(Key.Key_2, CONTROL)
    tab_to(lambda: window.result_panel.verdict.note)
    QTest.keyClicks(focus(), "a rib")
    press(Key.Key_Return)
    desk.until(lambda: Verdict(choice="disagree", note="a rib") in desk.rooms.session.verdicts.values())
    press(Key.Key_S, CONTROL)
    desk.until(lambda: isinstance(QApplication.activeWindow(), ExportDialog))
    dialog = QApplication.activeWindow()
    tab_to(lambda: dialog.boxes["json"])
    press(Key.Key_Space)
    tab_to(lambda: dialog.save)
    press(Key.Key_Space)
    type_path(desk, out)
    desk.until(lambda: bool(desk.rooms.exported))
    assert desk.rooms.exported == [(1, out, ("csv", "pdf"), DEFAULT_REPORT_OPTIONS)]


def test_no_key_reaches_an_image_behind_another_page(desk: Desk) -> None:
    desk.screen(answer="children-1.0.0")
    desk.activate()
    desk.open_row(3)
    window = desk.window
    seen = window.viewer.state
    press(Key.Key_H, CONTROL | SHIFT)
    window.history_page.table.setFocus()
    press(Key.Key_2, CONTROL)
    for key in (Key.Key_U, Key.Key_F, Key.Key_R, Key.Key_E):
        press(key)
    assert not window.actions_by_name["print"].isEnabled()
    press(Key.Key_Escape)
    press(Key.Key_3, CONTROL)
    desk.until(lambda: desk.rooms.session.verdicts == {3: Verdict(choice="unsure")})
    assert (desk.bench.image.row.row_id, window.viewer.state) == (3, seen)


def test_tab_goes_through_every_control_in_sight_and_comes_back(desk: Desk) -> None:
    desk.screen(answer="children-1.0.0")
    desk.open_row(1)
    window = desk.window
    window.activateWindow()
    desk.until(window.isActiveWindow)
    window.work_list.table.setFocus()
    start, visited = focus(), set()
    for _ in range(MOST_TABS):
        press(Key.Key_Tab)
        visited.add(focus())
        if focus() is start:
            break
    assert focus() is start
    wanted = {
        *window.tools.buttons.values(), *window.result_panel.verdict.buttons.values(), window.viewer,
        window.work_list.table, window.toolbar.open_button, window.toolbar.menu_button,
        window.result_panel.heat_map_box, window.result_panel.opacity,
        window.work_list.filter_bar.search,
    }  # fmt: skip
    missed = {widget for widget in wanted if widget.isVisible() and widget.isEnabled()} - visited
    assert [widget.accessibleName() or widget.text() for widget in missed] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_focus_is_visible_on_every_control(desk: Desk, theme: str) -> None:
    desk.application.change_settings({"theme": theme})
    desk.screen(answer="children-1.0.0")
    desk.open_row(1)
    window = desk.window
    window.activateWindow()
    desk.until(window.isActiveWindow)
    for page in (window.images, window.packs_page, window.audit_page, window.welcome):
        window.pages.setCurrentWidget(page)
        window.toolbar.open_button.setFocus()
        seen = set()
        while focus() not in seen:
            seen.add(focus())
            assert _marked_points(focus()) >= LEAST_MARK, focus().accessibleName() or focus()
            press(Key.Key_Tab)
        assert len(seen) > 5


def _marked_points(widget: QWidget) -> int:
    """How many points of the widget change with the focus; the text cursor is not counted."""
    QApplication.setCursorFlashTime(0)
    focused = widget.grab().toImage()
    widget.clearFocus()
    plain = widget.grab().toImage()
    widget.setFocus(Qt.FocusReason.TabFocusReason)
    first, second = (np.frombuffer(image.constBits(), np.uint32) for image in (focused, plain))
    return int((first != second).sum())


CONTROLS = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit,
    QProgressBar, QTextBrowser,
)  # fmt: skip


def accessible_name(widget: QWidget) -> str:
    """The name that a screen reader is given, without mnemonics."""
    found = QAccessible.queryAccessibleInterface(widget)
    return found.text(QAccessible.Text.Name).strip() if found else ""


def controls(root: QWidget) -> Iterator[QWidget]:
    """All widgets that a person can operate, visible or not, and own drawn widgets that Tab reaches."""
    for widget in root.findChildren(QWidget):
        if isinstance(widget, QScrollBar) or is_part(widget):
            continue
        is_own = type(widget).__module__.startswith("fieldray.") and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        if isinstance(widget, CONTROLS) or (is_own and not widget.isWindow()):
            yield widget


def is_part(widget: QWidget) -> bool:
    """Whether Qt made the widget as a part of another control, which has the name instead."""
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
        if not accessible_name(widget)
    ]


def dialogs(desk: Desk, translator: Translator, text: str = "made up") -> Iterator[QDialog]:
    """One dialog of each kind, with a text from outside in it."""
    window, bench, why = desk.window, desk.bench, Reason("modality", (("modality", text),))
    asked = candidate(f"/d/{text}", names={"en": text}, version=text, pack_id=text)
    part = LicensedPart(name=text, version=text, licence=text, files=(text,), texts=((text, ""),))
    yield AboutDialog(translator, window)
    yield LicencesDialog(Licences(parts=(part,), texts={"": text}), translator, window)
    yield ExportDialog(translator, window)
    yield guide_dialog(translator, window)
    yield KeyListDialog(translator, window)
    yield DocumentDialog("Model card", text, translator, window)
    yield LocalOperatingPointDialog(text, translator, window)
    for kind in get_args(QuestionKind):
        yield PackDialog(PackQuestion(kind=kind, candidate=asked, reason=why), bench.packs, translator, window)
    yield SettingsDialog(bench.settings, translator, window)
    used = PackInUse(name=text, version=text, model_sha256="0" * 64, ages_years=(18, 95), listed_pack=asked)
    yield ages_question_box(
        window,
        IntentQuestion("ages", ScreeningIntent(serial_number=0, paths=(Path("/images", text),), pack=used)),
        bench.screening,
        translator,
    )


@pytest.mark.parametrize("language", ["en", "uk"])
def test_every_control_of_every_page_has_a_name(desk: Desk, language: str) -> None:
    desk.application.change_settings({"language": language})
    assert unnamed(desk.window) == []
    desk.screen(answer="children-1.0.0")
    desk.open_row(1)
    desk.window.area.pin_or_close_image()
    desk.finish()
    desk.window.actions_by_name["audit"].trigger()
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


def at_the_list(desk: Desk) -> None:
    """A window whose first image is open and whose list has the focus."""
    desk.screen(answer="adults-1.0.0")
    desk.finish()
    desk.activate()
    desk.open_row(1)
    desk.until(desk.window.work_list.table.hasFocus)


def steps(desk: Desk, key: Key) -> bool:
    """Whether a key, pressed on the focused widget, opens another image."""
    before = desk.bench.image.row
    QTest.keyClick(focus(), key)
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.is_visible)
    return desk.bench.image.row is not before


def test_the_arrow_keys_belong_to_the_list_wherever_the_focus_is(desk: Desk) -> None:
    at_the_list(desk)
    result, bar = desk.window.result_panel, desk.window.work_list.filter_bar
    for widget in (result.verdict.buttons["agree"], result.heat_map_box, result, bar.verdicts, bar.devices):
        widget.setFocus()
        desk.window.work_list.select_first_or_last(is_last=False)
        desk.until(lambda: desk.bench.image.is_visible)
        assert steps(desk, Key.Key_Down), widget
    for field, key in ((bar.search, Key.Key_Home), (result.opacity, Key.Key_Right)):
        desk.window.work_list.select_image(2)
        desk.until(lambda: desk.bench.image.is_visible)
        field.setFocus()
        assert not steps(desk, key), field


def test_a_click_on_a_button_leaves_the_focus_on_the_list(desk: Desk) -> None:
    at_the_list(desk)
    table = desk.window.work_list.table
    assert table.hasFocus()
    QTest.mouseClick(desk.window.result_panel.verdict.buttons["agree"], Qt.MouseButton.LeftButton)
    assert table.hasFocus()
    bar = desk.window.work_list.filter_bar
    bar.verdicts.setFocus()
    bar.verdicts.activated.emit(0)
    assert table.hasFocus()


def test_a_focused_button_that_disappears_gives_the_focus_to_the_list(desk: Desk) -> None:
    desk.rooms.outcomes.append(refused(5, reason("inverted")))
    desk.rooms.session.again = screened(5, 0.9)
    at_the_list(desk)
    desk.window.work_list.select_image(5)
    desk.until(lambda: desk.bench.image.is_visible and bool(desk.window.result_panel.override_buttons))
    desk.window.result_panel.override_buttons[-1].setFocus()
    QTest.keyClick(focus(), Key.Key_Space)
    desk.until(lambda: isinstance(desk.bench.image.row and desk.bench.image.row.outcome, ScreenedOutcome))
    desk.until(desk.window.work_list.table.hasFocus)
    assert len(desk.rooms.session.started_with) == 1


@pytest.mark.parametrize("goes", [QWidget.hide, lambda button: button.setEnabled(False)], ids=["hidden", "disabled"])
def test_a_focused_button_that_disappears_from_a_page_gives_the_focus_to_the_page(
    desk: Desk, goes: Callable[[QWidget], None]
) -> None:
    at_the_list(desk)
    desk.window.pages.setCurrentWidget(desk.window.audit_page)
    button = next(one for one in desk.window.audit_page.findChildren(QAbstractButton) if one.isEnabled())
    button.setFocus()
    goes(button)
    assert focus() is desk.window.audit_page


def test_a_message_that_is_closed_gives_the_focus_to_the_list(desk: Desk) -> None:
    at_the_list(desk)
    desk.bench.notice_board.post_reason("copied", reason("inverted"))
    desk.until(lambda: bool(desk.window.banners.findChildren(QAbstractButton)))
    desk.window.banners.findChildren(QAbstractButton)[0].setFocus()
    desk.bench.notice_board.withdraw("copied")
    assert desk.window.work_list.table.hasFocus()
