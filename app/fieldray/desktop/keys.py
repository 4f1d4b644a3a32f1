"""The table of the window's keys, from which the shortcuts and the list of keys for users are made.

Users expect H both for "flip" and for "hide the heat map". Here H hides the heat map. Nearly every flagged image has a
heat map, and colours that cover a finding must disappear at once. F flips left-right, V flips top-bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractSlider, QAbstractSpinBox, QDialog, QGridLayout, QLineEdit, QTextEdit, QWidget

from fieldray.desktop.dialogs import dialog_buttons, resize_dialog_within_screen
from fieldray.desktop.widgets import (
    card,
    column_layout,
    in_scroll_area,
    make_label,
    row_layout,
    set_surface,
    set_tooltip,
)
from fieldray.domain.run import VERDICT_KINDS
from fieldray.translation import LocalText, Translator

KeyGroup = Literal["list", "view", "compare", "tools", "program"]


KeyScope = Literal["window", "images", "reading"]


@dataclass(frozen=True, eq=False, slots=True)
class KeyBinding:
    """One command of the window with its keyboard shortcuts.

    scope  where the keys work: in the whole window; while images are shown, except in fields for text or values; or
           only while list or image has the focus, because elsewhere the key has another use
    """

    command: str
    shortcuts: tuple[str, ...]
    group: KeyGroup
    text: LocalText
    scope: KeyScope = "window"


# fmt: off
KEY_BINDINGS: Final[tuple[KeyBinding, ...]] = (
    KeyBinding("next_image", ("Down", "Right"), "list", lambda t: t.text("Next image"), "images"),
    KeyBinding("previous_image", ("Up", "Left"), "list", lambda t: t.text("Previous image"), "images"),
    KeyBinding("next_study", ("PgDown",), "list", lambda t: t.text("Next study"), "images"),
    KeyBinding("previous_study", ("PgUp",), "list", lambda t: t.text("Previous study"), "images"),
    KeyBinding("next_unread", ("U",), "list", lambda t: t.text("Next unread image")),
    KeyBinding("unread", ("Shift+U",), "list", lambda t: t.text("Mark this image as unread, or as read")),
    KeyBinding("by_patient", ("Y",), "list",
        lambda t: t.text("Group the images by patient, or sort all images by urgency")),
    KeyBinding("first_image", ("Home",), "list", lambda t: t.text("First image"), "images"),
    KeyBinding("last_image", ("End",), "list", lambda t: t.text("Last image"), "images"),
    KeyBinding("search", ("Ctrl+F",), "list", lambda t: t.text("Search")),
    KeyBinding("heat_map", ("H",), "view", lambda t: t.text("Show or hide the heat map")),
    KeyBinding("lung_outline", ("O",), "view", lambda t: t.text("Show or hide the outline of the lungs")),
    KeyBinding("network_view", ("N",), "view",
        lambda t: t.text("Switch between the image and the model's input (the image, "
                                                         "made smaller and cropped)")),
    KeyBinding("full_screen", ("F11",), "view",
        lambda t: t.text("Full screen: show only the image, or return to the window")),
    KeyBinding("panels", ("F8",), "view", lambda t: t.text("Hide or show the list and the result")),
    KeyBinding("keep_image", ("C",), "view",
        lambda t: t.text("Pin this image for comparison with other images, or unpin "
                                                       "this image")),
    KeyBinding("link", ("K",), "view", lambda t: t.text("Link or unlink window, level and zoom of two images")),
    KeyBinding("invert", ("I",), "view", lambda t: t.text("Invert black and white")),
    KeyBinding("rotate_right", ("R",), "view", lambda t: t.text("Rotate right")),
    KeyBinding("rotate_left", ("L",), "view", lambda t: t.text("Rotate left")),
    KeyBinding("flip_left_right", ("F",), "view", lambda t: t.text("Flip left-right")),
    KeyBinding("flip_top_bottom", ("V",), "view", lambda t: t.text("Flip top-bottom")),
    KeyBinding("zoom_in", ("+",), "view", lambda t: t.text("Zoom in")),
    KeyBinding("zoom_out", ("-",), "view", lambda t: t.text("Zoom out")),
    KeyBinding("pan_left", ("Shift+Left",), "view", lambda t: t.text("Move the view left"), "reading"),
    KeyBinding("pan_right", ("Shift+Right",), "view", lambda t: t.text("Move the view right"), "reading"),
    KeyBinding("pan_up", ("Shift+Up",), "view", lambda t: t.text("Move the view up"), "reading"),
    KeyBinding("pan_down", ("Shift+Down",), "view", lambda t: t.text("Move the view down"), "reading"),
    KeyBinding("fit", ("=",), "view", lambda t: t.text("Fit the image to the window")),
    KeyBinding("reset", ("Space",), "view", lambda t: t.text("Reset the view"), "reading"),
    KeyBinding("undo", ("Ctrl+Z",), "view", lambda t: t.text("Undo the last verdict or view change")),
    KeyBinding("prior", ("E",), "compare", lambda t: t.text("Compare with the newest prior image, or stop comparing")),
    KeyBinding("next_prior", ("Shift+E",), "compare", lambda t: t.text("Go to the next older prior image")),
    KeyBinding("prior_file", ("Ctrl+E",), "compare", lambda t: t.text("Choose the file of a prior image")),
    KeyBinding("prior_side_by_side", ("A",), "compare",
        lambda t: t.text("Show the current and the prior image side by side")),
    KeyBinding("prior_swipe", ("S",), "compare", lambda t: t.text("Swipe: prior image left of a divider, current image "
                                                           "right")),
    KeyBinding("divider_left", ("Alt+Left",), "compare", lambda t: t.text("Swipe: move the divider left"), "reading"),
    KeyBinding("divider_right", ("Alt+Right",), "compare",
        lambda t: t.text("Swipe: move the divider right"), "reading"),
    KeyBinding("prior_blink", ("B",), "compare", lambda t: t.text("Blink: switch between prior and current image")),
    KeyBinding("prior_difference", ("D",), "compare",
        lambda t: t.text("Show the difference between the images as colours")),
    KeyBinding("prior_mesh", ("X",), "compare", lambda t: t.text("Show or hide the alignment grid, which shows how the "
                                                          "prior image was deformed")),
    KeyBinding("tool_window", ("W",), "tools", lambda t: t.text("Left mouse button: window and level")),
    KeyBinding("tool_zoom", ("Z",), "tools", lambda t: t.text("Left mouse button: zoom")),
    KeyBinding("tool_pan", ("P",), "tools", lambda t: t.text("Left mouse button: move the image")),
    KeyBinding("tool_measure", ("M",), "tools", lambda t: t.text("Left mouse button: measure a length")),
    KeyBinding("tool_angle", ("J",), "tools",
        lambda t: t.text("Left mouse button: measure the angle between two lines")),
    KeyBinding("tool_ratio", ("T",), "tools",
        lambda t: t.text("Left mouse button: measure the cardiothoracic ratio with "
                                                        "two lines")),
    KeyBinding("tool_region", ("Q",), "tools",
        lambda t: t.text("Left mouse button: measure the mean value of a region")),
    KeyBinding("mark", ("Return", "Enter"), "tools", lambda t: t.text("Measure: set a point in the centre of the "
                                                                  "view"), "reading"),
    KeyBinding("magnifier", ("G",), "tools", lambda t: t.text("Show or hide the magnifier")),
    KeyBinding("narrower", ("Ctrl+Left",), "tools", lambda t: t.text("More contrast: narrow the window"), "reading"),
    KeyBinding("wider", ("Ctrl+Right",), "tools", lambda t: t.text("Less contrast: widen the window"), "reading"),
    KeyBinding("brighter", ("Ctrl+Up",), "tools", lambda t: t.text("Brighter: lower the level"), "reading"),
    KeyBinding("darker", ("Ctrl+Down",), "tools", lambda t: t.text("Darker: raise the level"), "reading"),
    KeyBinding("preset_1", ("1",), "tools", lambda t: t.text("Display window: from the file")),
    KeyBinding("preset_2", ("2",), "tools", lambda t: t.text("Display window: full range")),
    KeyBinding("preset_3", ("3",), "tools", lambda t: t.text("Display window: lungs")),
    KeyBinding("preset_4", ("4",), "tools", lambda t: t.text("Display window: mediastinum and bones")),
    KeyBinding("preset_5", ("5",), "tools", lambda t: t.text("Display window: high contrast")),
    KeyBinding("hide_patient", ("Ctrl+H",), "program", lambda t: t.text("Hide or show patient data")),
    KeyBinding("open_folder", ("Ctrl+O",), "program", lambda t: t.text("Open a folder")),
    KeyBinding("open_files", ("Ctrl+Shift+O",), "program", lambda t: t.text("Open files")),
    KeyBinding("watch", ("F9",), "program", lambda t: t.text("Watch a folder: screen each new image")),
    KeyBinding("start", ("Ctrl+Return", "F5"), "program", lambda t: t.text("Start")),
    KeyBinding("pause", ("F6",), "program", lambda t: t.text("Pause or resume")),
    KeyBinding("stop", ("F7",), "program", lambda t: t.text("Stop")),
    KeyBinding("packs", ("Ctrl+P",), "program", lambda t: t.text("Packs")),
    KeyBinding("history", ("Ctrl+Shift+H",), "program", lambda t: t.text("History of runs")),
    KeyBinding("audit", ("Ctrl+U",), "program",
        lambda t: t.text("Audit: how good is the pack on the images of this run?")),
    KeyBinding("status", ("Ctrl+I",), "program", lambda t: t.text("This computer: device, speed and load")),
    KeyBinding("settings", ("Ctrl+,",), "program", lambda t: t.text("Settings")),
    KeyBinding("copy", ("Ctrl+C",), "program", lambda t: t.text("Copy the current view of the image"), "reading"),
    KeyBinding("print", ("Ctrl+Shift+P",), "program", lambda t: t.text("Print the current view of the image")),
    KeyBinding("export", ("Ctrl+S",), "program", lambda t: t.text("Save the results")),
    *(KeyBinding(choice, (value.shortcut,), "program", value.command_title) for choice, value in VERDICT_KINDS.items()),
    KeyBinding("withdraw", ("Ctrl+0",), "program", lambda t: t.text("Withdraw my verdict")),
    KeyBinding("cancel", ("Esc",), "program", lambda t: t.text("Cancel, or leave the search field")),
    KeyBinding("guide", ("F1",), "program", lambda t: t.text("User guide")),
    KeyBinding("keys", ("?",), "program", lambda t: t.text("List of keys and mouse actions")),
)
# fmt: on
_VERDICTS: Final = (*VERDICT_KINDS, "withdraw")
_ON_IMAGE: Final = (*_VERDICTS, "copy", "print")  # commands that need an image in sight
_ONCE: Final = (*_VERDICTS, "unread", "undo", "keep_image")  # a key that is held down triggers these commands once

_MIN_BETWEEN_PRESSES_MS: Final = 30  # a finger is slower


class HeldKeys:
    """Distinguishes a key press from the automatic repeats of a key that is held down.

    X11 reports a repeat as a release and a press at one time. If Qt handles the release before the press arrives, Qt
    treats the press as new.
    """

    def __init__(self) -> None:
        self._released_ms: dict[int, int] = {}

    def record_release(self, event: QKeyEvent) -> None:
        """Record that a key was released."""
        if not event.isAutoRepeat():
            self._released_ms[event.key()] = event.timestamp()

    def is_repeat(self, event: QKeyEvent) -> bool:
        """Return whether a key press is an automatic repeat of a key that is held down, and not a press by a finger.

        A repeat follows the release of the key faster than a finger can press.
        """
        released_ms = self._released_ms.get(event.key())
        return released_ms is not None and event.timestamp() - released_ms < _MIN_BETWEEN_PRESSES_MS


# The letters of the Ukrainian layout on the keys of the Latin letters.
_CYRILLIC: Final = str.maketrans("QWERTYUIOPASDFGHJKLZXCVBNM", "ЙЦУКЕНГШЩЗФІВАПРОЛДЯЧСМИТЬ")


def cyrillic_equivalents(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the letters that a Ukrainian keyboard layout has on the keys of these Latin letters.

    The letters must be shortcuts as well, because a system without a Latin layout does not translate them.
    """
    split = (key.rpartition("+") for key in keys)
    letters = ((start + plus, letter) for start, plus, letter in split if len(letter) == 1 and letter.isalpha())
    return tuple(start + letter.translate(_CYRILLIC) for start, letter in letters)


