"""The keys of a classifier's recipe, which is a TOML document.

Paths in a recipe are relative to the recipe's folder. The checks, the template and the reference of recipes are made
from the descriptions of the keys below. Credits and licences are in a separate file next to the recipe.
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
    pack_id_problem,
    with_local_copy_folders,
)
from fieldray_adapt.recipes.tables import Key, ValidityRules, key, recipe_table, resolve_paths
from fieldray_adapt.training.engine_interface import EngineName, Precision

NO_STARTING_WEIGHTS: Final = "none"
"""Value of the key `network.weights` for random initial weights."""

INPUT_TABLE_KEYS: Final = {
    "height": Key("Height of the network's input.", unit="pixels", low=8, high=2048, example=224),
    "width": Key("Width of the network's input.", unit="pixels", low=8, high=2048, example=224),
    "channels": Key(
        "Number of input channels: 1 for grey; 3 for starting weights of a network for colour images.", low=1, high=3
    ),
    "intensity": Key(
        "How grey levels are scaled. as_displayed: by the display window of the file; percentile: by the display "
        "window, then the 1st to 99th percentile is stretched to 0..255."
    ),
    "fit": Key("How an image of another shape is fitted. stretch: stretched; pad: padded with black; crop: cropped."),
    "margin": Key("Share of the image that is cut off at each of the four sides before fitting.", low=0, high=0.2),
    "crop": Key(
        "Crop of the image. none: whole image; lungs: visible lungs; lung_region: whole lungs, including lung behind "
        "heart and opacities. With a crop, the pack requires a lung-field pack."
    ),
    "crop_margin": Key(
        "Margin of the crop around the lungs on each side, as a share of the lungs' height and width.", low=0, high=0.5
    ),
}
"""The descriptions of the recipe keys in the table `input`, whose class `InputSpec` is in another package."""


@recipe_table
class ClassNames:
    """The names that the user sees for images above and below the uncertain zone."""

    abnormal: Texts = key("Name for scores at or above the uncertain zone.", example={"en": "Signs of pneumonia"})
    normal: Texts = key("Name for scores below the uncertain zone.", example={"en": "None found by this pack"})

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        problem = class_names_problem({"abnormal": self.abnormal, "normal": self.normal})
        return [(False, *problem)] if problem else []


@recipe_table
class PackTexts:
    """Texts about a pack, for the pack's manifest and model card."""

    id: str = key(
        "Name of the pack's folder: lower-case letters, digits and hyphens.", example="my-pack", check=pack_id_problem
    )
    version: str = key("Version of the pack, in three numbers.", default="0.1.0")
    names: Texts = key(
        "Name of the pack for people; by default the id.", default_factory=dict, example={"en": "My pack"}
    )
    descriptions: Texts = key(
        "One sentence on what the pack does.",
        default_factory=lambda: {"en": "Sorts chest X-rays by the labels that it was trained on."},
    )
    intended_use: Texts = key(
        "Purposes for which the pack may and may not be used.",
        default_factory=lambda: {"en": "Research and education. Research use only. Not for diagnostic use."},
    )
    limits: Texts = key(
        "Patients and images on which the pack was not measured.",
        default_factory=lambda: {"en": "Results on images of another site were not measured, and may be worse."},
    )
    class_names: ClassNames | None = key(
        "Names of the two classes of an image, in place of *abnormal* and *normal*.", default=None
    )
    credits: Path | None = key(
        "File with sources, licences and citations. By default NAME.credits.md in the folder of NAME.toml.",
        default=None,
    )
    data_licence: str = key("Licence of the training images, for manifest and model card.", default="")
    weights_licence: str = key("Licence of the network's weights, for manifest and model card.", default="")
    accepted_views: tuple[str, ...] = key("View positions (DICOM) that the pack accepts.", default=("PA", "AP"))
    accepted_ages_years: tuple[int, int] | None = key(
        "Lowest and highest age of patients that the pack accepts. By default any age.", default=None, unit="years"
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the default value of the key `names`: the pack's id as the English name."""
        return {"names": {"en": self.id}}

    @property
    def credits_text(self) -> str:
        """The content of the file `credits` (sources, licences, citations); "" if the file does not exist."""
        path = self.credits
        return path.read_text(encoding="utf-8").strip() if path and path.is_file() else ""

    @property
    def accepted_headers(self) -> HeaderRules:
        """The DICOM header values that the pack accepts: view positions, and lowest and highest age."""
        return HeaderRules(views=self.accepted_views, ages_years=self.accepted_ages_years)


@recipe_table
class NetworkChoice:
    """The network to train, and its initial weights."""

    kind: Literal["resnet50", "resnet34", "mobilenet", "vgg16", "vgg19", "squeezenet", "googlenet"] = key(
        "Architecture of the network.", default="resnet50"
    )
    width: float = key(
        "Factor for the number of channels of every hidden layer. For starting weights from a pack, at most 1: each "
        "layer keeps the channels with the largest weights.",
        default=1.0,
        above=0,
        high=2,
    )
    blocks: tuple[int, ...] = key(
        "Number of blocks in each stage of a ResNet; [3, 4, 6, 3] by default. [3, 4, 6] leaves out the last "
        "stage, so that class maps have twice the side.",
        default=(),
        low=1,
    )
    channels: Mapping[str, int] = key(
        "Numbers of channels of single layers, by layer name. All other layers follow `width`.", default_factory=dict
    )
    weights: str = key(
        "Starting weights: none (random), a weights file of `fieldray adapt`, or the folder of a pack. From a pack "
        "with a ResNet or MobileNet, the numbers of channels are taken, too.",
        default=NO_STARTING_WEIGHTS,
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
        """Return a copy in which the path `weights` is absolute. `base` is the recipe's folder.

        `tables.resolve_paths` calls this method.
        """
        return self if self.weights == NO_STARTING_WEIGHTS else replace(self, weights=str(base / self.weights))

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        return (
            (self.is_residual or not self.blocks, "blocks", "needs a resnet50 or resnet34"),
            (self.is_residual or self.last_stride == 2, "last_stride", "needs a resnet50 or resnet34"),
        )

    @property
    def is_residual(self) -> bool:
        """Whether the network is a ResNet, whose layers are grouped in stages of blocks."""
        return self.kind in ("resnet50", "resnet34")


@recipe_table
class ClassifierTraining:
    """Settings of a classifier's training with AdamW, warm-up, cosine decay and averaged weights."""

    epochs: int = key("Number of passes over the training images.", default=20, low=1, example=20)
    batch_size: int = key("Number of images in each training step.", default=32, unit="images", low=1)
    learning_rate: float = key("The highest learning rate.", default=1e-3, above=0)
    warm_up_epochs: float = key(
        "Time at the start in which the learning rate rises from 0.", default=1.0, unit="epochs", low=0
    )
    average_epochs: float = key(
        "Time over which a running mean of the weights is taken.", default=1.0, unit="epochs", low=0
    )
    label_smoothing: float = key("Share by which targets are moved towards 0.5.", default=0.0, low=0, high=1)
    images_per_epoch: int = key(
        "Number of images drawn in an epoch; 0: as many as there are training images.", default=0, unit="images", low=0
    )
    weight_decay: float = key("Weight decay of AdamW, on kernels only.", default=0.05, low=0)
    average_sources: bool = key(
        "Train a network on each group of sources, all from equal starting weights, and average the networks by the "
        "shares of the groups. So the peculiarities of one hospital count for less. Needs pretrained starting weights "
        "and small learning rates.",
        default=False,
    )
    networks: int = key(
        "Number of networks to train from equal starting weights, with the seeds seed, seed + 1 and so on. The weights "
        "of the networks are averaged. Needs pretrained starting weights and small learning rates.",
        default=1,
        low=1,
    )
    start_share: float = key(
        "Share of the starting weights in the final weights: 0.4 gives 0.4 x starting weights + 0.6 x trained weights. "
        "The network then keeps more of its accuracy at other hospitals. Needs pretrained starting weights and small "
        "learning rates.",
        default=0.0,
        low=0,
        high=0.9,
    )
    evidence_outside: float = key(
        "Weight of a second loss for evidence outside the lungs (class-map values above 0). Needs the key lungs.",
        default=0.0,
        low=0,
    )
    teacher: Path | None = key(
        "File with the weights of an EfficientNet-Lite0 (.npz with PyTorch's names). A logistic regression on the "
        "EfficientNet's features, fitted without the image's patient, predicts the label of each image. Without "
        "teacher_epochs, the training target is the mean of label and prediction.",
        default=None,
    )
    teacher_epochs: int = key(
        "Number of epochs of a first training, in which the teacher's predictions are the only targets. The training "
        "on the labels starts from that network. 0: no first training.",
        default=0,
        low=0,
    )
    seed: int = key("Seed of all random numbers: initial weights, order of images, augmentation.", default=0)
    engine: EngineName = key(
        "The framework for training. auto: PyTorch if installed without Triton (the CPU version), else TensorFlow. "
        "Triton cannot run in one process with TensorFlow.",
        default="auto",
    )
    precision: Precision = key(
        "Number format of the training. bfloat16 is faster if the CPU supports this format.", default="float32"
    )
    threads: int = key("Number of CPU threads. 0: the framework chooses the number.", default=0, low=0)


@recipe_table
class OperatingPointChoice:
    """The rule by which an operating point is chosen on validation images: threshold and uncertain zone."""

    name: str = key("Name of the operating point in settings and on the command line.", example="balanced")
    titles: Texts = key(
        "Name of the operating point for people; by default made from the value of the key name.", default_factory=dict
    )
    rule: Literal["balance", "sensitivity"] = key(
        "How the threshold is chosen. balance: for the largest sum of sensitivity and specificity; sensitivity: for at "
        "least the sensitivity in the key sensitivity.",
        default="balance",
    )
    sensitivity: float = key(
        "With the rule sensitivity: the lowest allowed sensitivity.", default=0.95, low=0.5, high=1
    )
    each_source: bool = key(
        "Whether the rule must hold at every source of the validation images, so that a large source does not outvote "
        "a small source. balance: the smallest sum of all sources is made as large as possible. Each source needs "
        "positive and negative images.",
        default=False,
    )
    band_catches: float = key(
        "At least this share of the positive images is in or above the uncertain zone.", default=0.98, low=0.5, high=1
    )
    band_clears: float = key(
        "At least this share of the negative images is in or below the uncertain zone.", default=0.95, low=0.5, high=1
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the default value of the key `titles`: an English title, made from the name of the operating point."""
        return {"titles": {"en": self.name.replace("-", " ").capitalize()}}


def _the_test_part() -> Mapping[str, str]:
    """Return the default text of the recipe's key `evaluation.measured_on`, by language tag."""
    fields, found = {name: f"{{{name}}}" for name in ("images", "patients")}, dict[str, str]()
    for translator in map(Translator, languages()):
        # Translators: completes "Measured on", in the grammatical case that these words need.
        text = translator.text("the test part of the data ({images} images, {patients} patients)", **fields)
        if text not in found.values():  # a language without a translation would repeat the English text
            found[translator.language.replace("_", "-")] = text
    return found


@recipe_table
class Evaluation:
    """Settings of a classifier's evaluation: operating points, and the out-of-distribution (OOD) check."""

    points: tuple[OperatingPointChoice, ...] = key(
        "The operating points. By default one, with the name balanced.",
        default=(OperatingPointChoice(name="balanced"),),
    )
    measured_on: Texts = key(
        "End of the sentence 'Measured on ...' in the program. {images} and {patients} are replaced by numbers.",
        default_factory=_the_test_part,
    )
    ood_images: Source | None = key(
        "Images that are no chest X-rays, which the out-of-distribution check must refuse.", default=None
    )
    elsewhere: Source | None = key(
        "Labelled images of another hospital, on which the finished pack is measured. These images are never used for "
        "training or choices.",
        default=None,
    )
    ood_side: int = key(
        "Side to which test images are shrunk before the comparison with OOD images, so that sharpness alone decides "
        "nothing. 0: not shrunk.",
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
        "Number of test images that the report shows with class maps. Set 0 for a report that will be published.",
        default=8,
        low=0,
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        names = [point.name for point in self.points]
        return ((bool(names) and len(set(names)) == len(names), "points", "must be one or more, with different names"),)


_EVALUATION_SOURCES: Final = ("ood_images", "elsewhere")
"""The keys of the table `evaluation` that are sources of images."""

CalibrationImageCount = Annotated[
    int, Key("Number of training images that set the ranges of the int8 values.", unit="images", low=1)
]
PackInput = Annotated[
    InputSpec, Key("Size and scaling of the network's input. By default 224 x 224 pixels.", keys=INPUT_TABLE_KEYS)
]
PatientSplit = Annotated[Split, Key("Split of the patients into training, validation and test.")]


@recipe_table
class PackRecipe:
    """The keys that all kinds of recipes for packs have."""

    kind: str
    run: Path = key("Folder for all outputs of a run.", default=Path("run"))
    signing_key: Path = key(
        "File of the private key that signs the pack. Made if missing.", default=Path("signing.pem")
    )
    packs_folder: Path = key("Folder in which the pack is written.", default=Path("packs"))
    calibration_images: CalibrationImageCount = 100
    pack: PackTexts = key("Texts and identity of the pack.")
    input: PackInput = field(default_factory=lambda: InputSpec(height=224, width=224))


@recipe_table
class ClassifierRecipe(PackRecipe):
    """The recipe of a classifier's pack: the keys for data, network, training, evaluation and pack."""

    kind: Literal["classifier"] = key("The kind of the recipe: a classifier.", default="classifier")
    results: Path | None = key(
        "Folder for results of cross-validations that you publish. By default the folder that the key run names.",
        default=None,
    )
    calibration_images: CalibrationImageCount = 200
    lungs: Path | None = key(
        "Folder of a lung-field pack. Needed for a crop to the lungs and for the key evidence_outside.", default=None
    )
    network: NetworkChoice = key("The network to train.", default=NetworkChoice())
    labels: tuple[LabelRule, ...] = key("Labels (findings) that the pack looks for.")
    data: tuple[Source, ...] = key("Sources of labelled images.")
    split: PatientSplit = field(default_factory=Split)
    augmentation: Augmentation = key("Random changes of training images.", default_factory=Augmentation)
    training: ClassifierTraining = key("Settings of the training.", default=ClassifierTraining())
    prune: PruneRecipe | None = key(
        "Settings of pruning. Without this table, the trained network is not pruned.", default=None
    )
    profile: ProfileChoice = key("Settings of `fieldray adapt profile`.", default_factory=ProfileChoice)
    evaluation: Evaluation = key("Settings of the evaluation.", default=Evaluation())

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.ValidityRules`)."""
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
                not self.training.average_sources
                or all(any(shares.values()) for shares in self.source_shares_by_group.values()),
                "data",
                "with average_sources must draw from every group: a share above 0",
            ),
            (
                not self.training.start_share or self.network.weights != NO_STARTING_WEIGHTS,
                "training.start_share",
                "needs a network with starting weights",
            ),
            (
                not self.training.teacher_epochs or self.training.teacher is not None,
                "training.teacher_epochs",
                "needs a teacher",
            ),
        )

    @property
    def publication_folder(self) -> Path:
        """The folder for the published results of a cross-validation: the key `results`, by default the run folder."""
        return self.results or self.run

    @property
    def source_shares_by_group(self) -> dict[str, dict[str, float]]:
        """The relative frequency of each source in training: {name of the group: {name of the source: frequency}}."""
        found: dict[str, dict[str, float]] = {}
        for source in self.data:
            found.setdefault(source.group, {})[source.name] = source.share
        return found

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """All sources of images: the sources of `data`, and the sources of `evaluation`."""
        evaluated = (getattr(self.evaluation, name) for name in _EVALUATION_SOURCES)
        return (*self.data, *(source for source in evaluated if source))

    @property
    def pack_labels(self) -> tuple[LabelRule, ...]:
        """The labels of the pack: all labels that are not auxiliary."""
        return tuple(label for label in self.labels if not label.auxiliary)


RecipeT = TypeVar("RecipeT")


def with_absolute_paths(recipe: RecipeT, path: Path) -> RecipeT:
    """Return a copy of a recipe in which all paths are absolute. `path` is the file of the recipe.

    If the recipe names no file of credits, the path becomes NAME.credits.md for a recipe NAME.toml. The address of a
    source on a server is replaced by the path of the source's copy in the run folder.
    """
    folder = path.resolve().parent
    run_folder = (folder / cast("Any", recipe).run).resolve()
    whole: Any = resolve_paths(with_local_copy_folders(recipe, run_folder=run_folder), folder)
    if (pack := getattr(whole, "pack", None)) and pack.credits is None:
        whole = replace(whole, pack=replace(pack, credits=folder / f"{path.stem}.credits.md"))
    return cast("RecipeT", whole)


def training_description(recipe: ClassifierRecipe) -> dict[str, Any]:
    """Return the settings that decide the result of a training, as a document for publication as JSON.

    Of each path, the document has only the last part.
    """
    network = {**asdict(recipe.network), "weights": Path(recipe.network.weights).name}
    sources = [
        {"name": source.name, "where": dict(source.where), "share": source.share, "evaluated": source.evaluated}
        | ({"group": source.group} if source.group != source.name else {})
        for source in recipe.data
    ]
    training = asdict(recipe.training)
    if teacher := training.pop("teacher"):  # without a teacher the key is absent, as in earlier versions
        training["teacher"] = teacher.name
    if recipe.training.networks == 1:  # the key is absent, as in earlier versions
        del training["networks"]
    if not recipe.training.start_share:  # the key is absent, as in earlier versions
        del training["start_share"]
    if not recipe.training.teacher_epochs:  # the key is absent, as in earlier versions
        del training["teacher_epochs"]
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
    """Return the settings of pruning and of the conversion to an int8 file, as a document for publication as JSON.

    The entry "prune" has the values of the recipe's table `prune`; None without this table. The entry
    "calibration_images" is the number of images that set the ranges of the int8 values.
    """
    return {"prune": asdict(recipe.prune) if recipe.prune else None, "calibration_images": recipe.calibration_images}
