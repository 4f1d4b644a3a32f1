"""The work list of a run in a store, for the tests of its model and of what paints it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fake_rooms import SPEC, save
from pytestqt.qtbot import QtBot

from fieldray.desktop.background import Background
from fieldray.desktop.list_reader import WorkRow
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.verdicts import Judged, Verdicts
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.domain.events import OutcomeReady
from fieldray.domain.finding import Outcome
from fieldray.domain.run import Verdict
from fieldray.pipeline.history import WorkList
from fieldray.store.results import ResultStore
from fieldray.translation import Translator

WAIT_MS = 20_000


class StoredList:
    """A model over a run that grows as the test says."""

    def __init__(self, path: Path, qtbot: QtBot) -> None:
        self.path, self._qtbot = path, qtbot
        self.board = NoticeBoard()
        self.background = Background(self.board)
        self.verdicts = Verdicts()
        self.model = WorkListModel(Translator("en"), self.background, self.board, self.verdicts)
        self.background.open(SimpleNamespace(work_list=WorkList(path)))  # type: ignore[arg-type]
        self.store = ResultStore(path)
        self.run_id = 0
        self.begin()

    def begin(self) -> None:
        """Begin another run, and list it."""
        self.run_id = self.store.open_run(SPEC, fresh=True)
        self.model.open(self.run_id, None)
        self.until(lambda: self.model.is_whole)

    def add(self, *outcomes: Outcome) -> None:
        """Save results, and wait until they are listed and those in sight are read."""
        save(self.store, self.run_id, outcomes, self.take)
        self.settle()

    def take(self, event: OutcomeReady) -> None:
        """Hear of a result as the window does."""
        self.model.outcome_ready(event.row_id, event.outcome)

    def judge(self, row_id: int, choice: str) -> None:
        """Give a verdict on a row, here and in the store."""
        verdict = Verdict(choice=choice)  # type: ignore[arg-type]
        judged = Judged(row_id, self.store.row(row_id).outcome)
        self.verdicts.open(judged)
        self.verdicts.choose(verdict.choice)
        self.model.verdict_changed(judged)
        self.verdicts.written(judged, self.store.set_verdict(row_id, verdict, judged=judged.outcome))
        self.model.verdict_changed(judged)

    def settle(self) -> None:
        """Wait until the list is as it is wanted, and the rows that would be in sight are read."""
        with self._qtbot.waitSignal(self.model.changed, timeout=WAIT_MS):
            pass
        self.rows(40)

    def rows(self, most: int = 10**9) -> list[WorkRow]:
        """The first rows as they are shown, read for it."""
        places = range(min(self.model.rowCount(), most))
        self.until(lambda: all(self.model.row_at(self.model.index(place, 0)) for place in places))
        found = [self.model.row_at(self.model.index(place, 0)) for place in places]
        return [row for row in found if row is not None]

    def shown(self) -> list[int]:
        """The numbers of all rows as they are shown."""
        found = [self.model.id_at(self.model.index(place, 0)) for place in range(self.model.rowCount())]
        return [row_id for row_id in found if row_id is not None]

    def until(self, is_so: object) -> None:
        """Let the window work until something is so."""
        self._qtbot.waitUntil(is_so, timeout=WAIT_MS)

    def close(self) -> None:
        """End everything."""
        self.model.open(None)
        self.background.close(wait_s=5)
        self.store.close()
