"""From a class map to the colours laid over the image.

The head's map holds a logit for each cell; their mean is the classifier's logit. What is shown is how far a cell lies
above the logit of the operating point, on a fixed scale: maps of two images can be compared, and an image far below the
threshold shows no invented hot spot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Outcome, Screened, leading_finding
from fieldray.domain.image import PixelMap
from fieldray.domain.model import Manifest

STRONGEST_LOGIT: Final = 6.0
_FINER: Final = 16
_EDGE: Final = 1e-6

# Stops of the legend: strength, red, green, blue, opacity. One hue path from yellow to dark red, ever darker, so that
# the order can be read without colour vision; weak evidence stays almost clear.
_STOPS: Final = np.array(
    [
        (0.00, 255, 232, 120, 0),
        (0.08, 255, 226, 110, 90),
        (0.35, 255, 176, 40, 190),
        (0.70, 240, 96, 24, 235),
        (1.00, 190, 16, 38, 255),
    ]
)

Grid = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class PaintedMap:
    """A heat map in colours.

    colours   (rows, columns, 4) uint8: red, green, blue, opacity, not premultiplied
    region    of the image that they cover, in its pixels: left, top, width, height
    is_blank  whether nothing reaches the threshold
    """

    colours: NDArray[np.uint8]
    region: tuple[float, float, float, float]
    is_blank: bool


def painted_map(outcome: Outcome, manifest: Manifest | None) -> PaintedMap | None:
    """The heat map of an image's deciding finding; None where there is none, or the pack is not known."""
    finding = leading_finding(outcome)
    if manifest is None or finding is None or not isinstance(outcome, Screened):
        return None
    if outcome.class_maps is None or outcome.facts.pixel_map is None:
        return None
    logits = label_logits(outcome.class_maps, finding.label, manifest)
    threshold = finding.point.threshold if finding.point else None
    shares = strength(logits, raw_threshold_logit(finding.label, threshold, manifest))
    region = covered(outcome.facts.pixel_map, height=manifest.input.height, width=manifest.input.width)
    return PaintedMap(colours(smooth(shares)), region, not shares.any())


def label_logits(class_maps: NDArray[np.float32], label: str, manifest: Manifest) -> Grid:
    """The map of one label as logits (rows, columns); with softmax, against all other labels together."""
    index = [entry.code for entry in manifest.labels].index(label)
    own: Grid = class_maps[index]
    if manifest.outputs.activation == "sigmoid" or len(class_maps) < 2:
        return own
    others = np.logaddexp.reduce(np.delete(class_maps, index, axis=0), axis=0)
    difference: Grid = (own - others).astype(np.float32)
    return difference


def raw_threshold_logit(label: str, threshold: float | None, manifest: Manifest) -> float:
    """The uncalibrated logit at which the calibrated score meets the threshold; 0 where there is no threshold."""
    if threshold is None:
        return 0.0
    share = min(max(threshold, _EDGE), 1 - _EDGE)
    logit = math.log(share / (1 - share))
    calibration = manifest.calibration.get(label)
    return logit if calibration is None else (logit - calibration.intercept) / calibration.slope


def strength(logits: Grid, threshold_logit: float) -> Grid:
    """0 at the operating point's logit or below, 1 at `STRONGEST_LOGIT` above it or more."""
    share: Grid = ((logits - np.float32(threshold_logit)) / np.float32(STRONGEST_LOGIT)).clip(0, 1)
    return share


def smooth(cells: Grid) -> Grid:
    """The same area in 16 times as many rows and columns, interpolated by cubic convolution (Keys 1981)."""
    down, across = _cubic_weights(cells.shape[0]), _cubic_weights(cells.shape[1])
    fine: Grid = (down @ cells @ across.T).clip(0, 1)
    return fine


def colours(shares: Grid) -> NDArray[np.uint8]:
    """Strength 0..1 as red, green, blue, opacity (rows, columns, 4) uint8, not premultiplied."""
    channels = [np.interp(shares, _STOPS[:, 0], _STOPS[:, channel]) for channel in range(1, 5)]
    painted: NDArray[np.uint8] = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    return painted


def covered(pixel_map: PixelMap, *, height: int, width: int) -> tuple[float, float, float, float]:
    """The image's region under a tensor of height x width: left, top, width, height in image pixels."""
    return (
        pixel_map.column_offset,
        pixel_map.row_offset,
        width * pixel_map.column_scale,
        height * pixel_map.row_scale,
    )


def _cubic_weights(count: int) -> Grid:
    """(16 count, count) weights that interpolate cell centres; beyond the outer centres the edge cell is continued."""
    places = (np.arange(count * _FINER) + 0.5) / _FINER - 0.5
    weights = np.zeros((count * _FINER, count), np.float32)
    base = np.floor(places).astype(int)
    for step in (-1, 0, 1, 2):
        distance = np.abs(places - (base + step))
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        share = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
        np.add.at(weights, (np.arange(len(places)), (base + step).clip(0, count - 1)), share)
    return weights
