"""The page of the window before an image is shown.

A person states which patients the images show, and chooses folders.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QCheckBox, QGridLayout, QHBoxLayout, QMessageBox, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.intent import IntentQuestion
from fieldray.desktop.packs_page import PackCard, searching_for_packs_text
from fieldray.desktop.screening import ScreeningController
from fieldray.desktop.style import Theme, icon
from fieldray.desktop.widgets import (
    card,
    column_layout,
    in_scroll_area,
    make_label,
    push_button,
    question_box,
    remove_widgets,
    row_layout,
    set_elided_text,
    set_surface,
    set_tooltip,
    without_markup,
)
from fieldray.desktop.worklist_rows import pack_title
from fieldray.packs.naming import PackCandidate
from fieldray.translation import Translator

_WIDEST = 1180
_SIDE_BY_SIDE = 2
_AGAIN_ROOM = 480


class WelcomePage(QWidget):
    """The welcome page: a card for each pack, and below the cards the choice of folders and files.

    With a click on a card, a person states which patients the images show.
    """

    def __init__(
        self, controller: Controller, actions: Mapping[str, QAction], translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        self._bench, self._translator, self._theme = controller, translator, theme
        self.cards: list[PackCard] = []
        self._shown: list[QWidget] = []
        self._answers: tuple[IntentQuestion | None, list[PackCandidate], PackCandidate | None] | None = None
        self._is_listed = False
        self._title, self._lead = make_label("", role="title"), make_label("", role="muted")
        self._grid = QGridLayout()
        self._grid.setSpacing(14)
        self.default_box = QCheckBox(translator.text("Use this pack for every folder on this computer"))
        self.again_button = push_button("", self._open_again, icon=icon("folder", theme))
        inner, buttons, again = QWidget(), self._make_buttons(actions), row_layout(None, self.again_button, 1)
        inner.setMaximumWidth(_WIDEST)
        column_layout(inner, self._title, self._lead, again, self._grid, self.default_box, buttons, 1, spacing=12)
        page = QWidget()
        set_surface(page, "page")
        row_layout(page, 1, (inner, 1000), 1, margins=(24, 18, 24, 18))
        self._area = in_scroll_area(page)
        self._area.setAccessibleName(translator.text("Which patients are these X-rays from?"))
        column_layout(self, self._area)
        packs = controller.packs
        for signal in (
            packs.packs_listed,
            packs.model_changed,
            controller.screening.question_changed,
            controller.recent_folders_changed,
        ):
            signal.connect(self.refresh)
        self.refresh()

    # ---- building

    def _make_buttons(self, actions: Mapping[str, QAction]) -> QHBoxLayout:
        text, themed = self._translator.text, partial(icon, theme=self._theme)
        self.open_button = push_button(text("Open folder"), actions["open_folder"].trigger, icon=themed("folder"))
        self._files_button = push_button(text("Open files"), actions["open_files"].trigger, icon=themed("file"))
        self._watch_button = push_button(text("Watch folder"), actions["watch"].trigger, icon=themed("watch"))
        kinds = text(
            "Or drop a folder, files, a DICOMDIR or a zip file here. Formats: DICOM, PNG and JPEG. The files are "
            "only read, never changed."
        )
        buttons = self.open_button, self._files_button, self._watch_button
        return row_layout(None, *buttons, (make_label(kinds, role="muted"), 1))

    # ---- updating

    def refresh(self) -> None:
        """Show the available packs and the open question."""
        translator, question, packs = self._translator, self._bench.screening.question, self._bench.packs
        is_asked = question is not None and question.kind == "pack"
        self._title.setText(translator.text("Which patients are these X-rays from?"))
        lead = translator.text("Each pack is for certain patients. Choose a pack, then open a folder of chest X-rays.")
        if question is not None:
            lead = translator.text("Choose the pack for {folder}.", folder=_folders(translator, question))
        elif packs.model is not None:
            name = " + ".join(pack_title(translator, model.manifest) for model in packs.loaded_models)
            lead = translator.text("Ready: {pack}. Open a folder of chest X-rays.", pack=name)
        self._lead.setText(without_markup(lead))
        self.open_button.setProperty("role", "primary" if packs.model is not None and not is_asked else "")
        self.open_button.style().polish(self.open_button)
        folder = next(iter(self._bench.settings.recent_folders), "")
        caption = translator.text(
            "Open the last folder again: {folder}", folder=translator.name_unless_hidden(Path(folder).name)
        )
        set_elided_text(self.again_button, caption, max_width=_AGAIN_ROOM)
        set_tooltip(self.again_button, translator.name_unless_hidden(folder))
        self.again_button.setVisible(bool(folder) and question is None)
        self._show_cards(question)

    def _open_again(self) -> None:
        self._bench.screening.screen_paths([Path(folder) for folder in self._bench.settings.recent_folders[:1]])

    def focus_page(self) -> None:
        """Give the focus to the page and not to a card, because a key pressed at this moment must not choose a pack."""
        self._area.setFocus()

    def scroll_to_top(self) -> None:
        """Scroll to the top of the page, so that the title and the question about the pack are visible."""
        self._area.verticalScrollBar().setValue(0)

    def _show_cards(self, question: IntentQuestion | None) -> None:
        packs = self._bench.packs
        found = [entry for entry in packs.candidates if entry.can_screen]
        if self._answers == (question, found, packs.source) and packs.is_listed == self._is_listed:
            return
        self._answers, self._is_listed = (question, found, packs.source), packs.is_listed
        focused = QApplication.focusWidget()
        had_focus = focused is not None and any(old.isAncestorOf(focused) for old in self._shown)
        if had_focus:
            self.focus_page()  # before Qt moves the focus to the next button and scrolls there
        remove_widgets(*self._shown)
        choose = partial(self._choose, question)
        self.cards = [PackCard(entry, packs, self._translator, self._theme, partial(choose, entry)) for entry in found]
        none = self._translator.text("No pack was found. Plug in a drive with packs.")
        if not packs.is_listed:
            none = searching_for_packs_text(self._translator)
        self._shown = list(self.cards) or [card(make_label(none))]
        self.default_box.setVisible(bool(found))
        for number, shown in enumerate(self._shown):
            self._grid.addWidget(shown, number // _SIDE_BY_SIDE, number % _SIDE_BY_SIDE)
        self._order_tabs()

    def _order_tabs(self) -> None:
        """Restore the order in which Tab visits the controls, because rebuilt cards would come last."""
        buttons = (button for shown in self.cards for button in (shown.other_box, shown.card_button, shown.button))
        rest = self.default_box, self.open_button, self._files_button, self._watch_button, self.again_button
        for before, after in itertools.pairwise((*buttons, *rest)):
            self.setTabOrder(before, after)

    def _choose(self, question: IntentQuestion | None, candidate: PackCandidate) -> None:
        """Handle a click on a pack's card.

        question   the open question that the click answers, or None
        candidate  the pack
        """
        if self.default_box.isChecked():
            self._bench.set_default_pack(candidate.id_with_signer)
            self.default_box.setChecked(False)
        self._bench.screening.answer(question, candidate)


def ages_question_box(
    parent: QWidget, question: IntentQuestion, screening: ScreeningController, translator: Translator
) -> QMessageBox:
    """Return the dialog that asks whether the patients have the pack's ages. PNG and JPEG files do not state ages.

    question  the question about the ages
    """
    text, intent = translator.text, question.intent
    youngest, oldest = intent.ages_years or (0, 0)
    folders = _folders(translator, question)
    images = text("Images: {folder}", folder=folders)
    if intent.listed_image_count:
        images = text("Images: {folder} ({count} in the list)", folder=folders, count=intent.listed_image_count)
    more = text(
        "PNG and JPEG files do not say how old a patient is. Your answer about the age is written into every result. "
        "The pack in use is {pack}.",
        pack=" + ".join(f"{translator.pack_text(pack.listed_pack.names)} {pack.version}" for pack in intent.packs),
    )
    answers = {
        text("Yes, all patients are of this age"): lambda: screening.answer(question, True),
        text("I do not know"): lambda: screening.answer(question, False),
    }
    asked = text("Are all patients aged {youngest} to {oldest} years?", youngest=youngest, oldest=oldest)
    decline_text, on_decline = text("Use another pack"), lambda: screening.answer(question, None)
    return question_box(
        parent, asked, images, "", more, answers=answers, decline_text=decline_text, on_decline=on_decline
    )


def _folders(translator: Translator, question: IntentQuestion) -> str:
    return translator.name_unless_hidden(", ".join(map(str, question.intent.paths)))
