"""The figures of a lung-field network as stored in a run. Parts that a run lacks are absent."""

from __future__ import annotations

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray_adapt.evaluation.figures import Interval

CheckRates = dict[str, Share]
"""For each change of a source's images, the share in which a check notices it."""


class LungDataFigures(Struct, frozen=True, kw_only=True):
    """data/facts.json: numbers of images with masks and of their patients by part, of other images by source."""

    images: dict[str, int]
    patients: dict[str, int]
    sources: dict[str, int]
    chests: dict[str, int]
    ood_images: int
    data_sha256: str
    split_sha256: str


class SourceFits(Struct, frozen=True, kw_only=True):
    """The fit of the masks of one source: means with intervals. Distances are in pixels of a side of 512."""

    images: int
    patients: int
    dice: Interval
    jaccard: Interval
    average_distance: Interval
    distance_95: Interval
    average_distance_percent_of_width: Interval
    least_dice: float


class FitDifference(Struct, frozen=True, kw_only=True):
    """The difference int8 minus float: of the mean Dice, and the largest of one image."""

    dice: float
    largest: float


class CheckFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The thresholds of the checks by name, and the checks' results on test images: chests and others, by source."""

    thresholds: dict[str, float]
    chests: dict[str, CheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LungFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """evaluate/metrics.json of lung fields; masks by the file that found them, then by source.

    The network as published has no int8 file and no checks.
    """

    masks: dict[str, dict[str, SourceFits]]
    int8_less_float: FitDifference | None = None
    thresholds: dict[str, float] | None = None
    chests: dict[str, CheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LeftOutFigures(Struct, frozen=True, kw_only=True):
    """Rates of a network's checks on the images of a hospital that the training left out, and on other images."""

    unseen: dict[str, CheckRates]
    ood_images: dict[str, Share]
    thresholds: dict[str, float]


class LungCrossFigures(Struct, frozen=True, kw_only=True):
    """cross/metrics.json of lung fields: every mask by a network that never saw it, and each hospital left out."""

    masks: dict[str, SourceFits]
    hospitals: dict[str, LeftOutFigures]
