"""Verdicts and notes, and whether they are saved: the class `Verdicts` alone, then windows over one store."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import hypothesis
import hypothesis.strategies as st
import pytest
from desk import Desk, press, texts, turn_wheel
from desk import opened as opened_window
from fake_rooms import FakeRooms, refused, screened
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from fieldray.desktop.dialogs import SettingsDialog
from fieldray.desktop.keys import KEY_BINDINGS as TABLE
from fieldray.desktop.overlay import TOP_LEFT, corner_texts
from fieldray.desktop.verdicts import Commands, ReadVerdictCommand, Verdicts, VerdictSubject, WriteVerdictCommand
from fieldray.desktop.worklist_model import VERDICT_ROLE
from fieldray.desktop.worklist_rows import COLUMN_KEYS
from fieldray.domain.finding import ImageFacts, Outcome, ScreenedOutcome
from fieldray.domain.run import ImageDone, Verdict, VerdictChoice
from fieldray.errors import StorageProblem
from fieldray.formatting import date_and_time_text
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.translation import Translator

AGREE, DISAGREE, UNSURE = (Verdict(choice=choice) for choice in ("agree", "disagree", "unsure"))
ACCESSIBLE = Qt.ItemDataRole.AccessibleTextRole
FULL = reason("disk_full", path="/home/results.sqlite")
FIRST, SECOND = VerdictSubject(1, screened(1, 0.9)), VerdictSubject(2, screened(2, 0.1))


def opened(stored: Verdict | None = None) -> Verdicts:
    """`Verdicts` with the first image open, for which the store has this verdict."""
    verdicts = Verdicts()
    assert verdicts.set_current_image(FIRST, stored) == (ReadVerdictCommand(FIRST),)
    assert verdicts.handle_verdict_read(FIRST, stored) == ()
    return verdicts


def write(verdict: Verdict | None, *over: Verdict | None, judged: VerdictSubject = FIRST) -> Commands:
    return (WriteVerdictCommand(judged, verdict, frozenset(over)),)


def test_a_verdict_given_while_another_one_is_saved_is_saved_after_it() -> None:
    verdicts = opened()
    verdicts.give_verdict("agree")
    assert verdicts.give_verdict("disagree") == verdicts.give_verdict("unsure") == ()
    assert verdicts.handle_verdict_written(FIRST, AGREE) == write(UNSURE, AGREE)
    assert verdicts.state_for(FIRST).saving_state == "saving"
    assert verdicts.handle_verdict_written(FIRST, UNSURE) == ()


def test_a_verdict_whose_replacement_failed_is_still_saved() -> None:
    verdicts = opened(AGREE)
    verdicts.give_verdict("disagree")
    verdicts.handle_failed_write(FIRST, FULL)
    assert verdicts.give_verdict("agree") == write(AGREE, AGREE, DISAGREE)
    assert verdicts.handle_failed_write(FIRST, FULL) == (ReadVerdictCommand(FIRST),)
    assert verdicts.state_for(FIRST).saving_state == "not_saved"
    verdicts.handle_verdict_read(FIRST, AGREE)
    assert verdicts.state_for(FIRST).saving_state == "saved"


def test_an_unsaved_verdict_stays_when_another_image_is_opened() -> None:
    verdicts = opened()
    verdicts.give_verdict("agree")
    verdicts.handle_failed_write(FIRST, FULL)
    verdicts.set_current_image(SECOND)
    verdicts.set_current_image(None)
    assert [(judged, given.saving_state) for judged, given in verdicts.unsaved_verdicts()] == [(FIRST, "not_saved")]
    verdicts.keep_own_verdict(FIRST)
    verdicts.handle_verdict_written(FIRST, AGREE)
    assert list(verdicts.unsaved_verdicts()) == []


def test_a_newer_verdict_of_another_window_is_asked_about() -> None:
    verdicts = opened(UNSURE)
    verdicts.give_verdict("agree")
    assert verdicts.handle_verdict_written(FIRST, DISAGREE) == ()
    given = verdicts.state_for(FIRST)
    assert (given.saving_state, given.chosen_verdict, given.stored, given.has_conflict) == (
        "not_saved",
        AGREE,
        DISAGREE,
        True,
    )
    assert verdicts.give_verdict("unsure") == ()  # the person has not answered
    assert verdicts.keep_own_verdict(FIRST) == write(UNSURE, UNSURE, DISAGREE)
    assert verdicts.handle_verdict_written(FIRST, None) == ()  # meanwhile the other window withdrew it
    assert (given.has_conflict, given.stored) == (True, None)
    assert verdicts.keep_stored_verdict(FIRST) == (ReadVerdictCommand(FIRST),)
    assert (given.saving_state, given.chosen_verdict) == (None, None)


def test_keeping_the_other_verdict_keeps_the_one_now_in_the_store() -> None:
    """Another window changes its verdict while the person looks at the question."""
    verdicts = opened()
    verdicts.give_verdict("agree")
    verdicts.handle_verdict_written(FIRST, DISAGREE)
    assert verdicts.keep_stored_verdict(FIRST) == (ReadVerdictCommand(FIRST),)
    verdicts.handle_verdict_read(FIRST, None)
    assert (verdicts.state_for(FIRST).saving_state, verdicts.state_for(FIRST).chosen_verdict) == (None, None)


def test_a_newer_verdict_of_another_window_is_shown_when_its_image_is_opened() -> None:
    verdicts = opened(AGREE)
    verdicts.set_current_image(FIRST, AGREE)
    verdicts.handle_verdict_read(FIRST, DISAGREE)
    assert (verdicts.state_for(FIRST).saving_state, verdicts.state_for(FIRST).chosen_verdict) == ("saved", DISAGREE)
    verdicts.set_draft_note("mine")
    verdicts.handle_verdict_read(FIRST, UNSURE)
    assert verdicts.state_for(FIRST).has_conflict
    assert verdicts.add_note_to_verdict() == ()


NOTED = Verdict(choice="agree", note="old scar")


def test_withdrawing_a_verdict_removes_its_note_and_undo_restores_both() -> None:
    verdicts = opened(NOTED)
    assert verdicts.withdraw_verdict() == write(None, NOTED)
    verdicts.handle_verdict_written(FIRST, None)
    assert (verdicts.state_for(FIRST).note, verdicts.state_for(FIRST).saving_state) == ("", None)
    verdicts.set_current_image(SECOND)  # the image need not be open to have its verdict taken back
    assert verdicts.last_changed_image == FIRST
    assert verdicts.undo() == write(NOTED, None)
    verdicts.handle_verdict_written(FIRST, NOTED)
    assert verdicts.state_for(FIRST).note == "old scar"
    assert verdicts.undo() == ()  # only once


def test_a_note_that_was_typed_when_the_verdict_was_withdrawn_comes_back_too() -> None:
    verdicts = opened(AGREE)
    verdicts.set_draft_note("at the apex")
    verdicts.withdraw_verdict()
    verdicts.handle_verdict_written(FIRST, None)
    assert verdicts.undo() == write(Verdict(choice="agree", note="at the apex"), None)


def test_giving_the_same_verdict_again_keeps_it() -> None:
    verdicts = opened(NOTED)  # saved by an earlier run, another window or this one
    assert verdicts.give_verdict("agree") == ()
    assert verdicts.is_repeated and verdicts.state_for(FIRST).chosen_verdict == NOTED
    assert verdicts.give_verdict("disagree") == write(Verdict(choice="disagree", note="old scar"), NOTED)
    assert not verdicts.is_repeated
    assert verdicts.give_verdict("disagree") == ()  # while it is being saved
    verdicts.set_current_image(SECOND)
    assert not verdicts.is_repeated


def test_a_discarded_note_leaves_the_one_that_was_kept() -> None:
    verdicts = opened(NOTED)
    verdicts.set_draft_note("old scar, and more")
    verdicts.discard_note()
    assert verdicts.state_for(FIRST).note == "old scar"
    assert verdicts.add_note_to_verdict() == ()


def test_undo_does_not_remove_a_verdict_given_later_by_another_window() -> None:
    verdicts = opened()
    verdicts.give_verdict("agree")
    verdicts.handle_verdict_written(FIRST, AGREE)
    verdicts.set_current_image(FIRST, AGREE)
    verdicts.handle_verdict_read(FIRST, DISAGREE)
    assert verdicts.last_changed_image is None
    assert verdicts.undo() == ()


def test_a_new_result_of_an_image_does_not_take_over_the_verdict() -> None:
    verdicts = opened(AGREE)
    again = VerdictSubject(1, screened(1, 0.1))
    verdicts.set_current_image(again)
    assert verdicts.state_for(again).chosen_verdict is None
    assert verdicts.saving_state_of(1, FIRST.outcome, None) is None


# ---- random walks of `Verdicts` alone: FIELDRAY_PLAYBOOKS=50000 sets their number

PLAYBOOKS = int(os.environ.get("FIELDRAY_PLAYBOOKS", "200"))
IMAGES = (FIRST, SECOND)
Answer = tuple[str, VerdictSubject, Verdict | None]


@dataclass(eq=False)
class Window:
    """One `Verdicts` with its pending commands and answers, and what its user did and saw."""

    name: str
    verdicts: Verdicts = field(default_factory=Verdicts)
    commands: deque[ReadVerdictCommand | WriteVerdictCommand] = field(default_factory=deque)
    answers: deque[Answer] = field(default_factory=deque)
    clicked: set[tuple[VerdictSubject, VerdictChoice]] = field(default_factory=set)
    seen: dict[VerdictSubject, set[Verdict | None]] = field(default_factory=lambda: defaultdict(set))
    last: dict[VerdictSubject, Verdict | None] = field(default_factory=dict)
    notes: int = 0

    def take(self, commands: Commands) -> None:
        self.commands.extend(commands)
        for image in IMAGES:
            given = self.verdicts.state_for(image)
            if not given.has_conflict:
                self.seen[image].add(given.stored)

    def person_wants(self) -> None:
        if image := self.verdicts.open_image:
            self.last[image] = self.verdicts.state_for(image).chosen_verdict
            self.seen[image].add(self.last[image])  # another writer may give the same verdict


class RandomWalk(RuleBasedStateMachine):
    """Two windows and another program over one store, whose disk may be full."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = (Window("a"), Window("b"))
        self.store: dict[VerdictSubject, tuple[Verdict | None, str]] = dict.fromkeys(IMAGES, (None, ""))
        self.kept: dict[VerdictSubject, set[Verdict | None]] = {image: {None} for image in IMAGES}
        self.refused: dict[VerdictSubject, Verdict | None] = {}
        self.clicked_elsewhere: set[tuple[VerdictSubject, VerdictChoice]] = set()
        self.is_full = False
        for number in range(2):
            self.open(number, 0)

    def put(self, image: VerdictSubject, verdict: Verdict | None, writer: str) -> None:
        self.store[image] = verdict, writer
        self.kept[image].add(verdict)

    windows_drawn = st.integers(0, 1)
    images_drawn = st.integers(0, 1)
    choices_drawn = st.sampled_from(["agree", "disagree", "unsure"])

    @rule(number=windows_drawn, image=st.sampled_from((0, 1, None)))
    def open(self, number: int, image: int | None) -> None:
        judged = None if image is None else IMAGES[image]
        window = self.windows[number]
        typed = window.verdicts.open_image
        commands = window.verdicts.set_current_image(judged, self.store[judged][0] if judged else None)
        if typed and window.verdicts.state_for(typed).chosen_verdict is not None:
            window.last[typed] = window.verdicts.state_for(typed).chosen_verdict
        window.take(commands)

    @rule(number=windows_drawn)
    def type(self, number: int) -> None:
        """Type a note that was never typed before."""
        window = self.windows[number]
        if image := window.verdicts.open_image:
            window.notes += 1
            window.verdicts.set_draft_note(f"{image.result_id}: {window.name}{window.notes}")

    @rule(number=windows_drawn)
    def commit(self, number: int) -> None:
        window = self.windows[number]
        window.take(window.verdicts.add_note_to_verdict())
        window.person_wants()

    @rule(number=windows_drawn, choice=choices_drawn, is_noted=st.booleans())
    def choose(self, number: int, choice: VerdictChoice, is_noted: bool) -> None:
        window = self.windows[number]
        if is_noted:
            self.type(number)
        if image := window.verdicts.open_image:
            window.clicked.add((image, choice))
        window.take(window.verdicts.give_verdict(choice))
        window.person_wants()

    @rule(number=windows_drawn)
    def withdraw(self, number: int) -> None:
        window = self.windows[number]
        window.take(window.verdicts.withdraw_verdict())
        window.person_wants()

    @rule(number=windows_drawn)
    def discard_note(self, number: int) -> None:
        self.windows[number].verdicts.discard_note()

    @rule(number=windows_drawn)
    def take_back(self, number: int) -> None:
        """Undo the last change, on whichever image it was. A second undo changes nothing."""
        window = self.windows[number]
        image, before = window.verdicts.last_changed_image, window.verdicts._last
        if image is None or before is None:
            assert window.verdicts.undo() == ()
            return
        window.take(window.verdicts.undo())
        assert window.verdicts.undo() == ()
        given = window.verdicts.state_for(image)
        assert given.chosen_verdict == before[1] or given.has_conflict
        window.last[image] = given.chosen_verdict
        window.seen[image].add(given.chosen_verdict)
        window.seen[image].add(before[2])

    @rule(number=windows_drawn, place=images_drawn)
    def keep_own_verdict(self, number: int, place: int) -> None:
        window, image = self.windows[number], IMAGES[place]
        if window.verdicts.state_for(image).saving_state == "not_saved":
            window.seen[image].add(window.verdicts.state_for(image).stored)
        window.take(window.verdicts.keep_own_verdict(image))

    @rule(number=windows_drawn, place=images_drawn)
    def keep_stored_verdict(self, number: int, place: int) -> None:
        window, image = self.windows[number], IMAGES[place]
        if window.verdicts.state_for(image).saving_state == "not_saved":
            window.last.pop(image, None)
        window.take(window.verdicts.keep_stored_verdict(image))

    @rule(place=images_drawn, choice=choices_drawn, is_withdrawn=st.booleans())
    def another_program(self, place: int, choice: VerdictChoice, is_withdrawn: bool) -> None:
        image = IMAGES[place]
        self.put(image, None if is_withdrawn else Verdict(choice=choice, note=f"{image.result_id}: program"), "program")
        self.clicked_elsewhere.add((image, choice))
        self.refused.pop(image, None)

    @rule(place=images_drawn)
    def come_back(self, place: int) -> None:
        """A verdict that a full disk refused was kept in the store's log and appears later."""
        image = IMAGES[place]
        if image in self.refused:
            self.put(image, self.refused.pop(image), "log")

    @rule(number=windows_drawn, most=st.integers(1, 4), is_heard=st.booleans(), is_full=st.booleans())
    def go_on(self, number: int, most: int, is_heard: bool, is_full: bool) -> None:
        """The store carries out the oldest commands; the window may get the answers."""
        self.is_full = is_full
        for _ in range(most):
            if self.windows[number].commands:
                self.work(number)
            if self.windows[number].answers and is_heard:
                self.answer(number)

    def work(self, number: int) -> None:
        window = self.windows[number]
        command = window.commands.popleft()
        image, (found, writer) = command.judged, self.store[command.judged]
        if isinstance(command, ReadVerdictCommand):
            window.answers.append(("found", image, found))
        elif found != command.verdict and found not in command.replaceable_verdicts:
            window.answers.append(("written", image, found))
        elif self.is_full:
            self.refused[image] = command.verdict
            window.answers.append(("failed", image, None))
        else:
            assert found == command.verdict or writer in (window.name, "log") or found in window.seen[image], (
                f"{window.name} replaced {found}, which the person has not seen"
            )
            self.refused.pop(image, None)
            if found != command.verdict:
                self.put(image, command.verdict, window.name)
            window.answers.append(("written", image, command.verdict))

    def answer(self, number: int) -> None:
        window = self.windows[number]
        what, image, verdict = window.answers.popleft()
        verdicts = window.verdicts
        was_kept = verdicts.state_for(image).saving_state in ("saved", None) or what == "written"
        if what == "failed":
            window.take(verdicts.handle_failed_write(image, FULL))
        else:
            window.take(
                verdicts.handle_verdict_read(image, verdict)
                if what == "found"
                else verdicts.handle_verdict_written(image, verdict)
            )
        if (
            was_kept
            and window.last.get(image) in self.kept[image]
            and verdicts.state_for(image).saving_state in ("saved", None)
        ):
            window.last.pop(image, None)  # it was saved, whatever others saved since

    @invariant()
    def a_verdict_is_on_an_image_that_was_open_when_it_was_given(self) -> None:
        clicked = self.clicked_elsewhere.union(*(window.clicked for window in self.windows))
        for image, (verdict, _) in self.store.items():
            assert verdict is None or (image, verdict.choice) in clicked

    @invariant()
    def a_note_is_on_its_own_image_only(self) -> None:
        for image, (verdict, _) in self.store.items():
            assert verdict is None or not verdict.note or verdict.note.startswith(f"{image.result_id}: ")
        for window in self.windows:
            for image in IMAGES:
                note = window.verdicts.state_for(image).note
                assert not note or note.startswith(f"{image.result_id}: ")

    @invariant()
    def only_saved_verdicts_are_shown_as_saved(self) -> None:
        for window in self.windows:
            for image in IMAGES:
                given = window.verdicts.state_for(image)
                if given.saving_state == "saved":
                    assert given.chosen_verdict in self.kept[image]
                    assert given.chosen_verdict == self.store[image][0] or self.store[image][1] != window.name

    @invariant()
    def nothing_is_lost_without_a_problem(self) -> None:
        for window in self.windows:
            for image, verdict in window.last.items():
                given = window.verdicts.state_for(image)
                assert given.chosen_verdict == verdict or verdict in self.kept[image]

    def teardown(self) -> None:
        """Once the disk has room, all verdicts are saved or wait for the answer to a conflict."""
        self.clicked_elsewhere: set[tuple[VerdictSubject, VerdictChoice]] = set()
        for number, window in enumerate(self.windows):
            for _ in ("what is under way", "what was refused"):
                while window.commands or window.answers:
                    self.go_on(number, 1, is_heard=True, is_full=False)
                for image in IMAGES:
                    if window.verdicts.state_for(image).problem is not None:
                        window.take(window.verdicts.keep_own_verdict(image))
            assert all(given.has_conflict for _, given in window.verdicts.unsaved_verdicts())