def group_title(translator: Translator, group: KeyGroup) -> str:
    """Return the heading of a group of keys in the list of keys."""
    titles: dict[KeyGroup, str] = {
        "list": translator.text("Work list"),
        "view": translator.text("Image"),
        "compare": translator.text("Prior image"),
        "tools": translator.text("Mouse, display window and level"),
        "program": translator.text("Program"),
    }
    return titles[group]


def make_actions(
    commands: Mapping[str, Callable[[], None]],
    translator: Translator,
    *,
    window: QWidget,
    reading_widgets: tuple[QWidget, ...],
) -> dict[str, QAction]:
    """Return a QAction for each command. The keys of an action work where `Key.scope` says.

    commands         functions by the name of the command
    window           the window
    reading_widgets  the widgets of the work list and the image

    The `text` of an action is for menus, `iconText` is the name of the command alone, and `toolTip` the name with the
    key in brackets.
    """
    actions = {}
    for key in KEY_BINDINGS:
        caption, written = key.text(translator), key_name(key.shortcuts[0])
        action = QAction(f"{caption}\t{written}", window)
        action.setIconText(caption)
        set_tooltip(action, f"{caption} ({written})")
        action.triggered.connect(lambda _=False, run=commands[key.command]: run())
        for widget in reading_widgets if key.scope == "reading" else (window,):
            _listen(widget, key, action)
        actions[key.command] = action
    return actions


