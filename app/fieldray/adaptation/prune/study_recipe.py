"""The recipe of a pruning study: the data, the original network, the runs and the baselines to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from fieldray.adaptation.engine import Precision
from fieldray.adaptation.fit import Effort
from fieldray.adaptation.profile import ProfileChoice
from fieldray.adaptation.prune.recipe import PruneRecipe
from fieldray.adaptation.prune.selection import Baseline
from fieldray.adaptation.prune.timing import ROUNDS
from fieldray.adaptation.recipe_file import Document
from fieldray.adaptation.tables import Key, require, require_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The network to prune, a VGG-16, trained from its initial weights."""

    training: Annotated[Effort, Key(doc="How it is trained.")]
    width: Annotated[float, Key(doc="Share of the published channel counts.", above=0, high=2)] = 1.0
    dropout: Annotated[float, Key(doc="Before the last layers.", low=0, high=0.95)] = 0.5
    precision: Annotated[Precision, Key(doc="Of this training alone; pruned networks train in float32.")] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """An .npz file with x_train, y_train, x_test and y_test (uint8)."""

    file: Annotated[Path, Key(doc="The file.", example="mnist.npz")]
    validation: Annotated[int, Key(doc="Training images that are kept for validation.", unit="images", low=1)] = 5000
    training: Annotated[int, Key(doc="Images to train on; 0: all others.", unit="images", low=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe(PruneRecipe):
    """One pruning run.

    The settings batch_size, epochs, learning_rate, cut_off and minimum_channels are laws, as in the table prune of a
    classifier.
    """

    name: Annotated[str, Key(doc="Name of the run.", example="constant")]
    continues: Annotated[str, Key(doc="A run above, whose last network that kept the quality is pruned further.")] = ""
    after_iteration: Annotated[int | None, Key(doc="Its network after this iteration instead.", low=0)] = None
    teacher: Annotated[str, Key(doc="A run above, whose network gives targets besides the labels.")] = ""
    teacher_iteration: Annotated[int | None, Key(doc="Its network after this iteration.", low=0)] = None
    teacher_share: Annotated[float, Key(doc="The teacher's share of the targets.", low=0, high=1)] = 0.5
    temperature: Annotated[float, Key(doc="Divides the teacher's logits (arXiv:1503.02531).", above=0)] = 2.0

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecipe:
    """Pruning in one shot, to compare with."""

    kind: Annotated[Baseline, Key(doc="Which channels stay: those with the largest weights, or drawn ones.")]
    share: Annotated[float, Key(doc="Share of every layer's channels that stays.", above=0, high=1, example=0.5)]
    training: Annotated[Effort, Key(doc="Training after the cut.")]
    calibration: Annotated[int, Key(doc="Training images for the statistics.", unit="images", low=1)] = 200

    @property
    def name(self) -> str:
        """For example `magnitude-0.15`."""
        return f"{self.kind}-{self.share:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecipe:
    """A study of pruning: an original network, runs that prune it, and baselines to compare with."""

    kind: Annotated[Literal["pruning-study"], Key(doc="What the recipe makes.", example="pruning-study")]
    name: Annotated[str, Key(doc="Name of the study.", example="my-study")]
    run: Annotated[Path, Key(doc="Folder for everything that a run leaves.")] = Path("run")
    results: Annotated[Path, Key(doc="The table of results, a .json file; the report is written beside it.")] = Path(
        "results.json"
    )
    seed: Annotated[int, Key(doc="Of initial weights, order and the drawn parts.")] = 0
    data: Annotated[Data, Key(doc="Where the images are.")]
    original: Annotated[Original, Key(doc="The network to prune.")]
    runs: Annotated[tuple[RunRecipe, ...], Key(doc="The pruning runs.")]
    baselines: Annotated[tuple[BaselineRecipe, ...], Key(doc="One-shot pruning to compare with.")] = ()
    threads: Annotated[int, Key(doc="CPU threads for timing.", low=1)] = 1
    rounds: Annotated[int, Key(doc="Rounds in which the networks are timed alternating.", low=1)] = ROUNDS
    training_threads: Annotated[int, Key(doc="CPU threads for training; 0: the framework's choice.", low=0)] = 0
    representative: Annotated[
        int, Key(doc="Training images that decide the ranges of the integers.", unit="images", low=1)
    ] = 200
    float_files: Annotated[bool, Key(doc="Whether float TensorFlow Lite files are made and timed, too.")] = True
    profile: Annotated[ProfileChoice, Key(doc="What `fieldray adapt profile` measures of the original.")] = field(
        default_factory=ProfileChoice
    )

    def __post_init__(self) -> None:
        names = [run.name for run in self.runs]
        rules = []
        for index, run in enumerate(self.runs):
            above = {"", *names[:index]}
            holds = run.name not in above and run.continues in above and run.teacher in above
            text = f"must have different names, and continue and learn from runs above them; {run.name} does not"
            rules.append((holds, "runs", text))
        require(*rules)

    def run_named(self, name: str) -> RunRecipe:
        """The run of that name; KeyError if there is none."""
        for run in self.runs:
            if run.name == name:
                return run
        raise KeyError(name)


def read_study(path: Path) -> StudyRecipe:
    """The recipe with its paths made whole. Raises UsageProblem: recipe_unreadable, recipe_problems."""
    return rooted(Document.read(path).parsed(StudyRecipe), path)


def rooted(recipe: StudyRecipe, path: Path) -> StudyRecipe:
    """The recipe of a file with its paths made whole."""
    base = path.resolve().parent
    data = replace(recipe.data, file=(base / recipe.data.file).resolve())
    return replace(recipe, run=(base / recipe.run).resolve(), results=(base / recipe.results).resolve(), data=data)
