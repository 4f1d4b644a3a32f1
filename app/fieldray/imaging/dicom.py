"""DICOM files: from bytes to one upright grey image."""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut

from fieldray.domain.image import Image
from fieldray.errors import FieldrayError, Unreadable, Unusable
from fieldray.imaging import dicom_grey
from fieldray.imaging.dicom_fields import text, whole_number
from fieldray.imaging.dicom_header import inflated, read_header
from fieldray.imaging.dicom_reduced import reduced_image
from fieldray.imaging.dicom_stored import pixel_value, shape_of, stored_values
from fieldray.imaging.grey import grey_of_colour
from fieldray.imaging.limits import MAX_FILE_BYTES
from fieldray.imaging.reduction import TargetSize, largest_reduction
from fieldray.reasons import reason

_PALETTE: Final = tuple(
    f"{prefix}{colour}PaletteColorLookupTable{part}"
    for prefix, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
    for colour in ("Red", "Green", "Blue")
)
_KEYWORDS: Final = (
    "Modality",
    "SamplesPerPixel",
    "PlanarConfiguration",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "BitsAllocated",
    "HighBit",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    *_PALETTE,
    *dicom_grey.KEYWORDS,
)


def decode_dicom(data: bytes, *, frame: int = 0, needed: TargetSize | None = None) -> Image:
    """Decode one frame of a DICOM file, with or without preamble and file meta information; see `decode`.

    Raises Unreadable; Unusable `colour` or `no_pixel_data`.
    """
    with warnings.catch_warnings():
        # pydicom warns of what it repairs; what matters here is in the image's notes or in the reason.
        warnings.simplefilter("ignore")
        try:
            return _decode(data, frame, needed)
        except (FieldrayError, MemoryError):
            raise
        except Exception as error:  # parsers and codecs raise whatever the damaged bytes lead them to
            raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error


def _decode(data: bytes, frame: int, needed: TargetSize | None) -> Image:
    stream = io.BytesIO(data)
    header = read_header(stream, _KEYWORDS, inflated_limit=MAX_FILE_BYTES)
    shape = shape_of(header)
    value = pixel_value(header, data if header.stream is stream else inflated(header))
    if needed is not None:
        reduced = reduced_image(header, shape, value, frame, needed)
        if reduced is not None:
            return reduced
    step = largest_reduction(shape.rows, shape.columns, needed) if needed is not None else 1
    stored = stored_values(header, shape, value, frame)
    if stored.ndim == 3 and stored.shape[2] == 1:
        stored = stored[:, :, 0]
    if text(header.dataset, "PhotometricInterpretation").upper() == "PALETTE COLOR":
        stored = apply_color_lut(stored, header.dataset)[:, :, :3]
    if stored.ndim == 3:
        return _grey_of_colour(stored, header.dataset, step)
    return dicom_grey.grey_image(stored, header.dataset, step=step)


def _grey_of_colour(stored: NDArray[Any], dataset: Dataset, step: int) -> Image:
    """Secondary captures of grey images: shown as stored, whatever else the file says."""
    if stored.dtype.itemsize > 2:
        raise Unusable(reason("colour"))
    grey = grey_of_colour(stored)
    bits = whole_number(dataset, "BitsStored", 8)
    if bits > 8 * grey.dtype.itemsize or grey.max() >= 2**bits:
        bits = 8 * grey.dtype.itemsize
    bare = Dataset()
    bare.BitsStored = bits
    bare.WindowCenter, bare.WindowWidth, bare.VOILUTFunction = (2**bits - 1) / 2, 2**bits - 1, "LINEAR_EXACT"
    bare.ViewPosition = text(dataset, "ViewPosition")
    return dicom_grey.grey_image(grey, bare, ("grey_from_colour",), step=step)
