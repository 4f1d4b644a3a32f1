"""The PDF export by study: a folder with one document for each study, and in the document one page for each image."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_pdf
from fieldray.reports.outputs import folder_writer


def _files(stored: StoredRun) -> Generator[tuple[str, bytes]]:
    from fieldray.reports.pdf_pages import pdfs_of_studies

    yield from pdfs_of_studies(stored)


EXPORTER: Final = Exporter(
    name="pdf-studies",
    suffix="-studies",
    title="PDF, one document for each study",
    write=folder_writer(_files, is_own_pdf),
    is_own_output=is_own_pdf,
    is_default=False,
)
