"""The figures of a lung-field network as JSON documents of a run. A value that was not measured is absent."""

from __future__ import annotations

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray_adapt.evaluation.figures import Interval

CheckRates = dict[str, Share]
"""How the checks of the whole image did on the chest images of one source: shares of these images, by name.

- `frontal_chest`: accepted as a frontal chest.
- `left_as_it_is`: accepted, with no rotation and no inversion reported.
- the name of a change, such as `rotated_90`: the change is noticed in copies that have it.
- the name of a change with `_false`: the change is reported for the upright image, which does not have it.
"""


class LungDataFigures(Struct, frozen=True, kw_only=True):
    """The document data/facts.json of lung fields: images with masks by part, and other images by source."""

    images: dict[str, int]
    patients: dict[str, int]
    sources: dict[str, int]
    chests: dict[str, int]
    ood_images: int
    data_sha256: str
    split_sha256: str


class SourceFits(Struct, frozen=True, kw_only=True):
    """The fit of the masks of one source: means with intervals. Distances are in pixels of an image with 512 pixels a
    side.
    """

    images: int
    patients: int
    dice: Interval
    jaccard: Interval
    average_distance: Interval
    distance_95: Interval
    average_distance_percent_of_width: Interval
    least_dice: float


class FitDifference(Struct, frozen=True, kw_only=True):
    """The Dice of the int8 file minus that of the float file: the mean, and the largest absolute difference of an
    image.
    """

    dice: float
    largest: float


class CheckFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The thresholds of the checks of the whole image, and how often the checks are right on test images.

    Attributes
    ----------
    thresholds
        The threshold of each check, by its name.
    chests
        The results on chest images, by source.
    ood_images
        The share of out-of-distribution images that are refused, by kind of image.
    """

    thresholds: dict[str, float]
    chests: dict[str, CheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LungFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document evaluate/metrics.json of lung fields; `masks` has the fit by network file and source.

    The published network has no int8 file and no checks.
    """

    masks: dict[str, dict[str, SourceFits]]
    int8_less_float: FitDifference | None = None
    thresholds: dict[str, float] | None = None
    chests: dict[str, CheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LeftOutFigures(Struct, frozen=True, kw_only=True):
    """The checks of a network trained without a hospital: rates on images of that hospital, and on other images."""

    unseen: dict[str, CheckRates]
    ood_images: dict[str, Share]
    thresholds: dict[str, float]


class LungCrossFigures(Struct, frozen=True, kw_only=True):
    """The document cross/metrics.json: figures of lung-field networks that were each trained without one hospital.

    Attributes
    ----------
    masks
        The fit of the masks by source. No mask was used to train the network that predicted it.
    hospitals
        By hospital: the results of the checks there, by the network trained without it.
    """

    masks: dict[str, SourceFits]
    hospitals: dict[str, LeftOutFigures]
