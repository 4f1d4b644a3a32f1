"""A matcher's recipe, and the encoder that it asks for.

NCCNet's encoder: a residual U-Net, by which both images of a pair are described before they are correlated.

After Buniatyan 2017 (arXiv:1705.08593): four levels of 8, 16, 32 and 64 channels; residual blocks of 3x3 convolutions,
in which the last reads the sum of the first and the one before it; 2x2 max-pools; resize-convolutions up, which halve
the channels; skips that are added; a last 3x3 convolution with tanh. The image keeps its size.

Inner layers are rectified by default, where the source has tanh: a rectified channel may be scaled freely, which
`quantise.equalise` needs to keep faint channels apart in eight bits, and costs less on a CPU. The last tanh stays: its
range is known, so that a bright edge cannot take the integers from all else.

Training begins with a network that passes the image through beside random channels. From random channels alone the
peaks are so low at first that making all of them lower is the nearest way down, and minutes pass before one rises.

The recipe of a matcher pack: pairs of images of one patient, the encoder, and how it learns to match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import InputSpec
from fieldray_adapt.augmentation import PairAugmentation
from fieldray_adapt.recipe import CalibrationImages, PackInput, PatientSplit, WholeImageRecipe
from fieldray_adapt.recipe_data import Split
from fieldray_adapt.run import Run
from fieldray_adapt.specification import INPUT, Layer, Specification, Weights, initial_weights
from fieldray_adapt.tables import Rules, key, table

CHANNELS: Final = (8, 16, 32, 64)
MULTIPLE: Final = 8
"""The image halves three times."""
FEATURES: Final = "features"
InnerActivation = Literal["relu", "tanh"]


def residual_unet(
    *,
    side: int,
    channels: tuple[int, ...] = CHANNELS,
    convolutions: int = 3,
    features: int = 2,
    activation: InnerActivation = "relu",
) -> Specification:
    """The encoder as a specification, from (side, side, 1) to (side, side, features) in -1..1.

    Parameters
    ----------
    channels
        Of each level, each half the side of the one before.
    convolutions
        In a residual block, 3 or more.

    Raises
    ------
    ValueError
        For a side that does not halve evenly, or fewer convolutions.
    """
    if side % 2 ** (len(channels) - 1) or convolutions < 3:
        raise ValueError("the side must halve evenly for each level, and a block needs 3 convolutions")
    layers, last, counts = list[Layer](), INPUT, dict[str, int]()
    for level, count in enumerate(channels):
        if level:
            layers.append(Layer(name=f"pool{level}", kind="max_pool", inputs=(last,), kernel=2, stride=2))
            last = f"pool{level}"
        layers += _block(f"down{level}", last, f"level{level}", convolutions, activation)
        counts[f"level{level}"], last = count, layers[-1].name
    for level in reversed(range(len(channels) - 1)):
        own, skip = f"level{level}", f"down{level}_{convolutions}"
        layers += [
            Layer(name=f"enlarge{level}", kind="upsample", inputs=(last,), stride=2),
            _convolution(f"narrow{level}", f"enlarge{level}", own, activation),
            Layer(name=f"join{level}", kind="add", inputs=(f"narrow{level}", skip)),
            *_block(f"up{level}", f"join{level}", own, convolutions, activation),
        ]
        last = layers[-1].name
    final = Layer(name=FEATURES, kind="conv", inputs=(last,), channels=FEATURES, kernel=3, activation="tanh")
    return Specification(
        name="nccnet",
        height=side,
        width=side,
        input_channels=1,
        layers=(*layers, final),
        channels={**counts, FEATURES: features},
        outputs={FEATURES: FEATURES},
    )


def _block(name: str, source: str, channels: str, count: int, activation: InnerActivation) -> list[Layer]:
    """So many convolutions, named NAME_1 and so on; the last reads the sum of the one before it and the first."""
    layers = [_convolution(f"{name}_1", source, channels, activation)]
    for number in range(2, count):
        layers.append(_convolution(f"{name}_{number}", f"{name}_{number - 1}", channels, activation))
    layers.append(Layer(name=f"{name}_sum", kind="add", inputs=(f"{name}_{count - 1}", f"{name}_1")))
    return [*layers, _convolution(f"{name}_{count}", f"{name}_sum", channels, activation)]


def _convolution(name: str, source: str, channels: str, activation: InnerActivation) -> Layer:
    return Layer(name=name, kind="conv", inputs=(source,), channels=channels, kernel=3, activation=activation)


_GAIN: Final = 3.0
"""How steep the last tanh stands on the image that is passed through, 0..1 about a half."""


_SMALL: Final = 0.1


def passing_weights(specification: Specification, *, seed: int) -> Weights:
    """Random weights whose first channel at full size is the image, to which each feature is a tanh of it.

    The first feature sees it as it is, the others as the mean of 3 x 3 pixels. What deeper levels say of it is still
    random, and reaches the features through the other channels.
    """
    weights = initial_weights(specification, seed=seed)
    doubled = 1.0
    for layer in specification.layers:
        if layer.channels == "level0":
            kernel = weights[f"{layer.name}/kernel"]
            kernel[..., 0] = 0
            if not layer.name.startswith("narrow"):
                kernel[1, 1, 0, 0] = 1
        elif layer.name == FEATURES:
            kernel, bias = weights[f"{FEATURES}/kernel"], weights[f"{FEATURES}/bias"]
            kernel[..., 1:, :] *= np.float32(_SMALL)
            kernel[..., 0, :] = _GAIN / doubled / kernel[..., 0, 0].size
            kernel[..., 0, 0] = 0
            kernel[1, 1, 0, 0] = _GAIN / doubled
            bias[:] = -_GAIN / 2
        if layer.kind == "add" and layer.name.endswith("0_sum"):
            doubled *= 2
    return weights


PUBLISHED_SIDE: Final = 512


@table
class PairSource:
    """Two images of one patient at two times a row."""

    path: Path = key(
        "A CSV with the columns prior, current and patient_id; files count from its folder. Displacements are neither "
        "needed nor read.",
        example="pairs.csv",
    )
    name: str = key("What figures call it; the path's last part by default.", default="")
    where: Mapping[str, tuple[str, ...]] = key(
        "Only rows whose columns have one of these values.", default_factory=dict
    )

    far_from: float | None = key(
        "From this value of the column gap on a pair is far; without it, the column is not read. It decides in which "
        "row of the evaluation a pair is counted, and nothing else.",
        default=None,
    )

    def defaults(self) -> Mapping[str, Any]:
        """As `tables.table`."""
        return {"name": self.path.stem or "pairs"}


@table
class MatcherNetwork:
    """The encoder: a residual U-Net that describes both images of a pair with the same weights."""

    channels: tuple[int, ...] = key("Of each level, at half the side of the one before.", default=CHANNELS, low=1)
    convolutions: int = key("In a residual block.", default=3, low=3, high=9)
    features: int = key("Planes that come out; their correlations are averaged.", default=2, low=1, high=16)
    activation: Literal["relu", "tanh"] = key(
        "Of inner layers. tanh as published; relu is kinder to eight bits.", default="relu"
    )
    local_radius: int = key(
        "The image is normalised by mean and deviation within so many pixels before the encoder.",
        default=16,
        unit="pixels",
        low=1,
        high=64,
    )

    def rules(self) -> Rules:
        """As `tables.table`."""
        return ((2 <= len(self.channels) <= len(CHANNELS), "channels", f"needs 2 to {len(CHANNELS)} numbers"),)


@table
class MatcherTraining:
    """How the encoder is trained: Adam, P1 - P2 of templates in their own patient, |P1| in another's."""

    epochs: int = key("Of `steps_per_epoch` steps.", low=1, example=20)
    steps_per_epoch: int = key("Steps between two looks at the validation pairs.", default=100, low=1)
    learning_rate: float = key("The highest rate; it falls to 0 by a half cosine.", default=1e-3, above=0)
    pairs_per_step: int = key("Pairs of images, of as many patients.", default=3, low=2)
    templates_per_pair: int = key("Templates cut from the prior image of each.", default=8, low=1)
    crop_side: int = key("Of the part of both images that is seen.", default=224, unit="pixels", low=32)
    templates: tuple[int, ...] = key("Sides of templates, in turn.", default=(48, 64), unit="pixels", low=8)
    reach: int = key("How far around its own place a template is searched.", default=40, unit="pixels", low=4)
    distance: int = key(
        "The second peak is at least so far from the first.", default=10, unit="pixels", low=1, example=10
    )
    dissimilar_weight: float = key(
        "Of the size of P1 of templates in another patient's image; 0 shows what happens without that term.",
        default=0.5,
        low=0,
    )
    same_image: float = key(
        "Share of the pairs that are one image twice, changed independently.", default=0.4, low=0, high=1
    )
    seed: int = key("Of initial weights, order and augmentation.", default=0)
    threads: int = key("CPU threads; 0 leaves the choice to the framework.", default=0, low=0)

    def rules(self) -> Rules:
        """As `tables.table`."""
        largest = max(self.templates, default=0) + 2 * self.reach
        return (
            (bool(self.templates), "templates", "must be one or more"),
            (self.crop_side % MULTIPLE == 0, "crop_side", f"must be a multiple of {MULTIPLE}"),
            (largest <= self.crop_side, "crop_side", "must hold the largest template and its reach on both sides"),
            (self.distance <= self.reach, "distance", "must not be above the reach"),
        )


