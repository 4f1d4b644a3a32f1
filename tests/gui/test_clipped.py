"""No text is cut: every page and dialog in every language, at the sizes of small and large screens and at 200 %.

A text without enough room ends with an ellipsis and is whole in the tool tip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from desk import Desk
from fake_rooms import FakeRooms, candidate, failed, load_study, manifest, model, refused, screened
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QFontMetrics, QImage, QPainter
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QCheckBox,
    QComboBox,
    QDialog,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSplitter,
    QTableWidget,
    QWidget,
)

from fieldray.desktop.dialogs import SettingsDialog
from fieldray.desktop.notices import NoticeAction
from fieldray.desktop.overlay import draw_heat_map_legend
from fieldray.domain.model import HeaderRules
from fieldray.domain.run import Progress, Speed, Verdict
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.results import ResultStore
from fieldray.translation import Translator, languages

# Widths of 1024, 1366 and 1920 points; then 1366 x 768 and 1920 x 1080 at 200 %.
SIZES = (1024, 768), (1366, 768), (1920, 1080), (683, 384), (960, 540)
PAGES = "packs", "audit", "history", "status"
NAMES = {"en": "Normal or abnormal chest X-rays of adults", "uk": "Норма чи відхилення на рентгенограмах дорослих"}
DIALOGS = "settings", "export", "about", "keys", "guide"
_ELLIPSIS = "…"
_WIDE = 1366  # from this width on a table has room for all its columns
_SLACK = 1  # for rounding
_ARROW = 34  # the arrow of a combo box, with its padding
_PADDING = 18  # the padding of an input field


@pytest.fixture(params=sorted(languages()))
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(language: str) -> Settings:
    return Settings({"language": language, "theme": "light", "pack": "made-up"})


@pytest.fixture
def rooms() -> FakeRooms:
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1), screened(3, 0.42), refused(4), failed(5)]
    made.load_study = load_study(is_disturbed=True)
    of = manifest(names=NAMES, accepted=HeaderRules(ages_years=(18, 95)))
    made.library.always = [candidate(f"/program/models/made-up-{place}", names=NAMES, manifest=of) for place in "ab"]
    made.library.models = {entry.folder: model("builtin", names=NAMES) for entry in made.library.always}
    return made


def cut(window: QWidget) -> Iterator[str]:
    """The texts that are cut on a window, each with its place."""
    for part in window.findChildren(QWidget):
        if part.isVisible() and part.window() is window and (lacks := _lacks(part)):
            yield f"{type(part).__name__} {lacks!r} in {type(part.parentWidget()).__name__}, {part.size().toTuple()}"
    for area in window.findChildren(QScrollArea):
        page, is_still = area.widget(), area.horizontalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        is_still |= isinstance(page, QSplitter)  # list, image and result: nobody scrolls sideways for the result
        if area.isVisible() and is_still and page is not None and page.width() > area.viewport().width():
            yield f"{type(area).__name__} {page.width()} in {area.viewport().width()}"


def _lacks(part: QWidget) -> str:
    """The text of a widget that is too small for it, "" if the whole text can be read."""
    metrics, text = part.fontMetrics(), ""
    match part:
        case QLabel():
            text = part.text()
            if not text:
                return ""
            if part.wordWrap():
                is_cut = part.heightForWidth(part.width()) > part.height() + _SLACK or _widest(metrics, text) > (
                    part.width() + _SLACK
                )
            else:
                is_cut = part.sizeHint().width() > part.width() + _SLACK
        case QCheckBox() | QAbstractButton():
            text = part.text()
            is_cut = bool(text) and part.sizeHint().width() > part.width() + _SLACK
        case QComboBox():
            text = part.currentText()
            is_cut = metrics.horizontalAdvance(text) + _ARROW > part.width()
        case QLineEdit():
            text = part.text() or part.placeholderText()
            is_cut = metrics.horizontalAdvance(text) + _PADDING > part.width()
        case QTableWidget():
            return ", ".join(_headings_cut(part))
        case _:
            return ""
    has_tip = bool(part.toolTip()) and (_ELLIPSIS in text or isinstance(part, QLineEdit))  # it adds its own
    return text if (is_cut and not has_tip) or _is_outside(part) else ""


def _widest(metrics: QFontMetrics, text: str) -> int:
    """The width of the longest word, which is not broken."""
    return max(map(metrics.horizontalAdvance, re.split(r"[\s\u200b/-]+", text)))


def _headings_cut(table: QTableWidget) -> Iterator[str]:
    """Headings narrower than their words; on a wide screen also those that can only be reached by scrolling."""
    header, room = table.horizontalHeader(), table.viewport().width()
    for column in range(table.columnCount()):
        words = header.sectionSizeHint(column)
        is_beyond = header.sectionViewportPosition(column) + words > room and table.window().width() >= _WIDE
        if not header.isSectionHidden(column) and (words > header.sectionSize(column) or is_beyond):
            yield table.horizontalHeaderItem(column).text()


def _is_outside(part: QWidget) -> bool:
    """Whether a widget lies beyond the window's edge and no scroll area can bring it into sight."""
    above = part.parentWidget()
    while above is not None and not above.isWindow():
        if isinstance(above, QScrollArea):
            return False
        above = above.parentWidget()
    right = part.mapTo(part.window(), QPoint(part.width(), part.height()))
    return right.x() > part.window().width() or right.y() > part.window().height()