class TestRandomWalk(RandomWalk.TestCase):  # type: ignore[misc, name-defined]
    settings = hypothesis.settings(max_examples=PLAYBOOKS, stateful_step_count=50)


# ---- the window


def verdict_mark(desk: Desk, row_id: int) -> object:
    """The verdict's state in the list: "saved" and so on."""
    rows = desk.bench.rows
    return rows.data(rows.index_of(row_id).siblingAtColumn(COLUMN_KEYS.index("patient")), VERDICT_ROLE)


def stored(desk: Desk, row_id: int) -> Verdict | None:
    with ResultQuery(desk.rooms.database) as query:
        return query.result(row_id).verdict


@pytest.fixture
def second_desk(qapp: QApplication, qtbot: QtBot, desk: Desk, settings: Settings) -> Iterator[Desk]:
    """A second program with a window, in which the run of the first window is open."""
    screen(desk)
    rooms = FakeRooms()
    rooms.database = desk.rooms.database
    with opened_window(rooms, qapp, qtbot, settings) as made:
        made.until(lambda: made.bench.packs.model is not None)
        made.bench.rows.show_run(1, None)
        made.until_listed(4)
        made.window._show_images_or_welcome()
        yield made


def screen(desk: Desk) -> None:
    """Screen a folder and let the run finish."""
    desk.screen()
    desk.finish()


