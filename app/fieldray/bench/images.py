"""The images a measurement runs on: those of a folder, or ones drawn by code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import InputSpec
from fieldray.domain.study import ImageRef
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.pool import DecoderPool
from fieldray.imaging.synthetic import write_studies
from fieldray.reasons import reason

MOST_IMAGES: Final = 24  # different ones; a measurement of more images goes round
_TIMEOUT_S: Final = 60.0
_MEMORY_MB: Final = 2048


@dataclass(frozen=True, eq=False, slots=True)
class LoadedImage:
    """Where it is, and what the network gets of it: (height, width, channels) uint8."""

    ref: ImageRef
    values: NDArray[np.uint8]


def one_decoder() -> DecoderPool:
    """One decoding process, as fresh as can be."""
    return DecoderPool(1, timeout_s=_TIMEOUT_S, memory_limit_mb=_MEMORY_MB)


def find_images(folder: Path | None, *, count: int, drawn_in: Path) -> tuple[ImageRef, ...]:
    """Up to `count` images of a folder, or as many drawn into `drawn_in` where no folder is given.

    Raises UsageProblem (nothing_to_screen) if the folder does not exist.
    """
    if folder is None:
        write_studies(drawn_in, count=count)
    wanted = (ref for ref in discover([folder or drawn_in]) if ref.problem is None)
    return tuple(itertools.islice(wanted, count))


def read_images(refs: Sequence[ImageRef], spec: InputSpec, decoders: DecoderPool) -> tuple[LoadedImage, ...]:
    """Those that can be read, prepared for a network. Raises UsageProblem (nothing_to_measure) if none can."""
    results = ((ref, decoders.read(ref, spec).tensor) for ref in refs)
    images = tuple(LoadedImage(ref, tensor.values[0]) for ref, tensor in results if tensor)
    if not images:
        raise UsageProblem(reason("nothing_to_measure"))
    return images