def process_layout_events() -> None:
    """Process events several times: layouts and wrapped texts need several passes."""
    for _ in range(8):
        QApplication.processEvents()


@pytest.fixture
def look(desk: Desk) -> Callable[[str], list[str]]:
    """A function that checks the window at every size."""

    def at_every_size(name: str) -> list[str]:
        found = []
        for size in SIZES:
            desk.window.resize(*size)
            process_layout_events()
            assert desk.window.size().toTuple() == size
            bar, status, history = desk.window.toolbar, desk.window.statusBar(), desk.window.history_page
            always = [status.research, bar.pack_chip, bar.backend_chip, bar.menu_button]
            for part in (*always, *history.findChildren(QComboBox)):
                assert part.isVisible() or not part.parentWidget().isVisible()
            found += [f"{name} at {size}: {words}" for words in cut(desk.window)]
        return found

    return at_every_size


def test_no_text_of_a_page_is_cut(desk: Desk, look: Callable[[str], list[str]]) -> None:
    found = look("welcome")
    desk.screen()
    desk.open_row(1)
    desk.rooms.publish(
        Progress(done=123_456, total=1_000_000, total_is_final=False, images_per_s=18.3, remaining_s=5e3)
    )
    desk.rooms.publish(
        Speed(fps_now=18.3, fps_min=16.1, fps_avg=17.0, fps_max=1234.5, cpu_percent=100, memory_mb=12345)
    )
    desk.until(lambda: desk.bench.speed.fps_now)
    for row in (1, 4, 5):
        desk.open_row(row)
        found += look(f"row {row}")
    desk.finish()
    for key in ("one", "two"):
        again = NoticeAction(lambda t: t.text("Try again"), lambda: None)
        desk.bench.notice_board.post_reason(key, reason("coral_not_compiled", pack="made-up-1.2.0"), action=again)
    for page in PAGES:
        desk.window.actions_by_name[page].trigger()
        if page == "audit":
            desk.window.audit_page.button.click()
            desk.until(lambda: desk.bench.auditing.report is not None)
        desk.until(lambda: not desk.bench.background._wanted)
        found += look(page)
    assert found == [], "\n".join(found)


def test_the_question_about_the_verdict_of_another_window_is_not_cut(
    desk: Desk, look: Callable[[str], list[str]]
) -> None:
    desk.screen()
    desk.open_row(1)
    row = desk.bench.image.row
    with ResultStore(desk.rooms.database) as store:
        store.set_verdict(row.result_id, Verdict(choice="disagree", note="scar"), judged=row.outcome)
    bar = desk.window.result_panel.verdict
    bar.buttons["agree"].click()
    desk.until(bar.keep_stored_verdict.isVisible)
    found = look("conflict")
    assert found == [], "\n".join(found)


def test_no_text_of_a_dialog_is_cut(desk: Desk) -> None:
    desk.screen()
    desk.finish()
    found = []
    for size in SIZES:
        desk.window.resize(*size)
        process_layout_events()
        opens = {name: desk.window.actions_by_name[name].trigger for name in DIALOGS}
        opens["model card"] = lambda: desk.bench.packs.model_card_read.emit("# Card\n\nwords " * 40)
        for name, open_dialog in opens.items():
            open_dialog()
            dialog = desk.dialog(QDialog)
            if isinstance(dialog, SettingsDialog):
                dialog.advanced.click()
            process_layout_events()
            found += [f"{name} at {size}: {words}" for words in cut(dialog)]
            dialog.close()
            dialog.deleteLater()
            process_layout_events()
    assert found == [], "\n".join(found)


def test_the_ends_of_the_legend_are_whole_in_a_narrow_view(qapp: QApplication, language: str) -> None:
    """In a narrow view the words beside the colours have as many lit points as in a wide one."""

    def count_lit_points(width: int) -> int:
        picture = QImage(width, 90, QImage.Format.Format_RGB32)
        picture.fill(0)
        painter = QPainter(picture)
        draw_heat_map_legend(painter, picture.rect(), Translator(language), qapp.font(), is_blank=False)
        painter.end()
        greys = (QColor(picture.pixel(x, y)) for y in range(64, 90) for x in range(width))
        return sum(shade.value() > 120 and shade.saturation() < 20 for shade in greys)

    assert abs(count_lit_points(170) - count_lit_points(600)) <= 0.1 * count_lit_points(600)
