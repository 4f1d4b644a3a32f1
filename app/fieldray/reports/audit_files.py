"""The files of an audit: `audit.json` for programs and `audit.pdf` for people."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from fieldray.audit.report import AuditReport
from fieldray.paths import user_data
from fieldray.reasons import Reason, reason
from fieldray.reports.audit_content import audit_text
from fieldray.reports.audit_words import AuditWords
from fieldray.reports.exporter import is_own_pdf
from fieldray.reports.outputs import require_folder, require_free, write_own
from fieldray.reports.patient import image_alias, pseudonym_key
from fieldray.translation import Translator

_FIGURES: Final = "audit.json"
_DOCUMENT: Final = "audit.pdf"


def write_audit_json(path: Path, report: AuditReport) -> None:
    """All figures as JSON, files and folders by their aliases. Raises UsageProblem, StorageProblem."""
    write_own(path, "json", audit_text(_unnamed(report)).encode("ascii"))


def write_audit(folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
    """Both files, in which files and folders have aliases; their paths. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.pdf.audit import audit_document

    figures, document = folder / _FIGURES, folder / _DOCUMENT
    translator = Translator(language)
    require_free(figures, "json")  # both or none
    write_own(document, is_own_pdf, audit_document(AuditWords(_unnamed(report), translator), translator))
    write_audit_json(figures, report)
    return document, figures


def _unnamed(report: AuditReport) -> AuditReport:
    """As it may leave the house: names of files and folders often are those of people. Raises StorageProblem.

    The aliases are those of the exports of a run, whose `image_id` they are.
    """
    alias, found, subject = partial(image_alias, key=pseudonym_key(user_data())), report.audit, report.subject
    source = subject.labels_from
    return replace(
        report,
        subject=replace(
            subject,
            paths=tuple(map(alias, subject.paths)),
            labels_from=source if source in ("folders", "verdicts") else alias(source),
        ),
        audit=replace(
            found,
            disagreements=tuple(replace(case, image=alias(case.image)) for case in found.disagreements),
            notes=tuple(note if "rows" not in dict(note.parameters) else _without_rows(note) for note in found.notes),
        ),
    )


def _without_rows(note: Reason) -> Reason:
    """A note that quotes lines of the table, without them."""
    return reason(note.code, **(dict(note.parameters) | {"rows": "…"}))


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
