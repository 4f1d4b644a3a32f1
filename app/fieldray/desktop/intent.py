"""A state machine that decides which paths are screened, and which questions a person must answer first.

An intent is a person's wish to screen a folder with a pack. Every answer belongs to one intent. If the folder or the
pack changes, a new intent without answers begins, even if the old folder and pack come back later. The state machine
turns events into commands, without Qt, threads or disk. `screening` carries out the commands and reports the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fieldray.domain.intended_use import common_age_range
from fieldray.packs.naming import PackCandidate, packs_named

if TYPE_CHECKING:
    from fieldray.domain.model import Model
    from fieldray.packs.site_choices import RememberedPack


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInUse:
    """The pack in use, with the facts that a person confirms.

    name          the pack's id with the fingerprint of its signer
    version       version of the pack
    model_sha256  SHA-256 of the network
    ages_years    ages for which the pack was made; None for any age
    listed_pack   the listed pack from which the model was loaded; ignored by `==`
    """

    name: str
    version: str
    model_sha256: str
    ages_years: tuple[int, int] | None
    listed_pack: PackCandidate = field(compare=False)  # answers hold for a copy of the pack in another folder

    @classmethod
    def from_model(cls, source: PackCandidate, model: Model) -> PackInUse:
        """Return the `PackInUse` for a model that was loaded from a listed pack."""
        return cls(
            name=source.id_with_signer,
            version=model.manifest.version,
            model_sha256=model.model_sha256,
            ages_years=model.manifest.accepted.ages_years,
            listed_pack=source,
        )

    def is_same_pack(self, candidate: PackCandidate) -> bool:
        """Return whether a listed pack is this pack. The folders may differ."""
        return (self.name, self.version) == (candidate.id_with_signer, candidate.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailablePacks:
    """The packs that are available at one moment, with the facts needed to choose a pack for images.

    pack_in_use               the pack in use, or None
    operating_point_name      name of the operating point in use; "" for the pack's first; None if a person chose the
                              point
    additional_packs          additional packs that screen together with the pack in use
    ready_packs               packs that can be used without asking a person, the pack in use first
    is_pack_chosen_by_person  whether a person chose the pack in use, or connected the pack's drive
    can_choose_pack           whether the search for packs is done, no pack is loading, and no question about a pack is
                              open
    """

    pack_in_use: PackInUse | None = None
    operating_point_name: str | None = ""
    additional_packs: tuple[PackInUse, ...] = ()
    ready_packs: tuple[PackCandidate, ...] = ()
    is_pack_chosen_by_person: bool = False
    can_choose_pack: bool = False

    def find_ready_pack(self, name: str) -> PackCandidate | None:
        """Return the pack of `ready_packs` with this name; None if there is no such pack.

        None also if several signers have packs of this name.
        """
        found = packs_named(name, self.ready_packs)
        return found[0] if len({entry.id_with_signer for entry in found}) == 1 else None

    def is_in_use(self, name: str) -> bool:
        """Return whether the pack in use has this name."""
        return self.pack_in_use is not None and bool(packs_named(name, [self.pack_in_use.listed_pack]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreeningIntent:
    """A person's wish to screen some paths, with the answers given so far.

    serial_number             serial number from 0; tells apart two intents with the same folder and pack
    paths                     files and folders to screen
    listed_image_count        number of images in the shown list; 0 if the list belongs to other paths
    clicked_pack              the pack on whose card a person clicked
    is_pack_chosen_for_paths  whether the card was clicked after the paths were opened; False for a click before
    needs_pack_card_click     whether a person must click a pack's card, because the earlier pack was declined or
                              replaced
    pack                      the pack to use; None until it is known
    additional_packs          additional packs; `ages_confirmed` holds for these packs and `pack` together
    ages_confirmed            whether a person confirmed that the patients have the packs' ages; None before the answer
    watches_folders           whether images that are added to these folders later are screened, too
    """

    serial_number: int
    paths: tuple[Path, ...]
    listed_image_count: int = 0
    clicked_pack: PackCandidate | None = None
    is_pack_chosen_for_paths: bool = False
    needs_pack_card_click: bool = False
    pack: PackInUse | None = None
    additional_packs: tuple[PackInUse, ...] = ()
    ages_confirmed: bool | None = None
    watches_folders: bool = False

    @property
    def packs(self) -> tuple[PackInUse, ...]:
        """The packs that the intent will use, as far as they are known."""
        return (self.pack, *self.additional_packs) if self.pack else ()

    @property
    def ages_years(self) -> tuple[int, int] | None:
        """The ages, in years, that all packs of the intent accept; None if every pack accepts any age."""
        return common_age_range(pack.ages_years for pack in self.packs)


@dataclass(frozen=True, slots=True)
class IntentQuestion:
    """A question to a person about an intent.

    kind    "pack": which pack suits the images; "ages": whether all patients have the ages that the pack accepts
    intent  the intent
    """

    kind: Literal["pack", "ages"]
    intent: ScreeningIntent


@dataclass(frozen=True, slots=True)
class CollectPathFactsCommand:
    """The command to collect the facts about an intent's paths, and then to call `handle_collected_facts`."""

    intent: ScreeningIntent


