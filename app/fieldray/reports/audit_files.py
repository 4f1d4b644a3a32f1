"""The files of an audit: `audit.json` and `audit.pdf`."""

from __future__ import annotations

from pathlib import Path

from fieldray.audit.report import AuditReport
from fieldray.reports.audit_content import audit_text
from fieldray.reports.outputs import write_own


def write_audit_json(path: Path, report: AuditReport) -> None:
    """All figures as JSON. Raises UsageProblem, StorageProblem."""
    write_own(path, "json", audit_text(report).encode("ascii"))


def write_audit(folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
    """The report for programs and for people; the paths. Raises UsageProblem, StorageProblem."""
    figures = folder / "audit.json"
    write_audit_json(figures, report)
    return (figures,)
