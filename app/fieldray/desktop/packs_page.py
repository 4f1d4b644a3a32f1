"""The packs page: the pack in use, the available packs, and the questions before a pack is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontDatabase, QResizeEvent
from PySide6.QtWidgets import QCheckBox, QDialog, QFrame, QLabel, QSizePolicy, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.current_image import CurrentImage
from fieldray.desktop.dialogs import DIALOG_MARGINS, dialog_buttons
from fieldray.desktop.pack_choice import PackController, PackQuestion
from fieldray.desktop.performance_bars import PerformanceBars
from fieldray.desktop.style import Theme, category_icon, icon
from fieldray.desktop.widgets import (
    LayoutPart,
    Page,
    PlainButton,
    PlainLabel,
    card,
    choice_box,
    column_layout,
    icon_label,
    make_label,
    push_button,
    remove_widgets,
    row_layout,
    set_elided_text,
    set_tooltip,
    split_paragraphs,
    without_markup,
)
from fieldray.desktop.worklist_rows import WorkListRow, pack_title, result_text
from fieldray.domain.intended_use import intended_patients_sentence, performance_sentences
from fieldray.domain.model import Manifest, OperatingPoint
from fieldray.formatting import format_percent, format_threshold, label_meaning
from fieldray.packs.naming import PackCandidate
from fieldray.reasons import reason
from fieldray.reports.performance import class_performance, performance_of_pack
from fieldray.translation import Translator

_BUTTON_SIDES: Final = 30  # space to the left and right of a button's text
_ICON: Final = 24


class PackDialog(QDialog):
    """The dialog with a question about a pack.

    The question is about an unknown key, a pack with the name of another pack, an unsigned model, or an older version.
    """

    def __init__(
        self, question: PackQuestion, packs: PackController, translator: Translator, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setMinimumWidth(460)
        title, advice, yes = _texts(translator, question)
        self.setWindowTitle(title)
        name = translator.pack_text(question.candidate.names) or question.candidate.pack_name
        parts = [make_label(title, role="title"), make_label(f"{name}  {question.candidate.version}", role="heading")]
        if question.kind in ("older", "namesake"):
            parts.append(make_label(translator.reason(question.reason)))
        if question.kind in ("unknown_key", "namesake"):
            fingerprint = make_label(*fingerprint_lines(question.candidate.fingerprint))
            fingerprint.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
            fingerprint.setAlignment(Qt.AlignmentFlag.AlignCenter)
            parts.append(fingerprint)
        self.yes_button, self.no_button = push_button(yes), push_button(translator.text("Do not use"))
        buttons = dialog_buttons(self, self.no_button, self.yes_button)
        column_layout(self, *parts, make_label(advice), buttons, margins=DIALOG_MARGINS, spacing=12)
        self.accepted.connect(lambda: packs.answer(question, is_yes=True))
        self.rejected.connect(lambda: packs.answer(question, is_yes=False))
        self.no_button.setDefault(True)
        self.no_button.setFocus()


def fingerprint_lines(fingerprint: str) -> tuple[str, ...]:
    """Format a fingerprint as four lines of four groups, so that people can read it aloud over the telephone."""
    groups = fingerprint.split("-")
    return tuple("  ".join(groups[start : start + 4]) for start in range(0, len(groups), 4))


def _texts(translator: Translator, question: PackQuestion) -> tuple[str, str, str]:
    """Return title, advice and confirmation text for a question about a pack."""
    if question.kind == "unknown_key":
        return (
            translator.text("Do you trust this signing key?"),
            translator.text(
                "Compare this fingerprint with the fingerprint that the signer gives you by telephone, on paper or "
                "on a website. Trust the key only if all groups of letters and digits match. Every pack signed with "
                "this key is then accepted."
            ),
            translator.text("The fingerprints match: trust this key"),
        )
    if question.kind == "namesake":
        return (
            translator.text("Use a pack with a known name but another signer?"),
            translator.text(
                "The results of this pack do not mean the same as the results of the pack that you know by this "
                "name. Use this pack only if you know who signed this pack, and why."
            ),
            translator.text("Use this signer's pack"),
        )
    if question.kind == "legacy":
        return (
            translator.text("Use an unsigned legacy model?"),
            translator.text(
                "This model is unsigned and was not verified: the model may have been changed. The operating point "
                "and the accuracy are unknown. The model has one output for each class, and the larger output "
                "decides the class. Each result says that the model is unsigned."
            ),
            translator.text("Use this model once"),
        )
    return (
        translator.text("Use an older version of the pack?"),
        translator.text(
            "A newer version of this pack comes with the program or has been used on this computer. The older "
            "version may have known faults."
        ),
        translator.text("Use the older version of the pack once"),
    )


class PacksPage(Page):
    """The page of packs, with a card for the pack in use and a card for each other pack.

    The cards are built again whenever the page is shown, because drives are connected and disconnected.
    """

    def __init__(self, controller: Controller, translator: Translator, theme: Theme) -> None:
        packs = controller.packs
        look = push_button(translator.text("Refresh"), packs.find_packs, icon=icon("refresh", theme))
        super().__init__(translator.text("Packs"), translator.text("Model packs"), translator, theme, look)
        self._bench, self._packs = controller, packs
        self._cards: list[QWidget] = []
        self._make_constancy()
        self._is_stale = True
        self.refresh_on_signals(packs.packs_listed, packs.model_changed)
        controller.constancy_test.changed.connect(self._show_constancy)

    # ---- building

    def refresh(self) -> None:
        """Build the cards of all packs again."""
        remove_widgets(*self._cards)
        self._cards = [self._make_used(), *(self._make_card(candidate) for candidate in self._packs.candidates)]
        if not self._packs.candidates:
            none = self._translator.text("No packs found. Plug in a drive with packs, then press Refresh.")
            if not self._packs.is_listed:
                none = searching_for_packs_text(self._translator)
            self._cards.append(card(make_label(none)))
        for position, new in enumerate(self._cards):
            self._column.insertWidget(1 + position, new)

    def _make_used(self) -> QWidget:
        self._make_constancy()
        text, model = self._translator.text, self._packs.model
        in_use = make_label(text("In use"), role="muted")
        if model is None:
            return card(
                in_use, make_label(text("No pack is in use. Plug in a drive with packs, or choose a pack below."))
            )
        others = ", ".join(pack_title(self._translator, one.manifest) for one in self._packs.loaded_models[1:])
        manifest, facts = model.manifest, [text("Model file (SHA-256): {checksum}", checksum=model.model_sha256)]
        if model.fingerprint:
            facts.insert(0, text("Signing key: {key}", key=model.fingerprint))
        if model.lungs_pack:
            facts.append(text("Pack that finds the lungs: {pack}", pack=model.lungs_pack))
        return card(
            in_use,
            make_label(f"{self._translator.pack_text(manifest.names)}  {manifest.version}", role="title"),
            *([make_label(text("Other packs in use: {packs}", packs=others), role="heading")] if others else []),
            row_layout(None, (self.constancy, 1), self.check_button),
            make_label(*split_paragraphs(self._translator.pack_text(manifest.descriptions))),
            *pack_description_widgets(self._translator, manifest, self._theme, self._packs.operating_point),
            *self._points(manifest),
            *self._default(),
            model_card_button(self._translator, partial(self._packs.model_card_read.emit, model.card)),
            *(make_label(fact, role="muted") for fact in facts),
        )

    def _make_constancy(self) -> None:
        self.constancy = make_label()
        self.check_button = push_button(self._translator.text("Run constancy test"), self._bench.constancy_test.start)
        self._show_constancy()

    def _show_constancy(self) -> None:
        """Show the state of the constancy test of the pack in use, or that the test is running."""
        checking, translator = self._bench.constancy_test, self._translator
        said = map(translator.reason, (*checking.state_sentences, *([checking.problem] if checking.problem else [])))
        self.constancy.setText(*([translator.text("Constancy test running…")] if checking.is_busy else said))
        self.check_button.setEnabled(checking.can_start)

    def _points(self, manifest: Manifest) -> Sequence[LayoutPart]:
        translator = self._translator
        titles = {point.name: translator.pack_text(point.titles) for point in manifest.operating_points}
        if manifest.is_bare:
            return [make_label(translator.reason(reason("unsigned_operating_point_unknown")), role="warning")]
        if not titles:
            return [make_label(translator.text("No operating point: images get a score but no class."))]
        point, caption = self._packs.operating_point, translator.text("Operating point for the next run")
        choices = ((title, name) for name, title in titles.items())
        choice = choice_box(choices, accessible_name=caption, selected=point.name if point else None)
        choice.activated.connect(lambda index: self._packs.choose_operating_point_by_name(choice.itemData(index)))
        row = row_layout(None, PlainLabel(caption), choice, 1)
        return [row, *([make_label(operating_point_text(translator, point), role="muted")] if point else [])]

    def _default(self) -> Sequence[QWidget]:
        """Return the widgets that make the pack in use the site's default for folders without a choice."""
        translator, source = self._translator, self._packs.source
        if source is None or source.trust == "legacy":
            return []
        is_default = self._packs.available_packs.is_in_use(self._packs.default_pack_and_point_names[0])
        box = QCheckBox(translator.text("Use this pack for every folder on this computer"))
        box.setChecked(is_default)
        point = self._packs.point_name or ""
        box.toggled.connect(
            lambda is_on: self._bench.set_default_pack(source.id_with_signer if is_on else "", point if is_on else "")
        )
        return [box]

    def _make_card(self, candidate: PackCandidate) -> QWidget:
        translator = self._translator
        sign = icon_label(icon("drive" if candidate.origin == "drive" else "file", self._theme), side=24)
        name = translator.pack_text(candidate.names) or candidate.pack_name
        rows: list[QWidget] = [make_label(f"{name}  {candidate.version}", role="heading")]
        shipped = {one.fingerprint for one in self._packs.candidates if one.trust == "builtin"}
        is_of_shipped_key = bool(candidate.fingerprint) and candidate.fingerprint in shipped
        rows.append(make_label(origin_and_trust_text(translator, candidate, is_of_shipped_key=is_of_shipped_key)))
        if candidate.problem is not None and candidate.trust != "legacy":
            rows.append(make_label(translator.reason(candidate.problem), role="muted"))
        if candidate.manifest is not None and not self._packs.is_pack_in_use(candidate):
            rows += pack_description_widgets(translator, candidate.manifest, self._theme)
        if candidate.origin != "builtin" or candidate.problem is not None:  # nobody needs the program's folder
            rows.append(path_label(candidate.folder, role="muted"))
        rows.append(box := AdditionalPackBox(candidate, self._packs, translator))
        row = row_layout(None, sign, (column_layout(None, *rows), 1), *(buttons := self._buttons(candidate)))
        for part in (sign, *buttons):  # next to the name, where people see the buttons
            row.setAlignment(part, Qt.AlignmentFlag.AlignTop)
        made = card(row)
        box.refresh()  # only now: a widget without parent would be a window
        return made

    def _buttons(self, candidate: PackCandidate) -> list[PlainButton]:
        translator, buttons = self._translator, []
        if candidate.trust == "broken":
            return []
        if candidate.origin == "drive" and candidate.problem is None:
            copy = translator.text("Copy to this computer")
            buttons.append(push_button(copy, lambda: self._packs.install_pack(candidate)))
        if candidate.manifest is not None and candidate.trust != "legacy":
            buttons.append(model_card_button(translator, partial(self._packs.read_model_card, candidate)))
        if self._packs.is_pack_in_use(candidate):
            used = push_button(translator.text("In use"), icon=icon("check", self._theme, "disabled"))
            used.setEnabled(False)
            return [*buttons, used]
        use = translator.text("Review this pack…") if candidate.problem else translator.text("Use this pack")
        return [*buttons, push_button(use, lambda: self._packs.use_pack(candidate))]


