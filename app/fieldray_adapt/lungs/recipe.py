"""A lung-field recipe, and the networks that it asks for: the U-Net that ships, and the U-Net as published.

The compact one is small enough to run before every classifier. It follows Ronneberger O., Fischer P., Brox T., U-Net:
Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015, arXiv:1505.04597, with three changes that make it
small and easy on integers: separable convolutions (Howard 2017, arXiv:1704.04861), steps down by stride, and joins that
add where the original concatenates. The mask has half the side of the input. It may have a second channel: after the
lung that can be seen, where lung belongs, behind the heart and opacities too. A second head reads the deepest step: one
score for each check of the image as a whole.

The published one has valid convolutions, 23 of them, from 572 x 572 pixels to a mask of 388 x 388. Each step down is
two 3x3 convolutions without padding and a 2x2 pool; each step up enlarges, halves the channels by a 2x2 convolution
(which keeps its size), and joins what the step down had, cropped. A 1x1 convolution maps the last 64 channels to the
logit of the foreground. The image is mirrored beyond its border, so that the mask covers all of it: the overlap-tile
strategy with one tile.

The recipe names images with masks, images for the checks, and how the network learns from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, cast

from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.data.augmentation import PairAugmentation
from fieldray_adapt.networks.architectures import LABELS, convolution, depthwise_convolution
from fieldray_adapt.networks.specification import INPUT, Layer, Specification
from fieldray_adapt.recipes.classifier import PackRecipe, PatientSplit
from fieldray_adapt.recipes.shared import Source, Split
from fieldray_adapt.recipes.tables import Rules, key, table
from fieldray_adapt.run import Run

CHANNELS: Final = (8, 32, 64, 96, 128)
_CHECK_CHANNELS: Final = (64, 96)
_BLOCKS: Final = (2, 2, 3, 3)
MULTIPLE: Final = 32
"""The input halves five times, so its sides are multiples of this."""


def compact_unet(*, height: int, width: int, channels: tuple[int, ...] = CHANNELS, masks: int = 1) -> Specification:
    """The network as a specification; `channels` of its five steps, each half the side of the one before."""
    if height % MULTIPLE or width % MULTIPLE or len(channels) != len(CHANNELS):
        raise ValueError(f"the input's sides must be multiples of {MULTIPLE}, and its channels {len(CHANNELS)} numbers")
    layers = [convolution("step0", INPUT, "step0", kernel=3, stride=2)]
    counts, last = {"step0": channels[0]}, "step0"
    for step, blocks in enumerate(_BLOCKS, start=1):
        for block in range(1, blocks + 1):
            name = f"step{step}_{block}" if block < blocks else f"step{step}"
            # What goes up again is added to a step, so that the last block of a step has the step's own channels.
            own = f"step{step}"
            layers += _separable(name, last, own, stride=2 if block == 1 else 1)
            last = name
        counts[own] = channels[step]
    deepest = last
    for step in reversed(range(len(_BLOCKS))):
        layers += _join(step, last)
        last = f"join{step}"
        if step:
            layers += _separable(f"up{step}", last, f"step{step}")
            last = f"up{step}"
    mask = [
        Layer(name="mask_logits", kind="conv", inputs=(last,), channels="mask", kernel=3),
        Layer(name="mask", kind="activation", inputs=("mask_logits",), activation="sigmoid"),
    ]
    checks, check_counts = _check_head(deepest)
    return Specification(
        name="compact_unet",
        height=height,
        width=width,
        input_channels=1,
        layers=(*layers, *mask, *checks),
        channels={**counts, "mask": masks, **check_counts},
        outputs={name: name for name in ("logits", "scores", "mask_logits", "mask")},
    )


def _join(step: int, source: str) -> list[Layer]:
    """Up to a step: its channels, twice the side, and what the way down had there."""
    return [
        convolution(f"narrow{step}", source, f"step{step}", activation="none"),
        Layer(name=f"enlarge{step}", kind="upsample", inputs=(f"narrow{step}",), stride=2),
        Layer(name=f"join{step}", kind="add", inputs=(f"enlarge{step}", f"step{step}"), activation="relu"),
    ]


def _check_head(source: str) -> tuple[list[Layer], dict[str, int]]:
    first, second = _CHECK_CHANNELS
    layers = [
        convolution("check_narrow", source, "check_narrow"),
        *_separable("check_step1", "check_narrow", "check_step1", stride=2),
        *_separable("check_step2", "check_step1", "check_step2"),
        Layer(name="check_maps", kind="conv", inputs=("check_step2",), channels=LABELS),
        Layer(name="logits", kind="average_all", inputs=("check_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation="sigmoid"),
    ]
    counts = {"check_narrow": first, "check_step1": first, "check_step2": second, LABELS: len(LUNG_CHECKS)}
    return layers, counts


def _separable(name: str, source: str, channels: str, *, stride: int = 1) -> list[Layer]:
    """A 3x3 convolution of each channel by itself, then a 1x1 across them."""
    return [depthwise_convolution(f"{name}_dw", source, stride=stride), convolution(name, f"{name}_dw", channels)]


LEVELS: Final = 4
MARGIN: Final = 92
"""Pixels that the valid convolutions take from each side."""
_LEAST_BOTTOM: Final = 8


def mask_side(side: int) -> int:
    """The mask's side for an input of `side` pixels, for example 388 for 572.

    Raises ValueError where a pool would halve an odd side, naming the nearest sides that are possible.
    """
    size = side
    for _ in range(LEVELS):
        size -= 4
        if size % 2 or size < _LEAST_BOTTOM:
            near = [fit for fit in range(188, side + 17, 16) if abs(fit - side) < 16]
            raise ValueError(f"an input of {side} pixels does not halve evenly; {near or [188]} would")
        size //= 2
    return side - 2 * MARGIN


def published_unet(*, side: int, root_channels: int = 64) -> Any:
    """A keras.Model from (n, side, side, 1) in 0..1 to the logits (n, mask_side(side), mask_side(side), 1).

    `root_channels` other than 64 make a narrower network of the same kind, for quick trials.
    """
    import keras
    from keras import layers

    wanted = mask_side(side)
    image = keras.Input((side, side, 1), name="image")
    value, steps = image, list[Any]()
    for level in range(LEVELS):
        value = _twice(value, root_channels * 2**level, f"down{level + 1}")
        steps.append(value)
        value = layers.MaxPooling2D(2, name=f"pool{level + 1}")(value)
    value = _twice(value, root_channels * 2**LEVELS, "bottom")
    for level in reversed(range(LEVELS)):
        channels, name = root_channels * 2**level, f"up{level + 1}"
        value = layers.UpSampling2D(2, name=f"{name}_enlarge")(value)
        value = layers.Conv2D(channels, 2, padding="same", activation="relu", name=f"{name}_conv0", **_START)(value)
        crop = (steps[level].shape[1] - value.shape[1]) // 2
        kept = layers.Cropping2D(crop, name=f"{name}_crop")(steps[level])
        value = _twice(layers.Concatenate(name=f"{name}_join")([kept, value]), channels, name)
    logits = layers.Conv2D(1, 1, name="mask_logits")(value)
    if logits.shape[1] != wanted:
        raise ValueError(f"the mask has {logits.shape[1]} pixels, not {wanted}")
    return keras.Model(image, logits, name="published_unet")


_START: Final = {"kernel_initializer": "he_normal"}  # section 3: a standard deviation of sqrt(2 / N)


def _twice(value: Any, channels: int, name: str) -> Any:
    from keras import layers

    for number in (1, 2):
        value = layers.Conv2D(channels, 3, activation="relu", name=f"{name}_conv{number}", **_START)(value)
    return value


@table
class MaskSource:
    """Images with a mask each: white (above 127) is lung."""

    path: Path = key("The CSV file, or the folder of the images for the layout folders.", example="lungs.csv")
    layout: Literal["table", "folders"] = key(
        "table: a CSV with the columns film, mask and patient_id, whose files count from its folder; folders: an image "
        "and a mask of the same name, but for the suffix, in two folders.",
        default="table",
    )
    masks: Path | None = key("Layout folders: the folder of the masks.", default=None)
    name: str = key("What figures call it; the path's last part by default.", default="")
    where: Mapping[str, tuple[str, ...]] = key(
        "Only rows whose columns have one of these values.", default_factory=dict
    )
    shows: Literal["visible", "region"] = key(
        "visible: the lung that can be seen; region: where lung belongs, behind the heart and opacities too.",
        default="visible",
    )
    share: float = key("How often it is drawn, relative to the others.", default=1.0, above=0)
    evaluate_only: bool = key(
        "No mask of it is learnt or chosen on: it shows how masks do at another hospital. Where its images are among "
        "`chests` too, the checks learn from them, and only `adapt cross` measures it wholly unseen.",
        default=False,
    )

    def defaults(self) -> Mapping[str, Any]:
        """As `tables.table`."""
        return {"name": self.path.stem or "masks"}

    def rules(self) -> Rules:
        """As `tables.table`."""
        is_folders = self.layout == "folders"
        return ((is_folders == (self.masks is not None), "masks", "belongs to the layout folders, which needs it"),)


@table
class LungNetwork:
    """Which network is trained."""

    kind: Literal["compact", "published"] = key(
        "compact: small enough to run before every classifier; published: the U-Net of 2015 with valid convolutions, "
        "which is trained and measured, but makes no pack.",
        default="compact",
    )
    channels: tuple[int, ...] = key("Of the compact network's five steps.", default=CHANNELS, unit="channels", low=1)
    root_channels: int = key("Of the published network's first step.", default=64, unit="channels", low=1)
    region: bool = key(
        "Whether the compact network gives a second mask, learnt from masks that show the region.", default=False
    )

    @property
    def masks(self) -> int:
        """How many it gives: the visible lung, then the region."""
        return 1 + self.region

    def rules(self) -> Rules:
        """As `tables.table`."""
        return (
            (len(self.channels) == len(CHANNELS), "channels", f"needs {len(CHANNELS)} numbers"),
            (not self.region or self.kind == "compact", "region", "is for the compact network"),
        )


@table
class Stage:
    """A part of the training at one image size; small images teach the rough shape at a quarter of the cost."""

    side: int = key("Of the images in this stage.", unit="pixels", low=32, high=1024, example=224)
    epochs: int = key("Epochs of `steps_per_epoch` steps.", low=1, example=10)
    learning_rate: float = key("The highest rate; it falls to 0 by a half cosine.", default=3e-3, above=0)


@table
class LungTraining:
    """How the network is trained: AdamW, stages of growing images, averaged weights."""

    stages: tuple[Stage, ...] = key("One after another; the last has the size of the input.")
    steps_per_epoch: int = key("Steps between two looks at the validation images.", default=100, low=1)
    masks_per_step: int = key("Images with a mask in a step.", default=8, unit="images", low=1)
    checks_per_step: int = key("Images for the checks in a step.", default=8, unit="images", low=0)
    checks_weight: float = key("Of the checks' loss, relative to the masks'.", default=0.5, low=0)
    ood_share: float = key("Of the images for the checks that are no chest.", default=0.38, low=0, high=1)
    weight_decay: float = key("Of AdamW.", default=0.01, low=0)
    seed: int = key("Of initial weights, order and augmentation.", default=0)
    threads: int = key("CPU threads; 0 leaves the choice to the framework.", default=0, low=0)
    panel_images: int = key(
        "Fixed samples that are drawn after each epoch: image, mask and prediction.", default=4, low=0
    )

    def rules(self) -> Rules:
        """As `tables.table`."""
        return ((bool(self.stages), "stages", "must be one or more"),)


@table
class LungEvaluation:
    """What is measured, and how the thresholds of the checks are chosen: on the validation images."""

    mask_threshold: float = key("From this share on a cell is lung.", default=0.5, above=0, high=0.99)
    keeps: float = key(
        "Share of the validation images that each check leaves as they are.", default=0.99, low=0.8, high=1
    )
    shows_images: bool = key(
        "Whether the report shows overlays of real images; false where they may not be shown.", default=True
    )


@table
class LungRecipe(PackRecipe):
    """A lung-field pack: from images with masks to a signed pack."""

    kind: Literal["lung-fields"] = key("What the recipe makes.", example="lung-fields")
    network: LungNetwork = key("The network.", default=LungNetwork())
    masks: tuple[MaskSource, ...] = key("Images with masks.")
    chests: tuple[Source, ...] = key(
        "Frontal chest images without masks, any of which the checks must accept.", default=()
    )
    ood_images: tuple[Source, ...] = key(
        "Images that are no chest X-rays; others are drawn by the program.", default=()
    )
    split: PatientSplit = field(default_factory=Split)
    augmentation: PairAugmentation = key("Random changes of images with masks.", default_factory=PairAugmentation)
    checks_augmentation: PairAugmentation = key(
        "Random changes of images for the checks.", default_factory=PairAugmentation
    )
    training: LungTraining = key("How the network is trained.")
    evaluation: LungEvaluation = key("What is measured.", default=LungEvaluation())

    @property
    def region_sources(self) -> frozenset[str]:
        """The names of those whose masks show the region."""
        return frozenset(source.name for source in self.masks if source.shows == "region")

    def rules(self) -> Rules:
        """As `tables.table`."""
        spec, side = self.input, self.input.height
        is_whole = spec.fit == "stretch" and not spec.margin and spec.crop == "none"
        return (
            (any(not source.evaluate_only for source in self.masks), "masks", "must have a source to learn from"),
            (self.network.region or not self.region_sources, "masks", "that show the region need network.region"),
            (spec.height == spec.width and spec.channels == 1, "input", "must be square and grey"),
            (is_whole, "input", "must hold the whole image: fit stretch, no margin, no crop"),
            (self.split.by == "random", "split.by", "must be random: patients are drawn by a hash"),
            (self.split.table is None, "split.table", "is for a network that goes on from another"),
            (
                self.training.stages[-1].side == side,
                "training.stages",
                "must end with the size of the input",
            ),
            *((_fits(self.network, stage.side), "training.stages", _wanted(self.network)) for stage in _stages(self)),
            (self.network.kind == "compact" or not self.chests, "chests", "need the compact network, which has checks"),
        )


def recipe_of(run: Run) -> LungRecipe:
    """The recipe of a run that works on lung fields."""
    return cast("LungRecipe", run.recipe)


def _stages(recipe: LungRecipe) -> tuple[Stage, ...]:
    return recipe.training.stages


def _fits(network: LungNetwork, side: int) -> bool:
    if network.kind == "compact":
        return side % MULTIPLE == 0
    try:
        return mask_side(side) > 0
    except ValueError:
        return False


_WANTED: Final = {
    "compact": f"must have sides that are multiples of {MULTIPLE}",
    "published": "must have sides of 188 and steps of 16 above it, for example 572",
}


def _wanted(network: LungNetwork) -> str:
    return _WANTED[network.kind]
