"""From the bytes of a file to an upright grey image, at full resolution or as much as is needed."""

from __future__ import annotations

from fieldray.domain.image import Image
from fieldray.domain.study import ImageRef
from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.identify import HEAD_BYTES, sniff
from fieldray.imaging.raster import decode_jpeg, decode_png
from fieldray.imaging.reduction import TargetSize, Whole
from fieldray.reasons import reason


def decode(data: bytes, ref: ImageRef, *, needed: TargetSize | None = None, whole: Whole | None = None) -> Image:
    """Decode one image.

    Parameters
    ----------
    data
        The whole file; its kind is recognised from its first bytes.
    ref
        `ref.frame` chooses among several frames.
    needed
        Allows a lower resolution, by the rule of `reduction`: what a tensor needs (`reduction.target_size`). Without it
        the image has full resolution.
    whole
        Keeps what had to be decoded in full, for the next call for the same bytes and frame.

    Raises
    ------
    Unreadable
        For what cannot be decoded.
    Unusable
        For colour, and for a file without an image.
    """
    whole = whole or Whole()
    if not data:
        raise Unreadable(reason("empty"))
    content = sniff(data[:HEAD_BYTES])
    if content == "executable":
        raise Unreadable(reason("executable"))
    if content == "png":
        return decode_png(data, needed=needed, whole=whole)
    if content == "jpeg":
        return decode_jpeg(data, needed=needed, whole=whole)
    if content == "dicom":
        # pydicom and its codecs take a third of a second to load: only for those who need them.
        from fieldray.imaging.dicom import decode_dicom

        return decode_dicom(data, frame=ref.frame, needed=needed, whole=whole)
    raise Unusable(reason("not_an_image"))
