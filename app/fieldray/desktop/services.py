"""What the window asks of the packages that do the work, and how they are opened.

The window knows only these doors, so its tests come through them too, with services of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fieldray.desktop.exporting import Export
from fieldray.domain.comparison import PairComparison
from fieldray.domain.events import Publish, StoreUpgrading
from fieldray.domain.finding import Outcome
from fieldray.domain.history import Comparison, Deletion, DeletionPlan, RunSummary
from fieldray.domain.image import Image
from fieldray.domain.model import BackendName, Model
from fieldray.domain.prior import Prior, StoredPriors
from fieldray.domain.run import StoredResult, Verdict, Wishes
from fieldray.domain.study import ImageRef
from fieldray.domain.work_list import Listed, ResultFilter, ResultOrder
from fieldray.errors import StorageProblem
from fieldray.reasons import Reason
from fieldray.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fieldray.audit.report import AuditReport
    from fieldray.packs.candidate import PackCandidate
    from fieldray.packs.memory import RememberedPack
    from fieldray.pipeline.auditing import AuditRequest
    from fieldray.pipeline.history import PastRun


class BatchPort(Protocol):
    """A run under way (`pipeline.batch.Batch`)."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def cancel(self) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...


class SessionPort(Protocol):
    """Screening (`pipeline.session.Session`); every call may block shortly."""

    def use_pack(self, model: Model | None) -> None: ...
    def choose_devices(self) -> None: ...
    def reconsider(self, name: BackendName) -> None: ...
    def start(
        self,
        paths: Sequence[Path],
        *,
        operating_point: str | None = None,
        fresh: bool = False,
        ages_confirmed: bool = False,
    ) -> BatchPort: ...
    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image: ...
    def read_preview(self, content_sha256: str, *, frame: int) -> NDArray[np.uint8]: ...
    def screen_again(self, row_id: int, *, judged: Outcome, wishes: Wishes) -> Outcome: ...
    def set_verdict(self, row_id: int, verdict: Verdict | None, *, judged: Outcome) -> None: ...
    def close(self) -> None: ...


class LibraryPort(Protocol):
    """The packs within reach (`packs.library.PackLibrary`)."""

    def available(self, drives: Sequence[Path] = ()) -> tuple[PackCandidate, ...]: ...
    def load(
        self, folder: Path, *, allow_older: bool = False, allow_legacy: bool = False, signer: str = ""
    ) -> Model: ...
    def trust(self, fingerprint: str) -> None: ...
    def install(self, folder: Path, *, allow_older: bool = False) -> Path: ...
    def site_problem(self) -> Reason | None: ...
    def card(self, folder: Path) -> str: ...


class AuditPort(Protocol):
    """Audits of stored runs (`pipeline.auditing.Auditor`)."""

    def audit(self, run_id: int, request: AuditRequest, *, model: Model | None) -> AuditReport: ...
    def take(self, report: AuditReport, *, name: str, person: str, model: Model) -> Model: ...
    def save(self, folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]: ...


class HistoryPort(Protocol):
    """Runs of the past (`pipeline.history.History`)."""

    def runs(self) -> tuple[RunSummary, ...]: ...
    def open(self, run_id: int, *, model: Model | None = None) -> PastRun: ...
    def compare(self, first: int, second: int) -> Comparison: ...
    def plan_deletion(self, run_ids: Sequence[int]) -> DeletionPlan: ...
    def delete(self, plan: DeletionPlan) -> Deletion: ...


class WorkListPort(Protocol):
    """The lists of runs, read from the store (`pipeline.work_list.WorkList`)."""

    def listed(self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None = None) -> Listed: ...
    def interrupt(self) -> None: ...
    def results(self, row_ids: Sequence[int]) -> tuple[StoredResult, ...]: ...
    def next_study(self, run_id: int, row_ids: NDArray[np.int64], position: int, step: int) -> int | None: ...
    def of_patient(self, run_id: int, patient_id: str) -> tuple[StoredResult, ...]: ...
    def find(self, run_id: int, ref: ImageRef) -> StoredResult | None: ...
    def unlisted(self, run_id: int) -> NDArray[np.int64]: ...
    def complete(self, run_id: int, row_ids: Sequence[int], *, is_last: bool) -> None: ...


class PriorsPort(Protocol):
    """Prior images, found and compared (`pipeline.priors.Priors`)."""

    def stored(self, current: Outcome) -> StoredPriors: ...
    def read(self, path: Path, current: Outcome) -> Outcome: ...
    def compare(self, prior: Prior, current: Outcome) -> PairComparison: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


class MemoryPort(Protocol):
    """Which pack a person chose for which folder (`packs.memory.PackMemory`)."""

    def find(self, paths: Sequence[Path]) -> RememberedPack | None: ...
    def remember(self, paths: Sequence[Path], pack: str, *, operating_point: str = "") -> None: ...


class DrivesPort(Protocol):
    """The watch over removable drives (`packs.drives.DriveWatch`)."""

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Services:
    """The rooms at work, with two readings of stored results.

    may_lack_ages  whether there may be images among these paths that do not say how old the patient is
    """

    session: SessionPort
    library: LibraryPort
    memory: MemoryPort
    may_lack_ages: Callable[[Sequence[Path]], bool]
    drives: DrivesPort
    audit: AuditPort
    history: HistoryPort
    work_list: WorkListPort
    priors: PriorsPort
    read_verdict: Callable[[int, Outcome], Verdict | None]
    export: Export


OpenServices = Callable[[Settings, Publish], Services]


def open_services(settings: Settings, publish: Publish) -> Services:
    """Open the services. Slow (imports, the database): call it in the background. Raises StorageProblem.

    Results of an older version are brought up to date first, which may take minutes; where that cannot be done, whoever
    reads them says why.
    """
    from fieldray.imaging.quality import may_lack_ages
    from fieldray.packs.drives import DriveWatch
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.memory import PackMemory
    from fieldray.paths import user_data
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.history import History
    from fieldray.pipeline.priors import Priors, system_comparer
    from fieldray.pipeline.session import Session
    from fieldray.pipeline.work_list import WorkList
    from fieldray.store.results import ResultQuery
    from fieldray.store.schema import is_older
    from fieldray.store.upgrading import bring_up_to_date

    library = PackLibrary(user_data())
    session = Session(settings, publish)
    if is_older(session.database):
        with contextlib.suppress(StorageProblem):
            bring_up_to_date(session.database, tell=lambda share: publish(StoreUpgrading(share=share)))
    drives = DriveWatch(publish)
    drives.start()

    def read_verdict(row_id: int, outcome: Outcome) -> Verdict | None:
        with ResultQuery(session.database) as query:
            return query.verdict(row_id, outcome)

    def screen_one(ref: ImageRef, point: str | None) -> Outcome | None:
        return session.screen_one(ref, operating_point=point)

    return Services(
        session=session,
        library=library,
        memory=PackMemory(user_data()),
        may_lack_ages=may_lack_ages,
        drives=drives,
        audit=Auditor(session.database, library.site_points),
        history=History(session.database),
        work_list=WorkList(session.database),
        priors=Priors(session.database, system_comparer(settings), screen_one),
        read_verdict=read_verdict,
        export=lambda run_id, folder, formats, options, tell: session.export(
            run_id, folder, formats, options=options, tell=tell, is_apart=True
        ),
    )
