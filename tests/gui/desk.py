"""A program with its window for tests, and the ways to wait for that window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from fake_rooms import FakeRooms
from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QAction, QWheelEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QComboBox,
    QDialog,
    QLabel,
    QMessageBox,
    QPushButton,
    QWidget,
)
from pytestqt.qtbot import QtBot
from recorder import Recorder

from fieldray.desktop.application import Application
from fieldray.desktop.controller import Controller
from fieldray.desktop.main_window import MainWindow
from fieldray.desktop.notices import NotifyRunEnd, notify_run_end
from fieldray.domain.run import DrivesChanged, RunChanged
from fieldray.packs.naming import PackCandidate
from fieldray.settings import Settings

WAIT_MS = 60_000
Box = TypeVar("Box", bound=QDialog)


class Desk:
    """A program with its window, and the fake services behind the window."""

    def __init__(self, application: Application, rooms: FakeRooms, qtbot: QtBot, ended: list[bool]) -> None:
        self.application, self.rooms, self.qtbot, self.ended = application, rooms, qtbot, ended

    @property
    def window(self) -> MainWindow:
        assert self.application.window is not None
        return self.application.window

    @property
    def bench(self) -> Controller:
        return self.application.controller

    # ---- what a person does

    def screen(self, *paths: str, answer: str = "") -> None:
        """Open a folder and wait until its images are listed; `answer`: the pack to choose if the question comes."""
        self.choose(*paths)
        if answer:
            self.answer(answer)
        self.until_listed(len(self.rooms.outcomes))

    def choose(self, *paths: str) -> None:
        """Open a folder."""
        self.bench.screening.screen_paths([Path(path) for path in paths or ("/images",)])

    def finish(self) -> None:
        """Let the run that was started last finish."""
        self.rooms.publish(RunChanged(run_id=self.rooms.session.batches[-1].run_id, state="finished"))
        self.until(lambda: not self.bench.screening.is_busy)

    def answer(self, pack_name: str) -> None:
        """Wait until the program asks whose images these are, and choose the card of a pack."""
        self.until(lambda: self.asks == "pack")
        packs = [entry for entry in self.bench.packs.candidates if entry.can_screen]
        place = [entry.pack_name for entry in packs].index(pack_name)
        self.window.welcome.cards[place].button.click()

    def use(self, pack_id: str) -> None:
        """Put a pack in use, and wait until the program uses it."""
        found = next(entry for entry in self.bench.packs.candidates if entry.pack_id == pack_id)
        self.bench.packs.use_pack(found)
        self.until(lambda: self.bench.packs.source == found)

    def plug_in(self, drive: Path, *packs: PackCandidate) -> None:
        """Connect a drive with packs."""
        self.rooms.library.on_drives[drive] = list(packs)
        self.rooms.publish(DrivesChanged(drives={drive: ()}))

    def pull_out(self) -> None:
        """Disconnect all drives."""
        self.rooms.library.on_drives.clear()
        self.rooms.publish(DrivesChanged())

    def open_row(self, row_id: int) -> None:
        """Choose a row and wait for its image."""
        image = self.bench.image
        self.window.work_list.select_image(row_id)
        self.until(lambda: image.row is not None and image.row.row_id == row_id and image.is_visible)

    def activate(self) -> None:
        """Make this window the active one."""
        self.window.activateWindow()
        self.until(self.window.isActiveWindow)

    # ---- what the window shows

    @property
    def asks(self) -> str:
        """The kind of the open question about a run ("pack", "ages"), "" if none is open."""
        question = self.bench.screening.question
        return question.kind if question else ""

    @property
    def in_use(self) -> str:
        """The name of the pack in use, "" for none."""
        used = self.bench.packs.model
        return used.pack_name if used else ""

    @property
    def listed(self) -> list[int | None]:
        """The row numbers in the order of the list."""
        rows = self.bench.rows
        return [rows.row_id_at(rows.index(place, 0)) for place in range(rows.rowCount())]

    @property
    def notices(self) -> str:
        """All texts of the banners, unfolded."""
        banners = self.window.banners
        banners.show_all_notices()
        return texts(banners)

    def dialog(self, kind: type[Box]) -> Box:
        """The visible dialog of this kind; waits until it is open."""
        self.until(lambda: dialogs(self.window, kind))
        return dialogs(self.window, kind)[0]

    # ---- waiting

    def until(self, is_so: object) -> None:
        """Let the window work until `is_so()` is true."""
        self.qtbot.waitUntil(lambda: bool(is_so()), timeout=WAIT_MS)  # type: ignore[operator]

    def until_listed(self, count: int) -> None:
        """Wait until the run has this many images and the visible rows are loaded."""
        rows = self.bench.rows
        self.until(lambda: rows.is_fully_read and rows.total_image_count() == count)
        self.until(lambda: all(rows.row_at(rows.index(place, 0)) for place in range(min(rows.rowCount(), 40))))

    def until_shown(self, *words: str) -> None:
        """Wait until the banners contain all these words."""
        self.until(lambda: all(part in self.notices for part in words))


Begin = Callable[..., AbstractContextManager[Desk]]


@contextmanager
def shown(application: Application, qtbot: QtBot) -> Iterator[list[bool]]:
    """Show the program's window and close it in order afterwards; the yielded list gets an item once it has closed.

    No test may leave a verdict on an image that was not in sight when the verdict was given.
    """
    ended: list[bool] = []
    recorder = Recorder(application)
    application.ended.connect(lambda: ended.append(True))
    application.show()
    try:
        yield ended
    finally:
        application.controller.close()
        qtbot.waitUntil(lambda: bool(ended), timeout=WAIT_MS)
        application.window.deleteLater()
        QCoreApplication.processEvents()
        # Otherwise the window lives until the next test waits, and is styled again when that test opens its own.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        QApplication.instance().setStyleSheet("")  # as when the program starts
        recorder.deleteLater()
    assert not recorder.wrong


@contextmanager
def opened(
    rooms: FakeRooms,
    qapp: QApplication,
    qtbot: QtBot,
    settings: Settings,
    *,
    notify_run_end: NotifyRunEnd = notify_run_end,
) -> Iterator[Desk]:
    """A program on these fake services whose window is shown."""
    application = Application(qapp, settings, services=rooms.open, notify_run_end=notify_run_end)
    with shown(application, qtbot) as ended:
        yield Desk(application, rooms, qtbot, ended)


def texts(widget: QWidget) -> str:
    """All visible texts on a widget."""
    labels = [label.text() for label in widget.findChildren(QLabel) if label.isVisible()]
    return "\n".join(labels + [button.text() for button in widget.findChildren(QPushButton) if button.isVisible()])


def dialogs(parent: QWidget, kind: type[Box]) -> list[Box]:
    """The visible dialogs of this kind."""
    return [box for box in parent.findChildren(kind) if box.isVisible()]


def all_widget_texts() -> Iterator[tuple[str, str]]:
    """Every text of every widget, visible or not, with its place. Texts that a person edits are left out."""
    for widget in QApplication.allWidgets():
        name = f"{type(widget).__name__} in {type(widget.window()).__name__}"
        for kind in ("toolTip", "whatsThis", "statusTip", "accessibleName", "windowTitle"):
            yield f"{kind} of {name}", getattr(widget, kind)()
        yield from ((f"{kind} of a command of {name}", said) for kind, said in commands(widget))
        if isinstance(widget, QLabel | QAbstractButton):
            yield name, widget.text()
        elif isinstance(widget, QComboBox):
            yield from ((f"choice of {name}", widget.itemText(place)) for place in range(widget.count()))
        elif isinstance(widget, QAbstractItemView):
            yield from ((f"{kind} of a cell of {name}", said) for kind, said in cells(widget))


def commands(widget: QWidget) -> Iterator[tuple[str, str]]:
    for action in widget.actions() + (widget.findChildren(QAction) if widget.isWindow() else []):
        for kind in ("text", "iconText", "toolTip", "whatsThis", "statusTip"):
            yield kind, getattr(action, kind)()


def cells(view: QAbstractItemView) -> Iterator[tuple[str, str]]:
    roles = Qt.ItemDataRole
    kinds = {
        "text": roles.DisplayRole,
        "toolTip": roles.ToolTipRole,
        "statusTip": roles.StatusTipRole,
        "whatsThis": roles.WhatsThisRole,
        "accessible text": roles.AccessibleTextRole,
        "accessible description": roles.AccessibleDescriptionRole,
    }
    rows = view.model()
    for row in range(rows.rowCount() if rows else 0):
        for column in range(rows.columnCount() if isinstance(rows, QAbstractTableModel) else 1):
            said = ((kind, rows.index(row, column).data(role)) for kind, role in kinds.items())
            yield from ((kind, text) for kind, text in said if isinstance(text, str))


def press(box: QMessageBox | QWidget, words: str) -> None:
    """Press the button with these words on it."""
    next(button for button in box.findChildren(QPushButton) if button.text() == words).click()


def turn_wheel(widget: QWidget, notches: int, *, control: bool = False) -> None:
    """Turn the mouse wheel by `notches` over the middle of a widget; positive numbers turn it upwards."""
    at, button = QPointF(widget.rect().center()), Qt.MouseButton.NoButton
    there, by, phase = QPointF(widget.mapToGlobal(at.toPoint())), QPoint(0, 120 * notches), Qt.ScrollPhase.NoScrollPhase
    modifier = Qt.KeyboardModifier.ControlModifier if control else Qt.KeyboardModifier.NoModifier
    QApplication.sendEvent(widget, QWheelEvent(at, there, QPoint(), by, button, modifier, phase, False))
