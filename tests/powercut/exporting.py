"""The acts of exporting: a run is exported twice, each time after a new verdict."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pydicom import dcmread

from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.pipeline.export import ExportRequest, export_run
from fieldray.store.results import ResultStore
from powercut.place import NAMES, Emit, Log, Lost, Place, do_each, image_of, outcome_of, require, require_whole

QUICK: Final = ("csv", "json", "sr")
DOCUMENTS: Final = ("pdf", "pdf-studies")


def export(place: Place, emit: Emit, *, formats: Sequence[str]) -> None:
    """Export the run twice. Every failure is reported, and the last one raised at the end."""
    (run,) = place.runs()

    def once(turn: int, choice: VerdictChoice) -> Sequence[str]:
        row = place.results(run.run_id)[NAMES[turn]]
        with ResultStore(place.store) as store:
            store.set_verdict(row.row_id, Verdict(choice=choice), judged=row.outcome)
        written = export_run(
            ExportRequest(
                database=place.store, run_id=run.run_id, folder=place.out, formats=tuple(formats), spec=place.spec
            )
        )
        return "written", *(path.name for path in written)

    do_each(emit, [partial(once, 1, "agree"), partial(once, 2, "disagree")])


def check_export(place: Place, log: Log, end: str) -> None:
    """Reported files exist, every output is whole, and the next export leaves whole outputs and no other files."""
    require_whole(place)
    for event in log:
        for name in event[1:] if event[0] == "written" else ():
            require((place.out / name).exists(), f"told as written, but gone: {name}")
    require_whole_outputs(place.out)
    run = min(place.runs(), key=lambda run: run.run_id)
    written = export_run(
        ExportRequest(database=place.store, run_id=run.run_id, folder=place.out, formats=QUICK, spec=place.spec)
    )
    require_whole_outputs(place.out)
    if left := [path.name for path in place.out.iterdir() if path.name.startswith(".")]:
        raise Lost(f"the next export leaves {left}")
    require(len(written) == len(QUICK), f"the next export wrote {len(written)} outputs")


def require_whole_outputs(folder: Path) -> None:
    """Require that every output in a folder is complete. Raises Lost."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        for ending, is_complete in _COMPLETE.items():
            require(not path.name.endswith(ending) or _holds(is_complete, path), f"half an output: {path.name}")


def _holds(is_complete: Callable[[Path], bool], path: Path) -> bool:
    try:
        return is_complete(path)
    except Exception:  # reading an incomplete file may raise any error
        return False


def is_whole_table(path: Path, rows: int | None) -> bool:
    """Return whether a table has `rows` rows (None: any number), all complete."""
    found = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    return rows in (None, len(found)) and all(row["notice"] for row in found)


def _document(path: Path) -> bool:
    data = path.read_bytes()
    return data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF")


def _studies(path: Path) -> bool:
    documents = sorted(path.iterdir())
    return len(documents) == len(NAMES) and all(map(_document, documents))


def _reports(path: Path) -> bool:
    screened = [name for name in NAMES if outcome_of(image_of(Path(name))).status == "screened"]
    reports = sorted(path.iterdir())
    return len(reports) == len(screened) and all(dcmread(report).Modality == "SR" for report in reports)


_COMPLETE: Final[Mapping[str, Callable[[Path], bool]]] = {
    ".csv": lambda path: is_whole_table(path, len(NAMES)),
    ".json": lambda path: len(json.loads(path.read_bytes())["results"]) == len(NAMES),
    ".pdf": _document,
    "-studies": _studies,
    "-sr": _reports,
}
