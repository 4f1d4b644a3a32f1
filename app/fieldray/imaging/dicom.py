"""DICOM files: from bytes to one upright grey image. Sizes are checked before any memory is allocated.

Values are used as stored in the file, or as the codec decodes them. pydicom parses the file, separates compressed
frames, and converts colours and palettes to RGB.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.pixels import convert_color_space
from pydicom.uid import (
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
)

from fieldray.domain.image import Image, Window
from fieldray.errors import FieldrayError, Unreadable, UnsuitableImage
from fieldray.imaging import dicom_grey
from fieldray.imaging.codec import (
    UNCOMPRESSED_SYNTAXES,
    Frame,
    codec_of,
    count_codestreams,
    frame_header_of,
    stored_values_from_decoded,
    transfer_syntax_of,
    unsupported_reason,
)
from fieldray.imaging.dicom_header import (
    UNDEFINED_LENGTH,
    DicomHeader,
    first_text,
    inflated_data_set,
    missing_pixels_problem,
    read_header,
    whole_number,
)
from fieldray.imaging.identify import DICOM_PREFIX, check_pixel_count, sniff
from fieldray.imaging.limits import MAX_FILE_BYTES, VALUE_REPRESENTATIONS
from fieldray.imaging.preprocess import grey_from_rgb, with_square_pixels
from fieldray.imaging.reduction import DecodedFileCache, TargetSize, largest_reduction
from fieldray.reasons import reason

_PALETTE: Final = tuple(
    f"{prefix}{colour}PaletteColorLookupTable{part}"
    for prefix, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
    for colour in ("Red", "Green", "Blue")
)
_DAMAGE: Final = (OSError, ValueError, SyntaxError, KeyError, IndexError, TypeError, EOFError)
_KEYWORDS: Final = (
    "Modality",
    "SOPClassUID",
    "SamplesPerPixel",
    "PlanarConfiguration",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "BitsAllocated",
    "HighBit",
    *_PALETTE,
    *dicom_grey.GREY_VALUE_KEYWORDS,
)


def decode_dicom(
    data: bytes, *, frame: int = 0, needed_size: TargetSize | None = None, cache: DecodedFileCache | None = None
) -> Image:
    """Decode one frame of a DICOM file, with or without preamble and file meta information.

    frame        number of the frame, from 0
    needed_size  the resolution that is needed; None for full resolution (see `reading.decode_image_bytes`)
    cache        cache of the fully decoded file (see `reading.decode_image_bytes`)

    Raises Unreadable if the file cannot be decoded. Raises UnsuitableImage: `colour`, `several_images`,
    `no_pixel_data`.
    """
    try:
        return _decode(data, frame, needed_size, cache or DecodedFileCache())
    except (FieldrayError, MemoryError):
        raise
    except Exception as error:  # parsers and codecs raise whatever the damaged bytes lead them to
        raise Unreadable(reason("damaged", detail="the image cannot be decoded")) from error


def _decode(data: bytes, index: int, needed_size: TargetSize | None, whole: DecodedFileCache) -> Image:
    if whole.parsed is None:
        whole.parsed = _parsed(data)
    header, frame, value = whole.parsed
    aspect = dicom_grey.pixel_aspect(header.dataset)
    # Pixels that are not square are resampled from the full resolution.
    image = with_square_pixels(
        _decode_pixels(header, frame, value, index, needed_size=needed_size if aspect == 1 else None, whole=whole),
        aspect,
    )
    return replace(image, notes=("syntax_contradicted",) * header.states_wrong_transfer_syntax + image.notes)


def _parsed(data: bytes) -> tuple[DicomHeader, Frame, memoryview]:
    """Return the header, the description of a frame, and the pixel data of a file.

    If the file states a wrong transfer syntax, the returned header contains the transfer syntax of the pixel data.
    """
    stream = io.BytesIO(data)
    header = read_header(stream, _KEYWORDS, max_inflated_bytes=MAX_FILE_BYTES)
    frame = _frame_of(header)
    whole_data = data if header.stream is stream else inflated_data_set(header)
    value = _pixel_value(header, whole_data)
    if count := _trailing_images(header, whole_data, value, data):
        raise UnsuitableImage(reason("several_images", count=1 + count))
    header, value = _pixels_as_they_are(header, frame, value)
    frame = replace(frame, transfer_syntax=header.transfer_syntax)
    _check_lower_part(header, frame, value)
    return header, frame, value


def _decode_pixels(
    header: DicomHeader,
    frame: Frame,
    value: memoryview,
    index: int,
    *,
    needed_size: TargetSize | None,
    whole: DecodedFileCache,
) -> Image:
    if needed_size is not None and not whole.has_decoded_file:
        reduced = _reduced(header, frame, value, index, needed_size)
        if reduced is not None:
            return reduced
    step = largest_reduction(frame.rows, frame.columns, needed_size) if needed_size is not None else 1
    stored, extremes = whole.get_or_decode(lambda: _with_extremes(_stored_values(header, frame, value, index)))
    if _photometric(header) == "PALETTE COLOR":
        stored = dicom_grey.palette_colours(stored, header.dataset)
    if stored.ndim == 3:
        return _grey_of_colour(stored, header.dataset, step)
    return dicom_grey.grey_image(stored, header.dataset, step=step, extremes=extremes)


def _with_extremes(stored: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, int] | None]:
    """Return the stored values, and their minimum and maximum if they are grey integers of at most 16 bits."""
    is_plain = stored.ndim == 2 and stored.dtype.kind in "iu" and stored.dtype.itemsize <= 2
    return stored, (int(stored.min()), int(stored.max())) if is_plain else None


def _reduced(header: DicomHeader, frame: Frame, value: memoryview, index: int, needed_size: TargetSize) -> Image | None:
    """Decode the image at a lower resolution that the compression offers; None if there is no lower resolution.

    A damaged frame gives None as well: reading the frame in full resolution then reports the damage.
    """
    codec = codec_of(header.transfer_syntax)
    if codec is None or codec.decode_reduced is None:
        return None
    if not frame.is_8_or_16_bit_grey or frame.is_signed or not 1 <= frame.bits_stored <= frame.bits_allocated:
        return None
    try:
        frame = _compressed(frame, value, index)
        found = None if frame.unused_low_bits else codec.decode_reduced(frame, needed_size)
    except _DAMAGE:
        return None
    if found is None or found[0].shape != (-(-frame.rows // found[1]), -(-frame.columns // found[1])):
        return None
    stored, step = found
    image = dicom_grey.grey_image_from_reduced(
        stored, header.dataset, step=step, rows=frame.rows, columns=frame.columns
    )
    # If the window seems to show nothing, all pixels must decide this. None makes the caller read in full resolution.
    return None if "presentation_ignored" in image.notes else image


def _grey_of_colour(stored: NDArray[Any], dataset: Dataset, step: int) -> Image:
    """Return the grey image of a colour secondary capture.

    The values are shown as stored. Header elements such as a window are ignored.
    """
    if stored.dtype.itemsize > 2:
        raise UnsuitableImage(reason("colour"))
    grey = grey_from_rgb(stored)
    bits = whole_number(dataset, "BitsStored", 8)
    if bits > 8 * grey.dtype.itemsize or grey.max() >= 2**bits:
        bits = 8 * grey.dtype.itemsize
    bare = Dataset()
    bare.BitsStored, bare.PhotometricInterpretation = bits, "MONOCHROME2"
    bare.ViewPosition = first_text(dataset, "ViewPosition")
    image = dicom_grey.grey_image(grey, bare, ("grey_from_colour",), step=step)
    return replace(image, window=Window((2**bits - 1) / 2, 2**bits - 1, "LINEAR_EXACT"))


# ---- the stored values of one frame


_FLOAT_TAGS: Final = {0x7FE00008: "f4", 0x7FE00009: "f8"}
_PIXEL_DATA: Final = 0x7FE00010
_PREAMBLE_BYTES: Final = 128
_ITEM: Final = 0xFFFEE000
_DELIMITER: Final = b"\xfe\xff\xdd\xe0"
# Bytes in which a JPEG states its process, after its metadata.
_HEAD_BYTES: Final = 2**16
_GREYS: Final = frozenset({"MONOCHROME1", "MONOCHROME2", "MONOCHROME"})


def _frame_of(header: DicomHeader) -> Frame:
    """Return the description of a frame from the header.

    Raises Unreadable if the header is contradictory. Raises the exception of `missing_pixels_problem` if the file has
    no pixel data.
    """
    dataset = header.dataset
    if header.pixel_element is None:
        raise missing_pixels_problem(header)
    rows, columns = whole_number(dataset, "Rows"), whole_number(dataset, "Columns")
    if rows < 1 or columns < 1:
        raise Unreadable(reason("damaged", detail="the header does not state the size of the image"))
    check_pixel_count(rows, columns)
    samples = whole_number(dataset, "SamplesPerPixel", 1)
    bits = whole_number(dataset, "BitsAllocated", 16)
    if samples not in (1, 3) or bits not in (1, 8, 16, 32, 64):
        raise Unreadable(reason("unsupported_pixels", detail=f"{samples} x {bits} bits"))
    is_grey = _photometric(header) in _GREYS and header.pixel_element.tag == _PIXEL_DATA
    stored = whole_number(dataset, "BitsStored", bits)
    high = whole_number(dataset, "HighBit", stored - 1)
    return Frame(
        transfer_syntax=header.transfer_syntax,
        rows=rows,
        columns=columns,
        samples_per_pixel=samples,
        bits_allocated=bits,
        bits_stored=stored,
        unused_low_bits=high + 1 - stored if stored - 1 < high < bits else 0,
        is_signed=whole_number(dataset, "PixelRepresentation") != 0,
        is_8_or_16_bit_grey=is_grey and samples == 1 and bits in (8, 16),
        padding_range=dicom_grey.padding_range_of(dataset),
        frame_count=max(1, whole_number(dataset, "NumberOfFrames", 1)),
        is_rgb=_photometric(header) == "RGB",
    )


def _pixel_value(header: DicomHeader, data: bytes) -> memoryview:
    """Return the value of the pixel data element.

    data  the file, or its inflated data set

    Raises Unreadable `truncated` if a part is missing. Raises the exception of `missing_pixels_problem` if the value is
    empty.
    """
    pixels = header.pixel_element
    assert pixels is not None
    rest = memoryview(data)[pixels.offset :]
    if pixels.length == 0:
        raise missing_pixels_problem(header)
    if pixels.is_encapsulated:
        return rest
    if pixels.length > len(rest):
        raise Unreadable(reason("truncated"))
    return rest[: pixels.length]


def _pixels_as_they_are(header: DicomHeader, frame: Frame, value: memoryview) -> tuple[DicomHeader, memoryview]:
    """Return the header with the transfer syntax that the pixel data really have, and the pixel data in that syntax.

    Raises Unreadable: `truncated` if a fragment is longer than the rest of the file; `damaged` if there are no
    fragments, or if the pixels contradict the header in an unknown way; `more_images` if there are more images than the
    header states.
    """
    assert header.pixel_element is not None
    stated, is_encapsulated = header.transfer_syntax, header.pixel_element.is_encapsulated
    fragments = list(_fragments(value)) if is_encapsulated else [value]
    if not fragments:
        raise Unreadable(reason("damaged", detail="the file has no image data"))
    begin_so = [transfer_syntax_of(bytes(part[:_HEAD_BYTES])) for part in fragments]
    found = begin_so[0] if is_encapsulated or stated not in UNCOMPRESSED_SYNTAXES else None
    if found is not None:
        _check_count(len(begin_so) - begin_so.count(None), frame)
        if frame.frame_count == 1:
            _check_count(count_codestreams(fragments[0]), frame)
        is_known = codec_of(found) is codec_of(stated)
        if is_known and is_encapsulated:
            return header, value
        if not is_encapsulated:
            value = memoryview(encapsulate([bytes(value)]))
        pixels = replace(header.pixel_element, length=UNDEFINED_LENGTH)
        syntax = stated if is_known else found
        return replace(header, transfer_syntax=syntax, pixel_element=pixels, states_wrong_transfer_syntax=True), value
    if is_encapsulated:
        size = _frame_bytes(header, frame)
        if len(fragments) == frame.frame_count and {len(part) for part in fragments} <= {size, size + size % 2}:
            value = memoryview(b"".join(part[:size] for part in fragments))
            pixels = replace(header.pixel_element, length=len(value))
            return replace(
                header, transfer_syntax=ExplicitVRLittleEndian, pixel_element=pixels, states_wrong_transfer_syntax=True
            ), value
        if stated in UNCOMPRESSED_SYNTAXES:
            raise Unreadable(unsupported_reason("", "unknown, and said to be none"))
        return header, value
    frames_held = len(value) // _frame_bytes(header, frame)
    if codec_of(stated) is None:
        _check_count(frames_held, frame)
        return header, value
    if frames_held != frame.frame_count:
        raise Unreadable(
            reason("damaged", detail="the compression of the image differs from the transfer syntax in the header")
        )
    return replace(header, transfer_syntax=ExplicitVRLittleEndian, states_wrong_transfer_syntax=True), value


def _check_count(found: int, frame: Frame) -> None:
    if found > frame.frame_count:
        raise Unreadable(reason("more_images", found=found, stated=frame.frame_count))


def _frame_bytes(header: DicomHeader, frame: Frame) -> int:
    is_subsampled = frame.samples_per_pixel == 3 and _photometric(header) == "YBR_FULL_422"
    return ceil(frame.size_bits / 8 * (2 / 3 if is_subsampled else 1))


def _compressed(frame: Frame, value: memoryview, index: int) -> Frame:
    """Return a copy of `frame` with the codestream of frame number `index`, as a codec needs it.

    Raises Unreadable `size_mismatch` if codestream and header state different sizes.
    """
    if frame.frame_count == 1 and index == 0:  # a single frame has all fragments, whatever the offset table says
        source = b"".join(_fragments(value))
    else:
        source = bytes(get_frame(bytes(value), index, number_of_frames=frame.frame_count))
    own = frame_header_of(source)
    if own and own.size != (frame.rows, frame.columns):
        found, stated = f"{own.rows} x {own.columns}", f"{frame.rows} x {frame.columns}"
        raise Unreadable(reason("size_mismatch", found=found, stated=stated))
    return replace(frame, codestream=source)


def _trailing_images(header: DicomHeader, data_set: bytes, value: memoryview, file: bytes) -> int:
    """Return the number of images after the pixels: a second Pixel Data element, or files joined to the end.

    data_set  the bytes that contain the pixels: the file, or the inflated data set
    file      the bytes of the whole file
    """
    assert header.pixel_element is not None
    if data_set is not file:
        return file.count(DICOM_PREFIX, 2 * _PREAMBLE_BYTES)
    end = header.pixel_element.offset + (
        _end_of_fragments(value) if header.pixel_element.is_encapsulated else len(value)
    )
    order = ">" if header.transfer_syntax == ExplicitVRBigEndian else "<"
    (group,) = struct.unpack(order + "H", file[end : end + 2].ljust(2, b"\0"))
    behind = file[end : end + _HEAD_BYTES].lstrip(b"\0")  # perhaps the beginning of another file
    content = sniff(behind)
    is_dicom = behind.startswith(b"DICM") or (content == "dicom" and behind[4:6] in VALUE_REPRESENTATIONS)
    is_image = is_dicom or content in ("png", "jpeg")
    return max(group == _PIXEL_DATA >> 16 or is_image, file.count(DICOM_PREFIX, end + _PREAMBLE_BYTES))


_CUT_SHARE: Final = 0.01
_ROWS_ABOVE: Final = 8


def _check_lower_part(header: DicomHeader, frame: Frame, value: memoryview) -> None:
    """Raise Unreadable `lower_part_empty` if uncompressed pixels are zero from within a row to the end of the image.

    An interrupted copy leaves zeros if the space for the file was allocated first. A collimator does not end within a
    row. Images whose zeros begin with a row are judged later, by the position of the lungs.
    """
    row_bytes = frame.columns * frame.samples_per_pixel * frame.bits_allocated // 8
    if (
        header.transfer_syntax not in UNCOMPRESSED_SYNTAXES
        or frame.frame_count > 1
        or len(value) < frame.rows * row_bytes
    ):
        return
    if row_bytes == 0 or any(value[(frame.rows - 1) * row_bytes : frame.rows * row_bytes]):
        return
    rows = np.frombuffer(value, np.uint8, frame.rows * row_bytes).reshape(frame.rows, row_bytes)
    filled = int(np.flatnonzero(rows.any(axis=1))[-1]) + 1 if rows.any() else 0
    share = 1 - filled / frame.rows
    if filled <= _ROWS_ABOVE:
        return
    # position of the last nonzero value in the last filled row, in the row above, and in a row further up
    last, above, further = (
        int(np.flatnonzero(rows[at])[-1]) if rows[at].any() else 0
        for at in (filled - 1, filled - 2, filled - _ROWS_ABOVE)
    )
    is_cut = above - last > 0.02 * row_bytes and above >= further - 0.01 * row_bytes
    if share >= _CUT_SHARE and is_cut:
        raise Unreadable(reason("lower_part_empty", percent=round(100 * share)))


def _stored_values(header: DicomHeader, frame: Frame, value: memoryview, index: int) -> NDArray[Any]:
    """Return the stored values of one frame: (rows, columns), or (rows, columns, 3) as RGB."""
    pixels, syntax = header.pixel_element, header.transfer_syntax
    assert pixels is not None
    if pixels.tag in _FLOAT_TAGS:
        return _floats(frame, value, index, _FLOAT_TAGS[pixels.tag])
    if codec := codec_of(syntax):
        frame = _compressed(frame, value, index)
        values = codec.decode(frame)
        if values.shape != (frame.rows, frame.columns, 3)[: 3 if frame.samples_per_pixel == 3 else 2]:
            raise Unreadable(reason("damaged", detail="the type of the pixel data differs from the header"))
    elif syntax in UNCOMPRESSED_SYNTAXES:
        values = _native(header, frame, value, index)
    else:
        raise Unreadable(unsupported_reason(syntax, syntax.name))
    # decoders convert YBR to RGB for JPEG and JPEG 2000 only
    if (
        frame.samples_per_pixel == 3
        and not frame.is_lossy_jpeg
        and _photometric(header) in ("YBR_FULL", "YBR_FULL_422")
    ):
        values = convert_color_space(values, "YBR_FULL", "RGB")
    return stored_values_from_decoded(values, frame)


def _photometric(header: DicomHeader) -> str:
    return first_text(header.dataset, "PhotometricInterpretation").upper()


def _floats(frame: Frame, value: memoryview, index: int, kind: str) -> NDArray[Any]:
    count = frame.rows * frame.columns
    size = count * np.dtype(kind).itemsize
    if (index + 1) * size > len(value):
        raise Unreadable(reason("truncated"))
    return np.frombuffer(value, "<" + kind, count, index * size).reshape(frame.rows, frame.columns)


# ---- uncompressed pixel data


def _native(header: DicomHeader, frame: Frame, value: memoryview, index: int) -> NDArray[Any]:
    """Return the uncompressed values of a frame (PS3.5 8.1.1).

    The samples of a pixel come last: (rows, columns) or (rows, columns, 3).
    """
    assert header.pixel_element is not None
    shape, is_big = (frame.rows, frame.columns), header.transfer_syntax == ExplicitVRBigEndian
    if frame.bits_allocated == 1:  # frames may begin within a byte
        start, end = index * frame.size_bits, (index + 1) * frame.size_bits
        if end > 8 * len(value):
            raise Unreadable(reason("truncated"))
        bits: NDArray[Any] = np.unpackbits(np.frombuffer(value, np.uint8), count=end, bitorder="little")
        return bits[start:].reshape(shape)
    size = _frame_bytes(header, frame)
    if (index + 1) * size > len(value):
        raise Unreadable(reason("truncated"))
    if (
        is_big and frame.bits_allocated == 8 and header.pixel_element.value_representation == "OW"
    ):  # bytes are swapped in pairs
        value = memoryview(np.frombuffer(value, np.uint16, len(value) // 2).byteswap().tobytes())
    kind = np.dtype(frame.value_type).newbyteorder(">" if is_big else "<")
    flat = np.frombuffer(value, kind, size // kind.itemsize, index * size).astype(frame.value_type, copy=False)
    if frame.samples_per_pixel == 1:
        return flat.reshape(shape)
    if _photometric(header) == "YBR_FULL_422":  # two of Y, then one Cb and one Cr for both (PS3.3 C.7.6.3.1.2)
        pairs = flat.reshape(-1, 4)
        flat = np.stack([pairs[:, :2], *(pairs[:, [at, at]] for at in (2, 3))], axis=2)
    elif whole_number(header.dataset, "PlanarConfiguration"):
        return np.ascontiguousarray(np.moveaxis(flat.reshape(3, *shape), 0, 2))
    return flat.reshape(*shape, 3)


# ---- fragments of encapsulated pixel data


def _fragments(value: memoryview) -> Iterator[memoryview]:
    """Yield the fragments of encapsulated pixel data, without the offset table that comes first (PS3.5 A.4)."""
    return (value[start:end] for start, end in itertools.islice(_items(value), 1, None))


def _items(value: memoryview) -> Iterator[tuple[int, int]]:
    """Yield start and end of the value of each item in encapsulated pixel data. Raises Unreadable `truncated`."""
    position = 0
    while position + 8 <= len(value):
        group, element, length = struct.unpack("<HHI", value[position : position + 8])
        if group << 16 | element != _ITEM:
            break
        position += 8 + length
        if position > len(value):
            raise Unreadable(reason("truncated"))
        yield position - length, position


def _end_of_fragments(value: memoryview) -> int:
    """Return the offset at which encapsulated pixel data end. A delimiter belongs to the pixel data."""
    end = max((end for _, end in _items(value)), default=0)
    return end + 8 if bytes(value[end : end + 4]) == _DELIMITER else end
