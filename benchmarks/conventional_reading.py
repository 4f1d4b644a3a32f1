"""How scripts read images: pydicom for DICOM, Pillow for pictures, always in full."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut, apply_voi_lut

# pydicom warns of much; a script's author has long stopped reading it, and warnings cost time
warnings.simplefilter("ignore")


def is_picture(path: str) -> bool:
    """By its name, as scripts do."""
    return path.endswith((".png", ".jpg"))


def stored(path: str) -> NDArray[Any]:
    """Stored values, (rows, columns)."""
    if is_picture(path):
        return np.asarray(Picture.open(path))
    return cast("NDArray[Any]", dcmread(path).pixel_array)


def shown(path: str) -> NDArray[np.float32]:
    """Grey values as the file wants them shown: modality LUT, VOI LUT, black is 0. Any range."""
    if is_picture(path):
        return np.asarray(Picture.open(path)).astype(np.float32)
    dataset = dcmread(path)
    values: NDArray[np.float32] = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset).astype("f4")
    return values.max() - values if dataset.PhotometricInterpretation == "MONOCHROME1" else values


def in_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The whole range of values on 0..255."""
    if values.dtype == np.uint8:
        return values
    low, high = values.min(), values.max()
    shown_in_8: NDArray[np.uint8] = ((values - low) * np.float32(255 / max(high - low, 1))).astype(np.uint8)
    return shown_in_8
