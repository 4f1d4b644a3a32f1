"""The figures of a lung-field network as JSON documents of a run. A document has no key for a value not measured."""

from __future__ import annotations

from msgspec import Struct

from fieldray.domain.metrics import Share
from fieldray_adapt.evaluation.figures import Interval

ImageCheckRates = dict[str, Share]
"""How often the image checks of a lung-field network are right on the chest images of one source, as shares by name.

- `frontal_chest`: the share of images that are accepted as a frontal chest.
- `left_as_it_is`: the share of images that are accepted, and for which no rotation and no inversion is reported.
- the name of a change, such as `rotated_90`: the share of changed copies for which the change is reported.
- the name of a change with `_false`: the share of unchanged images for which the change is reported.
"""


class LungDataFigures(Struct, frozen=True, kw_only=True):
    """The document data/facts.json of a lung-field recipe: the numbers of images, by part and by source."""

    images: dict[str, int]
    patients: dict[str, int]
    sources: dict[str, int]
    chests: dict[str, int]
    ood_images: int
    data_sha256: str
    split_sha256: str


class SourceMaskFits(Struct, frozen=True, kw_only=True):
    """The fit of the predicted masks of one source: mean values with 95 % intervals.

    Distances are between the outlines of the predicted mask and the true mask, in pixels of an image of 512 x 512
    pixels. `average_distance` is the mean, `distance_95` the 95th percentile. `least_dice` is the lowest Dice.
    """

    images: int
    patients: int
    dice: Interval
    jaccard: Interval
    average_distance: Interval
    distance_95: Interval
    average_distance_percent_of_width: Interval
    least_dice: float


class MaskFitDifference(Struct, frozen=True, kw_only=True):
    """The difference between two network files: Dice of the int8 file minus Dice of the float file, for each image.

    `dice` is the mean of these differences. `largest` is the largest absolute difference.
    """

    dice: float
    largest: float


class ImageCheckFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The thresholds of the image checks (such as "is the image inverted?"), and how often the checks are right.

    Attributes
    ----------
    thresholds
        The threshold of each check, by the name of the check.
    chests
        The results on chest images of the test part, by source.
    ood_images
        The refused share of out-of-distribution images, by kind of image.
    """

    thresholds: dict[str, float]
    chests: dict[str, ImageCheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LungFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document evaluate/metrics.json of a lung-field recipe.

    `masks` has the fit of the masks, by network file and source. `int8_less_float` compares the Dice of int8 and float
    files. The published network has no int8 file and no image checks. All other fields are those of
    `ImageCheckFigures`.
    """

    masks: dict[str, dict[str, SourceMaskFits]]
    int8_less_float: MaskFitDifference | None = None
    thresholds: dict[str, float] | None = None
    chests: dict[str, ImageCheckRates] | None = None
    ood_images: dict[str, Share] | None = None


class LeftOutHospitalFigures(Struct, frozen=True, kw_only=True):
    """The results of the image checks of a network that was trained without one hospital.

    `unseen` are results on that hospital's images. `ood_images` are the shares of out-of-distribution images that the
    checks refuse.
    """

    unseen: dict[str, ImageCheckRates]
    ood_images: dict[str, Share]
    thresholds: dict[str, float]


class LungCrossValidationFigures(Struct, frozen=True, kw_only=True):
    """The document cross/metrics.json: figures of several lung-field networks, each trained without one hospital.

    Attributes
    ----------
    masks
        The fit of the masks, by source. Each mask was predicted by a network that was not trained on the mask.
    hospitals
        For each hospital: the results of the image checks of the network that was trained without the hospital.
    """

    masks: dict[str, SourceMaskFits]
    hospitals: dict[str, LeftOutHospitalFigures]