def type_note(desk: Desk, text: str) -> None:
    desk.window.result_panel.verdict.note.setFocus()
    desk.qtbot.keyClicks(desk.window.result_panel.verdict.note, text)


def test_a_note_stays_with_its_image_when_the_wheel_turns(desk: Desk, rooms: FakeRooms) -> None:
    refusal = replace(refused(5), facts=ImageFacts(content_sha256="5" * 64))
    rooms.outcomes[:] = [screened(1, 0.9), refusal]
    screen(desk)
    desk.open_row(1)
    bar = desk.window.result_panel.verdict
    assert not bar.note.isEnabled()
    bar.buttons["agree"].click()
    type_note(desk, "old scar")
    turn_wheel(desk.window.viewer, -1)
    desk.until(lambda: desk.bench.image.row.row_id == 2)
    assert (bar.note.text(), bar.note.isEnabled()) == ("", False) and desk.window.work_list.table.hasFocus()
    desk.until(lambda: stored(desk, 1) == Verdict(choice="agree", note="old scar"))
    desk.until(lambda: (verdict_mark(desk, 1), verdict_mark(desk, 2)) == ("saved", None))
    assert set(rooms.session.verdicts) == {1}


@pytest.mark.parametrize("end", ["close", "start", "language"])
def test_a_note_being_typed_is_saved_at_the_end(desk: Desk, end: str) -> None:
    screen(desk)
    desk.open_row(1)
    desk.window.result_panel.verdict.buttons["unsure"].click()
    type_note(desk, "rotated")
    if end == "start":
        desk.window.actions_by_name["start"].trigger()
    elif end == "language":
        desk.application.change_settings({"language": "uk"})
        assert desk.window.result_panel.verdict.note.text() == "rotated"
        desk.window.work_list.select_image(2)
    else:
        desk.window.close()
        desk.until(lambda: desk.ended)
    desk.until(lambda: stored(desk, 1) == Verdict(choice="unsure", note="rotated"))


