"""The intent of a run: an answer counts only for the folder, pack and moment that it was given for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_rooms import candidate, manifest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fieldray.desktop.intent import (
    AvailablePacks,
    CollectPathFactsCommand,
    Commands,
    IntentQuestion,
    IntentStateMachine,
    PackInUse,
    ReportDroppedIntentCommand,
    ScreeningIntent,
    StartIntendedRunCommand,
    UsePackCommand,
)
from fieldray.domain.model import HeaderRules
from fieldray.packs.naming import PackCandidate
from fieldray.packs.site_choices import RememberedPack
from fieldray.reasons import reason

AGES = {"children": (1, 5), "adults": (18, 95), "youths": (15, 95), "anybody": None}
ONE, OTHER = Path("/one"), Path("/other")


def listed(pack_id: str, *, version: str = "1.0.0", key: str = "", **changes: object) -> PackCandidate:
    """A pack in a listing; with `key` it is of another signer."""
    about = {
        "pack_id": pack_id,
        "version": version,
        "trust": "trusted" if key else "builtin",
        "is_namesake_of_shipped_pack": bool(key),
    }
    described = manifest(pack_id=pack_id, version=version, accepted=HeaderRules(ages_years=AGES[pack_id]))
    return candidate(f"/{pack_id}-{version}{key}", **about, fingerprint=key, manifest=described, **changes)


KEYS = ("0000-" * 16)[:-1], ("1111-" * 16)[:-1]
CHILDREN, ADULTS = listed("children"), listed("adults")
NAMESAKE, NEWER = listed("children", key=KEYS[0]), listed("children", version="1.1.0")
QUESTIONABLE = replace(listed("adults", key=KEYS[1]), problem=reason("pack_legacy"))
PACKS = (CHILDREN, ADULTS, NAMESAKE, NEWER, QUESTIONABLE)


def used(entry: PackCandidate) -> PackInUse:
    assert entry.manifest is not None
    name, ages = entry.id_with_signer, entry.manifest.accepted.ages_years
    return PackInUse(
        name=name, version=entry.version, model_sha256=entry.version * 8, ages_years=ages, listed_pack=entry
    )


def reach(
    entry: PackCandidate | None = None, *, ready: tuple[PackCandidate, ...] = (CHILDREN, ADULTS)
) -> AvailablePacks:
    return AvailablePacks(pack_in_use=used(entry) if entry else None, ready_packs=ready, can_choose_pack=True)


def state_machine_with(pack: PackCandidate | None, *, default: str = "") -> IntentStateMachine:
    """A state machine that knows which pack is in use."""
    playbook = IntentStateMachine()
    playbook.update_packs(reach(pack), default=(default, ""))
    return playbook


def answer_facts_request(
    playbook: IntentStateMachine, commands: Commands, known: RememberedPack | None = None, *, lacks_ages: bool = True
) -> Commands:
    """Answer the request for facts about a folder; the other commands must report given-up folders."""
    *lost, look = commands
    assert isinstance(look, CollectPathFactsCommand) and all(
        isinstance(one, ReportDroppedIntentCommand) for one in lost
    )
    return playbook.handle_collected_facts(look.intent, known, lacks_ages)


def opened(
    pack: PackCandidate | None, known: RememberedPack | None = None, *, lacks_ages: bool = True
) -> tuple[IntentStateMachine, Commands]:
    """A folder was opened with a pack in use, and the facts about the folder were answered."""
    playbook = state_machine_with(pack)
    return playbook, answer_facts_request(playbook, playbook.handle_chosen_paths([ONE]), known, lacks_ages=lacks_ages)


def question(playbook: IntentStateMachine) -> IntentQuestion:
    assert playbook.question is not None
    return playbook.question


def test_a_watch_stays_a_watch_through_questions_and_start() -> None:
    playbook = state_machine_with(None)
    answer_facts_request(playbook, playbook.handle_chosen_paths([ONE], watches=True))
    playbook.answer(question(playbook), CHILDREN)
    playbook.update_packs(reach(ADULTS), default=("", ""))  # a drive with another pack
    asked = question(playbook)
    assert (asked.kind, asked.intent.watches_folders) == ("pack", True)
    (run,) = answer_facts_request(playbook, playbook.handle_start_button([ONE]), lacks_ages=False)
    assert isinstance(run, StartIntendedRunCommand) and run.intent.watches_folders
    (look,) = playbook.handle_start_button([ONE])
    assert isinstance(look, CollectPathFactsCommand) and not look.intent.watches_folders, (
        "the watch has begun: this is another start"
    )


def test_an_answered_question_closes_while_its_pack_is_loaded() -> None:
    playbook, _ = opened(CHILDREN, RememberedPack("children"))
    playbook.update_packs(replace(reach(CHILDREN), can_choose_pack=False), default=("", ""))
    assert playbook.answer(question(playbook), True) == () and playbook.question is None
    (run,) = playbook.update_packs(reach(CHILDREN), default=("", ""))
    assert isinstance(run, StartIntendedRunCommand) and run.intent.ages_confirmed


def test_a_newer_version_or_another_signer_counts_as_another_pack() -> None:
    for other in (NEWER, NAMESAKE):
        playbook, _ = opened(CHILDREN, RememberedPack("children"))
        playbook.update_packs(reach(other), default=("", ""))
        assert question(playbook).kind == "pack"


def test_remembered_ages_do_not_hold_for_another_pack() -> None:
    known = RememberedPack("children", ages_confirmed=True)
    _, (run,) = opened(CHILDREN, known)
    assert isinstance(run, StartIntendedRunCommand) and run.intent.ages_confirmed
    playbook = state_machine_with(ADULTS)
    answer_facts_request(playbook, playbook.handle_start_button([ONE]), known)
    assert question(playbook).kind == "ages" and question(playbook).intent.pack == used(ADULTS)


def test_a_card_before_the_folder_chooses_its_pack_and_confirms_no_age() -> None:
    playbook = IntentStateMachine()
    playbook.answer(None, CHILDREN)
    playbook.update_packs(reach(CHILDREN), default=("", ""))
    answer_facts_request(playbook, playbook.handle_chosen_paths([ONE]))
    assert question(playbook).kind == "ages"
    (run,) = playbook.answer(question(playbook), True)
    assert isinstance(run, StartIntendedRunCommand)
    answer_facts_request(playbook, playbook.handle_chosen_paths([OTHER]))  # the choice was for one folder
    assert question(playbook).kind == "pack"


def test_a_card_before_the_folder_does_not_overrule_the_remembered_pack() -> None:
    playbook = IntentStateMachine()
    playbook.answer(None, CHILDREN)
    playbook.update_packs(reach(CHILDREN), default=("", ""))
    assert (
        answer_facts_request(playbook, playbook.handle_chosen_paths([ONE]), RememberedPack("adults"), lacks_ages=False)
        == ()
    )
    assert question(playbook).kind == "pack"


def test_a_declined_question_is_followed_by_the_cards_whatever_the_default_is() -> None:
    playbook = state_machine_with(CHILDREN, default="children")
    answer_facts_request(playbook, playbook.handle_chosen_paths([ONE]))
    assert playbook.answer(question(playbook), None) == ()
    playbook.update_packs(reach(CHILDREN), default=("children", ""))
    assert question(playbook).kind == "pack"
    (run,) = playbook.answer(question(playbook), CHILDREN)  # the card names the ages
    assert isinstance(run, StartIntendedRunCommand) and run.intent.ages_confirmed


class Walk(RuleBasedStateMachine):
    """Any events in any order, with a separate record of the answers that were given and what for."""

    def __init__(self) -> None:
        super().__init__()
        self.playbook = IntentStateMachine()
        self.default, self.is_fast = ("", ""), False
        self.memory: dict[Path, RememberedPack] = {}
        self.used: PackCandidate | None = None
        self.wanted: UsePackCommand | None = None  # being loaded
        self.looks: list[ScreeningIntent] = []
        self.old: list[IntentQuestion] = []
        self.in_sight: tuple[Path, ...] = ()
        self.said_pack: dict[int, set[str]] = {}  # by intent: the packs that a card or Start named for it
        self.said_ages: dict[int, set[tuple[PackInUse | None, bool]]] = {}
        self.prepared: PackCandidate | None = None

    @initialize(
        site=st.sampled_from(["", "children"]),
        remembered=st.sampled_from([None, CHILDREN, NAMESAKE]),
        is_fast=st.booleans(),
    )
    def begin(self, site: str, remembered: PackCandidate | None, is_fast: bool) -> None:
        """`is_fast`: facts about folders and packs arrive before anything else happens."""
        self.default, self.is_fast = (site, ""), is_fast
        if remembered:
            self.memory[ONE] = RememberedPack(remembered.id_with_signer, ages_confirmed=remembered is CHILDREN)
        self.see()

    def see(self) -> None:
        ready = tuple(entry for entry in PACKS if entry.problem is None)
        reached = replace(reach(self.used, ready=ready), can_choose_pack=self.wanted is None)
        self.do(self.playbook.update_packs(reached, default=self.default))

    def do(self, commands: Commands) -> None:
        for command in commands:
            if isinstance(command, CollectPathFactsCommand):
                self.looks.append(command.intent)
                if self.is_fast:
                    self.look(newest=True)
            elif isinstance(command, UsePackCommand):
                self.wanted = command
                self.see()
                if self.is_fast:
                    self.load(is_loaded=True)
            elif isinstance(command, StartIntendedRunCommand):
                self.check(command)
        if self.playbook.question:
            self.old = [*self.old[-5:], self.playbook.question]

    def check(self, run: StartIntendedRunCommand) -> None:
        """No run starts with an answer that was not given for exactly this folder and this pack's key and id."""
        intent, known = run.intent, [self.memory.get(path) for path in run.intent.paths]
        assert intent.pack is not None and self.used is not None and intent.pack == used(self.used)
        name = intent.pack.name
        sources = {
            self.default[0],
            *self.said_pack.get(intent.serial_number, ()),
            *(entry.pack for entry in known if entry),
        }
        assert name in sources
        if intent.ages_confirmed and intent.pack.ages_years:
            is_remembered = all(entry and entry.ages_confirmed and entry.pack == name for entry in known)
            assert is_remembered or (intent.pack, True) in self.said_ages.get(intent.serial_number, ())
        self.in_sight = intent.paths

    @rule(path=st.sampled_from([ONE, OTHER]))
    def open(self, path: Path) -> None:
        prepared, self.prepared = self.prepared, None
        commands = self.playbook.handle_chosen_paths([path])
        assert self.playbook.intent is not None
        if prepared:
            self.said_pack.setdefault(self.playbook.intent.serial_number, set()).add(prepared.id_with_signer)
        self.do(commands)

    @precondition(lambda self: self.used is not None and self.in_sight)
    @rule()
    def start(self) -> None:
        self.prepared = None
        commands = self.playbook.handle_start_button(self.in_sight)
        assert self.playbook.intent is not None and self.used is not None
        self.said_pack.setdefault(self.playbook.intent.serial_number, set()).add(self.used.id_with_signer)
        self.do(commands)

    @rule(path=st.sampled_from([ONE, OTHER]))
    def open_past(self, path: Path) -> None:
        self.prepared = None
        self.do(self.playbook.drop_intent())
        self.in_sight = (path,)

    @precondition(lambda self: self.looks)
    @rule(newest=st.booleans())
    def look(self, newest: bool) -> None:
        intent = self.looks.pop(-1 if newest else 0)
        self.do(self.playbook.handle_collected_facts(intent, self.memory.get(intent.paths[0]), lacks_ages=True))

    @precondition(lambda self: self.wanted)
    @rule(is_loaded=st.booleans())
    def load(self, is_loaded: bool) -> None:
        assert self.wanted is not None
        self.used = self.wanted.candidate if is_loaded else self.used
        self.wanted = None
        self.see()

    @rule(entry=st.sampled_from([None, CHILDREN, NEWER, ADULTS, NAMESAKE]))
    def plug_or_pull(self, entry: PackCandidate | None) -> None:
        self.used = entry
        self.see()

    @rule(entry=st.sampled_from(PACKS), old=st.booleans(), data=st.data())
    def click(self, entry: PackCandidate, old: bool, data: st.DataObject) -> None:
        """Click a card: of the open question, or of one that was closed before."""
        asked = data.draw(st.sampled_from(self.old)) if old and self.old else self.playbook.question
        is_open = asked == self.playbook.question and (asked is None or asked.kind == "pack")
        if is_open and asked and self.playbook.intent:
            since = self.playbook.intent.serial_number
            self.said_pack.setdefault(since, set()).add(entry.id_with_signer)
            if entry.problem is None:
                self.said_ages.setdefault(since, set()).add((used(entry), True))
        elif is_open and self.playbook.intent is None:
            self.prepared = entry
        self.do(self.playbook.answer(asked, entry))

    @precondition(lambda self: self.old)
    @rule(old=st.booleans(), answer=st.sampled_from([True, False, None]), data=st.data())
    def answer(self, old: bool, answer: bool | None, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.old)) if old else self.playbook.question
        if asked and asked == self.playbook.question and asked.kind == "ages" and answer is not None:
            self.said_ages.setdefault(asked.intent.serial_number, set()).add((asked.intent.pack, answer))
        self.do(self.playbook.answer(asked, answer))

    @invariant()
    def a_question_belongs_to_the_intent(self) -> None:
        asked, intent = self.playbook.question, self.playbook.intent
        if asked is None:
            return
        assert intent is not None
        assert (asked.intent.serial_number, asked.intent.paths) == (intent.serial_number, intent.paths)
        if asked.kind == "ages" and self.wanted is None:
            assert self.used is not None and asked.intent == intent and asked.intent.pack == used(self.used)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=300, stateful_step_count=50)


