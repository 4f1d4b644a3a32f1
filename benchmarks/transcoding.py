"""DICOM data sets written in every transfer syntax for which an encoder is at hand: for measurements and tests.

The program itself never changes an image; nothing here is used in screening.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmwrite
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    JPEG2000,
    UID,
    ExplicitVRBigEndian,
    HTJ2KLossless,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

_COMPRESSION: Final[Mapping[UID, Mapping[str, Any]]] = {
    RLELossless: {"encoding_plugin": "pydicom"},
    JPEGLSLossless: {"encoding_plugin": "pyjpegls"},
    JPEGLSNearLossless: {"encoding_plugin": "pyjpegls", "jls_error": 2},
    JPEG2000Lossless: {"encoding_plugin": "pylibjpeg"},
    JPEG2000: {"encoding_plugin": "pylibjpeg", "j2k_cr": [6]},
}
# Any of the seven predictors may stand in the first, only the first in the second (ITU-T T.81, table H.1).
_PREDICTORS: Final[Mapping[UID, int]] = {JPEGLossless: 4, JPEGLosslessSV1: 1}
_JPEG_QUALITY: Final = 95
# Two threads that encode JPEG 2000 by pylibjpeg-openjpeg 2.6 at the same time end the process sooner or later.
_encoding = threading.Lock()


def save_dicom(dataset: Dataset, path: Path, transfer_syntax: UID) -> None:
    """Write an uncompressed little-endian data set in this transfer syntax; the data set is changed.

    JPEG baseline takes 8-bit pixels only. Raises OSError, ValueError for what an encoder refuses, and ImportError
    where none is at hand.
    """
    if transfer_syntax in _COMPRESSION:
        with _encoding:
            dataset.compress(transfer_syntax, generate_instance_uid=False, **_COMPRESSION[transfer_syntax])
    elif transfer_syntax == JPEGBaseline8Bit:
        encoded = io.BytesIO()
        Picture.fromarray(_stored(dataset)).save(encoded, "JPEG", quality=_JPEG_QUALITY)
        put_frame(dataset, encoded.getvalue())
    elif transfer_syntax in _PREDICTORS:
        put_frame(dataset, _lossless_jpeg(dataset, _PREDICTORS[transfer_syntax]))
    elif transfer_syntax == HTJ2KLossless:
        import imagecodecs

        put_frame(dataset, bytes(imagecodecs.htj2k_encode(_stored(dataset), reversible=True)))
    elif transfer_syntax == ExplicitVRBigEndian and dataset.BitsAllocated == 16:
        dataset.PixelData = np.frombuffer(dataset.PixelData, "<u2").astype(">u2").tobytes()
    dataset.file_meta.TransferSyntaxUID = transfer_syntax
    dcmwrite(path, dataset, enforce_file_format=True)


def put_frame(dataset: Dataset, codestream: bytes) -> None:
    """Make one compressed frame the pixel data (PS3.5 A.4)."""
    dataset.PixelData = encapsulate([codestream])
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True


def _stored(dataset: Dataset) -> NDArray[Any]:
    """The stored values: (rows, columns), or (rows, columns, 3)."""
    shape = (dataset.Rows, dataset.Columns, 3) if dataset.SamplesPerPixel == 3 else (dataset.Rows, dataset.Columns)
    kind = np.uint8 if dataset.BitsAllocated == 8 else np.dtype("<u2")
    return np.frombuffer(dataset.PixelData, kind)[: int(np.prod(shape))].reshape(shape)


def _lossless_jpeg(dataset: Dataset, predictor: int) -> bytes:
    import imagecodecs

    # A negative value has its sign in the bits above those stored.
    bits = dataset.BitsAllocated if dataset.PixelRepresentation else dataset.BitsStored
    options = {"lossless": True, "predictor": predictor, "bitspersample": bits}
    if dataset.SamplesPerPixel == 3:
        options |= {"colorspace": "RGB", "outcolorspace": "RGB"}
    return bytes(imagecodecs.jpeg8_encode(_stored(dataset), **options))
