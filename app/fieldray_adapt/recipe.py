"""The recipe of a classifier: all that makes a pack, as one typed TOML document.

Paths are relative to the recipe's folder. Each key is described where it is defined; the checks, the template and the
recipe reference come from there. Credits and licences are in a file beside the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fieldray.domain.model import HeaderRules, InputSpec
from fieldray_adapt.augmentation import Augmentation
from fieldray_adapt.engine import EngineName, Precision
from fieldray_adapt.prune.recipe import PruneRecipe
from fieldray_adapt.recipe_data import (
    LabelRule,
    ProfileChoice,
    Source,
    Split,
    Texts,
    pack_id_problem,
    rooted_source,
    whole,
)
from fieldray_adapt.tables import Document, Key, require, require_ranges

NAMED_WEIGHTS: Final = ("none", "imagenet")
"""Beginnings of a network that are no path."""

INPUT_KEYS: Final = {
    "height": Key(doc="Rows of the image as the network sees it.", unit="pixels", low=8, high=2048, example=224),
    "width": Key(doc="Columns of the image as the network sees it.", unit="pixels", low=8, high=2048, example=224),
    "channels": Key(doc="1 for grey; 3 where the weights come from a network for colour.", low=1, high=3),
    "intensity": Key(
        doc="as_displayed: the file's own window; percentile: besides, its 1st to 99th percentile becomes 0..255."
    ),
    "fit": Key(doc="How an image of another shape is fitted: stretched, padded with black, or cropped."),
    "margin": Key(doc="Share of each side that is cut off before fitting.", low=0, high=0.2),
    "crop": Key(doc="lungs: only the lungs are fitted, as the lung-field pack finds them; the pack then requires one."),
    "crop_margin": Key(
        doc="Share of the lungs' height and width that is kept around them on each side.", low=0, high=0.5
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassNames:
    """What the two classes of an image are called."""

    abnormal: Annotated[Texts, Key(doc="From the zone's upper edge on.", example={"en": "Signs of pneumonia"})]
    normal: Annotated[Texts, Key(doc="Below its lower edge.", example={"en": "None found by this pack"})]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTexts:
    """What the manifest and the model card say in words."""

    id: Annotated[
        str,
        Key(
            doc="Name of the pack's folder: lower-case letters, digits and hyphens.",
            example="my-pack",
            check=pack_id_problem,
        ),
    ]
    version: Annotated[str, Key(doc="Version of the pack, in three numbers.")] = "0.1.0"
    names: Annotated[Texts, Key(doc="Name of the pack for people; its id by default.", example={"en": "My pack"})] = (
        field(default_factory=dict)
    )
    descriptions: Annotated[Texts, Key(doc="One sentence on what the pack does.")] = field(
        default_factory=lambda: {"en": "Sorts chest X-rays by the labels that it was trained on."}
    )
    intended_use: Annotated[Texts, Key(doc="What the pack is for, and what not.")] = field(
        default_factory=lambda: {"en": "Research and education. Research use only. Not for diagnostic use."}
    )
    limits: Annotated[Texts, Key(doc="Whom and what the pack was not measured on.")] = field(
        default_factory=lambda: {"en": "Results on images of another site were not measured, and may be worse."}
    )
    class_names: Annotated[
        ClassNames | None, Key(doc="What the two classes of an image are called, in place of *abnormal* and *normal*.")
    ] = None
    credits: Annotated[
        Path | None,
        Key(doc="File with sources, licences and citations; NAME.credits.md beside NAME.toml by default."),
    ] = None
    accepted_views: Annotated[tuple[str, ...], Key(doc="View positions that the pack accepts.")] = ("PA", "AP")
    accepted_ages_years: Annotated[
        tuple[int, int] | None, Key(doc="Youngest and oldest patient; any age by default.", unit="years")
    ] = None

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", {"en": self.id})

    @property
    def credits_text(self) -> str:
        """Sources, licences and citations from the file of credits; empty where there is none."""
        path = self.credits
        return path.read_text(encoding="utf-8").strip() if path and path.is_file() else ""

    @property
    def accepted(self) -> HeaderRules:
        """Whose images the pack is for, by their headers."""
        return HeaderRules(views=self.accepted_views, ages_years=self.accepted_ages_years)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChoice:
    """Which network is trained, and where its weights come from."""

    kind: Annotated[Literal["resnet50", "mobilenet"], Key(doc="The architecture.")] = "resnet50"
    width: Annotated[float, Key(doc="Share of every hidden channel count.", above=0, high=2)] = 1.0
    blocks: Annotated[
        tuple[int, ...],
        Key(
            doc="Blocks of each stage of a ResNet50; [3, 4, 6, 3] by default. [3, 4, 6] ends a stage earlier, with "
            "class maps of twice the side.",
            low=1,
        ),
    ] = ()
    channels: Annotated[Mapping[str, int], Key(doc="Channel counts that differ from that, by the layers' names.")] = (
        field(default_factory=dict)
    )
    weights: Annotated[
        str,
        Key(
            doc="none, imagenet (downloaded; needs width 1), or a path: a weights file of this toolchain, the folder "
            "of a pack, whose widths are then taken over, or an ONNX file of the same network."
        ),
    ] = "none"
    weights_scale: Annotated[float, Key(doc="An ONNX file's network was fed value x scale + offset.")] = 255.0
    weights_offsets: Annotated[
        tuple[float, float, float], Key(doc="The offset of each channel, for values in 0..1.")
    ] = (0.0, 0.0, 0.0)
    last_stride: Annotated[
        int, Key(doc="Stride of a ResNet50's last stage; 1 makes class maps of twice the side.", low=1, high=2)
    ] = 2
    frozen: Annotated[
        tuple[str, ...],
        Key(
            doc='Layers whose names begin with one of these stay as they are: ["conv1", "conv2"] the first two '
            'stages of a ResNet50, ["conv"] all but the head.'
        ),
    ] = ()

    def __post_init__(self) -> None:
        require_ranges(self)
        is_resnet = self.kind == "resnet50"
        require(
            (self.weights != "imagenet" or self.width == 1, "weights", "imagenet needs width 1"),
            (is_resnet or not self.blocks, "blocks", "is for a resnet50"),
            (is_resnet or self.last_stride == 2, "last_stride", "is for a resnet50"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the network is trained: AdamW, a warm-up, cosine decay, averaged weights."""

    epochs: Annotated[int, Key(doc="Passes over the training images.", low=1, example=20)] = 20
    batch_size: Annotated[int, Key(doc="Images in a step.", unit="images", low=1)] = 32
    learning_rate: Annotated[float, Key(doc="The highest rate.", above=0)] = 1e-3
    warm_up_epochs: Annotated[float, Key(doc="The rate rises from 0 for so long.", unit="epochs", low=0)] = 1.0
    average_epochs: Annotated[float, Key(doc="How far back the averaged weights reach.", unit="epochs", low=0)] = 1.0
    label_smoothing: Annotated[float, Key(doc="Targets are moved towards 0.5 by this share.", low=0, high=1)] = 0.0
    images_per_epoch: Annotated[int, Key(doc="Draws in an epoch; 0: as many as images.", unit="images", low=0)] = 0
    weight_decay: Annotated[float, Key(doc="Of AdamW, on kernels only.", low=0)] = 0.05
    copies: Annotated[
        int,
        Key(
            doc="With frozen first layers: that many changed copies of each image pass through them once, and what "
            "comes out is kept in memory. 0: every draw is changed once more and passes through all layers.",
            low=0,
        ),
    ] = 0
    average_sources: Annotated[
        bool,
        Key(
            doc="A network is trained on each group of sources alone, all from the same weights, and their weights "
            "are averaged in the groups' shares. What one hospital alone teaches then counts for less. It needs a "
            "network that has learnt before, and rates that do not lead far from it."
        ),
    ] = False
    evidence_outside: Annotated[
        float,
        Key(
            doc="Weight of a second loss: what the pack's class maps have above 0 outside the lungs. It needs the key "
            "lungs.",
            low=0,
        ),
    ] = 0.0
    seed: Annotated[int, Key(doc="Of initial weights, order and augmentation.")] = 0
    engine: Annotated[EngineName, Key(doc="The framework that trains; auto: PyTorch where it is installed.")] = "auto"
    precision: Annotated[Precision, Key(doc="bfloat16 is faster where the CPU has it.")] = "float32"
    threads: Annotated[int, Key(doc="CPU threads; 0 leaves the choice to the framework.", low=0)] = 0

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operating point. Its threshold and its band are chosen on the validation images."""

    name: Annotated[str, Key(doc="Name in settings and on the command line.", example="balanced")]
    titles: Annotated[Texts, Key(doc="Name for people; the name by default.")] = field(default_factory=dict)
    rule: Annotated[
        Literal["balance", "sensitivity"],
        Key(doc="balance: the largest sum of sensitivity and specificity; sensitivity: at least the one given below."),
    ] = "balance"
    sensitivity: Annotated[float, Key(doc="With the rule sensitivity: at least this.", low=0.5, high=1)] = 0.95
    band_catches: Annotated[
        float, Key(doc="Share of the positive images that are not below the not-sure band.", low=0.5, high=1)
    ] = 0.98
    band_clears: Annotated[
        float, Key(doc="Share of the negative images that are not above the not-sure band.", low=0.5, high=1)
    ] = 0.95

    def __post_init__(self) -> None:
        if not self.titles:
            object.__setattr__(self, "titles", {"en": self.name.replace("-", " ").capitalize()})
        require_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is measured: operating points, and the out-of-distribution (OOD) gate."""

    points: Annotated[tuple[Point, ...], Key(doc="The operating points; one, balanced, by default.")] = (
        Point(name="balanced"),
    )
    measured_on: Annotated[
        Texts, Key(doc="Completes 'Measured on ...' in the program; {images} and {patients} become numbers.")
    ] = field(
        default_factory=lambda: {
            "en": "the test part ({images} images, {patients} patients)",
            "uk": "тестовій частині ({images} знімків, {patients} пацієнтів)",
        }
    )
    ood_images: Annotated[Source | None, Key(doc="Images that are no chest X-rays, which the gate must refuse.")] = None
    elsewhere: Annotated[
        Source | None,
        Key(
            doc="Labelled images of another hospital. Nothing is trained or chosen on them; the pack is measured on "
            "them with the thresholds that it has."
        ),
    ] = None
    ood_side: Annotated[
        int,
        Key(
            doc="Test images are shrunk to this side before they are compared with the OOD images, so that sharpness "
            "alone decides nothing; 0: as they are.",
            unit="pixels",
            low=0,
        ),
    ] = 0
    ood_gate_keeps: Annotated[
        float, Key(doc="Share of the validation images that the gate accepts.", low=0.9, high=0.99999)
    ] = 0.99
    ood_gate_components: Annotated[int, Key(doc="Components of the gate's whitening.", low=1)] = 64
    example_images: Annotated[
        int, Key(doc="Images with class maps in the report; 0 for a report that is published.", low=0)
    ] = 8

    def __post_init__(self) -> None:
        require_ranges(self)
        names = [point.name for point in self.points]
        require((bool(names) and len(set(names)) == len(names), "points", "must be one or more, with different names"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The unpruned network that the pack is measured against, trained on the same images."""

    network: Annotated[NetworkChoice, Key(doc="In place of the recipe's own.")]
    training: Annotated[Training, Key(doc="In place of the recipe's own.")]


# Keys that the recipe of a lung-field pack has as well.
RunFolder = Annotated[Path, Key(doc="Folder for everything that a run leaves.")]
SigningKey = Annotated[Path, Key(doc="Private key that signs the pack; made there if absent.")]
PacksFolder = Annotated[Path, Key(doc="Folder that gets the pack.")]
CalibrationImages = Annotated[
    int, Key(doc="Training images that decide the ranges of the integers.", unit="images", low=1)
]
AboutPack = Annotated[PackTexts, Key(doc="What the pack says of itself.")]
PackInput = Annotated[InputSpec, Key(doc="The image as the network sees it; 224 x 224 by default.", keys=INPUT_KEYS)]
PatientSplit = Annotated[Split, Key(doc="Which patients are for training, validation and test.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A classifier: from labelled images to a signed pack."""

    kind: Annotated[Literal["classifier"], Key(doc="What the recipe makes.")] = "classifier"
    run: RunFolder = Path("run")
    results: Annotated[
        Path | None, Key(doc="Folder for what is published of comparisons and cross-validations; the run by default.")
    ] = None
    signing_key: SigningKey = Path("signing.pem")
    packs_folder: PacksFolder = Path("packs")
    calibration_images: CalibrationImages = 200
    pack: AboutPack
    input: PackInput = field(default_factory=lambda: InputSpec(height=224, width=224))
    lungs: Annotated[
        Path | None,
        Key(doc="Folder of the lung-field pack, for an input that is cropped to the lungs, or evidence_outside."),
    ] = None
    network: Annotated[NetworkChoice, Key(doc="The network.")] = NetworkChoice()
    labels: Annotated[tuple[LabelRule, ...], Key(doc="What the pack looks for.")]
    data: Annotated[tuple[Source, ...], Key(doc="Where the images are.")]
    split: PatientSplit = field(default_factory=Split)
    augmentation: Annotated[Augmentation, Key(doc="Random changes of training images.")] = field(
        default_factory=Augmentation
    )
    training: Annotated[Training, Key(doc="How the network is trained.")] = Training()
    prune: Annotated[PruneRecipe | None, Key(doc="How the trained network is pruned; without it, it is not.")] = None
    profile: Annotated[ProfileChoice, Key(doc="What `fieldray adapt profile` measures.")] = field(
        default_factory=ProfileChoice
    )
    comparison: Annotated[Comparison | None, Key(doc="What `fieldray adapt compare` measures the pack against.")] = None
    evaluation: Annotated[Evaluation, Key(doc="What is measured.")] = Evaluation()

    def __post_init__(self) -> None:
        codes = [label.code for label in self.labels]
        has_kept = any(not label.auxiliary for label in self.labels)
        require(
            (bool(self.data), "data", "must name at least one source"),
            (has_kept, "labels", "must have at least one label that is not auxiliary"),
            (len(set(codes)) == len(codes), "labels", "must have different codes"),
            (
                self.lungs is not None or (self.input.crop != "lungs" and not self.training.evidence_outside),
                "lungs",
                "is needed where the input is cropped to the lungs or evidence outside of them counts",
            ),
            (
                not self.training.average_sources or all(any(shares.values()) for shares in self.groups.values()),
                "data",
                "with average_sources must draw from every group: a share above 0",
            ),
            (bool(self.network.frozen) or not self.training.copies, "training", "copies need network.frozen"),
        )

    @property
    def published(self) -> Path:
        """The folder for what is published."""
        return self.results or self.run

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """By group: the share of each of its sources, by name."""
        found: dict[str, dict[str, float]] = {}
        for source in self.data:
            found.setdefault(source.group, {})[source.name] = source.share
        return found

    @property
    def kept_labels(self) -> tuple[LabelRule, ...]:
        """The labels of the pack."""
        return tuple(label for label in self.labels if not label.auxiliary)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; its relative paths count from its folder.

    Raises UsageProblem: recipe_unreadable, or recipe_problems with everything that is wrong.
    """
    return rooted(Document.read(path).parsed(Recipe), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeImageRecipe:
    """What every recipe has of a network that sees the whole of a square, grey image."""

    kind: str
    run: RunFolder = Path("run")
    signing_key: SigningKey = Path("signing.pem")
    packs_folder: PacksFolder = Path("packs")
    calibration_images: CalibrationImages = 100
    pack: AboutPack
    input: PackInput = field(default_factory=lambda: InputSpec(height=224, width=224))

    def rules(self, split: Split) -> tuple[tuple[bool, str, str], ...]:
        """What holds of each, as `tables.require` takes it."""
        spec = self.input
        is_whole = spec.fit == "stretch" and not spec.margin and spec.crop == "none"
        return (
            (spec.height == spec.width and spec.channels == 1, "input", "must be square and grey"),
            (is_whole, "input", "must hold the whole image: fit stretch, no margin, no crop"),
            (split.by == "random", "split.by", "must be random: patients are drawn by a hash"),
            (split.table is None, "split.table", "is for a network that goes on from another"),
        )


def rooted_outputs(recipe: Recipe | WholeImageRecipe, path: Path) -> dict[str, Any]:
    """The places that every recipe of a pack writes to, and its credits, made whole."""
    base = path.resolve().parent
    return {
        **{name: whole(getattr(recipe, name), base) for name in ("run", "signing_key", "packs_folder")},
        "pack": replace(recipe.pack, credits=base / (recipe.pack.credits or f"{path.stem}.credits.md")),
    }


def rooted(recipe: Recipe, path: Path) -> Recipe:
    """The recipe of a file with its paths made whole."""
    base = path.resolve().parent
    evaluation, comparison = recipe.evaluation, recipe.comparison
    ood_images, elsewhere = (
        rooted_source(source, base) if source else None for source in (evaluation.ood_images, evaluation.elsewhere)
    )
    return replace(
        recipe,
        **rooted_outputs(recipe, path),
        lungs=base / recipe.lungs if recipe.lungs else None,
        network=_with_path(recipe.network, base),
        data=tuple(rooted_source(source, base) for source in recipe.data),
        split=_with_table(recipe.split, base),
        evaluation=replace(evaluation, ood_images=ood_images, elsewhere=elsewhere),
        results=whole(recipe.results, base) if recipe.results else None,
        comparison=comparison and replace(comparison, network=_with_path(comparison.network, base)),
    )


def what_is_trained(recipe: Recipe) -> dict[str, Any]:
    """What decides a training, ready to be published as JSON: no paths but the names of what they lead to."""
    network = {**asdict(recipe.network), "weights": Path(recipe.network.weights).name}
    sources = [
        {"name": source.name, "where": dict(source.where), "share": source.share, "evaluated": source.evaluated}
        | ({"group": source.group} if source.group != source.name else {})
        for source in recipe.data
    ]
    return {
        "input": asdict(recipe.input),
        "network": network,
        "labels": {label.code: label.weight for label in recipe.labels},
        "lungs": recipe.lungs.name if recipe.lungs else None,
        "data": sources,
        "training": asdict(recipe.training),
        "augmentation": asdict(recipe.augmentation),
    }


def what_is_made(recipe: Recipe) -> dict[str, Any]:
    """What decides how a trained network becomes the int8 file of a pack, ready to be published as JSON."""
    return {"prune": asdict(recipe.prune) if recipe.prune else None, "calibration_images": recipe.calibration_images}


def _with_path(network: NetworkChoice, base: Path) -> NetworkChoice:
    return network if network.weights in NAMED_WEIGHTS else replace(network, weights=str(base / network.weights))


def _with_table(split: Split, base: Path) -> Split:
    return replace(split, table=base / split.table.expanduser()) if split.table else split
