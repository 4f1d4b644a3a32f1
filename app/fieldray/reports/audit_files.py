"""The files of an audit: `audit.json` for programs and `audit.pdf` for people."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray.audit.report import AuditReport
from fieldray.reports.audit_content import audit_text
from fieldray.reports.audit_words import AuditWords
from fieldray.reports.outputs import require_folder, require_free, write_own
from fieldray.translation import Translator

_FIGURES: Final = "audit.json"
_DOCUMENT: Final = "audit.pdf"
_PDF: Final = b"%PDF-1.7\n%fieldray report\n"


def write_audit_json(path: Path, report: AuditReport) -> None:
    """All figures as JSON. Raises UsageProblem, StorageProblem."""
    write_own(path, "json", audit_text(report).encode("ascii"))


def write_audit(folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
    """Both files; their paths. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.pdf.audit import audit_document

    figures, document = folder / _FIGURES, folder / _DOCUMENT
    translator = Translator(language)
    require_free(figures, "json")  # both or none
    write_own(document, is_own_pdf, audit_document(AuditWords(report, translator), translator))
    write_audit_json(figures, report)
    return document, figures


def require_audit_files(json_path: Path | None, folder: Path | None) -> None:
    """Refuse, before any image is screened, what `write_audit_json` and `write_audit` could not write.

    Raises UsageProblem, StorageProblem.
    """
    if json_path is not None:
        require_free(json_path, "json")
    if folder is not None:
        require_folder(folder)
        require_free(folder / _FIGURES, "json")
        require_free(folder / _DOCUMENT, is_own_pdf)


def is_own_pdf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a PDF of this program."""
    return head.startswith(_PDF)