def test_closing_waits_for_a_store_that_another_program_holds(desk: Desk) -> None:
    screen(desk)
    desk.open_row(1)
    with ResultStore(desk.rooms.database) as other:
        other._all("BEGIN IMMEDIATE")
        desk.window.result_panel.verdict.buttons["agree"].click()
        assert "Your verdict is being saved" in texts(desk.window.result_panel) and verdict_mark(desk, 1) == "saving"
        desk.window.close()
        box = desk.dialog(QMessageBox)
        assert box.defaultButton().text() == "Keep the window open"
        assert box.informativeText() == "Your verdict on DOE PERSON 001 is being saved."
        other._all("ROLLBACK")
        desk.until(lambda: desk.ended)
    assert stored(desk, 1) == AGREE


def test_a_signal_to_end_waits_for_a_verdict_that_is_being_saved(desk: Desk) -> None:
    screen(desk)
    desk.open_row(1)
    desk.rooms.session.may_judge.clear()
    desk.window.result_panel.verdict.buttons["agree"].click()
    desk.bench.close()
    desk.qtbot.wait(50)
    assert not desk.rooms.session.is_closed
    desk.rooms.session.may_judge.set()
    desk.until(lambda: desk.ended)
    assert stored(desk, 1) == AGREE


def test_two_quick_verdicts_on_a_full_disk_are_not_saved_and_closing_says_so(desk: Desk) -> None:
    screen(desk)
    desk.open_row(1)
    bar, session = desk.window.result_panel.verdict, desk.rooms.session
    session.verdict_problem = StorageProblem(FULL)
    session.may_judge.clear()
    bar.buttons["agree"].click()
    bar.buttons["disagree"].click()
    session.may_judge.set()
    desk.until(lambda: "Your verdict could not be saved. The disk is full" in texts(bar))
    assert bar.buttons["disagree"].isChecked() and verdict_mark(desk, 1) == "not_saved"
    press(desk.window.banners, "Try again")
    desk.until(bar.retry_button.isVisible)
    desk.window.close()
    box = desk.dialog(QMessageBox)
    assert "verdict on DOE PERSON 001 could not be saved. The disk is full" in box.informativeText()
    box.defaultButton().click()
    assert desk.window.isVisible()
    desk.window.close()
    desk.dialog(QMessageBox)
    desk.application.change_settings({"theme": "dark"})  # the question closes with its window
    desk.activate()
    bar = desk.window.result_panel.verdict
    desk.open_row(2)
    assert "could not be saved" not in texts(bar) and "DOE PERSON 001 could not be saved" in desk.notices
    rows, spoken = desk.bench.rows, Qt.ItemDataRole.AccessibleTextRole
    cell = rows.index_of(1).siblingAtColumn(COLUMN_KEYS.index("patient"))
    for hides, name in ((True, "Image 1"), (False, "DOE PERSON 001")):
        desk.window.actions_by_name["hide_patient"].trigger()
        assert f"Your verdict on {name} could not be saved" in desk.notices
        assert rows.data(cell, spoken).startswith(f"{name},")
        assert ("DOE" in desk.notices + rows.data(cell)) is not hides
    desk.open_row(1)
    bar.keep_stored_verdict.click()
    desk.until(
        lambda: (
            not bar.keep_stored_verdict.isVisible()
            and verdict_mark(desk, 1) is None
            and not desk.window.banners.isVisible()
        )
    )
    assert not any(button.isChecked() for button in bar.buttons.values())
    bar.buttons["agree"].click()
    desk.until(bar.retry_button.isVisible)
    desk.window.close()
    press(desk.dialog(QMessageBox), "Close without saving")
    desk.until(lambda: desk.ended)
    assert stored(desk, 1) is None


