"""The lung fields as DICOM segmentations: a folder with one for each image in which they were found."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Final

from fieldray.reasons import reason
from fieldray.registry import missing_library
from fieldray.reports.exporter import Exporter, StoredRun, is_own_dicom


def write_segmentations(path: Path, stored: StoredRun) -> None:
    """Write the folder. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.dicom.instance import write_objects

    write_objects(path, stored, _files(stored))


def _files(stored: StoredRun) -> Generator[tuple[int, bytes]]:
    from fieldray.reports.dicom.images import lung_mask, segmentation
    from fieldray.reports.dicom.instance import as_file, subject_of

    for number, result in enumerate(stored.results, 1):
        subject = subject_of(result, stored, number)
        mask = lung_mask(subject) if subject else None
        if subject is None or mask is None:
            continue
        if subject.source is None:
            stored.leave_out(result, reason("no_capture"))
        else:
            yield number, as_file(segmentation(subject, mask, subject.source))


EXPORTER: Final = Exporter(
    name="seg",
    suffix="-seg",
    title="DICOM SEG, lung fields",
    write=write_segmentations,
    is_own=is_own_dicom,
    is_folder=True,
    is_default=False,
    unavailable_reason=lambda: missing_library("pydicom"),
)
