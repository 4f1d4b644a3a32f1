"""A stored run as files, in the formats of `reports.exporter`; and the maps of its images (see `reports.images`)."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fieldray.domain.finding import Failed, Outcome, Screened
from fieldray.domain.image import ShownImage
from fieldray.domain.model import Manifest, Model
from fieldray.domain.prior import PairRecord
from fieldray.domain.run import Count, PackOfRun, PackSpec, Run, RunSpec, StoredAnswer, pack_of_run
from fieldray.errors import FieldrayError, InputProblem, StorageProblem, UsageProblem
from fieldray.paths import user_data
from fieldray.persistence import clear_abandoned
from fieldray.pipeline.doubts import doubts_of
from fieldray.processes.child import Call, Child, served
from fieldray.processes.serving import announce
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import (
    PLAIN,
    Exporter,
    ReportOptions,
    StoredPack,
    StoredRun,
    default_exporters,
    exporters,
    no_images,
    pseudonym_key,
    side_by_side,
)
from fieldray.reports.images import MapNames, overlay_spec, write_class_map, write_lungs, write_overlay
from fieldray.settings import TABLE, Settings, Value
from fieldray.store.results import ResultQuery
from fieldray.store.work_list import HistoryQuery
from fieldray.surroundings import lower_priority
from fieldray.workers.calls import AnalyseRequest
from fieldray.workers.pool import PoolClosed, number_of_workers, open_workers

if TYPE_CHECKING:
    from fieldray.workers.pool import Workers

_AHEAD: Final = 4  # images that wait, read, for each that is being read
_CAPTURES: Final = "sc"  # written first: what refers to them refers to those that were written

OpenReaders = Callable[[], "Workers"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ExportRequest:
    """The run to export, and what the files are to say.

    database  the results' file
    run_id    the run
    folder    where the outputs are written
    formats   names of exporters; without any, every one that is a default
    spec      to know the run by: after a backup was put back, another one may have its number
    packs     those in use; a pack of the run that is none of these is looked for among the installed ones
    options   language, names of patients and the like
    """

    database: Path
    run_id: int
    folder: Path
    formats: tuple[str, ...] = ()
    spec: RunSpec | None = None
    packs: tuple[Model, ...] = ()
    options: ReportOptions = PLAIN


def export_run(
    request: ExportRequest,
    *,
    readers: OpenReaders | None = None,
    progress: Count = lambda _done, _total: None,
    note: Callable[[Reason], None] = lambda _: None,
) -> tuple[Path, ...]:
    """Write a run into a folder, one output per format, with the answers of all its packs.

    readers   opens what reads images; without it none is read
    progress  called with the number of results written and of all, before each; to stop, it raises Cancelled
    note      hears what is left out of an output that should have it
    Returns the outputs, in the order of `formats`; none of a format for which no result has anything.
    Raises UsageProblem for an output that would replace something else; StorageProblem where something cannot be read
    or written, or the run is another (store_gone); ReaderProblem where nothing can be started that reads images;
    UsageProblem (history_no_run) for an unknown run without a `spec`; KeyError for an unknown format.
    """
    folder = request.folder
    chosen = [exporters()[name] for name in request.formats] or default_exporters()
    clear_abandoned(folder)
    with HistoryQuery(request.database) as query, query.at_one_moment(), _Images(readers) as images:
        run = _run_of(query, request.run_id, request.spec)
        stored = replace(
            _stored(query, run, request.packs),
            options=request.options,
            read_images=images.read,
            read_preview=partial(images.preview, query),
        )
        done, total = itertools.count(), len(chosen) * sum(sum(pack.counts.values()) for pack in stored.packs)
        paths, captures = [folder / f"{_name(run)}{exporter.suffix}" for exporter in chosen], frozenset[int]()
        for exporter, path in sorted(zip(chosen, paths, strict=True), key=lambda pair: pair[0].name != _CAPTURES):
            answers = (answer for image in query.in_order(request.run_id) for answer in image.answers)
            results = _counted(answers, lambda: progress(next(done), total))
            _write_one(exporter, path, replace(stored, results=results, captures=captures), note)
            if exporter.name == _CAPTURES and path.exists():
                captures = frozenset(int(file.stem) for file in path.iterdir())
    return tuple(path for path in paths if path.exists())  # a folder without files is none


def _counted(results: Iterable[StoredAnswer], progress: Callable[[], None]) -> Iterator[StoredAnswer]:
    """Yield the results, and report the progress before each one."""
    for result in results:
        progress()
        yield result


def _write_one(exporter: Exporter, path: Path, stored: StoredRun, note: Callable[[Reason], None]) -> None:
    """Write one format, and say what it leaves out although it should have it."""
    left: list[tuple[StoredAnswer, Reason]] = []
    exporter.write(path, replace(stored, leave_out=lambda *one: left.append(one)))
    for result, why in left[:1]:
        note(reason("left_out", count=len(left), file=path.name, image=result.outcome.ref.key, why=why.text))


def _stored(query: HistoryQuery, run: Run, packs: Sequence[Model]) -> StoredRun:
    """Return the facts of a run without its results."""
    return StoredRun(
        run=run,
        results=(),
        packs=tuple(_stored_pack(query, run, at, manifest_of(one, packs)) for at, one in enumerate(run.spec.packs)),
        not_present=query.not_present(run.run_id),
        superseded_verdicts=query.superseded_verdicts(run.run_id),
        pseudonym_key=pseudonym_key(user_data()),
    )


def _stored_pack(query: HistoryQuery, run: Run, position: int, manifest: Manifest | None) -> StoredPack:
    counts = query.counts(run.run_id, position=position)
    return StoredPack(counts=counts, doubts=doubts_of(query, run, position, manifest), manifest=manifest)


def _run_of(query: HistoryQuery, run_id: int, spec: RunSpec | None) -> Run:
    """Return the run with that number, if its specification equals `spec`."""
    run: Run | None = None
    try:
        run = query.run(run_id)
    except UsageProblem:
        if spec is None:
            raise
    if run is None or (spec and spec.work != run.spec.work):
        raise StorageProblem(reason("store_gone", path=query.path))
    return run


def _name(run: Run) -> str:
    """Name of a run's outputs, as `fieldray-run-12-20261122-090507`. The time tells two computers' runs apart."""
    return f"fieldray-run-{run.run_id}-{datetime.datetime.fromtimestamp(run.started_s):%Y%m%d-%H%M%S}"


# ---- a pack of a run


def _made(model: Model, spec: PackSpec) -> bool:
    """Whether it is the very pack that made the results of a run."""
    return (model.pack_name, model.model_sha256) == (spec.pack_name, spec.model_sha256)


def manifest_of(spec: PackSpec, packs: Sequence[Model] = ()) -> Manifest | None:
    """The manifest of the pack that made the results of a run; None if it is not installed.

    packs  loaded packs, which are searched first
    """
    for pack in packs:
        if _made(pack, spec):
            return pack.manifest
    from fieldray.packs.verified import known_manifest

    found = pack_of(spec)
    return found.manifest if found else known_manifest(spec.trust)


def pack_of(spec: PackSpec, models: Sequence[Model] = ()) -> Model | None:
    """Return the pack that gave the answers, by its model's hash; None if it is not available.

    models  loaded packs; if the pack is not among them, the installed packs are searched
    """
    for model in models:
        if _made(model, spec):
            return model
    from fieldray.packs.library import PackLibrary

    library = PackLibrary(user_data())
    for candidate in library.available():
        if candidate.pack_name == spec.pack_name and candidate.can_screen:
            with contextlib.suppress(FieldrayError):
                found = library.load(candidate.folder, allow_older=True, signer=spec.fingerprint)
                if _made(found, spec):
                    return found
    return None


# ---- images, read by other processes while earlier ones are written


class _Images(contextlib.AbstractContextManager["_Images"]):
    """Reads the images of results, several at a time and a few ahead. Its processes end with the context."""

    def __init__(self, opens: OpenReaders | None) -> None:
        self._opens = opens
        self._ends = contextlib.ExitStack()
        self._readers: Workers | None = None

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def read(self, results: Iterable[StoredAnswer], side: int) -> Iterator[tuple[StoredAnswer, ShownImage | Reason]]:
        """Read the images of results (see `StoredRun.read_images`). Raises ReaderProblem."""
        if self._opens is None:
            yield from no_images(results, side)
            return
        readers = self._opened(self._opens)
        read = partial(_read, readers, side)
        yield from side_by_side(read, results, self._threads, ahead=_AHEAD * readers.size)

    def preview(self, query: HistoryQuery, result: StoredAnswer) -> ShownImage | None:
        """The preview of a result, None where none was kept or it is damaged. Raises StorageProblem, ReaderProblem."""
        facts, frame = result.outcome.facts, result.outcome.ref.frame
        kept = query.preview(facts.content_sha256, frame=frame) if facts.content_sha256 and facts.rows else None
        if kept is None or self._opens is None:
            return None
        try:
            pixels = self._opened(self._opens).read_preview(kept)
        except InputProblem:
            return None
        return ShownImage(pixels=result.outcome.ref.turn.shown(pixels), rows=facts.rows, columns=facts.columns)

    def _opened(self, opens: OpenReaders) -> Workers:
        if self._readers is None:
            self._readers = opens()
            threads = ThreadPoolExecutor(self._readers.size, thread_name_prefix="export")
            self._threads = self._ends.enter_context(threads)
            self._ends.callback(self._readers.close)
        return self._readers


def _read(readers: Workers, side: int, result: StoredAnswer) -> tuple[StoredAnswer, ShownImage | Reason]:
    outcome = result.outcome
    if isinstance(outcome, Failed):
        return result, outcome.reason
    if outcome.ref.problem is not None or not outcome.facts.content_sha256:
        return result, outcome.ref.problem or reason("missing")
    try:
        return result, readers.read_shown(outcome.ref, side=side, content_sha256=outcome.facts.content_sha256)
    except InputProblem as error:
        return result, error.reason


log = logging.getLogger(__name__)


def write_maps(
    database: Path,
    of: PackOfRun,
    folder: Path,
    *,
    manifest: Manifest,
    readers: Workers,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Write the maps that a pack made of the images of a run.

    Parameters
    ----------
    database, of
        The results' file, and the pack of a run.
    folder
        Made if absent.
    manifest
        Of the pack that made the results.
    readers
        Reads the images again.
    progress
        Hears how many images were gone through.

    Returns
    -------
    The number of images with maps, and of those whose overlay is missing because the file cannot be read any more.

    Raises
    ------
    UsageProblem
        For an output that would replace something else.
    StorageProblem
        Where something cannot be read or written.
    """
    written = missing = 0
    with ResultQuery(database) as query, ThreadPoolExecutor(readers.size, thread_name_prefix="maps") as pool:
        run = query.run(of.run_id)
        inputs, pack = tuple(map(Path, run.spec.paths)), pack_of_run(run, of.position)
        names = MapNames(folder, inputs)
        work = (
            (names.stem(stored.outcome.ref), stored.outcome)
            for stored in query.answers(of.run_id, position=of.position)
        )
        write = partial(_write, manifest=manifest, readers=readers, inputs=inputs, lungs_pack=pack.lungs_pack)
        answers = side_by_side(lambda one: write(*one), work, pool, ahead=2 * readers.size)
        for done, (has_maps, is_missing) in enumerate(answers, 1):
            written, missing = written + has_maps, missing + is_missing
            progress(done)
    return written, missing


