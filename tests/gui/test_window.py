"""The main window: languages, themes, keys, closing, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
from desk import Begin, Desk, press, texts, turn_wheel
from fake_rooms import FakeRooms, model, save, screened
from PySide6.QtCore import QEvent, QMimeData, QObject, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QMenu,
    QMessageBox,
    QPushButton,
    QSlider,
    QSpinBox,
    QWidget,
)
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.dialogs import DocumentDialog, SettingsDialog, setting_choice_text
from fieldray.desktop.keys import KEY_BINDINGS, KeyListDialog, cyrillic_equivalents
from fieldray.desktop.notices import notify_run_end
from fieldray.desktop.result_panel import FoldingCard, ScoreScaleWidget
from fieldray.desktop.style import colours, style_sheet
from fieldray.desktop.widgets import Surface
from fieldray.desktop.worklist_delegate import ICON_COLUMN_WIDTH, ROW_HEIGHT
from fieldray.desktop.worklist_rows import COLUMN_KEYS as COLUMNS
from fieldray.domain.finding import WORK_LIST_ORDER
from fieldray.domain.run import Verdict
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.reasons import reason
from fieldray.settings import ROW_BY_KEY, SETTING_ROWS, Settings, load_settings
from fieldray.store.results import ResultStore
from fieldray.translation import Translator, languages


def test_every_surface_has_its_style() -> None:
    assert all(f"QWidget#{name} " in style_sheet("light").replace(",", " ") for name in get_args(Surface))


def test_the_language_changes_at_once_and_keeps_the_work(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    before = desk.window
    desk.application.change_settings({"language": "uk"})
    assert desk.window is not before
    desk.until(lambda: "Пакет позначає цей знімок." in texts(desk.window.result_panel))
    assert desk.window.toolbar.start_button.accessibleName() == "Почати"
    assert "Лише для досліджень. Не для діагностики." in texts(desk.window.statusBar())
    assert desk.bench.rows.total_image_count() == 4
    assert "Показник 0,90" in texts(desk.window.result_panel)
    desk.window.result_panel.verdict.buttons["agree"].click()
    desk.until(lambda: desk.rooms.session.verdicts == {1: Verdict(choice="agree")})


def test_a_rebuilt_window_keeps_the_open_image_search_and_sorting(desk: Desk) -> None:
    desk.screen()
    desk.open_row(3)  # in the order 1, 4, 3, 2
    rows = desk.bench.rows
    for theme, text, count in (("dark", "", 4), ("light", "image-00003", 1), ("dark", "nothing", 0)):
        desk.window.work_list.filter_bar.search.setText(text)
        desk.until(lambda count=count: rows.rowCount() == count)
        desk.application.change_settings({"theme": theme})
        desk.activate()
        table = desk.window.work_list.table
        desk.until(lambda table=table: QApplication.focusWidget() is table)
        assert desk.bench.image.row.row_id == 3
        assert [rows.row_id_at(index) for index in table.selectionModel().selectedRows()] == [3][:count]
        assert desk.window.work_list.filter_bar.search.text() == text
    desk.window.work_list.filter_bar.search.clear()
    desk.until(lambda: rows.rowCount() == 4)
    assert table.currentIndex().row() == 2
    for column in (COLUMNS.index("score"), -1):
        desk.window.work_list.table.horizontalHeader().setSortIndicator(column, Qt.SortOrder.DescendingOrder)
        desk.application.change_settings({"language": "uk"})
        assert desk.window.work_list.table.horizontalHeader().sortIndicatorSection() == column
        assert desk.window.work_list.table.horizontalHeader().sortIndicatorOrder() == Qt.SortOrder.DescendingOrder


def test_after_a_rebuild_only_the_new_window_shows_the_next_image(desk: Desk) -> None:
    desk.screen()
    desk.finish()
    desk.application.change_settings({"theme": "dark"})
    desk.activate()  # by then the previous window is gone
    desk.bench.packs.model_card_read.emit("# Card")
    desk.dialog(DocumentDialog).reject()
    desk.window.actions_by_name["history"].trigger()
    desk.bench.past_runs.open(desk.bench.screening.run_id)
    desk.until(lambda: desk.bench.screening.past_run and desk.window.images.isVisible())
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 1)


def test_the_settings_dialog_has_a_line_for_every_row_and_saves(desk: Desk, home: Path) -> None:
    desk.window.actions_by_name["settings"].trigger()
    dialog = desk.dialog(SettingsDialog)
    assert set(dialog.fields) == {row.key for row in SETTING_ROWS if row.is_in_dialog}
    shown = [key for key, field in dialog.fields.items() if field.isVisible()]
    assert shown == ["language", "theme", "hide_patient", "keep_folders", "reader", "heat_map_opacity"]
    dialog.advanced.click()
    assert all(field.isVisible() for field in dialog.fields.values())
    desk.window.result_panel.opacity.setValue(5)  # stays as it is until the setting changes
    desk.application.change_settings({"folded": "use"})
    desk.window.result_panel.heat_map_box.setChecked(False)
    desk.application.change_settings({"theme": "dark"})
    assert (desk.window.result_panel.opacity.value(), desk.bench.switches.heat_map) == (5, False)
    desk.window.actions_by_name["settings"].trigger()
    dialog = desk.dialog(SettingsDialog)
    dialog.fields["heat_map_opacity"].setValue(70)
    dialog.fields["language"].setCurrentIndex(dialog.fields["language"].findData("uk"))
    dialog.fields["hide_patient"].setChecked(True)
    dialog.accept()
    desk.until((home / "settings.json").exists)
    assert (desk.bench.switches.heat_map_opacity, desk.bench.switches.hide_patient) == (70, True)
    assert load_settings(home / "settings.json")[0]["heat_map_opacity"] == 70
    desk.application.change_settings({"policy": "both"})
    desk.until(lambda: desk.rooms.session.device_choices == 1)


class _Windows(QObject):
    """Records which widgets are shown as windows of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.shown.append(type(watched).__name__)
        return False


