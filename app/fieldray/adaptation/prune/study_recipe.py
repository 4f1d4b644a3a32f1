"""The recipe of a pruning study: the data, the original network, the runs and the baselines to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fieldray.adaptation.engine import Precision
from fieldray.adaptation.fit import Effort
from fieldray.adaptation.profile import ProfileChoice
from fieldray.adaptation.prune.baselines import Baseline
from fieldray.adaptation.prune.recipe import PruneRecipe
from fieldray.adaptation.prune.timing import ROUNDS
from fieldray.adaptation.tables import parse, read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The network to prune: VGG-16 at a width (1 = as published), trained from its initial weights.

    precision    of this training alone; what is pruned trains in float32
    """

    training: Effort
    width: float = 1.0
    dropout: float = 0.5
    precision: Precision = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """An .npz with x_train, y_train, x_test, y_test (uint8). The parts are drawn; 0 training images: all others."""

    file: Path
    validation: int = 5000
    training: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe(PruneRecipe):
    """One pruning run by its name.

    continues      another run, whose last network that kept the quality is where this one begins; after_iteration:
                   the network after that iteration of it instead
    teacher        another run, whose last network that kept the quality (or the one after `teacher_iteration`) gives
                   targets besides the labels
    teacher_share  of the targets, 0..1; temperature: the teacher's logits are divided by it (arXiv:1503.02531)
    """

    name: str
    continues: str = ""
    after_iteration: int | None = None
    teacher: str = ""
    teacher_iteration: int | None = None
    teacher_share: float = 0.5
    temperature: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.teacher_share <= 1 or not self.temperature > 0:
            raise ValueError("teacher_share must be 0..1 and temperature above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecipe:
    """One-shot pruning: how the channels are chosen, the share kept of every set, and the training after it."""

    kind: Baseline
    share: float
    training: Effort
    calibration: int = 200

    @property
    def name(self) -> str:
        """For example `magnitude-0.15`."""
        return f"{self.kind}-{self.share:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecipe:
    """The whole study. Paths count from the recipe's folder.

    run               the run folder
    results           where the table is kept beside it; the report goes into the same folder
    threads           on which networks are timed; training_threads: on which they train (0: the framework's choice)
    rounds            turns that each network gets when they are timed
    representative    training images that decide the ranges of the integers
    float_files       float TensorFlow Lite files are made and timed too
    profile           what `adapt profile` measures of the original
    """

    name: str
    kind: Literal["pruning-study"]
    run: Path
    results: Path
    seed: int
    data: Data
    original: Original
    runs: tuple[RunRecipe, ...]
    baselines: tuple[BaselineRecipe, ...] = ()
    threads: int = 1
    rounds: int = ROUNDS
    training_threads: int = 0
    representative: int = 200
    float_files: bool = True
    profile: ProfileChoice = field(default_factory=ProfileChoice)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError("rounds must be 1 or more")
        names = [run.name for run in self.runs]
        for index, run in enumerate(self.runs):
            above = {"", *names[:index]}
            if run.name in above or run.continues not in above or run.teacher not in above:
                raise ValueError(f"run {run.name}: names differ, and it continues and learns from runs above it")

    def run_named(self, name: str) -> RunRecipe:
        """The run of that name; KeyError if there is none."""
        for run in self.runs:
            if run.name == name:
                return run
        raise KeyError(name)


def is_study(path: Path) -> bool:
    """Whether a recipe is one of a study. Raises UsageProblem if it cannot be read."""
    return read_toml(path).get("kind") == "pruning-study"


def read_study(path: Path) -> StudyRecipe:
    """The recipe with its paths made whole. Raises UsageProblem naming the key that is wrong."""
    recipe, base = parse(StudyRecipe, read_toml(path), where="recipe"), path.resolve().parent
    data = replace(recipe.data, file=(base / recipe.data.file).resolve())
    return replace(recipe, run=(base / recipe.run).resolve(), results=(base / recipe.results).resolve(), data=data)
