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
from fieldray.imaging.grey_png import decode_grey_png
from fieldray.imaging.limits import check_pixel_count
from fieldray.imaging.reduction import JPEG_REDUCTIONS, TargetSize, block_means, largest_reduction
from fieldray.imaging.sniff import jpeg_size, png_size
from fieldray.reasons import reason

# The size is checked here before Pillow sees the file, with one limit for all kinds of files.
PIL.Image.MAX_IMAGE_PIXELS = None

_ORIENTATION: Final = 0x0112
_AS_STORED: Final = Window(127.5, 255.0, "LINEAR_EXACT")


def decode_png(data: bytes, *, needed: TargetSize | None = None) -> Image:
    """Decode PNG of 1 to 16 bits, palette, with or without alpha (laid over black); `needed` as for `decode.decode`.

    Eight-bit values are shown as stored. Raises Unreadable; Unusable `colour`.
    """
    size = _checked(png_size(data))
    plain = decode_grey_png(data)
    if plain is not None and plain.shape == size:
        return _finished(plain, [], size, needed)
    return _image(_load(data, ("PNG",)), size, needed)


def decode_jpeg(data: bytes, *, needed: TargetSize | None = None) -> Image:
    """Decode JPEG, grey or RGB without colour, turned upright by its EXIF orientation; `needed` as for `decode.decode`.

    Raises Unreadable; Unusable `colour` for a coloured or CMYK picture.
    """
    size = _checked(jpeg_size(data))
    step = 1
    if needed is not None:  # it may have to be turned, which is known only later
        step = min(largest_reduction(*size, either, steps=JPEG_REDUCTIONS) for either in (needed, needed.turned))
    picture = _load(data, ("JPEG", "MPO"), step)
    return _image(picture, size, needed, picture_step=step if step > 1 and picture.mode == "L" else 1)


def _checked(size: tuple[int, int] | None) -> tuple[int, int]:
    if size is None:
        raise Unreadable(reason("truncated"))
    check_pixel_count(*size)
    return size


def _image(
    picture: PIL.Image.Image, size: tuple[int, int], needed: TargetSize | None, *, picture_step: int = 1
) -> Image:
    """`size` and `picture_step`: of the file, and what the picture was read at."""
    if picture.mode in ("CMYK", "YCCK", "LAB", "HSV"):
        raise Unusable(reason("colour"))
    pixels, notes = _grey(picture)
    return _finished(pixels, notes, size, needed, step=picture_step)


def _finished(
    pixels: NDArray[Any], notes: list[str], size: tuple[int, int], needed: TargetSize | None, *, step: int = 1
) -> Image:
    """`size`: of the file; `step`: at which the pixels were read."""
    window = _AS_STORED if pixels.dtype == np.uint8 else None
    is_approximate = step > 1
    if step == 1 and needed is not None:
        step = largest_reduction(pixels.shape[0], pixels.shape[1], needed)
        pixels = block_means(pixels, step)
    rows, columns = size if _is_alike(pixels.shape, size, step) else size[::-1]
    return Image(
        pixels=pixels,
        window=window,
        step=step,
        is_approximate=is_approximate,
        full_rows=rows,
        full_columns=columns,
        notes=tuple(notes),
    )


def _is_alike(shape: tuple[int, ...], size: tuple[int, int], step: int) -> bool:
    """Whether the upright picture lies as it is stored: EXIF may turn rows into columns."""
    return shape == (-(-size[0] // step), -(-size[1] // step))


def _load(data: bytes, formats: tuple[str, ...], step: int = 1) -> PIL.Image.Image:
    """The upright picture; a grey JPEG at 1 / `step`, which is for Pillow to decode anything else in full."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PIL.Image.open(io.BytesIO(data), formats=formats) as picture:
                if step > 1 and picture.mode == "L":
                    # Colour shows itself in single pixels: only what is grey may be read at a lower resolution.
                    picture.draft("L", (picture.width // step, picture.height // step))
                picture.load()
                return _upright(picture)
    except UnidentifiedImageError as error:
        raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error
    except (OSError, SyntaxError, ValueError, EOFError, KeyError, IndexError, TypeError) as error:
        is_short = "truncated" in str(error).lower() or isinstance(error, EOFError)
        why = reason("truncated") if is_short else reason("damaged", detail="the image cannot be decoded")
        raise Unreadable(why) from error


def _upright(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Turned as EXIF says, and not even copied where it says nothing; a damaged EXIF block says nothing."""
    try:
        is_upright = picture.getexif().get(_ORIENTATION, 1) == 1
        return picture if is_upright else ImageOps.exif_transpose(picture)
    except Exception:  # Pillow's EXIF reader raises whatever the damaged bytes lead it to
        return picture


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
