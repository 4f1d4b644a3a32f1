"""Runs of the past in the window: listed, opened, compared, deleted. No widget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.pack_choice import PackChoice
from fieldray.desktop.screening import Screening
from fieldray.domain.history import Comparison, Deletion, DeletionPlan, RunFilter, RunSummary
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.pipeline.history import PastRun, deletion_sentences
from fieldray.reasons import Reason, reason
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.pipeline.history import History

T = TypeVar("T")


class PastRuns(QObject):
    """The list as it was last read, which of it is wanted, and the last comparison."""

    changed = Signal()
    opened = Signal(object, int)  # a PastRun, and the row that is wanted of it or 0
    planned = Signal(object)  # a DeletionPlan that a person is to be asked about
    deleted = Signal(object)  # a Deletion

    def __init__(self, background: Background, board: NoticeBoard, screening: Screening, packs: PackChoice) -> None:
        super().__init__()
        self._background, self._board = background, board
        self._screening, self._packs = screening, packs
        self._service: History | None = None
        self.summaries: tuple[RunSummary, ...] = ()
        self.wanted = RunFilter()
        self.comparison: Comparison | None = None
        self.problem: Reason | None = None
        self.is_busy = False
        screening.changed.connect(self.changed)

    def attach(self, service: History) -> None:
        """The results are open."""
        self._service = service

    @property
    def shown(self) -> tuple[RunSummary, ...]:
        """The runs that are wanted, the newest first."""
        return tuple(found for found in self.summaries if self.wanted.has(found))

    @property
    def can_open(self) -> bool:
        """Whether the list of images is free for another run."""
        return self._service is not None and not self._screening.is_busy and not self.is_busy

    # ---- what a person does

    def filter(self, wanted: RunFilter) -> None:
        """Show other runs."""
        self.wanted = wanted
        self.changed.emit()

    def refresh(self) -> None:
        """Read the list again."""
        service = self._service
        if service is not None:
            self._run(service.runs, self._listed)

    def open(self, run_id: int, *, row_id: int = 0) -> None:
        """Bring a run into sight, and one of its images."""
        service, model = self._service, self._packs.model
        if service is None:
            return
        if self._screening.is_busy:
            self._failed(UsageProblem(reason("history_is_open")))
            return
        self._run(lambda: service.open(run_id, model=model), lambda past: self._opened(past, row_id))

    def compare(self, first: int, second: int) -> None:
        """Compare two runs: the older one is the first."""
        service = self._service
        if service is not None:
            self._run(lambda: service.compare(*sorted((first, second))), self._compared)

    def plan(self, run_ids: Sequence[int]) -> None:
        """Find out what deleting would take away; then `planned`."""
        service = self._service
        if service is not None and run_ids:
            self._run(lambda: service.plan_deletion(run_ids), self._planned)

    def delete(self, plan: DeletionPlan) -> None:
        """A person said yes twice."""
        service = self._service
        if service is not None:
            self._run(lambda: service.delete(plan), self._deleted)

    # ---- inside

    def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.is_busy, self.problem = True, None
        self.changed.emit()

        def answered(result: T) -> None:
            self.is_busy = False
            done(result)
            self.changed.emit()

        self._background.run(work, channel="history", done=answered, failed=self._failed)

    def _failed(self, error: Exception) -> None:
        self.is_busy = False
        if not isinstance(error, FieldrayError):
            self.changed.emit()
            raise error
        self.problem = error.reason
        self.changed.emit()
        if error.reason.code == "history_no_run":  # another program deleted it
            self._relist()

    def _relist(self) -> None:
        """Read the list again and keep the sentence in sight."""
        service = self._service
        if service is not None:
            self._background.run(service.runs, channel="history", done=self._relisted, failed=self._failed)

    def _relisted(self, summaries: tuple[RunSummary, ...]) -> None:
        self._listed(summaries)
        self.changed.emit()

    def _listed(self, summaries: tuple[RunSummary, ...]) -> None:
        self.summaries = summaries
        known = {found.run.run_id for found in summaries}
        comparison = self.comparison
        if comparison and not {comparison.first.run_id, comparison.second.run_id} <= known:
            self.comparison = None

    def _opened(self, past: PastRun, row_id: int) -> None:
        if self._screening.is_busy:  # a run began meanwhile
            self._failed(UsageProblem(reason("history_is_open")))
        else:
            self.opened.emit(past, row_id)

    def _compared(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def _planned(self, plan: DeletionPlan) -> None:
        self.planned.emit(plan)

    def _deleted(self, done: Deletion) -> None:
        said = deletion_sentences(done)

        def text(translator: Translator) -> str:
            return " ".join(map(translator.reason, said))

        self._board.post("history", text, level="info" if done.is_wiped else "warning")
        self.deleted.emit(done)
        self.refresh()
