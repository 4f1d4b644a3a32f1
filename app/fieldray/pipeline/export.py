"""Export of a stored run to files (formats of `reports.exporter`), and of heat maps as images (`reports.images`)."""

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

from fieldray.domain.finding import FailedOutcome, Outcome, ScreenedOutcome
from fieldray.domain.image import ShownImage
from fieldray.domain.model import Manifest, Model
from fieldray.domain.prior_image import ComparisonRecord
from fieldray.domain.run import PackOfRun, PackSpec, ProgressHandler, Run, RunSpec, StoredResult, pack_of_run
from fieldray.errors import FieldrayError, InputProblem, StorageProblem, UsageProblem
from fieldray.paths import data_folder
from fieldray.persistence import remove_unfinished_files
from fieldray.pipeline.run_warnings import warnings_of_run
from fieldray.process_environment import lower_priority
from fieldray.processes.child import Child, ChildFunction, make_message_handler
from fieldray.processes.serving import announce_stage
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import (
    DEFAULT_REPORT_OPTIONS,
    Exporter,
    PackOfStoredRun,
    ReportOptions,
    StoredRun,
    default_exporters,
    exporters,
    map_with_lookahead,
    pseudonym_key,
    results_without_images,
)
from fieldray.reports.images import MapFileNames, overlay_input_spec, write_class_map, write_lung_mask, write_overlay
from fieldray.settings import SETTING_ROWS, Settings, Value
from fieldray.store.results import ResultQuery
from fieldray.store.work_list import HistoryQuery
from fieldray.workers.calls import AnalysisRequest
from fieldray.workers.pool import PoolClosed, number_of_workers, open_workers

if TYPE_CHECKING:
    from fieldray.workers.pool import WorkerPool

_AHEAD: Final = 4  # images read ahead, per worker
_CAPTURES: Final = "sc"  # secondary captures are written first, because other outputs refer to them

