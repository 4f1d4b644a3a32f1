"""The keys of a lung-field pack's recipe: images with masks, images for the image checks, and the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, cast

from fieldray_adapt.data.augmentation import ImageMaskAugmentation
from fieldray_adapt.lungs.networks import COMPACT_CHANNELS, INPUT_SIDE_MULTIPLE, published_mask_side
from fieldray_adapt.recipes.classifier import PackRecipe, PatientSplit
from fieldray_adapt.recipes.shared import Source, Split, server_addresses
from fieldray_adapt.recipes.tables import ValidityRules, key, recipe_table
from fieldray_adapt.run import Run


@recipe_table
class MaskSource:
    """A source of images with lung masks, one mask for each image.

    Mask pixels brighter than half of the mask's brightest pixel are lung.
    """

    path: Path = key(
        "Layout table: the CSV file. Layout folders: the folder of the images. The source may be on a server "
        "(s3://BUCKET/FOLDER); `fieldray adapt fetch`, or the option --fetch of a step, then copies the images.",
        example="lungs.csv",
    )
    layout: Literal["table", "folders"] = key(
        "table: a CSV file with the columns film (the image), mask and patient_id; paths are relative to the CSV file. "
        "folders: a folder of images and a folder of masks, with equal file names apart from the suffix.",
        default="table",
    )
    masks: Path | None = key("Layout folders: the folder of the masks.", default=None)
    name: str = key("Name of the source in figures; by default the last part of the path.", default="")
    where: Mapping[str, tuple[str, ...]] = key(
        "Allowed values of columns. Table rows with other values are not used.", default_factory=dict
    )
    shows: Literal["visible", "region"] = key(
        "What the masks show. visible: the visible lung; region: the whole lung, including lung behind the heart and "
        "behind opacities.",
        default="visible",
    )
    share: float = key(
        "How often training uses images of this source, relative to other sources.", default=1.0, above=0
    )
    evaluate_only: bool = key(
        "Use the masks of this source for evaluation only, never for training. If `chests` has images of this source, "
        "the image checks are trained on these images. Then only `adapt cross` measures a network that has not seen "
        "this source.",
        default=False,
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the default value of the key `name`, which is made from the source's path."""
        return {"name": self.path.stem or "masks"}

    @property
    def server_addresses(self) -> tuple[str, ...]:
        """The addresses of the source's folders on servers, such as s3://BUCKET/FOLDER."""
        return server_addresses(self.path if self.layout == "folders" else self.path.parent, self.masks)

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        is_folders = self.layout == "folders"
        return ((is_folders == (self.masks is not None), "masks", "belongs to the layout folders, which needs it"),)


@recipe_table
class LungNetwork:
    """The lung-field network to train: kind, number of channels, and number of masks."""

    kind: Literal["compact", "published"] = key(
        "compact: small enough to run before every classifier; published: the U-Net of 2015 with valid convolutions, "
        "which is trained and measured, but makes no pack.",
        default="compact",
    )
    channels: tuple[int, ...] = key(
        "Number of channels in each of the compact network's five steps.",
        default=COMPACT_CHANNELS,
        unit="channels",
        low=1,
    )
    root_channels: int = key("Channels of the published network's first step.", default=64, unit="channels", low=1)
    region: bool = key(
        "Whether the compact network gives a second mask, of the lung region. Needs masks with shows = region.",
        default=False,
    )

    @property
    def mask_count(self) -> int:
        """Number of masks that the network gives: 1 (visible lung), or 2 (visible lung and lung region)."""
        return 1 + self.region

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        return (
            (len(self.channels) == len(COMPACT_CHANNELS), "channels", f"needs {len(COMPACT_CHANNELS)} numbers"),
            (not self.region or self.kind == "compact", "region", "needs the compact network"),
        )


@recipe_table
class TrainingStage:
    """A stage of the training, in which all images have one size. Training with small images is faster."""

    side: int = key("Side of the images in this stage.", unit="pixels", low=32, high=1024, example=224)
    epochs: int = key("Number of epochs in this stage. An epoch has `steps_per_epoch` steps.", low=1, example=10)
    learning_rate: float = key(
        "The highest learning rate; the rate falls to 0 by a half cosine.", default=3e-3, above=0
    )