def path_label(path: Path, *, role: str = "") -> QLabel:
    """Return a label that shows a path. Lines may break after each folder.

    role  look of the text, as for `widgets.label`
    """
    made = make_label(role=role)
    QLabel.setText(made, without_markup(str(path)).replace(os.sep, os.sep + "\u200b"))
    return made


def operating_point_text(translator: Translator, point: OperatingPoint) -> str:
    """Format an operating point with its measured performance."""
    return translator.text(
        "Threshold {threshold}, uncertain zone from {low} to {high}. Measured on {data}: sensitivity {sensitivity}, "
        "specificity {specificity} (95 % confidence interval).",
        threshold=format_threshold(translator, point.threshold),
        low=format_threshold(translator, point.unsure_low),
        high=format_threshold(translator, point.unsure_high),
        data=translator.pack_text(point.measured_on),
        sensitivity=format_percent(translator, point.sensitivity),
        specificity=format_percent(translator, point.specificity),
    )


def searching_for_packs_text(translator: Translator) -> str:
    """Return the text that is shown while the program searches for packs."""
    return translator.text("Looking for packs…")


def origin_and_trust_text(translator: Translator, candidate: PackCandidate, *, is_of_shipped_key: bool = False) -> str:
    """Return a text that says where a pack is stored and whether the pack is trusted.

    is_of_shipped_key  whether the pack is signed with the key of the shipped packs
    """
    origins = {
        "builtin": translator.text("Comes with the program"),
        "installed": translator.text("On this computer"),
        "drive": translator.text("On a drive"),
    }
    trust = {
        "builtin": translator.text("Trusted signer"),
        "trusted": translator.text("Signed with the key of the packs that come with the program")
        if is_of_shipped_key
        else translator.text("Signed by a key you trust"),
        "unknown_key": translator.text("Signed by a key that is not trusted yet"),
        "legacy": translator.text("Unsigned legacy model, operating point unknown"),
        "broken": translator.text("This pack cannot be used"),
    }
    return f"{origins[candidate.origin]}. {trust[candidate.trust]}"