def with_others(first: PackCandidate, *others: PackCandidate) -> AvailablePacks:
    return replace(reach(first), additional_packs=tuple(map(used, others)))


YOUTHS, ANYBODY = listed("youths"), listed("anybody")


@pytest.mark.parametrize(
    ("first", "others", "asked"),
    [
        (ADULTS, (YOUTHS,), None),  # everybody of 18 to 95 years is also 15 to 95
        (ADULTS, (ANYBODY,), None),
        (YOUTHS, (ADULTS,), (18, 95)),
        (ANYBODY, (ADULTS,), (18, 95)),
        (YOUTHS, (ANYBODY, ADULTS), (18, 95)),
    ],
)
def test_known_ages_hold_for_further_packs_that_accept_all_of_them(
    first: PackCandidate, others: tuple[PackCandidate, ...], asked: tuple[int, int] | None
) -> None:
    playbook = IntentStateMachine()
    playbook.update_packs(with_others(first, *others), default=(first.id_with_signer, ""))
    commands = answer_facts_request(
        playbook, playbook.handle_chosen_paths([ONE]), RememberedPack(first.id_with_signer, ages_confirmed=True)
    )
    if asked is not None:
        assert (question(playbook).kind, question(playbook).intent.ages_years, commands) == ("ages", asked, ())
        commands = playbook.answer(question(playbook), True)
    (run,) = commands
    assert isinstance(run, StartIntendedRunCommand) and run.intent.ages_confirmed
    assert run.intent.packs == (used(first), *map(used, others))


def test_a_pack_ticked_during_the_age_question_changes_the_question() -> None:
    playbook, _ = opened(None)
    playbook.update_packs(reach(YOUTHS), default=("", ""))
    answer_facts_request(playbook, playbook.handle_start_button([ONE]))
    first = question(playbook)
    assert (first.kind, first.intent.ages_years) == ("ages", (15, 95))
    playbook.update_packs(with_others(YOUTHS, ADULTS), default=("", ""))
    assert playbook.answer(first, True) == (), "it was said of 15 to 95"
    assert question(playbook).intent.ages_years == (18, 95)
    (run,) = playbook.answer(question(playbook), False)
    assert isinstance(run, StartIntendedRunCommand) and not run.intent.ages_confirmed
