"""The recipe of a lung-field pack: images with masks, images for the checks, and how the network learns from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from fieldray.domain.model import InputSpec
from fieldray_adapt.lungs.networks import CHANNELS, MULTIPLE, mask_side
from fieldray_adapt.lungs.pair_augmentation import PairAugmentation
from fieldray_adapt.recipe import (
    AboutPack,
    PackInput,
    PacksFolder,
    PatientSplit,
    RunFolder,
    SigningKey,
)
from fieldray_adapt.recipe_data import Source, Split, rooted_source, whole
from fieldray_adapt.run import Run
from fieldray_adapt.tables import Key, require, require_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSource:
    """Images with a mask each: white (above 127) is lung."""

    path: Annotated[
        Path, Key(doc="The CSV file, or the folder of the images for the layout folders.", example="lungs.csv")
    ]
    layout: Annotated[
        Literal["table", "folders"],
        Key(
            doc="table: a CSV with the columns film, mask and patient_id, whose files count from its folder; folders: "
            "an image and a mask of the same name, but for the suffix, in two folders."
        ),
    ] = "table"
    masks: Annotated[Path | None, Key(doc="Layout folders: the folder of the masks.")] = None
    name: Annotated[str, Key(doc="What figures call it; the path's last part by default.")] = ""
    where: Annotated[Mapping[str, tuple[str, ...]], Key(doc="Only rows whose columns have one of these values.")] = (
        field(default_factory=dict)
    )
    evaluate_only: Annotated[
        bool,
        Key(
            doc="No mask of it is learnt or chosen on: it shows how masks do at another hospital. Where its images are "
            "among `chests` too, the checks learn from them, and only `adapt cross` measures it wholly unseen."
        ),
    ] = False

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path.stem or "masks")
        is_folders = self.layout == "folders"
        require((is_folders == (self.masks is not None), "masks", "belongs to the layout folders, which needs it"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LungNetwork:
    """Which network is trained."""

    kind: Annotated[
        Literal["compact", "published"],
        Key(
            doc="compact: small enough to run before every classifier; published: the U-Net of 2015 with valid "
            "convolutions, which is trained and measured, but makes no pack."
        ),
    ] = "compact"
    channels: Annotated[tuple[int, ...], Key(doc="Of the compact network's five steps.", unit="channels", low=1)] = (
        CHANNELS
    )
    root_channels: Annotated[int, Key(doc="Of the published network's first step.", unit="channels", low=1)] = 64

    def __post_init__(self) -> None:
        require_ranges(self)
        require((len(self.channels) == len(CHANNELS), "channels", f"needs {len(CHANNELS)} numbers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the training at one image size; small images teach the rough shape at a quarter of the cost."""

    side: Annotated[int, Key(doc="Of the images in this stage.", unit="pixels", low=32, high=1024, example=224)]
    epochs: Annotated[int, Key(doc="Epochs of `steps_per_epoch` steps.", low=1, example=10)]
    learning_rate: Annotated[float, Key(doc="The highest rate; it falls to 0 by a half cosine.", above=0)] = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class LungTraining:
    """How the network is trained: AdamW, stages of growing images, averaged weights."""

    stages: Annotated[tuple[Stage, ...], Key(doc="One after another; the last has the size of the input.")]
    steps_per_epoch: Annotated[int, Key(doc="Steps between two looks at the validation images.", low=1)] = 100
    masks_per_step: Annotated[int, Key(doc="Images with a mask in a step.", unit="images", low=1)] = 8
    checks_per_step: Annotated[int, Key(doc="Images for the checks in a step.", unit="images", low=0)] = 8
    checks_weight: Annotated[float, Key(doc="Of the checks' loss, relative to the masks'.", low=0)] = 0.5
    ood_share: Annotated[float, Key(doc="Of the images for the checks that are no chest.", low=0, high=1)] = 0.38
    weight_decay: Annotated[float, Key(doc="Of AdamW.", low=0)] = 0.01
    seed: Annotated[int, Key(doc="Of initial weights, order and augmentation.")] = 0
    threads: Annotated[int, Key(doc="CPU threads; 0 leaves the choice to the framework.", low=0)] = 0

    def __post_init__(self) -> None:
        require_ranges(self)
        require((bool(self.stages), "stages", "must be one or more"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LungEvaluation:
    """What is measured, and how the thresholds of the checks are chosen: on the validation images."""

    mask_threshold: Annotated[float, Key(doc="From this share on a cell is lung.", above=0, high=0.99)] = 0.5
    keeps: Annotated[
        float, Key(doc="Share of the validation images that each check leaves as they are.", low=0.8, high=1)
    ] = 0.99
    panel_images: Annotated[
        int, Key(doc="Fixed samples that are drawn after each epoch: image, mask and prediction.", low=0)
    ] = 4
    shows_images: Annotated[
        bool, Key(doc="Whether the report shows overlays of real images; false where they may not be shown.")
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LungRecipe:
    """A lung-field pack: from images with masks to a signed pack."""

    kind: Annotated[Literal["lung-fields"], Key(doc="What the recipe makes.", example="lung-fields")]
    run: RunFolder = Path("run")
    signing_key: SigningKey = Path("signing.pem")
    packs_folder: PacksFolder = Path("packs")
    calibration_images: Annotated[
        int, Key(doc="Training images that decide the ranges of the integers.", unit="images", low=1)
    ] = 100
    pack: AboutPack
    input: PackInput = field(default_factory=lambda: InputSpec(height=224, width=224))
    network: Annotated[LungNetwork, Key(doc="The network.")] = LungNetwork()
    masks: Annotated[tuple[MaskSource, ...], Key(doc="Images with masks.")]
    chests: Annotated[
        tuple[Source, ...], Key(doc="Frontal chest images without masks, any of which the checks must accept.")
    ] = ()
    ood_images: Annotated[
        tuple[Source, ...], Key(doc="Images that are no chest X-rays; others are drawn by the program.")
    ] = ()
    split: PatientSplit = field(default_factory=Split)
    augmentation: Annotated[PairAugmentation, Key(doc="Random changes of images with masks.")] = field(
        default_factory=PairAugmentation
    )
    checks_augmentation: Annotated[PairAugmentation, Key(doc="Random changes of images for the checks.")] = field(
        default_factory=PairAugmentation
    )
    training: Annotated[LungTraining, Key(doc="How the network is trained.")]
    evaluation: Annotated[LungEvaluation, Key(doc="What is measured.")] = LungEvaluation()

    def __post_init__(self) -> None:
        spec = self.input
        require(
            (any(not source.evaluate_only for source in self.masks), "masks", "must have a source to learn from"),
            (spec.height == spec.width and spec.channels == 1, "input", "must be square and grey"),
            (_is_whole(spec), "input", "must hold the whole image: fit stretch, no margin, no crop"),
            (self.training.stages[-1].side == spec.height, "training.stages", "must end with the size of the input"),
            (self.split.by == "random", "split.by", "must be random: patients are drawn by a hash"),
            (self.split.table is None, "split.table", "is for a network that goes on from another"),
            *((_fits(self.network, stage.side), "training.stages", _wanted(self.network)) for stage in _stages(self)),
            (self.network.kind == "compact" or not self.chests, "chests", "need the compact network, which has checks"),
        )


def rooted(recipe: LungRecipe, path: Path) -> LungRecipe:
    """The recipe of a file with its paths made whole."""
    base = path.resolve().parent
    return replace(
        recipe,
        run=whole(recipe.run, base),
        signing_key=whole(recipe.signing_key, base),
        packs_folder=whole(recipe.packs_folder, base),
        pack=replace(recipe.pack, credits=base / (recipe.pack.credits or f"{path.stem}.credits.md")),
        masks=tuple(
            replace(source, path=base / source.path, masks=base / source.masks if source.masks else None)
            for source in recipe.masks
        ),
        chests=tuple(rooted_source(source, base) for source in recipe.chests),
        ood_images=tuple(rooted_source(source, base) for source in recipe.ood_images),
    )


def _is_whole(spec: InputSpec) -> bool:
    return spec.fit == "stretch" and not spec.margin and spec.crop == "none"


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
