"""One file, read once: its bytes, their hash and stamp, the header of these bytes, and the pixels that are asked for.

Lives in the child process that looks at the image.
"""

from __future__ import annotations

import hashlib
import io
from typing import Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from fieldray.domain.finding import FINELY_READ, PREVIEW_SIDE, THUMBNAIL_SIDE, ReadFacts
from fieldray.domain.image import UPRIGHT, Box, Detail, Image, ImageRef
from fieldray.domain.model import InputSpec
from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.identify import HEAD_BYTES, identify_again, sniff
from fieldray.imaging.preprocess import shrunk
from fieldray.imaging.raster import decode_jpeg, decode_png
from fieldray.imaging.reduction import COVER, REFINEMENT, WAVELET_COVER, TargetSize, Whole, target_size
from fieldray.imaging.source import Stamps, read_with_state
from fieldray.reasons import reason

_PREVIEW_QUALITY: Final = 75


def decode(data: bytes, ref: ImageRef, *, needed: TargetSize | None = None, whole: Whole | None = None) -> Image:
    """Decode one image: upright and grey, at full resolution or as much as is needed.

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


class ImageFile:
    """The file of `ref`. Raises Unreadable at birth where its bytes cannot be had.

    stamps  makes the stamp that it is known by, where one is wanted
    """

    def __init__(self, ref: ImageRef, *, stamps: Stamps | None = None) -> None:
        self._data, state = read_with_state(ref)
        self._ref = ref
        self._whole = Whole()
        self.content_sha256 = hashlib.sha256(self._data).hexdigest()
        self.stamp = b""
        if stamps and ref.header.number_of_frames == 1:
            self.stamp = stamps.of_data(ref.path, self._data, state)

    def identified(self) -> ImageRef:
        """The reference with kind and header of these bytes. Raises Unreadable, Unusable."""
        return identify_again(self._data, self._ref)

    def image(self, needed: TargetSize | None = None) -> Image:
        """The image as the file lies, at least as fine as needed. Raises Unreadable, Unusable; see `decode`."""
        return decode(self._data, self._ref, needed=needed, whole=self._whole)

    def shown(self, side: int | None) -> Image:
        """The image set right, fine enough to be shown with a longer side of `side` pixels; all of it without."""
        needed = TargetSize(side, side, of_longer=True) if side and self._ref.turn == UPRIGHT else None
        return self.image(needed).turned(self._ref.turn)


def size_for_all(*specs: InputSpec, times: float = 1.0) -> TargetSize | None:
    """What whole images are read with, so that it is enough for each of these inputs, or for `times` as much.

    None, all of the image, where there is no input.
    """
    if not specs:
        return None
    sizes = [target_size(spec, times=times) for spec in specs]
    return TargetSize(
        max(size.rows for size in sizes),
        max(size.columns for size in sizes),
        of_longer=all(size.of_longer for size in sizes),
    )


def size_for_crop(spec: InputSpec, box: Box, image: Image, detail: Detail) -> TargetSize | None:
    """What the image must be read with, so that this part of it is enough for an input; None where it is now.

    image  as it was read; what a codec made coarser must be fine enough that few results are borderline
    """
    pixels = min(box.rows / spec.height, box.columns / spec.width) / image.step
    least, wanted = (FINELY_READ, FINELY_READ / WAVELET_COVER) if image.is_approximate else (COVER, 1.0)
    if detail == "finer":
        least, wanted = REFINEMENT * WAVELET_COVER, REFINEMENT
    if image.step == 1 or pixels >= least:
        return None
    rows, columns = image.full_rows / box.rows, image.full_columns / box.columns
    return TargetSize(wanted * rows * spec.height, wanted * columns * spec.width)


def facts_of(file: ImageFile, image: Image, upright: Image) -> ReadFacts:
    """What an image told: its size, notes, and a preview and a thumbnail of it as it lies and as it was set right."""
    return ReadFacts(
        content_sha256=file.content_sha256,
        stamp=file.stamp,
        rows=upright.full_rows or upright.pixels.shape[0],
        columns=upright.full_columns or upright.pixels.shape[1],
        preview=packed(shrunk(image, PREVIEW_SIDE)),  # kept by content: as the file lies
        thumbnail=shrunk(upright, THUMBNAIL_SIDE),
        notes=upright.notes,
    )


def packed(pixels: NDArray[np.uint8]) -> bytes:
    """Grey levels (h, w) as a small JPEG: a preview as it is stored."""
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, format="JPEG", quality=_PREVIEW_QUALITY)
    return stream.getvalue()


def unpacked(data: bytes) -> NDArray[np.uint8]:
    """The grey levels (h, w) of what `packed` made. Raises Unreadable (damaged) for any other bytes."""
    try:
        with PIL.Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if max(image.size) > PREVIEW_SIDE or image.mode != "L":  # known before anything is decoded
                raise ValueError(f"{image.mode} {image.size}")
            return np.asarray(image)
    except Exception as error:  # whatever Pillow raises on damaged bytes
        raise Unreadable(reason("damaged", detail="preview")) from error