@dataclass(frozen=True, slots=True)
class UsePackCommand:
    """The command to put a pack in use.

    operating_point_name  name of the operating point; "" for the pack's first operating point
    is_pack_card_clicked  whether a person has just clicked the pack's card; False for an earlier choice
    """

    candidate: PackCandidate
    operating_point_name: str
    is_pack_card_clicked: bool


@dataclass(frozen=True, slots=True)
class StartIntendedRunCommand:
    """The command to start the run of an intent.

    remembered  the pack that was remembered for the paths of the intent, or None
    """

    intent: ScreeningIntent
    remembered: RememberedPack | None


@dataclass(frozen=True, slots=True)
class ReportDroppedIntentCommand:
    """The command to report to a person that an intent was dropped, so that its paths are not screened.

    is_pack_replaced  whether another pack was put in use; if False, other paths were opened
    """

    intent: ScreeningIntent
    is_pack_replaced: bool


Commands = tuple[CollectPathFactsCommand | UsePackCommand | StartIntendedRunCommand | ReportDroppedIntentCommand, ...]


class IntentStateMachine:
    """The state machine that decides which paths are screened, and which questions a person must answer first.

    Methods handle events and return commands. At most one intent waits, with at most one open question. An answer to a
    question that is not open is ignored.
    """

    def __init__(self) -> None:
        self.intent: ScreeningIntent | None = None
        self.question: IntentQuestion | None = None
        self._packs = AvailablePacks()
        self._default = "", ""
        self._count = 0
        self._prepared: PackCandidate | None = None  # pack whose card was clicked before a folder was opened
        self._known: tuple[RememberedPack | None, bool] | None = None  # facts about the paths; None before
        self._tried: UsePackCommand | None = None

    # ---- commands of a person

    def handle_chosen_paths(self, paths: Sequence[Path], *, watches: bool = False) -> Commands:
        """Handle the choice of files and folders to screen.

        watches  whether images that are added to the folders later are screened, too
        """
        return self._begin(
            ScreeningIntent(
                serial_number=self._count, paths=tuple(paths), clicked_pack=self._prepared, watches_folders=watches
            )
        )

    def handle_start_button(self, paths: Sequence[Path], *, listed_image_count: int = 0) -> Commands:
        """Handle the Start button: screen paths with the pack in use, which the toolbar names.

        paths               the files and folders to screen
        listed_image_count  number of images in the shown list; 0 if the list belongs to other paths
        """
        used, folders = self._packs.pack_in_use, tuple(paths)
        watches = bool(self.intent and self.intent.watches_folders and self.intent.paths == folders)
        return self._begin(
            ScreeningIntent(
                serial_number=self._count,
                paths=folders,
                listed_image_count=listed_image_count,
                pack=used,
                watches_folders=watches,
            )
        )

    def drop_intent(self, *, replacement_paths: Sequence[Path] = ()) -> Commands:
        """Cancel the waiting intent with its answers, and report that its paths were not screened.

        replacement_paths  paths that are opened in place of the intent's paths; equal paths are not reported
        """
        lost, self.intent, self.question, self._prepared = self.intent, None, None, None
        return (
            (ReportDroppedIntentCommand(lost, is_pack_replaced=False),)
            if lost and lost.paths != tuple(replacement_paths)
            else ()
        )

    def answer(self, question: IntentQuestion | None, answer: PackCandidate | bool | None) -> Commands:
        """Handle a person's answer to a question.

        question  the question; None for a click on a pack's card without a question, which applies to the next folder
        answer    for the question "pack": the chosen pack. For the question "ages": True to confirm the ages, False
                  to screen without confirming the ages, None if the images need another pack
        """
        if question != self.question:
            return ()
        if isinstance(answer, PackCandidate):
            return self._take_card(answer) if question is None or question.kind == "pack" else ()
        if question is None or question.kind != "ages":
            return ()
        if answer is None:
            self._ask_for_card()
        else:
            self._change(ages_confirmed=answer)
            self.question = None
        return self._advance()

    # ---- events

    def handle_collected_facts(
        self, intent: ScreeningIntent, remembered: RememberedPack | None, lacks_ages: bool
    ) -> Commands:
        """Handle the facts that `CollectPathFactsCommand` asked for. The facts are ignored if a newer intent has begun.

        intent      the intent whose paths were examined
        remembered  the pack that a person chose for these paths earlier, or None
        lacks_ages  whether files may lack the patient's age
        """
        if self.intent is None or self.intent.serial_number != intent.serial_number:
            return ()
        self._known = remembered, lacks_ages
        return self._advance()

    def update_packs(self, packs: AvailablePacks, *, default: tuple[str, str]) -> Commands:
        """Handle a change of the available packs.

        default  names of the site's default pack and of its operating point; "" for no default
        """
        self._packs, self._default = packs, default
        used = packs.pack_in_use
        if packs.can_choose_pack and self._prepared and not (used and used.is_same_pack(self._prepared)):
            self._prepared = None
        return self._advance()

    # ---- decisions

    def _begin(self, intent: ScreeningIntent) -> Commands:
        lost = self.drop_intent(replacement_paths=intent.paths)
        self._count += 1
        self.intent, self._known, self._tried = intent, None, None
        return (*lost, CollectPathFactsCommand(intent))

    def _change(self, **parts: object) -> None:
        assert self.intent is not None
        self.intent = replace(self.intent, **parts)  # type: ignore[arg-type]

    def _take_card(self, candidate: PackCandidate) -> Commands:
        if self.intent is None:
            self._prepared = candidate
        elif self.question is not None:
            has_said_ages = candidate.problem is None and _ages_of(candidate) is not None
            self._change(clicked_pack=candidate, is_pack_chosen_for_paths=True, ages_confirmed=has_said_ages or None)
        if self._packs.pack_in_use and self._packs.pack_in_use.is_same_pack(candidate):
            return self._advance()
        self._tried = UsePackCommand(candidate, "", is_pack_card_clicked=True)
        return (self._tried,)

    def _ask_for_card(self) -> None:
        """Begin a new intent without answers for the current paths, and ask for the pack."""
        assert self.intent is not None
        before = self.intent
        self.intent = ScreeningIntent(
            serial_number=self._count,
            paths=before.paths,
            listed_image_count=before.listed_image_count,
            needs_pack_card_click=True,
            watches_folders=before.watches_folders,
        )
        self._count += 1
        self.question = IntentQuestion("pack", self.intent)

    def _advance(self) -> Commands:
        """Decide the pack, then the ages, and then start the run, as far as the facts are known."""
        intent, packs = self.intent, self._packs
        if intent is None or self._known is None or not packs.can_choose_pack:
            return ()
        if intent.pack is None:
            return self._settle_pack(intent)
        if intent.pack != packs.pack_in_use:
            self._ask_for_card()
            return (ReportDroppedIntentCommand(intent, is_pack_replaced=True),)
        return self._settle_ages(intent)

    def _settle_pack(self, intent: ScreeningIntent) -> Commands:
        packs, used, chosen = self._packs, self._packs.pack_in_use, intent.clicked_pack
        name, point = self._wanted(intent)
        if (
            used
            and packs.is_in_use(name)
            and packs.operating_point_name in (None, point)
            and (not chosen or used.is_same_pack(chosen))
        ):
            is_said = chosen is None or _ages_of(chosen) == used.ages_years
            self._change(pack=used, ages_confirmed=intent.ages_confirmed if is_said else None)
            return self._advance()
        known = chosen if name and chosen else packs.find_ready_pack(name)
        wanted = UsePackCommand(known, point, is_pack_card_clicked=known is chosen) if known else None
        if wanted is None or wanted == self._tried:
            self._change(clicked_pack=None, is_pack_chosen_for_paths=False, ages_confirmed=None)
            self.question = IntentQuestion("pack", self.intent or intent)
            return ()
        self._tried = wanted
        return (wanted,)

    def _wanted(self, intent: ScreeningIntent) -> tuple[str, str]:
        """Return the names of the pack and the operating point to use; "" if a person must be asked.

        The choice for these images precedes the site's default. The default never silently replaces a pack that a
        person has just put in use. If an earlier click on a card contradicts a remembered choice, a person is asked.
        """
        assert self._known is not None
        remembered, chosen, packs = self._known[0], intent.clicked_pack, self._packs
        if chosen is not None:
            is_doubtful = (
                not intent.is_pack_chosen_for_paths
                and remembered is not None
                and not packs_named(remembered.pack, [chosen])
            )
            return ("" if is_doubtful else chosen.id_with_signer), ""
        if remembered is not None and not intent.needs_pack_card_click:
            return remembered.pack, remembered.operating_point
        is_other = (
            packs.is_pack_chosen_by_person and packs.pack_in_use is not None and not packs.is_in_use(self._default[0])
        )
        return ("", "") if is_other or intent.needs_pack_card_click else self._default

    def _settle_ages(self, intent: ScreeningIntent) -> Commands:
        """Start the run if the question about the patients' ages is answered or not needed. Otherwise ask a person.

        Ages confirmed for the first pack also count for the other packs if every pack accepts all ages of the first.
        """
        assert intent.pack is not None and self._known is not None
        remembered, lacks_ages = self._known
        additional_packs = self._packs.additional_packs
        is_said = all(
            common_age_range((intent.pack.ages_years, one.ages_years)) == intent.pack.ages_years
            for one in additional_packs
        )
        if intent.additional_packs != additional_packs:
            intent = replace(
                intent, additional_packs=additional_packs, ages_confirmed=intent.ages_confirmed if is_said else None
            )
            self.intent = intent
        are_confirmed = intent.ages_confirmed
        if are_confirmed is None and is_said and remembered and self._packs.is_in_use(remembered.pack):
            are_confirmed = remembered.ages_confirmed or None
        if are_confirmed is None and lacks_ages and intent.ages_years is not None:
            self.question = IntentQuestion("ages", intent)
            return ()
        are_confirmed = bool(are_confirmed) and intent.ages_years is not None
        self.intent = self.question = self._prepared = None
        return (StartIntendedRunCommand(replace(intent, ages_confirmed=are_confirmed), remembered),)


def _ages_of(candidate: PackCandidate) -> tuple[int, int] | None:
    return candidate.manifest.accepted.ages_years if candidate.manifest else None
