"""The recipe: all that makes a pack, as one typed TOML document.

Paths are relative to the recipe's folder. Every key has its meaning in the dataclass that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from fieldray.adaptation.augmentation import Augmentation
from fieldray.adaptation.engine import EngineName, Precision
from fieldray.adaptation.profile import ProfileChoice
from fieldray.adaptation.prune.recipe import PruneRecipe
from fieldray.adaptation.tables import parse, read_toml
from fieldray.domain.model import InputSpec

Texts = Mapping[str, str]
Layout = Literal["index", "csv", "folders", "chexpert", "nih"]
UncertainRule = Literal["positive", "negative", "unknown", "drop"]
SplitName = Literal["training", "validation", "test", "none"]

NAMED_WEIGHTS: Final = ("none", "imagenet")
"""Beginnings of a network that are no path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTexts:
    """`[pack]`: what the manifest and the card say in words.

    Texts by language need en and uk. credits: where the images come from, their licences and whom to cite.
    """

    id: str
    version: str
    names: Texts
    descriptions: Texts
    intended_use: Texts
    limits: Texts
    credits: str
    accepted_views: tuple[str, ...] = ("PA", "AP")
    accepted_ages_years: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("names", "descriptions", "intended_use", "limits"):
            if not {"en", "uk"} <= set(getattr(self, name)):
                raise ValueError(f"{name} needs the languages en and uk")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChoice:
    """`[network]`: which network and where its weights come from.

    width     share of every hidden channel count; blocks: per stage of a ResNet50, empty for (3, 4, 6, 3)
    channels  counts of channel sets that differ from that, by their names in `networks`
    weights   "none", "imagenet" (needs a network connection, and width 1), a weights file of this toolchain, the
              folder of a pack with a network of this kind, whose widths it then has, or an ONNX file of a network of
              this kind and width
    weights_scale, weights_offsets
              what the network of an ONNX file was fed: x * scale + the channel's offset, of a value x in 0..1
    train     "all", or "head" to leave everything but the head as it is
    """

    kind: Literal["resnet50", "mobilenet"] = "resnet50"
    width: float = 1.0
    blocks: tuple[int, ...] = ()
    channels: Mapping[str, int] = field(default_factory=dict)
    weights: str = "none"
    weights_scale: float = 255.0
    weights_offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)
    train: Literal["all", "head"] = "all"

    def __post_init__(self) -> None:
        if not 0 < self.width <= 2:
            raise ValueError("width must be above 0 and at most 2")
        if self.weights == "imagenet" and self.width != 1:
            raise ValueError("imagenet weights need width 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """`[[labels]]`: a label and the classes of the data that mean it.

    A row is positive if it has a class of `positive`; negative if it has one of `negative` (or, where `negative` is
    empty, any other class); else unknown, which teaches nothing.

    auxiliary   trained with the others because it helps them, and removed from the head before quantising
    weight      of its loss, relative to the others
    column      what is asked: "classes", or for an auxiliary label "view" or "sex" (with `positive` and `negative` as
                the column's values) or "age" (positive: above `above_years`); an empty cell teaches nothing
    """

    code: str
    meaning: Texts
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    scheme: str = "fieldray"
    auxiliary: bool = False
    weight: float = 1.0
    column: Literal["classes", "view", "sex", "age"] = "classes"
    above_years: float | None = None

    def __post_init__(self) -> None:
        if bool(self.positive) == (self.column == "age") or not {"en", "uk"} <= set(self.meaning):
            raise ValueError(f"label {self.code} needs positive classes and a meaning in en and uk")
        if (self.column == "age") != (self.above_years is not None):
            raise ValueError(f"label {self.code}: above_years belongs to the column age, and that needs it")
        if not self.weight > 0 or (self.column != "classes" and not self.auxiliary):
            raise ValueError(f"label {self.code}: a weight is above 0, and only auxiliary labels ask another column")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`[[data]]`: one source of labelled images.

    name        drawing is balanced within each name
    path        the CSV file, or the folder with one folder a class (layout "folders")
    images      folder the file names count from; the CSV file's own by default
    where       only rows whose columns have one of these values
    drop        rows with one of these classes are left out
    columns     layout "csv": which column holds path, classes, patient, split, fold, view, age, sex
    splits      what the values of the split column mean; values not named are left out
    uncertain   layout "chexpert": what -1 means; it has to be said
    patient     layout "folders": regular expression whose first group, found in the file name, is the patient;
                without it each file counts as a patient of its own
    share       how often it is drawn, relative to the others
    judged      whether results may be measured on its images; a confounded source is good for training only
    """

    name: str
    layout: Layout
    path: Path
    images: Path | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, SplitName] = field(default_factory=dict)
    uncertain: UncertainRule | None = None
    patient: str = ""
    share: float = 1.0
    judged: bool = True

    def __post_init__(self) -> None:
        if self.layout == "chexpert" and self.uncertain is None:
            raise ValueError("chexpert data needs the key uncertain: positive, negative, unknown or drop")
        if self.share < 0:
            raise ValueError("share must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """`[split]`: who is trained on and who is judged on, always by patient.

    by       "column": the source's own split column; "fold": the fold column, with the folds below; "random": each
             patient by a hash with the seed, so that parts have about the shares below and nobody moves when others
             are added
    cross_folds   folds for a cross-validation besides: each is judged by a network trained on all the others
    """

    by: Literal["column", "fold", "random"]
    validation_folds: tuple[int, ...] = ()
    test_folds: tuple[int, ...] = ()
    cross_folds: tuple[int, ...] = ()
    validation_share: float = 0.15
    test_share: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.validation_share + self.test_share < 1:
            raise ValueError("validation_share and test_share must leave something to train on")
        if self.by == "fold" and (not self.validation_folds or not self.test_folds):
            raise ValueError("a split by fold needs validation_folds and test_folds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """`[training]`: see `train.Schedule` and `engine.EngineSettings`."""

    epochs: int
    batch_size: int = 32
    learning_rate: float = 1e-3
    warm_up_epochs: float = 1.0
    average_epochs: float = 1.0
    label_smoothing: float = 0.0
    images_per_epoch: int = 0
    weight_decay: float = 0.05
    seed: int = 0
    engine: EngineName = "auto"
    precision: Precision = "float32"
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """`[[evaluation.points]]`: an operating point, chosen on the validation images.

    rule          "balance": largest sum of sensitivity and specificity; "sensitivity": at least `sensitivity` caught
    band_catches  of the positives at most 1 - band_catches lie below the not-sure band
    band_clears   of the negatives at most 1 - band_clears lie above it
    """

    name: str
    titles: Texts
    rule: Literal["balance", "sensitivity"]
    sensitivity: float = 0.95
    band_catches: float = 0.98
    band_clears: float = 0.95

    def __post_init__(self) -> None:
        if not all(0.5 <= share <= 1 for share in (self.sensitivity, self.band_catches, self.band_clears)):
            raise ValueError("sensitivity, band_catches and band_clears must be 0.5..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`[evaluation]`: operating points, and images that the refusal gate must refuse.

    strangers         images that are no chest X-rays; ood_side: images are shrunk to this side before they are
                      compared with them, so that sharpness alone tells nothing (0: as they are)
    ood_gate_keeps        share of the validation images that the gate accepts; ood_gate_components: of the whitening
    example_images     how many images with their class maps the report shows (0 for a report that is published)
    """

    points: tuple[Point, ...]
    ood_images: Source | None = None
    ood_side: int = 0
    ood_gate_keeps: float = 0.99
    ood_gate_components: int = 64
    example_images: int = 8

    def __post_init__(self) -> None:
        if not self.points or not 0.9 <= self.ood_gate_keeps < 1 or self.ood_gate_components < 1:
            raise ValueError("points are needed, ood_gate_keeps must be 0.9..1 and ood_gate_components 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`[comparison]`: the unpruned network that the pack is measured against, trained on the same images.

    network, training    in place of the recipe's own
    """

    network: NetworkChoice
    training: Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The whole document.

    run           the run folder
    results       folder for what is published of comparisons and cross-validations; without it, the run folder
    signing_key   private key file for the pack; made there if absent
    calibration_images   how many training images decide the ranges of the integers
    prune                `[prune]`: how the trained network is pruned; without it, it is not
    profile              `[profile]`: what `adapt profile` measures
    comparison           `[comparison]`: what `adapt compare` measures the pack against
    """

    run: Path
    pack: PackTexts
    input: InputSpec
    network: NetworkChoice
    labels: tuple[LabelRule, ...]
    data: tuple[Source, ...]
    split: Split
    training: Training
    evaluation: Evaluation
    signing_key: Path
    packs_folder: Path
    augmentation: Augmentation = field(default_factory=Augmentation)
    calibration_images: int = 200
    results: Path | None = None
    prune: PruneRecipe | None = None
    profile: ProfileChoice = field(default_factory=ProfileChoice)
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        codes = [label.code for label in self.labels]
        if len(set(codes)) != len(codes) or not self.data or all(label.auxiliary for label in self.labels):
            raise ValueError("needs data, and labels with different codes that are not all auxiliary")

    @property
    def published(self) -> Path:
        """The folder for what is published."""
        return self.results or self.run

    @property
    def kept_labels(self) -> tuple[LabelRule, ...]:
        """The labels of the pack."""
        return tuple(label for label in self.labels if not label.auxiliary)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; its relative paths count from its folder.

    Raises UsageProblem (recipe_unreadable, recipe_key with the wrong key).
    """
    recipe, base = parse(Recipe, read_toml(path), where="recipe"), path.resolve().parent
    ood_images, comparison = recipe.evaluation.ood_images, recipe.comparison
    return replace(
        recipe,
        run=base / recipe.run,
        signing_key=base / recipe.signing_key.expanduser(),
        packs_folder=base / recipe.packs_folder,
        network=_with_path(recipe.network, base),
        data=tuple(_rooted(source, base) for source in recipe.data),
        evaluation=replace(recipe.evaluation, ood_images=_rooted(ood_images, base) if ood_images else None),
        results=base / recipe.results.expanduser() if recipe.results else None,
        comparison=comparison and replace(comparison, network=_with_path(comparison.network, base)),
    )


def what_is_trained(recipe: Recipe) -> dict[str, Any]:
    """What decides a training, ready to be published as JSON: no paths but the names of what they lead to."""
    network = {**asdict(recipe.network), "weights": Path(recipe.network.weights).name}
    sources = [
        {"name": source.name, "where": dict(source.where), "share": source.share, "judged": source.judged}
        for source in recipe.data
    ]
    return {
        "input": asdict(recipe.input),
        "network": network,
        "labels": {label.code: label.weight for label in recipe.labels},
        "data": sources,
        "training": asdict(recipe.training),
        "augmentation": asdict(recipe.augmentation),
    }


def what_is_made(recipe: Recipe) -> dict[str, Any]:
    """What decides how a trained network becomes the int8 file of a pack, ready to be published as JSON."""
    return {"prune": asdict(recipe.prune) if recipe.prune else None, "calibration_images": recipe.calibration_images}


def _with_path(network: NetworkChoice, base: Path) -> NetworkChoice:
    return network if network.weights in NAMED_WEIGHTS else replace(network, weights=str(base / network.weights))


def _rooted(source: Source, base: Path) -> Source:
    images = base / source.images if source.images else None
    return replace(source, path=base / source.path.expanduser(), images=images)
