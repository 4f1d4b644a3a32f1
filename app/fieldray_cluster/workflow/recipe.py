"""The keys of a workflow's recipe, a TOML document: experiments with commands, parameters and dependencies.

An experiment is a command with placeholders, which is run once for each sample of parameter values. The recipe also
describes the cluster: address, number of workers, and whether machines may be taken away. In place of experiments, a
recipe may have a table `[sweep]`, which searches for the best values of a recipe of `fieldray adapt`. The concept
follows Hyper by D. Buniatyan; key names, retries and preemption are additions.

Samples are drawn as in Buniatyan's thesis. n combinations of the discrete parameters are taken with as few repetitions
as possible: their frequencies differ by at most 1. For each continuous range, n numbers are drawn. The number with
index i belongs to the combination with index i.
"""

from __future__ import annotations

import graphlib
import math
import random
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, get_args

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.files import write_atomically
from fieldray_adapt.recipes.tables import (
    Problem,
    RecipeDocument,
    RecipeProblems,
    ValidityRules,
    key,
    parse_table,
    recipe_table,
    recipe_template,
    resolve_paths,
)

# ---- parameters and their samples


ParameterValue = int | float | str | bool
"""A value that a parameter of an experiment may have."""
Scale = Literal["linear", "log"]
"""The scale on which the values of a range are drawn: linear or logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The values of a placeholder in a command: a constant, several discrete values, or a continuous range.

    Attributes
    ----------
    values
        The value of a constant, or the discrete values; empty for a range.
    low, high
        Limits of a range, both included.
    scale
        "linear": numbers are drawn uniformly between the limits. "log": the logarithms of numbers are drawn uniformly.
    """

    values: tuple[ParameterValue, ...] = ()
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "linear"
    is_constant: bool = False

    def __post_init__(self) -> None:
        if self.values:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError("must have a low below its high")
        if self.scale == "log" and self.low <= 0:
            raise ValueError("must have a low above 0 where the scale is log")

    @property
    def is_range(self) -> bool:
        """Whether the parameter is a continuous range."""
        return not self.values

    @classmethod
    def from_document(cls, value: object) -> Parameter:
        """Parse a TOML value: a list has discrete values, a table is a range, other values are constants.

        Raises ValueError for an invalid value.
        """
        if _is_value(value):
            return cls(values=(value,), is_constant=True)
        if isinstance(value, list):
            known = tuple(item for item in value if _is_value(item))
            if not value or len(known) != len(value):
                raise ValueError("must be a list of numbers, texts, true and false, and not empty")
            if len({(type(item), item) for item in known}) != len(known):
                raise ValueError("must not name a value twice")
            return cls(values=known)
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a value, a list or a range {{ low = 1.0, high = 2.0 }}, not {value}")
        unknown = set(value) - {"low", "high", "scale"}
        if unknown or not {"low", "high"} <= set(value):
            raise ValueError("must have low and high, may have scale, and has no other key")
        if not all(isinstance(value[key], int | float) and not isinstance(value[key], bool) for key in ("low", "high")):
            raise ValueError("must have numbers as low and high")
        if value.get("scale", "linear") not in get_args(Scale):
            raise ValueError(f"must have one of {', '.join(get_args(Scale))} as scale, not {value['scale']}")
        return cls(low=float(value["low"]), high=float(value["high"]), scale=value.get("scale", "linear"))


def count_combinations(parameters: Mapping[str, Parameter]) -> int:
    """Return the number of combinations of the values of all discrete parameters; 1 if there are none.

    Parameters with a continuous range are ignored.
    """
    return math.prod(len(known.values) for known in parameters.values() if not known.is_range)


