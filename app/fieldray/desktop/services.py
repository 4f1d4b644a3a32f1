"""What the window asks of the packages that do the work, and how they are opened.

The window knows these rooms by type alone and is given them, so its tests come through the same door, with services of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fieldray.domain.events import Count, Publish
from fieldray.reasons import Reason
from fieldray.reports.exporter import ReportOptions
from fieldray.settings import Settings

if TYPE_CHECKING:
    from fieldray.bench.load import KeptStudy
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import PackMemory
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import Priors
    from fieldray.pipeline.constancy import ConstancyRecords
    from fieldray.pipeline.history import History, WorkList
    from fieldray.pipeline.session import Session


Note = Callable[[Reason], None]
Export = Callable[[int, Path, Sequence[str], ReportOptions, Count, Note], tuple[Path, ...]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Services:
    """The rooms at work.

    are_empty      whether these paths are folders without any file
    may_lack_ages  whether there may be images among these paths that do not say how old the patient is
    known_load     what was last measured of an image beside other programs
    measure_load   measures that anew for the pack in a folder, signed by a key
    check_constancy  check the pack in use on each device (`pipeline.constancy.check`); waits for it
    """

    session: Session
    library: PackLibrary
    memory: PackMemory
    are_empty: Callable[[Sequence[Path]], bool]
    may_lack_ages: Callable[[Sequence[Path]], bool]
    drives: DriveWatch
    audit: Auditor
    history: History
    work_list: WorkList
    priors: Priors
    constancy: ConstancyRecords
    check_constancy: Callable[[], tuple[Reason, ...]]
    export: Export
    known_load: Callable[[], KeptStudy | None]
    measure_load: Callable[[Path, str, Count], KeptStudy]


OpenServices = Callable[[Settings, Publish], Services]


def open_services(settings: Settings, publish: Publish) -> Services:
    """Open the services. Slow (imports, the database): call it in the background. Raises StorageProblem."""
    from fieldray.bench.load import kept_study, study_apart
    from fieldray.imaging.quality import are_empty, may_lack_ages
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import DriveWatch
    from fieldray.packs.site_choices import PackMemory
    from fieldray.paths import user_data
    from fieldray.pipeline.auditing import Auditor
    from fieldray.pipeline.compare import Priors, system_comparer
    from fieldray.pipeline.constancy import ConstancyRecords, check
    from fieldray.pipeline.history import History, WorkList
    from fieldray.pipeline.session import Session

    library = PackLibrary(user_data())
    session = Session(settings, publish)
    database, comparer = session.database, system_comparer(settings)
    constancy = ConstancyRecords(database.parent)
    drives = DriveWatch(publish)
    drives.start()

    return Services(
        session=session,
        library=library,
        memory=PackMemory(user_data()),
        are_empty=are_empty,
        may_lack_ages=may_lack_ages,
        drives=drives,
        audit=Auditor(database, library.site_points),
        history=History(database),
        work_list=WorkList(database),
        priors=Priors(database, comparer, lambda ref, point: session.screen_one(ref, operating_point=point)),
        constancy=constancy,
        check_constancy=lambda: check(session, constancy),
        export=lambda run_id, folder, formats, options, progress, note: session.export(
            run_id, folder, formats, options=options, progress=progress, note=note, is_apart=True
        ),
        known_load=kept_study,
        measure_load=study_apart,
    )