def test_another_theme_opens_no_part_as_a_window_of_its_own(desk: Desk, qapp: QApplication) -> None:
    desk.screen()
    desk.open_row(1)
    windows = _Windows()
    qapp.installEventFilter(windows)
    desk.application.change_settings({"theme": "dark"})
    qapp.removeEventFilter(windows)
    assert windows.shown == ["MainWindow"]


@pytest.mark.parametrize("language", ["en", "uk"])
def test_the_verdict_stands_directly_under_the_score(desk: Desk, language: str) -> None:
    desk.screen()
    desk.open_row(1)
    desk.application.change_settings({"language": language})
    panel = desk.window.result_panel
    scale = panel.findChild(ScoreScaleWidget)
    below = scale.mapTo(panel.widget(), QPoint(0, scale.height())).y()
    assert 0 <= panel.verdict.mapTo(panel.widget(), QPoint()).y() - below < 3 * scale.height()
    assert panel.verdict.buttons["agree"].visibleRegion().isEmpty() is False  # without scrolling, at 1366 x 768


def test_escape_goes_back_to_the_images(desk: Desk) -> None:
    desk.screen()
    for page in ("packs", "audit", "history"):
        desk.window.actions_by_name[page].trigger()
        assert not desk.window.images.isVisible()
        QTest.keyClick(desk.window, Qt.Key.Key_Escape)
        assert desk.window.images.isVisible()


@pytest.mark.parametrize(("key", "back"), [(Qt.Key.Key_F11, Qt.Key.Key_Escape), (Qt.Key.Key_F8, Qt.Key.Key_F8)])
def test_a_key_hides_list_and_result_and_the_list_is_still_walked_through(
    desk: Desk, key: Qt.Key, back: Qt.Key
) -> None:
    desk.screen()
    desk.open_row(1)
    window, wide = desk.window, desk.window.viewer.width()
    QTest.keyClick(window, key)
    assert window.work_list.isHidden() and window.result_panel.isHidden()
    assert window.isFullScreen() is (key == Qt.Key.Key_F11)
    desk.until(lambda: window.isFullScreen() or window.viewer.width() > wide + 300)
    QTest.keyClick(window.viewer, Qt.Key.Key_Down)
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 4)
    QTest.keyClick(window, back)
    assert not window.isFullScreen() and window.work_list.isVisible() and window.result_panel.isVisible()
    desk.until(lambda: abs(window.viewer.width() - wide) < 10)
    for is_whole in (True, False):
        QTest.mouseDClick(window.viewer, Qt.MouseButton.LeftButton)
        assert window.isFullScreen() is is_whole


