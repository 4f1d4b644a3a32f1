"""Previews as they are stored: small grey JPEGs. Packed and unpacked in the child processes that read files."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE
from fieldray.errors import Unreadable
from fieldray.reasons import reason

_QUALITY: Final = 75


def packed(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey levels (h, w) as the bytes of a JPEG, (n,)."""
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, format="JPEG", quality=_QUALITY)
    return np.frombuffer(stream.getvalue(), np.uint8)


def unpacked(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The grey levels (h, w) of what `packed` made. Raises Unreadable (damaged) for any other bytes."""
    try:
        with PIL.Image.open(io.BytesIO(data.tobytes()), formats=["JPEG"]) as image:
            if max(image.size) > PREVIEW_SIDE or image.mode != "L":  # known before anything is decoded
                raise ValueError(f"{image.mode} {image.size}")
            return np.asarray(image)
    except Exception as error:  # whatever Pillow raises on damaged bytes
        raise Unreadable(reason("damaged", detail="preview")) from error
