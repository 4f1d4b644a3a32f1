"""The export of DICOM structured reports: a folder with one report for each screened image."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_dicom
from fieldray.reports.outputs import folder_writer


def _files(stored: StoredRun) -> Generator[tuple[str, bytes]]:
    from fieldray.reports.dicom_instance import encode_dicom_file, reported_images
    from fieldray.reports.dicom_structured import structured_report

    for subject in reported_images(stored):
        yield f"{subject.work_list_number:05}.dcm", encode_dicom_file(structured_report(subject))


EXPORTER: Final = Exporter(
    name="sr",
    suffix="-sr",
    title="DICOM SR, structured reports",
    write=folder_writer(_files, is_own_dicom),
    is_own_output=is_own_dicom,
    is_default=False,
)
