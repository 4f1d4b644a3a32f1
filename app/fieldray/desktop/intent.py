"""What a person intends to screen, and the question that is open: a state machine from events to commands.

Every answer belongs to one intent: a folder with a pack. If the folder or the pack changes, a new intent without
answers begins, even if the same folder and pack come back later. No Qt, no threads, no disk: `screening` carries out
the commands and reports the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fieldray.domain.purpose import shared_ages
from fieldray.packs.naming import PackCandidate, packs_meant

if TYPE_CHECKING:
    from fieldray.domain.model import Model
    from fieldray.packs.site_choices import RememberedPack


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInUse:
    """The pack in use, with the facts that a person confirms: id with signer, version, network and ages."""

    name: str
    version: str
    model_sha256: str
    ages_years: tuple[int, int] | None
    source: PackCandidate = field(compare=False)  # where it was loaded from is no part of what was answered

    @classmethod
    def from_model(cls, source: PackCandidate, model: Model) -> PackInUse:
        """Return the pack in use for a model that was loaded from the candidate's folder."""
        return cls(
            name=source.signed_id,
            version=model.manifest.version,
            model_sha256=model.model_sha256,
            ages_years=model.manifest.accepted.ages_years,
            source=source,
        )

    def is_of(self, candidate: PackCandidate) -> bool:
        """Return whether a listed pack, in whichever folder, is this pack."""
        return (self.name, self.version) == (candidate.signed_id, candidate.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailablePacks:
    """The packs that are available at one moment, as far as the choice of a pack for images needs them.

    point              operating point of the pack in use, "" for its first; None if a person chose the pack for a
                       folder
    others             further packs that screen in the same pass
    ready              packs that need no question, the pack in use first
    is_persons_choice  whether a person chose the pack in use, or plugged in its drive
    is_settled         whether packs are listed, none is being loaded, and no question about one is open
    """

    used: PackInUse | None = None
    point: str | None = ""
    others: tuple[PackInUse, ...] = ()
    ready: tuple[PackCandidate, ...] = ()
    is_persons_choice: bool = False
    is_settled: bool = False

    def named(self, name: str) -> PackCandidate | None:
        """Return the pack with this name that needs no question; None if the name is ambiguous between signers."""
        found = packs_meant(name, self.ready)
        return found[0] if len({entry.signed_id for entry in found}) == 1 else None

    def is_in_use(self, name: str) -> bool:
        """Whether the pack in use has this name."""
        return self.used is not None and bool(packs_meant(name, [self.used.source]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The intent of a person to screen some paths.

    since           number of earlier intents; distinguishes two intents with equal folder and pack
    images          number of images in the shown list; 0 if the list is of other paths
    chosen          the pack on whose card a person clicked
    is_chosen_here  whether the card was clicked after this folder was opened, not before
    only_a_card     whether only a click on a card decides the pack, because an earlier question was lost or declined
    pack            the pack to use; None until it is known
    others          additional packs at the time when the ages were last decided
    ages_confirmed  whether a person confirmed the ages; None until that is known
    watches         whether new images in these folders are screened, too
    """

    since: int
    paths: tuple[Path, ...]
    images: int = 0
    chosen: PackCandidate | None = None
    is_chosen_here: bool = False
    only_a_card: bool = False
    pack: PackInUse | None = None
    others: tuple[PackInUse, ...] = ()
    ages_confirmed: bool | None = None
    watches: bool = False

    @property
    def packs(self) -> tuple[PackInUse, ...]:
        """All packs that the intent will use, as far as they are known."""
        return (self.pack, *self.others) if self.pack else ()

    @property
    def ages_years(self) -> tuple[int, int] | None:
        """The ages that all packs of the intent accept; None if all accept any age."""
        return shared_ages(pack.ages_years for pack in self.packs)


@dataclass(frozen=True, slots=True)
class IntentQuestion:
    """A question to a person about an intent: which pack suits the images ("pack"), or whether all patients are of the
    pack's ages ("ages").
    """

    kind: Literal["pack", "ages"]
    intent: Intent


@dataclass(frozen=True, slots=True)
class CollectFacts:
    """Command: collect the facts about an intent's paths, then call `facts_collected`."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class UsePack:
    """Command: put a pack in use at an operating point, "" for its first one.

    is_by_card  whether a person has just clicked the pack's card; otherwise the choice is an earlier one
    """

    candidate: PackCandidate
    point: str
    is_by_card: bool


@dataclass(frozen=True, slots=True)
class StartIntendedRun:
    """Command: start the intended run. `remembered` is the pack that was remembered for its paths, or None."""

    intent: Intent
    remembered: RememberedPack | None


@dataclass(frozen=True, slots=True)
class ReportDropped:
    """Command: report to the person that an intent was dropped, so that its paths are not screened.

    has_other_pack  whether another pack was put in use; otherwise other paths were opened
    """

    intent: Intent
    has_other_pack: bool


Commands = tuple[CollectFacts | UsePack | StartIntendedRun | ReportDropped, ...]


class IntentStateMachine:
    """The state machine that decides what is to be screened, and what a person must be asked before.

    Methods handle events and return commands. At most one intent waits, with at most one open question.

    An answer to a question that is not open is ignored.
    """

    def __init__(self) -> None:
        self.intent: Intent | None = None
        self.question: IntentQuestion | None = None
        self._packs = AvailablePacks()
        self._default = "", ""
        self._count = 0
        self._prepared: PackCandidate | None = None  # its card was clicked before a folder was opened
        self._known: tuple[RememberedPack | None, bool] | None = None  # of the intent's paths; None: not looked yet
        self._tried: UsePack | None = None

    # ---- what a person does

    def open(self, paths: Sequence[Path], *, watches: bool = False) -> Commands:
        """Handle the opening of a folder, or the start of watching a folder."""
        return self._begin(Intent(since=self._count, paths=tuple(paths), chosen=self._prepared, watches=watches))

    def start(self, paths: Sequence[Path], *, images: int = 0) -> Commands:
        """Handle the Start button: screen the paths of the run on show with the pack that the window's header names.

        paths   the files and folders to screen
        images  number of images in the list on show; 0 if the list is of other paths
        """
        used, folders = self._packs.used, tuple(paths)
        watches = bool(self.intent and self.intent.watches and self.intent.paths == folders)
        return self._begin(Intent(since=self._count, paths=folders, images=images, pack=used, watches=watches))

    def drop(self, *, instead: Sequence[Path] = ()) -> Commands:
        """Cancel the waiting intent with its answers, and tell the person that its paths were not screened.

        instead  paths that are opened in its place; if they are the same paths, the person is told nothing
        """
        lost, self.intent, self.question, self._prepared = self.intent, None, None, None
        return (ReportDropped(lost, has_other_pack=False),) if lost and lost.paths != tuple(instead) else ()

    def answer(self, question: IntentQuestion | None, answer: PackCandidate | bool | None) -> Commands:
        """Handle the answer to a question: a chosen pack, or confirmed or denied ages (bool).

        None means that the images need another pack. An answer without a question applies to the next folder.
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

    # ---- what happens

    def facts_collected(self, intent: Intent, remembered: RememberedPack | None, lacks_ages: bool) -> Commands:
        """Handle the facts that `CollectFacts` asked for. They are ignored if another intent has begun since.

        intent      the intent whose paths were examined
        remembered  the pack that a person chose for these paths earlier, or None
        lacks_ages  whether files may lack the patient's age
        """
        if self.intent is None or self.intent.since != intent.since:
            return ()
        self._known = remembered, lacks_ages
        return self._advance()

    def update_packs(self, packs: AvailablePacks, *, default: tuple[str, str]) -> Commands:
        """Handle a change of the available packs.

        default  names of the site's default pack and of its operating point, "" for none
        """
        self._packs, self._default = packs, default
        if packs.is_settled and self._prepared and not (packs.used and packs.used.is_of(self._prepared)):
            self._prepared = None
        return self._advance()

    # ---- inside

    def _begin(self, intent: Intent) -> Commands:
        lost = self.drop(instead=intent.paths)
        self._count += 1
        self.intent, self._known, self._tried = intent, None, None
        return (*lost, CollectFacts(intent))

    def _change(self, **parts: object) -> None:
        assert self.intent is not None
        self.intent = replace(self.intent, **parts)  # type: ignore[arg-type]

    def _take_card(self, candidate: PackCandidate) -> Commands:
        if self.intent is None:
            self._prepared = candidate
        elif self.question is not None:
            has_said_ages = candidate.problem is None and _ages_of(candidate) is not None
            self._change(chosen=candidate, is_chosen_here=True, ages_confirmed=has_said_ages or None)
        if self._packs.used and self._packs.used.is_of(candidate):
            return self._advance()
        self._tried = UsePack(candidate, "", is_by_card=True)
        return (self._tried,)

    def _ask_for_card(self) -> None:
        """Begin a new intent without answers for the current paths."""
        assert self.intent is not None
        before = self.intent
        self.intent = Intent(
            since=self._count, paths=before.paths, images=before.images, only_a_card=True, watches=before.watches
        )
        self._count += 1
        self.question = IntentQuestion("pack", self.intent)

    def _advance(self) -> Commands:
        """Take the next step when its facts are known: pack, ages, run."""
        intent, packs = self.intent, self._packs
        if intent is None or self._known is None or not packs.is_settled:
            return ()
        if intent.pack is None:
            return self._settle_pack(intent)
        if intent.pack != packs.used:
            self._ask_for_card()
            return (ReportDropped(intent, has_other_pack=True),)
        return self._settle_ages(intent)

    def _settle_pack(self, intent: Intent) -> Commands:
        packs, used, chosen = self._packs, self._packs.used, intent.chosen
        name, point = self._wanted(intent)
        if used and packs.is_in_use(name) and packs.point in (None, point) and (not chosen or used.is_of(chosen)):
            is_said = chosen is None or _ages_of(chosen) == used.ages_years
            self._change(pack=used, ages_confirmed=intent.ages_confirmed if is_said else None)
            return self._advance()
        known = chosen if name and chosen else packs.named(name)
        wanted = UsePack(known, point, is_by_card=known is chosen) if known else None
        if wanted is None or wanted == self._tried:
            self._change(chosen=None, is_chosen_here=False, ages_confirmed=None)
            self.question = IntentQuestion("pack", self.intent or intent)
            return ()
        self._tried = wanted
        return (wanted,)

    def _wanted(self, intent: Intent) -> tuple[str, str]:
        """Return the names of the pack and operating point to use, "" if a person must be asked.

        The choice for these images precedes the site's default. The default never silently replaces a pack that a
        person has just put in use, and a card clicked earlier contradicts no remembered choice.
        """
        assert self._known is not None
        remembered, chosen, packs = self._known[0], intent.chosen, self._packs
        if chosen is not None:
            is_doubtful = (
                not intent.is_chosen_here and remembered is not None and not packs_meant(remembered.pack, [chosen])
            )
            return ("" if is_doubtful else chosen.signed_id), ""
        if remembered is not None and not intent.only_a_card:
            return remembered.pack, remembered.operating_point
        is_other = packs.is_persons_choice and packs.used is not None and not packs.is_in_use(self._default[0])
        return ("", "") if is_other or intent.only_a_card else self._default

    def _settle_ages(self, intent: Intent) -> Commands:
        """Apply the confirmed ages of the first pack to the others, if they accept that range."""
        assert intent.pack is not None and self._known is not None
        remembered, lacks_ages = self._known
        others = self._packs.others
        is_said = all(shared_ages((intent.pack.ages_years, one.ages_years)) == intent.pack.ages_years for one in others)
        if intent.others != others:
            intent = replace(intent, others=others, ages_confirmed=intent.ages_confirmed if is_said else None)
            self.intent = intent
        are_confirmed = intent.ages_confirmed
        if are_confirmed is None and is_said and remembered and self._packs.is_in_use(remembered.pack):
            are_confirmed = remembered.ages_confirmed or None
        if are_confirmed is None and lacks_ages and intent.ages_years is not None:
            self.question = IntentQuestion("ages", intent)
            return ()
        are_confirmed = bool(are_confirmed) and intent.ages_years is not None
        self.intent = self.question = self._prepared = None
        return (StartIntendedRun(replace(intent, ages_confirmed=are_confirmed), remembered),)


def _ages_of(candidate: PackCandidate) -> tuple[int, int] | None:
    return candidate.manifest.accepted.ages_years if candidate.manifest else None
