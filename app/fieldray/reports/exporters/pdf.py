"""The PDF export: one document with the run, the results, the pack with its performance, and the list of all images."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_pdf


def write_pdf(path: Path, stored: StoredRun) -> None:
    """Write the PDF document of a run. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.outputs import write_output
    from fieldray.reports.pdf_pages import pdf_of_run

    write_output(path, is_own_pdf, pdf_of_run(stored), inputs=stored.screened_paths)


EXPORTER: Final = Exporter(
    name="pdf",
    suffix=".pdf",
    title="PDF, one document for the whole run",
    write=write_pdf,
    is_own_output=is_own_pdf,
    is_default=False,
)
