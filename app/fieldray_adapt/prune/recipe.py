"""The recipe of a pruning study: images, original network, pruning runs and baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fieldray_adapt.networks.architectures import vgg16_dense
from fieldray_adapt.networks.specification import Specification
from fieldray_adapt.prune.plan import PruneRecipe
from fieldray_adapt.prune.selection import Baseline
from fieldray_adapt.recipes.shared import ProfileChoice
from fieldray_adapt.recipes.tables import Rules, key, table
from fieldray_adapt.training.engine_interface import Precision
from fieldray_adapt.training.loop import Effort


@table
class Original:
    """The network to prune: a VGG-16, trained from random weights."""

    training: Effort = key("Training of the original network.")
    width: float = key("Share of the published channel counts.", default=1.0, above=0, high=2)
    dense_layers: int = key(
        "Dense layers before the last one: 2 as published; 0 for the dissertation's 14,718,666 weights.",
        default=2, low=0, high=2,
    )  # fmt: skip
    dropout: float = key("Dropout before the last layers.", default=0.5, low=0, high=0.95)
    precision: Precision = key("Precision of this training only; pruned networks train in float32.", default="float32")

    def specification(self) -> Specification:
        """Return the specification of the original network, for images of MNIST."""
        return vgg16_dense(dense_layers=self.dense_layers, dropout=self.dropout).scaled(self.width)


@table
class StudyData:
    """An .npz file with x_train, y_train, x_test and y_test (uint8)."""

    file: Path = key("The .npz file with images and labels.", example="mnist.npz")
    validation: int = key("Training images that are kept for validation.", default=5000, unit="images", low=1)
    training: int = key(
        "Images to train on; 0: all images that are not kept for validation.", default=0, unit="images", low=0
    )


@table
class RunRecipe(PruneRecipe):
    """A pruning run.

    The settings batch_size, epochs, learning_rate, cut_off and minimum_channels are laws, as in the table prune of a
    classifier.
    """

    name: str = key("Name of the run.", example="constant")
    continues: str = key("An earlier run; its last network with sufficient quality is pruned further.", default="")
    after_iteration: int | None = key(
        "Use the earlier run's network after this iteration instead.", default=None, low=0
    )
    teacher: str = key("An earlier run; its network gives targets in addition to the labels.", default="")
    teacher_iteration: int | None = key(
        "The iteration after which the teacher's network is taken.", default=None, low=0
    )
    teacher_share: float = key("The teacher's share of the targets.", default=0.5, low=0, high=1)
    temperature: float = key("Divides the teacher's logits (arXiv:1503.02531).", default=2.0, above=0)


@table
class BaselineRecipe:
    """A baseline of a pruning study: the original network pruned once and trained once."""

    kind: Baseline = key("Which channels stay: those with the largest weights, or drawn ones.")
    share: float = key("Share of every layer's channels that stays.", above=0, high=1, example=0.5)
    training: Effort = key("Training after the cut.")
    calibration: int = key("Training images for the statistics.", default=200, unit="images", low=1)

    @property
    def name(self) -> str:
        """Name of the baseline, for example `magnitude-0.15`."""
        return f"{self.kind}-{self.share:g}"


@table
class Scratch:
    """Final shapes of runs, trained again from random weights. This tests whether the kept weights matter or only the
    shape.
    """

    runs: tuple[str, ...] = key("Names of the pruning runs whose final shapes are trained.", example=("constant",))
    seeds: int = key("Trainings of each shape, which differ in weights and order.", default=3, low=1)
    training: Effort = key(
        "Training of each shape. For a fair comparison it must be as long as the whole "
        "training of the pruned network, including earlier iterations."
    )
    epochs: tuple[float, ...] = key(
        "Further lengths of the training, each from random weights: accuracy by epochs.", default=(), above=0
    )


@table
class StudyRecipe:
    """A study of pruning: an original network, runs that prune it, and baselines to compare with."""

    kind: Literal["pruning-study"] = key("What the recipe makes.", example="pruning-study")
    name: str = key("Name of the study.", example="my-study")
    run: Path = key("Folder for all outputs of a run.", default=Path("run"))
    results: Path = key(
        "The table of results, a .json file; the report is written beside it.", default=Path("results.json")
    )
    seed: int = key("Seed of initial weights, order and the drawn parts.", default=0)
    data: StudyData = key("Sources of labelled images.")
    original: Original = key("The network to prune.")
    runs: tuple[RunRecipe, ...] = key("The pruning runs.")
    baselines: tuple[BaselineRecipe, ...] = key("Networks pruned in one step, for comparison.", default=())
    scratch: Scratch | None = key("Pruned shapes, trained again from random weights.", default=None)
    threads: int = key("CPU threads for timing.", default=1, low=1)
    rounds: int = key("Rounds of timing; in each round the networks take turns.", default=7, low=1)
    training_threads: int = key("CPU threads for training; 0: the framework's choice.", default=0, low=0)
    representative: int = key("Training images that set the ranges for int8.", default=200, unit="images", low=1)
    profile: ProfileChoice = key(
        "What `fieldray adapt profile` measures of the original.", default_factory=ProfileChoice
    )

    def rules(self) -> Rules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.Rules`)."""
        names = [run.name for run in self.runs]
        for index, run in enumerate(self.runs):
            above = {"", *names[:index]}
            holds = run.name not in above and run.continues in above and run.teacher in above
            text = f"must have different names, and continue and learn from runs above them; {run.name} does not"
            yield holds, "runs", text
        if self.scratch:
            yield set(self.scratch.runs) <= set(names), "scratch", "must name runs of this study"

    def run_named(self, name: str) -> RunRecipe:
        """Return the run with a name. Raises KeyError if there is none."""
        for run in self.runs:
            if run.name == name:
                return run
        raise KeyError(name)
