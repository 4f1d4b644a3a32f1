"""The export of DICOM segmentations: a folder with one file for each image in which lungs were found."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from fieldray.reasons import reason
from fieldray.reports.exporter import Exporter, StoredRun, is_own_dicom
from fieldray.reports.outputs import folder_writer


def _files(stored: StoredRun) -> Generator[tuple[str, bytes]]:
    from fieldray.reports.dicom_images import lung_mask, lung_segmentation
    from fieldray.reports.dicom_instance import encode_dicom_file, reported_images

    written: int | None = None  # row id of the image written last
    for subject in reported_images(stored):
        mask, source = lung_mask(subject), subject.source
        if subject.result.row_id == written:
            continue  # an image has equal lungs in the results of all packs
        written = subject.result.row_id
        if mask is not None and source is None:
            stored.report_omission(subject.result, reason("no_capture"))
        elif mask is not None and source is not None:
            yield f"{subject.work_list_number:05}.dcm", encode_dicom_file(lung_segmentation(subject, mask, source))


EXPORTER: Final = Exporter(
    name="seg",
    suffix="-seg",
    title="DICOM SEG (segmentation), lung fields",
    write=folder_writer(_files, is_own_dicom),
    is_own_output=is_own_dicom,
    is_default=False,
)
