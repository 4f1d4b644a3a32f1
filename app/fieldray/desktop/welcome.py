"""What stands in the window before there is an image: whose images are these, and where are they."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QCheckBox, QGridLayout, QHBoxLayout, QMessageBox, QVBoxLayout, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.icons import icon
from fieldray.desktop.intent import IntentQuestion
from fieldray.desktop.pack_cards import PackCard, chosen_card
from fieldray.desktop.screening import Screening
from fieldray.desktop.style import Theme
from fieldray.desktop.widgets import TallArea, label, name_surface, plain, push_button, question_box
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.packs.candidate import PackCandidate

_WIDEST = 1180
_SIDE_BY_SIDE = 2


class Welcome(QWidget):
    """A card for each pack: choosing one answers the question. Below it, the images."""

    def __init__(
        self, controller: Controller, open_folder: QAction, open_files: QAction, translator: Translator, theme: Theme
    ) -> None:
        super().__init__()
        self._bench, self._translator = controller, translator
        self._theme: Theme = theme
        self.cards: list[PackCard] = []
        self._shown: list[QWidget] = []
        self._title, self._lead = label("", role="title"), label("", role="muted")
        self._grid = QGridLayout()
        self._grid.setSpacing(14)
        self.default_box = QCheckBox(translator.text("Use this pack for every folder on this computer"))
        column = QVBoxLayout()
        column.setSpacing(12)
        for part in (self._title, self._lead):
            column.addWidget(part)
        column.addLayout(self._grid)
        column.addWidget(self.default_box)
        column.addLayout(self._make_buttons(open_folder, open_files))
        column.addStretch(1)
        self._lay_out(column)
        for signal in (controller.packs.listed, controller.packs.model_changed, controller.screening.asked):
            signal.connect(self.refresh)
        self.refresh()

    # ---- building

    def _lay_out(self, column: QVBoxLayout) -> None:
        inner = QWidget()
        inner.setMaximumWidth(_WIDEST)
        inner.setLayout(column)
        page = QWidget()
        name_surface(page, "page")
        row = QHBoxLayout(page)
        row.setContentsMargins(24, 18, 24, 18)
        row.addStretch(1)
        row.addWidget(inner, 1000)
        row.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        self._area = TallArea()
        self._area.setAccessibleName(self._translator.text("Whose images are these?"))
        self._area.show_page(page)
        outer.addWidget(self._area)

    def _make_buttons(self, open_folder: QAction, open_files: QAction) -> QHBoxLayout:
        translator, buttons = self._translator, QHBoxLayout()
        self.open_button = push_button(translator.text("Open folder"), picture=icon("folder", self._theme))
        self.open_button.clicked.connect(open_folder.trigger)
        self._files_button = files = push_button(translator.text("Open files"), picture=icon("file", self._theme))
        files.clicked.connect(open_files.trigger)
        kinds = label(
            translator.text(
                "Or drop a folder, files, a DICOMDIR or a zip file here. DICOM, PNG and JPEG. The files are only read, "
                "never changed."
            ),
            role="muted",
        )
        for button in (self.open_button, files):
            buttons.addWidget(button)
        buttons.addWidget(kinds, 1)
        return buttons

    # ---- what changes

    def refresh(self) -> None:
        """Show the packs there are, and what is asked."""
        translator, question, packs = self._translator, self._bench.screening.question, self._bench.packs
        is_asked = question is not None and question.kind == "pack"
        self._title.setText(translator.text("Whose images are these?"))
        lead = translator.text("Each pack is for certain patients. Choose one, then open a folder of chest X-rays.")
        if question is not None:
            lead = translator.text("Choose the pack for {folder}.", folder=_folders(question))
        elif packs.model is not None:
            name = f"{translator.pick(packs.model.manifest.names)} {packs.model.manifest.version}"
            lead = translator.text("Ready: {pack}. Open a folder of chest X-rays.", pack=name)
        self._lead.setText(plain(lead))
        self.open_button.setProperty("role", "primary" if packs.model is not None and not is_asked else "")
        self.open_button.style().polish(self.open_button)
        self._show_cards(question)

    def take_focus(self) -> None:
        """Put the focus on the page, and on no answer: the question may come while a key is pressed."""
        self._area.setFocus()

    def show_top(self) -> None:
        """Scroll to what is asked: the folder is named above the cards."""
        self._area.verticalScrollBar().setValue(0)

    def _show_cards(self, question: IntentQuestion | None) -> None:
        focused = QApplication.focusWidget()
        had_focus = focused is not None and any(old.isAncestorOf(focused) for old in self._shown)
        if had_focus:
            self.take_focus()  # before Qt gives it to the next button and scrolls there
        for old in self._shown:
            old.hide()
            old.deleteLater()
        found = [entry for entry in self._bench.packs.candidates if entry.can_screen]
        self.cards = [
            PackCard(
                entry,
                self._translator,
                partial(self._choose, question, entry),
                show_card=partial(self._show_card, entry),
            )
            for entry in found
        ]
        none = self._translator.text("No pack is here. Plug in a model drive.")
        self._shown = list(self.cards) or [chosen_card(none)]
        self.default_box.setVisible(bool(found))
        for number, shown in enumerate(self._shown):
            self._grid.addWidget(shown, number // _SIDE_BY_SIDE, number % _SIDE_BY_SIDE)
        self._order_tabs()

    def _order_tabs(self) -> None:
        """Cards that were rebuilt come last otherwise."""
        buttons = (button for card in self.cards for button in (card.card_button, card.button))
        order = [*buttons, self.default_box, self.open_button, self._files_button]
        for before, after in itertools.pairwise(order):
            self.setTabOrder(before, after)

    def _show_card(self, candidate: PackCandidate, _is_checked: bool = False) -> None:
        self._bench.packs.show_card(candidate)

    def _choose(self, question: IntentQuestion | None, candidate: PackCandidate, _is_checked: bool = False) -> None:
        """The click of a card."""
        if self.default_box.isChecked():
            self._bench.choose_default(candidate.lasting_name)
            self.default_box.setChecked(False)
        self._bench.screening.answer(question, candidate)


def ages_box(parent: QWidget, question: IntentQuestion, screening: Screening, translator: Translator) -> QMessageBox:
    """The question that PNG and JPEG files leave open: how old the patients are. It names all that it is about."""
    text, intent = translator.text, question.intent
    assert intent.pack is not None
    youngest, oldest = intent.pack.ages_years or (0, 0)
    images = text("Images: {folder}", folder=_folders(question))
    if intent.images:
        images = text("Images: {folder} ({count} in the list)", folder=_folders(question), count=intent.images)
    more = text(
        "PNG and JPEG files do not say how old a patient is. Your answer is written into every result. The pack in "
        "use is {pack}.",
        pack=f"{translator.pick(intent.pack.source.names)} {intent.pack.version}",
    )
    answers = {
        text("Yes, all of them"): lambda: screening.answer(question, True),
        text("I do not know"): lambda: screening.answer(question, False),
    }
    asked = text("Are all patients aged {youngest} to {oldest} years?", youngest=youngest, oldest=oldest)
    no, declined = text("Use another pack"), lambda: screening.answer(question, None)
    return question_box(parent, asked, images, "", more, answers=answers, no=no, declined=declined)


def _folders(question: IntentQuestion) -> str:
    return ", ".join(map(str, question.intent.paths))
