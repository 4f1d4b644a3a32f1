"""The page of packs: the one in use, those available, and the questions asked before one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFontDatabase, QShowEvent
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QHBoxLayout, QVBoxLayout, QWidget

from fieldray.desktop.controller import Controller
from fieldray.desktop.icons import icon
from fieldray.desktop.pack_cards import add_purpose, card_button
from fieldray.desktop.pack_choice import PackChoice, PackQuestion
from fieldray.desktop.style import Theme
from fieldray.desktop.widgets import (
    PlainButton,
    PlainLabel,
    TallArea,
    card,
    choice_box,
    icon_label,
    label,
    name_surface,
    paragraphs,
    path_words,
    push_button,
)
from fieldray.domain.model import Manifest, OperatingPoint
from fieldray.formatting import border_text, class_lines, percent
from fieldray.reasons import reason
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.packs.candidate import PackCandidate


class PackDialog(QDialog):
    """Trust this key? Use a namesake, an unsigned legacy model, an older version?"""

    def __init__(
        self, question: PackQuestion, packs: PackChoice, translator: Translator, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setMinimumWidth(460)
        title, advice, yes = _texts(translator, question)
        self.setWindowTitle(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(12)
        column.addWidget(label(title, role="title"))
        name = translator.pick(question.candidate.names) or question.candidate.pack_name
        column.addWidget(label(f"{name}  {question.candidate.version}", role="heading"))
        if question.kind in ("older", "namesake"):
            column.addWidget(label(translator.reason(question.reason)))
        if question.fingerprint:
            fingerprint = label(*fingerprint_lines(question.fingerprint))
            fingerprint.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
            fingerprint.setAlignment(Qt.AlignmentFlag.AlignCenter)
            column.addWidget(fingerprint)
        column.addWidget(label(advice))
        self.yes_button = push_button(yes)
        self.no_button = push_button(translator.text("Do not use"))
        box = QDialogButtonBox()
        box.addButton(self.yes_button, QDialogButtonBox.ButtonRole.AcceptRole)
        box.addButton(self.no_button, QDialogButtonBox.ButtonRole.RejectRole)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        self.accepted.connect(lambda: packs.answer_yes(question))
        self.rejected.connect(lambda: packs.answer_no(question))
        column.addWidget(box)
        self.no_button.setDefault(True)
        self.no_button.setFocus()


def fingerprint_lines(fingerprint: str) -> tuple[str, ...]:
    """A fingerprint in four lines of four groups, as it is read aloud over the telephone."""
    groups = fingerprint.split("-")
    return tuple("  ".join(groups[start : start + 4]) for start in range(0, len(groups), 4))


def _texts(translator: Translator, question: PackQuestion) -> tuple[str, str, str]:
    """Title, advice, and the words of the yes."""
    if question.kind == "unknown_key":
        return (
            translator.text("Do you trust this signing key?"),
            translator.text(
                "Compare this fingerprint with the one the signer gives you by telephone, on paper or on their "
                "website. Trust the key only if all groups match. Every pack signed with it is then accepted."
            ),
            translator.text("They match: trust this key"),
        )
    if question.kind == "namesake":
        return (
            translator.text("Use a pack of the same name by another signer?"),
            translator.text(
                "Its results mean something else than those of the pack that you know by this name. Use it only if you "
                "know who signed it and why."
            ),
            translator.text("Use this signer's pack"),
        )
    if question.kind == "legacy":
        return (
            translator.text("Use an unsigned legacy model?"),
            translator.text(
                "Nobody vouches for this model: it may have been changed. Its operating point is unknown: the class "
                "is that of the larger output, and how often it is right was not measured. Each result says so."
            ),
            translator.text("Use it once"),
        )
    return (
        translator.text("Use an older version?"),
        translator.text("A newer version has been used on this computer. The older one may have known faults."),
        translator.text("Use the older version once"),
    )


class PacksPage(TallArea):
    """One card for the pack in use, one for each pack found; built when it is seen, as drives come and go."""

    left = Signal()

    def __init__(self, controller: Controller, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self.setAccessibleName(translator.text("Packs"))
        packs = controller.packs
        self._bench, self._packs, self._translator = controller, packs, translator
        self._theme: Theme = theme
        page = QWidget()
        name_surface(page, "page")
        self._column = QVBoxLayout(page)
        self._column.setContentsMargins(24, 16, 24, 24)
        self._column.setSpacing(12)
        self._column.addLayout(self._make_top())
        self._cards: list[QWidget] = []
        self._column.addStretch(1)
        self.show_page(page)
        self._is_stale = True
        packs.listed.connect(self._changed)
        packs.model_changed.connect(self._changed)

    def showEvent(self, event: QShowEvent) -> None:
        if self._is_stale:
            self._refresh()
        super().showEvent(event)

    # ---- building

    def _changed(self) -> None:
        self._is_stale = True
        if self.isVisible():
            self._refresh()

    def _refresh(self) -> None:
        """Build the cards again."""
        self._is_stale = False
        for old in self._cards:
            old.hide()
            old.deleteLater()
        self._cards = [self._make_used(), *(self._make_card(candidate) for candidate in self._packs.candidates)]
        if not self._packs.candidates:
            self._cards.append(self._make_none())
        for position, new in enumerate(self._cards):
            self._column.insertWidget(1 + position, new)

    def _make_top(self) -> QHBoxLayout:
        back = push_button(self._translator.text("Back to the images"), picture=icon("back", self._theme))
        back.clicked.connect(self.left)
        look = push_button(self._translator.text("Refresh"), picture=icon("refresh", self._theme))
        look.clicked.connect(self._packs.look)
        row = QHBoxLayout()
        row.addWidget(back)
        row.addWidget(label(self._translator.text("Model packs"), role="title"), 1)
        row.addWidget(look)
        return row

    def _make_used(self) -> QWidget:
        frame, column = card()
        translator, model = self._translator, self._packs.model
        column.addWidget(label(translator.text("In use"), role="muted"))
        if model is None:
            column.addWidget(label(translator.text("No pack is in use. Plug in a model drive or choose one below.")))
            return frame
        manifest = model.manifest
        column.addWidget(label(f"{translator.pick(manifest.names)}  {manifest.version}", role="title"))
        column.addWidget(label(*paragraphs(translator.pick(manifest.descriptions))))
        add_purpose(column, translator, manifest)
        self._add_points(column, manifest)
        self._add_default(column)
        column.addWidget(card_button(translator, lambda _: self._packs.card_read.emit(model.card)))
        if model.fingerprint:
            column.addWidget(label(translator.text("Signing key: {key}", key=model.fingerprint), role="muted"))
        checksum = translator.text("Model file (SHA-256): {checksum}", checksum=model.model_sha256)
        column.addWidget(label(checksum, role="muted"))
        if model.lungs_pack:
            found_by = translator.text("Lung fields: {pack}", pack=model.lungs_pack)
            column.addWidget(label(found_by, role="muted"))
        return frame

    def _add_points(self, column: QVBoxLayout, manifest: Manifest) -> None:
        translator = self._translator
        titles = {point.name: translator.pick(point.titles) for point in manifest.operating_points}
        if manifest.is_bare:
            column.addWidget(label(translator.reason(reason("unsigned_operating_point_unknown")), role="warning"))
            return
        if not titles:
            column.addWidget(label(translator.text("No operating point: images get a score but are not assessed.")))
            return
        choice = choice_box((title, name) for name, title in titles.items())
        point = self._packs.point
        choice.setCurrentIndex(choice.findData(point.name) if point else 0)
        choice.setAccessibleName(translator.text("Operating point for the next run"))
        choice.activated.connect(lambda index: self._packs.choose_point(choice.itemData(index)))
        row = QHBoxLayout()
        row.addWidget(PlainLabel(translator.text("Operating point for the next run")))
        row.addWidget(choice)
        row.addStretch(1)
        column.addLayout(row)
        if point is not None:
            for line in (point_label(translator, point), *class_lines(translator, manifest, point)):
                column.addWidget(label(line, role="muted"))

    def _add_default(self, column: QVBoxLayout) -> None:
        """Whether this pack is the one for all folders of which nobody said otherwise."""
        translator, source = self._translator, self._packs.source
        if source is None or source.trust == "legacy":
            return
        is_default = self._packs.is_in_use(str(self._bench.settings["pack"]))
        box = QCheckBox(translator.text("Use this pack for every folder on this computer"))
        box.setChecked(is_default)
        point = self._packs.point_name or ""
        box.toggled.connect(
            lambda is_on: self._bench.choose_default(source.lasting_name if is_on else "", point if is_on else "")
        )
        column.addWidget(box)

    def _make_card(self, candidate: PackCandidate) -> QWidget:
        translator = self._translator
        frame, column = card()
        row = QHBoxLayout()
        sign = icon_label(icon("drive" if candidate.origin == "drive" else "file", self._theme), side=24)
        row.addWidget(sign, 0, Qt.AlignmentFlag.AlignTop)
        column_of_words = QVBoxLayout()
        name = translator.pick(candidate.names) or candidate.pack_name
        column_of_words.addWidget(label(f"{name}  {candidate.version}", role="heading"))
        standing = f"{origin_label(translator, candidate)}. {trust_state_label(translator, candidate)}"
        column_of_words.addWidget(label(standing))
        if candidate.problem is not None and candidate.trust != "legacy":
            column_of_words.addWidget(label(translator.reason(candidate.problem), role="muted"))
        is_used = self._packs.source is not None and self._packs.source.folder == candidate.folder
        if candidate.manifest is not None and not (is_used and self._packs.model is not None):
            add_purpose(column_of_words, translator, candidate.manifest)
        if candidate.origin != "builtin" or candidate.problem is not None:  # where the program lies helps nobody
            column_of_words.addWidget(path_words(candidate.folder, role="muted"))
        row.addLayout(column_of_words, 1)
        for button in self._buttons(candidate):
            row.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)
        column.addLayout(row)
        return frame

    def _buttons(self, candidate: PackCandidate) -> list[PlainButton]:
        translator, buttons = self._translator, []
        if candidate.trust == "broken":
            return []
        if candidate.origin == "drive" and candidate.problem is None:
            copy = push_button(translator.text("Copy to this computer"))
            copy.clicked.connect(lambda: self._packs.install(candidate))
            buttons.append(copy)
        if candidate.manifest is not None and candidate.trust != "legacy":
            buttons.append(card_button(translator, lambda _: self._packs.show_card(candidate)))
        source = self._packs.source
        if source is not None and source.folder == candidate.folder and self._packs.model is not None:
            used = push_button(translator.text("In use"), picture=icon("check", self._theme, "disabled"))
            used.setEnabled(False)
            return [*buttons, used]
        use = push_button(translator.text("Review…") if candidate.problem else translator.text("Use"))
        use.clicked.connect(lambda: self._packs.use(candidate))
        return [*buttons, use]

    def _make_none(self) -> QWidget:
        frame, column = card()
        column.addWidget(label(self._translator.text("No packs found. Plug in a model drive, then press Refresh.")))
        return frame


def point_label(translator: Translator, point: OperatingPoint) -> str:
    """An operating point with what was measured at it."""
    return translator.text(
        "Threshold {threshold}, not sure from {low} to {high}. Measured on {data}: sensitivity "
        "{sensitivity}, specificity {specificity} (95 % confidence interval).",
        threshold=border_text(translator, point.threshold),
        low=border_text(translator, point.unsure_low),
        high=border_text(translator, point.unsure_high),
        data=translator.pick(point.measured_on),
        sensitivity=percent(translator, point.sensitivity),
        specificity=percent(translator, point.specificity),
    )


def origin_label(translator: Translator, candidate: PackCandidate) -> str:
    """Where a pack lies."""
    known = {
        "builtin": translator.text("Comes with the program"),
        "installed": translator.text("On this computer"),
        "drive": translator.text("On a drive"),
    }
    return known[candidate.origin]


def trust_state_label(translator: Translator, candidate: PackCandidate) -> str:
    """Whether a pack is trusted."""
    known = {
        "builtin": translator.text("Trusted"),
        "trusted": translator.text("Signed by a key you trust"),
        "unknown_key": translator.text("Signed by a key that is not trusted yet"),
        "legacy": translator.text("Unsigned legacy model, operating point unknown"),
        "broken": translator.text("Cannot be used"),
    }
    return known[candidate.trust]