@recipe_table
class LungTraining:
    """The settings of the training of a lung-field network, in stages with growing images."""

    stages: tuple[TrainingStage, ...] = key(
        "Stages of the training, in order. Images of the last stage have the size of the network's input."
    )
    steps_per_epoch: int = key("Steps between two evaluations on the validation images.", default=100, low=1)
    masks_per_step: int = key("Images with a mask in each training step.", default=8, unit="images", low=1)
    checks_per_step: int = key("Images for the image checks in each training step.", default=8, unit="images", low=0)
    checks_weight: float = key("Weight of the image checks' loss, relative to the masks' loss.", default=0.5, low=0)
    ood_share: float = key(
        "Share of the images for the image checks that are no frontal chest.", default=0.38, low=0, high=1
    )
    weight_decay: float = key("Weight decay of AdamW or SGD.", default=0.01, low=0)
    momentum: float = key(
        "Momentum of the training with SGD, for example 0.99. 0: training with AdamW.", default=0.0, low=0, high=0.999
    )
    seed: int = key("Seed of all random numbers: initial weights, order of images, augmentation.", default=0)
    threads: int = key("Number of CPU threads. 0: TensorFlow chooses the number.", default=0, low=0)
    panel_images: int = key(
        "Number of images for which a picture of true and predicted mask is stored after each epoch.", default=4, low=0
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        return ((bool(self.stages), "stages", "must be one or more"),)


@recipe_table
class LungEvaluation:
    """The settings of the evaluation of a lung-field network: thresholds, and whether the report shows images."""

    mask_threshold: float = key(
        "Smallest share of lung at which a cell of the mask counts as lung.", default=0.5, above=0, high=0.99
    )
    keeps: float = key(
        "Share of upright validation images for which the checks must report no rotation, inversion or mirroring.",
        default=0.99,
        low=0.8,
        high=1,
    )
    shows_images: bool = key(
        "Whether the report shows images with outlines of the lungs. Set false for images that must not be published.",
        default=True,
    )


@recipe_table
class LungRecipe(PackRecipe):
    """The recipe of a lung-field pack: the keys for data, network, training, evaluation and pack."""

    kind: Literal["lung-fields"] = key("The kind of the recipe: a lung-field pack.", example="lung-fields")
    network: LungNetwork = key("The network to train.", default=LungNetwork())
    masks: tuple[MaskSource, ...] = key("Images with masks.")
    chests: tuple[Source, ...] = key(
        "Frontal chest images without masks, which the image checks must accept.", default=()
    )
    ood_images: tuple[Source, ...] = key(
        "Images that are no chest X-rays, in addition to synthetic images that the program draws.", default=()
    )
    split: PatientSplit = field(default_factory=Split)
    augmentation: ImageMaskAugmentation = key(
        "Random changes of images with masks.", default_factory=ImageMaskAugmentation
    )
    checks_augmentation: ImageMaskAugmentation = key(
        "Random changes of images for the image checks.", default_factory=ImageMaskAugmentation
    )
    training: LungTraining = key("Settings of the training.")
    evaluation: LungEvaluation = key("Settings of the evaluation.", default=LungEvaluation())

    @property
    def all_sources(self) -> tuple[MaskSource | Source, ...]:
        """All sources of images, with or without masks."""
        return (*self.masks, *self.chests, *self.ood_images)

    @property
    def region_source_names(self) -> frozenset[str]:
        """The names of the sources whose masks show the lung region and not only the visible lung."""
        return frozenset(source.name for source in self.masks if source.shows == "region")

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.ValidityRules`)."""
        spec, side = self.input, self.input.height
        is_whole = spec.fit == "stretch" and not spec.margin and spec.crop == "none"
        return (
            (any(not source.evaluate_only for source in self.masks), "masks", "must have a source for training"),
            (self.network.region or not self.region_source_names, "masks", "with shows = region need network.region"),
            (spec.height == spec.width and spec.channels == 1, "input", "must be square, with one channel"),
            (is_whole, "input", "must contain the whole image: fit = stretch, no margin, no crop"),
            (self.split.by == "random", "split.by", "must be random for lung fields"),
            (self.split.table is None, "split.table", "is not possible for lung fields"),
            (
                self.training.stages[-1].side == side,
                "training.stages",
                "must end with the size of the input",
            ),
            *((_fits(self.network, stage.side), "training.stages", _wanted(self.network)) for stage in _stages(self)),
            (self.network.kind == "compact" or not self.chests, "chests", "need the compact network"),
        )


def lung_recipe_of(run: Run) -> LungRecipe:
    """Return `run.recipe`, which must be a `LungRecipe`, with that type for the type checker."""
    return cast("LungRecipe", run.recipe)


def _stages(recipe: LungRecipe) -> tuple[TrainingStage, ...]:
    return recipe.training.stages


def _fits(network: LungNetwork, side: int) -> bool:
    if network.kind == "compact":
        return side % INPUT_SIDE_MULTIPLE == 0
    try:
        return published_mask_side(side) > 0
    except ValueError:
        return False


_WANTED: Final = {
    "compact": f"must have sides that are multiples of {INPUT_SIDE_MULTIPLE}",
    "published": "must have sides of 188 and steps of 16 above it, for example 572",
}


def _wanted(network: LungNetwork) -> str:
    return _WANTED[network.kind]