# ---- descriptions of packs: intended patients, finding, measured figures, limits


def model_card_button(translator: Translator, wanted: Callable[[], None]) -> PlainButton:
    """Make the button that opens a pack's model card.

    wanted  function called after a click
    """
    return push_button(translator.text("Model card…"), wanted)


class PackCard(QFrame):
    """The card of one pack. With a click on the card, a person states that the images show patients of this pack."""

    def __init__(
        self,
        candidate: PackCandidate,
        packs: PackController,
        translator: Translator,
        theme: Theme,
        choose: Callable[[], None],
    ) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setProperty("chosen", packs.is_pack_in_use(candidate))
        name, manifest = translator.pack_text(candidate.names) or candidate.pack_name, candidate.manifest
        rows: list[QWidget] = [make_label(f"{name} {candidate.version}", role="title")]
        rows += [make_label(translator.text("In use"), role="heading")] if packs.is_pack_in_use(candidate) else []
        rows += pack_description_widgets(translator, manifest, theme) if manifest is not None else []
        if candidate.problem is not None:
            rows.append(make_label(translator.reason(candidate.problem), role="muted"))
        self._answer = choose_button_lines(translator, candidate)
        self.button = push_button("", choose, role="primary")
        self.button.setText(*self._answer)
        set_tooltip(self.button, *self._answer)
        # A long name is cut, so that it does not widen the page. The title above shows the whole name.
        self.button.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.card_button = model_card_button(translator, partial(packs.read_model_card, candidate))
        self.other_box = AdditionalPackBox(candidate, packs, translator)
        column_layout(
            self, *rows, 1, self.other_box, self.card_button, self.button, margins=(16, 14, 16, 14), spacing=6
        )
        self.other_box.refresh()
        self.card_button.setVisible(manifest is not None)  # only now: a widget without parent would be a window

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        set_elided_text(self.button, *self._answer, max_width=self.button.width() - _BUTTON_SIDES)


