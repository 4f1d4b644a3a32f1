"""One image file, read once: the bytes, their hash and stamp, the header, and the pixels as requested.

This code runs in the child process that reads images. PNG and JPEG are decoded in this module, DICOM in `dicom`.
"""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import imagecodecs
import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE, ImageFacts
from fieldray.domain.image import NO_CORRECTION, Image, ImageRef, Window
from fieldray.errors import Unreadable, UnsuitableImage
from fieldray.imaging.identify import (
    FILE_HEAD_BYTES,
    check_pixel_count,
    count_trailing_images,
    identify_bytes,
    jpeg_end_offset,
    jpeg_frame,
    jpeg_with_extra_rows,
    png_size,
    sniff,
    trailing_jpeg_frames,
)
from fieldray.imaging.preprocess import block_thumbnail, grey_from_rgb
from fieldray.imaging.reduction import JPEG_REDUCTIONS, DecodedFileCache, TargetSize, block_means, largest_reduction
from fieldray.imaging.source import FileStamper
from fieldray.imaging.whole_file import read_bytes_and_state
from fieldray.reasons import reason

_PREVIEW_QUALITY: Final = 75


def decode_image_bytes(
    data: bytes, ref: ImageRef, *, needed_size: TargetSize | None = None, cache: DecodedFileCache | None = None
) -> Image:
    """Decode one image, upright and grey, at full resolution or as fine as needed.

    Parameters
    ----------
    data
        The whole file; the format is recognised from the first bytes.
    ref
        `ref.frame` chooses among several frames.
    needed_size
        The resolution that is needed (`reduction.target_size`). The image may then have a lower resolution, by the rule
        of `reduction`. None for full resolution.
    cache
        Cache of the fully decoded file, for the next call with these bytes and this frame.

    Raises
    ------
    Unreadable
        If the image cannot be decoded.
    UnsuitableImage
        For colour, and for a file without an image.
    """
    cache = cache or DecodedFileCache()
    if not data:
        raise Unreadable(reason("empty"))
    content = sniff(data[:FILE_HEAD_BYTES])
    if content == "executable":
        raise Unreadable(reason("executable"))
    if content == "png":
        return _finished(*cache.get_or_decode(lambda: _whole_png(data)), needed_size)
    if content == "jpeg":
        return _decoded_jpeg(data, needed_size, cache)
    if content == "dicom":
        # Imported only for DICOM: pydicom and its codecs take a third of a second to load.
        from fieldray.imaging.dicom import decode_dicom

        return decode_dicom(data, frame=ref.frame, needed_size=needed_size, cache=cache)
    raise UnsuitableImage(reason("not_an_image"))


class ImageFile:
    """An image file whose bytes are in memory. The constructor raises Unreadable if the file cannot be read.

    content_sha256  SHA-256 (hex) of the file
    stamp           file stamp, by which an unchanged file is recognised; empty without a `FileStamper`, or if a change
                    of the file could go unnoticed
    """

    def __init__(self, ref: ImageRef, *, stamps: FileStamper | None = None) -> None:
        self._data, state = read_bytes_and_state(ref)
        self._ref = ref
        self._whole = DecodedFileCache()
        self.content_sha256 = hashlib.sha256(self._data).hexdigest()
        self.stamp = b""
        if stamps and ref.header.number_of_frames == 1:
            self.stamp = stamps.stamp_of_data(ref.path, self._data, state)

    def identified_ref(self) -> ImageRef:
        """Return the image's reference with the kind and header of the bytes in memory.

        Raises Unreadable, UnsuitableImage.
        """
        return identify_bytes(self._data, self._ref)

    def decode_image(self, needed_size: TargetSize | None = None) -> Image:
        """Return the image without the turn that a person asked for, at the resolution `needed_size` or a finer one.

        Raises Unreadable, UnsuitableImage.
        """
        return decode_image_bytes(self._data, self._ref, needed_size=needed_size, cache=self._whole)

    def read_for_display(self, side: int | None) -> Image:
        """Return the upright image, at a resolution that is enough for a display with a longer side of `side` pixels.

        side  None for full resolution
        """
        needed_size = (
            TargetSize(side, side, needs_only_longer_side=True)
            if side and self._ref.correction == NO_CORRECTION
            else None
        )
        return self.decode_image(needed_size).corrected(self._ref.correction)