def test_the_window_opens_with_its_last_size_and_position(begin: Begin, desk: Desk, home: Path) -> None:
    desk.screen()
    desk.window.resize(790, 500)
    desk.window.panes.setSizes([300, 200, 290])
    desk.until(lambda: desk.window.width() == 790 and desk.window.panes.width() < 1000)
    sizes = desk.window.panes.sizes()
    desk.window.close()
    press(desk.dialog(QMessageBox), "Stop and close")
    desk.until(lambda: desk.ended and (home / "settings.json").exists())
    settings, problems = load_settings(home / "settings.json")
    assert problems == ()
    with begin(settings) as again:
        assert (again.window.width(), again.window.height()) == (790, 500) and not again.window.isMaximized()
        again.screen()
        again.until(lambda: again.window.panes.sizes() == sizes)


def test_an_invalid_saved_position_opens_the_window_on_the_whole_screen(begin: Begin) -> None:
    with begin(Settings({"window": "!", "panes": "!", "language": "en"})) as desk:
        assert desk.window.isMaximized()


def test_the_mouse_wheel_changes_no_setting_under_the_pointer(desk: Desk) -> None:
    desk.screen()
    desk.window.actions_by_name["settings"].trigger()
    dialog = desk.dialog(SettingsDialog)
    for kind in (QSlider, QSpinBox, QComboBox):
        found = [*desk.window.findChildren(kind), *dialog.findChildren(kind)]
        assert found
        for field in found:
            before = field.currentIndex() if isinstance(field, QComboBox) else field.value()
            for notches in (1, -1, -1):
                turn_wheel(field, notches)
                assert (field.currentIndex() if isinstance(field, QComboBox) else field.value()) == before
    dialog.reject()


@pytest.mark.parametrize(("language", "fast"), [("en", "fast"), ("uk", "швид")])
def test_every_choice_has_a_label_and_only_a_policy_mentions_speed(language: str, fast: str) -> None:
    """With the device left to the program, the policy decides, and it may be "Edge TPU only".

    So the label of the device must be true under every policy.
    """
    translator = Translator(language)
    assert all(setting_choice_text(translator, choice) != choice for row in SETTING_ROWS for choice in row.choices)
    words = {
        choice: setting_choice_text(translator, choice)
        for choice in (*ROW_BY_KEY["device"].choices, *ROW_BY_KEY["policy"].choices)
    }
    assert [choice for choice, said in words.items() if fast in said.lower()] == ["fastest"]


def test_the_key_sheet_names_every_key(desk: Desk) -> None:
    desk.window.actions_by_name["keys"].trigger()
    sheet = desk.dialog(KeyListDialog)
    words = texts(sheet)
    translator = Translator("en")
    for key in KEY_BINDINGS:
        assert key.text(translator) in words
    sheet.reject()


def test_no_two_commands_share_a_key_and_letters_work_under_a_ukrainian_layout_too() -> None:
    keys = [text for key in KEY_BINDINGS for text in (*key.shortcuts, *cyrillic_equivalents(key.shortcuts))]
    assert len(keys) == len(set(keys))
    assert cyrillic_equivalents(("H", "Ctrl+F", "?", "+", "1", "Space", "Ctrl+Shift+O")) == (
        "Р",
        "Ctrl+А",
        "Ctrl+Shift+Щ",
    )


def test_dropped_files_are_screened(desk: Desk) -> None:
    data = QMimeData()
    elsewhere = [] if sys.platform == "win32" else [QUrl("file://host/share")]  # Windows has a path for this file
    data.setUrls([QUrl.fromLocalFile("/images/a.dcm"), QUrl("https://example.org/b.dcm"), *elsewhere])
    modifiers, buttons = Qt.KeyboardModifier.NoModifier, Qt.MouseButton.LeftButton
    drop = QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, data, buttons, modifiers)
    desk.window.dropEvent(drop)
    desk.until(lambda: [paths for paths, _, _ in desk.rooms.session.started_with] == [(Path("/images/a.dcm"),)])
    last = "https://example.org/b.dcm" if sys.platform == "win32" else "file://host/share"
    assert f"{last} is a network address" in desk.notices


