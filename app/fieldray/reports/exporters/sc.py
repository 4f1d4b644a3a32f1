"""Images as the program showed them, with the result burned in, as DICOM secondary captures: a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.registry import missing_library
from fieldray.reports.dicom.recognise import is_own
from fieldray.reports.exporter import Exporter, StoredRun


def write_captures(path: Path, stored: StoredRun) -> None:
    """Write the folder; an image that cannot be read any more has none. Raises as `pipeline.export.export_run`."""
    from fieldray.reports.dicom.instance import write_objects

    write_objects(path, stored, lambda: _files(stored))


def _files(stored: StoredRun) -> Iterator[tuple[int, bytes]]:
    from pydicom.uid import JPEGBaseline8Bit

    from fieldray.domain.image import ShownImage
    from fieldray.reports.dicom.capture import SIDE, secondary_capture
    from fieldray.reports.dicom.instance import as_file, subject_of
    from fieldray.reports.wording import Wording

    wording = Wording(stored)
    for number, (result, image) in enumerate(stored.images(side=SIDE), 1):
        subject = subject_of(result, stored, number)
        if subject is not None and isinstance(image, ShownImage):
            yield number, as_file(secondary_capture(subject, image, wording), transfer_syntax=JPEGBaseline8Bit)


EXPORTER: Final = Exporter(
    name="sc",
    suffix="-sc",
    title="DICOM SC, images as shown",
    write=write_captures,
    is_own=is_own,
    is_folder=True,
    is_default=False,
    unavailable_reason=lambda: missing_library("pydicom"),
)
