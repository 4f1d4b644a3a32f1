"""The table of DICOM compressions by transfer syntax. Each codec decodes frames in full or at a reduced resolution.

To add a compression, put a module with a `CODEC` into `imaging/codecs`. No other code names the compression: the
reading of DICOM files, the error messages and the installer use this table.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLSLossless,
    RLELossless,
)

from fieldray.errors import Unreadable
from fieldray.imaging.identify import JpegFrame, jpeg_frame
from fieldray.imaging.reduction import TargetSize
from fieldray.reasons import Reason, reason
from fieldray.registry import discover_entries

StoredValues = NDArray[Any]
ValueRange = tuple[int, int]

_JPEG_2000_START: Final = b"\xff\x4f\xff\x51"
# End of a codestream, padding, and start of another. These bytes cannot occur within a codestream (except in RLE).
_ANOTHER: Final = re.compile(rb"\xff\xd9\x00*\xff(?:\xd8\xff|\x4f\xff\x51)")
_SYNTAXES: Final[Mapping[tuple[int, bool], UID]] = {
    **{(process, False): JPEGBaseline8Bit for process in range(0xC0, 0xC3)},
    **{(process, True): JPEGExtended12Bit for process in range(0xC0, 0xC3)},
    **{(0xC3, is_deep): JPEGLossless for is_deep in (False, True)},
    **{(0xF7, is_deep): JPEGLSLossless for is_deep in (False, True)},
}
# Processes of lossy JPEG, which have 8 or 12 bits only.
_DCT_PROCESSES: Final = frozenset(range(0xC0, 0xC3))
# Factor by which a lossy codec may exceed the highest value next to a sharp edge.
_OVERSHOOT: Final = 1.1
# Names of transfer syntaxes that pydicom's table does not hold.
_NAMES: Final[Mapping[str, str]] = {
    "1.2.840.10008.1.2.4.110": "JPEG XL lossless",
    "1.2.840.10008.1.2.4.111": "JPEG XL recompressed JPEG",
    "1.2.840.10008.1.2.4.112": "JPEG XL",
    "1.2.840.10008.1.2.8.1": "deflated frames",
}


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Frame:
    """One encoded frame of a DICOM file, and what the file's header states about the values of the frame.

    unused_low_bits      number of unused bits below the stored bits
    is_8_or_16_bit_grey  whether a pixel is one grey sample of 8 or 16 bits
    padding_range        lowest and highest value that mean "no image here"; None if the file states no such range. A
                         padding value must not be blended with other values
    frame_count          number of frames in the file
    is_rgb               whether the header says that the three samples are red, green and blue
    codestream           the compressed frame, with the rows and columns of the header; empty for uncompressed values
    """

    transfer_syntax: str
    rows: int
    columns: int
    samples_per_pixel: int
    bits_allocated: int
    bits_stored: int
    unused_low_bits: int
    is_signed: bool
    is_8_or_16_bit_grey: bool
    padding_range: ValueRange | None
    frame_count: int
    is_rgb: bool = False
    codestream: bytes = b""

    @property
    def size_bits(self) -> int:
        """The size of the uncompressed frame in bits."""
        return self.rows * self.columns * self.samples_per_pixel * self.bits_allocated

    @property
    def value_type(self) -> str:
        """NumPy's name for the type of the values, without byte order, such as "u1" or "i2"."""
        return f"{'i' if self.is_signed else 'u'}{self.bits_allocated // 8}"

    @property
    def is_lossy_jpeg(self) -> bool:
        """Whether the codestream is a lossy (DCT) JPEG."""
        stated = frame_header_of(self.codestream)
        return stated is not None and stated.coding_process in _DCT_PROCESSES

    @property
    def is_lossless(self) -> bool:
        """Whether the transfer syntax is lossless.

        In a lossless codestream, bits outside the stored bits are exact, too.
        """
        codec = codec_of(self.transfer_syntax) if self.codestream else None
        return codec is None or self.transfer_syntax not in codec.lossy_syntaxes


