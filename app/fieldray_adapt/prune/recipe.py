"""The keys of a pruning study's recipe: images, original network, pruning runs and baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fieldray_adapt.networks.architectures import vgg16_dense
from fieldray_adapt.networks.specification import Specification
from fieldray_adapt.prune.plan import PruneRecipe
from fieldray_adapt.prune.selection import BaselineKind
from fieldray_adapt.recipes.shared import ProfileChoice
from fieldray_adapt.recipes.tables import ValidityRules, key, recipe_table
from fieldray_adapt.training.engine_interface import Precision
from fieldray_adapt.training.loop import Effort


@recipe_table
class OriginalNetwork:
    """The network to prune: a VGG-16, trained from random weights."""

    training: Effort = key("Training of the original network.")
    width: float = key("Factor for the published numbers of channels.", default=1.0, above=0, high=2)
    dense_layers: int = key(
        "Number of hidden dense layers: 2 as published; 0 for the dissertation's 14,718,666 weights.",
        default=2, low=0, high=2,
    )  # fmt: skip
    dropout: float = key("Dropout rate before the last layers.", default=0.5, low=0, high=0.95)
    precision: Precision = key(
        "Number format for training the original network. Pruned networks are trained in float32.", default="float32"
    )

    def specification(self) -> Specification:
        """Return the specification of the original network, for images of 28 x 28 pixels as in MNIST."""
        return vgg16_dense(dense_layers=self.dense_layers, dropout=self.dropout).with_scaled_channels(self.width)


@recipe_table
class StudyData:
    """The images and labels of a pruning study: an .npz file with x_train, y_train, x_test and y_test (uint8)."""

    file: Path = key("The .npz file with images and labels.", example="mnist.npz")
    validation: int = key("Number of images of x_train for validation.", default=5000, unit="images", low=1)
    training: int = key(
        "Number of images of x_train for training; 0: all images that are not for validation.",
        default=0,
        unit="images",
        low=0,
    )


@recipe_table
class PruningRunRecipe(PruneRecipe):
    """A pruning run of a study: the first network, stop rules, and five settings. A law sets each setting (see *Laws*).

    The keys batch_size, epochs, learning_rate, cut_off and minimum_channels are laws, as in the table prune of a
    classifier's recipe.
    """

    name: str = key("Name of the run.", example="constant")
    continues: str = key(
        "Name of an earlier run whose last network with sufficient quality is pruned further.", default=""
    )
    after_iteration: int | None = key(
        "With continues: prune the earlier run's network after this iteration.", default=None, low=0
    )
    teacher: str = key(
        "Name of an earlier run whose network gives training targets in addition to the labels.", default=""
    )
    teacher_iteration: int | None = key(
        "With teacher: take the earlier run's network after this iteration.", default=None, low=0
    )
    teacher_share: float = key("Weight of the teacher's targets; the labels have the rest.", default=0.5, low=0, high=1)
    temperature: float = key("Divisor of the teacher's logits (arXiv:1503.02531).", default=2.0, above=0)


@recipe_table
class BaselineRecipe:
    """A baseline of a pruning study: the original network pruned once and trained once."""

    kind: BaselineKind = key(
        "Which channels are kept. magnitude: those with the largest weights; random: random channels."
    )
    share: float = key("Share of the channels that each layer keeps.", above=0, high=1, example=0.5)
    training: Effort = key("Training after channels are removed.")
    calibration: int = key(
        "Number of training images on which the signal of each layer is measured.", default=200, unit="images", low=1
    )

    @property
    def name(self) -> str:
        """Name of the baseline, for example `magnitude-0.15`."""
        return f"{self.kind}-{self.share:g}"


@recipe_table
class ScratchTraining:
    """Networks with the shapes of pruned networks, trained from random weights.

    A comparison with the pruned networks shows whether the kept weights matter, or only the shape.
    """

    runs: tuple[str, ...] = key("Names of the pruning runs whose shapes are trained.", example=("constant",))
    seeds: int = key("Number of trainings of each shape, with different random numbers.", default=3, low=1)
    training: Effort = key(
        "Training of each shape. For a fair comparison, choose the total epochs of the pruned network, including all "
        "earlier iterations."
    )
    epochs: tuple[float, ...] = key(
        "Further numbers of epochs for which each shape is trained from random weights.", default=(), above=0
    )


@recipe_table
class StudyRecipe:
    """A study of pruning: an original network, pruning runs, and baselines to compare the pruned networks with."""

    kind: Literal["pruning-study"] = key("The kind of the recipe: a pruning study.", example="pruning-study")
    name: str = key("Name of the study.", example="my-study")
    run: Path = key("Folder for all outputs of a run.", default=Path("run"))
    results: Path = key(
        "Path of the results, a .json file. The file report.html is written beside it.", default=Path("results.json")
    )
    seed: int = key("Seed of all random numbers: initial weights, order of images, validation images.", default=0)
    data: StudyData = key("Images and labels.")
    original: OriginalNetwork = key("The network to prune.")
    runs: tuple[PruningRunRecipe, ...] = key("The pruning runs.")
    baselines: tuple[BaselineRecipe, ...] = key("Networks pruned in one step, for comparison.", default=())
    scratch: ScratchTraining | None = key(
        "Networks with the shapes of pruned networks, trained from random weights.", default=None
    )
    threads: int = key("Number of CPU threads for measuring times.", default=1, low=1)
    rounds: int = key("Number of time measurements of each network. The networks take turns.", default=7, low=1)
    training_threads: int = key("Number of CPU threads for training. 0: the framework chooses.", default=0, low=0)
    representative: int = key(
        "Number of training images that set the ranges of the int8 values.", default=200, unit="images", low=1
    )
    profile: ProfileChoice = key(
        "What `fieldray adapt profile` measures on the original network.", default_factory=ProfileChoice
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this recipe must fulfil (see `tables.ValidityRules`)."""
        names = [run.name for run in self.runs]
        for index, run in enumerate(self.runs):
            above = {"", *names[:index]}
            holds = run.name not in above and run.continues in above and run.teacher in above
            text = f"must have different names, and may continue or learn only from earlier runs; {run.name} does not"
            yield holds, "runs", text
        if self.scratch:
            yield set(self.scratch.runs) <= set(names), "scratch", "must name runs of this study"

    def pruning_run(self, name: str) -> PruningRunRecipe:
        """Return the pruning run with the name `name`. Raises KeyError if no run has this name."""
        for run in self.runs:
            if run.name == name:
                return run
        raise KeyError(name)
