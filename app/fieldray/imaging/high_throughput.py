"""High-Throughput JPEG 2000 (ITU-T T.814) by OpenJPH, which takes about a quarter of OpenJPEG's time for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from fieldray.imaging.codestream import is_whole_codestream, wavelets_of


def decode_high_throughput(frame: bytes, *, level: int = 0) -> NDArray[np.uint16] | None:
    """Decode a plain frame (unsigned grey of 9 to 16 bits, untiled) at 1 / 2**level of its size.

    At a lower size a low pass may go a little below 0, which comes out as a value just below 65536.
    None for other frames, for one whose end is missing, and where decoding stopped on the way.
    """
    stream = wavelets_of(frame)
    if stream is None or stream.bits <= 8 or level > stream.levels or not is_whole_codestream(frame):
        return None
    size = (-(-stream.rows >> level), -(-stream.columns >> level))
    try:
        with _reported_errors() as errors:
            stored: NDArray[np.uint16] = imagecodecs.htj2k_decode(frame, skipres=level)
    except (ValueError, RuntimeError):
        return None
    return None if errors or stored.shape != size else stored


@contextmanager
def _reported_errors() -> Iterator[list[str]]:
    """What a C extension only reports and does not raise; nothing of it is printed. For one thread at a time."""
    found: list[str] = []
    hooks = sys.excepthook, sys.unraisablehook
    sys.excepthook = lambda *_: found.append("printed")
    sys.unraisablehook = lambda _: found.append("ignored")
    try:
        yield found
    finally:
        sys.excepthook, sys.unraisablehook = hooks
