"""Control of the choice of packs: drives, available packs, trust and operating points. No widgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.intent import AvailablePacks, PackInUse
from fieldray.desktop.notices import NoticeAction, NoticeBoard
from fieldray.domain.intended_use import common_age_range
from fieldray.domain.model import Model, OperatingPoint
from fieldray.domain.run import DrivesChanged
from fieldray.errors import FieldrayError
from fieldray.packs.naming import PackCandidate
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray.translation import LocalText

if TYPE_CHECKING:
    from fieldray.packs.library import PackLibrary

T = TypeVar("T")
QuestionKind = Literal["unknown_key", "namesake", "legacy", "older"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackQuestion:
    """A question that a person must answer before a pack is used.

    kind             subject of the question, such as "unknown_key"
    candidate        the pack
    reason           the question as a message
    confirmed_kinds  earlier questions about the pack that the person answered with yes
    """

    kind: QuestionKind
    candidate: PackCandidate
    reason: Reason
    confirmed_kinds: frozenset[QuestionKind] = frozenset()


class PackController(QObject):
    """The available packs, and the pack in use that a person chose.

    A run has its pack in memory, so a person may disconnect the pack's drive during the run.

    packs_listed      emitted when the list of available packs has changed
    model_changed     emitted when another pack is in use, or its operating points have changed
    question_changed  emitted when a question about a pack was opened or answered
    model_card_read   emitted with the text of a model card
    """

    packs_listed = Signal()
    model_changed = Signal()
    question_changed = Signal()
    model_card_read = Signal(str)

    def __init__(self, background: BackgroundTasks, settings: Settings) -> None:
        super().__init__()
        self._background, self._board, self._settings = background, background.notice_board, settings
        self.candidates: tuple[PackCandidate, ...] = ()
        self._drives: Sequence[Path] = ()
        self.model: Model | None = None
        self.source: PackCandidate | None = None
        self.loading: PackCandidate | None = None
        self.is_listed = False
        self.is_chosen_by_person = False  # or by connecting a drive; not a remembered or default pack
        self.point_name: str | None = None
        self.is_persons_point = False  # for all folders, until another pack is loaded
        self.question: PackQuestion | None = None
        self._offered: PackCandidate | None = None
        self.may_change_pack = True  # False during a run
        self.others = AdditionalPacks(background)
        for signal in (self.model_changed, self.packs_listed):
            self.others.changed.connect(signal)

    # ---- events

    def handle_drives_changed(self, event: DrivesChanged) -> None:
        """Handle connected and disconnected drives."""
        self._drives = tuple(event.drives)
        self.find_packs()

    def find_packs(self) -> None:
        """Search for available packs again, in the background."""
        drives = self._drives
        self._ask(lambda library: library.available(drives), self._listed)

    # ---- what a person does

    def use_pack(
        self, candidate: PackCandidate, *, point: str = "", confirmed: frozenset[QuestionKind] = frozenset()
    ) -> None:
        """Load a pack in the background, and put the pack in use.

        point      name of the operating point; "" for the pack's first operating point
        confirmed  questions about the pack that a person has answered with yes
        """
        self.loading, self.question, self.is_chosen_by_person = candidate, None, True
        for key in ("pack", "offer", "drive", "pack_content_changed"):
            self._board.withdraw(key)
        self.question_changed.emit()
        self.packs_listed.emit()
        signer = candidate.fingerprint if "namesake" in confirmed else ""
        self._ask(
            lambda library: library.load(
                candidate.folder, allow_older="older" in confirmed, allow_legacy="legacy" in confirmed, signer=signer
            ),
            lambda model: self._loaded(candidate, model, point),
            candidate,
            confirmed,
        )

    def use_earlier_chosen_pack(self, candidate: PackCandidate, *, point: str = "") -> None:
        """Put a pack in use that a person chose earlier, for one folder or as the default for all folders.

        point  name of the operating point; "" for the pack's first operating point
        """
        self.use_pack(candidate, point=point)
        self.is_chosen_by_person = False

    def answer(self, question: PackQuestion, *, is_yes: bool) -> None:
        """Handle a person's answer to a question about a pack.

        After yes to an unknown key, the key is trusted, but the pack is not yet put in use. After yes to any other
        question (the pack has the name of another pack, is unsigned, or is older), the pack is put in use; the answer
        is not stored. After no, nothing changes.
        """
        if question is not self.question:
            return
        candidate = question.candidate
        if not is_yes:
            self._put(None)
        elif question.kind != "unknown_key":
            self.use_pack(candidate, confirmed=question.confirmed_kinds | {question.kind})
        else:
            self.loading = candidate
            key = candidate.fingerprint
            self._ask(lambda library: library.trust_store.trust(key), lambda _: self._trusted(candidate), candidate)

    def install_pack(self, candidate: PackCandidate) -> None:
        """Copy a pack from its drive to this computer, in the background. Then list the available packs again."""
        self._ask(lambda library: library.install(candidate.folder), lambda _: self.find_packs(), candidate)

    def read_model_card(self, candidate: PackCandidate) -> None:
        """Read a pack's model card, and emit `model_card_read` with the text. The pack need not be in use."""
        self._ask(lambda library: library.read_card(candidate.folder), self.model_card_read.emit)

    def choose_operating_point_by_name(self, name: str) -> None:
        """Choose the operating point of the pack in use by name, for the next run."""
        self.point_name, self.is_persons_point = name, True
        self.model_changed.emit()

    def update_operating_points(self, model: Model) -> None:
        """Replace the pack in use by a copy with other local operating points.

        The operating point in use does not change.
        """
        own = self.model
        if own is not None and (own.pack_name, own.model_sha256) == (model.pack_name, model.model_sha256):
            self.model = model
            self.model_changed.emit()

    # ---- what is known

    @property
    def operating_point(self) -> OperatingPoint | None:
        """The operating point in use, for the pack's first label; None without an operating point."""
        if self.model is None:
            return None
        manifest = self.model.manifest
        return manifest.point(manifest.labels[0].code, self.point_name)

    @property
    def loaded_models(self) -> tuple[Model, ...]:
        """The models of the pack in use and of the additional packs; empty without a pack in use."""
        return (self.model, *(model for _, model in self.others.ticked_packs)) if self.model is not None else ()

    def is_pack_in_use(self, candidate: PackCandidate) -> bool:
        """Return whether the pack in use was loaded from the folder of a listed pack."""
        return self.source is not None and self.source.folder == candidate.folder

    @property
    def available_packs(self) -> AvailablePacks:
        """The facts about the available packs that are needed to choose the pack for a folder."""
        entries = (self.source, *self.candidates) if self.is_pack_folder_available else self.candidates
        is_busy = self.loading is not None or self.question is not None or bool(self.others.loading)
        return AvailablePacks(
            pack_in_use=PackInUse.from_model(self.source, self.model) if self.source and self.model else None,
            operating_point_name=None if self.is_persons_point else self.point_name or "",
            additional_packs=tuple(PackInUse.from_model(*entry) for entry in self.others.ticked_packs),
            ready_packs=tuple(entry for entry in entries if entry and entry.problem is None),
            is_pack_chosen_by_person=self.is_chosen_by_person,
            can_choose_pack=self.is_listed and not is_busy,
        )

    @property
    def default_pack_and_point_names(self) -> tuple[str, str]:
        """The names of the site's default pack and of its operating point; "" for no default."""
        return str(self._settings["pack"]), str(self._settings["operating_point"])

    @property
    def default_pack(self) -> PackCandidate | None:
        """The site's default pack, if no question must be answered before its use; None otherwise."""
        return self.available_packs.find_ready_pack(self.default_pack_and_point_names[0])

    @property
    def is_pack_folder_available(self) -> bool:
        """Whether the folder of the pack in use is still available. The pack works without the folder."""
        return self.source is None or any(map(self.is_pack_in_use, self.candidates))

    def fall_back_to_default_pack(self) -> None:
        """Put the site's default pack in use if no pack is in use, or if the pack's drive was disconnected.

        Without a default pack, a pack from a disconnected drive is no longer in use. Nothing changes during a run.
        """
        self._fit_other_packs()
        if self.loading is not None or (self.model is not None and self.is_pack_folder_available):
            return
        if self.default_pack is not None:
            self.use_earlier_chosen_pack(self.default_pack, point=self.default_pack_and_point_names[1])
        elif self.model is not None:
            self._forget()
        elif not any(entry.can_screen for entry in self.candidates):
            self._say_none()

    # ---- loading

    def _ask(
        self,
        work: Callable[[PackLibrary], T],
        done: Callable[[T], object],
        candidate: PackCandidate | None = None,
        yes: frozenset[QuestionKind] = frozenset(),
    ) -> None:
        """Call the pack library in the background. An error is shown as a problem of a pack.

        work       function that calls the library
        done       function called with the result
        candidate  the pack, or None
        yes        questions about the pack that a person has answered with yes
        """
        self._background.run_with_services(
            lambda services: work(services.library),
            channel="packs",
            done=done,
            failed=lambda error: self._problem(error, candidate, yes),
        )

    def _fit_other_packs(self) -> None:
        self.others.remove_unsuitable(
            self.model, {entry.folder for entry in self.candidates} if self.may_change_pack else None
        )

    def _listed(self, found: tuple[PackCandidate, ...]) -> None:
        known = {entry.folder for entry in self.candidates}
        self.candidates, self.is_listed = found, True
        self.packs_listed.emit()
        if self.question and not any(_is_same(self.question.candidate, entry) for entry in found):
            self._say_another_there(self.question.candidate)  # the pack of the question is gone
        new = [entry for entry in found if entry.origin == "drive" and entry.folder not in known]
        if self._offered is not None and not any(_is_same(self._offered, entry) for entry in found):
            self._board.withdraw("offer")
        if not self.is_pack_folder_available and not self.may_change_pack:
            self._say(lambda t: t.text("The drive was removed. This run finishes with the copy of the pack in memory."))
        elif any(map(self.is_pack_in_use, new)):
            self._board.withdraw("drive")  # the drive of the pack in use was connected again
            new = [entry for entry in new if not self.is_pack_in_use(entry)]
        self._fit_other_packs()
        best = min(new, key=lambda entry: entry.usability_rank, default=None)  # usable packs come first
        has_pack = self.loading is not None or (self.model is not None and self.is_pack_folder_available)
        if best and best.problem is None and self.may_change_pack and not has_pack and self.default_pack is None:
            self.use_pack(best)
            return
        if best and self.may_change_pack:
            self._board.withdraw("drive")
        if self.may_change_pack:
            self.fall_back_to_default_pack()
        if best and self.loading is not best:
            self._offer(best)

    def _trusted(self, candidate: PackCandidate) -> None:
        self.loading = None
        self._board.post(
            "pack",
            lambda t: t.text("The key is trusted now. The pack {name} is not in use yet.", name=candidate.pack_name),
            action=NoticeAction(
                lambda t: t.text("Use this pack"), lambda: self.use_pack(candidate), keeps_notice_until_click=True
            ),
        )
        self._put(None)
        self.find_packs()  # the list shows which keys are trusted

    def _loaded(self, candidate: PackCandidate, model: Model, point: str) -> None:
        if not is_same_pack(model, candidate):
            self._say_another_there(candidate)
            return
        was_unavailable = not self.is_pack_folder_available
        self.loading, self.source, self.model = None, candidate, model
        names = dict.fromkeys(entry.name for entry in model.manifest.operating_points)
        self.point_name, self.is_persons_point = point if point in names else None, False
        self._fit_other_packs()
        if was_unavailable:
            self._say(lambda t: t.text("The drive was removed. The pack in use is now {name}.", name=model.pack_name))
        else:
            self._board.withdraw("drive")
        if model.trust == "legacy":
            self._board.post_reason("pack", reason("pack_legacy"), level="warning")
        elif point and self.point_name is None:
            gone = reason("operating_point", name=point, known=", ".join(names) or "-")
            self._board.post_reason("pack", gone, level="warning")
        self.model_changed.emit()
        self.packs_listed.emit()
        self._ask(lambda library: library.warnings(model), partial(_post_doubts, self._board))

    def _problem(self, error: FieldrayError, candidate: PackCandidate | None, yes: frozenset[QuestionKind]) -> None:
        self.loading = None
        self.packs_listed.emit()
        kind = _KINDS.get(error.reason.code)
        if candidate is None or kind is None:
            if candidate is not None and candidate != self.default_pack and self.may_change_pack:
                self.fall_back_to_default_pack()
            self._board.post_reason(
                "pack", error.reason, action=NoticeAction(lambda t: t.text("Refresh"), self.find_packs)
            )
        elif _is_about(error.reason, candidate):
            self._put(PackQuestion(kind=kind, candidate=candidate, reason=error.reason, confirmed_kinds=yes))
        else:
            self._say_another_there(candidate)

    def _put(self, question: PackQuestion | None) -> None:
        """Open a question to a person, or close the open question.

        question  the question; None closes the open question
        """
        self.question = question
        self.question_changed.emit()

    def _forget(self) -> None:
        self.model, self.source, self.point_name = None, None, None
        self.model_changed.emit()
        others = [entry for entry in self.candidates if entry.can_screen]
        if not others:
            self._say_none()
            return
        self._say(
            lambda t: t.text(
                "The drive with the pack in use was removed, so this pack is no longer in use. Choose another pack "
                "on the Packs page: {names}.",
                names=", ".join(t.pack_text(entry.names) or entry.pack_name for entry in others),
            )
        )

    def _offer(self, candidate: PackCandidate) -> None:
        """Show a notice about a pack on a drive that is not in use, with a button to use the pack.

        The pack is not used automatically, because a person must answer a question first or another pack is in use.
        """
        self._offered, why, name = candidate, candidate.problem, candidate.pack_name
        use = NoticeAction(
            lambda t: t.text("Review this pack…") if why else t.text("Use this pack"),
            lambda: self.use_pack(candidate),
            keeps_notice_until_click=True,
        )
        if why is not None:
            self._board.post_reason("offer", why, level="warning", action=use if candidate.can_screen else None)
        else:
            self._board.post(
                "offer",
                lambda t: t.text(
                    "A pack was found on a drive: {name}. To use this pack, choose the pack on the Packs page.",
                    name=name,
                ),
                action=use,
            )

    def _say_another_there(self, candidate: PackCandidate) -> None:
        """Show a notice that the folder of a listed pack now contains another pack.

        A person's answers about the listed pack do not apply to the other pack.
        """
        self.loading = None
        self._board.post_reason("pack", reason("pack_another_there", pack=candidate.pack_name), level="warning")
        self._put(None)
        self.find_packs()

    def _say_none(self) -> None:
        action = NoticeAction(lambda t: t.text("Refresh"), self.find_packs)
        self._say(
            lambda t: t.text("No model pack is ready. Plug in a drive with packs, or choose a pack on the Packs page."),
            action,
        )

    def _say(self, text: LocalText, action: NoticeAction | None = None) -> None:
        """Show a notice about the drive of the pack in use."""
        self._board.post("drive", text, level="warning", action=action)