def enable_image_actions(
    actions: Mapping[str, QAction], *, is_image_visible: bool, focused: QWidget | None = None
) -> None:
    """Enable or disable the actions that act on images.

    is_image_visible  whether the images are visible, not covered by another page
    focused           the widget with the focus, or None; while a field for text or numbers has the focus, the
                      keyboard shortcuts of the result list are disabled
    """
    is_field = isinstance(focused, QLineEdit | QTextEdit | QAbstractSpinBox | QAbstractSlider)
    for key in KEY_BINDINGS:
        if key.command in _ON_IMAGE or (key.group != "program" and key.command != "full_screen"):
            actions[key.command].setEnabled(is_image_visible and not (is_field and key.scope == "images"))


def key_name(key: str) -> str:
    """Return the name of a key as this operating system writes the name, such as "Ctrl+Z"."""
    return QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText)


def _listen(widget: QWidget, key: KeyBinding, action: QAction) -> None:
    """Trigger an action by its keys in a widget.

    With a Ukrainian and a Latin layout installed, one press matches both letters of a key. Qt calls this ambiguous and
    ignores the shortcuts of an action. So both letters become separate shortcuts that trigger the action.
    """
    shortcut = QShortcut(widget)
    shortcut.setKeys([QKeySequence(text) for text in (*key.shortcuts, *cyrillic_equivalents(key.shortcuts))])
    shortcut.setAutoRepeat(key.command not in _ONCE)
    within = Qt.ShortcutContext.WidgetWithChildrenShortcut
    shortcut.setContext(within if key.scope == "reading" else Qt.ShortcutContext.WindowShortcut)
    shortcut.activated.connect(action.trigger)
    shortcut.activatedAmbiguously.connect(action.trigger)
    if key.scope == "images":
        action.enabledChanged.connect(shortcut.setEnabled)  # on other pages, tables use these keys