@pytest.mark.parametrize("answer", ["retry_button", "keep_stored_verdict"])
def test_another_windows_newer_verdict_is_asked_about(desk: Desk, second_desk: Desk, answer: str) -> None:
    for window in (desk, second_desk):
        window.open_row(1)
    second_desk.window.result_panel.verdict.buttons["disagree"].click()
    second_desk.until(lambda: verdict_mark(second_desk, 1) == "saved")
    type_note(second_desk, "scar")
    second_desk.window.work_list.select_image(2)
    theirs = Verdict(choice="disagree", note="scar")
    second_desk.until(lambda: stored(second_desk, 1) == theirs)
    bar = desk.window.result_panel.verdict
    bar.buttons["agree"].click()
    desk.until(bar.retry_button.isVisible)
    said = "Another window changed the verdict on this image: Disagree (scar).\nYour verdict is not saved: Agree."
    assert said in texts(bar)
    assert (bar.retry_button.text(), bar.keep_stored_verdict.text(), stored(desk, 1)) == (
        "Save my verdict",
        "Keep the saved verdict",
        theirs,
    )
    getattr(bar, answer).click()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    kept = AGREE if answer == "retry_button" else theirs
    assert stored(desk, 1) == kept
    second_desk.open_row(1)
    second_desk.until(second_desk.window.result_panel.verdict.buttons[kept.choice].isChecked)


