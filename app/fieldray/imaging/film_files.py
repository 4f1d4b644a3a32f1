"""One film written as a file of any kind that an archive may hold, at any size: for measurements and tests."""

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
from fieldray.imaging.synthetic import film_dataset
from fieldray.imaging.transcoding import save_dicom

_TWELVE_BITS: Final = 4095
# Noise of quanta: its spread grows as the root of the signal. 12 of 4095 grey levels at half of the range.
_GRAIN_AT_HALF: Final = 12.0
_JPEG_QUALITY: Final = 92

Film = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmKind:
    """A kind of file: DICOM in a transfer syntax, or a PNG or JPEG `picture`; grey levels of `bits` bits."""

    name: str
    bits: int = 12
    syntax: UID | None = None
    picture: str = ""


# The six that an archive of today holds most of come first.
KINDS: Final[Mapping[str, FilmKind]] = {
    kind.name: kind
    for kind in (
        FilmKind(name="uncompressed", syntax=ExplicitVRLittleEndian),
        FilmKind(name="RLE", syntax=RLELossless),
        FilmKind(name="JPEG-LS", syntax=JPEGLSLossless),
        FilmKind(name="JPEG 2000", syntax=JPEG2000Lossless),
        FilmKind(name="PNG", bits=8, picture="PNG"),
        FilmKind(name="JPEG", bits=8, picture="JPEG"),
        FilmKind(name="HTJ2K", syntax=HTJ2KLossless),
        FilmKind(name="lossless JPEG", syntax=JPEGLosslessSV1),
        FilmKind(name="JPEG 2000 lossy", syntax=JPEG2000),
        FilmKind(name="JPEG in DICOM", bits=8, syntax=JPEGBaseline8Bit),
        FilmKind(name="deflated", syntax=DeflatedExplicitVRLittleEndian),
        FilmKind(name="big-endian", syntax=ExplicitVRBigEndian),
        FilmKind(name="implicit VR", syntax=ImplicitVRLittleEndian),
        FilmKind(name="PNG of 16 bits", bits=16, picture="PNG"),
    )
}


def write_film(stem: Path, film: Film, kind: FilmKind, *, number: int) -> Path:
    """Write a 12-bit film (rows, columns) beside `stem`, with the kind's ending; `number` names the study.

    Raises OSError, and ValueError or ImportError where the encoder cannot.
    """
    values = _in_bits(film, kind.bits)
    if kind.syntax is None:
        path = stem.with_suffix(".png" if kind.picture == "PNG" else ".jpg")
        path.write_bytes(_picture(values, kind.picture))
        return path
    dataset = film_dataset(film, number=number)
    if kind.bits == 8:
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
        dataset.WindowCenter, dataset.WindowWidth = 128, 256
        data = values.tobytes()
        dataset.PixelData = data + b"\0" * (len(data) % 2)
        dataset["PixelData"].VR = "OB"
    path = stem.with_suffix(".dcm")
    save_dicom(dataset, path, kind.syntax)
    return path


def _in_bits(film: Film, bits: int) -> NDArray[Any]:
    if bits == 8:
        return (film >> 4).astype(np.uint8)
    return film << 4 if bits == 16 else film


def _picture(values: NDArray[Any], form: str) -> bytes:
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": _JPEG_QUALITY} if form == "JPEG" else {}
    Picture.fromarray(values).save(stream, form, **options)
    return stream.getvalue()


def read_film(ref: ImageRef) -> NDArray[np.uint8]:
    """A film as it is shown, at full resolution. Raises Unreadable, Unusable."""
    return to_display(decode(read_bytes(ref), ref))


def enlarged(shown: NDArray[np.uint8], *, megapixels: float, seed: int) -> Film:
    """A film (rows, columns) at this size in 12 bits with a detector's grain, which enlarging alone would not have.

    Without the grain every lossless codec would find the film far easier than one from a detector.
    """
    rows, columns = shown.shape
    factor = (megapixels * 1e6 / (rows * columns)) ** 0.5
    size = round(columns * factor), round(rows * factor)
    picture = Picture.fromarray(shown.astype(np.float32)).resize(size, Picture.Resampling.BICUBIC)
    signal = np.asarray(picture).clip(0, 255) * np.float32(_TWELVE_BITS / 255)
    noise = np.random.default_rng(seed).standard_normal(signal.shape, dtype=np.float32)
    spread = np.float32(_GRAIN_AT_HALF) * np.sqrt(signal / np.float32(_TWELVE_BITS / 2))
    film: Film = np.rint((signal + noise * spread).clip(0, _TWELVE_BITS)).astype(np.uint16)
    return film
