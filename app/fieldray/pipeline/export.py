"""A stored run as files, in the formats of `reports.exporter`."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fieldray.domain.finding import Failed
from fieldray.domain.image import ShownImage
from fieldray.domain.run import Run, RunSpec, StoredResult
from fieldray.errors import FieldrayError, InputProblem, StorageProblem, UsageProblem
from fieldray.paths import user_data
from fieldray.persistence import is_plain, storage_problem
from fieldray.reasons import Reason, reason
from fieldray.reports.content import started
from fieldray.reports.exporter import EXPORTERS, PLAIN, Exporter, ReportOptions, StoredRun, default_exporters, no_images
from fieldray.reports.patient import pseudonym_key
from fieldray.store.results import ResultQuery

if TYPE_CHECKING:
    from fieldray.domain.model import Manifest, Model
    from fieldray.pipeline.ports import Decoders

_AHEAD: Final = 4  # images that wait, read, for each that is being read
_HEAD_BYTES: Final = 2**16

Tell = Callable[[int, int], None]
OpenDecoders = Callable[[int], "Decoders"]


def export_run(
    database: Path,
    run_id: int,
    folder: Path,
    formats: Sequence[str] = (),
    *,
    spec: RunSpec | None = None,
    options: ReportOptions = PLAIN,
    model: Model | None = None,
    decoders: OpenDecoders | None = None,
    workers: int = 1,
    tell: Tell = lambda _done, _total: None,
) -> tuple[Path, ...]:
    """Write a run into a folder, one output per format.

    database  the results' file
    run_id    the run; its number is part of the names, `fieldray-run-<id>.csv` for example
    folder    made if absent
    formats   names of exporters; without any, every available one that is a default
    spec      to know the run by: after a backup was put back, another one may have its number
    options   language, and whether people are named
    model     the pack in use; the run's own pack is looked for among the installed ones where it is another
    decoders, workers  opens what reads images, so many at the same time; without it none is read
    tell      called with the number of results written and of all, before each; to stop, it raises ExportCancelled
    Returns the outputs, in the order of `formats`; none of a format for which no result has anything.
    Raises UsageProblem for a format that is not available here, or an output that would replace something else;
    StorageProblem where something cannot be read or written, or the run is another (store_gone); ReaderProblem where
    nothing can be started that reads images; KeyError for an unknown run without a `spec`; ValueError for an unknown
    format.
    """
    exporters = [_exporter(name) for name in formats] or default_exporters()
    written = []
    with ResultQuery(database) as query, query.at_one_moment(), _Images(decoders, workers) as images:
        run = _run(query, run_id, spec)
        steps = _Steps(sum(query.counts(run_id).values()) * len(exporters), tell)
        is_for_people = any(not exporter.is_default for exporter in exporters)
        manifest, key = (_manifest(run.spec, model), pseudonym_key(user_data())) if is_for_people else (None, b"")
        for exporter, path in zip(exporters, _places(folder, run, exporters), strict=True):
            stored = _stored(query, run, steps)
            chosen = replace(stored, manifest=manifest, options=options, pseudonym_key=key, read_images=images.read)
            exporter.write(path, chosen)
            if path.exists():  # a folder without files is none
                written.append(path)
    return tuple(written)


def _stored(query: ResultQuery, run: Run, steps: _Steps) -> StoredRun:
    return StoredRun(
        run=run,
        results=steps.counted(query.work_list(run.run_id)),
        counts=query.counts(run.run_id),
        not_present=query.not_present(run.run_id),
        earlier_verdicts=query.earlier_verdicts(run.run_id),
    )


def _run(query: ResultQuery, run_id: int, spec: RunSpec | None) -> Run:
    """The run of that number, if it did what `spec` says."""
    try:
        run = query.run(run_id)
    except KeyError as error:
        if spec is None:
            raise
        raise StorageProblem(reason("store_gone", path=query.path)) from error
    if spec and spec.work != run.spec.work:
        raise StorageProblem(reason("store_gone", path=query.path))
    return run


def _places(folder: Path, run: Run, exporters: Sequence[Exporter]) -> list[Path]:
    """Where to write: the first names under which there is nothing, or what was written for this very run."""
    for number in itertools.count(1):
        ending = f"-{number}" if number > 1 else ""
        places = [folder / f"fieldray-run-{run.run_id}{ending}{exporter.suffix}" for exporter in exporters]
        if not any(map(functools.partial(_is_of_another, run), exporters, places)):
            return places
    raise AssertionError("numbers do not end")


def _is_of_another(run: Run, exporter: Exporter, place: Path) -> bool:
    """Whether a report of another run is there. Anything else is for the exporter to replace or refuse."""
    if not (is_plain(place) and place.is_file()):
        return False
    try:
        with place.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise storage_problem(error, place) from error
    return exporter.is_own(head) and exporter.started_of(head) not in (None, started(run))


def _exporter(name: str) -> Exporter:
    try:
        exporter = EXPORTERS.named(name)
    except KeyError as error:
        raise ValueError(f"no export format {name}") from error
    if why := exporter.unavailable_reason():
        raise UsageProblem(why)
    return exporter


class _Steps:
    """Counts the results of all formats together."""

    def __init__(self, total: int, tell: Tell) -> None:
        self._done, self._total, self._tell = 0, total, tell

    def counted(self, results: Iterable[StoredResult]) -> Iterator[StoredResult]:
        for result in results:
            self._tell(self._done, self._total)
            self._done += 1
            yield result


# ---- the pack of a run


def _manifest(spec: RunSpec, model: Model | None) -> Manifest | None:
    """Of the very pack that made the results, by its model's hash; None where it is not at hand."""
    if model is not None and _is_of(model, spec):
        return model.manifest
    from fieldray.packs.library import PackLibrary

    library = PackLibrary(user_data())
    for candidate in library.available():
        if candidate.pack_name == spec.pack_name and candidate.can_screen:
            with contextlib.suppress(FieldrayError):
                found = library.load(candidate.folder, allow_older=True)
                if _is_of(found, spec):
                    return found.manifest
    return None