def draw_samples(
    parameters: Mapping[str, Parameter], *, count: int, seed: int | str
) -> list[dict[str, ParameterValue]]:
    """Draw the parameter values of `count` tasks. Returns a mapping from parameter to value for each task.

    Equal seeds give equal values.
    """
    generator = random.Random(f"{seed}")
    discrete = {name: known.values for name, known in parameters.items() if not known.is_range}
    chosen = _spread(count_combinations(parameters), count, generator)
    drawn = {
        name: [_draw(known, generator) for _ in range(count)] for name, known in parameters.items() if known.is_range
    }
    rows = []
    for index, number in enumerate(chosen):
        row = _combination(discrete, number) | {name: numbers[index] for name, numbers in drawn.items()}
        rows.append({name: row[name] for name in parameters})
    return rows


def _spread(size: int, count: int, generator: random.Random) -> list[int]:
    """Return `count` random whole numbers from 0 to `size` - 1. Their frequencies differ by at most 1."""
    rounds, left = divmod(count, size)
    found = [number for _ in range(rounds) for number in generator.sample(range(size), size)]
    return found + generator.sample(range(size), left)


def _combination(discrete: Mapping[str, Sequence[ParameterValue]], number: int) -> dict[str, ParameterValue]:
    """Return the combination of discrete values with the index `number` in `itertools.product`, by parameter."""
    found = {}
    for name in reversed(tuple(discrete)):
        number, index = divmod(number, len(discrete[name]))
        found[name] = discrete[name][index]
    return found