_MARGINS: Final = (12, 12, 12, 12)
_THREE_COLUMNS: Final = 1100
_COLUMNS: tuple[tuple[KeyGroup, ...], ...] = (("list", "tools"), ("view",), ("compare", "program"))


class KeyListDialog(QDialog):
    """The dialog that lists all keys, made from the table of keys."""

    def __init__(self, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("Keys and mouse"))
        resize_dialog_within_screen(self, 1160, 660)
        page = QWidget()
        set_surface(page, "page")
        wide = self.width() >= _THREE_COLUMNS
        groups_of = _COLUMNS if wide else (sum(_COLUMNS[:2], ()), _COLUMNS[2])
        columns = [[_group_card(translator, group) for group in groups] for groups in groups_of]
        row_layout(page, *((column_layout(None, *cards, 1), 1) for cards in columns), margins=_MARGINS)
        column_layout(self, (in_scroll_area(page), 1), dialog_buttons(self, translator.text("Close")), margins=_MARGINS)


def _group_card(translator: Translator, group: KeyGroup) -> QWidget:
    grid = QGridLayout()
    grid.setColumnStretch(1, 1)
    lines = [
        (",  ".join(map(key_name, key.shortcuts)), key.text(translator)) for key in KEY_BINDINGS if key.group == group
    ]
    if group == "tools":
        lines = [*mouse_help_lines(translator), *lines]
    for row, (keys, meaning) in enumerate(lines):
        grid.addWidget(make_label(keys, role="heading"), row, 0)
        grid.addWidget(make_label(meaning), row, 1)
    return card(make_label(group_title(translator, group), role="heading"), grid)


def mouse_help_lines(translator: Translator) -> list[tuple[str, str]]:
    """Return what the mouse does on an image, as pairs such as ("Right click", "Menu")."""
    return [
        (translator.text("Drag with left button"), translator.text("Window (left and right) and level (up and down)")),
        (translator.text("Drag with middle button"), translator.text("Move the image")),
        (translator.text("Drag with right button"), translator.text("Zoom")),
        (translator.text("Right click"), translator.text("Menu")),
        (translator.text("Double click"), translator.text("Full screen: show only the image, or return to the window")),
        (translator.text("Wheel"), translator.text("Next or previous image")),
        (translator.text("Ctrl + wheel"), translator.text("Zoom at the mouse pointer")),
    ]
