"""The recipe of a classifier as a typed TOML document.

Paths are relative to the recipe's folder. Each key is described where it is defined. Checks, template and reference
are made from these descriptions. Credits and licences are in a separate file next to the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.packs.manifest import class_names_problem
from fieldray.translation import Translator, languages
from fieldray_adapt.data.augmentation import Augmentation
from fieldray_adapt.prune.plan import PruneRecipe
from fieldray_adapt.recipes.shared import (
    LabelRule,
    ProfileChoice,
    Source,
    Split,
    Texts,
    address_in,
    object_copy_path,
    pack_id_problem,
)
from fieldray_adapt.recipes.tables import Key, Rules, key, resolve_paths, table
from fieldray_adapt.training.engine_interface import EngineName, Precision

NO_WEIGHTS: Final = "none"
"""Value of the key `network.weights` for random initial weights."""

INPUT_KEYS: Final = {
    "height": Key("Height of the network's input.", unit="pixels", low=8, high=2048, example=224),
    "width": Key("Width of the network's input.", unit="pixels", low=8, high=2048, example=224),
    "channels": Key(
        "Number of input channels: 1 for grey; 3 if the starting weights come from a network for colour.", low=1, high=3
    ),
    "intensity": Key(
        "How grey levels are scaled. as_displayed: by the window of the file; percentile: by this window, then "
        "the 1st to 99th percentile is stretched to 0..255."
    ),
    "fit": Key("How an image of another shape is fitted: stretched, padded with black, or cropped."),
    "margin": Key("Share of each side that is cut off before fitting.", low=0, high=0.2),
    "crop": Key(
        "Crop of the image. lungs: to the visible lungs; lung_region: to the region where lung belongs. With a "
        "crop, the pack requires a lung-field pack."
    ),
    "crop_margin": Key("Margin around the lungs on each side, as a share of their height and width.", low=0, high=0.5),
}
"""Descriptions of the keys of a network's input, whose class is in another package."""


@table
class ClassNames:
    """Names of the two classes of an image."""

    abnormal: Texts = key("Name for scores at or above the uncertain zone.", example={"en": "Signs of pneumonia"})
    normal: Texts = key("Name for scores below the uncertain zone.", example={"en": "None found by this pack"})

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        problem = class_names_problem({"abnormal": self.abnormal, "normal": self.normal})
        return [(False, *problem)] if problem else []