def choose_button_lines(translator: Translator, candidate: PackCandidate) -> tuple[str, ...]:
    """Return the lines of text on the button that chooses a pack: its action, or the pack's name and ages."""
    if candidate.problem is not None:
        return (translator.text("Review this pack…"),)
    ages = candidate.manifest.accepted.ages_years if candidate.manifest else None
    if ages is None:
        return (translator.text("Use this pack"),)
    name = translator.pack_text(candidate.names) or candidate.pack_name  # the name distinguishes packs for equal ages
    return name, translator.text("patients aged {youngest} to {oldest} years", youngest=ages[0], oldest=ages[1])


def pack_description_widgets(
    translator: Translator, manifest: Manifest, theme: Theme, point: OperatingPoint | None = None
) -> list[QWidget]:
    """Return the widgets of a pack's card, from top to bottom.

    The widgets show the intended patients, the finding, the measured share of each class, further measured figures,
    warnings and limits.

    point  the operating point whose figures are shown; None for the first operating point of each label
    """
    meanings = ", ".join(label_meaning(translator, entry.code, manifest) for entry in manifest.labels)
    warnings = [split_paragraphs(translator.pack_text(manifest.warnings))] if manifest.warnings else []
    of_point = class_performance(translator, manifest, point)
    measured = (of_point,) if of_point else performance_of_pack(translator, manifest)
    return [
        make_label(translator.reason(intended_patients_sentence(manifest.accepted)), role="heading"),
        make_label(translator.text("This pack looks for: {meaning}", meaning=meanings)),
        *(part for one in measured for part in (make_label(one.sentence), PerformanceBars(one, theme))),
        *(make_label(translator.reason(why), role="muted") for why in performance_sentences(manifest)),
        *(make_label(*lines, role="warning") for lines in warnings),
        make_label(*split_paragraphs(translator.pack_text(manifest.limits)), role="muted"),
    ]


