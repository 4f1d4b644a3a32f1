"""Identification of a file by its first bytes, never by its name: images, a DICOMDIR, or a zip file.

Every size that a file states is checked before memory is allocated (see `imaging.limits`).
"""

from __future__ import annotations

import io
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO, Final, Literal, NamedTuple

from fieldray.domain.image import FileKind, ImageHeader, ImageRef
from fieldray.errors import FieldrayError, InputProblem, Unreadable, UnsuitableImage, WorkerProblem, resource_problem
from fieldray.imaging.limits import MAX_FILE_BYTES, MAX_PIXELS, VALUE_REPRESENTATIONS, DicomdirFound, ZipFound
from fieldray.reasons import reason

ContentKind = Literal["dicom", "png", "jpeg", "zip", "executable", "unknown"]

# Enough for the preamble, the DICOM prefix and the first element after it.
FILE_HEAD_BYTES: Final = 512

_PNG: Final = b"\x89PNG\r\n\x1a\n"
DICOM_PREFIX: Final = b"DICM\x02\x00"  # between the preamble and the file meta information
_ZIPS: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_PROGRAMS: Final = (
    b"MZ",
    b"\x7fELF",
    *(struct.pack(order + "I", magic) for order in "<>" for magic in (0xFEEDFACE, 0xFEEDFACF, 0xCAFEBABE)),
)
_ZIP_END: Final = struct.Struct("<12xI4xH")  # size of the central directory, and of a comment (APPNOTE 4.3.16)
# Images of other kinds (TIFF, BMP, GIF, JPEG 2000, WebP), and other archives (gzip, 7z, RAR, xz, tar). They may hold
# X-rays, so they are refused with a reason and not ignored.
_OF_OTHER_KINDS: Final = re.compile(
    rb"(?P<other_image>II\*\0|MM\0\*|BM.{4}\0{4}|GIF8|\0\0\0\x0cjP  |\xff\x4f\xff\x51|RIFF.{4}WEBP)"
    rb"|(?P<packed_otherwise>\x1f\x8b\x08|7z\xbc\xaf|Rar!\x1a|\xfd7zXZ|.{257}ustar)",
    re.DOTALL,
)
# ITU-T T.81 table B.1 (SOF0 to SOF15 without DHT, JPG and DAC) and T.87 C.1.1 (SOF55).
_FRAME_MARKERS: Final = frozenset({*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC})
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xDA)})
_PROGRESSIVE: Final = 0xC2
_LOSSLESS: Final = 0xC3
_MAX_ROWS: Final = 65_500  # maximum of libjpeg-turbo
JPEG_RESTART_MARKERS: Final = range(0xD0, 0xD8)
JPEG_START_OF_SCAN: Final = 0xDA
_INTERVAL: Final = 0xDD
_END_OF_IMAGE: Final = 0xD9
_MARKER: Final = re.compile(rb"\xff(?!\x00)\xff*([\x01-\xfe])")  # 50 times as fast as \xff+ over stuffed bytes


def sniff(head: bytes) -> ContentKind:
    """Return the kind of content that begins with these bytes.

    head  at least 132 bytes, unless the file is shorter
    """
    if head[128:132] == b"DICM":  # a preamble may hold a program, which would start if a person opens the file
        return "executable" if head.startswith(_PROGRAMS) else "dicom"
    if head.startswith(_PNG):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(_ZIPS):
        return "zip"
    return "dicom" if _begins_with_element(head) else "unknown"


def _begins_with_element(head: bytes) -> bool:
    """Return whether bytes begin with a data element of group 0002 or 0008.

    Such bytes are the beginning of a DICOM file without preamble (PS3.10 7.1).
    """
    if len(head) < 12:
        return False
    group, element = struct.unpack("<HH", head[:4])
    if group in (0x0200, 0x0800):  # big-endian DICOM always has value representations
        return head[4:6] in VALUE_REPRESENTATIONS
    if group not in (0x0002, 0x0008):
        return False
    (length,) = struct.unpack("<I", head[4:8])
    return head[4:6] in VALUE_REPRESENTATIONS or (length % 2 == 0 and length <= 64 and element <= 0x0100)


def png_size(head: bytes) -> tuple[int, int] | None:
    """Return (rows, columns) from the first chunk of a PNG; None if the PNG is cut short."""
    if head[12:16] != b"IHDR" or len(head) < 24:
        return None
    columns, rows = struct.unpack(">II", head[16:24])
    return rows, columns


