"""The export of DICOM secondary captures: a folder with each image as displayed, and the result drawn below."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from fieldray.reports.exporter import Exporter, StoredRun, is_own_dicom, map_with_lookahead
from fieldray.reports.outputs import folder_writer

if TYPE_CHECKING:
    from fieldray.reports.exporter import ImageResult


_THREADS: Final = 2


def _files(stored: StoredRun) -> Generator[tuple[str, bytes]]:
    """Yield name and content of the file of each secondary capture.

    An image that cannot be read any more is left out.
    """
    from concurrent.futures import ThreadPoolExecutor

    from pydicom.uid import JPEGBaseline8Bit

    from fieldray.domain.image import ShownImage
    from fieldray.reports.dicom_images import CAPTURE_SIDE_PX, secondary_capture
    from fieldray.reports.dicom_instance import encode_dicom_file, reported_image
    from fieldray.reports.wording import Wording

    wording = Wording(stored)

    def file(numbered: tuple[int, ImageResult]) -> tuple[int, bytes | None]:
        number, (result, image) = numbered
        subject = reported_image(result, stored.for_result(result), number)
        if subject is None:
            return number, None
        if not isinstance(image, ShownImage):
            stored.report_omission(result, image)
            return number, None
        capture = secondary_capture(subject, image, wording.for_result(result))
        return number, encode_dicom_file(capture, transfer_syntax=JPEGBaseline8Bit)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="report") as threads:
        images = enumerate(stored.read_images(stored.results, CAPTURE_SIDE_PX), 1)
        for number, data in map_with_lookahead(file, images, threads, ahead=_THREADS):
            if data is not None:
                yield f"{number:05}.dcm", data


EXPORTER: Final = Exporter(
    name="sc",
    suffix="-sc",
    title="DICOM SC (secondary captures), images as shown",
    write=folder_writer(_files, is_own_dicom),
    is_own_output=is_own_dicom,
    is_default=False,
)