def _write(
    stem: Path, outcome: Outcome, *, manifest: Manifest, readers: Workers, inputs: Sequence[Path], lungs_pack: str
) -> tuple[bool, bool]:
    """Whether the image has maps, and whether its overlay is missing."""
    has_lungs = write_lungs(stem, outcome, inputs=inputs)
    if not isinstance(outcome, Screened):
        return has_lungs, False
    write_class_map(stem, outcome, manifest, inputs=inputs, lungs_pack=lungs_pack)
    try:
        frame = overlay_spec(outcome.facts.rows, outcome.facts.columns)
        seen = readers.look(AnalyseRequest(ref=outcome.ref, frame=frame), model=None)
    except (UsageProblem, StorageProblem, PoolClosed):
        raise
    except FieldrayError as problem:
        log.warning("an image cannot be read for its overlay: %s", problem.reason.text)
        return True, True
    if seen.values is None or seen.facts.content_sha256 != outcome.facts.content_sha256:
        return True, True
    write_overlay(stem, outcome, manifest, grey=seen.values[0, :, :, 0], inputs=inputs)
    return True, False


# ---- An export in a process of its own, for the window: what computes for minutes there would make it pause here.
#
# Every thread of a process waits for the one that runs Python, and code in C that lays out a page or scales an image
# may keep it waiting for a tenth of a second. The process leaves the CPU to what somebody is waiting for.

