"""High-Throughput JPEG 2000 (ITU-T T.814) by OpenJPH, which needs about a quarter of OpenJPEG's time for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom.uid import HTJ2K, HTJ2KLossless, HTJ2KLosslessRPCL

from fieldray.imaging.codec import Codec, Frame
from fieldray.imaging.codecs.jpeg2000 import centred, decode_whole, is_whole_codestream, reduced_wavelets, wavelets_of
from fieldray.imaging.reduction import TargetSize

HIGH_THROUGHPUT: Final = frozenset({HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K})


def decode_high_throughput(source: bytes, *, level: int = 0) -> NDArray[np.uint16] | None:
    """Decode a plain frame (unsigned grey of 9 to 16 bits, untiled) at 1 / 2**level of its size.

    At a lower size the low-pass filter may undershoot 0 a little, which gives values just below 65536.
    None for other frames, for one whose end is missing, and where decoding stopped early.
    """
    stream = wavelets_of(source)
    if stream is None or stream.bits <= 8 or level > stream.levels or not is_whole_codestream(source):
        return None
    size = (-(-stream.rows >> level), -(-stream.columns >> level))
    try:
        with _reported_errors() as errors:
            stored: NDArray[np.uint16] = imagecodecs.htj2k_decode(source, skipres=level)
    except (ValueError, RuntimeError):
        return None
    return None if errors or stored.shape != size else stored


@contextmanager
def _reported_errors() -> Iterator[list[str]]:
    """Errors that the C extension reports without raising them, kept from being printed; for one thread at a time.

    OpenJPH's errors pass through a Cython callback that cannot raise. A test watches over this way of catching them.
    """
    found: list[str] = []
    hooks = sys.excepthook, sys.unraisablehook
    sys.excepthook = lambda *_: found.append("printed")
    sys.unraisablehook = lambda _: found.append("ignored")
    try:
        yield found
    finally:
        sys.excepthook, sys.unraisablehook = hooks


def decode_fast_wavelets(source: bytes, step: int) -> NDArray[np.uint16] | None:
    """As `decode_wavelets`, of a codestream whose values use 9 to 15 bits; None for what OpenJPH leaves."""
    stored = decode_high_throughput(source, level=step.bit_length() - 1)
    # With a bit to spare, what wrapped around at 0 is a negative number.
    return None if stored is None else centred(stored.view(np.int16).astype(np.float32), step, 16)


def _decode(frame: Frame) -> NDArray[Any]:
    values = decode_high_throughput(frame.source) if frame.is_plain_grey else None
    return decode_whole(frame) if values is None else values


def _reduced(frame: Frame, needed: TargetSize) -> tuple[NDArray[Any], int] | None:
    return reduced_wavelets(frame, needed, fast=decode_fast_wavelets)


CODEC: Final = Codec(
    name="HTJ2K",
    transfer_syntaxes=HIGH_THROUGHPUT,
    decode=_decode,
    reduced=_reduced,
    runtime_modules=("imagecodecs._htj2k",),
)
