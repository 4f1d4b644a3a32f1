"""PNG and JPEG files."""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import ImageOps, UnidentifiedImageError

from fieldray.domain.image import Image, Window
from fieldray.errors import Unreadable, Unusable
from fieldray.imaging.grey import grey_of_colour
from fieldray.imaging.limits import check_pixel_count
from fieldray.imaging.sniff import jpeg_size, png_size
from fieldray.reasons import reason

# The size is checked here before Pillow sees the file, with one limit for all kinds of files.
PIL.Image.MAX_IMAGE_PIXELS = None

_AS_STORED: Final = Window(127.5, 255.0, "LINEAR_EXACT")


def decode_png(data: bytes) -> Image:
    """Decode PNG of 1 to 16 bits, palette, with or without alpha (laid over black).

    Eight-bit values are shown as stored. Raises Unreadable; Unusable `colour`.
    """
    return _decode(data, png_size(data), "PNG")


def decode_jpeg(data: bytes) -> Image:
    """Decode JPEG, grey or RGB without colour, turned upright by its EXIF orientation.

    Raises Unreadable; Unusable `colour` for a coloured or CMYK picture.
    """
    return _decode(data, jpeg_size(data), "JPEG")


def _decode(data: bytes, size: tuple[int, int] | None, kind: str) -> Image:
    if size is None:
        raise Unreadable(reason("truncated"))
    check_pixel_count(*size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        picture = _load(data, (kind, "MPO") if kind == "JPEG" else (kind,))
    if picture.mode in ("CMYK", "YCCK", "LAB", "HSV"):
        raise Unusable(reason("colour"))
    pixels, notes = _grey(picture)
    return Image(
        pixels=pixels,
        window=_AS_STORED if pixels.dtype == np.uint8 else None,
        full_rows=pixels.shape[0],
        full_columns=pixels.shape[1],
        notes=tuple(notes),
    )


def _load(data: bytes, formats: tuple[str, ...]) -> PIL.Image.Image:
    try:
        with PIL.Image.open(io.BytesIO(data), formats=formats) as picture:
            picture.load()
            return _upright(picture)
    except UnidentifiedImageError as error:
        raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error
    except (OSError, SyntaxError, ValueError, EOFError, KeyError, IndexError, TypeError) as error:
        is_short = "truncated" in str(error).lower() or isinstance(error, EOFError)
        why = reason("truncated") if is_short else reason("damaged", detail="the image cannot be decoded")
        raise Unreadable(why) from error


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Turned as EXIF says; a damaged EXIF block says nothing."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # Pillow's EXIF reader raises whatever the damaged bytes lead it to
        return picture.copy()


def _grey(picture: PIL.Image.Image) -> tuple[NDArray[Any], list[str]]:
    """Grey pixels uint8 or uint16, and notes."""
    notes: list[str] = []
    if picture.mode == "P":
        picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    if picture.mode == "1":
        picture = picture.convert("L")
    values = np.asarray(picture)
    if picture.mode in ("LA", "RGBA", "PA", "La", "RGBa"):
        values, is_see_through = _over_black(values)
        notes += ["alpha_over_black"] if is_see_through else []
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim == 3:
        values = grey_of_colour(values)
        notes.append("grey_from_colour")
    if values.dtype != np.uint8:
        values = values.clip(0, 65535).astype(np.uint16)
    return np.ascontiguousarray(values), notes


def _over_black(values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Colours times alpha, without the alpha channel; whether anything was see-through."""
    alpha = values[:, :, -1]
    if alpha.min() == 255:
        return values[:, :, :-1], False
    weighted = values[:, :, :-1].astype(np.uint16) * alpha[:, :, None] + 127
    return (weighted // 255).astype(np.uint8), True