@table
class MatcherEvaluation:
    """What is measured: false matches on identical matches, by template size and by how far the pairs are apart."""

    templates: tuple[int, ...] = key("Sides of templates.", default=(48, 64), unit="pixels", low=8)
    matches_per_pair: int = key("Templates of each size and pair.", default=24, low=1)
    reach: int = key("How far around its own place a template is searched.", default=64, unit="pixels", low=8)
    tolerance: float = key("Farther than this from the truth a match is false.", default=10.0, unit="pixels", above=0)
    consensus_tolerance: float = key(
        "The same where the truth is the consensus of a pair.", default=20.0, unit="pixels", above=0
    )
    near_warp: float = key("Longest displacement of near pairs, as a share of the side.", default=0.04, high=0.1)
    far_warp: float = key("Longest displacement of far pairs, as a share of the side.", default=0.08, high=0.1)
    least_distance: int = key("Of the second peak from the first.", default=10, unit="pixels", low=1)
    seed: int = key("Of warps, exposures and places of templates.", default=7)

    def rules(self) -> Rules:
        """As `tables.table`."""
        return ((bool(self.templates), "templates", "must be one or more"),)


@table
class MatcherRecipe(WholeImageRecipe):
    """A matcher pack: from pairs of images of one patient to a signed pack."""

    kind: Literal["matcher"] = key("What the recipe makes.", example="matcher")
    calibration_images: CalibrationImages = 60
    input: PackInput = field(default_factory=lambda: InputSpec(height=PUBLISHED_SIDE, width=PUBLISHED_SIDE))
    network: MatcherNetwork = key("The encoder.", default=MatcherNetwork())
    pairs: tuple[PairSource, ...] = key("Pairs of images of one patient.")
    split: PatientSplit = field(default_factory=Split)
    augmentation: PairAugmentation = key(
        "Random changes, of each image of a pair by itself.", default_factory=PairAugmentation
    )
    training: MatcherTraining = key("How the encoder is trained.")
    evaluation: MatcherEvaluation = key("What is measured.", default=MatcherEvaluation())

    def rules(self) -> Rules:
        """As `tables.table`."""
        side = self.input.height
        largest = max((*self.training.templates, *self.evaluation.templates))
        return (
            (bool(self.pairs), "pairs", "must name at least one source"),
            *self.rules_with(self.split),
            (side % MULTIPLE == 0, "input", f"must have sides that are multiples of {MULTIPLE}"),
            (self.training.crop_side <= side, "training.crop_side", "must not be above the size of the input"),
            (largest + 2 * self.evaluation.reach < side, "evaluation.reach", "leaves no room for a template"),
        )


