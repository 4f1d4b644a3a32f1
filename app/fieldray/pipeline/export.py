"""A stored run as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldray.reports.content import about_run
from fieldray.reports.csv import write_csv
from fieldray.reports.json import write_json
from fieldray.store.results import ResultQuery

FORMATS: Final = ("csv", "json")


def export_run(database: Path, run_id: int, folder: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write `fieldray-run-<id>.<format>` into `folder`, the work list's order; the files written.

    Raises StorageProblem, KeyError for an unknown run, ValueError for an unknown format.
    """
    written = []
    with ResultQuery(database) as decoder:
        run = decoder.run(run_id)
        for name in formats:
            path = folder / f"fieldray-run-{run_id}.{name}"
            if name == "csv":
                write_csv(path, decoder.work_list(run_id), spec=run.spec)
            elif name == "json":
                about = about_run(
                    run,
                    counts=decoder.counts(run_id),
                    not_present=decoder.not_present(run_id),
                    earlier_verdicts=decoder.earlier_verdicts(run_id),
                )
                write_json(path, decoder.work_list(run_id), spec=run.spec, about=about)
            else:
                raise ValueError(f"no export format {name}")
            written.append(path)
    return tuple(written)
