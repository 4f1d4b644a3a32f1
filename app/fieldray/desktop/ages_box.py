"""The question that PNG and JPEG files leave open: how old the patients are. Asked once per run."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget

from fieldray.desktop.whose_images import WhoseImages
from fieldray.desktop.widgets import plain, question_box
from fieldray.domain.model import Manifest
from fieldray.translation import Translator


def ages_box(parent: QWidget, whose: WhoseImages, translator: Translator, manifest: Manifest) -> QMessageBox:
    """A box with three answers. Closed without one, nothing starts."""
    youngest, oldest = manifest.accepted.ages_years or (0, 0)
    box = question_box(
        parent,
        translator.text("Are all patients aged {youngest} to {oldest} years?", youngest=youngest, oldest=oldest),
        more=translator.text(
            "PNG and JPEG files do not say how old a patient is. Your answer is written into every result. The pack in "
            "use is {pack}.",
            pack=f"{translator.pick(manifest.names)} {manifest.version}",
        ),
    )
    yes = box.addButton(plain(translator.text("Yes, all of them")), QMessageBox.ButtonRole.AcceptRole)
    unknown = box.addButton(plain(translator.text("I do not know")), QMessageBox.ButtonRole.DestructiveRole)
    other = box.addButton(plain(translator.text("Use another pack")), QMessageBox.ButtonRole.RejectRole)
    yes.clicked.connect(lambda: whose.answer_ages(are_confirmed=True))
    unknown.clicked.connect(lambda: whose.answer_ages(are_confirmed=False))
    other.clicked.connect(whose.ask_pack_again)
    box.setDefaultButton(yes)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return box
