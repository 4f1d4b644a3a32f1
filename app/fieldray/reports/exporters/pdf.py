"""A run as one PDF document: what it was, what came out, the pack and how good it is, and the list of all images."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray.registry import missing_library
from fieldray.reports.exporter import Exporter, StoredRun

BEGINNING: Final = b"%PDF-1.7\n%fieldray report\n"


def write_pdf(path: Path, stored: StoredRun) -> None:
    """Write the document. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.outputs import write_own
    from fieldray.reports.pdf.reports import run_document

    write_own(path, is_own, run_document(stored), inputs=stored.inputs)


def is_own(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF report of this program."""
    return head.startswith(BEGINNING)


EXPORTER: Final = Exporter(
    name="pdf",
    suffix=".pdf",
    title="PDF, the run",
    write=write_pdf,
    is_own=is_own,
    is_default=False,
    unavailable_reason=lambda: missing_library("fpdf", "fontTools"),
)
