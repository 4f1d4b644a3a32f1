"""The pruning part of a recipe, and the recipe of a pruning study: data, original network, runs and baselines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from fieldray_adapt.engine import Effort, Precision
from fieldray_adapt.prune.loop import Constant, ContextDependent, Laws, Linear, Multiplicative, Plan, Stop
from fieldray_adapt.prune.selection import Baseline, CutKind
from fieldray_adapt.prune.timing import ROUNDS
from fieldray_adapt.recipe_data import ProfileChoice
from fieldray_adapt.tables import Document, Key, require, require_ranges

AnyLaw = Constant | Linear | Multiplicative | ContextDependent


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRecipe:
    """Iterative pruning: five settings that move by laws, and when to stop.

    A law is a table: { start } constant, { start, step } linear, { start, factor } multiplicative, { start, size, loss,
    time, batch, form } dependent on the context; all but the first also take bounds = { lowest, highest }.
    """

    batch_size: Annotated[AnyLaw, Key(doc="Images in a step of retraining.", example={"start": 32})]
    epochs: Annotated[AnyLaw, Key(doc="Epochs of retraining after each cut.", example={"start": 1.0})]
    learning_rate: Annotated[AnyLaw, Key(doc="Of retraining.", example={"start": 3e-4})]
    cut_off: Annotated[AnyLaw, Key(doc="Where the cut lies; its meaning is in cut_kind.", example={"start": 0.3})]
    minimum_channels: Annotated[AnyLaw, Key(doc="Fewest channels left in a layer.", example={"start": 16})]
    stop: Annotated[Stop, Key(doc="When to stop.")]
    batch_sizes: Annotated[
        tuple[int, ...],
        Key(doc="After each iteration a profile proposes one of these batch sizes; none for no profile.", low=1),
    ] = ()
    cut_kind: Annotated[
        CutKind,
        Key(
            doc="level: channels that are used less than the cut-off; deviation: less than the mean by so many "
            "standard deviations; time: the share of the time, from the channels that are used least for their cost."
        ),
    ] = "deviation"
    largest_share: Annotated[float, Key(doc="Of a layer's channels that one iteration may cut.", above=0, high=1)] = 1.0
    multiple: Annotated[int, Key(doc="Channel counts stay multiples of this.", unit="channels", low=1)] = 1
    calibration: Annotated[int, Key(doc="Training images that the use is measured on.", unit="images", low=1)] = 200

    @property
    def fingerprint(self) -> str:
        """A stable text of all but the stop rules: a run may be continued with others."""
        return json.dumps({**asdict(self), "stop": None}, sort_keys=True)

    def plan(self, seed: int) -> Plan:
        """As the loop takes it."""
        laws = Laws(
            batch_size=self.batch_size,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            cut_off=self.cut_off,
            minimum_channels=self.minimum_channels,
        )
        return Plan(
            laws=laws,
            stop=self.stop,
            cut_kind=self.cut_kind,
            largest_share=self.largest_share,
            multiple=self.multiple,
            seed=seed,
        )


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