# ---- which images count as read


def test_an_image_counts_as_read_after_two_seconds_or_a_verdict(desk: Desk) -> None:
    desk.rooms.outcomes[:] = [screened(1, 0.9), screened(2, 0.8), screened(3, 0.7), screened(4, 0.6)]
    desk.screen()
    desk.activate()
    desk.open_row(1)
    assert unread(desk, 1, 2, 3, 4) == [1, 2, 3, 4]
    desk.bench.read_marks._soon.timeout.emit()  # two seconds are over
    assert unread(desk, 1, 2, 3, 4) == [2, 3, 4]
    desk.open_row(2)
    go_on(desk, 3)
    assert unread(desk, 2) == [2]  # stepping past an image does not mark it as read
    desk.window.result_panel.verdict.buttons["agree"].click()
    desk.until(lambda: verdict_mark(desk, 3) == "saved")
    desk.window.actions_by_name["unread"].trigger()
    desk.until_shown("counts as read")
    go_on(desk, 4)
    desk.bench.read_marks._soon.timeout.emit()
    go_on(desk, 2)  # the last unread image
    desk.window.actions_by_name["unread"].trigger()
    desk.window.actions_by_name["next_unread"].trigger()
    desk.until_shown("This list has no other unread image.")


def test_an_image_behind_another_page_is_not_read(desk: Desk) -> None:
    desk.screen()
    desk.activate()
    desk.open_row(1)
    desk.window.actions_by_name["history"].trigger()
    desk.bench.read_marks._soon.timeout.emit()
    assert unread(desk, 1) == [1]
    desk.window.actions_by_name["history"].trigger()
    desk.bench.read_marks._soon.timeout.emit()
    assert unread(desk, 1) == []


def go_on(desk: Desk, row_id: int) -> None:
    """Press the key for the next unread image, which is this one, and wait until it is shown."""
    desk.window.actions_by_name["next_unread"].trigger()
    image = desk.bench.image
    desk.until(lambda: image.row is not None and image.row.row_id == row_id and image.is_visible)


def unread(desk: Desk, *row_ids: int) -> list[int]:
    """Those of these rows that are drawn and announced as unread."""
    rows = desk.bench.rows
    said = {number: rows.data(rows.index_of(number).siblingAtColumn(1), ACCESSIBLE) for number in row_ids}
    return [number for number in row_ids if said[number].endswith(", unread")]


# ---- only the visible image is judged


def overwrite(desk: Desk, row_id: int, outcome: Outcome) -> None:
    """A watched file is overwritten: its row gets the result of another image."""
    with ResultStore(desk.rooms.database) as store:
        run = store.run(desk.rooms.session.batches[-1].run_id)
        image = store.replace_result(row_id, outcome, run=run)
    desk.rooms.publish(ImageDone(image=image))
    desk.until(lambda: desk.bench.image.is_result_replaced)


def another_patient(row_id: int) -> ScreenedOutcome:
    """The outcome of another person's image in the file of this row."""
    return replace(screened(50, 0.2), ref=replace(screened(50, 0.2).ref, path=screened(row_id, 0.9).ref.path))


