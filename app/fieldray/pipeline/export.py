"""A stored run as files, in the formats of `reports.exporter`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.run import Run, RunSpec
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import is_plain, storage_problem
from fieldray.reasons import reason
from fieldray.reports.content import started
from fieldray.reports.exporter import EXPORTERS, Exporter, StoredRun, available_exporters
from fieldray.store.results import ResultQuery

_HEAD_BYTES: Final = 2**16


def export_run(
    database: Path, run_id: int, folder: Path, formats: Sequence[str] = (), *, spec: RunSpec | None = None
) -> tuple[Path, ...]:
    """Write a run into a folder, one output per format.

    Parameters
    ----------
    database
        The results' file.
    run_id
        The run; its number is part of the names, `fieldray-run-<id>.csv` for example. Where reports of another run
        have these names, the new ones get `fieldray-run-<id>-2.csv` and so on.
    folder
        Made if absent.
    formats
        Names of exporters. Without any, every available format is written.
    spec
        To know the run by: after a backup was put back, another one may have its number.

    Returns
    -------
    The outputs, in the order of `formats`.

    Raises
    ------
    UsageProblem
        For a format that is not available here, or an output that would replace something else.
    StorageProblem
        Where something cannot be read or written, or the run is another one (store_gone).
    KeyError
        For an unknown run, where no `spec` is given.
    ValueError
        For an unknown format.
    """
    exporters = [_exporter(name) for name in formats] or available_exporters()
    written = []
    with ResultQuery(database) as query, query.at_one_moment():
        run = _run(query, run_id, spec)
        for exporter, path in zip(exporters, _places(folder, run, exporters), strict=True):
            stored = StoredRun(
                run=run,
                results=query.work_list(run_id),
                counts=query.counts(run_id),
                not_present=query.not_present(run_id),
                earlier_verdicts=query.earlier_verdicts(run_id),
            )
            exporter.write(path, stored)
            written.append(path)
    return tuple(written)


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