def _is_of(model: Model, spec: RunSpec) -> bool:
    return (model.pack_name, model.model_sha256) == (spec.pack_name, spec.model_sha256)


# ---- images, read by other processes while earlier ones are written


class _Images:
    """Reads the images of results, several at a time and a few ahead. Its processes end with the context."""

    def __init__(self, opens: OpenDecoders | None, workers: int) -> None:
        self._opens, self._workers = opens, workers
        self._ends = contextlib.ExitStack()
        self._decoders: Decoders | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def read(self, results: Iterable[StoredResult], side: int) -> Iterator[tuple[StoredResult, ShownImage | Reason]]:
        """See `StoredRun.read_images`. Raises ReaderProblem."""
        if self._opens is None:
            yield from no_images(results, side)
            return
        size = self._workers
        if self._decoders is None:
            self._decoders = self._opens(size)
            self._threads = self._ends.enter_context(ThreadPoolExecutor(size, thread_name_prefix="export"))
            self._ends.callback(self._decoders.close)
        waiting: deque[tuple[StoredResult, Future[ShownImage | Reason]]] = deque()
        for result in results:
            waiting.append((result, self._threads.submit(_read, self._decoders, result, side)))
            if len(waiting) > _AHEAD * size:
                first, image = waiting.popleft()
                yield first, image.result()
        for first, image in waiting:
            yield first, image.result()


def _read(decoders: Decoders, result: StoredResult, side: int) -> ShownImage | Reason:
    outcome = result.outcome
    if isinstance(outcome, Failed):
        return outcome.reason
    if outcome.ref.problem is not None or not outcome.facts.content_sha256:
        return outcome.ref.problem or reason("missing")
    try:
        return decoders.read_shown(outcome.ref, side=side, content_sha256=outcome.facts.content_sha256)
    except InputProblem as error:
        return error.reason