_KINDS: Final[Mapping[str, QuestionKind]] = {
    "pack_unknown_key": "unknown_key",
    "pack_legacy": "legacy",
    "pack_older": "older",
    "pack_namesake": "namesake",
    "pack_namesake_shipped": "namesake",
}


def _is_about(why: Reason, candidate: PackCandidate) -> bool:
    """Return whether the library refused a listed pack, and not another pack that is now in its folder.

    why  the reason of the library
    """
    found, listed = dict(why.parameters), {"fingerprint": candidate.fingerprint, "version": candidate.version}
    is_same = all(found.get(name, value) == value for name, value in listed.items())
    return is_same and (why.code != "pack_legacy" or candidate.trust == "legacy")


def _post_doubts(board: NoticeBoard, warnings: Sequence[Reason]) -> None:
    """Show the warnings about a loaded pack as notices."""
    for why in warnings:
        board.post_reason(why.code, why, level="warning")


def _is_same(asked: PackCandidate, found: PackCandidate) -> bool:
    return (asked.folder, asked.id_with_signer, asked.version) == (found.folder, found.id_with_signer, found.version)


# ---- additional packs, which a person ticks


class AdditionalPacks(QObject):
    """The packs that screen in addition to the pack in use, in the order in which a person ticked them.

    ticked_packs  additional packs that are loaded
    loading       additional packs that are being loaded
    """

    changed = Signal()

    def __init__(self, background: BackgroundTasks) -> None:
        super().__init__()
        self._background, self._board = background, background.notice_board
        self._used: Model | None = None
        self._here: Collection[Path] | None = None
        self.ticked_packs: tuple[tuple[PackCandidate, Model], ...] = ()
        self.loading: tuple[PackCandidate, ...] = ()

    def is_ticked(self, candidate: PackCandidate) -> bool:
        """Return whether a person ticked a pack as an additional pack."""
        ticked = (*self.loading, *(entry for entry, _ in self.ticked_packs))
        return candidate.folder in {entry.folder for entry in ticked}

    def set_ticked(self, candidate: PackCandidate, *, is_on: bool) -> None:
        """Add or remove a pack that screens in addition to the pack in use, from the next run on.

        candidate  the pack; it must not need an answer from a person before it is loaded
        is_on      True to add the pack, False to remove it
        """
        self.loading = tuple(entry for entry in self.loading if entry.folder != candidate.folder)
        if is_on:
            self.loading = (*self.loading, candidate)
            self._board.withdraw("other_packs")
            self._background.run_with_services(
                lambda services: services.library.load(candidate.folder),
                channel="packs",
                done=lambda model: self._loaded(candidate, model),
                failed=lambda error: self._failed(candidate, error.reason),
            )
        self._set_additional_packs(entry for entry in self.ticked_packs if entry[0].folder != candidate.folder)

    def remove_unsuitable(self, pack_in_use: Model | None, available_folders: Collection[Path] | None) -> None:
        """Remove the additional packs that no longer fit the pack in use, or are no longer available.

        An additional pack fits if it is not the pack in use, and if all chosen packs accept some common ages.

        pack_in_use  the pack in use, or None
        available_folders  folders of the available packs; a pack in another folder is removed. None during a run: no
                           pack is
              removed because of its folder, as a run has its packs in memory
        """
        self._used, self._here = pack_in_use, available_folders
        if self.ticked_packs:
            self._set_additional_packs(self.ticked_packs)

    def _loaded(self, candidate: PackCandidate, model: Model) -> None:
        if candidate in self.loading and not is_same_pack(model, candidate):
            self._failed(candidate, reason("pack_another_there", pack=candidate.pack_name))
        elif candidate in self.loading:  # otherwise a person has removed the pack
            self.loading = tuple(entry for entry in self.loading if entry is not candidate)
            self._set_additional_packs((*self.ticked_packs, (candidate, model)))
            self._background.run_with_services(
                lambda services: services.library.warnings(model),
                channel="packs",
                done=partial(_post_doubts, self._board),
                failed=lambda error: self._board.post_error("pack doubts", error),
            )

    def _failed(self, candidate: PackCandidate, why: Reason) -> None:
        self.loading = tuple(entry for entry in self.loading if entry is not candidate)
        name = candidate.pack_name
        self._board.post(
            "other_packs",
            lambda t: t.text(
                "The pack {pack} screened no image in this run. {reason}", pack=name, reason=t.reason(why)
            ),
            level="warning",
        )
        self.changed.emit()

    def _set_additional_packs(self, entries: Iterable[tuple[PackCandidate, Model]]) -> None:
        """Set the additional packs.

        Left out are the pack in use, packs on disconnected drives, and packs for other ages.

        entries  the packs, each as listed and as loaded
        """
        before, self.ticked_packs = [self._used] if self._used else [], ()
        for candidate, model in entries:
            ages = common_age_range(one.manifest.accepted.ages_years for one in (*before, model))
            if self._here is not None and candidate.folder not in self._here:
                self._say("other_pack_gone", model)
            elif ages is not None and ages[0] > ages[1]:
                self._say("other_pack_apart", model, before)
            elif not any(is_same_pack(one, candidate) for one in before):
                before.append(model)
                self.ticked_packs = (*self.ticked_packs, (candidate, model))
        self.changed.emit()

    def _say(self, code: str, model: Model, others: Sequence[Model] = ()) -> None:
        names = ", ".join(one.pack_name for one in others)
        self._board.post_reason("other_packs", reason(code, pack=model.pack_name, others=names), level="warning")


def is_same_pack(model: Model, candidate: PackCandidate) -> bool:
    """Return whether a loaded pack is a listed pack. The folder of the listed pack may contain another pack now."""
    listed = candidate.pack_id, candidate.version, candidate.fingerprint
    return (model.manifest.pack_id, model.manifest.version, model.fingerprint) == listed
