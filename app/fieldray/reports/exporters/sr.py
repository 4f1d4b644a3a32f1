"""Results as DICOM structured reports: a folder with one for each screened image."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_dicom


def write_reports(path: Path, stored: StoredRun) -> None:
    """Write the folder. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.dicom_instance import as_file, subjects_of, write_objects
    from fieldray.reports.dicom_structured import structured_report

    files = ((subject.number, as_file(structured_report(subject))) for subject in subjects_of(stored))
    write_objects(path, stored, files)


EXPORTER: Final = Exporter(
    name="sr",
    suffix="-sr",
    title="DICOM SR, structured reports",
    write=write_reports,
    is_own=is_own_dicom,
    is_default=False,
)
