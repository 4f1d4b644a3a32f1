"""The comparison of a prior image with the current image, for command line, window and reports.

All positions are in the **frame**: a black square of `FRAME_SIDE` pixels, onto whose centre an image is scaled without
changing its aspect ratio (`InputSpec` with fit "pad"). Each image has a separate frame. A `CoordinateMap` maps pixels
of the frame to pixels of the file. A displacement leads from the current image's frame to the prior's frame: the point
(row, column) of the current image corresponds to the point (row, column) + displacement of the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Box, Coordinate, CoordinateMap
from fieldray.domain.mask import Mask
from fieldray.reasons import Reason

FRAME_SIDE: Final = 512
# Strength of a difference, in units of the noise, from which it has a colour, and from which the colour is full.
WEAKEST_SHOWN_CHANGE: Final = 3.0
STRONGEST_SHOWN_CHANGE: Final = 8.0
# Colours of denser (whiter) and less dense areas of the current image, distinct for colour-blind eyes (Okabe, Ito).
DENSER_COLOUR: Final = (230, 159, 0)
LESS_DENSE_COLOUR: Final = (86, 180, 233)

_BACK_STEPS: Final = 8  # steps of the iteration that inverts the displacement; each step reduces the error

ImageOfPair = Literal["prior", "current", "both"]


@dataclass(frozen=True, slots=True)
class MatchedSquare:
    """A small square of the current image that was searched for in the prior image.

    row, column  centre of the square, in pixels of the frame
    is_kept      True if the position found in the prior image was used for the alignment, False if it was rejected
    """

    row: float
    column: float
    is_kept: bool


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Alignment:
    """The deformation that aligns the prior with the current image.

    displacement       (FRAME_SIDE, FRAME_SIDE, 2) float32: rows and columns in pixels, from the current frame to the
                       prior's frame
    matches            kept and rejected matches
    similarity_before  similarity of both images' structure inside the lungs, -1..1, without deformation
    similarity_after   similarity inside the lungs, -1..1, with the prior warped by the displacement
    min_jacobian       minimum determinant of the mapping's derivative; above 0 if nothing is folded
    """

    displacement: NDArray[np.float32]
    matches: tuple[MatchedSquare, ...]
    similarity_before: float
    similarity_after: float
    min_jacobian: float

    def __post_init__(self) -> None:
        if self.displacement.shape != (FRAME_SIDE, FRAME_SIDE, 2) or self.displacement.dtype != np.float32:
            raise ValueError(f"a displacement is of the frame, not {self.displacement.shape}")
        if not self.min_jacobian > 0:
            raise ValueError(f"a mapping that folds: {self.min_jacobian}")
        self.displacement.flags.writeable = False

    @property
    def kept_match_count(self) -> int:
        """The number of matches that were used for the alignment."""
        return sum(match.is_kept for match in self.matches)

    @property
    def rejected_match_count(self) -> int:
        """The number of matches that were rejected."""
        return len(self.matches) - self.kept_match_count

    def displacement_percentile_px(self, percent: float, *, inside: Mask | None = None) -> float:
        """Return a percentile of the displacement's length, in pixels of the frame.

        percent  the percentile, 0..100
        inside   mask (rows, columns) of the pixels that count; by default the whole frame
        """
        lengths = np.hypot(self.displacement[:, :, 0], self.displacement[:, :, 1])
        chosen = lengths[inside] if inside is not None and inside.any() else lengths
        return float(np.percentile(chosen, percent))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRegion:
    """A connected region inside the lungs where the difference exceeds the noise.

    box       bounding box in pixels of the current image's frame; 0 is the upper or left edge of the first pixel
    area_px   area in pixels of the frame
    strength  the largest difference in units of the noise; above 0 where the current image is denser (whiter)
    """

    box: Box
    area_px: int
    strength: float

    @property
    def is_denser(self) -> bool:
        """Whether the current image is denser in the region."""
        return self.strength > 0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FramedImage:
    """One image of a compared pair, brought to a square frame of fixed size.

    pixels          (FRAME_SIDE, FRAME_SIDE) uint8 as displayed, 0 is air
    lungs           mask of the lungs in the frame; all False if no lungs were found
    frame_to_image  maps pixels of the frame to pixels of the file
    """

    pixels: NDArray[np.uint8]
    lungs: Mask
    frame_to_image: CoordinateMap

    def __post_init__(self) -> None:
        shape = (FRAME_SIDE, FRAME_SIDE)
        if self.pixels.shape != shape or self.lungs.shape != shape or self.pixels.dtype != np.uint8:
            raise ValueError(f"an image of a pair is of the frame, not {self.pixels.shape} {self.lungs.shape}")
        self.pixels.flags.writeable = False
        self.lungs.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonProblem:
    """The reason why two images cannot be compared.

    image  the image that the reason is about; "both" for a reason about the pair
    """

    reason: Reason
    image: ImageOfPair = "both"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AlignedPair:
    """The result of comparing two images that were aligned. The result may be shown to a person.

    alignment     how the prior was warped
    warped_prior  (FRAME_SIDE, FRAME_SIDE) uint8: the prior in the current image's frame
    change        (FRAME_SIDE, FRAME_SIDE) float32: the difference in units of the noise, 0 outside the lungs; above 0
                  where the current image is denser (whiter)
    regions       regions of change beyond the noise, the strongest first
    """

    alignment: Alignment
    warped_prior: NDArray[np.uint8]
    change: NDArray[np.float32]
    regions: tuple[ChangeRegion, ...]

    def __post_init__(self) -> None:
        shape = (FRAME_SIDE, FRAME_SIDE)
        if self.warped_prior.shape != shape or self.change.shape != shape:
            raise ValueError(f"an aligned prior is of the frame, not {self.warped_prior.shape} {self.change.shape}")
        self.warped_prior.flags.writeable = False
        self.change.flags.writeable = False

    @property
    def shown_change(self) -> NDArray[np.float32]:
        """The change (FRAME_SIDE, FRAME_SIDE) inside the regions of change; 0 everywhere else.

        A speck outside all regions counts as no difference and gets no colour.
        """
        wanted = np.zeros(self.change.shape, bool)
        for region in self.regions:
            top, left = int(region.box.top), int(region.box.left)
            part = slice(top, top + int(region.box.height)), slice(left, left + int(region.box.width))
            wanted[part] |= (self.change[part] > 0) == region.is_denser
        return np.where(wanted, self.change, np.float32(0))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PairComparison:
    """The result of comparing two images. Either `aligned_pair` or `problem` is set. A problem means: no overlay.

    prior, current      the images as read; None for an image that could not be read
    rejected_alignment  an alignment that was rejected as implausible, kept for its figures; or None
    reliability         about 0..1.8; the higher, the more likely both images are of one patient. None without an
                        alignment
    duration_s          duration of the comparison, including reading both images
    """

    prior: FramedImage | None
    current: FramedImage | None
    aligned_pair: AlignedPair | None = None
    problem: ComparisonProblem | None = None
    rejected_alignment: Alignment | None = None
    reliability: float | None = None
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.aligned_pair is None) == (self.problem is None):
            raise ValueError("a pair is comparable or has a problem")
        if self.aligned_pair is not None and (self.prior is None or self.current is None):
            raise ValueError("a pair is comparable where both images were read")

    @property
    def is_comparable(self) -> bool:
        """Whether the pair may be shown as an overlay."""
        return self.aligned_pair is not None

    @property
    def alignment(self) -> Alignment | None:
        """The alignment, even if it was rejected as implausible; None if the images could not be aligned at all."""
        return self.aligned_pair.alignment if self.aligned_pair else self.rejected_alignment

    def position_in_prior(self, row: Coordinate, column: Coordinate) -> tuple[Coordinate, Coordinate]:
        """Map a position in the current image to the prior image.

        Rows and columns are in pixels of each image's file; 0 is the upper or left edge of the first pixel. Raises
        ValueError if the images are not comparable.
        """
        field, prior, current = self._laid()
        at = np.stack(current.to_input(row, column))
        return prior.to_image(*(at + _displacement(field, at)))

    def position_in_current(self, row: Coordinate, column: Coordinate) -> tuple[Coordinate, Coordinate]:
        """Map a position in the prior image to the current image: the inverse of `position_in_prior`.

        Rows and columns are in pixels of each image's file; 0 is the upper or left edge of the first pixel. Raises
        ValueError if the images are not comparable.
        """
        field, prior, current = self._laid()
        at = wanted = np.stack(prior.to_input(row, column))
        for _ in range(_BACK_STEPS):
            at = wanted - _displacement(field, at)
        return current.to_image(*at)

    def _laid(self) -> tuple[NDArray[np.float32], CoordinateMap, CoordinateMap]:
        if self.aligned_pair is None or self.prior is None or self.current is None:
            raise ValueError("nothing of this pair may be laid over each other")
        return self.aligned_pair.alignment.displacement, self.prior.frame_to_image, self.current.frame_to_image


def _displacement(field: NDArray[np.float32], at: NDArray[Any]) -> NDArray[np.float32]:
    """Return the displacement (2, ...) in rows and columns at positions of the frame.

    The positions count from the outer edge of the first pixel. Outside the frame the displacement of the nearest border
    pixel counts.
    """
    return np.moveaxis(sample_at(field, *(at - 0.5).clip(0, FRAME_SIDE - 1)), -1, 0)


def sample_at(image: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[np.float32]:
    """Sample an image at positions by linear interpolation; 0 outside the image.

    image          (rows, columns) or (rows, columns, channels)
    rows, columns  positions; 0 is the centre of the first pixel
    """
    height, width = image.shape[:2]
    values = image.reshape(height * width, -1).astype(np.float32, copy=False)
    top, left = np.floor(rows.clip(0, height - 1)).astype(np.intp), np.floor(columns.clip(0, width - 1)).astype(np.intp)
    top, left = np.minimum(top, max(height - 2, 0)), np.minimum(left, max(width - 2, 0))
    down = (rows - top).astype(np.float32).clip(0, 1)[..., None]
    across = (columns - left).astype(np.float32).clip(0, 1)[..., None]
    first = top * width + left
    below, right = (width if height > 1 else 0), (1 if width > 1 else 0)
    upper = values[first] * (1 - across) + values[first + right] * across
    lower = values[first + below] * (1 - across) + values[first + below + right] * across
    mixed = upper * (1 - down) + lower * down
    is_inside = (rows > -1) & (rows < height) & (columns > -1) & (columns < width)
    mixed *= is_inside[..., None]
    found: NDArray[np.float32] = mixed.reshape(*rows.shape, *image.shape[2:])
    return found


def change_colours(change: NDArray[np.float32], *, weakest_shown: float = WEAKEST_SHOWN_CHANGE) -> NDArray[np.uint8]:
    """Return the colours of a map of changes: (rows, columns, 4) uint8 of red, green, blue and opacity.

    change         (rows, columns) float32 in units of the noise, above 0 where the current image is denser
    weakest_shown  the smallest change, in units of the noise, that gets a colour; a weaker change is transparent

    A change above 0 has the colour `DENSER_COLOUR`, a change below 0 the colour `LESS_DENSE_COLOUR`. The stronger the
    change, the more opaque is the pixel.
    """
    strength = ((np.abs(change) - weakest_shown) / (STRONGEST_SHOWN_CHANGE - weakest_shown)).clip(0, 1)
    colours = np.zeros((*change.shape, 4), np.uint8)
    colours[..., :3] = np.where((change > 0)[..., None], np.array(DENSER_COLOUR), np.array(LESS_DENSE_COLOUR)).astype(
        np.uint8
    )
    seen = np.where(np.abs(change) > weakest_shown, 0.35 + 0.65 * strength, 0)
    colours[..., 3] = np.rint(255 * seen).astype(np.uint8)
    return colours


def comparison_json(comparison: PairComparison) -> Mapping[str, Any]:
    """Return a comparison as the JSON object of `fieldray compare --json`.

    The notice *research use only* is not included. Lengths are in pixels of the frame (`FRAME_SIDE` x `FRAME_SIDE`).
    """
    alignment, aligned, current = comparison.alignment, comparison.aligned_pair, comparison.current
    inside = current.lungs if current else None
    return {
        "comparable": comparison.is_comparable,
        "reason_code": comparison.problem.reason.code if comparison.problem else None,
        "similarity_before": round(alignment.similarity_before, 4) if alignment else None,
        "similarity_after": round(alignment.similarity_after, 4) if alignment else None,
        "displacement_median_px": round(alignment.displacement_percentile_px(50, inside=inside), 3)
        if alignment
        else None,
        "displacement_p95_px": round(alignment.displacement_percentile_px(95, inside=inside), 3) if alignment else None,
        "matches": alignment.kept_match_count if alignment else 0,
        "rejected": alignment.rejected_match_count if alignment else 0,
        "regions": [_region_json(region) for region in aligned.regions] if aligned else [],
    }


def _region_json(region: ChangeRegion) -> Mapping[str, Any]:
    box = region.box
    return {
        "box": {"left": box.left, "top": box.top, "width": box.width, "height": box.height},
        "area": region.area_px,
        "strength": round(region.strength, 2),
    }
