"""One image written as a file of any kind that an archive may hold, at any size: for measurements and tests."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
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
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from fieldray.domain.study import ImageRef
from fieldray.imaging.decode import decode
from fieldray.imaging.preprocess import to_display
from fieldray.imaging.source import read_bytes
from fieldray.imaging.synthetic import image_dataset
from benchmarks.transcoding import save_dicom

_TWELVE_BITS: Final = 4095
# Noise of quanta: its spread grows as the root of the signal. 12 of 4095 grey levels at half of the range.
_GRAIN_AT_HALF: Final = 12.0
_JPEG_QUALITY: Final = 92

LoadedImage = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKind:
    """A kind of file: DICOM in a transfer syntax, or a PNG or JPEG `picture`; grey levels of `bits` bits."""

    name: str
    bits: int = 12
    syntax: UID | None = None
    picture: str = ""


# The six that an archive of today holds most of come first.
KINDS: Final[Mapping[str, ImageKind]] = {
    kind.name: kind
    for kind in (
        ImageKind(name="uncompressed", syntax=ExplicitVRLittleEndian),
        ImageKind(name="RLE", syntax=RLELossless),
        ImageKind(name="JPEG-LS", syntax=JPEGLSLossless),
        ImageKind(name="JPEG 2000", syntax=JPEG2000Lossless),
        ImageKind(name="PNG", bits=8, picture="PNG"),
        ImageKind(name="JPEG", bits=8, picture="JPEG"),
        ImageKind(name="HTJ2K", syntax=HTJ2KLossless),
        ImageKind(name="lossless JPEG", syntax=JPEGLosslessSV1),
        ImageKind(name="JPEG 2000 lossy", syntax=JPEG2000),
        ImageKind(name="JPEG in DICOM", bits=8, syntax=JPEGBaseline8Bit),
        ImageKind(name="deflated", syntax=DeflatedExplicitVRLittleEndian),
        ImageKind(name="big-endian", syntax=ExplicitVRBigEndian),
        ImageKind(name="implicit VR", syntax=ImplicitVRLittleEndian),
        ImageKind(name="PNG of 16 bits", bits=16, picture="PNG"),
    )
}


def write_image(stem: Path, image: LoadedImage, kind: ImageKind, *, number: int) -> Path:
    """Write a 12-bit image (rows, columns) beside `stem`, with the kind's ending; `number` names the study.

    Raises OSError, and ValueError or ImportError where the encoder cannot.
    """
    values = _in_bits(image, kind.bits)
    if kind.syntax is None:
        path = stem.with_suffix(".png" if kind.picture == "PNG" else ".jpg")
        path.write_bytes(_picture(values, kind.picture))
        return path
    dataset = image_dataset(image, number=number)
    if kind.bits == 8:
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
        dataset.WindowCenter, dataset.WindowWidth = 128, 256
        data = values.tobytes()
        dataset.PixelData = data + b"\0" * (len(data) % 2)
        dataset["PixelData"].VR = "OB"
    path = stem.with_suffix(".dcm")
    save_dicom(dataset, path, kind.syntax)
    return path


def _in_bits(image: LoadedImage, bits: int) -> NDArray[Any]:
    if bits == 8:
        return (image >> 4).astype(np.uint8)
    return image << 4 if bits == 16 else image


def _picture(values: NDArray[Any], form: str) -> bytes:
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": _JPEG_QUALITY} if form == "JPEG" else {}
    Picture.fromarray(values).save(stream, form, **options)
    return stream.getvalue()


def read_image(ref: ImageRef) -> NDArray[np.uint8]:
    """An image as it is shown, at full resolution. Raises Unreadable, Unusable."""
    return to_display(decode(read_bytes(ref), ref))


def enlarged(shown: NDArray[np.uint8], *, megapixels: float, seed: int) -> LoadedImage:
    """An image (rows, columns) at this size in 12 bits with a detector's grain, which enlarging alone would not have.

    Without the grain every lossless codec would find the image far easier than one from a detector.
    """
    rows, columns = shown.shape
    factor = (megapixels * 1e6 / (rows * columns)) ** 0.5
    size = round(columns * factor), round(rows * factor)
    picture = Picture.fromarray(shown.astype(np.float32)).resize(size, Picture.Resampling.BICUBIC)
    signal = np.asarray(picture).clip(0, 255) * np.float32(_TWELVE_BITS / 255)
    noise = np.random.default_rng(seed).standard_normal(signal.shape, dtype=np.float32)
    spread = np.float32(_GRAIN_AT_HALF) * np.sqrt(signal / np.float32(_TWELVE_BITS / 2))
    image: LoadedImage = np.rint((signal + noise * spread).clip(0, _TWELVE_BITS)).astype(np.uint16)
    return image