MakeWorkers = Callable[[], "WorkerPool"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ExportRequest:
    """The request to export a run.

    database  path of the results database
    run_id    id of the run
    folder    folder for the outputs
    formats   names of the formats; empty for the default formats
    spec      the request that the run must have; None for any. After a restored backup, another run may have this id
    packs     loaded packs, which are searched first for the packs of the run
    options   language, names of patients and other options of reports
    """

    database: Path
    run_id: int
    folder: Path
    formats: tuple[str, ...] = ()
    spec: RunSpec | None = None
    packs: tuple[Model, ...] = ()
    options: ReportOptions = DEFAULT_REPORT_OPTIONS


def export_run(
    request: ExportRequest,
    *,
    make_workers: MakeWorkers | None = None,
    progress: ProgressHandler = lambda _done, _total: None,
    note: Callable[[Reason], None] = lambda _: None,
) -> tuple[Path, ...]:
    """Write a run, with the results of all its packs, into a folder: one output for each format.

    Returns the paths of the outputs in the order of `formats`. A format without any content gives no output.

    make_workers  function that opens workers, which read images; None to read no image
    progress      function called before each result with the number of results written and the total; if the function
                  raises Cancelled, the export stops
    note          function called with each message about results that are missing in an output

    Raises UsageProblem for an output that would replace another file, and (history_no_run) for an unknown run if `spec`
    is None. Raises StorageProblem for failed reading or writing, and (store_gone) if the run's request is not `spec`.
    Raises WorkerProblem if no worker can be started, and KeyError for an unknown format.
    """
    folder = request.folder
    chosen = [exporters()[name] for name in request.formats] or default_exporters()
    remove_unfinished_files(folder)
    with HistoryQuery(request.database) as query, query.snapshot(), _ImageReading(make_workers) as images:
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
            answers = (answer for image in query.images_in_work_list_order(request.run_id) for answer in image.results)
            results = _with_progress(answers, lambda: progress(next(done), total))
            _write_one(exporter, path, replace(stored, results=results, captured_work_list_numbers=captures), note)
            if exporter.name == _CAPTURES and path.exists():
                captures = frozenset(int(file.stem) for file in path.iterdir())
    return tuple(path for path in paths if path.exists())  # an output without content is not written


def _with_progress(results: Iterable[StoredResult], progress: Callable[[], None]) -> Iterator[StoredResult]:
    """Yield the results unchanged, and call `progress` before each one."""
    for result in results:
        progress()
        yield result


def _write_one(exporter: Exporter, path: Path, stored: StoredRun, note: Callable[[Reason], None]) -> None:
    """Write a run in one format.

    Calls `note` with a message if results are missing although the format requires them.
    """
    left: list[tuple[StoredResult, Reason]] = []
    exporter.write(path, replace(stored, report_omission=lambda *one: left.append(one)))
    for result, why in left[:1]:
        note(reason("left_out", count=len(left), file=path.name, image=result.outcome.ref.key, why=why.text))


def _stored(query: HistoryQuery, run: Run, packs: Sequence[Model]) -> StoredRun:
    """Return the facts of a run that reports need, without the run's results.

    packs  loaded packs, which are searched first for the packs of the run
    """
    return StoredRun(
        run=run,
        results=(),
        packs=tuple(_stored_pack(query, run, at, find_manifest(one, packs)) for at, one in enumerate(run.spec.packs)),
        absent_images=query.absent_images(run.run_id),
        superseded_verdicts=query.superseded_verdicts(run.run_id),
        pseudonym_key=pseudonym_key(data_folder()),
    )


def _stored_pack(query: HistoryQuery, run: Run, position: int, manifest: Manifest | None) -> PackOfStoredRun:
    counts = query.category_counts(run.run_id, pack_position=position)
    return PackOfStoredRun(counts=counts, warnings=warnings_of_run(query, run, position, manifest), manifest=manifest)


def _run_of(query: HistoryQuery, run_id: int, spec: RunSpec | None) -> Run:
    """Return the run with an id.

    spec  the expected request of the run, or None

    Raises StorageProblem (store_gone) if the run has another request.
    """
    run: Run | None = None
    try:
        run = query.run(run_id)
    except UsageProblem:
        if spec is None:
            raise
    if run is None or (spec and spec.resume_key != run.spec.resume_key):
        raise StorageProblem(reason("store_gone", path=query.path))
    return run


def _name(run: Run) -> str:
    """Return the beginning of the file names of a run's outputs, such as `fieldray-run-12-20261122-090507`.

    The time distinguishes runs of two computers that have one id.
    """
    return f"fieldray-run-{run.run_id}-{datetime.datetime.fromtimestamp(run.started_s):%Y%m%d-%H%M%S}"


# ---- a pack of a run


def _is_model_of(model: Model, spec: PackSpec) -> bool:
    """Return whether a model is the pack that a run used, by name and hash."""
    return (model.pack_name, model.model_sha256) == (spec.pack_name, spec.model_sha256)


def find_manifest(spec: PackSpec, packs: Sequence[Model] = ()) -> Manifest | None:
    """Return the manifest of a pack that a run used; None if the pack is not available.

    packs  loaded packs, which are searched before the installed ones
    """
    for pack in packs:
        if _is_model_of(pack, spec):
            return pack.manifest
    from fieldray.packs.verified import manifest_of_removed_pack

    found = find_used_pack(spec)
    return found.manifest if found else manifest_of_removed_pack(spec.trust)


def find_used_pack(spec: PackSpec, models: Sequence[Model] = ()) -> Model | None:
    """Return the pack that a run used, recognised by the hash of its model; None if the pack is not available.

    models  loaded packs, which are searched before the installed ones
    """
    for model in models:
        if _is_model_of(model, spec):
            return model
    from fieldray.packs.library import PackLibrary

    library = PackLibrary(data_folder())
    for candidate in library.available():
        if candidate.pack_name == spec.pack_name and candidate.can_screen:
            with contextlib.suppress(FieldrayError):
                found = library.load(candidate.folder, allow_older=True, signer=spec.fingerprint)
                if _is_model_of(found, spec):
                    return found
    return None


# ---- images, which other processes read while earlier images are written


class _ImageReading(contextlib.AbstractContextManager["_ImageReading"]):
    """Reads the images of results, several at a time and a few in advance.

    Child processes end with the `with` block.
    """

    def __init__(self, make_workers: MakeWorkers | None) -> None:
        self._make_workers = make_workers
        self._ends = contextlib.ExitStack()
        self._workers: WorkerPool | None = None

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def read(self, results: Iterable[StoredResult], side: int) -> Iterator[tuple[StoredResult, ShownImage | Reason]]:
        """Yield each result with its image, or with the reason why the image cannot be read. Raises WorkerProblem.

        side  length of the images' longer side in pixels
        """
        if self._make_workers is None:
            yield from results_without_images(results, side)
            return
        workers = self._opened(self._make_workers)
        read = partial(_read, workers, side)
        yield from map_with_lookahead(read, results, self._threads, ahead=_AHEAD * workers.size)

    def preview(self, query: HistoryQuery, result: StoredResult) -> ShownImage | None:
        """Return the stored preview of a result; None if there is no preview or the preview is damaged.

        Raises StorageProblem, WorkerProblem.
        """
        facts, frame = result.outcome.facts, result.outcome.ref.frame
        kept = query.preview(facts.content_sha256, frame=frame) if facts.content_sha256 and facts.rows else None
        if kept is None or self._make_workers is None:
            return None
        try:
            pixels = self._opened(self._make_workers).read_preview(kept)
        except InputProblem:
            return None
        return ShownImage(
            pixels=result.outcome.ref.correction.apply_to_grey(pixels), file_rows=facts.rows, file_columns=facts.columns
        )

    def _opened(self, make_workers: MakeWorkers) -> WorkerPool:
        if self._workers is None:
            self._workers = make_workers()
            threads = ThreadPoolExecutor(self._workers.size, thread_name_prefix="export")
            self._threads = self._ends.enter_context(threads)
            self._ends.callback(self._workers.close)
        return self._workers


def _read(workers: WorkerPool, side: int, result: StoredResult) -> tuple[StoredResult, ShownImage | Reason]:
    outcome = result.outcome
    if isinstance(outcome, FailedOutcome):
        return result, outcome.reason
    if outcome.ref.problem is not None or not outcome.facts.content_sha256:
        return result, outcome.ref.problem or reason("missing")
    try:
        return result, workers.read_display_image(outcome.ref, side=side, content_sha256=outcome.facts.content_sha256)
    except InputProblem as error:
        return result, error.reason


log = logging.getLogger(__name__)


def write_heat_maps(
    database: Path,
    pack_in_run: PackOfRun,
    folder: Path,
    *,
    manifest: Manifest,
    workers: WorkerPool,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Write the heat maps, lung masks and overlays of a pack's results in a run as image files.

    pack_in_run  the run, and the position of the pack in the run
    folder       folder for the files, which is created if missing
    manifest     manifest of the pack
    workers      workers that read the images again
    progress     function called with the number of images done

    Returns the number of images with maps, and the number of images without overlay because the file cannot be read any
    more. Raises UsageProblem for an output that would replace another file, and StorageProblem for failed reading or
    writing.
    """
    written = missing = 0
    with ResultQuery(database) as query, ThreadPoolExecutor(workers.size, thread_name_prefix="maps") as pool:
        run = query.run(pack_in_run.run_id)
        inputs, pack = tuple(map(Path, run.spec.paths)), pack_of_run(run, pack_in_run.position)
        names = MapFileNames(folder, inputs)
        work = (
            (names.path_without_suffix(stored.outcome.ref), stored.outcome)
            for stored in query.results(pack_in_run.run_id, pack_position=pack_in_run.position)
        )
        write = partial(_write, manifest=manifest, workers=workers, inputs=inputs, lungs_pack=pack.lungs_pack)
        answers = map_with_lookahead(lambda one: write(*one), work, pool, ahead=2 * workers.size)
        for done, (has_maps, is_missing) in enumerate(answers, 1):
            written, missing = written + has_maps, missing + is_missing
            progress(done)
    return written, missing


def _write(
    stem: Path, outcome: Outcome, *, manifest: Manifest, workers: WorkerPool, inputs: Sequence[Path], lungs_pack: str
) -> tuple[bool, bool]:
    """Write the maps of one image as files. Returns whether the image has maps, and whether its overlay is missing.

    stem        beginning of the paths of the files
    inputs      files and folders of the run, which no output may replace
    lungs_pack  description of the lung-field pack, for the files
    """
    has_lungs = write_lung_mask(stem, outcome, inputs=inputs)
    if not isinstance(outcome, ScreenedOutcome):
        return has_lungs, False
    write_class_map(stem, outcome, manifest, inputs=inputs, lungs_pack=lungs_pack)
    try:
        frame = overlay_input_spec(outcome.facts.rows, outcome.facts.columns)
        seen = workers.analyse(AnalysisRequest(ref=outcome.ref, whole_image_input_spec=frame), model=None)
    except (UsageProblem, StorageProblem, PoolClosed):
        raise
    except FieldrayError as problem:
        log.warning("an image cannot be read for its overlay: %s", problem.reason.text)
        return True, True
    if seen.input_values is None or seen.facts.content_sha256 != outcome.facts.content_sha256:
        return True, True
    write_overlay(stem, outcome, manifest, grey=seen.input_values[0, :, :, 0], inputs=inputs)
    return True, False


# ---- An export in a separate process, so that the window stays responsive.
#
# Only one thread of a process runs Python at a time, and C code that lays out a page or scales an image may block the
# others for a tenth of a second. The process has a low priority, so that it does not slow other work.

EXPORT_SERVICE: Final = "fieldray.pipeline.export:handle"
_LONGEST_S: Final = 30 * 24 * 3600.0  # no real limit: only a person ends an export
_STEPS: Final = 50  # maximum number of progress reports (see `processes.child`)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ExportCall:
    """An `ExportRequest` as plain values that can be sent to another process, with the settings of the program."""

    database: Path
    run_id: int
    folder: Path
    formats: tuple[str, ...]
    spec: RunSpec | None
    language: str
    includes_patient_names: bool
    uses_decimal_comma: bool
    reader_name: str
    pairs: tuple[ComparisonRecord, ...]
    packs: tuple[Model, ...]
    settings: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """The result of an export in another process.

    written_paths  paths of the files and folders that were written
    notes          messages about results that are missing in an output
    """

    written_paths: tuple[Path, ...]
    notes: tuple[Reason, ...]


EXPORT_CHILD_FUNCTION: Final = ChildFunction("export", ExportCall, ExportResult)


def export_in_child(
    request: ExportRequest,
    *,
    settings: Settings,
    progress: ProgressHandler,
    note: Callable[[Reason], None] = lambda _: None,
    child: Child | None = None,
) -> tuple[Path, ...]:
    """Export a run (see `export_run`) in a child process, with workers as in the settings.

    progress  function called up to ten times a second with the number of results written and the total
    note      function called at the end with each message about missing results
    child     the child process to start; None for a child process of `SERVICE`

    Raises EnvironmentProblem if no process can be started, FieldrayError if the process ended early, and each
    FieldrayError of `export_run`.
    """
    options = request.options
    order = ExportCall(
        database=request.database,
        run_id=request.run_id,
        folder=request.folder.absolute(),
        formats=request.formats,
        spec=request.spec,
        language=options.language,
        includes_patient_names=options.names_people,
        uses_decimal_comma=options.uses_decimal_comma,
        reader_name=options.reader_name,
        pairs=options.prior_comparisons,
        packs=tuple(map(_for_reports, request.packs)),
        settings={row.key: settings[row.key] for row in SETTING_ROWS},
    )
    try:
        done = EXPORT_CHILD_FUNCTION.run_in_child(
            child or Child(EXPORT_SERVICE), order, progress=progress, timeout_s=_LONGEST_S
        )
    finally:
        remove_unfinished_files(request.folder)  # a killed process leaves incomplete files
    for one in done.notes:
        note(one)
    return done.written_paths


def _for_reports(model: Model) -> Model:
    """Return a loaded pack without the files and arrays that reports do not use, to send less to the child process."""
    manifest = replace(model.manifest, ood_gate=None)
    return replace(model, manifest=manifest, files={}, golden=None, card="", lungs=None)


# ---- in the separate process


def _export(order: ExportCall) -> ExportResult:
    lower_priority()
    settings, notes, step = Settings(order.settings), list[Reason](), -1

    def progress(done: int, total: int) -> None:
        nonlocal step
        if (reached := _STEPS * done // max(1, total)) > step:
            step = reached
            announce_stage(f"{done}/{total}")

    request = ExportRequest(
        database=order.database,
        run_id=order.run_id,
        folder=order.folder,
        formats=order.formats,
        spec=order.spec,
        packs=order.packs,
        options=ReportOptions(
            language=order.language,
            names_people=order.includes_patient_names,
            uses_decimal_comma=order.uses_decimal_comma,
            reader_name=order.reader_name,
            prior_comparisons=order.pairs,
        ),
    )
    written = export_run(
        request,
        make_workers=lambda: open_workers(settings, number_of_workers(settings)),
        progress=progress,
        note=notes.append,
    )
    return ExportResult(written_paths=written, notes=tuple(notes))


handle: Final = make_message_handler((EXPORT_CHILD_FUNCTION, _export))
