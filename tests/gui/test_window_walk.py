"""Random walks through the whole window: what a person, the disk and another window do with verdicts, in any order.

Checked after each event: no verdict and no note is on an image that was not open when it was given. When no work is
left: what is shown as saved lies in the store, read by another connection. These few walks are the same each time;
`make walk` makes many others. Walks through the start of runs are in `unit/desktop/test_intent.py`.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import hypothesis
import numpy as np
from desk import all_widget_texts, dialogs, turn_wheel
from fake_rooms import SPEC, FakeRooms, screened
from fake_rooms import model as model_of
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from PySide6.QtCore import QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox
from recorder import Recorder

from fieldray.desktop.application import Application
from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.verdicts import VerdictSubject
from fieldray.desktop.worklist_model import VERDICT_ROLE
from fieldray.desktop.worklist_rows import COLUMN_KEYS, WorkListRow
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import Image
from fieldray.domain.model import Model
from fieldray.domain.run import ImageDone, RunChanged, Verdict
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.pipeline.history import History, RunWithPacks
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.deletion import delete_runs, plan_deletion
from fieldray.store.results import ResultQuery, ResultStore
from stores import keep

FOLDERS: Final = Path("/first"), Path("/second")
WAIT_S: Final = 20.0
PAST_MODEL: Final = model_of()
SIDE: Final = 32
SMALL: Final = Image(pixels=np.zeros((SIDE, SIDE), np.uint8))
FULL_BYTES: Final = 40 * 1024  # a limit of file sizes: the index of the store's log fits in, pages of the store do not
# How much waiting work is done after an event: all; one task, on one channel; or one whose answer comes later.
DONE: Final = ("all", "all", "all", "one", "unheard")
NAMED: Final = ("DOE", "PX-10", "image-0")  # parts of the patients' names and numbers, and of their files
WALKS: Final = int(os.environ.get("FIELDRAY_WALKS", "0"))
EVENTS: Final[Mapping[str, int]] = {
    "open": 16, "past": 8, "start": 8, "stop": 8, "finish": 16,
    "space": 8, "type": 8, "wheel": 8, "step": 8, "verdict": 16, "twice": 8, "withdraw": 4, "undo": 4, "discard": 4,
    "overwrite": 8, "vanish": 4, "reopen": 8, "search": 4, "hide": 4,
    "second": 8, "delete": 8, "full": 8, "locked": 8, "free": 16, "close": 1,
}  # fmt: skip


class SteppedChannel(ThreadPoolExecutor):
    """Runs its tasks one by one in the window's thread, when the test calls `step`."""

    def _adjust_thread_count(self) -> None:
        """Start no thread."""

    def step(self) -> None:
        """Run the first waiting task; its answer comes with the window's next events."""
        task = self._work_queue.get_nowait()
        if task is not None:  # None ends the executor
            task.run()


class SteppedBackground(BackgroundTasks):
    """Background tasks without threads, so that the same walk always has the same order."""

    def _begin(self, channel: str) -> SteppedChannel:
        return SteppedChannel()

    @property
    def waiting(self) -> list[SteppedChannel]:
        """The channels with work that can be done now, by their names.

        Closing is last: it waits for the start of a run, which has a thread of its own in the program, but not here.
        """
        named = sorted(self._channels.items(), key=lambda item: (item[0] == "closing", item[0]))
        return [each for name, each in named if (self.services or name == "open") and not each._work_queue.empty()]


def plain(number: int, score: float) -> ScreenedOutcome:
    """An image that is shown quickly: small, and without a heat map."""
    made = screened(number, score)
    return replace(made, facts=replace(made.facts, rows=SIDE, columns=SIDE), class_maps=None)


class NearHistory(History):
    """Has the pack of the past run in memory and searches no disk."""

    def open(self, run_id: int, *, models: Sequence[Model] = ()) -> RunWithPacks:
        return super().open(run_id, models=(PAST_MODEL,))


