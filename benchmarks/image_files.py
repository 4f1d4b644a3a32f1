"""Write images as files of any kind and size, such as DICOM in every transfer syntax, for measurements and tests.

The program itself never writes or changes image files.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
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
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from fieldray.domain.image import ImageRef
from fieldray.imaging.preprocess import to_display
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.synthetic import dicom_dataset
from fieldray.imaging.whole_file import read_bytes

_TWELVE_BITS: Final = 4095
# Quantum noise grows with the square root of the signal: 12 of 4095 grey levels at half of the range.
_GRAIN_AT_HALF: Final = 12.0
_JPEG_QUALITY: Final = 92

_JPEGLS_ERROR: Final[Mapping[UID, int]] = {JPEGLSLossless: 0, JPEGLSNearLossless: 2}
_COMPRESSION: Final[Mapping[UID, Mapping[str, Any]]] = {
    RLELossless: {"encoding_plugin": "pydicom"},
    JPEGLSLossless: {"encoding_plugin": "pyjpegls"},
    JPEGLSNearLossless: {"encoding_plugin": "pyjpegls", "jls_error": _JPEGLS_ERROR[JPEGLSNearLossless]},
    JPEG2000Lossless: {"encoding_plugin": "pylibjpeg"},
    JPEG2000: {"encoding_plugin": "pylibjpeg", "j2k_cr": [6]},
}
# JPEGLossless allows each of seven predictors, JPEGLosslessSV1 only predictor 1 (ITU-T T.81, table H.1).
_PREDICTORS: Final[Mapping[UID, int]] = {JPEGLossless: 4, JPEGLosslessSV1: 1}
_DICOM_JPEG_QUALITY: Final = 95
# pylibjpeg-openjpeg 2.6 crashes if two threads encode JPEG 2000 at the same time.
_encoding = threading.Lock()

GreyImage = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKind:
    """A kind of image file. `file_format` is DICOM (in a transfer syntax), PNG or JPEG. Each pixel has `bits` bits."""

    name: str
    bits: int = 12
    syntax: UID | None = None
    file_format: str = ""


# The first six kinds are the most common kinds in archives.
IMAGE_KINDS: Final[Mapping[str, ImageKind]] = {
    kind.name: kind
    for kind in (
        ImageKind(name="uncompressed", syntax=ExplicitVRLittleEndian),
        ImageKind(name="RLE", syntax=RLELossless),
        ImageKind(name="JPEG-LS", syntax=JPEGLSLossless),
        ImageKind(name="JPEG 2000", syntax=JPEG2000Lossless),
        ImageKind(name="PNG", bits=8, file_format="PNG"),
        ImageKind(name="JPEG", bits=8, file_format="JPEG"),
        ImageKind(name="HTJ2K", syntax=HTJ2KLossless),
        ImageKind(name="lossless JPEG", syntax=JPEGLosslessSV1),
        ImageKind(name="JPEG 2000 lossy", syntax=JPEG2000),
        ImageKind(name="JPEG in DICOM", bits=8, syntax=JPEGBaseline8Bit),
        ImageKind(name="deflated", syntax=DeflatedExplicitVRLittleEndian),
        ImageKind(name="big-endian", syntax=ExplicitVRBigEndian),
        ImageKind(name="implicit VR", syntax=ImplicitVRLittleEndian),
        ImageKind(name="PNG of 16 bits", bits=16, file_format="PNG"),
    )
}


def write_image(stem: Path, image: GreyImage, kind: ImageKind, *, number: int, age_years: int | None = None) -> Path:
    """Write a 12-bit image (rows, columns) as a file of a kind. Returns the path: `stem` with the suffix of the kind.

    `number` identifies the study in a DICOM file. `age_years` is the age of the patient in a DICOM file; None for the
    age of a child. Raises OSError, and ValueError or ImportError if the encoder fails or is missing.
    """
    values = _in_bits(image, kind.bits)
    if kind.syntax is None:
        path = stem.with_suffix(".png" if kind.file_format == "PNG" else ".jpg")
        path.write_bytes(_encoded(values, kind.file_format))
        return path
    dataset = dicom_dataset(image, study_number=number)
    if age_years is not None:
        dataset.PatientAge = f"{age_years:03d}Y"
    if kind.bits == 8:
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
        dataset.WindowCenter, dataset.WindowWidth = 128, 256
        set_pixels(dataset, values)
    path = stem.with_suffix(".dcm")
    save_dicom(dataset, path, kind.syntax)
    return path


def _in_bits(image: GreyImage, bits: int) -> NDArray[Any]:
    if bits == 8:
        return (image >> 4).astype(np.uint8)
    return image << 4 if bits == 16 else image


def _encoded(values: NDArray[Any], form: str) -> bytes:
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": _JPEG_QUALITY} if form == "JPEG" else {}
    Picture.fromarray(values).save(stream, form, **options)
    return stream.getvalue()


def read_image(ref: ImageRef) -> NDArray[np.uint8]:
    """Read an image file as displayed: grey levels (rows, columns) uint8 at full resolution.

    Raises Unreadable, UnsuitableImage.
    """
    return to_display(decode_image_bytes(read_bytes(ref), ref))


def enlarge_image(shown: NDArray[np.uint8], *, megapixels: float, seed: int) -> GreyImage:
    """Return a 12-bit image (rows, columns) enlarged to `megapixels`, with noise as from a detector.

    Without noise, a lossless codec would compress an enlarged image much better than an image from a detector.
    """
    rows, columns = shown.shape
    factor = (megapixels * 1e6 / (rows * columns)) ** 0.5
    size = round(columns * factor), round(rows * factor)
    picture = Picture.fromarray(shown.astype(np.float32)).resize(size, Picture.Resampling.BICUBIC)
    signal = np.asarray(picture).clip(0, 255) * np.float32(_TWELVE_BITS / 255)
    noise = np.random.default_rng(seed).standard_normal(signal.shape, dtype=np.float32)
    spread = np.float32(_GRAIN_AT_HALF) * np.sqrt(signal / np.float32(_TWELVE_BITS / 2))
    image: GreyImage = np.rint((signal + noise * spread).clip(0, _TWELVE_BITS)).astype(np.uint16)
    return image


def save_dicom(dataset: Dataset, path: Path, transfer_syntax: UID) -> None:
    """Write a DICOM data set to a file in a transfer syntax. The data set is changed.

    The pixel data must be uncompressed and little-endian, for JPEG baseline with 8 bits. Raises OSError, ValueError if
    an encoder refuses the image, and ImportError if an encoder is not installed.
    """
    if transfer_syntax in _JPEGLS_ERROR and find_spec("jpeg_ls") is None:
        import imagecodecs

        # pyjpegls has no wheel for Python 3.14. imagecodecs encodes all bits of a word, so the file is larger.
        set_compressed_frame(
            dataset, bytes(imagecodecs.jpegls_encode(_stored(dataset), _JPEGLS_ERROR[transfer_syntax]))
        )
    elif transfer_syntax in _COMPRESSION:
        with _encoding:
            dataset.compress(transfer_syntax, generate_instance_uid=False, **_COMPRESSION[transfer_syntax])
    elif transfer_syntax == JPEGBaseline8Bit:
        encoded = io.BytesIO()
        Picture.fromarray(_stored(dataset)).save(encoded, "JPEG", quality=_DICOM_JPEG_QUALITY)
        set_compressed_frame(dataset, encoded.getvalue())
    elif transfer_syntax in _PREDICTORS:
        set_compressed_frame(dataset, _lossless_jpeg(dataset, _PREDICTORS[transfer_syntax]))
    elif transfer_syntax == HTJ2KLossless:
        import imagecodecs

        set_compressed_frame(dataset, bytes(imagecodecs.htj2k_encode(_stored(dataset), reversible=True)))
    elif transfer_syntax == ExplicitVRBigEndian and dataset.BitsAllocated == 16:
        dataset.PixelData = np.frombuffer(dataset.PixelData, "<u2").astype(">u2").tobytes()
    dataset.file_meta.TransferSyntaxUID = transfer_syntax
    dcmwrite(path, dataset, enforce_file_format=True)


def set_pixels(dataset: Dataset, values: NDArray[Any]) -> None:
    """Set the uncompressed pixel data of a DICOM data set (PS3.5 8.1.2), padded to an even number of bytes."""
    data = values.tobytes()
    dataset.PixelData = data + b"\0" * (len(data) % 2)
    dataset["PixelData"].VR = "OB" if dataset.BitsAllocated == 8 else "OW"


def set_compressed_frame(dataset: Dataset, codestream: bytes) -> None:
    """Set one compressed frame, the bytes `codestream`, as the pixel data of a DICOM data set (PS3.5 A.4)."""
    dataset.PixelData = encapsulate([codestream])
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True


def _stored(dataset: Dataset) -> NDArray[Any]:
    """Return the stored pixel values of a DICOM data set: (rows, columns), or (rows, columns, 3) for colour."""
    shape = (dataset.Rows, dataset.Columns, 3) if dataset.SamplesPerPixel == 3 else (dataset.Rows, dataset.Columns)
    kind = np.uint8 if dataset.BitsAllocated == 8 else np.dtype("<u2")
    return np.frombuffer(dataset.PixelData, kind)[: int(np.prod(shape))].reshape(shape)


def _lossless_jpeg(dataset: Dataset, predictor: int) -> bytes:
    import imagecodecs

    # The sign of a negative value is in the bits above the stored bits.
    bits = dataset.BitsAllocated if dataset.PixelRepresentation else dataset.BitsStored
    options = {"lossless": True, "predictor": predictor, "bitspersample": bits}
    if dataset.SamplesPerPixel == 3:
        options |= {"colorspace": "RGB", "outcolorspace": "RGB"}
    return bytes(imagecodecs.jpeg8_encode(_stored(dataset), **options))