def corner(desk: Desk) -> str:
    """The lines in the corner of the image that name the patient."""
    image, viewer = desk.bench.image, desk.window.viewer
    assert image.row is not None and viewer.pyramid is not None
    texts_of = corner_texts(viewer._translator, image.row.outcome.ref, viewer.pyramid, viewer.state, percent=100)
    return " ".join(texts_of[TOP_LEFT])


def test_an_image_whose_file_is_overwritten_stays_in_sight_and_takes_no_verdict(desk: Desk) -> None:
    desk.screen()
    desk.activate()
    desk.open_row(1)
    pyramid = desk.bench.image.pyramid
    overwrite(desk, 1, another_patient(1))
    desk.until_shown("The file of the current image was replaced or screened again")
    for command in ("heat_map", "heat_map", "agree", "unread", "keep_image"):
        desk.window.actions_by_name[command].trigger()
    desk.bench.read_marks._soon.timeout.emit()
    assert desk.bench.image.pyramid is pyramid and "DOE PERSON 001" in corner(desk)
    assert "No verdict was given: the file of this image was replaced" in desk.notices
    kept = desk.bench.second_image.row
    assert kept is not None and kept.outcome.facts.content_sha256 == screened(1, 0.9).facts.content_sha256
    assert desk.rooms.session.judged == [] and unread(desk, 1) == [1]
    assert "DOE PERSON 050" in desk.bench.rows.data(desk.bench.rows.index_of(1).siblingAtColumn(1))


@pytest.mark.parametrize("step", ["button", "click", "leave and come back"])
def test_the_image_that_replaced_the_open_one_is_opened_by_a_step_of_a_person(desk: Desk, step: str) -> None:
    desk.screen()
    desk.open_row(1)
    overwrite(desk, 1, another_patient(1))
    desk.bench.rows.refresh()
    desk.until(lambda: desk.bench.rows.is_up_to_date)
    assert "DOE PERSON 001" in corner(desk)
    if step == "button":
        desk.window.result_panel.open_newer_button.click()
    elif step == "click":
        desk.window.work_list.table.clicked.emit(desk.window.work_list.table.currentIndex())
    else:
        desk.open_row(2)
        desk.window.work_list.select_image(1)
    desk.until(lambda: desk.bench.image.is_visible and "DOE PERSON 050" in corner(desk))
    desk.window.actions_by_name["disagree"].trigger()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    assert desk.rooms.session.judged[-1].facts.content_sha256 == another_patient(1).facts.content_sha256
    assert "replaced" not in desk.notices


def test_a_note_typed_before_the_file_was_overwritten_stays_with_its_image(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    bar, before = desk.window.result_panel.verdict, screened(1, 0.9)
    bar.buttons["agree"].click()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    bar.note.setFocus()
    QTest.keyClicks(bar.note, "apex")
    overwrite(desk, 1, another_patient(1))
    desk.until(lambda: not desk.bench.judging.is_saving)
    assert [outcome.facts.content_sha256 for outcome in desk.rooms.session.judged] == [before.facts.content_sha256] * 2
    with ResultQuery(desk.rooms.database) as query:
        assert query.verdict(1, another_patient(1)) is None


def test_no_key_judges_an_image_that_is_still_loading(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    desk.rooms.session.may_read.clear()
    desk.window.actions_by_name["next_image"].trigger()
    desk.window.actions_by_name["agree"].trigger()
    desk.until_shown("the next image was not shown yet")
    desk.rooms.session.may_read.set()
    desk.until(lambda: desk.bench.image.is_visible)
    assert desk.rooms.session.judged == []
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: len(desk.rooms.session.judged) == 1)
    assert "not shown yet" not in desk.notices


@pytest.mark.parametrize("command", ["next_unread", "next_study", "previous_study"])
def test_a_verdict_while_the_next_image_is_looked_up_is_not_given(desk: Desk, command: str) -> None:
    desk.screen()
    desk.open_row(3)
    desk.window.actions_by_name[command].trigger()
    desk.window.actions_by_name["disagree"].trigger()
    desk.until_shown("the next image was not shown yet")
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id != 3)
    desk.until(lambda: desk.bench.image.is_visible)
    assert desk.rooms.session.judged == []


def test_a_held_verdict_key_does_not_repeat(desk: Desk) -> None:
    once = {"agree", "disagree", "unsure", "withdraw", "unread", "undo", "keep_image"}
    held = {QKeySequence(key.shortcuts[0]) for key in TABLE if key.command in once}
    found = {shortcut.keys()[0]: shortcut.autoRepeat() for shortcut in desk.window.findChildren(QShortcut)}
    assert len(held) == len(once)
    assert {keys for keys, repeats in found.items() if not repeats} == held