def test_a_folder_that_waits_for_the_run_leaves_the_keys_to_the_list(desk: Desk, tmp_path: Path) -> None:
    desk.screen()
    desk.until(lambda: desk.bench.screening.can_stop)
    desk.window.work_list.table.setFocus()
    desk.window.actions_by_name["open_folder"].trigger()
    dialog = desk.dialog(QFileDialog)
    dialog.findChild(QLineEdit).setText(str(tmp_path))
    dialog.accept()
    desk.until_shown("will be screened after this run")
    desk.until(lambda: QApplication.focusWidget() is desk.window.work_list.table)


def test_an_unexpected_error_is_shown_and_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with desk.application.show_uncaught_errors():
        worker = threading.Thread(target=lambda: 1 / 0)
        worker.start()
        worker.join()
        desk.until_shown("ZeroDivisionError")
        sys.excepthook(ValueError, ValueError("odd"), None)
        desk.until_shown("ValueError")
    assert "unexpected" in caplog.text


def test_closing_during_a_run_asks_and_then_ends_in_order(desk: Desk) -> None:
    desk.screen()
    desk.until(lambda: desk.bench.screening.can_stop)
    desk.window.close()
    box = desk.window.findChild(QMessageBox)
    assert desk.window.isVisible()
    assert "A run is in progress" in texts(box) + box.text()
    press(box, "Stop and close")
    desk.until(lambda: desk.ended)
    assert desk.rooms.session.batches[0].calls == ["cancel", "join"]
    assert desk.rooms.session.is_closed
    assert desk.rooms.drives.is_closed
    assert not desk.window.isVisible()


@pytest.mark.parametrize("problem", [None, UsageProblem(reason("no_pack"))])
def test_a_window_closed_while_services_open_waits_and_closes_them(
    begin: Begin, qtbot: QtBot, rooms: FakeRooms, problem: FieldrayError | None
) -> None:
    rooms.may_open.clear()
    rooms.open_problem = problem
    with begin() as desk:
        qtbot.wait(20)
        desk.bench.close()
        qtbot.wait(50)
        assert not desk.ended and desk.window.isVisible()
        rooms.may_open.set()
        desk.until(lambda: desk.ended)
    assert problem is not None or (rooms.session is not None and rooms.session.is_closed and rooms.drives.is_closed)


def test_services_that_never_open_do_not_prevent_closing(begin: Begin, qtbot: QtBot, rooms: FakeRooms) -> None:
    rooms.may_open.clear()
    with begin() as desk:
        qtbot.wait(20)
        desk.bench.close()
        desk.until_shown("may not be answering")
        press(desk.window.banners, "Close now")
        desk.until(lambda: desk.ended)
        assert not desk.bench.background.close()  # still waiting
        rooms.may_open.set()
        assert desk.bench.background.close(wait_s=5)
    assert rooms.session is not None and rooms.session.is_closed and rooms.drives.is_closed  # by their opener


def test_a_service_that_fails_to_close_keeps_no_other_open(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.rooms.drives, "close", lambda: 1 / 0)
    desk.bench.close()
    desk.until(lambda: desk.ended)
    assert desk.rooms.session.is_closed and desk.rooms.priors.is_closed


def test_services_are_opened_once_and_never_after_closing(begin: Begin, qtbot: QtBot, rooms: FakeRooms) -> None:
    with begin() as desk:
        desk.bench.open_services()
        desk.bench.open_services()
        desk.bench.close()
        desk.until(lambda: desk.ended)
        desk.bench.open_services()
        qtbot.wait(20)
    assert rooms.opened == 1 and rooms.session is not None and rooms.session.is_closed


def test_sigterm_is_handled_between_events(desk: Desk) -> None:
    """Python gets a signal in the middle of any code."""
    with desk.application.close_on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert desk.bench.notice_board.notices == ()
        desk.until(lambda: desk.ended)