def stored_values_from_decoded(values: StoredValues, frame: Frame) -> StoredValues:
    """Return the stored values of a frame, given the values from a codec or from the file (PS3.5 8.1.1).

    Bits outside the stored bits (above HighBit or below the lowest stored bit) are removed, and the sign is extended.
    The bits stay if the codestream states more bits than the header, or if the image would be rougher without the bits:
    the header's Bits Stored is then wrong. A lossy codec exceeds the range of values a little. Values beyond the range
    are set to the nearest value in the range.

    Parameters
    ----------
    values
        Integers of 8 or 16 bits, signed or not, of any shape.
    frame
        The encoded frame. Its codestream is empty for uncompressed values.

    Raises
    ------
    Unreadable
        `damaged` if the two bytes of each value are swapped.
    """
    if _has_swapped_bytes(values):
        raise Unreadable(reason("damaged", detail="the byte order of the pixel values is swapped"))
    container = max(frame.bits_allocated // 8, values.dtype.itemsize)
    whole = 8 * container
    stored = values.astype(f"{'i' if frame.is_signed else 'u'}{container}", copy=False)
    bits = frame.bits_stored if 1 <= frame.bits_stored <= whole else whole
    stated = frame_header_of(frame.codestream) or JpegFrame(0, whole, frame.rows, frame.columns)
    precision = min(stated.bits_per_sample or whole, whole)
    shift = frame.unused_low_bits if precision >= bits + frame.unused_low_bits else 0
    if not shift:
        is_more = bits < precision and (precision < whole or frame.is_lossy_jpeg)
        bits = precision if is_more else min(bits, precision)
    top = (1 << (bits - frame.is_signed)) - 1
    bottom = -top - 1 if frame.is_signed else 0
    lowest, highest = int(stored.min()), int(stored.max())
    if not shift and bottom <= lowest and highest <= top:
        return stored
    if frame.padding_range and frame.is_lossless and not shift:
        ends = np.array(frame.padding_range).astype(stored.dtype)  # equal bits if written with the other signedness
        is_padding = (stored >= ends.min()) & (stored <= ends.max())
        if is_padding.any() and not bottom <= ends.min() <= ends.max() <= top:
            rest = np.where(is_padding, stored.dtype.type(0), stored)
            return np.where(is_padding, stored, stored_values_from_decoded(rest, replace(frame, padding_range=None)))
    if not frame.is_lossless and _OVERSHOOT * (bottom - 1) <= lowest and highest <= _OVERSHOOT * (top + 1):
        return stored.clip(bottom, top)
    above = whole - bits - shift
    aligned: StoredValues = (stored << above) >> (above + shift)
    # Bits of an overlay or garbage make an image rougher. Bits that make it smoother belong to the image.
    is_own = _variation(aligned) > _variation(stored) or _is_noise(aligned, alternative=lambda: stored)
    return stored if is_own and not shift else aligned


_SAMPLED_ROWS: Final = 64
_NOISE: Final = 0.5  # neighbours of noise differ by about 1.1 standard deviations, those of X-rays by less than 0.2
_FAR_SMOOTHER: Final = 4


def _has_swapped_bytes(values: StoredValues) -> bool:
    """Return whether the two bytes of each value are swapped, as some old writers did.

    Swapped values look like noise, and become an image when the bytes are swapped back.
    """
    if values.dtype.itemsize != 2 or values.ndim != 2 or values.shape[1] < 2:
        return False
    return _is_noise(values, alternative=values.byteswap)


def _is_noise(values: StoredValues, *, alternative: Callable[[], StoredValues]) -> bool:
    """Return whether `values` are noise and the values of `alternative` are an image.

    alternative  returns the values to compare with; called only if needed
    """
    roughness = _roughness(values)
    return roughness > _NOISE and _FAR_SMOOTHER * _roughness(alternative()) < roughness


def _variation(values: StoredValues) -> float:
    """Return the mean difference of neighbouring values in a sample of the rows."""
    rows = values[:: max(1, len(values) // _SAMPLED_ROWS)].astype(np.float32)
    return float(np.abs(np.diff(rows, axis=1)).mean()) if rows.shape[1] > 1 else 0.0


def _roughness(values: StoredValues) -> float:
    """Return the mean difference of neighbouring values, divided by the standard deviation of all values.

    The result is 0 if all values are equal.
    """
    spread = float(values[:: max(1, len(values) // _SAMPLED_ROWS)].astype(np.float32).std())
    return _variation(values) / spread if spread else 0.0


def transfer_syntax_of(source: bytes) -> UID | None:
    """Return the transfer syntax of data that begin like a frame of a common compression; None for other data."""
    if source.startswith(_JPEG_2000_START) or source[4:8] == b"jP  ":
        return JPEG2000Lossless
    if source[:3] == b"\xff\xd8\xff":
        frame = jpeg_frame(source)
        return _SYNTAXES.get((frame.coding_process, frame.bits_per_sample > 8)) if frame else None
    segments, first = struct.unpack("<2I", source[:8].ljust(8, b"\0"))
    return RLELossless if 1 <= segments <= 15 and first == 64 else None


def count_codestreams(source: bytes | memoryview) -> int:
    """Return the number of JPEG or JPEG 2000 codestreams that follow each other; 1 for other data."""
    return 1 if transfer_syntax_of(bytes(source[: 2**16])) == RLELossless else 1 + len(_ANOTHER.findall(source))


def frame_header_of(source: bytes) -> JpegFrame | None:
    """Return the frame header of a JPEG, JPEG-LS or JPEG 2000 codestream; None for other data.

    The field `coding_process` is 0 for JPEG 2000.
    """
    start = source.find(_JPEG_2000_START, 0, 256)
    if start >= 0 and len(source) > start + 42:
        right, bottom, left, top = struct.unpack(">4I", source[start + 8 : start + 24])
        return JpegFrame(0, (source[start + 42] & 0x7F) + 1, bottom - top, right - left)
    return jpeg_frame(source) if source[:2] == b"\xff\xd8" else None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Codec:
    """A decoder for one compression.

    name               common name of the compression
    transfer_syntaxes  UIDs of the transfer syntaxes that the codec decodes (PS3.5 annex A)
    lossy_syntaxes     the transfer syntaxes, out of `transfer_syntaxes`, that are not lossless
    decode             returns the values of a frame as encoded, (rows, columns) or (rows, columns, 3), which
                       `stored_values_from_decoded` then converts to stored values. May raise any exception for a
                       damaged frame. The function must use only one library, because a second decoder may crash the
                       process when it is tried on a damaged frame
    decode_reduced     decodes a frame at a lower resolution that the compression offers, by the rule of
                       `imaging.reduction`. Returns the values and the step: one value for step x step of the frame
                       (rounded up at the edges). Called only for frames with unsigned values and `is_8_or_16_bit_grey`.
                       Returns None if there is no lower resolution; after an error the whole frame is read
    runtime_modules    modules that the codec's library imports by name, and that the installer therefore must include
    """

    name: str
    transfer_syntaxes: frozenset[str]
    decode: Callable[[Frame], StoredValues]
    lossy_syntaxes: frozenset[str] = frozenset()
    decode_reduced: Callable[[Frame, TargetSize], tuple[StoredValues, int] | None] | None = None
    runtime_modules: tuple[str, ...] = ()


UNCOMPRESSED_SYNTAXES: Final = frozenset(
    {ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian}
)


@functools.cache
def codecs() -> dict[str, Codec]:
    """Return all decoders of compressed pixel data, by name."""
    return discover_entries("fieldray.imaging.codecs", "CODEC")


def codec_of(transfer_syntax: str) -> Codec | None:
    """Return the codec of a transfer syntax; None if the syntax is uncompressed or unknown."""
    if transfer_syntax in UNCOMPRESSED_SYNTAXES:
        return None
    return next((codec for codec in codecs().values() if transfer_syntax in codec.transfer_syntaxes), None)


def unsupported_reason(transfer_syntax: str, name: str) -> Reason:
    """Return the reason why frames of a transfer syntax cannot be decoded.

    name  name of the transfer syntax, from pydicom or a codec
    """
    known = _NAMES.get(transfer_syntax) or name or "unknown"
    if known == transfer_syntax:  # pydicom does not know the transfer syntax either
        return reason("unknown_syntax", uid=transfer_syntax)
    return reason("unsupported_compression", name=known)