def test_a_double_click_on_a_verdict_gives_it_once(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    bar = desk.window.result_panel.verdict
    for _ in range(2):
        QTest.mouseClick(bar.buttons["agree"], Qt.MouseButton.LeftButton)
    assert bar.buttons["agree"].isChecked() and "You already gave this verdict" in texts(bar)
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    assert stored(desk, 1) == AGREE and len(desk.rooms.session.judged) == 1
    bar.withdraw.click()
    desk.until(lambda: verdict_mark(desk, 1) is None)
    assert stored(desk, 1) is None and not bar.withdraw.isVisible()


def test_the_last_verdict_is_taken_back_and_its_image_shown(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    desk.open_row(2)
    desk.window.actions_by_name["undo"].trigger()
    desk.until_shown("Your verdict on DOE PERSON 001 was withdrawn.")
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 1)
    desk.until(lambda: stored(desk, 1) is None)


def test_a_verdict_of_the_run_before_is_not_taken_back(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    desk.finish()
    desk.choose()
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    desk.until(lambda: desk.bench.rows.run_id == desk.rooms.session.batches[-1].run_id)
    desk.window.actions_by_name["undo"].trigger()
    assert "withdrawn" not in desk.notices and len(desk.rooms.session.judged) == 1


def test_the_panel_shows_the_verdict_text_of_the_reports(desk: Desk) -> None:
    screen(desk)
    desk.open_row(1)
    panel = desk.window.result_panel.verdict
    assert "Reports will say “Verdict of the reader: not given”." in texts(panel)
    desk.bench.judging.give_verdict("disagree")
    desk.until(lambda: "Your verdict was saved." in texts(panel))
    printed = f"Verdict of the reader: Disagree · {date_and_time_text(Translator(), time.time())[:10]}"
    assert f"Reports will say “{printed}" in texts(panel) and "enter your name in the settings" in texts(panel)
    desk.window.actions_by_name["settings"].trigger()
    dialog = desk.dialog(SettingsDialog)
    dialog.fields["reader"].setText("Dr Reader")
    dialog.accept()
    assert "Reports will say “Verdict of the reader: Disagree · Dr Reader · 20" in texts(panel)
    assert "enter your name" not in texts(panel)


def test_undo_reverses_the_last_verdict_or_view_change(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    viewer, undo = desk.window.viewer, desk.window.actions_by_name["undo"]
    desk.window.actions_by_name["zoom_in"].trigger()
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    zoomed = viewer.state
    undo.trigger()
    desk.until(lambda: stored(desk, 1) is None)
    assert viewer.state == zoomed
    undo.trigger()
    assert viewer.state != zoomed


def test_an_image_that_a_filter_leaves_out_takes_no_verdict(desk: Desk) -> None:
    desk.screen()
    desk.open_row(1)
    desk.window.work_list.filter_bar.search.setText("nobody of this name")
    desk.until(lambda: desk.bench.rows.is_up_to_date and desk.bench.rows.rowCount() == 0)
    desk.bench.judging.give_verdict("agree")
    assert "the search or a filter hides the current image" in desk.notices and desk.rooms.session.judged == []


def test_keys_typed_into_the_search_give_no_verdict(desk: Desk) -> None:
    desk.screen()
    desk.activate()
    desk.open_row(1)
    search = desk.window.work_list.filter_bar.search
    search.setFocus()
    QTest.keyClicks(search, "003")
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 3)
    desk.until(lambda: desk.bench.image.is_visible)
    desk.window.actions_by_name["agree"].trigger()
    assert "the search field is active" in desk.notices and desk.rooms.session.judged == []
    QTest.keyClick(search, Qt.Key.Key_Return)
    assert desk.window.work_list.table.hasFocus()
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: verdict_mark(desk, 3) == "saved")


def test_escape_in_a_note_discards_it_and_enter_keeps_it(desk: Desk) -> None:
    desk.screen()
    desk.activate()
    desk.open_row(1)
    bar = desk.window.result_panel.verdict
    bar.buttons["agree"].click()
    desk.until(lambda: verdict_mark(desk, 1) == "saved")
    for key, note in ((Qt.Key.Key_Escape, ""), (Qt.Key.Key_Return, "apex")):
        bar.note.setFocus()
        QTest.keyClicks(bar.note, "apex")
        QTest.keyClick(bar.note, key)
        desk.until(lambda: not desk.bench.judging.is_saving and desk.window.work_list.table.hasFocus())
        assert (bar.note.text(), stored(desk, 1)) == (note, Verdict(choice="agree", note=note))


def key_event(kind: QEvent.Type, at_ms: int) -> QKeyEvent:
    event = QKeyEvent(kind, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    event.setTimestamp(at_ms)
    return event


@pytest.mark.parametrize(("between_ms", "is_taken"), [(0, False), (29, False), (30, True), (200, True)])
def test_an_x11_key_repeat_seen_as_a_press_gives_no_verdict(desk: Desk, between_ms: int, is_taken: bool) -> None:
    """X11 repeats a held key by a release and a press at the same time; Qt may take them for a new press."""
    desk.screen()
    table = desk.window.work_list.table
    table.setFocus()
    QApplication.sendEvent(table, key_event(QEvent.Type.KeyRelease, 1000))
    press = key_event(QEvent.Type.ShortcutOverride, 1000 + between_ms)
    press.ignore()
    QApplication.sendEvent(table, press)
    assert press.isAccepted() is not is_taken  # a key that the widget accepts triggers no shortcut
