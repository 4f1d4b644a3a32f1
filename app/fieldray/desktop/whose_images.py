"""Before a run: whose images these are, hence which pack is for them, and whether their ages are known. No widget.

What a person chose for a folder is known the next time; else the site's default is used; else the question is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.pack_choice import PackChoice
from fieldray.desktop.screening import Screening
from fieldray.desktop.services import Services
from fieldray.packs.naming import pinned
from fieldray.settings import Settings

if TYPE_CHECKING:
    from fieldray.packs.candidate import PackCandidate
    from fieldray.packs.memory import RememberedPack

Question = Literal["pack", "ages"]


class WhoseImages(QObject):
    """Takes every folder that is opened through two questions, which are asked only where nobody answered them yet."""

    asked = Signal()  # `question` is to be put to a person, or is not any more

    def __init__(
        self, packs: PackChoice, screening: Screening, settings: Settings, background: Background, board: NoticeBoard
    ) -> None:
        super().__init__()
        self._packs, self._screening, self._settings = packs, screening, settings
        self._background, self._board = background, board
        self._services: Services | None = None
        self.question: Question | None = None
        self.paths: tuple[Path, ...] = ()
        self._is_under_way = False
        self._found: RememberedPack | None = None
        self._lacks_ages: bool | None = None  # None: not looked yet
        self._answer = ""  # the pack whose card was clicked
        self._is_pack_settled = False
        self._tried = ""
        screening.chosen.connect(self._take_paths)
        screening.start_asked.connect(self._take_start)
        screening.started.connect(self._remember)
        packs.listed.connect(self._advance)
        packs.model_changed.connect(self._advance)

    def attach(self, services: Services) -> None:
        """The working rooms are open."""
        self._services = services
        if self._is_under_way:
            self._look()

    # ---- what a person answers

    def answer_pack(self, candidate: PackCandidate) -> None:
        """The images are of the patients that this pack is for: of this folder, or of the next one opened."""
        is_signed = candidate.trust != "builtin"
        self._answer = pinned(candidate.pack_name, is_signed=is_signed, fingerprint=candidate.fingerprint)
        self._tried = ""
        self._is_pack_settled = False
        source = self._packs.source
        if source is not None and source.folder == candidate.folder and self._packs.model is not None:
            self._advance()  # its operating point stays
        else:
            self._packs.use(candidate)

    def answer_ages(self, *, are_confirmed: bool) -> None:
        """Whether all patients are of the ages that the pack is for."""
        self._approve(ages_confirmed=are_confirmed)

    def ask_pack_again(self) -> None:
        """It is another pack that these images are for."""
        self._found, self._answer, self._is_pack_settled = None, "", False
        self._ask("pack")

    # ---- what happens

    def _take_paths(self) -> None:
        """A folder was opened. A card that was clicked before is the answer."""
        self.paths, self._found, self._tried = self._screening.paths, None, ""
        self._is_pack_settled = False
        self._begin()

    def _take_start(self) -> None:
        """Start was pressed on a list that is there: the pack in use is the one in the header, for all to see."""
        self._is_pack_settled = True
        self._begin()

    def _begin(self) -> None:
        self._is_under_way, self._lacks_ages = True, None
        self._ask(None)
        self._look()

    def _look(self) -> None:
        """What is known of these paths; the disk may be slow."""
        services, paths = self._services, self.paths
        if services is not None:
            self._background.run(
                lambda: (services.memory.find(paths), services.may_lack_ages(paths)),
                channel="whose",
                done=lambda known: self._looked(paths, *known),
                failed=lambda error: self._board.post_error("whose", error),
                newest_only=True,
            )

    def _looked(self, paths: Sequence[Path], found: RememberedPack | None, lacks_ages: bool) -> None:
        if tuple(paths) == self.paths:
            self._found, self._lacks_ages = found, lacks_ages
            self._advance()

    def _advance(self) -> None:
        """The next step, once what it needs is known: the pack, the ages, the run."""
        packs = self._packs
        if not self._is_under_way or self._lacks_ages is None or not packs.is_listed or packs.loading is not None:
            return
        if not self._is_pack_settled:
            self._settle_pack()
        if self._is_pack_settled and packs.model is not None:
            self._settle_ages()

    def _settle_pack(self) -> None:
        packs = self._packs
        name, point = self._wanted()
        if packs.is_in_use(name):
            self._is_pack_settled = True
            return
        known = packs.named(name)
        if known is None or self._tried == name:
            self._ask("pack")
            return
        self._tried = name
        packs.use_known(known, point=point)

    def _wanted(self) -> tuple[str, str]:
        """The names of the pack and the operating point that a person chose, "" where nobody did.

        What was chosen for these images comes before the site's default, and a pack that a person has just put in use
        is not exchanged for the default without a word.
        """
        if self._answer:
            return self._answer, ""
        if self._found is not None:
            return self._found.pack, self._found.operating_point
        name = str(self._settings["pack"])
        is_other = self._packs.is_persons_choice and self._packs.model is not None and not self._packs.is_in_use(name)
        return ("", "") if is_other else (name, str(self._settings["operating_point"]))

    def _settle_ages(self) -> None:
        model = self._packs.model
        assert model is not None
        are_known = bool(self._answer) or (self._found is not None and self._found.ages_confirmed)
        has_ages = model.manifest.accepted.ages_years is not None
        if has_ages and self._lacks_ages and not are_known:
            self._ask("ages")
        else:
            self._approve(ages_confirmed=has_ages and are_known)

    def _approve(self, *, ages_confirmed: bool) -> None:
        self._is_under_way = False
        self._answer = ""
        asked, self.question = self.question, None
        self._screening.approve(ages_confirmed=ages_confirmed)
        if asked is not None:  # after the start, which empties the list: no image of the run before is opened for it
            self.asked.emit()

    def _ask(self, question: Question | None) -> None:
        if question != self.question:
            self.question = question
            self.asked.emit()

    def _remember(self) -> None:
        """A run starts: what it is screened with is known the next time. The site's default needs no remembering."""
        services, source, paths = self._services, self._packs.source, self.paths
        if services is None or source is None:
            return
        pack, point = source.lasting_name, self._packs.point_name or ""
        default = str(self._settings["pack"]), str(self._settings["operating_point"])
        known = (self._found.pack, self._found.operating_point) if self._found else default
        if (pack, point) != known and source.trust != "legacy":
            self._background.run(
                lambda: services.memory.remember(paths, pack, operating_point=point),
                channel="whose",
                failed=lambda error: self._board.post_error("whose", error),
            )