def test_a_small_screen_still_has_room_for_everything(desk: Desk) -> None:
    desk.screen()
    desk.window.resize(960, 540)  # 1920 x 1080 at 200 %
    desk.qtbot.wait(50)
    assert desk.window.width() == 960
    assert desk.window.height() == 540
    result = desk.window.result_panel
    desk.open_row(1)
    desk.until(lambda: result.widget().width() <= result.viewport().width())
    table, bar = desk.window.work_list.table, desk.window.work_list.filter_bar
    assert table.viewport().height() >= 3 * ROW_HEIGHT
    shown = [(button.toolTip(), button.text()) for button in bar.findChildren(QPushButton) if button.isVisible()]
    assert shown[:3] == [("All", "All  4"), ("Read first", "0"), ("Flagged", "2")]
    for key, level in (("a", "info"), ("b", "error"), ("c", "warning")):
        desk.bench.notice_board.post(key, lambda _, key=key: key, level=level)
    desk.window.resize(683, 384)  # 1366 x 768 at 200 %: the most severe notice alone, until a person unfolds the others
    banners = desk.window.banners
    assert {*texts(banners).split("\n")} == {"", "b", "2 more messages"}
    banners.more_button.click()
    desk.until(lambda: {"a", "b", "c"} <= {*texts(banners).split("\n")})


def test_a_narrow_list_leaves_room_for_names_and_shows_classes_by_their_shapes(desk: Desk) -> None:
    desk.screen()
    table = desk.window.work_list.table
    place = COLUMNS.index("class")
    words, below = table.class_column_width, table.below_width
    assert ICON_COLUMN_WIDTH < below < words - 20
    table.fit_columns(words + 160)  # the score stands below the class
    assert table.isColumnHidden(COLUMNS.index("score"))
    assert table.columnWidth(place) == words
    table.fit_columns(words + 159)
    assert table.columnWidth(place) == below  # the word stands below the shape
    table.fit_columns(below + 159)
    assert table.columnWidth(place) == ICON_COLUMN_WIDTH