SERVICE: Final = "fieldray.pipeline.export:handle"
_LONGEST_S: Final = 30 * 24 * 3600.0  # an export may take any time: a person ends it
_STEPS: Final = 50  # that it tells of at most; see `processes.child`


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ExportOrder:
    """An `ExportRequest` for another process, its report options one by one, with the values of its settings."""

    database: Path
    run_id: int
    folder: Path
    formats: tuple[str, ...]
    spec: RunSpec | None
    language: str
    names_people: bool
    decimal_comma: bool
    reader: str
    pairs: tuple[PairRecord, ...]
    packs: tuple[Model, ...]
    settings: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The outputs of an export, and the reasons for omissions."""

    written: tuple[Path, ...]
    notes: tuple[Reason, ...]


EXPORT: Final = Call("export", ExportOrder, Exported)


def export_apart(
    request: ExportRequest,
    *,
    settings: Settings,
    progress: Count,
    note: Callable[[Reason], None] = lambda _: None,
    child: Child | None = None,
) -> tuple[Path, ...]:
    """Export a run (see `export_run`) in a process of its own, with the workers that the settings ask for.

    `progress` is called ten times a second, `note` at the end.

    `child` is the process to be started; without it, one for `SERVICE`.

    Raises EnvironmentProblem where no process can be started, FieldrayError where it was lost, and what `export_run`
    raises of `FieldrayError`.
    """
    options = request.options
    order = ExportOrder(
        database=request.database,
        run_id=request.run_id,
        folder=request.folder.absolute(),
        formats=request.formats,
        spec=request.spec,
        language=options.language,
        names_people=options.names_people,
        decimal_comma=options.decimal_comma,
        reader=options.reader,
        pairs=options.pairs,
        packs=tuple(map(_for_reports, request.packs)),
        settings={row.key: settings[row.key] for row in TABLE},
    )
    try:
        done = EXPORT.apart(child or Child(SERVICE), order, progress=progress, timeout_s=_LONGEST_S)
    finally:
        clear_abandoned(request.folder)  # killed, it could not discard what was half done
    for one in done.notes:
        note(one)
    return done.written


def _for_reports(model: Model) -> Model:
    """A copy of a model without the files and gates that reports do not use."""
    manifest = replace(model.manifest, ood_gate=None)
    return replace(model, manifest=manifest, files={}, golden=None, card="", lungs=None)


# ---- in the process


def _export(order: ExportOrder) -> Exported:
    lower_priority()
    settings, notes, step = Settings(order.settings), list[Reason](), -1

    def progress(done: int, total: int) -> None:
        nonlocal step
        if (reached := _STEPS * done // max(1, total)) > step:
            step = reached
            announce(f"{done}/{total}")

    request = ExportRequest(
        database=order.database,
        run_id=order.run_id,
        folder=order.folder,
        formats=order.formats,
        spec=order.spec,
        packs=order.packs,
        options=ReportOptions(
            language=order.language,
            names_people=order.names_people,
            decimal_comma=order.decimal_comma,
            reader=order.reader,
            pairs=order.pairs,
        ),
    )
    written = export_run(
        request,
        readers=lambda: open_workers(settings, number_of_workers(settings)),
        progress=progress,
        note=notes.append,
    )
    return Exported(written=written, notes=tuple(notes))


handle: Final = served((EXPORT, _export))
