"""The part of a DICOM file before its pixel data, with limits on everything that a hostile file could inflate.

pydicom parses the elements, but inflates and allocates memory without limits. pydicom therefore reads from a stream
that never returns more bytes than the file has, or more than a header may have. A deflated data set is inflated only up
to a limit. A value is converted only if its length is plausible for its kind, because a list of numbers takes a hundred
times as much memory as its bytes.
"""

from __future__ import annotations

import io
import logging
import math
import struct
import warnings
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from pydicom import config
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataelem import DataElement_from_raw, RawDataElement
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset, read_sequence
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian, ExplicitVRLittleEndian
from pydicom.uid import ImplicitVRLittleEndian as ImplicitLittle

from fieldray.errors import FieldrayError, Unreadable, UnsuitableImage
from fieldray.imaging.dicom_text import decode_text
from fieldray.imaging.limits import MAX_DICOMDIR_RECORDS, MAX_HEADER_BYTES, VALUE_REPRESENTATIONS
from fieldray.reasons import reason

# ---- The stream from which a DICOM header is read, with limits.

MAX_HEADER_READS: Final = 400_000
# Maximum bytes of an element with texts or decimal numbers, each of which becomes an object.
_MAX_TEXT_BYTES: Final = 2**13
# Each item becomes an object of a kilobyte. Each record of an index file may contain one more item, an icon.
_MAX_ITEMS: Final = 2 * MAX_DICOMDIR_RECORDS
_ITEM: Final = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
_ELEMENT_BYTES: Final = 8
_CHARACTER_SETS: Final = (b"\x08\x00\x05\x00", b"\x00\x08\x00\x05")


class HeaderTooLong(ValueError):
    """The header is longer than the limit up to which headers are read."""


class BoundedStream:
    """A stream with limits, from which pydicom reads a header.

    A read never returns, or allocates memory for, more bytes than are left in the file. Reads raise HeaderTooLong
    beyond a number of reads, bytes or sequence items.

    is_truncated  whether more bytes were requested than the file has
    """

    def __init__(self, raw: BinaryIO, *, reads: int = MAX_HEADER_READS) -> None:
        self.raw = raw
        self.is_truncated = False
        self._end = raw.seek(0, io.SEEK_END)
        self._reads_left = reads
        self._items_left = _MAX_ITEMS
        self._bytes_left = MAX_HEADER_BYTES
        self._element = b""
        raw.seek(0)
        self.tell = raw.tell

    def peek(self) -> bytes:
        """Return the first bytes of the next element. The position of the stream stays unchanged."""
        start = self.raw.tell()
        head = self.raw.read(_ELEMENT_BYTES)
        self.raw.seek(start)
        return head

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = self.raw.seek(offset, whence)
        self.is_truncated = self.is_truncated or position > self._end
        return position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self.raw.tell())
        wanted = left if size < 0 else size
        if wanted > left > 0:
            self.is_truncated = True
        wanted = min(wanted, left)
        self._reads_left -= 1
        self._bytes_left -= wanted
        if self._reads_left < 0 or self._bytes_left < 0:
            raise HeaderTooLong("the header is longer than a header may be")
        if wanted > _MAX_TEXT_BYTES and self._element.startswith(_CHARACTER_SETS):
            raise ValueError("more character sets than there are")  # pydicom converts character sets at once
        data = self.raw.read(wanted)
        if wanted == _ELEMENT_BYTES:
            self._note(data)
        return data

    def _note(self, element: bytes) -> None:
        """Record the first bytes of an element that pydicom has parsed, and count sequence items."""
        self._element = element
        self._items_left -= element.startswith(_ITEM)
        if self._items_left < 0:
            raise HeaderTooLong("more items than a header may hold")