@table
class PackTexts:
    """Texts of the manifest and the model card."""

    id: str = key(
        "Name of the pack's folder: lower-case letters, digits and hyphens.", example="my-pack", check=pack_id_problem
    )
    version: str = key("Version of the pack, in three numbers.", default="0.1.0")
    names: Texts = key(
        "Name of the pack for people; its id by default.", default_factory=dict, example={"en": "My pack"}
    )
    descriptions: Texts = key(
        "One sentence on what the pack does.",
        default_factory=lambda: {"en": "Sorts chest X-rays by the labels that it was trained on."},
    )
    intended_use: Texts = key(
        "What the pack is for, and what it is not for.",
        default_factory=lambda: {"en": "Research and education. Research use only. Not for diagnostic use."},
    )
    limits: Texts = key(
        "Patients and images on which the pack was not measured.",
        default_factory=lambda: {"en": "Results on images of another site were not measured, and may be worse."},
    )
    class_names: ClassNames | None = key(
        "Names of the two classes of an image, instead of *abnormal* and *normal*.", default=None
    )
    credits: Path | None = key(
        "File with sources, licences and citations; NAME.credits.md beside NAME.toml by default.", default=None
    )
    data_licence: str = key("Licence of the training images, for manifest and card.", default="")
    weights_licence: str = key("Licence of the network's weights, for manifest and card.", default="")
    accepted_views: tuple[str, ...] = key("View positions that the pack accepts.", default=("PA", "AP"))
    accepted_ages_years: tuple[int, int] | None = key(
        "Youngest and oldest patient; any age by default.", default=None, unit="years"
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the value that the key `names` gets if it is empty: the id of the pack as its English name."""
        return {"names": {"en": self.id}}

    @property
    def credits_text(self) -> str:
        """Sources, licences and citations from the file of credits; empty without that file."""
        path = self.credits
        return path.read_text(encoding="utf-8").strip() if path and path.is_file() else ""

    @property
    def accepted(self) -> HeaderRules:
        """The header values of the images that the pack accepts: view positions, and youngest and oldest age."""
        return HeaderRules(views=self.accepted_views, ages_years=self.accepted_ages_years)


@table
class NetworkChoice:
    """The network to train, and its initial weights."""

    kind: Literal["resnet50", "resnet34", "mobilenet", "vgg16", "squeezenet", "googlenet"] = key(
        "The architecture.", default="resnet50"
    )
    width: float = key("Factor for the number of channels of every hidden layer.", default=1.0, above=0, high=2)
    blocks: tuple[int, ...] = key(
        "Number of blocks in each stage of a ResNet; [3, 4, 6, 3] by default. [3, 4, 6] leaves out the last "
        "stage, so that class maps have twice the side.",
        default=(),
        low=1,
    )
    channels: Mapping[str, int] = key("Channel counts that differ from `width`, by layer name.", default_factory=dict)
    weights: str = key(
        "Starting weights: none, a weights file of this toolchain, or the folder of a pack. The widths of a "
        "pack's ResNet or MobileNet are adopted.",
        default=NO_WEIGHTS,
    )
    last_stride: int = key(
        "Stride of a ResNet's last stage; 1 makes class maps of twice the side.", default=2, low=1, high=2
    )
    frozen: tuple[str, ...] = key(
        'Layers that are not trained, by the beginnings of their names. ["conv1", "conv2"]: the first two stages '
        'of a ResNet50; ["conv"]: all but the head.',
        default=(),
    )

    def resolve_paths(self, base: Path) -> NetworkChoice:
        """Return a copy whose key `weights` has an absolute path (see `tables.resolve_paths`). `base` is the recipe's
        folder.
        """
        return self if self.weights == NO_WEIGHTS else replace(self, weights=str(base / self.weights))

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        return (
            (self.is_residual or not self.blocks, "blocks", "is for a resnet50 or resnet34"),
            (self.is_residual or self.last_stride == 2, "last_stride", "is for a resnet50 or resnet34"),
        )

    @property
    def is_residual(self) -> bool:
        """Whether the network has stages of blocks."""
        return self.kind in ("resnet50", "resnet34")


@table
class ClassifierTraining:
    """How the network is trained: AdamW with a warm-up, cosine decay and averaged weights."""

    epochs: int = key("Passes over the training images.", default=20, low=1, example=20)
    batch_size: int = key("Images in each training step.", default=32, unit="images", low=1)
    learning_rate: float = key("The highest learning rate.", default=1e-3, above=0)
    warm_up_epochs: float = key("Time in which the learning rate rises from 0.", default=1.0, unit="epochs", low=0)
    average_epochs: float = key("Period over which the weights are averaged.", default=1.0, unit="epochs", low=0)
    label_smoothing: float = key("Targets are moved towards 0.5 by this share.", default=0.0, low=0, high=1)
    images_per_epoch: int = key("Images drawn per epoch; 0: the number of images.", default=0, unit="images", low=0)
    weight_decay: float = key("Weight decay of AdamW, on kernels only.", default=0.05, low=0)
    average_sources: bool = key(
        "One network is trained on each group of sources, all from equal starting weights. Their weights are "
        "averaged by the shares of the groups, so that the peculiarities of one hospital count for less. This "
        "needs a pretrained network and small learning rates.",
        default=False,
    )
    networks: int = key(
        "Number of networks that are trained one after another from equal starting weights, with the seeds seed, "
        "seed + 1 and so on. Their weights are averaged. This needs a pretrained network and small learning rates.",
        default=1,
        low=1,
    )
    evidence_outside: float = key(
        "Weight of a second loss on evidence outside the lungs: class-map values above 0. Needs the key lungs.",
        default=0.0,
        low=0,
    )
    teacher: Path | None = key(
        "Weights of an EfficientNet-Lite0 (.npz, PyTorch's names). A logistic regression on its features, fitted "
        "without the patient of the image, predicts the label; the training target is the mean of label and "
        "prediction.",
        default=None,
    )
    seed: int = key("Seed of initial weights, order and augmentation.", default=0)
    engine: EngineName = key(
        "The framework for training. auto: PyTorch, if it is installed without Triton (the CPU version). "
        "Triton cannot run in one process with TensorFlow.",
        default="auto",
    )
    precision: Precision = key(
        "Number format of the training. bfloat16 is faster if the CPU supports this format.", default="float32"
    )
    threads: int = key("CPU threads; 0 leaves the choice to the framework.", default=0, low=0)


@table
class OperatingPointChoice:
    """An operating point. Its threshold and uncertain zone are chosen on the validation images."""

    name: str = key("Name in settings and on the command line.", example="balanced")
    titles: Texts = key("Name of the operating point for people; its key name by default.", default_factory=dict)
    rule: Literal["balance", "sensitivity"] = key(
        "How the threshold is chosen. balance: the largest sum of sensitivity and specificity; sensitivity: at "
        "least the value of the key sensitivity.",
        default="balance",
    )
    sensitivity: float = key(
        "With the rule sensitivity: the lowest allowed sensitivity.", default=0.95, low=0.5, high=1
    )
    each_source: bool = key(
        "The rule holds at every source of the validation images, so that a large source does not outvote a small "
        "one. balance: the largest sum at the source where the sum is smallest; sensitivity and uncertain zone: at "
        "every source. Each source needs images of both classes.",
        default=False,
    )
    band_catches: float = key(
        "Share of the positive images that are not below the uncertain zone.", default=0.98, low=0.5, high=1
    )
    band_clears: float = key(
        "Share of the negative images that are not above the uncertain zone.", default=0.95, low=0.5, high=1
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the value that the key `titles` gets if it is empty: an English title made from the operating point's
        name.
        """
        return {"titles": {"en": self.name.replace("-", " ").capitalize()}}


def _the_test_part() -> Mapping[str, str]:
    """Return the default of `Evaluation.measured_on` by language."""
    fields, found = {name: f"{{{name}}}" for name in ("images", "patients")}, dict[str, str]()
    for translator in map(Translator, languages()):
        # Translators: completes "Measured on", in the case that this asks for.
        text = translator.text("the test part of the data ({images} images, {patients} patients)", **fields)
        if text not in found.values():  # a language without a translation would repeat the English text
            found[translator.language.replace("_", "-")] = text
    return found


@table
class Evaluation:
    """What is measured: operating points, and the out-of-distribution (OOD) check."""

    points: tuple[OperatingPointChoice, ...] = key(
        "The operating points; one, balanced, by default.", default=(OperatingPointChoice(name="balanced"),)
    )
    measured_on: Texts = key(
        "Completes 'Measured on ...' in the program; {images} and {patients} become numbers.",
        default_factory=_the_test_part,
    )
    ood_images: Source | None = key(
        "Images that are no chest X-rays, which the out-of-distribution check must refuse.", default=None
    )
    elsewhere: Source | None = key(
        "Labelled images of another hospital. They are only for measurement, with the thresholds of the pack, "
        "and never for training or choices.",
        default=None,
    )
    ood_side: int = key(
        "Side to which test images are shrunk before the comparison with OOD images, so that sharpness alone "
        "decides nothing; 0: unchanged.",
        default=0,
        unit="pixels",
        low=0,
    )
    ood_gate_keeps: float = key(
        "Share of the validation images that the out-of-distribution check accepts.",
        default=0.99,
        low=0.9,
        high=0.99999,
    )
    ood_gate_components: int = key(
        "Number of components of the whitening transform in the out-of-distribution check.", default=64, low=1
    )
    example_images: int = key(
        "Images with class maps in the report; 0 for a report that is published.", default=8, low=0
    )

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        names = [point.name for point in self.points]
        return ((bool(names) and len(set(names)) == len(names), "points", "must be one or more, with different names"),)


CalibrationImages = Annotated[int, Key("Training images that set the ranges for int8.", unit="images", low=1)]
PackInput = Annotated[InputSpec, Key("Size and scaling of the network's input; 224 x 224 by default.", keys=INPUT_KEYS)]
PatientSplit = Annotated[Split, Key("Split of the patients into training, validation and test.")]


@table
class PackRecipe:
    """The keys of every recipe that makes a pack."""

    kind: str
    run: Path = key("Folder for all outputs of a run.", default=Path("run"))
    signing_key: Path = key("Private key that signs the pack; created if missing.", default=Path("signing.pem"))
    packs_folder: Path = key("Folder in which the pack is written.", default=Path("packs"))
    calibration_images: CalibrationImages = 100
    pack: PackTexts = key("Texts and identity of the pack.")
    input: PackInput = field(default_factory=lambda: InputSpec(height=224, width=224))


@table
class ClassifierRecipe(PackRecipe):
    """A classifier: from labelled images to a signed pack."""

    kind: Literal["classifier"] = key("What the recipe makes.", default="classifier")
    results: Path | None = key(
        "Folder for published results of cross-validations; the run's folder by default.", default=None
    )
    calibration_images: CalibrationImages = 200
    lungs: Path | None = key(
        "Folder of the lung-field pack, needed for a crop to the lungs or for evidence_outside.", default=None
    )
    network: NetworkChoice = key("The network.", default=NetworkChoice())
    labels: tuple[LabelRule, ...] = key("Labels (findings) that the pack looks for.")
    data: tuple[Source, ...] = key("Sources of labelled images.")
    split: PatientSplit = field(default_factory=Split)
    augmentation: Augmentation = key("Random changes of training images.", default_factory=Augmentation)
    training: ClassifierTraining = key("How the network is trained.", default=ClassifierTraining())
    prune: PruneRecipe | None = key(
        "How the trained network is pruned; without this table, it is not pruned.", default=None
    )
    profile: ProfileChoice = key("What `fieldray adapt profile` measures.", default_factory=ProfileChoice)
    evaluation: Evaluation = key("What is measured on the trained network.", default=Evaluation())

    def rules(self) -> Rules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.Rules`)."""
        codes = [label.code for label in self.labels]
        has_kept = any(not label.auxiliary for label in self.labels)
        return (
            (bool(self.data), "data", "must name at least one source"),
            (has_kept, "labels", "must have at least one label that is not auxiliary"),
            (len(set(codes)) == len(codes), "labels", "must have different codes"),
            (
                self.lungs is not None or (self.input.crop == "none" and not self.training.evidence_outside),
                "lungs",
                "is needed where the input is cropped to the lungs or evidence outside of them counts",
            ),
            (
                not self.training.average_sources or all(any(shares.values()) for shares in self.groups.values()),
                "data",
                "with average_sources must draw from every group: a share above 0",
            ),
        )

    @property
    def publication_folder(self) -> Path:
        """The folder to which the published results of a cross-validation are written: the key `results`, or the run
        folder.
        """
        return self.results or self.run

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """The sources of each group of the recipe: by the group's name, each source's relative frequency of being
        drawn.
        """
        found: dict[str, dict[str, float]] = {}
        for source in self.data:
            found.setdefault(source.group, {})[source.name] = source.share
        return found

    @property
    def pack_labels(self) -> tuple[LabelRule, ...]:
        """The labels of the pack, without auxiliary ones."""
        return tuple(label for label in self.labels if not label.auxiliary)


Whole = TypeVar("Whole")


def with_absolute_paths(recipe: Whole, path: Path) -> Whole:
    """Return a recipe read from the file `path` with absolute paths.

    The file of credits is NAME.credits.md next to NAME.toml, if the recipe names no other. An address of a source
    becomes the path of its copy in the run folder.
    """
    whole: Any = resolve_paths(recipe, path.resolve().parent)
    if isinstance(recipe, ClassifierRecipe):
        data = (
            replace(source, path=object_copy_path(address, run=whole.run))
            if (address := address_in(own.path))
            else source
            for own, source in zip(recipe.data, whole.data, strict=True)
        )
        whole = replace(whole, data=tuple(data))
    if (pack := getattr(whole, "pack", None)) and pack.credits is None:
        whole = replace(whole, pack=replace(pack, credits=path.resolve().parent / f"{path.stem}.credits.md"))
    return cast("Whole", whole)


def training_description(recipe: ClassifierRecipe) -> dict[str, Any]:
    """Return the settings that decide the result of a training, for publication as JSON.

    Only the last part of each path is published.
    """
    network = {**asdict(recipe.network), "weights": Path(recipe.network.weights).name}
    sources = [
        {"name": source.name, "where": dict(source.where), "share": source.share, "evaluated": source.evaluated}
        | ({"group": source.group} if source.group != source.name else {})
        for source in recipe.data
    ]
    training = asdict(recipe.training)
    if teacher := training.pop("teacher"):  # absent without a teacher, as in documents of earlier versions
        training["teacher"] = teacher.name
    if recipe.training.networks == 1:  # likewise absent
        del training["networks"]
    return {
        "input": asdict(recipe.input),
        "network": network,
        "labels": {label.code: label.weight for label in recipe.labels},
        "lungs": recipe.lungs.name if recipe.lungs else None,
        "data": sources,
        "training": training,
        "augmentation": asdict(recipe.augmentation),
    }


def conversion_description(recipe: ClassifierRecipe) -> dict[str, Any]:
    """Return the settings for pruning the trained network and converting it to an int8 file, for publication as JSON.

    The entry "prune" has the values of the recipe's table `prune`, or None without this table. The entry
    "calibration_images" has the number of images that decide the ranges of the integers.
    """
    return {"prune": asdict(recipe.prune) if recipe.prune else None, "calibration_images": recipe.calibration_images}