class WindowWalk(RuleBasedStateMachine):
    """The window, with records of what was typed and judged in it."""

    def __init__(self, qt: QApplication) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._qt, self.rooms = qt, FakeRooms()
        self.rooms.database = Path(self._folder.name, "results.sqlite")
        self.rooms.history, self.rooms.outcomes = NearHistory(self.rooms.database), [plain(1, 0.9), plain(2, 0.1)]
        self._past_run = keep(self.rooms.database, [plain(3, 0.4)], spec=replace(SPEC, paths=("/of/the/past",)))
        self._open_window()
        self._notes: dict[str, set[str]] = {}  # by the image's content: later runs take verdicts over
        self._theirs: dict[int, Verdict | None] = {}  # what another window saved there
        self._seen: dict[int, set[Verdict | None]] = {}  # all verdicts ever found in the store
        self._overwritten = 0

    def _open_window(self) -> None:
        qt, rooms = self._qt, self.rooms
        settings = Settings({"language": "en", "theme": "light", "pack": "made-up"})
        self.application = Application(qt, settings, services=rooms.open, background=SteppedBackground)
        self.bench = self.application.controller
        assert isinstance(self.bench.background, SteppedBackground)
        self.background = self.bench.background
        self._has_ended: list[bool] = []
        self.application.ended.connect(lambda: self._has_ended.append(True))
        self.application.show()
        assert self.application.window is not None
        self.window = self.application.window
        self.window.resize(800, 480)
        self.recorder = Recorder(self.application)
        for part in (self.window.area, self.window.result_panel):  # the walk reads only the list's painting
            part.setUpdatesEnabled(False)
        self._settle()
        self.rooms.session.image = SMALL
        self._judged: set[str] = set()
        self._opened: int | None = None

    @rule(
        name=st.sampled_from([name for name, weight in EVENTS.items() for _ in range(weight)]),
        which=st.integers(0, 7),
        done=st.sampled_from(DONE),
    )
    def happens(self, name: str, which: int, done: str) -> None:
        """One event, to one of several things, then some of the waiting work."""
        wrong = getattr(self, f"_{name}")(which)
        if done == "all":
            self._settle()
        elif waiting := self.background.waiting:
            waiting[which % len(waiting)].step()
        if done == "one":
            self._process()
        assert not (wrong or self._wrong_verdict() or (self._wrong_saved() if done == "all" else ""))
        assert not self.recorder.wrong
        assert done == "unheard" or not self._shown_names()  # before that, a closed banner may not be deleted yet

    def end(self) -> None:
        """Close the window and wait for all its work."""
        self._free(0)
        self.application.controller.close()
        self._settle()
        self._wait(lambda: bool(self._has_ended))
        self.window.deleteLater()
        self.application.deleteLater()
        self._process()

    def teardown(self) -> None:
        self.end()
        self._folder.cleanup()

    # ---- what must hold

    def _wrong_verdict(self) -> str:
        session = self.rooms.session
        strange = {judged.facts.content_sha256 for judged in session.judged} - self._judged
        if strange:
            return "a verdict is on an image that was not open"
        for content, verdict in session.verdicts_by_content.items():
            if verdict and verdict.note and verdict.note not in self._notes.get(content, ()):
                return f"the note {verdict.note!r} is on the image {content}, where it was not typed"
        return ""

    def _wrong_saved(self) -> str:
        """The first verdict shown as saved that is not in the store.

        A verdict that another window changed later may be shown as it was until it is read again.
        """
        row, shown = self.bench.image.row, self._shown_as_saved()
        if self._opened != (row.row_id if row else None):  # it was read just now
            self._opened = row.row_id if row else None
            self._theirs.pop(self._opened or 0, None)
        stored = self._stored(shown)
        for row_id, found in stored.items():  # without those whose run another window deleted
            verdict = shown[row_id]
            self._seen.setdefault(row_id, set()).add(found)
            is_outdated = self._theirs.get(row_id, verdict) == found and verdict in self._seen[row_id]
            if found != verdict and not (is_outdated and row_id in self._theirs):
                return f"{verdict} is shown as saved on row {row_id}, where {found} lies"
        return ""

    def _shown_as_saved(self) -> dict[int, Verdict | None]:
        """Verdicts shown as saved, by row number: marks in the list, and the sentence on the open image."""
        model, verdicts, shown = self.bench.rows, self.bench.judging.verdicts, dict[int, Verdict | None]()
        for position in range(model.rowCount()):
            index = model.index(position, COLUMN_KEYS.index("patient"))
            row = model.row_at(index)
            if row is not None and model.data(index, VERDICT_ROLE) == "saved":
                given = verdicts.state_for(VerdictSubject(row.result_id, row.outcome))
                shown[row.row_id] = given.chosen_verdict or row.verdict
        panel, opened = self.window.result_panel.verdict, self.bench.image.row
        if opened is not None and panel._how.text().startswith("Your verdict was saved"):
            choice = next(choice for choice, button in panel.buttons.items() if button.isChecked())
            shown[opened.row_id] = Verdict(choice=choice, note=panel.note.text().strip())
        return shown

    def _stored(self, row_ids: Collection[int]) -> dict[int, Verdict | None]:
        if not row_ids:
            return {}
        with _roomy(), ResultQuery(self.rooms.database) as query:
            return {found.row_id: found.most_urgent_result.verdict for found in query.images(tuple(row_ids))}

    def _shown_names(self) -> list[str]:
        """Texts of the window that name a patient, or a patient's file or folder, while names are hidden."""
        if not self.bench.switches.hide_patient:
            return []
        said = [text for _, text in all_widget_texts()]
        return [text for text in said for name in NAMED if name in text]

    def _boxes(self) -> list[QMessageBox]:
        return dialogs(self.window, QMessageBox)

    # ---- what happens

    def _open(self, which: int) -> None:
        self.bench.screening.screen_paths([FOLDERS[which % 2]])

    def _past(self, which: int) -> None:
        self.bench.past_runs.open(self._past_run)

    def _start(self, which: int) -> None:
        if self.bench.screening.can_start:
            self.window.actions_by_name["start"].trigger()

    def _stop(self, which: int) -> None:
        self.bench.screening.stop()

    def _finish(self, which: int) -> None:
        if self.bench.screening.can_stop and self.bench.screening.run_id:
            self.rooms.publish(RunChanged(run_id=self.bench.screening.run_id, state="finished"))

    def _space(self, which: int) -> None:
        """Press Space or Enter on whatever has the focus."""
        if focused := QApplication.focusWidget():
            QTest.keyClick(focused, (Qt.Key.Key_Space, Qt.Key.Key_Return)[which % 2])

    def _type(self, which: int) -> None:
        row, note = self.bench.image.row, self.window.result_panel.verdict.note
        if row is not None and note.isVisible() and note.isEnabled():
            self._judge(row)
            note.setFocus()
            QTest.keyClicks(note, str(which))
            self._notes.setdefault(row.outcome.facts.content_sha256, set()).add(note.text())

    def _wheel(self, which: int) -> None:
        turn_wheel(self.window.viewer, 1 if which % 2 else -1)

    def _verdict(self, which: int) -> None:
        row = self.bench.image.row
        if row is not None:
            self._judge(row)
            self.window.actions_by_name[("agree", "disagree", "unsure")[which % 3]].trigger()

    def _step(self, which: int) -> None:
        """Press a key that goes to another image; for some keys the image is looked up first."""
        keys = ("next_image", "previous_image", "next_unread", "next_study", "previous_study", "first_image")
        self.window.actions_by_name[keys[which % len(keys)]].trigger()

    def _twice(self, which: int) -> None:
        """Click a verdict twice: the verdict is given and not withdrawn."""
        row, choice = self.bench.image.row, ("agree", "disagree", "unsure")[which % 3]
        if row is None:
            return
        self._judge(row)
        before = self.bench.judging.verdicts.state_for(VerdictSubject(row.result_id, row.outcome)).chosen_verdict
        for _ in range(2):
            self.window.result_panel.verdict.buttons[choice].click()
        given = self.bench.judging.verdicts.state_for(VerdictSubject(row.result_id, row.outcome))
        if self.bench._why_not_judged() is None and not given.has_conflict:
            assert given.chosen_verdict is not None and given.chosen_verdict.choice == choice
        else:
            assert given.chosen_verdict == before or given.has_conflict

    def _withdraw(self, which: int) -> None:
        """Withdraw the verdict, also one that another window gave."""
        if row := self.bench.image.row:
            self._judge(row)
        self.window.actions_by_name["withdraw"].trigger()

    def _undo(self, which: int) -> None:
        self.window.actions_by_name["undo"].trigger()

    def _discard(self, which: int) -> None:
        note = self.window.result_panel.verdict.note
        if note.hasFocus():
            self.window.actions_by_name["cancel"].trigger()

    def _overwrite(self, which: int) -> None:
        """The file of the open image is overwritten: its row gets another patient's result."""
        row, session = self.bench.image.row, self.rooms.session
        run_id = self.bench.screening.run_id
        if row is None or run_id is None or not self.bench.rows.is_row_up_to_date(row):
            return
        self._overwritten += 1
        other = plain(100 + self._overwritten, (0.9, 0.1)[which % 2])
        other = replace(other, ref=replace(other.ref, path=row.outcome.ref.path))
        try:
            with _roomy(), ResultStore(self.rooms.database) as store:
                image = store.replace_result(row.result_id, other, run=store.run(run_id))
        except FieldrayError:  # its run was deleted
            return
        session.publish(ImageDone(image=image))

    def _vanish(self, which: int) -> None:
        """The file of the open image is moved, deleted or holds another image: the stored preview is shown."""
        row = self.bench.image.row
        if row is not None:
            self.rooms.session.replaced.add(row.outcome.facts.content_sha256)

    def _reopen(self, which: int) -> None:
        if self.bench.image.is_result_replaced:
            self.window.result_panel.open_newer_button.click()

    def _search(self, which: int) -> None:
        self.window.work_list.filter_bar.search.setText(("", "001", "nobody", "")[which % 4])

    def _hide(self, which: int) -> None:
        self.window.actions_by_name["hide_patient"].trigger()

    def _judge(self, row: WorkListRow) -> None:
        self._judged.add(row.outcome.facts.content_sha256)

    def _second(self, which: int) -> None:
        """Another window gives a verdict, or withdraws one."""
        row = self.bench.image.row
        if row is None:
            return
        given = (Verdict(choice="unsure"), Verdict(choice="agree", note="theirs"), None)[which % 3]
        self._opened, before = row.row_id, self._stored((row.row_id,)).get(row.row_id)  # the open image was read before
        try:
            with _roomy(), ResultStore(self.rooms.database) as store:
                self._theirs[row.row_id] = store.set_verdict(
                    row.result_id, given, judged=row.outcome, replaceable=(before,)
                )
        except StorageProblem:  # its run was deleted
            return
        self._seen.setdefault(row.row_id, set()).add(before)
        self._notes.setdefault(row.outcome.facts.content_sha256, set()).add("theirs")

    def _delete(self, which: int) -> None:
        """Another window deletes a run that is over."""
        database, session = self.rooms.database, self.rooms.session
        if session and session.batches and not self.bench.screening.is_busy:
            run_id = session.batches[-1].run_id
            try:
                with _roomy():
                    delete_runs(database, (run_id,), confirmed_plan=plan_deletion(database, (run_id,)))
            except FieldrayError:  # the run is gone, or in use: another window gets this error
                return

    def _full(self, which: int) -> None:
        """The disk is full, by a limit of the system or a fake error; a refused verdict may still be stored."""
        if which % 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
        else:
            self.rooms.session.verdict_problem = StorageProblem(reason("disk_full", path="/home"))
            self.rooms.session.keeps_refused = which % 4 == 2

    def _locked(self, which: int) -> None:
        problem = StorageProblem(reason("store_in_use", path="/home"))
        self.rooms.session.start_problem = self.rooms.session.verdict_problem = problem

    def _free(self, which: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.rooms.session.verdict_problem = self.rooms.session.start_problem = None
        self.rooms.session.keeps_refused = False

    def _close(self, which: int) -> str:
        """Close the window and open it again; if it asks, stay or close. Shown verdicts are saved, or named as lost."""
        self._settle()
        if self._boxes():  # a dialog covers the window
            return ""
        given, is_lost = self._shown_as_given(), False
        self.window.close()
        self._settle()
        self._wait(lambda: bool(self._boxes() or self._has_ended))
        while boxes := self._boxes():
            is_lost = boxes[0].text().startswith("If you close the window now")
            boxes[0].buttons()[0 if which % 2 else 1].click()
            self._settle()
            if not which % 2:
                return ""
            self._wait(lambda: bool(self._boxes() or self._has_ended))
        self._settle()
        stored = self._stored(given)
        lost = [row_id for row_id in stored if stored[row_id] != given[row_id] and row_id not in self._theirs]
        self.end()
        self._open_window()
        return f"the verdicts on {lost} are lost without a word" if lost and not is_lost else ""

    def _shown_as_given(self) -> dict[int, Verdict | None]:
        row, panel = self.bench.image.row, self.window.result_panel.verdict
        given = self._shown_as_saved()
        choice = next((choice for choice, button in panel.buttons.items() if button.isChecked()), None)
        if row is not None and choice is not None:
            given[row.row_id] = Verdict(choice=choice, note=panel.note.text().strip())
        return given

    # ---- waiting

    def _settle(self) -> None:
        """Work until no task and no event waits; the list's delay before it reads again is skipped."""
        end_s, background, rows = time.monotonic() + WAIT_S, self.background, self.bench.rows
        is_idle = False
        while not is_idle:
            for channel in background.waiting:
                channel.step()
            self._process()
            self.bench.event_bridge._drain()
            if rows._again.isActive():
                rows._read()
            is_idle = not background.waiting and not self.bench.event_bridge._waiting
            assert time.monotonic() < end_s, "the window waits for ever"

    def _process(self) -> None:
        """Handle all waiting events of the window's thread, as its event loop does."""
        self._qt.processEvents()
        self._qt.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)  # type: ignore[arg-type]

    def _wait(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not is_so():
            self._process()
            time.sleep(0.0002)
            assert time.monotonic() < end_s, "the window waits for ever"


@contextmanager
def _roomy() -> Iterator[None]:
    """Lift the limit on file sizes, for another program whose disk is not full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_random_walks_lose_no_verdict_and_misplace_none(qapp: QApplication) -> None:
    settings = hypothesis.settings(
        max_examples=WALKS or 4,
        derandomize=not WALKS,
        stateful_step_count=50,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=tuple(hypothesis.Phase) if WALKS else (hypothesis.Phase.generate,),  # shrinking takes minutes
    )
    run_state_machine_as_test(lambda: WindowWalk(qapp), settings=settings)
