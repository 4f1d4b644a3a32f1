"""Heat maps: from a pack's class map to the colours laid over the image.

The class map has a logit for each cell. The mean over the cells is the classifier's logit. A cell is coloured only if
its logit is above 0 (even odds) and above the logit of the operating point. The higher the logit, the stronger is the
colour. The scale of a pack is fixed, so that heat maps of two images can be compared. An image far below the threshold
shows no false hot spot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Finding, Outcome, ScreenedOutcome, leading_finding
from fieldray.domain.image import CoordinateMap
from fieldray.domain.model import Calibration, Manifest

DEFAULT_COLOUR_SPAN: Final = 6.0  # for a pack whose metrics have no span
OUTLINE_COLOUR: Final = (80, 220, 255)  # red, green, blue of the lungs' outline: far from every colour of the heat map
_SPANS: Final = (1e-3, 1e6)  # valid range of a pack's span
_FINER: Final = 16
_EDGE: Final = 1e-6

# Stops of the legend: strength, red, green, blue, opacity. One hue path from yellow to dark red, ever darker, so that
# the order can be read without colour vision; weak evidence stays almost clear.
_STOPS: Final = np.array(
    [
        (0.00, 255, 232, 120, 0),
        (0.16, 255, 222, 104, 36),
        (0.35, 255, 176, 40, 165),
        (0.70, 240, 96, 24, 235),
        (1.00, 190, 16, 38, 255),
    ]
)

CellValues = NDArray[np.float32]


def label_logits(class_maps: NDArray[np.float32], label: str, manifest: Manifest) -> CellValues:
    """Return the class map of one label as logits (rows, columns).

    For a network with softmax outputs, the logit compares the label with all other labels together.

    class_maps  (labels, rows, columns)
    """
    index = [entry.code for entry in manifest.labels].index(label)
    own: CellValues = class_maps[index]
    if manifest.outputs.activation == "sigmoid" or len(class_maps) < 2:
        return own
    others = np.logaddexp.reduce(np.delete(class_maps, index, axis=0), axis=0)
    difference: CellValues = (own - others).astype(np.float32)
    return difference


def evidence_threshold_logit(threshold: float | None, calibration: Calibration | None) -> float:
    """Return the uncalibrated logit above which a cell counts as evidence for the finding.

    The result is the logit of the threshold, or 0 (even odds) if 0 is higher. The threshold of a sensitive operating
    point can lie below even odds. A cell between this threshold and even odds speaks rather against the finding. The
    cells of images without findings lie in that range.

    Parameters
    ----------
    threshold
        Threshold on the calibrated score, 0..1; None for even odds.
    calibration
        The label's calibration, or None.
    """
    if threshold is None:
        return 0.0
    share = min(max(threshold, _EDGE), 1 - _EDGE)
    logit = math.log(share / (1 - share))
    return max(0.0, logit if calibration is None else (logit - calibration.intercept) / calibration.slope)


def colour_span_logits(label: str, manifest: Manifest) -> float:
    """Return how far the logit of a cell with full colour lies above `evidence_threshold_logit`.

    The number is `metrics.labels.LABEL.heat_map.span` in the pack's manifest, or `DEFAULT_COLOUR_SPAN` if the manifest
    has no valid number.
    """
    found: Any = manifest.metrics
    for key in ("labels", label, "heat_map", "span"):
        found = found.get(key) if isinstance(found, Mapping) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and _SPANS[0] <= found <= _SPANS[1] else DEFAULT_COLOUR_SPAN


def evidence(logits: CellValues, evidence_threshold: float) -> CellValues:
    """Return the evidence for a finding in each cell of a class map: logit minus `evidence_threshold`, at least 0.

    logits              (rows, columns) float32, the class map
    evidence_threshold  the logit above which a cell counts as evidence (`evidence_threshold_logit`)
    """
    above: CellValues = (logits - np.float32(evidence_threshold)).clip(0, None)
    return above


def enlarge_smoothly(cells: CellValues) -> CellValues:
    """Enlarge a map (rows, columns) 16 times in height and width, by cubic convolution (Keys 1981)."""
    down, across = _cubic_weights(cells.shape[0]), _cubic_weights(cells.shape[1])
    fine: CellValues = (down @ cells @ across.T).clip(0, 1)
    return fine


def colours(strengths: CellValues) -> NDArray[np.uint8]:
    """Return the colours of a heat map: (rows, columns, 4) uint8 of red, green, blue and opacity.

    strengths  (rows, columns) float32, the strength of the colour, 0..1
    """
    channels = [np.interp(strengths, _STOPS[:, 0], _STOPS[:, channel]) for channel in range(1, 5)]
    painted: NDArray[np.uint8] = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    return painted


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ShownHeatMap:
    """The class map of the finding that decides an image's class, with the scale of its colours.

    logits              (rows, columns) float32
    evidence_threshold  the logit above which a cell counts as evidence for the finding
    colour_span         how far the logit of a cell with full colour lies above `evidence_threshold`
    cells_to_image      maps cells to pixels of the image
    """

    finding: Finding
    logits: CellValues
    evidence_threshold: float
    colour_span: float
    cells_to_image: CoordinateMap

    @property
    def evidence(self) -> CellValues:
        """The evidence of each cell (rows, columns), at least 0: the logit of the cell minus `evidence_threshold`."""
        return evidence(self.logits, self.evidence_threshold)

    @property
    def colour_strength(self) -> CellValues:
        """The strength of colour of each cell (rows, columns), 0..1."""
        share: CellValues = (self.evidence / np.float32(self.colour_span)).clip(0, 1)
        return share

    @property
    def network_field_of_view(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the network's field of view, in pixels of the image.

        The field of view may extend beyond the image.
        """
        rows, columns = self.logits.shape
        cells = self.cells_to_image
        return cells.column_offset, cells.row_offset, columns * cells.column_scale, rows * cells.row_scale


def shown_heat_map(outcome: Outcome, manifest: Manifest) -> ShownHeatMap | None:
    """Return the class map to show for an outcome; None if the outcome has no class map to show."""
    finding, pixel_map = leading_finding(outcome), outcome.facts.input_to_image
    if not isinstance(outcome, ScreenedOutcome) or finding is None or outcome.class_maps is None or pixel_map is None:
        return None
    logits = label_logits(outcome.class_maps, finding.label, manifest)
    rows, columns = logits.shape
    return ShownHeatMap(
        finding=finding,
        logits=logits,
        evidence_threshold=evidence_threshold_logit(
            finding.point.threshold if finding.point else None, manifest.calibration.get(finding.label)
        ),
        colour_span=colour_span_logits(finding.label, manifest),
        cells_to_image=pixel_map.for_cells((rows, columns), input_size=(manifest.input.height, manifest.input.width)),
    )


@lru_cache(maxsize=8)
def _cubic_weights(count: int) -> CellValues:
    """Return weights (16 * count, count) for cubic interpolation between the centres of `count` cells.

    Outside the centres of the first and last cell, the value of the nearest cell counts. The array is read-only.
    """
    positions = (np.arange(count * _FINER) + 0.5) / _FINER - 0.5
    weights = np.zeros((count * _FINER, count), np.float32)
    base = np.floor(positions).astype(int)
    for step in (-1, 0, 1, 2):
        distance = np.abs(positions - (base + step))
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        share = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
        np.add.at(weights, (np.arange(len(positions)), (base + step).clip(0, count - 1)), share)
    weights.flags.writeable = False
    return weights