@pytest.mark.parametrize("language", ["en", "uk"])
def test_the_image_has_half_of_the_window_and_the_classes_have_one_row(desk: Desk, language: str) -> None:
    """At 1366 x 768 and 1920 x 1080; the counts of a week have three digits."""
    desk.application.change_settings({"language": language})
    desk.screen()
    desk.open_row(1)
    rows, bar = desk.bench.rows, desk.window.work_list.filter_bar
    for size in ((1366, 768), (1920, 1080)):
        desk.window.resize(*size)
        desk.until(lambda: 2 * desk.window.area.width() >= desk.window.width())
    desk.window.resize(1366, 768)
    rows._counts = dict.fromkeys(rows.class_counts(), 345) | dict.fromkeys(("not_assessed", "not_an_image"), 0)
    rows.counts_changed.emit()
    classes = [button for button in bar.findChildren(QPushButton) if button.property("role") == "filter"]

    def are_in_a_row() -> bool:
        shown = [button for button in classes if button.isVisible()]
        are_whole = all(button.width() >= button.sizeHint().width() for button in shown)
        return len(shown) == 7 and len({button.y() for button in shown}) == 1 and are_whole

    desk.until(are_in_a_row)
    assert desk.window.result_panel.widget().width() <= desk.window.result_panel.viewport().width()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_class_colours_can_be_read(theme: str) -> None:
    """Contrast of at least 4.5 to 1 (WCAG 2.1, 1.4.3)."""
    table = colours(theme)  # type: ignore[arg-type]
    for name in ("text", "muted", "accent", *WORK_LIST_ORDER):
        assert _contrast(table[name], table["surface"]) >= 4.5, name
        assert _contrast(table[name], table["selection"]) >= 3.9, name


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(shade: str) -> float:
    parts = [int(shade[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_broken_settings_file_is_reported(qapp: object, qtbot: object, rooms: FakeRooms, home: Path) -> None:
    (home / "settings.json").write_text('{"theme": "pink"}', encoding="utf-8")
    settings, problems = load_settings(home / "settings.json")
    application = Application(qapp, settings, services=rooms.open)  # type: ignore[arg-type]
    application.show_settings_problems(problems)
    assert [notice.key for notice in application.controller.notice_board.notices] == ["settings"]
    assert settings["theme"] == Settings()["theme"]


@pytest.mark.parametrize("language", sorted(languages()))
def test_counts_of_a_million_images_are_not_cut(desk: Desk, language: str) -> None:
    desk.application.change_settings({"language": language})
    desk.window.resize(1366, 768)
    desk.screen()
    rows, bar = desk.bench.rows, desk.window.work_list.filter_bar
    for number in (1_000_000, 1):

        def is_whole(count: int = number) -> bool:
            rows._counts = dict.fromkeys(rows.class_counts(), count)  # the end of the run counts once more
            rows.counts_changed.emit()
            classes = [button for button in bar.findChildren(QPushButton) if button.property("role") == "filter"]
            shown = [button for button in classes if button.isVisible()]
            return len(shown) == 9 and all(button.width() >= button.sizeHint().width() for button in shown)

        desk.until(is_whole)


def test_without_an_open_image_no_empty_card_is_shown(desk: Desk) -> None:
    """For example, a warning without text would be a yellow strip."""
    desk.screen()
    desk.bench.image.show(None)
    labels = [found for found in desk.window.result_panel.findChildren(QLabel) if found.isVisible()]
    assert labels and all(found.text() or not found.pixmap().isNull() for found in labels)


# ---- folders that were opened, panels, cards, the end of a run


def folders_of(desk: Desk) -> list[str]:
    menu = desk.window.toolbar.folders_menu
    menu.aboutToShow.emit()
    return [action.text() for action in menu.actions() if action.text()][:-1]


def test_folders_that_were_opened_are_remembered_until_they_are_forgotten(
    desk: Desk, rooms: FakeRooms, home: Path, tmp_path: Path
) -> None:
    first, second, file = tmp_path / "März & co", tmp_path / "second", tmp_path / "Doe John.png"
    for folder in (first, second):
        folder.mkdir()
        (folder / "image.png").write_bytes(b"x")
    file.write_bytes(b"x")
    for number, paths in enumerate(((first, file), (second,), (first,)), 1):
        desk.choose(*map(str, paths))
        desk.until(lambda number=number: rooms.session and len(rooms.session.batches) == number)
        desk.finish()
        desk.until(lambda paths=paths: desk.application.settings.recent_folders[:1] == (str(paths[0]),))
    assert folders_of(desk) == [str(first).replace("&", "&&"), str(second)]
    again = desk.window.welcome.again_button
    assert not again.isHidden() and again.toolTip() == str(first)
    desk.window.actions_by_name["open_folder"].trigger()
    dialog = desk.dialog(QFileDialog)
    assert Path(dialog.directory().absolutePath()) == tmp_path  # in addition to the last one
    dialog.close()
    desk.until(lambda: load_settings(home / "settings.json")[0].recent_folders == (str(first), str(second)))
    assert "Doe" not in (home / "settings.json").read_text(encoding="utf-8")
    desk.window.toolbar.folders_menu.actions()[1].trigger()
    desk.until(lambda: rooms.session.started_with[-1][0] == (second,))
    desk.until(lambda: folders_of(desk)[0] == str(second))
    desk.finish()
    again.click()
    desk.until(lambda: len(rooms.session.batches) == 5 and rooms.session.started_with[-1][0] == (second,))
    desk.bench.update_recent_folders()
    assert again.isHidden()
    assert folders_of(desk) == [] and not desk.window.toolbar.folders_menu.isEnabled()


def test_no_folder_is_remembered_when_the_setting_is_off(desk: Desk, home: Path, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"x")
    desk.screen(str(tmp_path))
    desk.until(lambda: desk.application.settings.recent_folders == (str(tmp_path),))
    desk.application.change_settings({"keep_folders": False})
    desk.until(lambda: tmp_path.name not in (home / "settings.json").read_text(encoding="utf-8"))
    desk.finish()
    desk.screen(str(home))
    desk.until(lambda: not desk.bench.background._wanted)
    desk.application.change_settings({"keep_folders": True})
    assert desk.application.settings.recent_folders == ()


def test_a_card_stays_folded_for_the_next_image_and_the_next_start(desk: Desk, home: Path) -> None:
    desk.screen()
    desk.open_row(1)
    panel = desk.window.result_panel
    head = next(card.head for card in panel.findChildren(FoldingCard) if card.head.text() == "Heat map")
    assert panel.heat_map_box.isVisible()
    head.click()
    desk.open_row(4)
    assert not panel.heat_map_box.isVisible() and head.isVisible()
    desk.until((home / "settings.json").exists)
    desk.until(lambda: load_settings(home / "settings.json")[0]["folded"] == "heat_map")
    desk.application.change_settings({"theme": "dark"})
    assert not desk.window.result_panel.heat_map_box.isVisible()


def test_the_image_menu_is_short_and_has_every_image_command(desk: Desk) -> None:
    desk.screen()
    desk.window._show_menu(QPoint(5, 5))
    menu = next(found for found in desk.window.findChildren(QMenu) if found.isVisible())
    top = [action for action in menu.actions() if not action.isSeparator()]
    assert len(top) <= 12
    all_of = [*top, *(more for action in top if action.menu() for more in action.menu().actions())]
    wanted = ("heat_map", "tool_measure", "preset_5", "rotate_left", "flip_top_bottom", "prior_mesh", "link", "undo")
    assert {desk.window.actions_by_name[command] for command in wanted} <= set(all_of)
    menu.close()


def test_a_notification_at_the_end_of_a_run_names_no_patient(begin: Begin, rooms: FakeRooms, qtbot: QtBot) -> None:
    messages = []
    record = lambda window, title, words: messages.append((title, words))  # noqa: E731
    with begin(notify_run_end=record) as desk:
        desk.activate()
        desk.screen()
        desk.finish()
        desk.until(lambda: desk.bench.rows.is_up_to_date)
        assert messages == []
        elsewhere = QWidget()
        qtbot.addWidget(elsewhere)
        elsewhere.show()
        elsewhere.activateWindow()
        desk.until(elsewhere.isActiveWindow)
        desk.bench.start_run()
        desk.until(lambda: len(rooms.session.batches) == 2)
        desk.until_listed(4)
        with ResultStore(rooms.database) as store:  # the state that came last is announced as well
            save(store, 2, [screened(5, 0.99)], rooms.publish)
        desk.finish()
        desk.until(lambda: messages)
        assert messages == [("The run has ended", "Flagged: 3, Uncertain: 1, Not flagged: 1")]
        desk.bench.start_run()
        desk.until(lambda: len(rooms.session.batches) == 3 and desk.bench.screening.can_stop)
        desk.bench.screening.stop()  # no notification to the person who stopped the run
        desk.until(lambda: not desk.bench.screening.is_busy)
        assert len(messages) == 1
        notify_run_end(desk.window, *messages[0])  # by the means of this system


def test_the_toolbar_wraps_when_a_pack_of_a_long_name_comes_into_use(desk: Desk) -> None:
    bar, source, width = desk.window.toolbar, desk.bench.packs.source, 1200
    low = bar.height()
    while bar.height() == low:  # the narrowest width with one row
        desk.window.resize(width := width - 10, 700)
        desk.qtbot.wait(1)
    while bar.height() > low:  # it may have had two rows for a moment
        desk.window.resize(width := width + 10, 700)
        desk.qtbot.wait(20)
    assert source is not None
    desk.rooms.library.models[source.folder] = model(names={"en": "Normal or abnormal chest X-rays"})
    desk.bench.packs.use_pack(source)
    desk.until(lambda: bar.height() > low + 20)
    assert bar.pack_chip.width() >= bar.pack_chip.sizeHint().width() and bar.open_button.text() == "Open folder"
    desk.window.resize(width, 400)  # no room for a second row
    desk.until(lambda: bar.height() == low)
    assert bar.open_button.text() == "" and "…" in bar.pack_chip.text()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have dialogs of their own")
def test_qts_file_dialog_remembers_no_folder(tmp_path: Path) -> None:
    """Qt would write its file of recent folders when the dialog closes."""
    code = """
import sys, shiboken6
from PySide6.QtWidgets import QApplication, QFileDialog
from fieldray.desktop.application import disable_dialog_history
qt = QApplication([])
if "nothing" in sys.argv:
    disable_dialog_history()
dialog = QFileDialog(None, "", sys.argv[1])
dialog.setFileMode(QFileDialog.FileMode.Directory)
dialog.open()
dialog.accept()
shiboken6.delete(dialog)
"""
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for words, is_kept in ((["nothing"], False), ([], True)):
        command = [sys.executable, "-c", code, str(tmp_path), *words]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=100)
        assert any(tmp_path.rglob("QtProject.conf")) == is_kept