def facts_of_read_image(file: ImageFile, image: Image, upright: Image) -> ImageFacts:
    """Return the facts of an image that was read: size, notes, preview and thumbnail.

    image    the image as stored in the file, from which the preview is made
    upright  the upright image, from which the thumbnail is made
    """
    rows, columns = upright.size
    return ImageFacts(
        content_sha256=file.content_sha256,
        file_stamp=file.stamp,
        rows=rows,
        columns=columns,
        preview=encode_preview(
            block_thumbnail(image, PREVIEW_SIDE)
        ),  # previews are stored by content, so they are not turned
        thumbnail=block_thumbnail(upright, THUMBNAIL_SIDE),
        notes=upright.notes,
    )


def encode_preview(pixels: NDArray[np.uint8]) -> bytes:
    """Encode grey levels (h, w) as a small JPEG, the format of stored previews."""
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, format="JPEG", quality=_PREVIEW_QUALITY)
    return stream.getvalue()


def decode_preview(data: bytes) -> NDArray[np.uint8]:
    """Decode the grey levels (h, w) of a stored preview. Raises Unreadable (damaged) for any other bytes."""
    try:
        with PIL.Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if max(image.size) > PREVIEW_SIDE or image.mode != "L":  # checked before anything is decoded
                raise ValueError(f"{image.mode} {image.size}")
            return np.asarray(image)
    except Exception as error:  # whatever Pillow raises on damaged bytes
        raise Unreadable(reason("damaged", detail="preview")) from error


# ---- PNG and JPEG files, and colour images that are really grey.

# Upright grey pixels, notes, and the size that the file states.
_WholeImage = tuple[NDArray[Any], list[str], tuple[int, int]]

_ORIENTATION: Final = 0x0112
_NOT_DECODED: Final = "the image cannot be decoded"
_AS_STORED: Final = Window(127.5, 255.0, "LINEAR_EXACT")


def _whole_png(data: bytes) -> _WholeImage:
    """Decode a PNG of 1 to 16 bits, grey or with a palette. An alpha channel is laid over black.

    8-bit values are shown unchanged.

    Raises Unreadable. Raises UnsuitableImage: `colour`, `several_images`.
    """
    if (size := png_size(data)) is None:
        raise Unreadable(reason("truncated"))
    check_pixel_count(*size)
    if (count := _png_images(data)) > 1:
        raise UnsuitableImage(reason("several_images", count=count))
    _check_chunks(data)
    try:
        values = _TURNS[_png_orientation(data)](imagecodecs.png_decode(data))
    except (OSError, SyntaxError, ValueError, RuntimeError) as error:
        is_short = "too small" in str(error)  # the stream is too short
        raise Unreadable(reason("truncated") if is_short else reason("damaged", detail=_NOT_DECODED)) from error
    has_alpha = values.ndim == 3 and values.shape[2] in (2, 4)
    if has_alpha and data[25:26] in _OPAQUE:  # only a single value is transparent, which is shown as it is
        values, has_alpha = values[:, :, :-1], False
    return *_grey_of(values, has_alpha=has_alpha), size


def _decoded_jpeg(data: bytes, needed_size: TargetSize | None, whole: DecodedFileCache) -> Image:
    """Decode a JPEG that is grey, or RGB without colour, upright by its EXIF orientation.

    JPEGs of more than 8 bits and lossless JPEGs are read in full resolution. Raises Unreadable. Raises UnsuitableImage:
    `colour` for a colour or CMYK image, `several_images`.

    needed_size, whole  the parameters `needed_size` and `cache` of `decode_image_bytes`
    """
    if (frame := jpeg_frame(data)) is None:
        raise Unreadable(reason("truncated"))
    size = frame.size
    check_pixel_count(*size)
    if frame.coding_process == _JPEG_LS:
        raise Unreadable(reason("unsupported_compression", name="JPEG-LS"))
    is_plain, step = frame.bits_per_sample == 8 and frame.coding_process in _PILLOWS_PROCESSES, 1
    if is_plain and needed_size is not None and not whole.has_decoded_file:  # the orientation is known only later
        step = min(
            largest_reduction(*size, either, steps=JPEG_REDUCTIONS)
            for either in (needed_size, needed_size.rotated_by_90)
        )
    if step == 1:
        return _finished(*whole.get_or_decode(lambda: _whole_jpeg(data, size, is_plain=is_plain)), needed_size)
    one, notes = _one_whole_jpeg(data, size)
    values, step = _load(one, step)
    pixels, more = _grey_of(values)
    return _finished(pixels, [*notes, *more], size, needed_size, step=step)


