"""Programs by which reports are checked, where they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report_programs import missing, said


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is not installed."""
    absent = missing(*programs)
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


def pdf_text(path: Path) -> str:
    """The text of a document, as poppler reads it, on one line."""
    said("qpdf", "--check", path)
    return " ".join(said("pdftotext", "-enc", "UTF-8", path, "-").split())