class JpegFrame(NamedTuple):
    """The frame header of a JPEG or JPEG-LS file: size, precision and coding process.

    coding_process   marker of the header, which names the coding process (T.81 table B.1, T.87 C.1.1)
    bits_per_sample  bits per sample
    header_offset    offset of the header in the file
    """

    coding_process: int
    bits_per_sample: int
    rows: int
    columns: int
    header_offset: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """The size of the JPEG image: (rows, columns) in pixels."""
        return self.rows, self.columns


def jpeg_frame(data: bytes) -> JpegFrame | None:
    """Return the first JPEG or JPEG-LS frame header in `data`; None if `data` has no frame header."""
    for marker, start in jpeg_markers(data):
        if marker in _FRAME_MARKERS and start + 7 <= len(data):
            bits, rows, columns = struct.unpack(">BHH", data[start + 2 : start + 7])
            return JpegFrame(marker, bits, rows, columns, start)
        if marker == JPEG_START_OF_SCAN:
            break
    return None


def jpeg_end_offset(data: bytes) -> int | None:
    """Return the offset after the end-of-image marker of a JPEG; None if the marker is missing."""
    end = next((position for marker, position in jpeg_markers(data) if marker == _END_OF_IMAGE), None)
    if end is not None:
        return end
    # a segment with a wrong length may have hidden the marker
    return len(data) if b"\xff\xd9" in data.rstrip(b"\0")[-3:] else None


class JpegWithExtraRows(NamedTuple):
    """A single-scan JPEG whose header states additional rows. These rows show whether the scan is cut off.

    libjpeg-turbo silently invents the missing part of a scan. The rest of the row (of blocks, or of lossless pixels) in
    which the scan ends is filled with zeros, and all rows below with middle grey. After a complete scan the additional
    rows begin with zeros; after an incomplete scan they are middle grey.

    rows         number of real rows
    test_row     index of an additional row whose first pixel is tested; 0 if the JPEG has no such row, as with several
                 scans
    middle_grey  the sample value of middle grey
    """

    data: bytes
    rows: int
    test_row: int
    middle_grey: int

    def may_lack_pixels(self, first_pixel: Iterable[int]) -> bool:
        """Return whether the scan of the JPEG may be cut off, judged by an additional row of the decoded image.

        first_pixel  decoded samples of the first pixel of `test_row`
        """
        return self.test_row == 0 or all(value == self.middle_grey for value in first_pixel)


