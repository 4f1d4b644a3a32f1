"""Duplicate images: identical files, or images so similar that they are the same exposure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SIDE: Final = 32
_ALIKE: Final = 0.998
_BLOCK: Final = 1024
_JUDGED: Final = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Pairs of image numbers, the smaller first; `training_copies`: training images that are also evaluated on."""

    exact: tuple[tuple[int, int], ...]
    near: tuple[tuple[int, int], ...]
    across: int
    training_copies: frozenset[int]

    def facts(self, origins: Sequence[str], *, most: int) -> dict[str, Any]:
        """Counts and the first pairs, by name."""

        def named(pairs: tuple[tuple[int, int], ...]) -> list[list[str]]:
            return [[origins[first], origins[second]] for first, second in pairs[:most]]

        return {
            "exact": len(self.exact),
            "near": len(self.near),
            "across_parts": self.across,
            "training_copies_left_out": len(self.training_copies),
            "exact_examples": named(self.exact),
            "near_examples": named(self.near),
        }


def find_duplicates(images: NDArray[np.uint8], digests: Sequence[str], parts: Sequence[str]) -> Duplicates:
    """Pairs of images (n, height, width, channels) with equal digests, or whose 32 x 32 means correlate above 0.998."""
    exact = _exact(digests)
    near = tuple(pair for pair in _near(images) if pair not in set(exact))
    pairs = exact + near
    across = [pair for pair in pairs if "none" not in (own := {parts[i] for i in pair}) and len(own) > 1]
    copies = frozenset(
        index
        for pair in across
        for index in pair
        if parts[index] == "training" and any(parts[other] in _JUDGED for other in pair)
    )
    return Duplicates(exact=exact, near=near, across=len(across), training_copies=copies)


def _exact(digests: Sequence[str]) -> tuple[tuple[int, int], ...]:
    first: dict[str, int] = {}
    pairs = []
    for index, digest in enumerate(digests):
        other = first.setdefault(digest, index)
        if other != index:
            pairs.append((other, index))
    return tuple(pairs)


def _near(images: NDArray[np.uint8]) -> tuple[tuple[int, int], ...]:
    small = thumbnails(images, side=min(_SIDE, *images.shape[1:3])).astype(np.float32)
    small -= small.mean(axis=1, keepdims=True)
    small /= np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6)
    pairs = []
    for start in range(0, len(small), _BLOCK):
        alike = small[start : start + _BLOCK] @ small[start:].T
        firsts, seconds = np.nonzero(np.triu(alike, 1) > _ALIKE)
        pairs += [(start + int(first), start + int(second)) for first, second in zip(firsts, seconds, strict=True)]
    return tuple(pairs)


def thumbnails(images: NDArray[np.uint8], *, side: int) -> NDArray[np.float64]:
    """Area means (n, side * side) of the first channel, 0..255."""
    rows = _means_matrix(images.shape[1], side)
    columns = _means_matrix(images.shape[2], side)
    small = [rows @ image[:, :, 0] @ columns.T for image in images]
    flat: NDArray[np.float64] = np.stack(small).reshape(len(images), -1)
    return flat


def _means_matrix(size: int, count: int) -> NDArray[np.float64]:
    """(count, size): each row averages its share of the pixels, exactly, also where the sides do not divide."""
    edges = np.arange(count + 1) * size / count
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: NDArray[np.float64] = overlap.clip(0, None) * count / size
    return shares