def recipe_of(run: Run) -> MatcherRecipe:
    """The recipe of a run that works on a matcher."""
    return cast("MatcherRecipe", run.recipe)


# ---- an image as the encoder sees it
#
# Each pixel against the mean and the deviation of what surrounds it. Exposure, scatter and the archive's grey levels
# change broadly; what two images of one patient share is fine. Eight bits then hold the fine, and not the difference
# between lung and abdomen.


_MIDDLE: Final = 128.0
_LEVELS_PER_DEVIATION: Final = 42.0
"""Three deviations to each side fill eight bits."""
_LEAST_DEVIATION: Final = 4.0
"""Grey levels of 255 added to the deviation, so that the noise of empty air is not blown up."""


def locally_normalised(image: NDArray[Any], *, radius_px: int) -> NDArray[np.uint8]:
    """(value - local mean) / (local deviation + 4), 42 levels a deviation about 128: uint8 (rows, columns).

    Parameters
    ----------
    image
        (rows, columns), grey levels 0..255 of any type.
    radius_px
        Half the side of the two boxes that are averaged over, one after another, 1 or more.

    Raises
    ------
    ValueError
        For another number of axes, or no radius.
    """
    if image.ndim != 2 or radius_px < 1:
        raise ValueError("an image of rows and columns and a radius of at least one pixel are needed")
    fine = image.astype(np.float32)
    fine -= _smooth(fine, radius_px)
    deviation = np.sqrt(_smooth(fine * fine, radius_px).clip(0))
    levels = _MIDDLE + _LEVELS_PER_DEVIATION * fine / (deviation + np.float32(_LEAST_DEVIATION))
    return np.asarray(np.rint(levels).clip(0, 255), np.uint8)


def _smooth(plane: NDArray[np.float32], radius_px: int) -> NDArray[np.float32]:
    """Two box means along each axis; the border counts as going on."""
    for _ in range(2):  # each turns the plane over, so that it stands as it was
        plane = _row_means(_row_means(plane, radius_px), radius_px).T
    return np.ascontiguousarray(plane)


def _row_means(plane: NDArray[np.float32], radius_px: int) -> NDArray[np.float32]:
    rows, columns = plane.shape
    width = 2 * radius_px + 1
    padded = np.pad(plane, ((0, 0), (radius_px, radius_px)), mode="edge")
    totals = np.zeros((rows, columns + width), np.float64)
    np.cumsum(padded, axis=1, out=totals[:, 1:])
    return np.asarray((totals[:, width:] - totals[:, :-width]) / width, np.float32)