def jpeg_with_extra_rows(data: bytes) -> JpegWithExtraRows:
    """Return a JPEG whose header states additional rows. After decoding, these rows show whether the scan was cut off.

    Some JPEGs, such as progressive JPEGs, get no additional rows; `ExtendedJpeg.test_row` is then 0. Raises ValueError
    for data that are no JPEG.
    """
    if (frame := jpeg_frame(data)) is None:
        raise ValueError("no JPEG")
    scanned = next((data[start + 2] for marker, start in jpeg_markers(data) if marker == JPEG_START_OF_SCAN), 0)
    components, at, block = data[frame.header_offset + 7], frame.header_offset + 3, _unit_size(data, frame)[0]
    below = -(-frame.rows // block) * block
    if frame.coding_process == _PROGRESSIVE or scanned != components or not 0 < below <= _MAX_ROWS - block:
        return JpegWithExtraRows(data, frame.rows, 0, 0)
    stated = data[:at] + (below + block).to_bytes(2, "big") + data[at + 2 :]
    return JpegWithExtraRows(stated, frame.rows, below + block // 2, 1 << (frame.bits_per_sample - 1))


def _unit_size(data: bytes, frame: JpegFrame) -> tuple[int, int]:
    """Return (rows, columns) of a minimum coded unit of a JPEG that has all components in one scan (T.81 A.2)."""
    count, at = data[frame.header_offset + 7], frame.header_offset + 8
    sampled = data[at + 1 : at + 3 * count : 3] if count > 1 else b""
    side = 1 if frame.coding_process == _LOSSLESS else 8
    return side * max((1, *(each & 15 for each in sampled))), side * max((1, *(each >> 4 for each in sampled)))


def lacks_restart_markers(data: bytes) -> bool:
    """Return whether a JPEG has fewer restart markers than one scan needs.

    libjpeg-turbo would fill the missing intervals with invented pixels.
    """
    frame, found = jpeg_frame(data), list(jpeg_markers(data))
    stated = [int.from_bytes(data[start + 2 : start + 4], "big") for marker, start in found if marker == _INTERVAL]
    if frame is None or not (interval := max(stated, default=0)):
        return False
    rows, columns = _unit_size(data, frame)
    units = -(-frame.rows // rows) * -(-frame.columns // columns)
    return sum(marker in JPEG_RESTART_MARKERS for marker, _ in found) < -(-units // interval) - 1


def lacks_scans(data: bytes) -> bool:
    """Return whether a progressive JPEG lacks scans, so that AC coefficients of its first component are not exact."""
    frame = jpeg_frame(data)
    scans = [data[start + 2 : start + 8] for marker, start in jpeg_markers(data) if marker == JPEG_START_OF_SCAN]
    exact = set[int]()
    for scan in scans:
        count, component, _, first, until, precision = scan.ljust(6, b"\0")
        if count == 1 and component == scans[0][1] and not precision & 15:
            exact.update(range(first, until + 1))
    return frame is not None and frame.coding_process == _PROGRESSIVE and len(exact - {0}) < 63


def jpeg_markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker of a JPEG after the first, with the offset of the following data, up to the end of image.

    Stray bytes and fill bytes before a marker are skipped, as all decoders do.
    """
    position = 2
    while found := _MARKER.search(data, position):
        marker, position = found[1][0], found.end()
        yield marker, position
        if marker == _END_OF_IMAGE:
            return
        if marker not in _WITHOUT_LENGTH and position + 2 <= len(data):
            position += struct.unpack(">H", data[position : position + 2])[0]


def count_trailing_images(data: bytes, end: int) -> int:
    """Return the number of DICOM and PNG files that were appended to an image in one file.

    data  the whole file
    end   offset of the end of the image
    """
    return data.count(_PNG, end) + data.count(DICOM_PREFIX, end + 128)


def trailing_jpeg_frames(data: bytes, end: int) -> list[JpegFrame]:
    """Return the frame headers of JPEG files that were appended to an image in one file.

    JPEGs that are embedded in the appended files do not count.

    data  the whole file
    end   offset of the end of the image
    """
    frames = list[JpegFrame]()
    while (end := data.find(b"\xff\xd8\xff", end)) >= 0:
        rest = data[end:]
        frames += [frame] if (frame := jpeg_frame(rest)) else []
        end += jpeg_end_offset(rest) or 3
    return frames


log = logging.getLogger(__name__)

# Bytes in which a JPEG states its size, after metadata that may hold a thumbnail and a colour profile.
_JPEG_HEAD_BYTES = 2**18


def identify(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | DicomdirFound | ZipFound:
    """Identify the content of a file, read from a seekable stream: images, a DICOMDIR, or a zip file.

    Returns one reference for every frame, made from `ref`, or the DICOMDIR or zip file found. Raises OSError,
    WorkerProblem. Raises Unreadable or UnsuitableImage for a file without a usable image, whatever exception the parser
    raised.
    """
    try:
        return _identified(stream, ref)
    except (FieldrayError, OSError):
        raise
    except MemoryError as error:
        raise out_of_memory_problem() from error
    except Exception as error:
        log.exception("identifying a file")
        raise Unreadable(reason("internal", detail=type(error).__name__)) from error


def out_of_memory_problem() -> Unreadable:
    """Return the exception for a file that caused a MemoryError.

    The file then counts as unreadable, and the run goes on.
    """
    return Unreadable(reason("damaged", detail="there is not enough memory to read the file"))


def _identified(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | DicomdirFound | ZipFound:
    stream.seek(0)
    head = stream.read(FILE_HEAD_BYTES)
    if not head:
        raise Unreadable(reason("empty"))
    content = sniff(head)
    if content == "executable":
        raise Unreadable(reason("executable"))
    if content == "zip":
        return ZipFound()
    if content == "png":
        return [_raster(ref, "png", png_size(head))]
    if content == "jpeg":
        stream.seek(0)
        frame = jpeg_frame(stream.read(_JPEG_HEAD_BYTES))
        return [_raster(ref, "jpeg", frame.size if frame else None)]
    if content == "unknown":
        if head.startswith(_PROGRAMS) and _ends_as_zip(stream):
            return ZipFound()
        if (other := _OF_OTHER_KINDS.match(head)) and other.lastgroup:
            raise UnsuitableImage(reason(other.lastgroup))
        # zeros only: a power cut interrupted the writing of the file
        is_empty = not any(head) and not any(stream.read(_JPEG_HEAD_BYTES))
        raise Unreadable(reason("truncated")) if is_empty else UnsuitableImage(reason("not_an_image"))
    try:  # imported only for DICOM: pydicom takes a third of a second to load
        from fieldray.imaging.dicom_identify import identify_dicom
    except Exception as error:  # a shortage of memory or files is no fault of the file
        problem = resource_problem(error)
        raise (WorkerProblem(problem.reason) if problem else error) from error
    return identify_dicom(stream, ref)


def _ends_as_zip(stream: BinaryIO) -> bool:
    """Return whether the file is a program that unpacks a zip file at its own end (APPNOTE 4.1.9 and 4.3.16)."""
    size = stream.seek(0, io.SEEK_END)
    start = stream.seek(max(0, size - _ZIP_END.size - 0xFFFF))
    tail = stream.read()
    if (at := tail.rfind(b"PK\x05\x06")) < 0 or len(tail) - at < _ZIP_END.size:
        return False
    listing_bytes, comment_bytes = _ZIP_END.unpack_from(tail, at)
    listing_at = start + at - listing_bytes
    if at + _ZIP_END.size + comment_bytes != len(tail) or listing_bytes == 0 or listing_at < 0:
        return False
    stream.seek(listing_at)
    return stream.read(4) == b"PK\x01\x02"


def identify_bytes(data: bytes, ref: ImageRef) -> ImageRef:
    """Return `ref` with kind and header as read from the bytes to be screened.

    The file may have changed since discovery, which made `ref`.

    data  the whole file

    Raises Unreadable `changed` if the file no longer contains the listed images: the number of frames differs, or the
    file is now an index or a zip file. Raises Unreadable and UnsuitableImage for other problems.
    """
    found = identify(io.BytesIO(data), ImageRef(path=ref.path, zip_member=ref.zip_member))
    if not isinstance(found, list) or len(found) != ref.header.number_of_frames:
        raise Unreadable(reason("changed"))
    (again,) = (one for one in found if one.frame == ref.frame)
    if again.problem:
        raise UnsuitableImage(again.problem)
    return again


def _raster(ref: ImageRef, kind: FileKind, size: tuple[int, int] | None) -> ImageRef:
    rows, columns = size or (0, 0)
    return replace(ref, kind=kind, header=ImageHeader(rows=rows, columns=columns))


def check_pixel_count(rows: int, columns: int) -> None:
    """Raise Unreadable `too_large` for more than 400 million pixels."""
    if rows * columns > MAX_PIXELS:
        raise Unreadable(reason("too_large", detail=f"{rows} x {columns}"))


def check_file_size(size_bytes: int) -> None:
    """Raise Unreadable `file_too_large` for more than 1 GB, `empty` for 0 bytes."""
    if size_bytes == 0:
        raise Unreadable(reason("empty"))
    if size_bytes > MAX_FILE_BYTES:
        raise Unreadable(reason("file_too_large", size_mb=size_bytes // 2**20))


_OWN_REPORT_BYTES: Final = 2**15


IsOwnReport = Callable[[bytes], bool]


def identify_unless_own_report(
    stream: BinaryIO, ref: ImageRef, is_own_report: IsOwnReport
) -> list[ImageRef] | DicomdirFound | ZipFound | None:
    """Identify the content of a stream as `identify` does. Returns None for a report of this program.

    Raises UnsuitableImage `own_image` for an image that this program wrote.
    """
    try:
        found = identify(stream, ref)
    except UnsuitableImage as error:
        if error.reason.code in ("not_an_image", "no_pixel_data") and _is_own(stream, is_own_report):
            return None
        raise
    # A secondary capture in the folder of reports, or a map next to its image, is refused and not left out. Otherwise
    # anybody could hide a patient's image by adding the mark of a report.
    if isinstance(found, list) and found[0].kind in ("dicom", "png") and _is_own(stream, is_own_report):
        raise UnsuitableImage(reason("own_image"))
    return found


def _is_own(stream: BinaryIO, is_own_report: IsOwnReport) -> bool:
    stream.seek(0)
    return is_own_report(stream.read(_OWN_REPORT_BYTES))


def ref_with_problem(ref: ImageRef, error: InputProblem) -> ImageRef:
    """Return the reference to an image, with the problem that an exception describes."""
    return replace(ref, problem=error.reason, problem_is_refusal=isinstance(error, UnsuitableImage))
