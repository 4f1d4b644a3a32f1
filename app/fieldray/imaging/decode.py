"""From the bytes of a file to an upright grey image at full resolution."""

from __future__ import annotations

from fieldray.domain.image import Image
from fieldray.domain.study import ImageRef
from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.raster import decode_jpeg, decode_png
from fieldray.imaging.sniff import HEAD_BYTES, sniff
from fieldray.reasons import reason


def decode(data: bytes, ref: ImageRef, *, shortest_side: int | None = None) -> Image:
    """Decode one image, what it is being told from `data`; `ref.frame` chooses among several frames.

    shortest_side   allows a lower resolution, where that is faster to decode, with at least this many pixels on the
                    shorter side; full resolution without it
    Raises Unreadable (cannot be decoded) and Unusable (colour, no image in it).
    """
    if not data:
        raise Unreadable(reason("empty"))
    content = sniff(data[:HEAD_BYTES])
    if content == "executable":
        raise Unreadable(reason("executable"))
    if content == "png":
        return decode_png(data)
    if content == "jpeg":
        return decode_jpeg(data)
    if content == "dicom":
        # pydicom and its codecs take a third of a second to load: only for those who need them.
        from fieldray.imaging.dicom import decode_dicom

        return decode_dicom(data, frame=ref.frame, shortest_side=shortest_side)
    raise Unusable(reason("not_an_image"))