UNDEFINED_LENGTH: Final = 0xFFFFFFFF
_PIXEL_DATA: Final = 0x7FE00010
_PIXEL_TAGS: Final = frozenset({0x7FE00008, 0x7FE00009, _PIXEL_DATA})
_DELIMITERS: Final = 0xFFFE  # group of sequence items and delimiters, which have no value representation
_SYNTAX: Final = 0x00020010
_MEDIA_CLASS: Final = 0x00020002
DICOMDIR_CLASS_UID: Final = "1.2.840.10008.1.3.10"
_UNCOMPRESSED: Final = frozenset({ImplicitLittle, ExplicitVRLittleEndian, ExplicitVRBigEndian})
_LONG_REPRESENTATIONS: Final = frozenset(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
_TEXT_LIMIT: Final = 200
# Maximum bytes of any other element, such as a lookup table.
_MAX_BINARY_BYTES: Final = 2**18
_NO_NUMBER: Final = 2**31
_OF_BYTES: Final = frozenset(["OB", "OW", "UN"])
_OF_WORDS: Final = frozenset(["US", "UL", "SS", "SL"])
_BINARY: Final = frozenset(
    ["AT", "FD", "FL", "OB", "OD", "OF", "OL", "OV", "OW", "SL", "SS", "SV", "UL", "UN", "US", "UV"]
)


# pydicom reports every departure from the standard, and archives are full of departures. pydicom also logs values, and
# names of patients do not belong in a log. Relevant problems are in the image's notes or in the reason.
config.settings.reading_validation_mode = config.IGNORE
logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
warnings.filterwarnings("ignore", module="pydicom")


@dataclass(frozen=True, slots=True)
class PixelElement:
    """The position of the pixel data in a stream.

    tag                   group << 16 | element
    value_representation  value representation, such as "OW"
    offset                offset of the value in the stream
    length                length of the value in bytes, as stated in the file
    """

    tag: int
    value_representation: str
    offset: int
    length: int

    @property
    def is_encapsulated(self) -> bool:
        """Whether the pixel data are compressed frames in a sequence of items (PS3.5 A.4)."""
        return self.length == UNDEFINED_LENGTH


@dataclass(frozen=True, eq=False, slots=True)
class DicomHeader:
    """The requested elements of a DICOM header, and the position of the pixels.

    transfer_syntax               the file's real transfer syntax, even if the file states an impossible transfer syntax
    media_storage_sop_class_uid   from the file meta information
    stream                        the file, or the inflated data set of a deflated file. Seek before reading
    pixel_element                 position of the pixel data; None if the data set ends without pixel data
    is_truncated                  whether the file ended inside an element
    states_wrong_transfer_syntax  whether the file states a transfer syntax that differs from `transfer_syntax`
    """

    dataset: Dataset
    transfer_syntax: UID
    media_storage_sop_class_uid: str
    stream: BinaryIO
    pixel_element: PixelElement | None
    is_truncated: bool
    states_wrong_transfer_syntax: bool = False


def read_header(
    stream: BinaryIO, keywords: Sequence[str], *, max_inflated_bytes: int = MAX_HEADER_BYTES
) -> DicomHeader:
    """Read the elements named by `keywords`, up to the pixel data, from a seekable stream.

    max_inflated_bytes  maximum number of bytes to inflate of a deflated data set

    Raises ValueError for data that are not DICOM, and any exception of pydicom for contradictory elements. Raises
    Unreadable `damaged` if an element of an unknown value representation cannot be skipped.
    """
    begun = open_dicom(stream, max_inflated_bytes)
    media_storage_sop_class_uid = begun.file_meta_texts.get(_MEDIA_CLASS, "")
    tags: list[Any] = [tag_for_keyword(keyword) for keyword in keywords]

    def ends(tag: int, representation: str | None, length: int) -> bool:
        if (
            media_storage_sop_class_uid == DICOMDIR_CLASS_UID or tag in _PIXEL_TAGS
        ):  # the records of an index are read one by one
            return True
        is_known = (representation or "").encode("ascii", "replace") in VALUE_REPRESENTATIONS
        is_known = is_known or begun.is_implicit_vr or tag >> 16 == _DELIMITERS or length == UNDEFINED_LENGTH
        return not is_known and not _element_may_begin_at(begun, begun.stream.tell() + length, tag)

    dataset = Dataset()
    while True:
        part = read_dataset(
            begun.stream, begun.is_implicit_vr, begun.is_little_endian, stop_when=ends, specific_tags=tags
        )
        part.update(dataset)
        dataset = part
        if media_storage_sop_class_uid == DICOMDIR_CLASS_UID or not _skip_unknown(begun):
            break
    pixels = element_at_stream_position(begun, _PIXEL_TAGS)
    is_cut, has_wrong_syntax = begun.stream.is_truncated, begun.states_wrong_transfer_syntax
    return DicomHeader(
        dataset, begun.transfer_syntax, media_storage_sop_class_uid, begun.stream.raw, pixels, is_cut, has_wrong_syntax
    )


def _element_may_begin_at(begun: OpenedDicom, position: int, tag: int) -> bool:
    """Return whether a further element may begin at a position of the stream.

    The further element must have a higher tag than `tag`. In addition it must have a known value representation, or the
    group of `tag`.
    """
    stream, order = begun.stream.raw, "<" if begun.is_little_endian else ">"
    here = stream.tell()
    stream.seek(position)
    head = stream.read(_ELEMENT_BYTES)
    stream.seek(here)
    if len(head) < _ELEMENT_BYTES:
        return False
    group, element = struct.unpack(order + "HH", head[:4])
    return group << 16 | element > tag and (head[4:6] in VALUE_REPRESENTATIONS or group == tag >> 16)


def _skip_unknown(begun: OpenedDicom) -> bool:
    """Skip the element at which the parser stopped, if the element's value representation is unknown.

    Returns whether an element was skipped. Three encodings of the element's length are tried: 16 bits, 32 bits after
    two zero bytes (PS3.5 7.1.2), and 32 bits directly after the tag. Raises Unreadable if none of the three leads to a
    further element.
    """
    stream, order = begun.stream.raw, "<" if begun.is_little_endian else ">"
    start = stream.tell()
    head = stream.read(_ELEMENT_BYTES + 4)
    stream.seek(start)
    if begun.is_implicit_vr or len(head) < _ELEMENT_BYTES + 4 or head[4:6] in VALUE_REPRESENTATIONS:
        return False
    group, element, _, short, long = struct.unpack(order + "HHHHI", head)
    if (tag := group << 16 | element) in _PIXEL_TAGS:
        return False
    (implicit,) = struct.unpack(order + "I", head[4:8])
    for end in (start + 12 + long, start + 8 + short, start + 8 + implicit):
        if _element_may_begin_at(begun, end, tag):
            stream.seek(end)
            return True
    raise Unreadable(reason("damaged", detail=f"element ({group:04X},{element:04X}) of its header cannot be read"))


def missing_pixels_problem(header: DicomHeader) -> FieldrayError:
    """Return the exception for a file without pixels.

    The exception is Unreadable `truncated` if the header says that the file should have an image, else UnsuitableImage
    `no_pixel_data`.
    """
    dataset = header.dataset
    kind = UID(first_text(dataset, "SOPClassUID") or header.media_storage_sop_class_uid).name
    if header.is_truncated or "Image Storage" in kind or whole_number(dataset, "Rows"):
        return Unreadable(reason("truncated"))
    return UnsuitableImage(reason("no_pixel_data", modality=first_text(dataset, "Modality") or "-"))


@dataclass(frozen=True, slots=True)
class OpenedDicom:
    """A DICOM file whose file meta information was read.

    stream                        a `BoundedStream`, positioned at the data set
    file_meta_texts               texts of the file meta information, by tag
    transfer_syntax               the transfer syntax
    data_set_encoding             encoding of the data set's elements, as one of the three uncompressed transfer
                                  syntaxes
    states_wrong_transfer_syntax  whether the file states an encoding that differs from `data_set_encoding`
    """

    stream: Any  # a BoundedStream, but pydicom's types require a file
    file_meta_texts: Mapping[int, str]
    transfer_syntax: UID
    data_set_encoding: UID
    states_wrong_transfer_syntax: bool = False

    @property
    def is_implicit_vr(self) -> bool:
        """Whether the elements of the data set are written without their value representation (Implicit VR)."""
        return bool(self.data_set_encoding == ImplicitLittle)

    @property
    def is_little_endian(self) -> bool:
        """Whether the elements of the data set have little-endian byte order."""
        return bool(self.data_set_encoding != ExplicitVRBigEndian)


def open_dicom(stream: BinaryIO, max_inflated_bytes: int, *, max_reads: int = MAX_HEADER_READS) -> OpenedDicom:
    """Read the file meta information of a DICOM file.

    max_inflated_bytes  maximum number of bytes to inflate of a deflated data set
    max_reads           maximum number of reads for the data set

    Raises ValueError if the file has no data set after the meta information.
    """
    bounded = BoundedStream(stream, reads=max_reads)
    meta = _read_meta(bounded)
    syntax = UID(meta.get(_SYNTAX, ""))
    if syntax == DeflatedExplicitVRLittleEndian:
        start = stream.tell()
        try:
            plain, is_whole = _inflate(stream, max_inflated_bytes)
            bounded = BoundedStream(io.BytesIO(plain), reads=max_reads)
            bounded.is_truncated = not is_whole
        except ValueError:  # perhaps the data set is not deflated
            stream.seek(start)
            if not _is_plausible_start(bounded.peek(), ExplicitVRLittleEndian):
                raise
            return OpenedDicom(
                bounded, meta, ExplicitVRLittleEndian, ExplicitVRLittleEndian, states_wrong_transfer_syntax=True
            )
    head = bounded.peek()
    if not syntax:
        guessed = _guessed_encoding(head)
        return OpenedDicom(bounded, meta, guessed, guessed)
    stated = syntax if syntax in _UNCOMPRESSED else ExplicitVRLittleEndian
    found = _encoding(head, stated)
    if head and not _is_plausible_start(head, found):
        raise ValueError("no data set begins so")
    return OpenedDicom(
        bounded, meta, found if syntax == stated else syntax, found, states_wrong_transfer_syntax=found != stated
    )


def inflated_data_set(header: DicomHeader) -> bytes:
    """Return the inflated data set of a deflated file, to which `PixelElement.offset` refers.

    Raises Unreadable if the data set is cut short.
    """
    assert isinstance(header.stream, io.BytesIO)
    if header.is_truncated:
        raise Unreadable(reason("truncated"))
    return header.stream.getvalue()


def _read_meta(stream: BoundedStream) -> Mapping[int, str]:
    """Return the texts of the file meta information by tag (PS3.10 7.1). Afterwards the stream is at the data set."""
    head = stream.read(132)
    stream.seek(132 if head[128:] == b"DICM" else 0)
    meta: dict[int, str] = {}
    while True:
        start = stream.tell()
        prefix = stream.read(8)
        if len(prefix) < 8 or prefix[:2] != b"\x02\x00":
            stream.seek(start)
            return meta
        group, element, representation, length = struct.unpack("<HH2sH", prefix)
        if representation in _LONG_REPRESENTATIONS:
            (length,) = struct.unpack("<I", stream.read(4).rjust(4, b"\0"))
        elif not representation.isalpha():
            (length,) = struct.unpack("<I", prefix[4:])
        value = stream.read(length)
        meta[group << 16 | element] = value[:_TEXT_LIMIT].decode("ascii", "replace").strip(" \0")


def _inflate(stream: BinaryIO, limit: int) -> tuple[bytes, bool]:
    """Inflate the rest of a stream (PS3.5 A.5), at most `limit` bytes.

    Returns the bytes, and True if the deflated data were complete or the limit was reached; False if the data were cut
    short.
    """
    head = stream.read(2)
    # Some writers add the header of zlib, with which no deflated data set begins.
    has_header = head[:1] == b"\x78" and int.from_bytes(head, "big") % 31 == 0
    inflater = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
    parts: list[bytes] = []
    left = limit
    while left > 0 and not inflater.eof:
        packed, head = inflater.unconsumed_tail or head + stream.read(2**16), b""
        if not packed:
            break
        try:
            part = inflater.decompress(packed, left)
        except zlib.error as error:
            raise ValueError("the deflated data set is damaged") from error
        parts.append(part)
        left -= len(part)
    return b"".join(parts), inflater.eof or left <= 0


def _encoding(head: bytes, stated: UID) -> UID:
    """Return the encoding of the first element of a data set.

    The result is the stated encoding, unless only another encoding is possible for the bytes `head`.
    """
    if not head or _is_plausible_start(head, stated):
        return stated
    guessed = _guessed_encoding(head)
    return guessed if _is_plausible_start(head, guessed) else stated


def _is_plausible_start(head: bytes, encoding: UID) -> bool:
    """Return whether the first bytes of a data set are possible in this encoding.

    The first group must be below 0x0100. With an explicit encoding, a value representation must follow.
    """
    group = int.from_bytes(head[:2], "big" if encoding == ExplicitVRBigEndian else "little")
    is_explicit = head[4:6] in VALUE_REPRESENTATIONS
    return is_explicit == (encoding != ImplicitLittle) and group < 0x0100


def _guessed_encoding(head: bytes) -> UID:
    """Return the probable encoding of the first element, for files without meta information."""
    if not head[4:6].isalpha() or not head[4:6].isupper():
        return ImplicitLittle
    return ExplicitVRBigEndian if head[0] == 0 and head[1] > 0 else ExplicitVRLittleEndian


def element_at_stream_position(opened: OpenedDicom, tags: frozenset[int]) -> PixelElement | None:
    """Return the DICOM element at which the parser of a header stopped; None if its tag is not in `tags`.

    opened  the opened file, whose stream is positioned at the element. Afterwards the stream is at the element's value
    tags    tags (group << 16 | element) of the elements that contain pixel data
    """
    stream, order = opened.stream, "<" if opened.is_little_endian else ">"
    prefix = stream.read(8)
    if len(prefix) < 8:
        return None
    group, element = struct.unpack(order + "HH", prefix[:4])
    tag = group << 16 | element
    if tag not in tags:
        return None
    representation = prefix[4:6]
    (short,) = struct.unpack(order + "H", prefix[6:])
    if opened.is_implicit_vr and representation not in (b"OB", b"OW", b"SQ"):
        representation = b"OW"
        (length,) = struct.unpack(order + "I", prefix[4:])
    elif short and representation not in _LONG_REPRESENTATIONS:  # a wrong representation, with a 16-bit length
        representation, length = b"OW", short
    else:
        (length,) = struct.unpack(order + "I", stream.read(4).rjust(4, b"\0"))
    return PixelElement(tag, representation.decode("ascii", "replace"), stream.tell(), length)


# ---- single values of a data set that may hold wrong types, several values or damaged numbers


def first_text(dataset: Dataset, keyword: str) -> str:
    """Return the first value of a DICOM element as one line of text; empty if the value is missing or unreadable."""
    return _line(next(iter(text_values(dataset, keyword)), ""))


def joined_text(dataset: Dataset, keyword: str) -> str:
    """Return all values of a DICOM element as one line of text, separated by backslashes as in the file."""
    return _line("\\".join(text_values(dataset, keyword)))


def _line(value: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in value).strip()[:_TEXT_LIMIT]


def text_values(dataset: Dataset, keyword: str) -> list[str]:
    """Return all values of a DICOM element as texts."""
    raw = _raw(dataset, keyword)
    kind = raw and (raw.VR or dictionary_VR(raw.tag))
    if raw and isinstance(raw.value, bytes) and kind not in (*_BINARY, "SQ"):
        encodings = dataset.original_character_set
        encodings = [encodings] if isinstance(encodings, str) else list(encodings)
        whole = "" if _is_too_long(raw) else decode_text(raw.value, encodings, is_name=kind == "PN").strip(" \0")
        return [value.strip(" \0") for value in whole.split("\\")] if whole else []
    value = _value(dataset, keyword)
    return [value] if isinstance(value, str) else [str(entry) for entry in _as_list(value)]


def whole_number(dataset: Dataset, keyword: str, default: int = 0) -> int:
    """Return the first value of a DICOM element as a whole number.

    default  returned if the value is missing or exceeds the bits of its DICOM type
    """
    value = first_number(dataset, keyword)
    return default if value is None or abs(value) >= _NO_NUMBER else int(value)


def first_number(dataset: Dataset, keyword: str) -> float | None:
    """Return the first value of a DICOM element as a finite number; None for any other value, or without a value."""
    return _as_number(first_value(dataset, keyword))


def finite_numbers(dataset: Dataset, keyword: str) -> list[float]:
    """Return all finite numbers among the values of a DICOM element."""
    return [value for value in numbers_with_none(dataset, keyword) if value is not None]


def numbers_with_none(dataset: Dataset, keyword: str) -> list[float | None]:
    """Return all values of a DICOM element as numbers, with None for each value that is no finite number.

    Because no value is left out, the values of two elements can be compared by position.
    """
    value = _value(dataset, keyword)
    listed = [value] if value is None or isinstance(value, str | bytes | int | float) else _as_list(value)
    return list(map(_as_number, listed))


def sequence_items(dataset: Dataset, keyword: str) -> list[Dataset]:
    """Return the items of a DICOM sequence; empty if the sequence is absent or damaged."""
    raw = _raw(dataset, keyword)
    value = _sequence(raw, dataset) if raw and raw.VR in (None, "SQ") else _value(dataset, keyword)
    return [item for item in _as_list(value) if isinstance(item, Dataset)]


def has_value(dataset: Dataset, keyword: str) -> bool:
    """Return whether a DICOM element is present and not empty. A zero counts as a value."""
    return keyword in dataset and getattr(dataset.get_item(keyword), "value", None) not in (None, "", b"")


def first_value(dataset: Dataset, keyword: str) -> Any:
    """Return the first value of a DICOM element; None without a value, or if the value cannot be converted."""
    value = _value(dataset, keyword)
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__") or hasattr(value, "components"):
        return value
    return value[0] if len(value) else None


def _value(dataset: Dataset, keyword: str) -> Any:
    """Return the value of an element as pydicom converts it; None if the value is too long or cannot be converted.

    If the conversion by the file's value representation fails, the value representation of the DICOM dictionary is
    tried. Decimal numbers may have a comma.
    """
    raw = None
    try:
        raw = _raw(dataset, keyword)
        if raw and _is_too_long(raw):
            return None
        is_misnamed = raw is not None and raw.VR in _OF_BYTES and dictionary_VR(raw.tag) in _OF_WORDS
        return _as_usual(raw) if raw and is_misnamed else dataset.get(keyword)
    except Exception:  # pydicom converts on access, and raises whatever the damaged bytes lead it to
        with suppress(Exception):
            return _as_usual(raw) if raw else None
        return None


def _as_usual(raw: RawDataElement) -> Any:
    usual = dictionary_VR(raw.tag)
    if usual in ("DS", "IS"):
        return (raw.value or b"").decode("ascii", "replace").split("\\")
    return DataElement_from_raw(raw._replace(VR=usual)).value if usual in _OF_WORDS else None


def _raw(dataset: Dataset, keyword: str) -> RawDataElement | None:
    """Return the unconverted element of the file; None if the element is missing, or already converted."""
    element = dataset.get_item(keyword) if keyword in dataset else None
    return element if isinstance(element, RawDataElement) else None


def _is_too_long(raw: RawDataElement) -> bool:
    kind = raw.VR or dictionary_VR(raw.tag)
    return len(raw.value or b"") > (_MAX_BINARY_BYTES if kind in _BINARY else _MAX_TEXT_BYTES)


def _sequence(raw: RawDataElement, dataset: Dataset) -> Any:
    """Return the items of a sequence of stated length, read with limits; None if the sequence is damaged."""
    readable: Any = BoundedStream(io.BytesIO(raw.value or b""))
    length = len(raw.value or b"")
    try:
        return read_sequence(readable, raw.is_implicit_VR, raw.is_little_endian, length, dataset.original_character_set)
    except Exception:  # pydicom raises any exception for damaged bytes
        return None


def _as_list(value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        return [] if value is None else [value]


def _as_number(value: Any) -> float | None:
    try:
        if isinstance(value, str):  # of point and comma, the last one is the decimal mark
            thousands = "." if value.rfind(",") > value.rfind(".") else ","
            value = value.replace(thousands, "").replace(",", ".")
        converted = float(value)
    except (TypeError, ValueError):
        return None
    return converted if math.isfinite(converted) else None
