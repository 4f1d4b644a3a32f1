"""A stored run as files, in the formats of `reports.exporter`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fieldray.errors import UsageProblem
from fieldray.reports.exporter import EXPORTERS, Exporter, StoredRun, available_exporters
from fieldray.store.results import ResultQuery


def export_run(database: Path, run_id: int, folder: Path, formats: Sequence[str] = ()) -> tuple[Path, ...]:
    """Write a run into a folder, one output per format.

    Parameters
    ----------
    database
        The results' file.
    run_id
        The run; its number is part of the names, `fieldray-run-<id>.csv` for example.
    folder
        Made if absent.
    formats
        Names of exporters. Without any, every available format is written.

    Returns
    -------
    The outputs, in the order of `formats`.

    Raises
    ------
    UsageProblem
        For a format that is not available on this computer, or an output that would replace something else.
    StorageProblem
        Where something cannot be read or written.
    KeyError
        For an unknown run.
    ValueError
        For an unknown format.
    """
    exporters = [_exporter(name) for name in formats] or available_exporters()
    written = []
    with ResultQuery(database) as query:
        run = query.run(run_id)
        for exporter in exporters:
            path = folder / f"fieldray-run-{run_id}{exporter.suffix}"
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


def _exporter(name: str) -> Exporter:
    try:
        exporter = EXPORTERS.named(name)
    except KeyError as error:
        raise ValueError(f"no export format {name}") from error
    if why := exporter.unavailable_reason():
        raise UsageProblem(why)
    return exporter