# ---- several packs in one run


class AdditionalPackBox(QCheckBox):
    """A checkbox for screening with an additional pack.

    The checkbox is hidden for the pack in use, and for a pack that needs an answer from a person first.
    """

    def __init__(self, candidate: PackCandidate, packs: PackController, translator: Translator) -> None:
        super().__init__(translator.text("Screen with this pack too"))
        self._candidate, self._packs = candidate, packs
        self.clicked.connect(lambda is_on: packs.others.set_ticked(candidate, is_on=is_on))
        packs.model_changed.connect(self.refresh)
        packs.packs_listed.connect(self.refresh)

    def refresh(self) -> None:
        """Show whether the pack is ticked now. Hide the checkbox if the pack cannot be an additional pack."""
        used = self._packs.available_packs.pack_in_use
        self.setChecked(self._packs.others.is_ticked(self._candidate))
        self.setVisible(self._candidate.problem is None and not (used and used.is_same_pack(self._candidate)))


class PackResultButtons(QWidget):
    """A button for each pack that has a result for the current image.

    Result panel and heat map show the chosen pack.
    """

    def __init__(self, image: CurrentImage, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._image, self._translator, self._theme = image, translator, theme
        self._column, self._said = column_layout(self, spacing=4), list[tuple[WorkListRow, str, str]]()
        self.buttons: list[PlainButton] = []

    def refresh(self) -> None:
        """Show a button with the result of each pack for the current image. With only one pack, no button is shown."""
        packs, translator = self._image.packs, self._translator
        said = [(row, pack_title(translator, row.manifest), result_text(translator, row)) for row in packs]
        if said != self._said:  # unchanged buttons keep the focus
            remove_widgets(*self.buttons)
            self._said, self.buttons = said, [self._button(*one) for one in said]
        for row, button in zip(packs, self.buttons, strict=True):
            button.setChecked(row is self._image.row)
        self.setVisible(len(packs) > 1)
        self._elide()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        for (_, *lines), button in zip(self._said, self.buttons, strict=True):
            set_elided_text(button, *lines, max_width=self.width() - _ICON - _BUTTON_SIDES)

    def _button(self, row: WorkListRow, *lines: str) -> PlainButton:
        button = push_button(
            "", partial(self._turn_to, row), icon=category_icon(row.category, self._theme), role="filter"
        )
        button.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        button.setAccessibleName(without_markup(" ".join(lines)))
        set_tooltip(button, *lines)
        self._column.addWidget(button)
        return button

    def _turn_to(self, row: WorkListRow) -> None:
        if row is not self._image.row:
            self._image.show_pack_result(row)
        self.refresh()
