"""The recipe of a lung-field pack: images with masks, images for the checks, and the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, cast

from fieldray_adapt.data.augmentation import PairAugmentation
from fieldray_adapt.lungs.networks import COMPACT_CHANNELS, SIDE_MULTIPLE, mask_side
from fieldray_adapt.recipes.classifier import PackRecipe, PatientSplit
from fieldray_adapt.recipes.shared import Source, Split
from fieldray_adapt.recipes.tables import Rules, key, table
from fieldray_adapt.run import Run


@table
class MaskSource:
    """A source of images that have a mask of the lungs each. White mask pixels (above 127) are lung."""

    path: Path = key("The CSV file, or the folder of the images for the layout folders.", example="lungs.csv")
    layout: Literal["table", "folders"] = key(
        "table: a CSV file with the columns film (the image), mask and patient_id; paths are relative to the CSV file. "
        "folders: two folders, in which image and mask have equal names, apart from the suffix.",
        default="table",
    )
    masks: Path | None = key("Layout folders: the folder of the masks.", default=None)
    name: str = key("Name of the source in figures; by default the last part of the path.", default="")
    where: Mapping[str, tuple[str, ...]] = key(
        "Allowed values by column: rows with other values are not used.", default_factory=dict
    )
    shows: Literal["visible", "region"] = key(
        "What the masks show. visible: the visible lung; region: the region where lung belongs, behind heart and "
        "opacities too.",
        default="visible",
    )
    share: float = key("How often the source is drawn, relative to the other sources.", default=1.0, above=0)
    evaluate_only: bool = key(
        "The masks of this source are for evaluation only, never for training. If the images of this source are also "
        "in `chests`, the checks are trained on them. Then only `adapt cross` evaluates a network that has not seen "
        "this source.",
        default=False,
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the value that the key `name` gets if it is empty. It is made from the source's path."""
        return {"name": self.path.stem or "masks"}

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        is_folders = self.layout == "folders"
        return ((is_folders == (self.masks is not None), "masks", "belongs to the layout folders, which needs it"),)


@table
class LungNetwork:
    """The network that is trained."""

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
        "Whether the compact network gives a second mask, learnt from masks that show the region.", default=False
    )

    @property
    def masks(self) -> int:
        """Number of masks that the network gives: the visible lung, then the lung region if wanted."""
        return 1 + self.region

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        return (
            (len(self.channels) == len(COMPACT_CHANNELS), "channels", f"needs {len(COMPACT_CHANNELS)} numbers"),
            (not self.region or self.kind == "compact", "region", "is for the compact network"),
        )


@table
class TrainingStage:
    """A stage of the training at one image size. Small images teach the rough shape at a quarter of the cost."""

    side: int = key("Side of the images in this stage.", unit="pixels", low=32, high=1024, example=224)
    epochs: int = key("Epochs of `steps_per_epoch` steps.", low=1, example=10)
    learning_rate: float = key(
        "The highest learning rate; the rate falls to 0 by a half cosine.", default=3e-3, above=0
    )


@table
class LungTraining:
    """How the network is trained: AdamW, stages with growing images, averaged weights."""

    stages: tuple[TrainingStage, ...] = key("Stages of the training, in order; the last has the size of the input.")
    steps_per_epoch: int = key("Steps between two evaluations on the validation images.", default=100, low=1)
    masks_per_step: int = key("Images with a mask in each training step.", default=8, unit="images", low=1)
    checks_per_step: int = key("Images for the checks in each training step.", default=8, unit="images", low=0)
    checks_weight: float = key("Weight of the checks' loss, relative to the masks' loss.", default=0.5, low=0)
    ood_share: float = key("Share of the images for the checks that show no chest.", default=0.38, low=0, high=1)
    weight_decay: float = key("Weight decay of AdamW.", default=0.01, low=0)
    seed: int = key("Seed of initial weights, order and augmentation.", default=0)
    threads: int = key("CPU threads; 0 leaves the choice to the framework.", default=0, low=0)
    panel_images: int = key(
        "Number of fixed samples whose image, mask and prediction are shown after each epoch.", default=4, low=0
    )

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        return ((bool(self.stages), "stages", "must be one or more"),)


@table
class LungEvaluation:
    """What is measured, and how thresholds are chosen on the validation images."""

    mask_threshold: float = key("A cell is lung if its share reaches this value.", default=0.5, above=0, high=0.99)
    keeps: float = key(
        "Share of the validation images in which a check must report no rotation, inversion or mirroring.",
        default=0.99,
        low=0.8,
        high=1,
    )
    shows_images: bool = key(
        "Whether the report shows overlays of real images; false if they must not be shown.", default=True
    )


@table
class LungRecipe(PackRecipe):
    """A lung-field pack: from images with masks to a signed pack."""

    kind: Literal["lung-fields"] = key("What the recipe makes.", example="lung-fields")
    network: LungNetwork = key("The network.", default=LungNetwork())
    masks: tuple[MaskSource, ...] = key("Images with masks.")
    chests: tuple[Source, ...] = key(
        "Frontal chest images without masks, all of which the checks must accept.", default=()
    )
    ood_images: tuple[Source, ...] = key(
        "Images that are no chest X-rays, in addition to images that the program draws.", default=()
    )
    split: PatientSplit = field(default_factory=Split)
    augmentation: PairAugmentation = key("Random changes of images with masks.", default_factory=PairAugmentation)
    checks_augmentation: PairAugmentation = key(
        "Random changes of images for the checks.", default_factory=PairAugmentation
    )
    training: LungTraining = key("How the network is trained.")
    evaluation: LungEvaluation = key("What is measured on the trained network.", default=LungEvaluation())

    @property
    def region_sources(self) -> frozenset[str]:
        """The names of the sources whose masks show the lung region."""
        return frozenset(source.name for source in self.masks if source.shows == "region")

    def rules(self) -> Rules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.Rules`)."""
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


def lung_recipe_of(run: Run) -> LungRecipe:
    """Return the recipe of a lung-field run, with its type."""
    return cast("LungRecipe", run.recipe)


def _stages(recipe: LungRecipe) -> tuple[TrainingStage, ...]:
    return recipe.training.stages


def _fits(network: LungNetwork, side: int) -> bool:
    if network.kind == "compact":
        return side % SIDE_MULTIPLE == 0
    try:
        return mask_side(side) > 0
    except ValueError:
        return False


_WANTED: Final = {
    "compact": f"must have sides that are multiples of {SIDE_MULTIPLE}",
    "published": "must have sides of 188 and steps of 16 above it, for example 572",
}


def _wanted(network: LungNetwork) -> str:
    return _WANTED[network.kind]
