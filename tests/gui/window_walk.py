"""A random walk through the whole window: what a person, a drive, the disk and another window do, in any order.

Looked at after each event: no run has started with an answer that was not given for its folder and pack; a question in
sight is the one that is open; no verdict and no note is on an image that was not open when it was given.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fake_rooms import FakeRooms, candidate, manifest, model, screened
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox

from fieldray.desktop.application import Application
from fieldray.domain.events import Drive, DrivesChanged, RunChanged
from fieldray.domain.model import HeaderRules
from fieldray.domain.run import Verdict
from fieldray.errors import StorageProblem
from fieldray.packs.memory import RememberedPack
from fieldray.pipeline.history import History
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.deleting import RunDeleter
from fieldray.store.results import ResultStore
from outcomes import run_spec

AGES: Final = {"children": (1, 5), "adults": (18, 95)}
FOLDERS: Final = Path("/first"), Path("/second")
DRIVE: Final = Path("/media/drive")
WAIT_S: Final = 20.0
EVENTS: Final = (
    "open", "open", "past", "start", "stop", "finish", "finish", "plug", "pull", "card", "card", "card", "card", "yes",
    "yes", "yes", "yes", "no", "space", "type", "wheel", "verdict", "verdict", "second", "delete", "full", "locked",
    "free", "free",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Act:
    """What happens, to which of several things, and whether all that follows from it is waited for."""

    name: str
    which: int
    is_waited_for: bool


def acts(seed: int, count: int) -> tuple[Act, ...]:
    """The walk of a seed."""
    drawn = random.Random(seed)
    return tuple(Act(drawn.choice(EVENTS), drawn.randrange(8), drawn.random() < 0.7) for _ in range(count))


def walk_rooms(database: Path) -> FakeRooms:
    """Packs for children and for adults, one more on a drive, two images, and a run of the past."""
    made = FakeRooms()
    made.database, made.history, made.lacks_ages = database, History(database), True
    made.outcomes = [screened(1, 0.9), screened(2, 0.1)]
    made.library.always = []
    for pack_id, root in (("children", "/program"), ("adults", "/program"), ("adults", str(DRIVE))):
        version = "2.0.0" if root == str(DRIVE) else "1.0.0"
        about = {"pack_id": pack_id, "version": version, "names": {"en": pack_id.capitalize()}}
        of = manifest(**about, accepted=HeaderRules(ages_years=AGES[pack_id]))
        is_on_drive = root == str(DRIVE)
        origin = {"origin": "drive", "trust": "trusted"} if is_on_drive else {}
        entry = replace(candidate(f"{root}/{pack_id}-{version}", **about, **origin), manifest=of)
        made.library.models[entry.folder] = model("signed" if is_on_drive else "builtin", **about, accepted=of.accepted)
        made.library.on_drives.setdefault(DRIVE, []) if is_on_drive else made.library.always.append(entry)
        made.library.on_drives[DRIVE] = [entry] if is_on_drive else []
    made.memory.known[FOLDERS[0]] = RememberedPack("children")
    with ResultStore(database) as store:
        spec = run_spec(paths=("/of/the/past",), pack_name="children-1.0.0")
        run_id = store.open_run(spec, fresh=True)
        store.save(run_id, screened(3, 0.4), spec=spec)
        store.finish(run_id)
    return made


class WindowWalk:
    """The window, and what was said in it beside it."""

    def __init__(self, qt: QApplication, folder: Path) -> None:
        self._qt, self.rooms = qt, walk_rooms(folder / "results.sqlite")
        self.application = Application(qt, Settings({"language": "en", "theme": "light"}), services=self.rooms.open)
        self.bench = self.application.controller
        self._has_ended: list[bool] = []
        self.application.ended.connect(lambda: self._has_ended.append(True))
        self.application.show()
        assert self.application.window is not None
        self.window = self.application.window
        self.window.resize(1024, 700)
        self._wait(lambda: self.bench.packs.is_listed)
        self._said: set[tuple[tuple[Path, ...], str, bool | None]] = set()
        self._judged: set[str] = set()
        self._notes: dict[int, set[str]] = {}
        self._begun = 0

    def go(self, walk: Sequence[Act]) -> str:
        """What went wrong first, "" for nothing."""
        for number, act in enumerate(walk):
            getattr(self, f"_{act.name}")(act.which)
            if act.is_waited_for:
                self._settle()
            self._qt.processEvents()
            if wrong := self._wrong():
                return f"after event {number + 1} ({act}): {wrong}"
        return ""

    def end(self) -> None:
        """Close the window and wait for all behind it."""
        self.application.controller.close()
        self._wait(lambda: bool(self._has_ended))
        assert self.application.window is not None
        self.application.window.deleteLater()
        self.application.deleteLater()
        self._qt.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)  # type: ignore[arg-type]
        self._qt.processEvents()

    # ---- what must hold

    def _wrong(self) -> str:
        return self._wrong_run() or self._wrong_question() or self._wrong_verdict()

    def _wrong_run(self) -> str:
        session = self.rooms.session
        while self._begun < len(session.started_with):
            (paths, _, _), are_confirmed = session.started_with[self._begun], session.ages_confirmed[self._begun]
            self._begun += 1
            used = self.bench.screening.run_model
            name = used.pack_name if used else ""
            said = {about for about in self._said if about[:2] == (paths, name)}
            known = [self.rooms.memory.known.get(path) for path in paths]
            if not said and not all(entry and entry.pack.split("@")[0] == name[:-6] for entry in known):
                return f"{paths} was screened with {name}, which nobody chose for it"
            if are_confirmed and not any(about[2] for about in said):
                return f"{paths} was screened with {name} and ages that nobody confirmed"
            self._said.clear()
        return ""

    def _wrong_question(self) -> str:
        boxes = self._boxes()
        asked = self.bench.screening.question
        if len(boxes) > 1 or (
            boxes and asked is not None and str(asked.intent.paths[0]) not in boxes[0].informativeText()
        ):
            return f"a question in sight is not the open one: {[box.informativeText() for box in boxes]}"
        if boxes and (asked is None or asked.kind != "ages"):
            return "a question in sight is not open any more"
        return ""

    def _wrong_verdict(self) -> str:
        session = self.rooms.session
        strange = {judged.facts.content_sha256 for judged in session.judged} - self._judged
        if strange:
            return "a verdict is on an image that was not open"
        for row_id, verdict in session.verdicts.items():
            if verdict and verdict.note and verdict.note not in self._notes.get(row_id, ()):
                return f"the note {verdict.note!r} is on row {row_id}, where it was not typed"
        return ""

    def _boxes(self) -> list[QMessageBox]:
        return [box for box in self.window.findChildren(QMessageBox) if box.isVisible()]

    # ---- what happens

    def _open(self, which: int) -> None:
        if not self.bench.screening.is_busy:
            self._said.clear()
        self.bench.screening.choose([FOLDERS[which % 2]])

    def _past(self, which: int) -> None:
        self.bench.past_runs.open(1)

    def _start(self, which: int) -> None:
        screening, used = self.bench.screening, self.bench.packs.model
        if screening.can_start and used:
            self._said = {(screening.paths, used.pack_name, None)}
            self.window.actions_by_name["start"].trigger()

    def _stop(self, which: int) -> None:
        self.bench.screening.stop()

    def _finish(self, which: int) -> None:
        if self.bench.screening.can_stop and self.bench.screening.run_id:
            self.rooms.publish(RunChanged(run_id=self.bench.screening.run_id, state="finished"))

    def _plug(self, which: int) -> None:
        self.rooms.publish(DrivesChanged(drives=(Drive(mount_point=str(DRIVE), name="DRIVE"),)))

    def _pull(self, which: int) -> None:
        self.rooms.publish(DrivesChanged(drives=()))

    def _card(self, which: int) -> None:
        welcome, asked = self.window.welcome, self.bench.screening.question
        packs = [entry for entry in self.bench.packs.candidates if entry.can_screen]
        if self.window.pages.currentWidget() is welcome and welcome.cards and not self._boxes():
            place = which % len(packs)
            paths = asked.intent.paths if asked else FOLDERS[:1]
            self._said.add((paths, packs[place].pack_name, asked is not None))
            if asked is None:
                self._said.add((FOLDERS[1:], packs[place].pack_name, None))
                self._said.discard((paths, packs[place].pack_name, False))
                self._said.add((paths, packs[place].pack_name, None))
            welcome.cards[place].button.click()

    def _answer(self, place: int) -> None:
        boxes, asked = self._boxes(), self.bench.screening.question
        if boxes and asked and asked.intent.pack:
            name = f"{asked.intent.pack.source.pack_name}"
            self._said.add((asked.intent.paths, name, place == 0))
            boxes[0].buttons()[place].click()

    def _yes(self, which: int) -> None:
        self._answer(0)

    def _no(self, which: int) -> None:
        self._answer(1 + which % 2)

    def _space(self, which: int) -> None:
        """A key that was meant for something else."""
        if focused := QApplication.focusWidget():
            QTest.keyClick(focused, (Qt.Key.Key_Space, Qt.Key.Key_Return)[which % 2])

    def _type(self, which: int) -> None:
        row, note = self.bench.image.row, self.window.result.verdict.note
        if row is not None and note.isVisible() and note.isEnabled():
            self._judged.add(row.outcome.facts.content_sha256)
            note.setFocus()
            QTest.keyClicks(note, str(which))
            self._notes.setdefault(row.row_id, set()).add(note.text())

    def _wheel(self, which: int) -> None:
        viewer, turned = self.window.viewer, QPoint(0, 120 if which % 2 else -120)
        at, no = QPointF(viewer.rect().center()), Qt.MouseButton.NoButton
        none, phase = Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase
        event = QWheelEvent(at, QPointF(viewer.mapToGlobal(at.toPoint())), QPoint(), turned, no, none, phase, False)
        QApplication.sendEvent(viewer, event)

    def _verdict(self, which: int) -> None:
        row = self.bench.image.row
        if row is not None:
            self._judged.add(row.outcome.facts.content_sha256)
            self.window.actions_by_name[("agree", "disagree", "unsure")[which % 3]].trigger()

    def _second(self, which: int) -> None:
        """Another window gives a verdict."""
        row = self.bench.image.row
        if row is not None:
            self._store(lambda store: store.set_verdict(row.row_id, Verdict(choice="unsure"), judged=row.outcome))

    def _delete(self, which: int) -> None:
        """Another window deletes a run that is over."""
        deleter = RunDeleter(self.rooms.database)
        session = self.rooms.session
        if session and session.batches and not self.bench.screening.is_busy:
            try:
                deleter.delete((session.batches[-1].run_id,), agreed=deleter.plan((session.batches[-1].run_id,)))
            except Exception:  # it is gone, or held: another window is told so
                return

    def _full(self, which: int) -> None:
        self.rooms.session.verdict_problem = StorageProblem(reason("disk_full", path="/home"))

    def _locked(self, which: int) -> None:
        self.rooms.session.start_problem = StorageProblem(reason("store_in_use", path="/home"))

    def _free(self, which: int) -> None:
        self.rooms.session.verdict_problem = self.rooms.session.start_problem = None

    # ---- waiting

    def _store(self, act: Callable[[ResultStore], None]) -> None:
        try:
            with ResultStore(self.rooms.database) as store:
                act(store)
        except StorageProblem:
            return

    def _settle(self) -> None:
        """Until nothing is under way in the background, and no event waits."""
        self._wait(lambda: not self.bench.background._queues)
        for _ in range(3):
            self._qt.processEvents()
        self._wait(lambda: not self.bench.background._queues)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not is_so():
            self._qt.processEvents()
            time.sleep(0.001)
            assert time.monotonic() < end_s, "the window waits for ever"


def shortest(walk: Sequence[Act], fails: Callable[[Sequence[Act]], str]) -> Sequence[Act]:
    """The walk without each event that it fails without, too."""
    place = len(walk) - 1
    while place >= 0:
        less = (*walk[:place], *walk[place + 1 :])
        walk = less if fails(less) else walk
        place -= 1
    return walk
