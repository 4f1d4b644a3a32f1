"""One run put together: what is found, read, run and judged, as a batch.

A module of its own because it brings the store, the search for files and the statistics along: they are imported
when the first run begins, while the model is being opened already.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.assessment import Assessment
from fieldray.domain.events import Publish
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Manifest
from fieldray.domain.run import Resuming, RunSpec
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.quality import check_header
from fieldray.paths import VERSION
from fieldray.pipeline.batch import Batch, Work
from fieldray.pipeline.keeping import PackWork
from fieldray.pipeline.screen import Lane, screen_by_each
from fieldray.pipeline.statistics import Statistics
from fieldray.pipeline.watching import Watch
from fieldray.reasons import Reason, reason
from fieldray.reports.outputs import is_own_report
from fieldray.workers.pool import Workers

_AHEAD: Final = 1  # so many more images are under way than are looked at: the next one waits at the door


def assemble(
    paths: Sequence[Path],
    lanes: Sequence[Lane],
    *,
    workers: Workers,
    database: Path,
    publish: Publish,
    fresh: bool,
    keeps_previews: bool = True,
    resuming: Resuming = Resuming(),  # noqa: B008 - it is frozen
    found: Sequence[ImageRef] | None = None,
    watch: Watch | None = None,
) -> Batch:
    """The batch, not started; at its end it gives up what `workers` still do. `paths` are absolute.

    lanes  of the packs that go over the images together, one most often

    With `found`, the images that were looked for already, `paths` are only what the run is known by; with
    `watch` the run ends when it is cancelled.
    """
    statistics, cancelled, noticed = Statistics(), threading.Event(), list[Reason]()
    screen = functools.partial(screen_by_each, workers=workers, observe=statistics.add, is_cancelled=cancelled.is_set)

    def release() -> None:
        cancelled.set()
        workers.give_up()

    search = functools.partial(discover, members=workers.members, is_own_report=is_own_report)
    work = Work(
        packs=[_pack_work(paths, lane.assessment, database) for lane in lanes],
        discover=functools.partial(watch.arrivals, search, rest=cancelled.wait)
        if watch
        else lambda is_known: search(paths, is_known=is_known, notify=noticed.append) if found is None else iter(found),
        noticed=lambda: noticed,
        count=lambda gives_up: count_files(paths, gives_up=gives_up) if found is None else len(found),
        content_hash=workers.content_hash,
        stamp_with=workers.stamp_with,
        screen=lambda ref, wanted: screen(ref, [lanes[number] for number in wanted]),
        release=release,
        keeps_previews=keeps_previews,
        resuming=resuming,
        watch=watch,
    )
    return Batch(
        work, database=database, publish=publish, threads=workers.size + _AHEAD, fresh=fresh, statistics=statistics
    )


def _pack_work(paths: Sequence[Path], assessment: Assessment, database: Path) -> PackWork:
    model = assessment.model
    return PackWork(
        spec=spec_of(paths, assessment),
        check_header=functools.partial(check_header, rules=model.manifest.accepted, finds_lungs=bool(model.lungs)),
        doubts=functools.partial(_doubts, database, model.manifest),
    )


def _doubts(database: Path, manifest: Manifest, run_id: int) -> tuple[Reason, ...]:
    from fieldray.pipeline.auditing import doubts_of  # brings much along, and is wanted at the end of a run
    from fieldray.store.work_list import HistoryQuery

    with HistoryQuery(database) as query:
        return doubts_of(query, query.run(run_id), manifest)


def existing(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths, absolute and without duplicates, in order. Raises UsageProblem (nothing_to_screen).

    Links are not followed: a person knows a file by the name given.
    """
    absolute = tuple(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))  # noqa: PTH100
    for path in absolute:
        if not os.path.lexists(path):
            raise UsageProblem(reason("nothing_to_screen", path=path))
    return absolute


def spec_of(paths: Sequence[Path | str], assessment: Assessment) -> RunSpec:
    """What a run over these absolute paths is known by."""
    model = assessment.model
    return RunSpec(
        paths=tuple(map(str, paths)),
        pack_name=model.pack_name,
        trust=model.trust,
        fingerprint=model.fingerprint,
        model_sha256=model.model_sha256,
        settings_hash=assessment.settings_hash,
        operating_points=tuple(point for point in assessment.points.values() if point),
        program_version=VERSION,
        lungs_pack=model.lungs_pack,
    )


def count_files(paths: Sequence[Path], *, gives_up: Callable[[], bool]) -> int:
    """About how many images there are, by names alone: a zip or a multi-frame file counts as one."""
    number = 0
    for path in paths:
        number += not os.path.isdir(path)  # noqa: PTH112 - never raises, unlike the method of a path
        for _, _, names in os.walk(path):
            if gives_up():
                return number
            number += sum(not name.startswith(".") for name in names)
    return number
