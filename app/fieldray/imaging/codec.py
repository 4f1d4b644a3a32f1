"""The compressions of DICOM: one table by transfer syntax, from which frames are decoded, in full or reduced.

To add a compression, put a module with a `CODEC` into `imaging/codecs`. Nothing else names it: the reading of DICOM
files, the error messages and the installer read this table. A codec imports its library inside its functions, so that
the table can be read where the library is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from fieldray.imaging.identify import jpeg_size
from fieldray.imaging.reduction import TargetSize
from fieldray.reasons import Reason, reason
from fieldray.registry import Registry, always_available

Stored = NDArray[Any]
Size = tuple[int, int]

_JPEG_2000_START: Final = b"\xff\x4f\xff\x51"
# Names of transfer syntaxes that pydicom's table does not hold.
_NAMES: Final[Mapping[str, str]] = {
    "1.2.840.10008.1.2.4.110": "JPEG XL lossless",
    "1.2.840.10008.1.2.4.111": "JPEG XL recompressed JPEG",
    "1.2.840.10008.1.2.4.112": "JPEG XL",
    "1.2.840.10008.1.2.8.1": "deflated frames",
}


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Frame:
    """One compressed frame, and what the header says about its values.

    source           the codestream, of the size that the header states
    unused_low_bits  how far the stored bits lie above bit 0
    is_plain_grey    one sample of 8 or 16 bits that is a grey value
    has_padding      whether some values mean "no image here", so that they must not be blended with others
    """

    source: bytes
    transfer_syntax: str
    rows: int
    columns: int
    samples: int
    bits_allocated: int
    bits_stored: int
    unused_low_bits: int
    is_signed: bool
    is_plain_grey: bool
    has_padding: bool

    @property
    def kind(self) -> str:
        """NumPy's name for the type of the values, without a byte order: "u1", "i2"."""
        return f"{'i' if self.is_signed else 'u'}{self.bits_allocated // 8}"

    def holds(self, stored: Stored) -> bool:
        """Whether only the lower Bits Stored are in use, so that nothing has to be masked (overlays once lay above)."""
        bits = self.bits_stored
        if self.unused_low_bits or not 1 <= bits <= self.bits_allocated:
            return False
        if bits == self.bits_allocated:
            return True
        if stored.dtype.kind == "u":
            return int(stored.max()) < 1 << bits
        limit = 1 << (bits - 1)
        return int(stored.max()) < limit and int(stored.min()) >= -limit


def is_plain_unsigned(frame: Frame) -> bool:
    """Whether the values are plain grey and never negative, which is what most decoders are for."""
    return frame.is_plain_grey and not frame.is_signed


def codestream_size(source: bytes) -> Size | None:
    """(rows, columns) that a JPEG, JPEG-LS or JPEG 2000 codestream states itself; None for other data."""
    start = source.find(_JPEG_2000_START, 0, 256)
    if start >= 0 and len(source) >= start + 24:
        right, bottom, left, top = struct.unpack(">4I", source[start + 8 : start + 24])
        return bottom - top, right - left
    return jpeg_size(source) if source[:2] == b"\xff\xd8" else None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Codec:
    """One compression.

    name                what a person calls it
    transfer_syntaxes   UIDs (PS3.5 annex A); where several codecs have the same one, the first available is used
    takes, stated_size  the limits: which frames `decode` is given, and the (rows, columns) that a codestream states
                        itself, which must be the header's before anything is allocated
    decode              the stored values (rows, columns), or (rows, columns, 3) as RGB; None for a frame that is left
                        to pydicom. May raise anything for a damaged one
    reduced             values that the compression itself gives at a lower resolution, and the step: one value for
                        step x step of the frame's (rounded up at the edges), by the rule of `reduction`. Asked only for
                        plain unsigned grey. None where it offers nothing; an error leads to reading the whole frame
    pydicom_plugin      decodes what `decode` leaves; "" if nothing does. One only: a second decoder that tried a
                        damaged frame has ended the process more than once
    plugin_function     (module, function) of a plugin that pydicom does not bring along
    runtime_modules     modules that its library imports by name, for the installer
    unavailable_reason  why it does not work on this computer, or None
    """

    name: str
    transfer_syntaxes: frozenset[str]
    takes: Callable[[Frame], bool] = is_plain_unsigned
    stated_size: Callable[[bytes], Size | None] = codestream_size
    decode: Callable[[Frame], Stored | None] | None = None
    reduced: Callable[[Frame, TargetSize], tuple[Stored, int] | None] | None = None
    pydicom_plugin: str = ""
    plugin_function: tuple[str, str] | None = None
    runtime_modules: tuple[str, ...] = ()
    unavailable_reason: Callable[[], Reason | None] = always_available


CODECS: Final[Registry[Codec]] = Registry("fieldray.imaging.codecs", "CODEC")


def codec_of(transfer_syntax: str) -> Codec | None:
    """The codec of a transfer syntax, the first available one if there are several; None for an unknown one."""
    known = [codec for codec in CODECS.entries() if transfer_syntax in codec.transfer_syntaxes]
    return next((codec for codec in known if codec.unavailable_reason() is None), known[0] if known else None)


def not_supported(transfer_syntax: str, name: str) -> Reason:
    """Why frames of this transfer syntax cannot be decoded; `name` as pydicom or a codec has it."""
    return reason("unsupported_compression", name=_NAMES.get(transfer_syntax) or name or "unknown")


def decoded(codec: Codec, frame: Frame) -> Stored | None:
    """What the codec itself makes of a frame; None for what is left to pydicom."""
    if codec.decode is None or not codec.takes(frame):
        return None
    stored = codec.decode(frame)
    return stored if stored is not None and stored.shape[:2] == (frame.rows, frame.columns) else None