def _whole_jpeg(data: bytes, size: tuple[int, int], *, is_plain: bool) -> _WholeImage:
    data, notes = _one_whole_jpeg(data, size)
    pixels, more = _grey_of(_load(data)[0] if is_plain else _deep_jpeg(data))
    return pixels, [*notes, *more], size


def _finished(
    pixels: NDArray[Any], notes: list[str], size: tuple[int, int], needed_size: TargetSize | None, *, step: int = 1
) -> Image:
    """Make the image from decoded pixels.

    size         rows and columns of the file
    needed_size  resolution that is needed; None for full resolution
    step         the reduction at which the pixels were read
    """
    window = _AS_STORED if pixels.dtype == np.uint8 else None
    is_approximate = step > 1
    if step == 1 and needed_size is not None:
        step = largest_reduction(pixels.shape[0], pixels.shape[1], needed_size)
        pixels = block_means(pixels, step)
    # EXIF may swap rows and columns of the upright image.
    rows, columns = size if pixels.shape == (-(-size[0] // step), -(-size[1] // step)) else size[::-1]
    return Image(
        pixels=pixels,
        window=window,
        reduction_factor=step,
        has_approximate_pixels=is_approximate,
        file_rows=rows,
        file_columns=columns,
        notes=tuple(notes),
    )


def _load(data: bytes, step: int = 1) -> tuple[NDArray[Any], int]:
    """Decode the upright values of a JPEG, at 1 / `step` if the JPEG is grey. Returns the values and the step used.

    Raises Unreadable. Raises UnsuitableImage `colour`. The pixel limit of `PIL.Image.open` does not apply, because
    sizes were checked before.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tall = jpeg_with_extra_rows(data)
            with JpegImageFile(io.BytesIO(tall.data)) as image:
                if image.mode == "CMYK":
                    raise UnsuitableImage(reason("colour"))
                step = step if image.mode == "L" else 1  # colour is recognised in single pixels only
                turned = _TURNS[_orientation(image)]
                # The check of several scans decodes the whole image: a low resolution hides cut scans.
                is_in_check = tall.test_row == 0 and image.mode == "L" and step == 1
                if step > 1:
                    image.draft("L", (image.width // step, image.height // step))
                values = None if is_in_check else np.asarray(image)
    except (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, struct.error) as error:
        is_short = "truncated" in str(error).lower() or isinstance(error, EOFError)
        raise Unreadable(reason("truncated") if is_short else reason("damaged", detail=_NOT_DECODED)) from error
    if values is None or tall.may_lack_pixels(np.ravel(values[tall.test_row // step, 0])):
        from fieldray.imaging.codecs.jpeg import (
            decode_twice_to_check_scans,  # pydicom takes a third of a second to load
        )

        whole = decode_twice_to_check_scans(data)
        values = whole if values is None else values
    return turned(values[: -(-tall.rows // step)]), step


def _orientation(image: PIL.Image.Image) -> int:
    """Return the EXIF orientation of an image; 1 (upright) if not stated. A damaged EXIF block is ignored."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
        return found if found in _TURNS else 1
    except Exception:  # Pillow's EXIF reader raises whatever the damaged bytes lead it to
        return 1


def _grey_of(values: NDArray[Any], *, has_alpha: bool = False) -> tuple[NDArray[Any], list[str]]:
    """Convert values (rows, columns) or (rows, columns, channels) to grey uint8 or uint16. Returns grey and notes.

    Raises UnsuitableImage for colours that are not grey.
    """
    notes: list[str] = []
    if has_alpha:
        values, is_see_through = _over_black(values)
        notes += ["alpha_over_black"] if is_see_through else []
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim == 3:
        values = grey_from_rgb(values)
        notes.append("grey_from_colour")
    if values.dtype != np.uint8:
        values = values.clip(0, 65535).astype(np.uint16)
    return np.ascontiguousarray(values), notes


def _over_black(values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Lay colours over black by their alpha channel. Returns the colours, and whether any pixel was transparent."""
    alpha, opaque = values[:, :, -1], np.iinfo(values.dtype).max
    if alpha.min() == opaque:
        return values[:, :, :-1], False
    weighted = values[:, :, :-1].astype(np.uint32) * alpha[:, :, None] + opaque // 2
    return (weighted // opaque).astype(values.dtype), True


# ---- JPEGs of other depths than 8 bits, EXIF orientation, and files with several images


# The operation that makes an image upright, by its EXIF orientation.
_TURNS: Final[Mapping[int, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    1: lambda values: values,
    2: np.fliplr,
    3: lambda values: np.rot90(values, 2),
    4: np.flipud,
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: np.rot90(values, -1),
    7: lambda values: np.rot90(values, 2).swapaxes(0, 1),
    8: np.rot90,
}
_OPAQUE: Final = (b"\0", b"\2")  # grey and RGB
_OF_ORIENTATION: Final = (b"Raw profile type", b"XML:com.adobe.xmp")  # keywords of a PNG's texts
_PILLOWS_PROCESSES: Final = frozenset(range(0xC0, 0xC3))
_JPEG_LS: Final = 0xF7
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def _deep_jpeg(data: bytes) -> NDArray[Any]:
    """Decode a JPEG whose depth is not 8 bits, or whose coding process Pillow lacks. EXIF is ignored."""
    from fieldray.imaging.codecs.jpeg import decode_jpeg

    try:
        return decode_jpeg(data)
    except ValueError as error:
        raise Unreadable(reason("damaged", detail=_NOT_DECODED)) from error


def _png_images(data: bytes) -> int:
    """Return the number of images in a PNG file: frames of an animation (APNG), or files joined to the end."""
    end, frames, is_still = len(data), 0, True
    for kind, start, _ in _chunks(data):
        if kind == b"acTL":
            frames = int.from_bytes(data[start : start + 4], "big")
        if kind == b"fcTL":  # before IDAT: the still image is the first frame, not an additional image
            is_still = False
        if kind == b"IDAT" and frames:
            return frames + is_still
        if kind == b"IEND":
            end = start + 4
    return 1 + count_trailing_images(data, end) + len(trailing_jpeg_frames(data, end))


def _check_chunks(data: bytes) -> None:
    """Raise Unreadable `damaged` if a critical chunk of a PNG fails its checksum.

    Without this check, decoders would show damaged pixels.
    """
    view = memoryview(data)
    for kind, start, end in _chunks(data):
        stated = int.from_bytes(view[end : end + 4], "big")
        if kind[:1].isupper() and end + 4 <= len(data) and zlib.crc32(view[start - 4 : end]) != stated:
            raise Unreadable(reason("damaged", detail=_NOT_DECODED))


def _one_whole_jpeg(data: bytes, size: tuple[int, int]) -> tuple[bytes, list[str]]:
    """Return a JPEG that contains one whole image, and codes of notes.

    A missing end marker is added if the image is complete. Smaller JPEGs in the file (previews and gain maps of
    cameras) get a note. Raises Unreadable `truncated`. Raises UnsuitableImage `several_images` if another image follows
    (MPO, or joined files).
    """
    end = jpeg_end_offset(data)
    if end is None:
        from fieldray.imaging.codecs.jpeg import with_end_marker

        return with_end_marker(data), ["end_was_missing"]
    found = [frame.rows * frame.columns >= size[0] * size[1] for frame in trailing_jpeg_frames(data, end)]
    if others := sum(found) + count_trailing_images(data, end):
        raise UnsuitableImage(reason("several_images", count=1 + others))
    return data, ["further_images"] if found else []


def _png_orientation(data: bytes) -> int:
    """Return the EXIF orientation of a PNG. Pillow is used only if a chunk may contain an orientation."""
    if not any(kind == b"eXIf" or data.startswith(_OF_ORIENTATION, start) for kind, start, _ in _chunks(data)):
        return 1
    from PIL.PngImagePlugin import PngImageFile  # few files need it, and each process would wait for it

    with PngImageFile(io.BytesIO(data)) as image:
        return _orientation(image)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, start and end of the content of each chunk of a PNG, until the PNG ends (PNG specification, 5.3)."""
    position, kind = len(_SIGNATURE), b""
    while position + 8 <= len(data) and kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, position + 8, position + 8 + length
        position += 12 + length
