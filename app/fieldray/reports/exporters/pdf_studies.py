"""A folder with a PDF document for each study: a page per image, with the image as the program showed it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_pdf


def write_studies(path: Path, stored: StoredRun) -> None:
    """Write the folder. Raises UsageProblem, StorageProblem, ReaderProblem."""
    from fieldray.persistence import write_new
    from fieldray.reports.outputs import own_folder
    from fieldray.reports.pdf_pages import study_documents

    with own_folder(path, is_own_pdf, inputs=stored.inputs) as folder:
        for name, data in study_documents(stored):
            write_new(folder / name, data)


EXPORTER: Final = Exporter(
    name="pdf-studies",
    suffix="-studies",
    title="PDF, a document per study",
    write=write_studies,
    is_own=is_own_pdf,
    is_default=False,
)