def _draw(parameter: Parameter, generator: random.Random) -> float:
    if parameter.scale == "log":
        number = math.exp(generator.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        number = generator.uniform(parameter.low, parameter.high)
    return min(max(number, parameter.low), parameter.high)  # rounding may lead out of the range


def _is_value(value: object) -> TypeGuard[ParameterValue]:
    return isinstance(value, int | float | str | bool) and not (isinstance(value, float) and math.isnan(value))


# ---- the recipe


PLACEHOLDER_PATTERN: Final = re.compile(r"\{\{(\w+)\}\}")
"""The pattern of a placeholder, such as {{name}}, in the command of an experiment."""
BUILT_IN_PLACEHOLDERS: Final = ("index", "run", "folder", "here")
"""The names of placeholders that every command may use without a parameter.

`index` is the number of the task, from 1. `run` is the run folder, `folder` the task's folder, `here` the recipe's
folder.
"""

FIELDRAY_COMMAND_WORD: Final = "fieldray"
"""The first word of a command for this program, which is replaced by the program that is installed on the node."""

MAX_TASK_COUNT: Final = 100_000
_FIRST: Final = """
# An experiment to begin with: two tasks, one for each word.
[experiments.first]
command = "fieldray {{word}}"
parameters = { word = ["--version", "--help"] }
"""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def _command_problem(text: str) -> str | None:
    """Check the command of an experiment. Returns the problem as the end of a sentence; None for a valid command."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        return f"cannot be split into words: {problem}"
    if not words:
        return "is empty"
    rest = PLACEHOLDER_PATTERN.sub("", text)
    if "{{" in rest or "}}" in rest:
        return "has braces that are no placeholder: write {{name}}, without spaces"
    return "must begin with the name of a program" if PLACEHOLDER_PATTERN.search(words[0]) else None


@recipe_table
class RetryPolicy:
    """The rules by which tasks of an experiment, or trials of a sweep, are repeated after a failure."""

    workers: int = key("Largest number of tasks at the same time; 0: as many as there are workers.", default=0, low=0)
    retries: int = key("How many times a failed command is repeated.", default=0, low=0)
    preemptible: bool | None = key(
        "Whether machines may be taken away at any moment. If true, a task whose worker is lost is repeated without "
        "counting as a failed attempt. By default the value in [cluster].",
        default=None,
    )
    lost_workers: int = key(
        "Number of lost workers after which a task counts as their cause and fails, even if preemptible.",
        default=8,
        low=1,
    )


@recipe_table
class Experiment(RetryPolicy):
    """A command with placeholders, and the values of its parameters. Each sample of values is a task."""

    command: str = key(
        "The command to run. {{name}} is replaced by the value of the parameter, always as a single word. The command "
        "is split into words as in a shell, but run without a shell.",
        check=_command_problem,
    )
    depends_on: tuple[str, ...] = key("Names of experiments that must end before this experiment.", default=())
    parameters: Mapping[str, Parameter] = key(
        "Values of the parameters: a constant, a list of values, or a table with low and high for a continuous range.",
        default_factory=dict,
    )
    samples: int = key(
        "Number of tasks; 0: one task for each combination of listed values.", default=0, low=0, high=MAX_TASK_COUNT
    )
    inputs: tuple[str, ...] = key(
        "Files and folders that the command reads. If an input changes, the tasks run again. A file is compared by "
        "content; a folder by names, sizes and times of its files.",
        default=(),
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `recipes.tables.ValidityRules`)."""
        used, known = set(PLACEHOLDER_PATTERN.findall(self.command)), set(self.parameters)
        missing, unused = used - known - set(BUILT_IN_PLACEHOLDERS), known - used
        yield not missing, "command", f"has placeholders without a parameter: {', '.join(sorted(missing))}"
        yield not unused, "parameters", f"are not used in the command: {', '.join(sorted(unused))}"
        yield (
            not known & set(BUILT_IN_PLACEHOLDERS),
            "parameters",
            f"must not be called {', '.join(BUILT_IN_PLACEHOLDERS)}",
        )
        too_many = f"make {self.task_count} combinations, and at most {MAX_TASK_COUNT} are run; give samples"
        yield self.task_count <= MAX_TASK_COUNT, "parameters", too_many

    @property
    def task_count(self) -> int:
        """The number of tasks of the experiment."""
        return self.samples or count_combinations(self.parameters)


@recipe_table
class TrialPruning:
    """Settings for stopping poor trials early.

    A trial is stopped if its best figure is below the median of the other trials after the same number of epochs.
    """

    trials: int = key("Number of trials at the start that are never stopped early.", default=4, low=1)
    epochs: int = key("Number of epochs before which no trial is stopped.", default=1, low=0)


@recipe_table
class Sweep(RetryPolicy):
    """A search for the best values of a recipe of `fieldray adapt`."""

    recipe: Path = key("The recipe of `fieldray adapt` for which the best values are searched.")
    trials: int = key("Number of trials (trainings with different values).", default=16, low=1, high=MAX_TASK_COUNT)
    metric: str = key(
        "The figure that decides which trial is best: a key in the rows of history.json. For a list, the mean is used.",
        default="auc",
    )
    direction: Literal["maximize", "minimize"] = key(
        "Whether larger or smaller figures are better.", default="maximize"
    )
    keys: Mapping[str, Parameter] = key(
        'Keys of the recipe and values to try, for example "training.batch_size" = [16, 32].'
    )
    pruning: TrialPruning | None = key(
        "Settings for stopping poor trials early. Without this table, no trial is stopped early.", default=None
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `recipes.tables.ValidityRules`)."""
        yield any(not known.is_constant for known in self.keys.values()), "keys", "must have a list or a range"


@recipe_table
class Cluster:
    """The cluster, or the processes of this computer, on which the tasks of a workflow run."""

    address: str | None = key(
        "Address of the scheduler, for example tcp://10.0.0.5:8786. By default processes on this computer are used.",
        default=None,
    )
    workers: int = key(
        "Number of worker processes. With an address: largest number of workers to wait for.", default=2, low=1
    )
    certificates: Path | None = key("Folder of this computer's certificates.", default=None)
    preemptible: bool = key("Whether machines of the cluster may be taken away at any moment.", default=False)


@recipe_table
class Workflow:
    """The recipe of a workflow: experiments or a sweep, and the cluster on which the tasks run."""

    run: Path = key(
        "Folder for all outputs of a run. Every computer of the cluster must be able to use this folder.",
        default=Path("run"),
    )
    seed: int = key("Seed of the samples. Equal seeds give equal samples.", default=0)
    cluster: Cluster = key("The cluster on which the tasks run.", default=Cluster())
    experiments: Mapping[str, Experiment] = key("The experiments, by name.", default_factory=dict)
    sweep: Sweep | None = key("A search for the best values of a recipe.", default=None)

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this recipe must fulfil (see `recipes.tables.ValidityRules`)."""
        yield bool(self.experiments) != (self.sweep is not None), "", "needs experiments, or a table [sweep]"

    def resolve_paths(self, base: Path) -> Workflow:
        """Return a copy with absolute paths. `base` is the recipe's folder, to which relative paths are relative."""
        sweep = self.sweep and resolve_paths(self.sweep, base)
        return replace(self, run=base / self.run, cluster=resolve_paths(self.cluster, base), sweep=sweep)


def read_workflow(path: Path) -> Workflow:
    """Read the recipe of a workflow from a file, and make its paths absolute.

    Raises UsageProblem: recipe_unreadable, or recipe_problems, which lists all problems with their lines.
    """
    document = RecipeDocument.read(path)
    base, workflow = path.resolve().parent, parse_table(Workflow, document.tables)
    problems = [*(workflow if isinstance(workflow, list) else ()), *_problems(document.tables, base)]
    if problems or isinstance(workflow, list):
        raise RecipeProblems(path, document.problem_lines(problems))
    return workflow.resolve_paths(base)


def write_new_workflow(path: Path) -> None:
    """Write a workflow recipe with all keys as comments, and one small experiment that can be run.

    Raises UsageProblem if the file exists, and StorageProblem.
    """
    if path.exists():
        raise UsageProblem(reason("recipe_exists", path=path))
    write_atomically(path, (recipe_template(Workflow) + _FIRST).encode())


def _problems(tables: Mapping[str, Any], base: Path) -> Iterator[Problem]:
    """Yield problems that concern several experiments, or their inputs. Experiments with invalid keys are ignored.

    `tables` is the content of the recipe, `base` the recipe's folder.
    """
    named = tables.get("experiments")
    known = {name: own for name, own in named.items() if isinstance(own, dict)} if isinstance(named, dict) else {}
    for name, experiment in known.items():
        at = ("experiments", name)
        if not _NAME.fullmatch(name):
            yield Problem(at, "must be named by letters, digits, - and _, beginning with a letter, 40 at most")
        for parent in _texts(experiment, "depends_on"):
            if parent not in known:
                yield Problem(
                    (*at, "depends_on"), f"names {parent}, which is no experiment; there are {', '.join(known)}"
                )
        yield from _input_problems(experiment, at, base)
    graph = {name: set(_texts(own, "depends_on")) & set(known) for name, own in known.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as cycle:
        circle = list(reversed(cycle.args[1]))
        yield Problem(("experiments", circle[0], "depends_on"), f"goes round in a circle: {' -> '.join(circle)}")


def _texts(experiment: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = experiment.get(name)
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _input_problems(experiment: Mapping[str, Any], at: tuple[str, ...], base: Path) -> Iterator[Problem]:
    """Yield a problem for each input of an experiment that does not exist.

    Nothing is yielded for an experiment with dependencies, because another experiment may make the inputs.
    """
    parameters = experiment.get("parameters")
    for text in _texts(experiment, "inputs"):
        unknown = (
            set(PLACEHOLDER_PATTERN.findall(text))
            - set(parameters if isinstance(parameters, dict) else ())
            - set(BUILT_IN_PLACEHOLDERS)
        )
        if unknown:
            yield Problem((*at, "inputs"), f"have placeholders without a parameter: {', '.join(sorted(unknown))}")
        elif not (PLACEHOLDER_PATTERN.search(text) or _texts(experiment, "depends_on") or (base / text).exists()):
            yield Problem((*at, "inputs"), f"name {base / text}, which does not exist")
