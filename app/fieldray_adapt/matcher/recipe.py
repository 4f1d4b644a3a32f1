"""The recipe of a matcher pack: pairs of images of one patient, the encoder, and how it learns to match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from fieldray.domain.model import InputSpec
from fieldray_adapt.lungs.pair_augmentation import PairAugmentation
from fieldray_adapt.matcher.networks import CHANNELS, MULTIPLE
from fieldray_adapt.recipe import AboutPack, PackInput, PacksFolder, PatientSplit, RunFolder, SigningKey
from fieldray_adapt.recipe_data import Split, whole
from fieldray_adapt.run import Run
from fieldray_adapt.tables import Key, require, require_ranges

PUBLISHED_SIDE: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSource:
    """Two images of one patient at two times a row."""

    path: Annotated[
        Path,
        Key(
            doc="A CSV with the columns prior, current and patient_id; files count from its folder. Displacements are "
            "neither needed nor read.",
            example="pairs.csv",
        ),
    ]
    name: Annotated[str, Key(doc="What figures call it; the path's last part by default.")] = ""
    where: Annotated[Mapping[str, tuple[str, ...]], Key(doc="Only rows whose columns have one of these values.")] = (
        field(default_factory=dict)
    )

    far_from: Annotated[
        float | None,
        Key(
            doc="From this value of the column gap on a pair is far; without it, the column is not read. It decides in "
            "which row of the evaluation a pair is counted, and nothing else."
        ),
    ] = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path.stem or "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherNetwork:
    """The encoder: a residual U-Net that describes both images of a pair with the same weights."""

    channels: Annotated[tuple[int, ...], Key(doc="Of each level, at half the side of the one before.", low=1)] = (
        CHANNELS
    )
    convolutions: Annotated[int, Key(doc="In a residual block.", low=3, high=9)] = 3
    features: Annotated[int, Key(doc="Planes that come out; their correlations are averaged.", low=1, high=16)] = 2
    activation: Annotated[
        Literal["relu", "tanh"], Key(doc="Of inner layers. tanh as published; relu is kinder to eight bits.")
    ] = "relu"
    local_radius: Annotated[
        int,
        Key(
            doc="The image is normalised by mean and deviation within so many pixels before the encoder.",
            unit="pixels",
            low=1,
            high=64,
        ),
    ] = 16

    def __post_init__(self) -> None:
        require_ranges(self)
        require((2 <= len(self.channels) <= len(CHANNELS), "channels", f"needs 2 to {len(CHANNELS)} numbers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherTraining:
    """How the encoder is trained: Adam, P1 - P2 of templates in their own patient, |P1| in another's."""

    epochs: Annotated[int, Key(doc="Of `steps_per_epoch` steps.", low=1, example=20)]
    steps_per_epoch: Annotated[int, Key(doc="Steps between two looks at the validation pairs.", low=1)] = 100
    learning_rate: Annotated[float, Key(doc="The highest rate; it falls to 0 by a half cosine.", above=0)] = 1e-3
    pairs_per_step: Annotated[int, Key(doc="Pairs of images, of as many patients.", low=2)] = 3
    templates_per_pair: Annotated[int, Key(doc="Templates cut from the prior image of each.", low=1)] = 8
    crop_side: Annotated[int, Key(doc="Of the part of both images that is seen.", unit="pixels", low=32)] = 224
    templates: Annotated[tuple[int, ...], Key(doc="Sides of templates, in turn.", unit="pixels", low=8)] = (48, 64)
    reach: Annotated[int, Key(doc="How far around its own place a template is searched.", unit="pixels", low=4)] = 40
    distance: Annotated[
        int, Key(doc="The second peak is at least so far from the first.", unit="pixels", low=1, example=10)
    ] = 10
    dissimilar_weight: Annotated[
        float,
        Key(
            doc="Of the size of P1 of templates in another patient's image; 0 shows what happens without that term.",
            low=0,
        ),
    ] = 0.5
    same_image: Annotated[
        float, Key(doc="Share of the pairs that are one image twice, changed independently.", low=0, high=1)
    ] = 0.4
    seed: Annotated[int, Key(doc="Of initial weights, order and augmentation.")] = 0
    threads: Annotated[int, Key(doc="CPU threads; 0 leaves the choice to the framework.", low=0)] = 0

    def __post_init__(self) -> None:
        require_ranges(self)
        largest = max(self.templates, default=0) + 2 * self.reach
        require(
            (bool(self.templates), "templates", "must be one or more"),
            (self.crop_side % MULTIPLE == 0, "crop_side", f"must be a multiple of {MULTIPLE}"),
            (largest <= self.crop_side, "crop_side", "must hold the largest template and its reach on both sides"),
            (self.distance <= self.reach, "distance", "must not be above the reach"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherEvaluation:
    """What is measured: false matches on identical matches, by template size and by how far the pairs are apart."""

    templates: Annotated[tuple[int, ...], Key(doc="Sides of templates.", unit="pixels", low=8)] = (48, 64)
    matches_per_pair: Annotated[int, Key(doc="Templates of each size and pair.", low=1)] = 24
    reach: Annotated[int, Key(doc="How far around its own place a template is searched.", unit="pixels", low=8)] = 64
    tolerance: Annotated[
        float, Key(doc="Farther than this from the truth a match is false.", unit="pixels", above=0)
    ] = 10.0
    consensus_tolerance: Annotated[
        float, Key(doc="The same where the truth is the consensus of a pair.", unit="pixels", above=0)
    ] = 20.0
    near_warp: Annotated[float, Key(doc="Longest displacement of near pairs, as a share of the side.", high=0.1)] = 0.04
    far_warp: Annotated[float, Key(doc="Longest displacement of far pairs, as a share of the side.", high=0.1)] = 0.08
    least_distance: Annotated[int, Key(doc="Of the second peak from the first.", unit="pixels", low=1)] = 10
    seed: Annotated[int, Key(doc="Of warps, exposures and places of templates.")] = 7

    def __post_init__(self) -> None:
        require_ranges(self)
        require((bool(self.templates), "templates", "must be one or more"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherRecipe:
    """A matcher pack: from pairs of images of one patient to a signed pack."""

    kind: Annotated[Literal["matcher"], Key(doc="What the recipe makes.", example="matcher")]
    run: RunFolder = Path("run")
    signing_key: SigningKey = Path("signing.pem")
    packs_folder: PacksFolder = Path("packs")
    calibration_images: Annotated[
        int, Key(doc="Training images that decide the ranges of the integers.", unit="images", low=1)
    ] = 60
    pack: AboutPack
    input: PackInput = field(default_factory=lambda: InputSpec(height=PUBLISHED_SIDE, width=PUBLISHED_SIDE))
    network: Annotated[MatcherNetwork, Key(doc="The encoder.")] = MatcherNetwork()
    pairs: Annotated[tuple[PairSource, ...], Key(doc="Pairs of images of one patient.")]
    split: PatientSplit = field(default_factory=Split)
    augmentation: Annotated[PairAugmentation, Key(doc="Random changes, of each image of a pair by itself.")] = field(
        default_factory=PairAugmentation
    )
    training: Annotated[MatcherTraining, Key(doc="How the encoder is trained.")]
    evaluation: Annotated[MatcherEvaluation, Key(doc="What is measured.")] = MatcherEvaluation()

    def __post_init__(self) -> None:
        spec, side = self.input, self.input.height
        is_whole = spec.fit == "stretch" and not spec.margin and spec.crop == "none"
        largest = max((*self.training.templates, *self.evaluation.templates))
        require(
            (bool(self.pairs), "pairs", "must name at least one source"),
            (spec.height == spec.width and spec.channels == 1, "input", "must be square and grey"),
            (is_whole, "input", "must hold the whole image: fit stretch, no margin, no crop"),
            (side % MULTIPLE == 0, "input", f"must have sides that are multiples of {MULTIPLE}"),
            (self.training.crop_side <= side, "training.crop_side", "must not be above the size of the input"),
            (largest + 2 * self.evaluation.reach < side, "evaluation.reach", "leaves no room for a template"),
            (self.split.by == "random", "split.by", "must be random: patients are drawn by a hash"),
            (self.split.table is None, "split.table", "is for a network that goes on from another"),
        )


def rooted(recipe: MatcherRecipe, path: Path) -> MatcherRecipe:
    """The recipe of a file with its paths made whole."""
    base = path.resolve().parent
    return replace(
        recipe,
        run=whole(recipe.run, base),
        signing_key=whole(recipe.signing_key, base),
        packs_folder=whole(recipe.packs_folder, base),
        pack=replace(recipe.pack, credits=base / (recipe.pack.credits or f"{path.stem}.credits.md")),
        pairs=tuple(replace(source, path=base / source.path) for source in recipe.pairs),
    )


def recipe_of(run: Run) -> MatcherRecipe:
    """The recipe of a run that works on a matcher."""
    return cast("MatcherRecipe", run.recipe)
