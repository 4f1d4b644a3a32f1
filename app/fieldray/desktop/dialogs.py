"""The dialogs of the window: about the program, licences, model card, guide, settings, export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFontDatabase, QKeySequence, QShortcut, QTextCursor
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QLayout,
    QLineEdit,
    QListWidget,
    QPlainTextEdit,
    QSplitter,
    QWidget,
)

from fieldray.backends import BACKENDS
from fieldray.desktop.widgets import (
    DocumentView,
    Margins,
    PlainButton,
    PlainLabel,
    card,
    choice_box,
    column_layout,
    in_scroll_area,
    make_label,
    number_box,
    push_button,
    row_layout,
    search_field,
    set_surface,
    without_markup,
)
from fieldray.formatting import research_only_notice
from fieldray.paths import VERSION, asset_path, data_folder, guide_folder, licence_table_path, program_folder
from fieldray.reasons import reason
from fieldray.reports.exporter import Exporter, ReportOptions, exporters
from fieldray.settings import BASIC_SETTING_KEYS, SETTING_ROWS, SettingRow, Settings, Value
from fieldray.translation import Translator, languages
from fieldray.typed_json import parse_json

_WIDTH: Final = 560  # width of a dialog that is as high as its page needs
_FRAME: Final = 40  # maximum size of the frame that the system draws around a window
_MIN_DIALOG_WIDTH: Final = 480
_FORM_MARGIN: Final = 8
DIALOG_MARGINS: Final[Margins] = (24, 20, 24, 16)


def resize_dialog_within_screen(dialog: QDialog, width: int, height: int) -> None:
    """Resize a dialog to this size, or to the largest size that fits the screen and its parent window."""
    room = dialog.screen().availableSize() - QSize(_FRAME, 2 * _FRAME)
    behind = dialog.parentWidget()
    if behind is not None:
        room = room.boundedTo(QSize(max(behind.width() - _FRAME, _MIN_DIALOG_WIDTH), room.height()))
    dialog.resize(QSize(width, height).boundedTo(room))


def dialog_buttons(dialog: QDialog, no: str | PlainButton, yes: PlainButton | None = None) -> QDialogButtonBox:
    """Make the row of buttons at the bottom of a dialog.

    no   text of the button that closes the dialog, or the button itself
    yes  the button that confirms; None for a dialog without confirmation
    """
    box = QDialogButtonBox()
    if yes is not None:
        box.addButton(yes, QDialogButtonBox.ButtonRole.AcceptRole)
    box.addButton(push_button(no) if isinstance(no, str) else no, QDialogButtonBox.ButtonRole.RejectRole)
    box.accepted.connect(dialog.accept)
    box.rejected.connect(dialog.reject)
    return box


def lay_out_dialog(dialog: QDialog, page: QWidget, buttons: QWidget) -> None:
    """Lay out a dialog with a page and buttons, as high as the page needs. On a small screen the page scrolls."""
    area = in_scroll_area(page)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    column = column_layout(dialog, (area, 1), buttons, margins=DIALOG_MARGINS, spacing=12)
    for part in page.findChildren(QWidget):
        part.ensurePolished()  # applies the style, so that the height is computed correctly
    layout, sides = page.layout(), column.contentsMargins()
    high = layout.totalHeightForWidth(_WIDTH - sides.left() - sides.right()) if layout is not None else 0
    around = sides.top() + sides.bottom() + column.spacing() + buttons.sizeHint().height() + _FORM_MARGIN
    resize_dialog_within_screen(dialog, _WIDTH, max(high, page.sizeHint().height()) + around)


def make_title_list(lines: Sequence[str], *, accessible_name: str) -> QListWidget:
    """Make a list of titles. A click on a title shows the content next to the list.

    accessible_name  name of the list for screen readers
    """
    made = QListWidget()
    made.setSpacing(3)
    made.setWordWrap(True)
    made.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    made.setAccessibleName(accessible_name)
    made.addItems(lines)
    return made


def make_splitter(left: QWidget, right: QWidget, sizes: Sequence[int]) -> QSplitter:
    """Put two widgets side by side with a movable border.

    sizes  initial widths of both widgets in pixels
    """
    made = QSplitter()
    made.addWidget(left)
    made.addWidget(right)
    made.setSizes(sizes)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class LicensedPart:
    """One part of the program, such as a library, with its licence.

    texts  title of each licence text, and the text's key in `Licences.texts`
    files  for a part under the LGPL, the library files that a user may replace; otherwise empty
    """

    name: str
    version: str
    licence: str
    texts: tuple[tuple[str, str], ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Licences:
    """The table of third-party licences that the installer writes: all parts, and each licence text once by its key."""

    parts: tuple[LicensedPart, ...]
    texts: Mapping[str, str]


def read_licences(table: Path | None = None) -> Licences | None:
    """Read the table of licences of the installed program. Returns None in a source checkout, which has no table.

    table  path of the table; None for that of the installed program

    Raises OSError or ValueError for a damaged table.
    """
    path = table or licence_table_path()
    return parse_json(path.read_bytes(), Licences) if path.is_file() else None


class AboutDialog(QDialog):
    """The dialog with name, version and purpose of the program, connections, results folder, and third-party licences.

    table  path of the table of licences; None for that of the installed program
    """

    def __init__(self, translator: Translator, parent: QWidget | None = None, *, table: Path | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(translator.text("About Fieldray"))
        text, page = translator.text, QWidget()
        set_surface(page, "page")
        silent = text(
            "The program opens no network connection, sends nothing and does not update itself. Images are only "
            "read, never changed."
        )
        images = text(
            "The images of the demonstration are from Kermany, Zhang and Goldbaum (Mendeley Data, 2018, CC BY "
            "4.0) and from Winther et al. (COVID-19 Image Repository, Hannover, 2020, CC BY 3.0). Sources, "
            "licences and changes: {file}",
            file=asset_path("demonstration/CREDITS.md"),
        )
        column = column_layout(
            page,
            make_label(f"Fieldray {VERSION}", role="title"),
            make_label(research_only_notice(translator), role="heading"),
            make_label(text("This program screens chest X-rays with a model pack, on this computer only.")),
            make_label(text("This program makes no network connections."), role="heading"),
            make_label(silent),
            make_label(images, role="muted"),
            make_label(text("Results are kept in {folder}", folder=data_folder()), role="muted"),
            spacing=10,
        )
        box, listed = dialog_buttons(self, text("Close")), read_licences(table)
        if listed is not None:
            self.licences_button = push_button(
                text("Licences…"), lambda: LicencesDialog(listed, translator, self).open()
            )
            box.addButton(self.licences_button, QDialogButtonBox.ButtonRole.ActionRole)
        else:
            why = text("The list of library licences comes only with the installed program, not with the source code.")
            column.addWidget(make_label(why, role="muted"))
        column.addStretch(1)
        lay_out_dialog(self, page, box)


class LicencesDialog(QDialog):
    """The dialog of third-party licences. Licence texts are shown unchanged in English; other texts are translated."""

    def __init__(self, listed: Licences, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._listed, self._translator = listed, translator
        self.setWindowTitle(translator.text("Licences"))
        resize_dialog_within_screen(self, 920, 620)
        names = [without_markup(f"{part.name} {part.version}".strip(), part.licence) for part in listed.parts]
        self.list = make_title_list(names, accessible_name=translator.text("Licences"))
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setAccessibleName(translator.text("Text of the licence"))
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        about_qt = translator.text(
            "Qt and Qt for Python are used under the GNU LGPL, version 3. The Qt libraries are separate files in "
            "{folder}. You may replace the Qt libraries with your own builds. You may reverse engineer the program "
            "to debug your builds. The Qt project publishes the source code of Qt (code.qt.io).",
            folder=program_folder(),
        )
        column_layout(
            self,
            make_label(translator.text("Fieldray itself is licensed under the Apache License 2.0.")),
            make_label(about_qt),
            (make_splitter(self.list, self.text, [300, 600]), 1),
            dialog_buttons(self, translator.text("Close")),
            margins=(16, 14, 16, 14),
            spacing=8,
        )
        self.list.currentRowChanged.connect(self._show)
        self.list.setCurrentRow(0)

    def _show(self, row: int) -> None:
        part = self._listed.parts[row]
        pieces = [f"{part.name} {part.version}\n{part.licence}"]
        if part.files:
            files = "\n".join(f"  {file}" for file in part.files)
            title = self._translator.text("Libraries that you may replace:")
            pieces.append(f"{title}\n{files}")
        pieces += [f"--- {title}\n\n{self._listed.texts[key].strip()}" for title, key in part.texts]
        self.text.setPlainText("\n\n".join(pieces))


# ---- user guide and model cards: a Markdown document, and a list of its headings


class DocumentDialog(QDialog):
    """The dialog that shows a document of the program, such as the guide.

    No link in the document can be opened, and no file is loaded except the document's own images.
    """

    def __init__(
        self,
        title: str,
        text: str,
        translator: Translator,
        parent: QWidget | None = None,
        *,
        images: Mapping[str, Path] | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        resize_dialog_within_screen(self, 1120, 700)
        self.page = DocumentView(text, images or {})
        self.page.setAccessibleName(title)
        headings = self.page.headings()
        self.contents = make_title_list(
            [without_markup(heading) for heading, _ in headings], accessible_name=translator.text("Contents")
        )
        self.contents.currentRowChanged.connect(lambda row: self.page.scroll_to_position(headings[row][1]))
        self.search = search_field(translator.text("Search"))
        self.search.textChanged.connect(self._show_first)
        self.search.returnPressed.connect(self._show_next)
        QShortcut(QKeySequence.StandardKey.Find, self, self.search.setFocus)
        side, close = QWidget(), push_button(translator.text("Close"))
        close.setAutoDefault(False)  # Enter in the search field goes to the next match
        self.no_match_label = make_label(translator.text("Nothing found."), role="warning")
        self.no_match_label.hide()
        column_layout(side, self.search, self.no_match_label, (self.contents, 1), spacing=6)
        panes = make_splitter(side, self.page, [240, 880])
        panes.setStretchFactor(1, 1)
        column_layout(self, (panes, 1), dialog_buttons(self, close), margins=(12, 12, 12, 12))

    def _show_first(self) -> None:
        """Scroll to the first match of the search. Without a match, scroll to the beginning and show a message."""
        self.page.moveCursor(QTextCursor.MoveOperation.Start)
        self.no_match_label.setVisible(not self.page.find(self.search.text()) and bool(self.search.text()))

    def _show_next(self) -> None:
        """Scroll to the next match of the search; after the last match, to the first."""
        if not self.page.find(self.search.text()):
            self._show_first()


def guide_dialog(
    translator: Translator, parent: QWidget | None = None, *, folder: Path | None = None
) -> DocumentDialog:
    """Return the dialog of the user guide.

    folder  folder with the guides; None for the program's own folder
    """
    folder = folder or guide_folder()
    text, images = guide_text(folder, translator.language), {path.name: path for path in folder.glob("*.png")}
    return DocumentDialog(translator.text("User guide"), text, translator, parent, images=images)


def guide_text(folder: Path, language: str) -> str:
    """Return the Markdown text of the user guide in a language. If there is no such guide, return the English guide.

    language  code of the language, such as "en"
    """
    path = folder / f"{language}.md"
    return (path if path.is_file() else folder / "en.md").read_text(encoding="utf-8")


def form_layout(*rows: tuple[str, QWidget | QLayout]) -> QFormLayout:
    """Make a form with one row for each pair of a caption and a field.

    The caption is also the field's name for screen readers.
    """
    made = QFormLayout()
    made.setSpacing(10)
    for caption, field in rows:
        if isinstance(field, QWidget):
            field.setAccessibleName(caption)
        made.addRow(PlainLabel(caption), field)
    return made


class SettingsDialog(QDialog):
    """The dialog of settings, with a line for each setting of the table `settings.SETTING_ROWS`."""

    def __init__(self, settings: Settings, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._settings, self._translator = settings, translator
        self._read: dict[str, Callable[[], Value]] = {}
        self.fields: dict[str, QWidget] = {}
        self.setWindowTitle(translator.text("Settings"))
        resize_dialog_within_screen(self, 760, 480)
        page, more = QWidget(), self._form(is_advanced=True)
        more.hide()
        self.advanced = push_button(translator.text("Advanced"), role="choice")
        self.advanced.toggled.connect(more.setVisible)
        self.advanced.toggled.connect(lambda is_on: resize_dialog_within_screen(self, 760, 640 if is_on else 480))
        button = row_layout(None, self.advanced, 1, margins=(_FORM_MARGIN, 0, 0, 0))
        column_layout(page, self._form(is_advanced=False), button, more, 1, spacing=14)
        when = translator.text(
            "A new language, appearance or device is used at once. A new clock speed of the Edge TPU is used when "
            "the program next starts. All other changes are used from the next run on."
        )
        title, save = translator.text("Settings"), push_button(translator.text("Save"), role="primary")
        save.setDefault(True)
        buttons = dialog_buttons(self, translator.text("Cancel"), save)
        parts = (make_label(title, role="title"), (in_scroll_area(page), 1), make_label(when, role="muted"), buttons)
        column_layout(self, *parts, margins=DIALOG_MARGINS, spacing=14)

    def changed_settings(self) -> dict[str, Value]:
        """Return the settings that the person changed, by key."""
        values = {key: read() for key, read in self._read.items()}
        return {key: value for key, value in values.items() if value != self._settings[key]}

    def _form(self, *, is_advanced: bool) -> QWidget:
        rows = [row for row in SETTING_ROWS if row.is_in_dialog and is_advanced != (row.key in BASIC_SETTING_KEYS)]
        self.fields.update((row.key, self._field(row)) for row in rows)
        made, laid = QWidget(), form_layout(*((self._translator.text(row.label), self.fields[row.key]) for row in rows))
        laid.setContentsMargins(_FORM_MARGIN, _FORM_MARGIN, _FORM_MARGIN, 0)
        laid.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapLongRows)
        made.setLayout(laid)
        return made

    def _field(self, row: SettingRow) -> QWidget:
        value = self._settings[row.key]
        if row.choices:
            choices = ((setting_choice_text(self._translator, choice), choice) for choice in row.choices)
            combo = choice_box(choices, selected=str(value))
            self._read[row.key] = lambda: str(combo.currentData())
            return combo
        if isinstance(row.default, bool):
            box = QCheckBox()
            box.setChecked(bool(value))
            self._read[row.key] = box.isChecked
            return box
        if isinstance(row.default, str):
            line = QLineEdit(str(value))
            line.setMaxLength(_LONGEST_TEXT)
            self._read[row.key] = lambda: line.text().strip()
            return line
        number = number_box(int(row.min_value), int(row.max_value), int(value))
        number.lineEdit().setTextMargins(_FORM_MARGIN, 0, 0, 0)
        self._read[row.key] = number.value
        return number


_LONGEST_TEXT: Final = 100


def setting_choice_text(translator: Translator, choice: str) -> str:
    """Return the text for one choice of a setting, such as "System default" for "system".

    A language is named in that language. A choice without a text is returned unchanged.
    """
    known: dict[str, str] = {
        **{entry.name: translator.text(entry.title) for entry in BACKENDS},
        "system": translator.text("System default"),
        "light": translator.text("Light"),
        "dark": translator.text("Dark"),
        "auto": translator.text("Automatic"),
        "accelerator": translator.text("Edge TPU only"),
        "fastest": translator.text("The faster of CPU and Edge TPU"),
        "both": translator.text("CPU and Edge TPU together"),
        "std": translator.text("Standard clock speed"),
        "max": translator.text("Highest clock speed"),
        **languages(),
    }
    return known.get(choice, choice)


# ---- export: the formats, one line each, and whether patients are named


_FOR_PEOPLE: Final = "pdf"  # a person who exports in the window wants to read a PDF


class ExportDialog(QDialog):
    """The dialog in which a person chooses formats and options of an export. Another dialog asks for the folder."""

    def __init__(self, translator: Translator, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._translator = translator
        self.setWindowTitle(translator.text("Save the results"))
        self.save = push_button(translator.text("Choose a folder…"), role="primary")
        self.boxes = {name: self._box(exporter) for name, exporter in exporters().items()}
        self.comma_box = QCheckBox(
            translator.text("CSV for Excel with decimal commas: columns separated by semicolons")
        )
        self.boxes["csv"].toggled.connect(self.comma_box.setEnabled)
        self.comma_box.setEnabled(self.boxes["csv"].isChecked())
        self.comma_box.setChecked(translator.with_decimal_mark(".") == ",")
        self.names_box = QCheckBox(translator.text("Include patient names"))
        page = QWidget()
        set_surface(page, "page")
        title = make_label(translator.text("Save the results"), role="title")
        formats = card(make_label(translator.text("Formats"), role="heading"), *self.boxes.values(), self.comma_box)
        why = (
            translator.text(
                "Without patient names, patients and files get pseudonyms. In CSV, JSON and PDF, studies and images "
                "also get new UIDs. Dates, age, sex, notes and the SHA-256 of each file are kept."
            ),
            translator.text(
                "DICOM formats keep the UIDs even without patient names. Anybody who may search your archive (PACS) "
                "can find the patient by these UIDs. Reports for your archive need patient names. Without patient "
                "names, the archive would store the report under another patient."
            ),
            translator.reason(reason("pixels_not_cleaned")),
        )
        warnings = (make_label(said, role="muted") for said in why)
        column_layout(page, title, formats, card(self.names_box, *warnings), spacing=12)
        lay_out_dialog(self, page, dialog_buttons(self, translator.text("Cancel"), self.save))
        self.save.setEnabled(bool(self.ticked_formats()))

    def ticked_formats(self) -> tuple[str, ...]:
        """Return the names of the formats that are ticked."""
        return tuple(name for name, box in self.boxes.items() if box.isChecked())

    def export_options(self, *, reader: str = "") -> ReportOptions:
        """Return the options that a person chose for the export: language, patients' names, and separators of CSV.

        reader  name of the reader, from the settings
        """
        return ReportOptions(
            language=self._translator.language,
            names_people=self.names_box.isChecked(),
            uses_decimal_comma=self.comma_box.isChecked(),
            reader_name=reader,
        )

    def _box(self, exporter: Exporter) -> QCheckBox:
        box = QCheckBox(self._translator.text(exporter.title).replace("&", "&&"))
        box.setChecked(exporter.is_default or exporter.name == _FOR_PEOPLE)
        box.toggled.connect(lambda: self.save.setEnabled(bool(self.ticked_formats())))
        return box
